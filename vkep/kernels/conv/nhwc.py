"""Convolutions in float16, and of 8-bit codes, with channels last (NHWC; of one spatial axis: NWC), for devices with cooperative
matrices.

In this layout a tap's channels are adjacent, so that an implicit product reads its rows in vectors, whatever the
image's size, and a 1x1 convolution is a plain product. Between convolutions the layout costs nothing
(`vkep.passes.layout`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from gpu_shared.capabilities import DeviceCapabilities
from vkep.dtypes import DTYPES
from vkep.kernels.conv.problem import ConvProblem, is_depthwise, window_params
from vkep.kernels.epilogue import call_arguments
from vkep.kernels.fastdiv import magic_params
from vkep.kernels.kernel import Kernel, KernelCall
from vkep.kernels.launch import ceil_div, strip_of
from vkep.kernels.matmul.cooperative import (
    MOST_CODES,
    OF_ELEMENTS,
    RESULTS,
    elements,
    less_by,
    no_cooperative_product,
    padded_k,
    result_size,
)
from vkep.kernels.matmul.cooperative_tiles import (
    CONV_LAST_TILES,
    UNITS,
    VECTOR,
    CooperativeTiling,
    cooperative_tiling,
    no_cooperative_tile,
)
from vkep.kernels.matmul.problem import MatMulProblem
from vkep.kernels.matmul.split_k import Sums, split_product
from vkep.kernels.matmul.tiles import flat_grid, no_shared_tile, tile_grid
from vkep.kernels.select import Emission, emit

#: a transformation of OIHW weights before they are packed, and its tag
First = tuple[Callable[[np.ndarray], np.ndarray], str]
AS_THEY_ARE: First = (np.asarray, "")


def _conv_reach(call: KernelCall) -> Mapping[str, int]:
    m, n, k, row, size = call["m"], call["n"], call["k"], call["w_row"], call.size_of("T")
    lines, unit = n if call["B_ALONG_K"] else k, 16 // size
    behind = 2 * unit + (4 * ceil_div(n, VECTOR) * VECTOR if call["LESS"] else 0)
    further = 0 if call["B_ALONG_K"] else (padded_k(call, k, unit) - k) * row
    return {
        "x": size * ceil_div(m, call["pixels"]) * call["height"] * call["width"] * call["pitch"],
        "w": size * (lines * row + max(further, behind)),
        "y": 4 * call["splits"] * m * n
        if call["PARTIAL"]
        else result_size(call) * ((m - 1) * call["y_row"] + (n - 1) * call["y_col"] + 1),
    }


def _depthwise_reach(call: KernelCall) -> Mapping[str, int]:
    images, c = ceil_div(call["total"], call["units"] * call["strips"] * call["out_height"]), call["channels"]
    return {
        "x": 2 * images * call["height"] * call["width"] * c,
        "w": 2 * call["KERNEL_H"] * call["KERNEL_W"] * c,
        "y": result_size(call) * images * call["out_height"] * call["out_width"] * c,
    }


CONV_LAST = Kernel("conv_last.comp", variants=OF_ELEMENTS, reach=_conv_reach)
CONV_DEPTHWISE_LAST = Kernel("conv_depthwise_last.comp", variants=tuple(RESULTS.values()), reach=_depthwise_reach)
_LANES = 128
#: channels of groups that are computed as one: the columns of the narrowest tile
_JOINED_CHANNELS = 32


def _no_vectors(problem: ConvProblem, caps: DeviceCapabilities, of: Container[str] = ("float16",)) -> str:
    if problem.dtype not in of:
        return f"no channels last in {problem.dtype}"
    if not problem.w_constant:
        return "its weights are not constant"
    if problem.c % UNITS[problem.dtype]:
        return f"no whole groups of {UNITS[problem.dtype]} channels"
    if 0 in (problem.h, problem.w):
        return "an input without elements"
    along_k = problem.dtype == "int8"
    return no_cooperative_tile(caps, along_k, CONV_LAST_TILES, problem.dtype) or no_shared_tile(caps)


def no_channels_last(problem: ConvProblem, caps: DeviceCapabilities) -> str:
    """Why `conv_last` does not compute a convolution on a device, in vectors of eight channels; "" where it does."""
    if 0 in (problem.c, problem.oc, problem.h, problem.w):
        return "an input or a result without elements"
    if is_depthwise(problem):
        return "one channel a group leaves a matrix mostly empty"
    refused = _no_vectors(problem, caps, UNITS)
    if refused:  # among them weights that are no constants, whose numbers may be sizes
        return refused
    groups, unit = problem.groups // groups_at_once(problem), UNITS[problem.dtype]
    if problem.c // groups % unit or (groups > 1 and problem.oc // groups % VECTOR):
        return f"{problem.groups} groups that do not join to whole vectors of {unit} channels"
    if problem.dtype == "int8" and problem.c // groups * problem.taps > MOST_CODES:
        return f"sums of {problem.c // groups * problem.taps} products of codes, int32 holds {MOST_CODES}"
    return ""


def groups_at_once(problem: ConvProblem) -> int:
    """How many groups `conv_last` computes as one, with zeros as the weights between them: as many as the narrowest tile has
    columns for, since its other columns would be empty, or else the fewest whose channels are whole vectors. An infinity or NaN
    in one of them spreads to the others."""
    c, oc, unit = problem.c // problem.groups, problem.oc // problem.groups, UNITS[problem.dtype]
    fitting = [n for n in range(1, problem.groups + 1) if problem.groups % n == n * c % unit == n * oc % VECTOR == 0]
    return max((n for n in fitting if n * max(c, oc) <= _JOINED_CHANNELS), default=min(fitting, default=1))


def join_groups(weights: np.ndarray, problem: ConvProblem) -> np.ndarray:
    """OIHW weights of `groups_at_once` groups as those of one: [oc, its channels, kh, kw]."""
    at_once, channels = groups_at_once(problem), problem.c // problem.groups
    outputs = problem.oc // problem.groups
    given = weights.reshape(-1, at_once, outputs, channels, problem.taps)
    wide = np.zeros((len(given), at_once, outputs, at_once, channels, problem.taps), weights.dtype)
    for group in range(at_once):
        wide[:, group, :, group] = given[:, group]
    return wide.reshape(problem.oc, at_once * channels, problem.kh, problem.kw)


def no_wide_product(problem: ConvProblem, caps: DeviceCapabilities) -> str:
    """Why no product has the float32 results of a 1x1 convolution, or takes its codes; "" where one does."""
    of_codes = problem.dtype == "int8"
    return no_cooperative_product(_as_product(problem), caps) if problem.wide or of_codes else ""


def _as_product(problem: ConvProblem) -> MatMulProblem:
    """A 1x1 convolution with channels last: pixels [p, c] times weights [c, oc]."""
    pixels, c, oc = problem.n * problem.pixels, problem.c, problem.oc
    codes = problem.dtype == "int8"  # whose weights the product packs
    strides = (pixels * c, c, 1), (0, 1, c) if codes else (c * oc, oc, 1), (pixels * oc, oc, 1)
    made = MatMulProblem(pixels, oc, c, *strides, dtype=problem.dtype, b_constant=codes, alignment=problem.alignment)
    return replace(made, to=problem.to, zero=problem.zero)


def no_product_last(problem: ConvProblem, caps: DeviceCapabilities) -> str:
    """Why `product_last` does not compute a convolution; "" where it does."""
    if not problem.pointwise or problem.oc % VECTOR:
        return f"more than a pixel for each result, or no whole groups of {VECTOR} of them"
    return no_wide_product(problem, caps) or no_channels_last(problem, caps)


def no_depthwise_last(problem: ConvProblem, caps: DeviceCapabilities) -> str:
    """Why `depthwise_last` does not compute a convolution; "" where it does."""
    if not is_depthwise(problem) or problem.oc != problem.c:
        return "several channels a group"
    return _no_vectors(problem, caps) or (
        "" if problem.x_last or problem.wide else "its input has no channels last, and is not worth a copy"
    )


def product_last(problem: ConvProblem, e: Emission, first: First = AS_THEY_ARE) -> list[KernelCall]:
    """The dispatches of a 1x1 convolution with channels last. ``first`` transforms the weights."""
    w = e["w"] if problem.dtype == "int8" else _packed(problem, e, first)
    return emit(_as_product(problem), e.target, [e["x"], w], [e["y"]], e.epilogue)


def conv_last(
    problem: ConvProblem, e: Emission, first: First = AS_THEY_ARE, tiling: CooperativeTiling | None = None
) -> list[KernelCall]:
    """The dispatches of a convolution of x [n, h, w, c] to y [n, oh, ow, oc], both dense; x is aligned to 16 bytes.

    ``first`` transforms the weights. ``tiling`` overrides the choice of a tile.
    """
    if (at_once := groups_at_once(problem)) > 1:
        assert first is AS_THEY_ARE
        first = functools.partial(join_groups, problem=problem), f"-{at_once}-groups"
        problem = replace(problem, groups=problem.groups // at_once)
    groups = problem.groups
    pixels, channels, oc = problem.n * problem.pixels, problem.c // groups, problem.oc
    k = problem.taps * channels
    packed = _packed(problem, e, first, pack_with_zeros, f"-zeros-{problem.zero}")
    along_k = problem.dtype == "int8"  # as matrices of int8 are loaded
    tiling = tiling or cooperative_tiling(
        pixels, oc // groups, k, groups, e.caps, along_k, e.target.tuned, CONV_LAST_TILES, problem.dtype
    )
    tile, splits = tiling.tile, tiling.splits
    side_by_side = groups == 1 and problem.dilation[1] == 1 and problem.pads[1] == problem.pads[3] == 0
    columns = problem.kw if side_by_side else 1  # of a tap
    return split_product(
        e,
        splits,
        Sums(pixels, oc, 1, 1, (0, 0, oc, 1), problem.results),
        elements(tiling.shape, problem.results),
        lambda y, **fused: CONV_LAST.call(
            grid=tile_grid(ceil_div(pixels, tile.m), ceil_div(oc // groups, tile.n), groups * splits, e.caps),
            operands={"x": e["x"], "w": packed, "y": y},
            params={
                "m": pixels,
                "n": oc,
                "k": k,
                "w_row": k if along_k else ceil_div(oc, VECTOR) * VECTOR,
                "splits": splits,
                "split_k": tiling.split_k,
                "height": problem.h,
                "width": problem.w,
                **magic_params("pixels", problem.pixels),
                **magic_params("out_width", problem.ow),
                "pitch": problem.c,
                "group_channels": channels,
                "group_columns": oc // groups,
                **magic_params("channels", columns * channels),
                **magic_params("kernel_w", problem.kw // columns),
                **window_params(problem),
                "y_row": oc,
                "y_col": 1,
                "alpha": 1.0,
            },
            spec={
                **tile.spec(tiling.shape, e.caps.subgroup_size),
                "B_ALONG_K": int(along_k),
                "STORE_VECTOR": int(oc % VECTOR == 0 and (splits > 1 or _in_units(problem))),
                "PARTIAL": int(splits > 1),
                "LESS": int(problem.zero != 0),
                "WHOLE_K": int(k % tile.steps(tiling.shape) == 0),
                "WHOLE_TAPS": int(columns * channels % tile.steps(tiling.shape) == 0),
            },
            local_size=(tile.subgroups * e.caps.subgroup_size, 1, 1),
            subgroup_size=e.caps.subgroup_size,
            flops=problem.flops,
            **fused,
        ),
    )


def depthwise_last(problem: ConvProblem, e: Emission) -> KernelCall:
    """The dispatch of a depthwise convolution with channels last."""
    strip = strip_of(problem.ow, 4)
    strips, units = ceil_div(problem.ow, strip), problem.c // VECTOR
    total = problem.n * problem.oh * strips * units
    return CONV_DEPTHWISE_LAST.call(
        grid=flat_grid(total, _LANES, e.caps),
        operands={"x": e["x"], "w": _packed(problem, e, AS_THEY_ARE), "y": e["y"]},
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
        **call_arguments(e.epilogue, RESULTS[problem.results]),
    )


def pack_taps_then_channels(weights: np.ndarray, problem: ConvProblem) -> np.ndarray:
    """OIHW weights as [taps, channels, out_channels]; of a depthwise convolution, as [taps, channels]; int8 as [out_channels,
    taps, channels]."""
    channels, taps = problem.c // problem.groups, problem.kh * problem.kw
    order = (0, 2, 1) if weights.dtype == np.int8 else (2, 1, 0)
    packed = np.ascontiguousarray(weights).reshape(problem.oc, channels, taps).transpose(order)
    return np.ascontiguousarray(packed)


def pack_with_zeros(weights: np.ndarray, problem: ConvProblem) -> np.ndarray:
    """`pack_taps_then_channels`, output channels where they run fastest padded to whole vectors, flat; then a vector of zeros and
    one of the input's zero, which ``conv_last.comp`` reads behind the last channel and outside the image; then `less_by`."""
    packed = pack_taps_then_channels(weights, problem)
    unit = 16 // packed.itemsize
    behind = np.repeat(np.array([0, problem.zero], packed.dtype), unit)
    if packed.dtype == np.int8:
        return np.concatenate([packed.reshape(-1), behind, less_by(packed.reshape(problem.oc, -1), problem.zero)])
    packed = np.pad(packed, [(0, 0), (0, 0), (0, -problem.oc % unit)])
    return np.concatenate([packed.reshape(-1), behind])


def _packed(
    problem: ConvProblem,
    e: Emission,
    first: First,
    pack: Callable[[np.ndarray, ConvProblem], np.ndarray] = pack_taps_then_channels,
    how: str = "",
) -> Any:
    transform, tag = first
    sizes = f"{problem.oc}-{problem.c // problem.groups}-{problem.taps}"
    return e.target.prepack(e["w"], lambda weights: pack(transform(weights), problem), f"conv-last-{sizes}{how}{tag}")


def _in_units(problem: ConvProblem) -> bool:
    """Whether eight results are one aligned store."""
    return problem.alignment % min(16, 8 * DTYPES[problem.results].itemsize) == 0
