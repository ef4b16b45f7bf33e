"""3x3 convolutions of stride 1 by Winograd's F(4x4, 3x3): four times fewer multiplications than the direct sum.

Source: Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (CVPR 2016); the points are 0, +-sqrt(1/2),
+-sqrt(2) and infinity instead of theirs, for accuracy (Barabasz et al., "Error Analysis and Improving the Accuracy of
Winograd Convolution for Deep Neural Networks", TOMS 2020). Measured relative to the largest result, with 512 channels:
3e-6, against 4e-7 of the direct sum.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from gpu_shared.capabilities import DeviceCapabilities
from vkep.kernels.conv_problem import ConvProblem
from vkep.kernels.epilogue import Epilogue, call_arguments
from vkep.kernels.fastdiv import magic_fields, magic_params
from vkep.kernels.kernel import Kernel, KernelCall, Operand
from vkep.kernels.matmul import MATMUL_SUBGROUP, MatMulProblem, matmul
from vkep.kernels.tiles import (
    STORAGE,
    Prepack,
    Scratch,
    ceil_div,
    flat_grid,
    is_cpu_driver,
    storage_type,
    subgroup_tile,
    tile_grid,
)
from vkep.kernels.tuning import chosen

_VARIANTS = tuple({"T": t} for t in STORAGE.values())


def _uints(*names: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, "uint") for name in names)


WINOGRAD_INPUT = Kernel(
    "winograd_input.comp",
    operands=(Operand("x"), Operand("v", writes=True)),
    params=(
        *_uints("height", "width", "pad_top", "pad_left"),
        *magic_fields("columns", "tiles", "images"),
        *_uints("channels", "total"),
    ),
    variants=_VARIANTS,
)
WINOGRAD_OUTPUT = Kernel(
    "winograd_output.comp",
    operands=(Operand("products"), Operand("y", writes=True)),
    params=(
        *_uints("height", "width"),
        *magic_fields("columns", "tiles", "images"),
        *_uints("channels", "total", "y_batch"),
    ),
    variants=_VARIANTS,
)

#: output pixels a side of a tile, and points a side
_TILE, _POINTS = 4, 6
_LOCAL = 128
#: with fewer tiles, reading the weights' points (four times the weights) takes longer than the direct sum; with fewer
#: channels, the transforms do
_MIN_TILES, _MIN_CHANNELS = 9, 16
#: computed over wanted pixels: beyond this the tiles' overhang eats the gain
_MAX_OVERHANG = 1.5

#: on a GPU: operations below which the direct sum takes no longer than the waits between three dispatches, and bytes of points
_LEAST_FLOPS, _MOST_POINT_BYTES = 1 << 30, 1 << 29

_ROOTS = (0.0, np.sqrt(0.5), -np.sqrt(0.5), np.sqrt(2.0), -np.sqrt(2.0))
#: the weights' transform: values of a quadratic at the points, over the product of differences to the other points
WEIGHT_TRANSFORM = np.array(
    [[r**i / np.prod([r - other for other in _ROOTS if other != r]) for i in range(3)] for r in _ROOTS] + [[0, 0, 1]]
)


def _tiles(problem: ConvProblem) -> tuple[int, int]:
    """In a row of an image, and in an image."""
    columns = ceil_div(problem.ow, _TILE)
    return columns, ceil_div(problem.oh, _TILE) * columns


def fits(problem: ConvProblem) -> bool:
    """Whether a convolution is one that this computes, and on a CPU driver faster than the direct sum."""
    _, tiles = _tiles(problem)
    return (
        (problem.kh, problem.kw, problem.kd, problem.d) == (3, 3, 1, 1)
        and problem.stride == problem.dilation == (1, 1)
        and problem.pads_d == (0, 0)
        and problem.groups == 1
        and min(problem.c, problem.oc) >= _MIN_CHANNELS
        and problem.n * tiles >= _MIN_TILES
        and tiles * _TILE**2 <= _MAX_OVERHANG * problem.oh * problem.ow
    )


def fits_gpu(problem: ConvProblem, caps: DeviceCapabilities) -> bool:
    """As `fits`, for a GPU: in float32 where the direct sum is long (three dispatches wait for each other) and the points are
    not too many. `vkep tune` may know better.
    """
    point_bytes = 4 * _POINTS**2 * max(problem.c, problem.oc) * problem.n * _tiles(problem)[1]
    if problem.dtype != "float32" or not fits(problem) or point_bytes > _MOST_POINT_BYTES:
        return False
    sizes = (problem.n, problem.c, problem.oc, problem.oh, problem.ow)
    tuned = chosen(caps, lambda: [(0,), (1,)], "winograd", *sizes)
    return problem.flops >= _LEAST_FLOPS if tuned is None else bool(tuned[0])


def winograd(
    problem: ConvProblem,
    caps: DeviceCapabilities,
    x: Any,
    y: Any,
    epilogue: Epilogue | None,
    scratch: Scratch,
    prepack: Prepack,
) -> list[KernelCall]:
    """The three dispatches of a convolution that `fits`: transform the input, 36 matrix products, transform back."""
    columns, tiles = _tiles(problem)
    rows = problem.n * tiles  # of each of the 36 products; its columns are output channels, its k input channels
    batch = _POINTS**2
    geometry = {**magic_params("columns", columns), **magic_params("tiles", tiles), **magic_params("images", problem.n)}
    storage = {"T": storage_type(problem.dtype)}
    points, products = scratch(4 * batch * problem.c * rows), scratch(4 * batch * problem.oc * rows)
    to_points = WINOGRAD_INPUT.call(
        grid=flat_grid(problem.c * rows, _LOCAL, caps, "conv"),
        operands={"x": x, "v": points},
        params={
            **geometry,
            "height": problem.h,
            "width": problem.w,
            "pad_top": problem.pads[0],
            "pad_left": problem.pads[1],
            "channels": problem.c,
            "total": problem.c * rows,
        },
        defines=storage,
        local_size=(_LOCAL, 1, 1),
    )
    if is_cpu_driver(caps):
        multiply = [_in_panels(problem, caps, rows, points, products, prepack)]
    else:
        multiply = _in_tiles(problem, caps, rows, points, products, scratch, prepack)
    from_points = WINOGRAD_OUTPUT.call(
        grid=flat_grid(problem.oc * rows, _LOCAL, caps, "conv"),
        operands={"products": products, "y": y},
        params={
            **geometry,
            "height": problem.oh,
            "width": problem.ow,
            "channels": problem.oc,
            "total": problem.oc * rows,
            "y_batch": problem.y_batch,
        },
        local_size=(_LOCAL, 1, 1),
        **call_arguments(epilogue, storage),
    )
    return [to_points, *multiply, from_points]


def _in_panels(
    problem: ConvProblem, caps: DeviceCapabilities, rows: int, points: Any, products: Any, prepack: Prepack
) -> KernelCall:
    """The products on a CPU driver, from weights in panels."""
    batch = _POINTS**2
    tile = subgroup_tile(rows, problem.oc, batch, caps, packed=True)
    panels = ceil_div(problem.oc, tile.columns)
    panel = problem.c * tile.columns
    return MATMUL_SUBGROUP.call(
        grid=tile_grid(ceil_div(rows, tile.rows), panels, batch, caps, "conv"),
        operands={
            "a": points,
            "b": prepack(
                lambda weights: pack_points(weights, problem.c, tile.columns), f"winograd-{problem.c}-{tile.columns}"
            ),
            "y": products,
        },
        params={
            "m": rows,
            "n": problem.oc,
            "k": problem.c,
            "batch1": batch,
            "a_row": 1,
            "a_col": rows,
            "b_row": tile.columns,
            "b_col": 1,
            "b_panel": panel,
            "y_row": 1,
            "y_col": rows,
            "a_batch0": 0,
            "a_batch1": problem.c * rows,
            "b_batch0": 0,
            "b_batch1": panels * panel,
            "y_batch0": 0,
            "y_batch1": problem.oc * rows,
            "rows_first": 1,
            "alpha": 1.0,
        },
        spec=tile.spec,
        defines={"T": "float"},
        local_size=(tile.lanes, 1, 1),
        subgroup_size=tile.required_subgroup_size,
        flops=problem.flops,  # of the convolution that it stands for
    )


def _in_tiles(
    problem: ConvProblem,
    caps: DeviceCapabilities,
    rows: int,
    points: Any,
    products: Any,
    scratch: Scratch,
    prepack: Prepack,
) -> list[KernelCall]:
    """The products on a GPU: for each point weights [oc, c] by the input's [c, tiles of all images]."""
    product = MatMulProblem(
        problem.oc,
        rows,
        problem.c,
        (problem.oc * problem.c, problem.c, 1),
        (problem.c * rows, rows, 1),
        (problem.oc * rows, rows, 1),
        batch=_POINTS**2,
        alignment=16,
    )
    weights = prepack(
        lambda weights: pack_points(weights, problem.c, 1).reshape(_POINTS**2, problem.oc, problem.c),
        f"winograd-{problem.c}",
    )
    calls = matmul(product, caps, weights, points, products, None, scratch)
    calls[0] = replace(calls[0], flops=problem.flops)  # of the convolution that it stands for
    return calls


def pack_points(weights: np.ndarray, channels: int, columns: int) -> np.ndarray:
    """OIHW 3x3 weights as [36, panels, channels, columns] points (float32), zero past the last output channel."""
    taps = np.ascontiguousarray(weights).reshape(-1, channels, 9)
    panels = ceil_div(len(taps), columns)
    padded = np.zeros((panels * columns, channels, 9), np.float32)
    padded[: len(taps)] = taps
    in_panels = np.ascontiguousarray(padded.reshape(panels, columns, channels, 9).transpose(3, 0, 2, 1))
    both_axes = np.kron(WEIGHT_TRANSFORM, WEIGHT_TRANSFORM).astype(np.float32)
    return (both_axes @ in_panels.reshape(9, -1)).reshape(_POINTS**2, panels, channels, columns)
