"""Determinants and inverses of small matrices, by elimination: one lane per matrix."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from gpu_shared.capabilities import DeviceCapabilities
from vkep.errors import InvalidNode
from vkep.kernels.fastdiv import LIMIT
from vkep.kernels.kernel import Kernel, KernelCall
from vkep.kernels.launch import element_defines, flat_lanes
from vkep.kernels.problem import Need, Problem
from vkep.kernels.select import Candidate, Emission, implement

#: largest matrix for one lane
LARGEST_MATRIX = 256


def _determinant_reach(call: KernelCall) -> Mapping[str, int]:
    elements, work = call["total"] * call["n"] ** 2, call.size_of("COMPUTE_T")
    return {"x": elements * call.size_of("IN_T"), "work": elements * work, "y": call["total"] * call.size_of("OUT_T")}


def _inverse_reach(call: KernelCall) -> Mapping[str, int]:
    elements, work = call["total"] * call["n"] ** 2, call.size_of("COMPUTE_T")
    return {"x": elements * call.size_of("IN_T"), "work": 2 * elements * work, "y": elements * call.size_of("OUT_T")}


def _kernel(name: str, reach: Callable[[KernelCall], Mapping[str, int]]) -> Kernel:
    return Kernel(f"{name}.comp", variants=(element_defines("float32"),), reach=reach)


DETERMINANT, INVERSE = _kernel("determinant", _determinant_reach), _kernel("inverse", _inverse_reach)


@dataclass(frozen=True)
class _Matrices(Problem):
    """``x`` of ``shape`` [..., n, n]."""

    shape: tuple[int, ...]
    dtype: str

    def __post_init__(self) -> None:
        if len(self.shape) < 2 or self.shape[-1] != self.shape[-2]:
            raise InvalidNode(f"shape {list(self.shape)}, expected square matrices")

    def needs(self) -> tuple[Need, ...]:
        return (Need("x", self.dtype, self.shape),)


@dataclass(frozen=True)
class DeterminantProblem(_Matrices):
    """``y`` [...]: determinants, by elimination with partial pivoting."""

    def makes(self) -> tuple[Need, ...]:
        return (Need("y", self.dtype, self.shape[:-2]),)

    def reference(self, x: np.ndarray) -> np.ndarray:
        return np.linalg.det(x)


@dataclass(frozen=True)
class InverseProblem(_Matrices):
    """``y`` [..., n, n]: inverses, by elimination with partial pivoting; not finite for a singular matrix."""

    def makes(self) -> tuple[Need, ...]:
        return (Need("y", self.dtype, self.shape),)

    def reference(self, x: np.ndarray) -> np.ndarray:
        made = np.full(x.shape, np.nan)
        regular = np.linalg.det(x) != 0
        made[regular] = np.linalg.inv(x[regular])
        return made


def _takes(problem: _Matrices, caps: DeviceCapabilities) -> str:
    n, work = problem.shape[-1], _work_elements(problem)
    if work >= LIMIT:
        return f"matrices that take {work} elements of temporary memory, expected less than {LIMIT}"
    return f"{n} x {n} matrices; a lane takes up to {LARGEST_MATRIX}" if n > LARGEST_MATRIX else ""


def _work_elements(problem: _Matrices) -> int:
    return math.prod(problem.shape) * (1 + isinstance(problem, InverseProblem))


def _eliminated(problem: _Matrices, e: Emission) -> KernelCall:
    count, n = math.prod(problem.shape[:-2]), problem.shape[-1]
    inverse = isinstance(problem, InverseProblem)
    work = e.target.scratch("float64" if problem.dtype == "float64" else "float32", (count, n, (1 + inverse) * n))
    return (INVERSE if inverse else DETERMINANT).call(
        **flat_lanes(e.caps, count),
        operands={"x": e["x"], "work": work, "y": e["y"]},
        params={"total": count, "n": n},
        defines=element_defines(problem.dtype),
        flops=count * n**3 * (3 if inverse else 1),
    )


implement(DeterminantProblem, Candidate("determinant", _eliminated, when=_takes))
implement(InverseProblem, Candidate("inverse", _eliminated, when=_takes))
