"""Matrix products of few rows (a decoder's step) on GPUs: ``shaders/matmul_rows.comp``, bound by reading b."""

from __future__ import annotations

from collections.abc import Mapping

from gpu_shared.capabilities import DeviceCapabilities
from vkep.kernels.epilogue import call_arguments
from vkep.kernels.kernel import Kernel, KernelCall, Operand, uints
from vkep.kernels.launch import ceil_div
from vkep.kernels.matmul_problem import PRODUCT_PARAMS, MatMulProblem, product_reach, unaddressable
from vkep.kernels.select import Emission
from vkep.kernels.tiles import TILED_DEFINES


def _reach(call: KernelCall) -> Mapping[str, int]:
    m, n, k, size = call["m"], call["n"], call["k"], call.size_of("T")
    return {
        "a": product_reach(call, "a", m, k) * size,
        "b": product_reach(call, "b", k, max(n, 4 * call["B_WIDE"])) * size,
        "y": product_reach(call, "y", m, n) * size,
    }


MATMUL_ROWS = Kernel(
    "matmul_rows.comp",
    operands=(Operand("a"), Operand("b"), Operand("y", writes=True)),
    params=(*uints("m", "n", "k", "batch1"), *PRODUCT_PARAMS),
    spec={"ROWS": 1, "COLUMNS": 8, "SLICES": 32, "K_FASTEST": 0, "B_WIDE": 0},
    variants=tuple(TILED_DEFINES.values()),
    reach=_reach,
)
#: products of more rows reuse what they read of b, and gain from tiles
MAX_ROWS = 8
#: lanes a workgroup, and those of them along columns where b is dense along its columns
_LANES, _COLUMNS = 256, 8
#: bytes of floats that a workgroup adds through shared memory at most
_SHARED_BYTES = 4 * (_LANES * 4 + _LANES)


def no_product_of_rows(problem: MatMulProblem, caps: DeviceCapabilities) -> str:
    """Why `matmul_rows` does not compute a product; "" where it does."""
    if problem.m > MAX_ROWS or problem.k == 0:
        return f"{problem.m} rows of {problem.k} elements, expected 1 to {MAX_ROWS} that are not empty"
    if min(caps.max_workgroup_invocations, caps.max_workgroup_size[0]) < _LANES:
        return f"fewer than {_LANES} lanes a workgroup"
    if caps.max_shared_memory_bytes < _SHARED_BYTES:
        return f"less than {_SHARED_BYTES} bytes of shared memory"
    return unaddressable(problem, caps)


def matmul_rows(problem: MatMulProblem, e: Emission) -> KernelCall:
    """The dispatch of a product of few rows."""
    wide = problem.in_groups("b", 3, 4)
    width = 4 if wide else 1
    columns = _COLUMNS if wide or problem.b_along_k else 32
    rows = next(r for r in (1, 2, 4, 8) if r >= problem.m)
    return MATMUL_ROWS.call(
        grid=(ceil_div(problem.n, columns * width), ceil_div(problem.m, rows), problem.products),
        operands=e.operands,
        params=problem.params,
        spec={
            "ROWS": rows,
            "COLUMNS": columns,
            "SLICES": _LANES // columns,
            "K_FASTEST": int(problem.b_along_k),
            "B_WIDE": int(wide),
        },
        local_size=(_LANES, 1, 1),
        **call_arguments(e.epilogue, TILED_DEFINES[problem.dtype]),
    )
