"""Softmax and log-softmax over the middle of a tensor viewed as [outer, axis, inner] (``shaders/softmax.comp``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpu_shared.capabilities import DeviceCapabilities
from vkep.kernels.columns import COLUMN_PARAMS, ColumnProblem, column_blocks
from vkep.kernels.kernel import Kernel, KernelCall, Operand
from vkep.kernels.launch import (
    ceil_div,
    element_defines,
    is_cpu,
    row_unit,
    row_variants,
    row_vectors,
    share_columns,
)
from vkep.kernels.problem import alignment_of
from vkep.kernels.select import Candidate, Emission, implement, takes_floats

#: elements that a lane keeps in registers at most
MAX_PER_LANE = 16


def _reach(call: KernelCall) -> Mapping[str, int]:
    return dict.fromkeys("xy", column_blocks(call) * call["axis"] * row_unit(call))


SOFTMAX = Kernel(
    "softmax.comp",
    operands=(Operand("x"), Operand("y", writes=True)),
    params=(*COLUMN_PARAMS, ("alpha", "float")),
    spec={"SPLIT": 1, "ACROSS": 0, "IN_REGISTERS": 0, "PER_LANE": 1, "LOG": 0, "KEEP_POWERS": 0, "SUBGROUP_LANES": 32},
    variants=row_variants(),
    reach=_reach,
)


@dataclass(frozen=True)
class SoftmaxProblem(ColumnProblem):
    """``y`` = softmax (with ``log``: its logarithm) of ``alpha * x`` over the middle of [outer, axis, inner].

    Floats only, computed in float32; the maximum is subtracted first. ``alignment`` (bytes) divides the addresses of x and
    y: with 16, contiguous rows move four elements at a time.
    """

    log: bool = False
    alpha: float = 1.0
    alignment: int = 1
    flops_each = 4

    def placed(self, operands: Mapping[str, Any]) -> SoftmaxProblem:
        return replace(self, alignment=alignment_of(operands["x"], operands["y"]))


def _softmax(problem: SoftmaxProblem, e: Emission) -> KernelCall:
    axis, inner, dtype = problem.axis, problem.inner, problem.dtype
    vectors = row_vectors(axis, dtype, problem.alignment) if inner == 1 else {}
    steps = axis // 4 if vectors else axis
    share = share_columns(problem.columns, steps, inner, e.caps)
    registers = register_spec(steps, share.split, e.caps)
    keep_powers = not problem.log and dtype == "float32" and not registers["IN_REGISTERS"]
    return SOFTMAX.call(
        **share.launch,
        operands=e.operands,
        params=problem.params | {"axis": steps, "alpha": problem.alpha},
        spec={**share.lane_spec, **registers, "LOG": int(problem.log), "KEEP_POWERS": int(keep_powers)},
        defines=element_defines(dtype) | vectors | share.defines,
    )


implement(SoftmaxProblem, Candidate("softmax", _softmax, when=takes_floats))


def register_spec(axis: int, split: int, caps: DeviceCapabilities) -> dict[str, int]:
    """Whether a lane keeps its elements in registers, and how many (rounded so that few pipelines arise).

    A CPU driver has its cache for that, and spills long register arrays.
    """
    per_lane = ceil_div(axis, split)
    if is_cpu(caps) or per_lane > MAX_PER_LANE:
        return {"IN_REGISTERS": 0, "PER_LANE": 1}
    return {"IN_REGISTERS": 1, "PER_LANE": next(n for n in (1, 2, 4, 6, 8, 12, 16) if n >= per_lane)}
