"""Products of many rows by packed codes, which are unpacked while they are loaded into a tile:
``shaders/matmul_codes_coop.comp`` on cooperative matrices, ``shaders/matmul_codes_tiled.comp`` without."""

from __future__ import annotations

from collections.abc import Mapping

from gpu_shared.capabilities import DeviceCapabilities
from vkep.kernels.kernel import Kernel, KernelCall
from vkep.kernels.launch import ceil_div, element_type
from vkep.kernels.matmul.along_k import MAX_ROWS
from vkep.kernels.matmul.cooperative import HALVES, MIN_EDGE, padded_k
from vkep.kernels.matmul.cooperative_tiles import VECTOR, cooperative_tiling, no_cooperative_tile
from vkep.kernels.matmul.nbits_problem import MatMulNBitsProblem, packed_reach
from vkep.kernels.matmul.split_k import Sums, split_product
from vkep.kernels.matmul.tiles import TILED_DEFINES, no_shared_tile, shared_tiling, tile_grid
from vkep.kernels.select import Emission
from vkep.sizes import stays_few


def _reach(call: KernelCall) -> Mapping[str, int]:
    m, n, k, size = call["m"], call["n"], call["k"], call.size_of("T")
    group = VECTOR if call.spec.get("A_VECTOR") else 4 * call.spec.get("A_WIDE", 0) or 1
    padded = padded_k(call, k, group) if "WHOLE_K" in call.spec else ceil_div(k, group) * group
    return {
        "a": ((m - 1) * k + padded) * size,
        "y": call["splits"] * m * n * 4 if call["PARTIAL"] else m * n * size,
        **packed_reach(call, size),
    }


MATMUL_CODES_COOPERATIVE = Kernel("matmul_codes_coop.comp", variants=(HALVES,), reach=_reach)
MATMUL_CODES_TILED = Kernel("matmul_codes_tiled.comp", variants=tuple(TILED_DEFINES.values()), reach=_reach)


def _codes_spec(problem: MatMulNBitsProblem) -> dict[str, int]:
    return {"BITS": problem.bits, "BLOCK": problem.block, "ZEROS": problem.zeros_kind}


def _params(problem: MatMulNBitsProblem, splits: int, split_k: int) -> dict[str, int | float]:
    return {
        "m": problem.m,
        "n": problem.n,
        "k": problem.k,
        "splits": splits,
        "split_k": split_k,
        "y_row": problem.n,
        "y_col": 1,
        "alpha": 1.0,
        "blocks": problem.blocks,
        "zero_bytes": problem.zero_bytes,
    }


def _sums(problem: MatMulNBitsProblem) -> Sums:
    return Sums(problem.m, problem.n, 1, 1, (0, 0, problem.n, 1), problem.dtype)


def no_cooperative_codes(problem: MatMulNBitsProblem, caps: DeviceCapabilities) -> str:
    """Why cooperative matrices do not compute a product; "" where they do."""
    if problem.dtype != "float16":
        return f"cooperative matrices of float16, the product is of {problem.dtype}"
    if stays_few(problem.m, MAX_ROWS) or problem.n < MIN_EDGE:
        return f"a product of {problem.m} by {problem.n} leaves most of a matrix unused"
    return no_cooperative_tile(caps, True)


def cooperative_codes(problem: MatMulNBitsProblem, e: Emission) -> list[KernelCall]:
    """The dispatches of a product on cooperative matrices."""
    m, n, k = problem.m, problem.n, problem.k
    tiling = cooperative_tiling(m, n, k, 1, e.caps, True, e.target.tuned)
    tile, splits = tiling.tile, tiling.splits
    aligned = splits > 1 or problem.at_y % (2 * VECTOR) == 0
    return split_product(
        e,
        splits,
        _sums(problem),
        HALVES,
        lambda y, **fused: MATMUL_CODES_COOPERATIVE.call(
            grid=tile_grid(ceil_div(m, tile.m), ceil_div(n, tile.n), splits, e.caps),
            operands={"a": e["a"], "b": e["b"], "y": y, "scales": e["scales"], "zeros": e.get("zeros")},
            params=_params(problem, splits, tiling.split_k),
            spec={
                **tile.spec(tiling.shape, e.caps.subgroup_size),
                "B_ALONG_K": 1,
                "A_VECTOR": int(k % VECTOR == 0 and problem.at_a % (2 * VECTOR) == 0),
                "STORE_VECTOR": int(n % VECTOR == 0 and aligned),
                "PARTIAL": int(splits > 1),
                "WHOLE_K": int(k % tile.k == 0),
                **_codes_spec(problem),
            },
            local_size=(tile.subgroups * e.caps.subgroup_size, 1, 1),
            subgroup_size=e.caps.subgroup_size,
            flops=problem.flops,
            **fused,
        ),
    )


def no_tiled_codes(problem: MatMulNBitsProblem, caps: DeviceCapabilities) -> str:
    """Why tiles in shared memory do not compute a product; "" where they do."""
    return no_shared_tile(caps)


def tiled_codes(problem: MatMulNBitsProblem, e: Emission) -> list[KernelCall]:
    """The dispatches of a product by tiles in shared memory."""
    m, n, k = problem.m, problem.n, problem.k
    tiling = shared_tiling(m, n, k, 1, e.caps, e.target.tuned)
    tile, wide = tiling.tile, 4 * element_type(problem.dtype).itemsize
    return split_product(
        e,
        tiling.splits,
        _sums(problem),
        TILED_DEFINES[problem.dtype],
        lambda y, **fused: MATMUL_CODES_TILED.call(
            grid=(ceil_div(n, tile.n), ceil_div(m, tile.m), tiling.splits),
            operands={"a": e["a"], "b": e["b"], "y": y, "scales": e["scales"], "zeros": e.get("zeros")},
            params=_params(problem, tiling.splits, tiling.split_k),
            spec={
                **tile.spec,
                "A_ALONG_K": 1,
                "B_ALONG_K": 1,
                "A_WIDE": int(tile.loads_wide and k % 4 == 0 and problem.at_a % wide == 0),
                "B_WIDE": int(tile.loads_wide),
                "PARTIAL": int(tiling.splits > 1),
                **_codes_spec(problem),
            },
            local_size=(tile.lanes, 1, 1),
            flops=problem.flops,
            **fused,
        ),
    )
