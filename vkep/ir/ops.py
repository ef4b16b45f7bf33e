"""The result of lowering: a list of operations over tensors, before kernels and memory are chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from gpu_shared.capabilities import DeviceCapabilities
from vkep.dtypes import DTYPES, from_onnx
from vkep.graph.weights import ArrayWeight
from vkep.ir.expr import Expr, is_checked, tensors
from vkep.ir.tensor import Storage, Tensor
from vkep.kernels.problem import Problem, check
from vkep.kernels.tuning import Choice, chosen


@dataclass
class BaseTarget:
    """Common base of targets."""

    caps: DeviceCapabilities
    label: str = ""  #: the nodes of the operation that is being emitted
    choices: Mapping[str, Choice] = field(default_factory=dict)  #: the tuned choices

    def tuned(self, candidates: Callable[[], Iterable[Choice]], *problem: object) -> Choice | None:
        """As `vkep.kernels.select.Target.tuned`."""
        return chosen(self.choices, self.label, candidates, *problem)

    def fault(self, reason: str) -> tuple[Tensor | None, int]:
        """No fault word."""
        return None, 0

    def scratch(self, dtype: str, shape: tuple[int, ...]) -> Tensor:
        """A tensor with its own storage."""
        return Tensor.contiguous(DTYPES[dtype], shape, label="scratch")

    def counters(self, count: int) -> Tensor:
        """A tensor with its own storage."""
        return self.scratch("uint32", (count,))

    def prepack(self, weight: Tensor, transform: Callable[[np.ndarray], np.ndarray], tag: str) -> Tensor | None:
        """None: weights are not packed."""
        return None

    def has_packed(self, weight: Tensor, tag: str) -> bool:
        """False: weights are not packed."""
        return False

    def constant(self, array: np.ndarray) -> Tensor:
        """A constant tensor with the array's content."""
        weight = ArrayWeight("constant", np.ascontiguousarray(array))
        dtype = from_onnx(weight.elem_type)
        assert dtype is not None
        return Tensor.contiguous(dtype, array.shape, Storage(array.nbytes, weight=weight))


@dataclass(eq=False, slots=True)
class Pointwise:
    """``out[i] = expr(leaves at i)``: every leaf is a view broadcast to the output's shape."""

    out: Tensor
    expr: Expr
    labels: list[str] = field(default_factory=list)
    #: True where nothing reads ``out``: it is computed wherever one of its nodes runs, for the faults that it reports
    is_check: bool = False

    @property
    def inputs(self) -> list[Tensor]:
        """The tensors that the expression reads."""
        return tensors(self.expr)

    @property
    def outputs(self) -> list[Tensor]:
        """The one tensor that it writes."""
        return [self.out]


@dataclass(eq=False, slots=True)
class KernelOp:
    """A problem and its operands, in the order of `Problem.needs` and `Problem.makes`.

    Raises `InvalidNode` where the operands do not match the problem.
    """

    problem: Problem
    inputs: list[Tensor]
    outputs: list[Tensor]
    labels: list[str] = field(default_factory=list)
    node: str = ""  #: the nodes that it computes, for errors
    #: an expression over the results (the leaves that view ``epilogue_of``, in the kernel's order) and other tensors
    epilogue: Expr | None = None
    epilogue_of: tuple[Tensor, ...] = ()

    def __post_init__(self) -> None:
        check(self.problem, self.inputs, self.outputs)

    @property
    def all_inputs(self) -> list[Tensor]:
        """The inputs, and the tensors that the epilogue reads."""
        if self.epilogue is None:
            return self.inputs
        results = [t.storage for t in self.epilogue_of]
        return self.inputs + [t for t in tensors(self.epilogue) if t.storage not in results]


Op = Pointwise | KernelOp


def may_fail(op: Op) -> bool:
    """Whether its kernels check data of a run, which then may have a fault."""
    if isinstance(op, Pointwise):
        return is_checked(op.expr)
    return bool(op.problem.fault) or (op.epilogue is not None and is_checked(op.epilogue))


def reads(op: Op) -> list[Tensor]:
    """The tensors that an operation reads."""
    return op.all_inputs if isinstance(op, KernelOp) else op.inputs


def is_elementwise(op: Op, read: Tensor) -> bool:
    """Whether an operation reads an element of a view only where it writes to the same place of its result."""
    if not isinstance(op, Pointwise):
        return False
    out = op.out
    return (read.shape, read.strides, read.offset, read.dtype) == (out.shape, out.strides, out.offset, out.dtype)
