"""3x3 convolutions of stride 1 by Winograd's F(4x4, 3x3): four times fewer multiplications than the direct sum.

Source: Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (CVPR 2016); the points are 0, +-sqrt(1/2),
+-sqrt(2) and infinity instead of theirs, for accuracy (Barabasz et al., "Error Analysis and Improving the Accuracy of
Winograd Convolution for Deep Neural Networks", TOMS 2020). Measured relative to the largest result, with 512 channels:
3e-6, against 4e-7 of the direct sum.

The points of a tile are sums of all its inputs, so a large input would round away its neighbours, and an infinite one make them
NaN, in results whose windows do not have it. Tiles with inputs of such different sizes are computed by the direct sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from gpu_shared.capabilities import DeviceCapabilities
from vkep.dtypes import DTYPES
from vkep.kernels.conv.problem import ConvProblem, no_tiles
from vkep.kernels.epilogue import call_arguments
from vkep.kernels.fastdiv import LIMIT, magic_params
from vkep.kernels.kernel import Kernel, KernelCall
from vkep.kernels.launch import ceil_div
from vkep.kernels.matmul.matmul import MATMUL_SUBGROUP
from vkep.kernels.matmul.problem import MatMulProblem
from vkep.kernels.matmul.tiles import (
    OF_STORAGE,
    STORAGE,
    flat_grid,
    is_cpu_driver,
    no_shared_tile,
    no_subgroup_tile,
    panel_tile,
    tile_grid,
)
from vkep.kernels.pointwise import PointwiseOperand, pointwise
from vkep.kernels.select import Emission, emit
from vkep.sizes import divides


def _input_reach(call: KernelCall) -> Mapping[str, int]:
    images = call["images"] * call["channels"] * call["height"] * call["width"]
    sizes = 8 * call["images"] * call["tiles"]
    return {"x": images * call.size_of("T"), "v": 4 * _POINTS**2 * call["total"], "sizes": sizes}


def _output_reach(call: KernelCall) -> Mapping[str, int]:
    size, images = call.size_of("T"), call["images"]
    y = (images - 1) * call["y_batch"] + call["channels"] * call["height"] * call["width"]
    return {
        "products": 4 * _POINTS**2 * call["total"],
        "sizes": 8 * images * call["tiles"],
        "x": images * call["x_channels"] * call["x_height"] * call["x_width"] * size,
        "w": call["channels"] * call["x_channels"] * 9 * size,
        "y": y * size,
    }


WINOGRAD_INPUT = Kernel("winograd_input.comp", variants=OF_STORAGE, reach=_input_reach)
WINOGRAD_OUTPUT = Kernel("winograd_output.comp", variants=OF_STORAGE, reach=_output_reach)

#: output pixels per side of a tile, and points per side
_TILE, _POINTS = 4, 6
_LOCAL = 128
#: minimum tiles and channels: with fewer tiles, reading the weights' points (four times the weights) takes longer than
#: the direct sum; with fewer channels, the transforms do
_MIN_TILES, _MIN_CHANNELS = 9, 16
#: maximum ratio of computed to wanted pixels (3 to 2): beyond it the tiles' overhang outweighs the gain
_MAX_OVERHANG = (3, 2)

#: on a GPU: operations below which the direct sum is as fast as the waits between three dispatches, and the maximum
#: bytes of points
_LEAST_FLOPS, _MOST_POINT_BYTES = 1 << 30, 1 << 29

_ROOTS = (0.0, np.sqrt(0.5), -np.sqrt(0.5), np.sqrt(2.0), -np.sqrt(2.0))
#: the weights' transform: values of a quadratic at the points, over the product of differences to the other points
WEIGHT_TRANSFORM = np.array(
    [[r**i / np.prod([r - other for other in _ROOTS if other != r]) for i in range(3)] for r in _ROOTS] + [[0, 0, 1]]
)


def _tiles(problem: ConvProblem) -> tuple[int, int]:
    """Tiles in a row of an image, and in an image."""
    columns = ceil_div(problem.ow, _TILE)
    return columns, ceil_div(problem.oh, _TILE) * columns


def no_winograd(problem: ConvProblem, caps: DeviceCapabilities) -> str:
    """Why `winograd` does not compute a convolution; "" where it does."""
    window = (problem.kh, problem.kw, problem.stride, problem.dilation, problem.groups)
    if window != (3, 3, (1, 1), (1, 1), 1):
        return "no 3x3 window of stride 1"
    if problem.exact:
        return "its transforms round, the sums must be exact"
    if not problem.w_constant:
        return "its weights are not constant"
    if min(problem.c, problem.oc) < _MIN_CHANNELS:
        return f"fewer than {_MIN_CHANNELS} channels, whose transforms take longer than what they save"
    _, tiles = _tiles(problem)
    rows, most = problem.n * tiles, max(problem.c, problem.oc)
    if _POINTS**2 * rows * most >= LIMIT:
        return f"{_POINTS**2 * rows * most} points, the kernels address fewer than {LIMIT}"
    if is_cpu_driver(caps):
        return no_tiles(problem, caps) or no_subgroup_tile(rows, problem.oc, _POINTS**2, caps, True)
    if problem.dtype != "float32":
        return f"on GPUs for float32, the convolution is of {problem.dtype}"
    if 4 * _POINTS**2 * rows * most > _MOST_POINT_BYTES:
        return f"more than {_MOST_POINT_BYTES} bytes of points"
    return no_tiles(problem, caps) or no_shared_tile(caps)


def not_worth(problem: ConvProblem, caps: DeviceCapabilities) -> str:
    """Why the direct sum is expected to be faster: for small images, and on a GPU, where three dispatches wait for each other;
    "" where it is not."""
    _, tiles = _tiles(problem)
    if problem.n * tiles < _MIN_TILES or _MAX_OVERHANG[1] * tiles * _TILE**2 > _MAX_OVERHANG[0] * problem.pixels:
        return f"images of {problem.oh} by {problem.ow}, too small for tiles of {_TILE}"
    short = not is_cpu_driver(caps) and problem.flops < _LEAST_FLOPS
    return f"{problem.flops} operations take no longer than waits between three dispatches" if short else ""


def winograd(problem: ConvProblem, e: Emission) -> list[KernelCall]:
    """The dispatches of a convolution: clear the sizes of tiles, transform the input, 36 matrix products, transform back."""
    columns, tiles = _tiles(problem)
    rows = problem.n * tiles  # sizes of each of the 36 products; its columns are output channels, its k input channels
    geometry = {**magic_params("columns", columns), **magic_params("tiles", tiles), **magic_params("images", problem.n)}
    storage = {"T": STORAGE[problem.dtype]}
    points, products = (e.target.scratch("float32", (_POINTS**2, c, rows)) for c in (problem.c, problem.oc))
    cleared_words = 8 * ceil_div(rows, 4)  # two for each tile, and at every size a multiple of what one lane clears
    sizes, pads = (
        e.target.scratch("uint32", (cleared_words,)),
        {"pad_top": problem.pads[0], "pad_left": problem.pads[1]},
    )
    to_points = WINOGRAD_INPUT.call(
        grid=flat_grid(problem.c * rows, _LOCAL, e.caps),
        operands={"x": e["x"], "v": points, "sizes": sizes},
        params={
            **geometry,
            **pads,
            "height": problem.h,
            "width": problem.w,
            "out_height": problem.oh,
            "out_width": problem.ow,
            "channels": problem.c,
            "total": problem.c * rows,
        },
        defines=storage,
        local_size=(_LOCAL, 1, 1),
    )
    multiply = _in_panels if is_cpu_driver(e.caps) else _in_tiles
    from_points = WINOGRAD_OUTPUT.call(
        grid=flat_grid(problem.oc * rows, _LOCAL, e.caps),
        operands={"products": products, "sizes": sizes, "x": e["x"], "w": e["w"], "y": e["y"]},
        params={
            **geometry,
            **pads,
            "height": problem.oh,
            "width": problem.ow,
            "x_height": problem.h,
            "x_width": problem.w,
            "x_channels": problem.c,
            "channels": problem.oc,
            "total": problem.oc * rows,
            "y_batch": problem.y_batch,
        },
        local_size=(_LOCAL, 1, 1),
        **call_arguments(e.epilogue, storage),
    )
    cleared = PointwiseOperand(sizes, DTYPES["uint32"], (1,), 0)
    clear = pointwise((cleared_words,), cleared, [], "uint compute() { return 0u; }", (), e.caps)
    return [*clear, to_points, *multiply(problem, e, rows, points, products), from_points]


def _in_panels(problem: ConvProblem, e: Emission, rows: int, points: Any, products: Any) -> list[KernelCall]:
    """The products on a CPU driver, from weights in panels."""
    batch = _POINTS**2
    tag_of = lambda columns: f"winograd-{problem.c}-{columns}"  # noqa: E731
    tile, tag = panel_tile(e, rows, problem.oc, batch, True, e["w"], tag_of)
    tile = tile.in_pairs(e.caps, "float32", False, divides(2, problem.oc))
    panels = ceil_div(problem.oc, tile.columns)
    panel = problem.c * tile.columns
    pack = lambda weights: pack_points(weights, problem.c, tile.columns)  # noqa: E731
    return [
        MATMUL_SUBGROUP.call(
            grid=tile_grid(ceil_div(rows, tile.rows), panels, batch, e.caps),
            operands={
                "a": points,
                "b": e.target.prepack(e["w"], pack, tag),
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
            defines=tile.defines("float32"),
            local_size=(tile.lanes, 1, 1),
            subgroup_size=tile.required_subgroup_size,
            flops=problem.flops,  # the operations of the convolution that it computes
        )
    ]


def _in_tiles(problem: ConvProblem, e: Emission, rows: int, points: Any, products: Any) -> list[KernelCall]:
    """The products on a GPU: for each point weights [oc, c] by the input's [c, tiles of all images]."""
    oc, c = problem.oc, problem.c
    strides = (oc * c, c, 1), (c * rows, rows, 1), (oc * rows, rows, 1)
    product = MatMulProblem(oc, rows, c, *strides, batch=_POINTS**2, alignment=16)
    pack = lambda weights: pack_points(weights, c, 1).reshape(_POINTS**2, oc, c)  # noqa: E731
    calls = emit(product, e.target, [e.target.prepack(e["w"], pack, f"winograd-{c}"), points], [products])
    return [replace(calls[0], flops=problem.flops), *calls[1:]]  # the operations of the convolution that it computes


def pack_points(weights: np.ndarray, channels: int, columns: int) -> np.ndarray:
    """OIHW 3x3 weights as [36, panels, channels, columns] points (float32), zero past the last output channel."""
    taps = np.ascontiguousarray(weights).reshape(-1, channels, 9)
    panels = ceil_div(len(taps), columns)
    padded = np.zeros((panels * columns, channels, 9), np.float32)
    padded[: len(taps)] = taps
    in_panels = np.ascontiguousarray(padded.reshape(panels, columns, channels, 9).transpose(3, 0, 2, 1))
    both_axes = np.kron(WEIGHT_TRANSFORM, WEIGHT_TRANSFORM).astype(np.float32)
    return (both_axes @ in_panels.reshape(9, -1)).reshape(_POINTS**2, panels, channels, columns)
