"""Convolutions: kernel declarations, and the choice of kernel and tiling for a shape and a device."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpu_shared.capabilities import DeviceCapabilities
from vkep.kernels import winograd
from vkep.kernels.conv_direct import depthwise, direct, is_depthwise
from vkep.kernels.conv_problem import ConvProblem, plane_params
from vkep.kernels.cooperative import conv_cooperative
from vkep.kernels.epilogue import Epilogue, call_arguments
from vkep.kernels.fastdiv import magic_fields, magic_params
from vkep.kernels.kernel import Kernel, KernelCall, Operand
from vkep.kernels.split_k import reduce_partials
from vkep.kernels.tiles import (
    CONV_SHARED_TILES,
    EXACT_DIVISION_LIMIT,
    STORAGE,
    TILED_DEFINES,
    Prepack,
    Scratch,
    ceil_div,
    check_grid,
    is_cpu_driver,
    rows_first,
    shared_tiling,
    storage_type,
    subgroup_tile,
    tile_grid,
)

__all__ = ["CONV_SUBGROUP", "CONV_TILED", "ConvProblem", "conv", "pack_weights"]

_X_W_Y = (Operand("x"), Operand("w"), Operand("y", writes=True))
_VARIANTS = tuple({"T": t} for t in STORAGE.values())


def _uints(*names: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, "uint") for name in names)


_PLANES = ("channels", "height", "width", "out_channels", "out_height", "out_width", "groups")
_WINDOW = ("stride_h", "stride_w", "dilation_h", "dilation_w", "pad_top", "pad_left")

CONV_SUBGROUP = Kernel(
    "conv_subgroup.comp",
    operands=_X_W_Y,
    params=_uints(
        *_PLANES,
        "kernel_h",
        "kernel_w",
        *_WINDOW,
        "w_group",
        "w_panel",
        "w_column",
        "w_tap",
        "w_channel",
        "y_batch",
        "rows_first",
    ),
    spec={"ROWS": 16, "LANE_COLUMNS": 4, "UNROLL": 4, "TAPS_INNER": 0, "UNROLL_H": 1, "KERNEL_W": 1},
    variants=_VARIANTS,
)
CONV_TILED = Kernel(
    "conv_tiled.comp",
    operands=_X_W_Y,
    params=(*_uints(*_PLANES), *magic_fields("taps", "kernel_w"), *_uints(*_WINDOW, "splits", "split_k", "y_batch")),
    spec={
        "TILE_M": 64,
        "TILE_N": 64,
        "TILE_K": 16,
        "MICRO_M": 4,
        "MICRO_N": 4,
        "A_ALONG_K": 1,
        "B_ALONG_K": 0,
        "PARTIAL": 0,
        "A_WIDE": 0,
        "B_WIDE": 0,
        "ONE_TAP": 0,
    },
    variants=tuple(TILED_DEFINES.values()),
)
#: below this many input channels a group, taps are the inner loop of the subgroup kernel
_FEW_CHANNELS = 8
#: taps that one iteration of the subgroup kernel may hold
_MAX_UNROLLED_TAPS = 9
#: pixels of the smallest matrix tile
_MIN_TILE_PIXELS = 32
#: output channels a group below which a matrix tile would be mostly empty
_MIN_TILE_CHANNELS = 8


def conv(
    problem: ConvProblem,
    caps: DeviceCapabilities,
    x: Any,
    w: Any,
    y: Any,
    epilogue: Epilogue | None = None,
    scratch: Scratch | None = None,
    prepack: Prepack | None = None,
) -> list[KernelCall]:
    """The dispatches that compute a convolution; none for an empty result.

    ``prepack`` is given when the weights are constant; its transformation gets them in OIHW order. The epilogue sees
    ``row``, the output channel, ``col``, the pixel in the image, and ``o``, the flat index in a contiguous y. Raises
    `ValueError` when the device cannot run such a grid.
    """
    if 0 in (problem.n, problem.oc, problem.od, problem.oh, problem.ow):
        return []
    channels, out_channels = problem.c // problem.groups, problem.oc // problem.groups
    flat = problem.d == problem.kd == problem.od == 1
    if is_depthwise(problem):
        return [depthwise(problem, caps, x, w, y, epilogue)]
    pixels = problem.oh * problem.ow
    countable = pixels < min(EXACT_DIVISION_LIMIT, _MIN_TILE_PIXELS * caps.max_workgroup_count[0])
    if not flat or not countable or channels == 0 or out_channels < _MIN_TILE_CHANNELS:
        return [direct(problem, caps, x, w, y, epilogue)]
    if is_cpu_driver(caps):
        if scratch is not None and prepack is not None and winograd.fits(problem):
            return winograd.winograd(problem, caps, x, y, epilogue, scratch, prepack)
        return [_subgroup(problem, caps, x, w, y, epilogue, prepack)]
    if scratch is not None and prepack is not None and winograd.fits_gpu(problem, caps):
        return winograd.winograd(problem, caps, x, y, epilogue, scratch, prepack)
    cooperative = conv_cooperative(problem, caps, x, w, y, epilogue, scratch, prepack)
    return _tiled(problem, caps, x, w, y, epilogue, scratch) if cooperative is None else cooperative


def _subgroup(
    problem: ConvProblem,
    caps: DeviceCapabilities,
    x: Any,
    w: Any,
    y: Any,
    epilogue: Epilogue | None,
    prepack: Prepack | None,
) -> KernelCall:
    channels, out_channels, taps = problem.c // problem.groups, problem.oc // problem.groups, problem.kh * problem.kw
    pixels, batch = problem.oh * problem.ow, problem.n * problem.groups
    tile = subgroup_tile(pixels, out_channels, batch, caps, packed=prepack is not None)
    column_tiles, row_tiles = ceil_div(out_channels, tile.columns), ceil_div(pixels, tile.rows)
    taps_inner = channels < _FEW_CHANNELS and 1 < problem.kw <= _MAX_UNROLLED_TAPS
    spec = tile.spec
    if taps_inner:
        unroll_h = problem.kh if taps <= _MAX_UNROLLED_TAPS else 1
        spec.update(TAPS_INNER=1, KERNEL_W=problem.kw, UNROLL_H=unroll_h)
    if prepack is not None:
        w = prepack(
            lambda weights: pack_weights(weights, problem.groups, channels, taps, tile.columns, taps_inner),
            f"conv-{problem.groups}-{channels}-{taps}-{tile.columns}-{'taps' if taps_inner else 'channels'}",
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
        grid=tile_grid(row_tiles, column_tiles, batch, caps, "conv"),
        operands={"x": x, "w": w, "y": y},
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
        flops=problem.flops,
        **call_arguments(epilogue, {"T": storage_type(problem.dtype)}),
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


def _tiled(
    problem: ConvProblem,
    caps: DeviceCapabilities,
    x: Any,
    w: Any,
    y: Any,
    epilogue: Epilogue | None,
    scratch: Scratch | None,
) -> list[KernelCall]:
    channels, out_channels, taps = problem.c // problem.groups, problem.oc // problem.groups, problem.kh * problem.kw
    pixels, batch = problem.oh * problem.ow, problem.n * problem.groups
    tiling = shared_tiling(
        out_channels, pixels, channels * taps, batch, caps, may_split=scratch is not None, tiles=CONV_SHARED_TILES
    )
    total = problem.n * problem.oc * pixels
    partials = scratch(4 * tiling.splits * total) if scratch and tiling.splits > 1 else None
    defines = TILED_DEFINES[problem.dtype]
    aligned = problem.alignment % (16 if problem.dtype == "float32" else 8) == 0
    grid = (ceil_div(pixels, tiling.tile.n), ceil_div(out_channels, tiling.tile.m), batch * tiling.splits)
    product = CONV_TILED.call(
        grid=check_grid(grid, caps, "conv"),
        operands={"x": x, "w": w, "y": y if partials is None else partials},
        params={
            **plane_params(problem),
            **magic_params("taps", taps),
            **magic_params("kernel_w", problem.kw),
            "splits": tiling.splits,
            "split_k": tiling.split_k,
        },
        spec={
            **tiling.tile.spec,
            "PARTIAL": int(partials is not None),
            "ONE_TAP": int(taps == 1),
            "A_WIDE": int(tiling.tile.loads_wide and channels * taps % 4 == 0 and aligned),
        },
        local_size=(tiling.tile.lanes, 1, 1),
        flops=problem.flops,
        **(call_arguments(epilogue, defines) if partials is None else {"defines": defines}),
    )
    if partials is None:
        return [product]
    strides = {"y_row": pixels, "y_col": 1, "y_batch0": problem.y_batch, "y_batch1": 0}
    sizes = (problem.oc, pixels, problem.n, 1)
    return [
        product,
        reduce_partials(sizes, strides, tiling.splits, 1.0, problem.dtype, caps, partials, y, epilogue),
    ]
