"""Matrix products: kernels with tiles, and the table of all kernels for matrix products."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gpu_shared.capabilities import DeviceCapabilities
from vkep.kernels.epilogue import call_arguments
from vkep.kernels.kernel import Kernel, KernelCall
from vkep.kernels.launch import ceil_div
from vkep.kernels.matmul.along_k import matmul_along_k, no_product_along_k
from vkep.kernels.matmul.cooperative import matmul_cooperative, no_cooperative_product
from vkep.kernels.matmul.problem import MatMulProblem as MatMulProblem
from vkep.kernels.matmul.problem import product_reach, strided_matrix, unaddressable
from vkep.kernels.matmul.rows import matmul_rows, no_product_of_rows
from vkep.kernels.matmul.split_k import Sums, split_product
from vkep.kernels.matmul.tiles import (
    OF_SUBGROUPS,
    TILED_DEFINES,
    SubgroupTile,
    no_shared_tile,
    no_subgroup_tile,
    panel_tile,
    rows_first,
    shared_tiling,
    tile_grid,
)
from vkep.kernels.problem import extent
from vkep.kernels.select import Candidate, Emission, implement
from vkep.sizes import cached, divides, largest


def _subgroup_reach(call: KernelCall) -> Mapping[str, int]:
    m, n, k = call["m"], call["n"], call["k"]
    columns = call["LANE_COLUMNS"] * call["LOCAL_X"]
    panels = ceil_div(n, columns)
    last = (panels - 1) * call["b_panel"] + (n - 1 - (panels - 1) * columns) * call["b_col"]
    full = (panels - 2) * call["b_panel"] + (columns - 1) * call["b_col"]  # of the last full panel, if there is one
    inner = call["batch1"]
    batches = extent((call.groups[2] // inner, inner, k), (call["b_batch0"], call["b_batch1"], call["b_row"]))
    size = call.size_of("T")
    return {
        "a": product_reach(call, "a", m, k) * size,
        "b": (batches + largest(last, full) if k else 0) * size,
        "y": product_reach(call, "y", m, n) * size,
    }


MATMUL_SUBGROUP = Kernel("matmul_subgroup.comp", variants=OF_SUBGROUPS, reach=_subgroup_reach)


def _tiled_reach(call: KernelCall) -> Mapping[str, int]:
    m, n, k, splits, size = call["m"], call["n"], call["k"], call["splits"], call.size_of("T")
    # groups of four along the axis that a wide load runs along
    fours = {(name, along): 4 * call[f"{name}_WIDE"] or 1 for name in "AB" for along in (call[f"{name}_ALONG_K"],)}

    def up(count: int, name: str, along: int) -> int:
        of = fours.get((name, along), 1)
        return ceil_div(count, of) * of

    partial = splits * (call.groups[2] // splits) * m * n * 4
    return {
        "a": product_reach(call, "a", up(m, "A", 0), up(k, "A", 1), splits) * size,
        "b": product_reach(call, "b", up(k, "B", 1), up(n, "B", 0), splits) * size,
        "y": partial if call["PARTIAL"] else product_reach(call, "y", m, n, splits) * size,
    }


MATMUL_TILED = Kernel("matmul_tiled.comp", variants=tuple(TILED_DEFINES.values()), reach=_tiled_reach)


def _no_subgroup(problem: MatMulProblem, caps: DeviceCapabilities) -> str:
    return unaddressable(problem, caps) or no_subgroup_tile(problem.m, problem.n, problem.products, caps, problem.packs)


def _subgroup(problem: MatMulProblem, e: Emission) -> KernelCall:
    packed, b = problem.packs, e["b"]
    k, n, (_, _, row, col) = problem.k, problem.n, problem.strides("b")
    tag_of = lambda columns: f"matmul-{k}-{n}-{row}-{col}-{columns}"  # noqa: E731
    tile, tag = panel_tile(e, problem.m, n, problem.products, packed, b, tag_of)
    columns = divides(2, n) if packed else problem.in_groups("b", 3, 2)
    along_k = not packed and problem.in_groups("b", 2, 2)
    tile = tile.in_pairs(e.caps, problem.dtype, problem.in_groups("a", 3, 2), columns, along_k)
    if packed:
        b = e.target.prepack(b, lambda flat: pack_panels(flat, k, n, row, col, tile.columns), tag)
    row_tiles, column_tiles = ceil_div(problem.m, tile.rows), ceil_div(problem.n, tile.columns)
    return MATMUL_SUBGROUP.call(
        grid=tile_grid(row_tiles, column_tiles, problem.products, e.caps),
        operands={"a": e["a"], "b": b, "y": e["y"]},
        params=_subgroup_params(problem, tile, packed),
        spec=tile.spec,
        local_size=(tile.lanes, 1, 1),
        subgroup_size=tile.required_subgroup_size,
        **call_arguments(e.epilogue, tile.defines(problem.dtype)),
    )


@cached
def _subgroup_params(problem: MatMulProblem, tile: SubgroupTile, packed: bool) -> Mapping[str, int | float]:
    params = {**problem.params, "b_panel": tile.columns * problem.strides("b")[3]}
    if packed:
        params.update(b_row=tile.columns, b_col=1, b_panel=problem.k * tile.columns)
    row_tiles, column_tiles = ceil_div(problem.m, tile.rows), ceil_div(problem.n, tile.columns)
    params["rows_first"] = int(rows_first(row_tiles, column_tiles, problem.m * problem.k, problem.n * problem.k))
    return params


def pack_panels(flat: np.ndarray, k: int, n: int, row: int, col: int, columns: int) -> np.ndarray:
    """[ceil(n / columns), k, columns] panels of a k by n matrix with these strides in ``flat``, zero past column n."""
    matrix = strided_matrix(flat, k, n, row, col)
    panels = np.zeros((ceil_div(n, columns), k, columns), flat.dtype)
    for i, panel in enumerate(panels):
        block = matrix[:, i * columns : (i + 1) * columns]
        panel[:, : block.shape[1]] = block
    return panels


def _no_tiles(problem: MatMulProblem, caps: DeviceCapabilities) -> str:
    return unaddressable(problem, caps) or no_shared_tile(caps)


def _tiled(problem: MatMulProblem, e: Emission) -> list[KernelCall]:
    m, n, batch = problem.m, problem.n, problem.products
    tiling = shared_tiling(m, n, problem.k, batch, e.caps, e.target.tuned)
    tile = tiling.tile
    a_along_k = problem.strides("a")[3] == 1
    return split_product(
        e,
        tiling.splits,
        Sums(m, n, batch, problem.batches[1], problem.strides("y"), problem.dtype, problem.alpha),
        TILED_DEFINES[problem.dtype],
        lambda y, **fused: MATMUL_TILED.call(
            grid=(ceil_div(n, tile.n), ceil_div(m, tile.m), batch * tiling.splits),
            operands={"a": e["a"], "b": e["b"], "y": y},
            params={**problem.params, "splits": tiling.splits, "split_k": tiling.split_k},
            spec={
                **tile.spec,
                "A_ALONG_K": int(a_along_k),
                "B_ALONG_K": int(problem.b_along_k),
                "A_WIDE": int(tile.loads_wide and problem.in_groups("a", 3 if a_along_k else 2, 4)),
                "B_WIDE": int(tile.loads_wide and problem.in_groups("b", 2 if problem.b_along_k else 3, 4)),
                "PARTIAL": int(tiling.splits > 1),
            },
            local_size=(tile.lanes, 1, 1),
            flops=problem.flops,
            **fused,
        ),
    )


implement(
    MatMulProblem,
    Candidate("subgroup", _subgroup, when=_no_subgroup),
    Candidate("along k", matmul_along_k, when=no_product_along_k),
    Candidate("rows", matmul_rows, when=no_product_of_rows),
    Candidate("cooperative", matmul_cooperative, when=no_cooperative_product, wide=True),
    Candidate("tiled", _tiled, when=_no_tiles),
)
