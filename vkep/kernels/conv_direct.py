"""Convolutions by kernels that compute a result, or a strip of results, a lane: depthwise ones and the fallback."""

from __future__ import annotations

from typing import Any

from gpu_shared.capabilities import DeviceCapabilities
from vkep.kernels.conv_problem import ConvProblem, plane_params
from vkep.kernels.epilogue import Epilogue, call_arguments
from vkep.kernels.fastdiv import magic_fields, magic_params
from vkep.kernels.kernel import Kernel, KernelCall, Operand
from vkep.kernels.tiles import STORAGE, ceil_div, flat_grid, is_cpu_driver, storage_type

_X_W_Y = (Operand("x"), Operand("w"), Operand("y", writes=True))
_VARIANTS = tuple({"T": t} for t in STORAGE.values())


def _uints(*names: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, "uint") for name in names)


CONV_DEPTHWISE = Kernel(
    "conv_depthwise.comp",
    operands=_X_W_Y,
    params=(
        *_uints("height", "width", "out_height", "multiplier", "total"),
        *magic_fields("out_width", "strips", "out_channels"),
        *_uints("stride_w", "dilation_w", "pad_top", "pad_left", "y_batch"),
    ),
    spec={"KERNEL_H": 3, "KERNEL_W": 3, "STRIDE_H": 1, "DILATION_H": 1, "STRIP": 4},
    variants=_VARIANTS,
)
CONV_DIRECT = Kernel(
    "conv_direct.comp",
    operands=_X_W_Y,
    params=_uints(
        *(
            "channels",
            "depth",
            "height",
            "width",
            "out_channels",
            "out_depth",
            "out_height",
            "out_width",
            "groups",
            "total",
        ),
        *(
            "kernel_d",
            "kernel_h",
            "kernel_w",
            "stride_d",
            "stride_h",
            "stride_w",
            "dilation_d",
            "dilation_h",
            "dilation_w",
        ),
        *("pad_front", "pad_top", "pad_left", "y_batch"),
    ),
    variants=_VARIANTS,
)


#: a window of more taps than this is not unrolled
_MAX_DEPTHWISE_TAPS = 49


def is_depthwise(problem: ConvProblem) -> bool:
    """Whether `depthwise` computes it: one input channel a group, a window small enough to unroll."""
    flat = problem.d == problem.kd == problem.od == 1
    return flat and problem.c == problem.groups > 1 and problem.kh * problem.kw <= _MAX_DEPTHWISE_TAPS


def depthwise(
    problem: ConvProblem, caps: DeviceCapabilities, x: Any, w: Any, y: Any, epilogue: Epilogue | None
) -> KernelCall:
    # Longer strips load less, shorter ones make more lanes for a GPU.
    strip = min(8 if is_cpu_driver(caps) else 4, 1 << (problem.oh - 1).bit_length())
    strips = ceil_div(problem.oh, strip)
    total = problem.n * problem.oc * strips * problem.ow
    local = 128
    plane = plane_params(problem)
    return CONV_DEPTHWISE.call(
        grid=flat_grid(total, local, caps, "conv"),
        operands={"x": x, "w": w, "y": y},
        params={
            **{name: plane[name] for name, _ in CONV_DEPTHWISE.params if name in plane},
            **magic_params("out_width", problem.ow),
            **magic_params("strips", strips),
            **magic_params("out_channels", problem.oc),
            "multiplier": problem.oc // problem.groups,
            "total": total,
        },
        spec={
            "KERNEL_H": problem.kh,
            "KERNEL_W": problem.kw,
            "STRIDE_H": problem.stride[0],
            "DILATION_H": problem.dilation[0],
            "STRIP": strip,
        },
        local_size=(local, 1, 1),
        flops=problem.flops,
        **call_arguments(epilogue, {"T": storage_type(problem.dtype)}),
    )


def direct(
    problem: ConvProblem, caps: DeviceCapabilities, x: Any, w: Any, y: Any, epilogue: Epilogue | None
) -> KernelCall:
    total = problem.n * problem.oc * problem.od * problem.oh * problem.ow
    local = caps.subgroup_size if is_cpu_driver(caps) else 64
    return CONV_DIRECT.call(
        grid=flat_grid(total, local, caps, "conv"),
        operands={"x": x, "w": w, "y": y},
        params={
            **plane_params(problem),
            "depth": problem.d,
            "out_depth": problem.od,
            "kernel_d": problem.kd,
            "kernel_h": problem.kh,
            "kernel_w": problem.kw,
            "stride_d": problem.stride_d,
            "dilation_d": problem.dilation_d,
            "pad_front": problem.pads_d[0],
            "total": total,
        },
        local_size=(local, 1, 1),
        flops=problem.flops,
        **call_arguments(epilogue, {"T": storage_type(problem.dtype)}),
    )
