"""Convolutions: kernels with tiles, and the table of all kernels for convolutions."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gpu_shared.capabilities import DeviceCapabilities
from vkep.kernels.conv.direct import depthwise, direct, no_depthwise
from vkep.kernels.conv.nhwc import (
    conv_last,
    depthwise_last,
    no_channels_last,
    no_depthwise_last,
    no_product_last,
    product_last,
)
from vkep.kernels.conv.problem import NCHW, NHWC, TO_NHWC, lying, no_tiles, plane_params, plane_reach
from vkep.kernels.conv.problem import ConvProblem as ConvProblem
from vkep.kernels.conv.space_to_depth import conv_few, no_few_channels
from vkep.kernels.conv.winograd import no_winograd, not_worth, winograd
from vkep.kernels.epilogue import call_arguments
from vkep.kernels.fastdiv import magic_params
from vkep.kernels.kernel import Kernel, KernelCall
from vkep.kernels.launch import ceil_div
from vkep.kernels.matmul.split_k import Sums, split_product
from vkep.kernels.matmul.tiles import (
    CONV_SHARED_TILES,
    OF_SUBGROUPS,
    TILED_DEFINES,
    no_shared_tile,
    no_subgroup_tile,
    panel_tile,
    rows_first,
    shared_tiling,
    tile_grid,
)
from vkep.kernels.select import Candidate, Emission, always, implement
from vkep.sizes import divides


def _subgroup_reach(call: KernelCall) -> Mapping[str, int]:
    size, groups, outputs = call.size_of("T"), call["groups"], call["out_channels"]
    columns = call["LANE_COLUMNS"] * call["LOCAL_X"]
    panels, taps = ceil_div(outputs, columns), call["kernel_h"] * call["kernel_w"]
    last = (panels - 1) * call["w_panel"] + (outputs - 1 - (panels - 1) * columns) * call["w_column"]
    full = (panels - 2) * call["w_panel"] + (columns - 1) * call["w_column"] if panels > 1 else 0
    steps = (taps - 1) * call["w_tap"] + (call["channels"] - 1) * call["w_channel"]
    weights = (groups - 1) * call["w_group"] + max(last, full) + steps + 1
    reach = plane_reach(call, call.groups[2] // groups)
    return {"x": reach["x"] * size, "w": weights * size, "y": reach["y"] * size}


CONV_SUBGROUP = Kernel("conv_subgroup.comp", variants=OF_SUBGROUPS, reach=_subgroup_reach)


def _tiled_reach(call: KernelCall) -> Mapping[str, int]:
    size, splits, outputs = call.size_of("T"), call["splits"], call["groups"] * call["out_channels"]
    images = call.groups[2] // splits // call["groups"]
    reach, k = plane_reach(call, images), call["channels"] * call["taps"]
    wide = -k % 4 if call["A_WIDE"] else 0
    partial = 4 * splits * images * outputs * call["out_height"] * call["out_width"]
    return {
        "x": reach["x"] * size,
        "w": (outputs * k + wide) * size,
        "y": partial if call["PARTIAL"] else reach["y"] * size,
    }


CONV_TILED = Kernel("conv_tiled.comp", variants=tuple(TILED_DEFINES.values()), reach=_tiled_reach)
#: below this many input channels per group, taps are the inner loop of the subgroup kernel
_FEW_CHANNELS = 8
#: maximum number of taps in one iteration of the subgroup kernel
_MAX_UNROLLED_TAPS = 9


def _no_subgroup(problem: ConvProblem, caps: DeviceCapabilities) -> str:
    channels, batch = problem.oc // problem.groups, problem.n * problem.groups
    return no_tiles(problem, caps) or no_subgroup_tile(problem.pixels, channels, batch, caps, problem.w_constant)


def _subgroup(problem: ConvProblem, e: Emission) -> KernelCall:
    channels, out_channels, taps = problem.c // problem.groups, problem.oc // problem.groups, problem.taps
    pixels, batch, packed = problem.pixels, problem.n * problem.groups, problem.w_constant
    taps_inner = channels < _FEW_CHANNELS and 1 < problem.kw <= _MAX_UNROLLED_TAPS
    order = "taps" if taps_inner else "channels"
    tag_of = lambda columns: f"conv-{problem.groups}-{channels}-{taps}-{columns}-{order}"  # noqa: E731
    tile, tag = panel_tile(e, pixels, out_channels, batch, packed, e["w"], tag_of)
    tile = tile.in_pairs(e.caps, problem.dtype, False, packed and divides(2, out_channels))
    column_tiles, row_tiles = ceil_div(out_channels, tile.columns), ceil_div(pixels, tile.rows)
    spec, w = tile.spec, e["w"]
    if taps_inner:
        unroll_h = problem.kh if taps <= _MAX_UNROLLED_TAPS else 1
        spec.update(TAPS_INNER=1, KERNEL_W=problem.kw, UNROLL_H=unroll_h)
    if packed:
        w = e.target.prepack(
            w,
            lambda weights: pack_weights(weights, problem.groups, channels, taps, tile.columns, taps_inner),
            tag,
        )
        panel = taps * channels * tile.columns
        strides = {"w_group": column_tiles * panel, "w_panel": panel, "w_column": 1}
        strides["w_tap"] = tile.columns * (1 if taps_inner else channels)
        strides["w_channel"] = tile.columns * (taps if taps_inner else 1)
    else:
        size = channels * taps
        strides = {
            "w_group": out_channels * size,
            "w_panel": tile.columns * size,
            "w_column": size,
            "w_tap": 1,
            "w_channel": taps,
        }
    walk_rows = rows_first(row_tiles, column_tiles, channels * problem.h * problem.w, out_channels * channels * taps)
    return CONV_SUBGROUP.call(
        grid=tile_grid(row_tiles, column_tiles, batch, e.caps),
        operands={"x": e["x"], "w": w, "y": e["y"]},
        params={
            **plane_params(problem),
            **strides,
            "kernel_h": problem.kh,
            "kernel_w": problem.kw,
            "rows_first": int(walk_rows),
        },
        spec=spec,
        local_size=(tile.lanes, 1, 1),
        subgroup_size=tile.required_subgroup_size,
        **call_arguments(e.epilogue, tile.defines(problem.dtype)),
    )


def pack_weights(
    weights: np.ndarray, groups: int, channels: int, taps: int, columns: int, taps_inner: bool
) -> np.ndarray:
    """OIHW weights as [groups, panels, taps, channels, columns], or [.., channels, taps, ..] with ``taps_inner``.

    A panel holds ``columns`` output channels; the last one of a group is zero past its last output channel.
    """
    grouped = np.ascontiguousarray(weights).reshape(groups, -1, channels, taps)
    panels = ceil_div(grouped.shape[1], columns)
    padded = np.zeros((groups, panels * columns, channels, taps), grouped.dtype)
    padded[:, : grouped.shape[1]] = grouped
    order = (0, 1, 3, 4, 2) if taps_inner else (0, 1, 4, 3, 2)
    return np.ascontiguousarray(padded.reshape(groups, panels, columns, channels, taps).transpose(order))


def _no_tiled(problem: ConvProblem, caps: DeviceCapabilities) -> str:
    return no_tiles(problem, caps) or no_shared_tile(caps, CONV_SHARED_TILES)


def _tiled(problem: ConvProblem, e: Emission) -> list[KernelCall]:
    channels, out_channels, taps = problem.c // problem.groups, problem.oc // problem.groups, problem.taps
    pixels, batch, k = problem.pixels, problem.n * problem.groups, channels * taps
    tiling = shared_tiling(out_channels, pixels, k, batch, e.caps, e.target.tuned, CONV_SHARED_TILES)
    tile = tiling.tile
    aligned = problem.alignment % (16 if problem.dtype == "float32" else 8) == 0
    return split_product(
        e,
        tiling.splits,
        Sums(problem.oc, pixels, problem.n, 1, (problem.y_batch, 0, pixels, 1), problem.dtype),
        TILED_DEFINES[problem.dtype],
        lambda y, **fused: CONV_TILED.call(
            grid=(ceil_div(pixels, tile.n), ceil_div(out_channels, tile.m), batch * tiling.splits),
            operands={"x": e["x"], "w": e["w"], "y": y},
            params={
                **plane_params(problem),
                **magic_params("taps", taps),
                **magic_params("kernel_w", problem.kw),
                "splits": tiling.splits,
                "split_k": tiling.split_k,
            },
            spec={
                **tile.spec,
                "PARTIAL": int(tiling.splits > 1),
                "ONE_TAP": int(taps == 1),
                "A_WIDE": int(tile.loads_wide and k % 4 == 0 and aligned),
            },
            local_size=(tile.lanes, 1, 1),
            flops=problem.flops,
            **fused,
        ),
    )


implement(
    ConvProblem,
    Candidate("few channels, channels last", conv_few, lying(TO_NHWC, no_few_channels), layout=TO_NHWC, wide=True),
    Candidate("product, channels last", product_last, lying(NHWC, no_product_last), layout=NHWC, wide=True),
    Candidate("depthwise, channels last", depthwise_last, lying(NHWC, no_depthwise_last), layout=NHWC, wide=True),
    Candidate("channels last", conv_last, lying(NHWC, no_channels_last), layout=NHWC, wide=True),
    Candidate("depthwise", depthwise, lying(NCHW, no_depthwise)),
    Candidate("winograd", winograd, lying(NCHW, no_winograd), worth=not_worth),
    Candidate("subgroup", _subgroup, lying(NCHW, _no_subgroup)),
    Candidate("tiled", _tiled, lying(NCHW, _no_tiled)),
    Candidate("direct", direct, lying(NCHW, always)),
)
