"""Convolutions in float16 with channels last (NHWC), for devices with cooperative matrices.

There a tap's channels lie side by side, so that an implicit product reads its rows in vectors, whatever the image's size, and
a 1x1 convolution is a plain product. Between convolutions the layout costs nothing: lowering keeps it as a view
(`vkep.ir.builder.Builder.store`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpu_shared.capabilities import DeviceCapabilities
from vkep.kernels.conv_direct import is_depthwise
from vkep.kernels.conv_problem import ConvProblem, window_params
from vkep.kernels.cooperative import COOPERATIVE_SPEC, HALVES, MIN_EDGE, matmul_cooperative, uints
from vkep.kernels.cooperative_tiles import CONV_LAST_TILES, VECTOR, CooperativeTiling, cooperative_tiling, float16_shape
from vkep.kernels.epilogue import Epilogue, call_arguments
from vkep.kernels.fastdiv import magic_fields, magic_params
from vkep.kernels.kernel import Kernel, KernelCall, Operand
from vkep.kernels.split_k import partial_sums, reduce_partials
from vkep.kernels.tiles import Prepack, Scratch, ceil_div, flat_grid, is_cpu_driver, tile_grid

_X_W_Y = (Operand("x"), Operand("w"), Operand("y", writes=True))
CONV_LAST = Kernel(
    "conv_last.comp",
    operands=_X_W_Y,
    params=(
        *uints("m", "n", "k", "splits", "split_k", "height", "width", "pitch"),
        *magic_fields("pixels", "out_width", "channels", "kernel_w"),
        *uints("stride_h", "stride_w", "dilation_h", "dilation_w", "pad_top", "pad_left", "y_row", "y_col"),
        ("alpha", "float"),
    ),
    spec={**COOPERATIVE_SPEC, "WHOLE_TAPS": 1, "BAND": 8},
    variants=(HALVES,),
)
CONV_DEPTHWISE_LAST = Kernel(
    "conv_depthwise_last.comp",
    operands=_X_W_Y,
    params=(
        *uints("height", "width", "out_width", "total", "channels"),
        *magic_fields("units", "strips", "out_height"),
        *uints("stride_h", "dilation_h", "pad_top", "pad_left"),
    ),
    spec={"KERNEL_H": 3, "KERNEL_W": 3, "STRIDE_W": 1, "DILATION_W": 1, "STRIP": 4, "STORE_VECTOR": 1},
    variants=({},),
)
_LANES = 128


def takes_channels_last(problem: ConvProblem, caps: DeviceCapabilities) -> bool:
    """Whether `conv_last` computes it on this device, in vectors of eight channels."""
    flat = problem.d == problem.kd == problem.od == 1
    whole = problem.c % VECTOR == 0 and problem.oc % VECTOR == 0 and min(problem.c, problem.oc) >= MIN_EDGE
    shape = float16_shape(caps)
    if problem.dtype != "float16" or not (flat and whole) or shape is None:
        return False
    if is_cpu_driver(caps):  # a driver on the CPU may list matrices too, and takes minutes to compile for them
        return False
    if problem.groups == 1:
        return any(tile.runs_on(caps, shape, False) for tile in CONV_LAST_TILES)
    return is_depthwise(problem) and problem.oc == problem.c


def conv_last(
    problem: ConvProblem,
    caps: DeviceCapabilities,
    x: Any,
    w: Any,
    y: Any,
    epilogue: Epilogue | None,
    scratch: Scratch | None,
    prepack: Prepack,
    tiling: CooperativeTiling | None = None,
) -> list[KernelCall]:
    """The dispatches of a convolution of x [n, h, w, c] to y [n, oh, ow, oc], both dense; x is aligned to 16 bytes.

    Weights are constant, in OIHW order for ``prepack``. The epilogue sees ``row``, the pixel among those of all images,
    ``col``, the output channel, and ``o``, the flat index in y. Raises `ValueError` where `takes_channels_last` says no, or
    the device cannot run such a grid.
    """
    if not takes_channels_last(problem, caps):
        raise ValueError(f"conv: no kernel with channels last for {problem} on {caps.name}")
    if 0 in (problem.n, problem.oh, problem.ow):
        return []
    pixels, taps, one = problem.n * problem.oh * problem.ow, problem.kh * problem.kw, (1, 1)
    by_product = tiling is None and taps == 1 and problem.stride == one and max(problem.pads) == 0
    if is_depthwise(problem) or by_product:
        packed = prepack(lambda weights: pack_taps_then_channels(weights, problem), _tag(problem))
        if is_depthwise(problem):
            return [_depthwise(problem, caps, x, packed, y, epilogue)]
        return _as_product(problem, caps, x, packed, y, epilogue, scratch)
    packed = prepack(lambda weights: pack_with_zeros(weights, problem), f"{_tag(problem)}-zeros")
    k = taps * problem.c
    tiling = tiling or cooperative_tiling(
        pixels, problem.oc, k, 1, caps, False, may_split=scratch is not None, tiles=CONV_LAST_TILES
    )
    if tiling is None:
        raise ValueError(f"conv: no tile of cooperative matrices fits {caps.name}")
    tile = tiling.tile
    side_by_side = problem.dilation[1] == 1 and problem.pads[1] == problem.pads[3] == 0
    columns = problem.kw if side_by_side else 1  # of a tap
    partials = partial_sums(scratch, tiling.splits, pixels * problem.oc, "conv")
    product = CONV_LAST.call(
        grid=tile_grid(ceil_div(pixels, tile.m), ceil_div(problem.oc, tile.n), tiling.splits, caps, "conv"),
        operands={"x": x, "w": packed, "y": y if partials is None else partials},
        params={
            "m": pixels,
            "n": problem.oc,
            "k": k,
            "splits": tiling.splits,
            "split_k": tiling.split_k,
            "height": problem.h,
            "width": problem.w,
            **magic_params("pixels", problem.oh * problem.ow),
            **magic_params("out_width", problem.ow),
            "pitch": problem.c,
            **magic_params("channels", columns * problem.c),
            **magic_params("kernel_w", problem.kw // columns),
            **window_params(problem),
            "y_row": problem.oc,
            "y_col": 1,
            "alpha": 1.0,
        },
        spec={
            **tile.spec(tiling.shape, caps.subgroup_size),
            "STORE_VECTOR": int(partials is not None or _in_units(problem)),
            "PARTIAL": int(partials is not None),
            "WHOLE_K": int(k % tile.k == 0),
            "WHOLE_TAPS": int(columns * problem.c % tile.k == 0),
        },
        local_size=(tile.subgroups * caps.subgroup_size, 1, 1),
        subgroup_size=caps.subgroup_size,
        flops=problem.flops,
        **(call_arguments(epilogue, HALVES) if partials is None else {"defines": HALVES}),
    )
    if partials is None:
        return [product]
    strides = {"y_row": problem.oc, "y_col": 1, "y_batch0": 0, "y_batch1": 0}
    sizes = (pixels, problem.oc, 1, 1)
    return [product, reduce_partials(sizes, strides, tiling.splits, 1.0, "float16", caps, partials, y, epilogue)]


def _as_product(
    problem: ConvProblem,
    caps: DeviceCapabilities,
    x: Any,
    packed: Any,
    y: Any,
    epilogue: Epilogue | None,
    scratch: Scratch | None,
) -> list[KernelCall]:
    """A 1x1 convolution: pixels [p, c] by weights [c, oc]."""
    from vkep.kernels.matmul import MatMulProblem, matmul  # at run time: that module asks cooperative.py first

    pixels, c, oc = problem.n * problem.oh * problem.ow, problem.c, problem.oc
    product = MatMulProblem(
        pixels,
        oc,
        c,
        (pixels * c, c, 1),
        (c * oc, oc, 1),
        (pixels * oc, oc, 1),
        dtype="float16",
        alignment=problem.alignment,
    )
    return matmul_cooperative(product, caps, x, packed, y, epilogue, scratch) or matmul(
        product, caps, x, packed, y, epilogue, scratch
    )


def _depthwise(
    problem: ConvProblem, caps: DeviceCapabilities, x: Any, packed: Any, y: Any, epilogue: Epilogue | None
) -> KernelCall:
    strip = min(4, 1 << (problem.ow - 1).bit_length())
    strips, units = ceil_div(problem.ow, strip), problem.c // VECTOR
    total = problem.n * problem.oh * strips * units
    return CONV_DEPTHWISE_LAST.call(
        grid=flat_grid(total, _LANES, caps, "conv"),
        operands={"x": x, "w": packed, "y": y},
        params={
            "height": problem.h,
            "width": problem.w,
            "out_width": problem.ow,
            "total": total,
            "channels": problem.c,
            **magic_params("units", units),
            **magic_params("strips", strips),
            **magic_params("out_height", problem.oh),
            "stride_h": problem.stride[0],
            "dilation_h": problem.dilation[0],
            "pad_top": problem.pads[0],
            "pad_left": problem.pads[1],
        },
        spec={
            "KERNEL_H": problem.kh,
            "KERNEL_W": problem.kw,
            "STRIDE_W": problem.stride[1],
            "DILATION_W": problem.dilation[1],
            "STRIP": strip,
            "STORE_VECTOR": int(_in_units(problem)),
        },
        local_size=(_LANES, 1, 1),
        flops=problem.flops,
        **call_arguments(epilogue, {}),
    )


def pack_taps_then_channels(weights: np.ndarray, problem: ConvProblem) -> np.ndarray:
    """OIHW weights as [taps, channels, out_channels]; of a depthwise convolution, as [taps, channels]."""
    channels, taps = problem.c // problem.groups, problem.kh * problem.kw
    packed = np.ascontiguousarray(weights).reshape(problem.oc, channels, taps).transpose(2, 1, 0)
    return np.ascontiguousarray(packed)


def pack_with_zeros(weights: np.ndarray, problem: ConvProblem) -> np.ndarray:
    """`pack_taps_then_channels`, flat, and a vector of zeros, which ``conv_last.comp`` reads beside the image."""
    packed = pack_taps_then_channels(weights, problem).reshape(-1)
    return np.concatenate([packed, np.zeros(VECTOR, packed.dtype)])


def _in_units(problem: ConvProblem) -> bool:
    """Whether eight results are one aligned store."""
    return problem.alignment % (2 * VECTOR) == 0


def _tag(problem: ConvProblem) -> str:
    return f"conv-last-{problem.oc}-{problem.c // problem.groups}-{problem.kh * problem.kw}"
