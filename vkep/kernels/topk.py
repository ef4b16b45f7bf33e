"""TopK along the middle of a tensor viewed as [outer, axis, inner] (``shaders/topk.comp``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpu_shared.capabilities import DeviceCapabilities
from vkep.errors import InvalidNode
from vkep.kernels.columns import ColumnProblem, column_blocks
from vkep.kernels.fastdiv import magic_fields, magic_params
from vkep.kernels.kernel import Kernel, KernelCall, Operand
from vkep.kernels.launch import element_defines, flat_lanes, key_defines, share_columns
from vkep.kernels.problem import Need
from vkep.kernels.select import Candidate, Emission, implement
from vkep.sizes import at_hand

_TYPES = ("float32", "float16", "int32", "int64", "uint8")


def _reach(call: KernelCall) -> Mapping[str, int]:
    blocks, element = column_blocks(call), call.size_of("IN_T")
    found = blocks * call["k"]
    return {"x": blocks * call["axis"] * element, "values": found * element, "indices": found * 8}


TOPK = Kernel(
    "topk.comp",
    operands=(Operand("x"), Operand("values", writes=True), Operand("indices", writes=True)),
    params=(("columns", "uint"), *magic_fields("axis", "inner"), ("k", "uint")),
    spec={"SPLIT": 1, "ACROSS": 0, "LARGEST": 1},
    variants=tuple(element_defines(t) | key_defines(t) | rank for t in _TYPES for rank in ({}, {"RANK": "1"})),
    reach=_reach,
)


@dataclass(frozen=True)
class TopKProblem(ColumnProblem):
    """``values`` (of ``dtype``) and ``indices`` (int64), both [outer, k, inner]: the k largest (else smallest) elements
    of the middle of ``x``, in order; equal ones by lower index first; NaN counts as the largest.

    Work is ``axis * k`` or ``axis**2`` comparisons per column. Raises `InvalidNode` unless ``0 <= k <= axis``.
    """

    k: int = 1
    largest: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.k <= self.axis:
            raise InvalidNode(f"k is {self.k}, expected 0 to {self.axis}, the axis' length")

    def makes(self) -> tuple[Need, ...]:
        shape = (self.outer, self.k, self.inner)
        return (Need("values", self.dtype, shape, flat=True), Need("indices", "int64", shape, flat=True))


def _takes_ranks(problem: TopKProblem, caps: DeviceCapabilities) -> str:
    return "k rounds compare less" if _is_small(problem.k, problem.axis) else ""


@at_hand
def _is_small(k: int, axis: int) -> bool:
    return k * 8 <= axis


def _ranks(problem: TopKProblem, e: Emission) -> KernelCall:
    """Each lane ranks one element: about as many comparisons as k rounds, in one pass."""
    return _call(problem, e, flat_lanes(e.caps, problem.elements), {}, {"RANK": "1"}, problem.axis)


def _rounds(problem: TopKProblem, e: Emission) -> KernelCall:
    """In each of k rounds, the lanes of a column find the next element together."""
    share = share_columns(problem.columns, problem.axis, problem.inner, e.caps, shuffles=False)
    return _call(problem, e, share.launch, share.spec, {}, problem.k)


def _call(
    problem: TopKProblem,
    e: Emission,
    launch: dict[str, Any],
    spec: dict[str, int],
    defines: dict[str, str],
    comparisons: int,
) -> KernelCall:
    return TOPK.call(
        **launch,
        operands=e.operands,
        params=problem.params | magic_params("axis", problem.axis) | {"k": problem.k},
        spec={**spec, "LARGEST": int(problem.largest)},
        defines=element_defines(problem.dtype) | key_defines(problem.dtype) | defines,
        flops=problem.elements * comparisons,
    )


implement(
    TopKProblem,
    Candidate("ranks", _ranks, when=_takes_ranks),
    Candidate("rounds", _rounds),
)
