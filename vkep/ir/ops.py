"""What lowering emits: a list of operations over tensors, before kernels and places are chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from gpu_shared.capabilities import DeviceCapabilities
from vkep.dtypes import DTYPES, from_onnx
from vkep.graph.weights import ArrayWeight
from vkep.ir.expr import Expr, tensors
from vkep.ir.tensor import Storage, Tensor
from vkep.kernels.problem import Problem, check
from vkep.kernels.tuning import Choice, chosen


@dataclass
class BaseTarget:
    """What every `Target` hands out alike."""

    caps: DeviceCapabilities
    label: str = ""  #: the nodes of the operation that is emitted
    choices: Mapping[str, Choice] = field(default_factory=dict)  #: what was tuned

    def tuned(self, candidates: Callable[[], Iterable[Choice]], *problem: object) -> Choice | None:
        """As `vkep.kernels.select.Target.tuned`."""
        return chosen(self.choices, self.label, candidates, *problem)

    def fault(self, reason: str) -> tuple[Tensor | None, int]:
        """No fault word."""
        return None, 0

    def scratch(self, dtype: str, shape: tuple[int, ...]) -> Tensor:
        """A tensor of a storage of its own."""
        return Tensor.contiguous(DTYPES[dtype], shape, label="scratch")

    def prepack(self, weight: Tensor, transform: Callable[[np.ndarray], np.ndarray], tag: str) -> Tensor | None:
        """None: weights stay as they are."""
        return None

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
    is_check: bool = False  #: nobody reads ``out``: it is computed where any of its nodes is, for the faults it notes

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

    Raises `InvalidNode` where the operands are not what the problem needs.
    """

    problem: Problem
    inputs: list[Tensor]
    outputs: list[Tensor]
    labels: list[str] = field(default_factory=list)
    node: str = ""  #: what it computes, for errors
    epilogue: Expr | None = None  #: an expression over the result (the leaf that views ``epilogue_of``) and others
    epilogue_of: Tensor | None = None

    def __post_init__(self) -> None:
        check(self.problem, self.inputs, self.outputs)

    @property
    def row_axis(self) -> int | None:
        """The axis of the output along which an epilogue may read a vector, as its problem says."""
        return self.problem.row_axis

    @property
    def all_inputs(self) -> list[Tensor]:
        """The inputs, and what the epilogue reads."""
        if self.epilogue is None:
            return self.inputs
        assert self.epilogue_of is not None
        return self.inputs + [t for t in tensors(self.epilogue) if t.storage is not self.epilogue_of.storage]


Op = Pointwise | KernelOp


def reads(op: Op) -> list[Tensor]:
    """The tensors that an operation reads."""
    return op.all_inputs if isinstance(op, KernelOp) else op.inputs
