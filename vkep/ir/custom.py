"""The operation of a custom kernel: a function creates its dispatches, instead of a table of candidates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from vkep.ir.tensor import Tensor
from vkep.kernels.epilogue import Epilogue
from vkep.kernels.kernel import KernelCall
from vkep.kernels.problem import Need, NoReference, Problem
from vkep.kernels.select import Candidate, Emission, Target, implement

#: (target, inputs, outputs, epilogue) to dispatches; the epilogue is always None
Emit = Callable[[Target, Sequence[Tensor], Sequence[Tensor], Epilogue | None], list[KernelCall]]


@dataclass(frozen=True)
class CustomProblem(Problem):
    """The problem that ``emit`` computes. The operator's function passes the operands; its kernels must stay within
    these views."""

    recurs: ClassVar[bool] = False

    inputs: tuple[Need, ...]
    outputs: tuple[Need, ...]
    emit: Emit

    @classmethod
    def of(cls, inputs: Sequence[Tensor], outputs: Sequence[Tensor], emit: Emit) -> CustomProblem:
        """The problem of a kernel that a package declares, for these operands."""
        return cls(_as_they_are("input", inputs), _as_they_are("output", outputs), emit)

    def needs(self) -> tuple[Need, ...]:
        return self.inputs

    def makes(self) -> tuple[Need, ...]:
        return self.outputs

    def reference(self, **operands: np.ndarray) -> np.ndarray:
        raise NoReference("a kernel that a package declares")


def _as_they_are(kind: str, tensors: Sequence[Tensor]) -> tuple[Need, ...]:
    return tuple(
        Need(f"{kind}{k}", t.dtype.name, t.shape, None if t.is_contiguous else tuple(max(s, 0) for s in t.strides))
        for k, t in enumerate(tensors)
    )


def _custom(problem: CustomProblem, e: Emission) -> list[KernelCall]:
    inputs, outputs = ([e[need.name] for need in needs] for needs in (problem.inputs, problem.outputs))
    return problem.emit(e.target, inputs, outputs, None)


implement(CustomProblem, Candidate("custom", _custom))
