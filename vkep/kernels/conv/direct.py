"""Convolutions in which a lane computes one result or a strip of results: depthwise ones and the fallback."""

from __future__ import annotations

from collections.abc import Mapping

from gpu_shared.capabilities import DeviceCapabilities
from vkep.kernels.conv.problem import ConvProblem, is_depthwise, plane_params, plane_reach
from vkep.kernels.epilogue import call_arguments
from vkep.kernels.fastdiv import magic_params
from vkep.kernels.kernel import Kernel, KernelCall
from vkep.kernels.launch import ceil_div, strip_of
from vkep.kernels.matmul.tiles import OF_STORAGE, STORAGE, flat_grid, is_cpu_driver
from vkep.kernels.select import Emission


def _depthwise_reach(call: KernelCall) -> Mapping[str, int]:
    size, channels, pixels = call.size_of("T"), call["out_channels"], call["out_height"] * call["out_width"]
    images = ceil_div(call["total"], call["out_width"] * call["strips"] * channels)
    return {
        "x": images * (channels // call["multiplier"]) * call["height"] * call["width"] * size,
        "w": channels * call["KERNEL_H"] * call["KERNEL_W"] * size,
        "y": ((images - 1) * call["y_batch"] + channels * pixels) * size,
    }


def _direct_reach(call: KernelCall) -> Mapping[str, int]:
    size, outputs = call.size_of("T"), call["out_channels"] * call["groups"]
    images = ceil_div(call["total"], outputs * call["out_height"] * call["out_width"])
    weights = outputs * call["channels"] * call["kernel_h"] * call["kernel_w"]
    return {name: count * size for name, count in {**plane_reach(call, images), "w": weights}.items()}


_PLANE = ("height", "width", "out_height", "stride_w", "dilation_w", "pad_top", "pad_left", "y_batch")
CONV_DEPTHWISE = Kernel("conv_depthwise.comp", variants=OF_STORAGE, reach=_depthwise_reach)
CONV_DIRECT = Kernel("conv_direct.comp", variants=OF_STORAGE, reach=_direct_reach)


def no_depthwise(problem: ConvProblem, caps: DeviceCapabilities) -> str:
    """Why `depthwise` does not compute a convolution; "" where it does."""
    if not is_depthwise(problem):
        return "several input channels a group, or a large window"
    return "an input without elements" if 0 in (problem.h, problem.w) else ""


def depthwise(problem: ConvProblem, e: Emission) -> KernelCall:
    """The dispatch of a convolution with one input channel per group."""
    # Longer strips load less, shorter ones make more lanes for a GPU.
    strip = strip_of(problem.oh, 8 if is_cpu_driver(e.caps) else 4)
    strips = ceil_div(problem.oh, strip)
    total = problem.n * problem.oc * strips * problem.ow
    local = 128
    plane = plane_params(problem)
    return CONV_DEPTHWISE.call(
        grid=flat_grid(total, local, e.caps),
        operands=e.operands,
        params={
            **{name: plane[name] for name in _PLANE},
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
        **call_arguments(e.epilogue, {"T": STORAGE[problem.dtype]}),
    )


def direct(problem: ConvProblem, e: Emission) -> KernelCall:
    """The dispatch of any convolution."""
    total = problem.n * problem.oc * problem.pixels
    local = e.caps.subgroup_size if is_cpu_driver(e.caps) else 64
    return CONV_DIRECT.call(
        grid=flat_grid(total, local, e.caps),
        operands=e.operands,
        params={
            **plane_params(problem),
            "kernel_h": problem.kh,
            "kernel_w": problem.kw,
            "total": total,
        },
        local_size=(local, 1, 1),
        **call_arguments(e.epilogue, {"T": STORAGE[problem.dtype]}),
    )
