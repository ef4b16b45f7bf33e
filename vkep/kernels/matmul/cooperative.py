"""Matrix products on cooperative matrices, where a device has them: of float16, and of 8-bit codes.

Selection is by capability: the device must list a subgroup-scope shape of float16 operands and float32 sums, or int8 operands and
int32 sums (VK_KHR_cooperative_matrix, "VkCooperativeMatrixPropertiesKHR"), and have room for a tile.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gpu_shared.capabilities import CooperativeMatrixShape, DeviceCapabilities
from vkep.dtypes import DTYPES
from vkep.kernels.kernel import Kernel, KernelCall
from vkep.kernels.launch import ceil_div
from vkep.kernels.matmul.cooperative_tiles import (
    UNITS,
    VECTOR,
    CooperativeTiling,
    cooperative_tiling,
    no_cooperative_tile,
)
from vkep.kernels.matmul.problem import MatMulProblem, far_strides, product_reach, strided_matrix
from vkep.kernels.matmul.split_k import Sums, split_product
from vkep.kernels.matmul.tiles import tile_grid
from vkep.kernels.select import Emission
from vkep.sizes import divides, stays_few

HALVES = {"T": "float16_t"}
_CODES = {"T": "int8_t", "CODES": "1"}
RESULTS: dict[str, dict[str, str]] = {
    "float16": {},
    **{t: {"R": DTYPES[t].glsl, "R_BYTES": str(DTYPES[t].itemsize)} for t in ("float32", "int8", "uint8")},
}
#: definitions of kernels that take both types
OF_ELEMENTS = tuple(
    {**of, **results} for of in (HALVES, _CODES, {**_CODES, "HALF_UNITS": "1"}) for results in RESULTS.values()
)


def elements(shape: CooperativeMatrixShape, results: str = "float16") -> dict[str, str]:
    """The definitions of a kernel for the operands' type and the matrices of ``shape``, and the type of the results."""
    of, unit = (_CODES, UNITS["int8"]) if shape.a_type == "int8" else (HALVES, VECTOR)
    return {**of, **({"HALF_UNITS": "1"} if shape.k < unit else {}), **RESULTS[results]}


def result_size(call: KernelCall) -> int:
    """Bytes of an element of the results of a kernel that stores by ``results.glsl``."""
    return int(call.defines.get("R_BYTES", 2))


def padded_k(call: KernelCall, k: int, group: int) -> int:
    """Steps of k that the loads of `cooperative_tile.glsl` may touch: groups that begin before its end, or whole stages."""
    if call["WHOLE_K"]:
        return max(k, (call["splits"] - 1) * call["split_k"] + call["TILE_K"])
    return ceil_div(k, group) * group


def _product_reach(call: KernelCall) -> Mapping[str, int]:
    m, n, k, splits, along_k = call["m"], call["n"], call["k"], call["splits"], call["B_ALONG_K"]
    size = call.size_of("T")
    unit = 16 // size
    by_b = {0: 1, 1: unit, 2: unit // 2}[call["B_VECTOR"]]
    b_k = padded_k(call, k, by_b) if along_k and by_b > 1 else k
    partial = splits * (call.groups[2] // splits) * m * n * 4
    less = n * call["b_col"] + 4 * ceil_div(n, VECTOR) * VECTOR if call["LESS"] else 0
    return {
        "a": size * product_reach(call, "a", m, padded_k(call, k, unit) if call["A_VECTOR"] else k, splits),
        "b": max(size * product_reach(call, "b", b_k, n if along_k else max(n, by_b), splits), less),
        "y": partial if call["PARTIAL"] else result_size(call) * product_reach(call, "y", m, n, splits),
    }


MATMUL_COOPERATIVE = Kernel("matmul_coop.comp", variants=OF_ELEMENTS, reach=_product_reach)


#: fewer rows or columns leave most of a matrix unused
MIN_EDGE = 8
#: products of an int8 less its zero point (of a size of at most 255) and an int8 (128), whose sum int32 holds
MOST_CODES = (2**31 - 1) // (255 * 128)


def no_cooperative_product(problem: MatMulProblem, caps: DeviceCapabilities) -> str:
    """Why cooperative matrices do not compute a product; "" where they do."""
    if problem.dtype not in UNITS:
        return f"cooperative matrices of {' or '.join(UNITS)}, the product is of {problem.dtype}"
    along_k = problem.b_along_k or problem.dtype == "int8"
    if problem.dtype == "int8" and not problem.packs:
        return "weights of int8 that may not be repacked"
    if problem.dtype == "int8" and problem.k > MOST_CODES:
        return f"sums of {problem.k} products of codes, int32 holds {MOST_CODES}"
    if stays_few(problem.m, MIN_EDGE - 1) or stays_few(problem.n, MIN_EDGE - 1) or problem.k == 0:
        return f"a product of {problem.m} by {problem.n} by {problem.k} leaves most of a matrix unused"
    return far_strides(problem) or no_cooperative_tile(caps, along_k, dtype=problem.dtype)


def matmul_cooperative(
    problem: MatMulProblem, e: Emission, tiling: CooperativeTiling | None = None
) -> list[KernelCall]:
    """The dispatches of a product on cooperative matrices. ``tiling`` overrides the choice of a tile."""
    operands = {"a": e["a"], "b": e["b"]}
    if problem.dtype == "int8":
        problem, operands["b"] = _along_k(problem, e)
    m, n, k, batch, along_k = problem.m, problem.n, problem.k, problem.products, problem.b_along_k
    tiling = tiling or cooperative_tiling(m, n, k, batch, e.caps, along_k, e.target.tuned, dtype=problem.dtype)
    tile, splits = tiling.tile, tiling.splits
    return split_product(
        e,
        splits,
        Sums(m, n, batch, problem.batches[1], problem.strides("y"), problem.results, problem.alpha),
        elements(tiling.shape, problem.results),
        lambda y, **fused: MATMUL_COOPERATIVE.call(
            grid=tile_grid(ceil_div(m, tile.m), ceil_div(n, tile.n), batch * splits, e.caps),
            operands={**operands, "y": y},
            params={**problem.params, "splits": splits, "split_k": tiling.split_k},
            spec={
                **tile.spec(tiling.shape, e.caps.subgroup_size),
                "B_ALONG_K": int(along_k),
                "A_VECTOR": int(problem.in_groups("a", 3, UNITS[problem.dtype])),
                "B_VECTOR": _b_vector(problem),
                "STORE_VECTOR": int(divides(VECTOR, n) and (splits > 1 or problem.in_groups("y", 3, VECTOR))),
                "PARTIAL": int(splits > 1),
                "LESS": int(problem.zero != 0),
                "WHOLE_K": int(divides(tile.steps(tiling.shape), k)),
            },
            local_size=(tile.subgroups * e.caps.subgroup_size, 1, 1),
            subgroup_size=e.caps.subgroup_size,
            flops=problem.flops,
            **fused,
        ),
    )


def _along_k(problem: MatMulProblem, e: Emission) -> tuple[MatMulProblem, Any]:
    """A product by weights of int8, and these with each column's elements side by side, as matrices of int8 are loaded: [n, k
    padded to whole units with zeros], then `less_by`."""
    k, n, (_, _, row, column) = problem.k, problem.n, problem.strides("b")
    unit, zero = UNITS[problem.dtype], problem.zero
    pitch = ceil_div(k, unit) * unit

    def pack(flat: np.ndarray) -> np.ndarray:
        columns = np.pad(strided_matrix(flat, k, n, row, column).T, [(0, 0), (0, pitch - k)])
        return np.concatenate([columns.reshape(-1), less_by(columns, zero)])

    packed = e.target.prepack(e["b"], pack, f"matmul-along-k-{k}-{n}-{row}-{column}-{zero}")
    return problem.restrided("b", (0, 0, 1, pitch)), packed


def less_by(columns: np.ndarray, zero: int) -> np.ndarray:
    """What sums of codes times int8 weights [columns, k] are too large by, where ``zero`` is the codes' zero point: an int32 for
    each column, of whole groups of eight, in bytes as the kernels read them; none for 0."""
    sums = zero * columns.sum(axis=1, dtype=np.int32)
    return np.pad(sums, (0, -len(sums) % VECTOR)).view(np.int8) if zero else np.zeros(0, np.int8)


def _b_vector(problem: MatMulProblem) -> int:
    """How b is read: 1 in units, 2 in half units (along columns only), 0 element by element."""
    if problem.in_groups("b", 2 if problem.b_along_k else 3, UNITS[problem.dtype]):
        return 1
    return 2 if not problem.b_along_k and problem.in_groups("b", 3, VECTOR // 2) else 0
