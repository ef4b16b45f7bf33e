"""What lowering emits: a list of operations over tensors, before kernels and places are chosen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np

from gpu_shared.capabilities import DeviceCapabilities
from vkep.dtypes import DTYPES, from_onnx
from vkep.graph.weights import ArrayWeight
from vkep.ir.expr import Expr, tensors
from vkep.ir.tensor import Storage, Tensor
from vkep.kernels.epilogue import Epilogue
from vkep.kernels.kernel import KernelCall
from vkep.kernels.launch import Workspace


class Target(Workspace, Protocol):
    """What a kernel selection may ask for while it emits: scratch tensors, constants, packed weights."""

    @property
    def caps(self) -> DeviceCapabilities: ...

    def prepack(self, weight: Tensor, transform: Callable[[np.ndarray], np.ndarray], tag: str) -> Tensor | None:
        """A weight transformed once on the host; None when ``weight`` is not a constant.

        ``transform`` gets the elements from the tensor's address on, in memory order.
        """


@dataclass
class BaseTarget:
    """What every `Target` hands out alike."""

    caps: DeviceCapabilities

    def scratch(self, dtype: str, shape: tuple[int, ...]) -> Tensor:
        return Tensor.contiguous(DTYPES[dtype], shape, label="scratch")

    def constant(self, array: np.ndarray) -> Tensor:
        weight = ArrayWeight("constant", np.ascontiguousarray(array))
        dtype = from_onnx(weight.elem_type)
        assert dtype is not None
        return Tensor.contiguous(dtype, array.shape, Storage(array.nbytes, weight=weight))


#: (target, inputs, outputs, epilogue) to dispatches
Emit = Callable[[Target, Sequence[Tensor], Sequence[Tensor], Epilogue | None], list[KernelCall]]
#: what a kernel operation is, where passes ask: inputs [..., m, k] by [..., k, n], or a softmax along the last axis
Role = Literal["", "product", "softmax"]


@dataclass(eq=False, slots=True)
class Pointwise:
    """``out[i] = expr(leaves at i)``: every leaf is a view broadcast to the output's shape."""

    out: Tensor
    expr: Expr
    labels: list[str] = field(default_factory=list)

    @property
    def inputs(self) -> list[Tensor]:
        return tensors(self.expr)

    @property
    def outputs(self) -> list[Tensor]:
        return [self.out]


@dataclass(eq=False, slots=True)
class KernelOp:
    """An operation with kernels of its own.

    ``row_axis`` is set where the kernels can pass their result through an epilogue: the output axis that is the
    epilogue's ``row``; the axes after it, flattened, are its ``col``.
    ``strided_output`` says that the output may be a view whose batch stride (axes before ``row_axis``) is not dense.
    ``aligned`` says that its inputs are at multiples of 16 bytes, and must stay there.
    """

    inputs: list[Tensor]
    outputs: list[Tensor]
    emit: Emit
    row_axis: int | None = None
    strided_output: bool = False
    labels: list[str] = field(default_factory=list)
    epilogue: Expr | None = None  #: an expression over the result (the leaf that views ``epilogue_of``) and others
    epilogue_of: Tensor | None = None
    flops: int = 0
    role: Role = ""
    aligned: bool = False
    #: what the trial of a selection (`Builder.kernel`) gave, and the inputs and outputs that it was for
    tried: tuple[tuple[list[Tensor], list[Tensor]], list[KernelCall]] | None = None

    @property
    def all_inputs(self) -> list[Tensor]:
        if self.epilogue is None:
            return self.inputs
        assert self.epilogue_of is not None
        return self.inputs + [t for t in tensors(self.epilogue) if t.storage is not self.epilogue_of.storage]


Op = Pointwise | KernelOp


def reads(op: Op) -> list[Tensor]:
    return op.all_inputs if isinstance(op, KernelOp) else op.inputs
