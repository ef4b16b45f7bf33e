"""Matrix products of few rows (a decoder's step) on GPUs: ``shaders/matmul_rows.comp``, bound by reading b."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpu_shared.capabilities import DeviceCapabilities
from vkep.kernels.epilogue import Epilogue, call_arguments
from vkep.kernels.kernel import Kernel, KernelCall, Operand
from vkep.kernels.tiles import TILED_DEFINES, ceil_div, check_grid

if TYPE_CHECKING:
    from vkep.kernels.matmul import MatMulProblem

_BATCH_STRIDES = tuple(f"{name}_batch{axis}" for name in "aby" for axis in (0, 1))

MATMUL_ROWS = Kernel(
    "matmul_rows.comp",
    operands=(Operand("a"), Operand("b"), Operand("y", writes=True)),
    params=(
        *((name, "uint") for name in ("m", "n", "k", "batch1", "a_row", "a_col", "b_row", "b_col", "y_row", "y_col")),
        *((name, "uint") for name in _BATCH_STRIDES),
        ("alpha", "float"),
    ),
    spec={"ROWS": 1, "COLUMNS": 8, "SLICES": 32, "K_FASTEST": 0, "B_WIDE": 0},
    variants=tuple(TILED_DEFINES.values()),
)
#: products of more rows reuse what they read of b, and gain from tiles
MAX_ROWS = 8
#: lanes a workgroup, and those of them along columns where b is dense along its columns
_LANES, _COLUMNS = 256, 8
#: floats that a workgroup adds through shared memory at most: every device has room for them
_PARTS = _LANES * 4 + _LANES


def matmul_rows(
    problem: MatMulProblem, caps: DeviceCapabilities, a: Any, b: Any, y: Any, epilogue: Epilogue | None = None
) -> list[KernelCall] | None:
    """The dispatch of `matmul` for few rows; None where there are more, or the device's workgroups are too small.

    Arguments and errors otherwise as `vkep.kernels.matmul.matmul`.
    """
    batch = problem.batches[0] * problem.batches[1]
    fits = min(caps.max_workgroup_invocations, caps.max_workgroup_size[0]) >= _LANES
    if problem.m > MAX_ROWS or problem.k == 0 or not fits or caps.max_shared_memory_bytes < 4 * _PARTS:
        return None
    strides = {name: problem.strides(name) for name in "aby"}
    along_k = strides["b"][2] == 1 and strides["b"][3] != 1
    itemsize = 4 if problem.dtype == "float32" else 2
    others = (strides["b"][axis] for axis in (0, 1, 2))
    wide = (
        strides["b"][3] == 1
        and problem.n % 4 == 0
        and problem.alignment % (4 * itemsize) == 0
        and all(stride % 4 == 0 for stride in others)
    )
    width = 4 if wide else 1
    columns = _COLUMNS if wide or along_k else 32
    rows = next(r for r in (1, 2, 4, 8) if r >= problem.m)
    return [
        MATMUL_ROWS.call(
            grid=check_grid((ceil_div(problem.n, columns * width), ceil_div(problem.m, rows), batch), caps, "matmul"),
            operands={"a": a, "b": b, "y": y},
            params={
                "m": problem.m,
                "n": problem.n,
                "k": problem.k,
                "batch1": problem.batches[1],
                "alpha": problem.alpha,
                **{
                    f"{name}_{axis}": stride
                    for name in "aby"
                    for axis, stride in zip(("batch0", "batch1", "row", "col"), strides[name], strict=True)
                },
            },
            spec={
                "ROWS": rows,
                "COLUMNS": columns,
                "SLICES": _LANES // columns,
                "K_FASTEST": int(along_k),
                "B_WIDE": int(wide),
            },
            local_size=(_LANES, 1, 1),
            flops=problem.flops,
            **call_arguments(epilogue, TILED_DEFINES[problem.dtype]),
        )
    ]
