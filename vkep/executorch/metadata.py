"""The inputs and outputs of a method, under the names of ``executorch.runtime``."""

from __future__ import annotations

from dataclasses import dataclass

from vkep.errors import InvalidInputError
from vkep.pte.method import DecodedMethod
from vkep.pte.schema import SCALAR_TYPES, ScalarType
from vkep.pte.values import TensorValue


@dataclass(frozen=True)
class TensorInfo:
    """A tensor at a method's edge. ``sizes`` are upper bounds where it is dynamic."""

    _spec: TensorValue

    def sizes(self) -> tuple[int, ...]:
        """The sizes; upper bounds where the tensor is dynamic."""
        return self._spec.sizes

    def dtype(self) -> ScalarType:
        """torch's number of the element type; ``numpy_dtype`` is numpy's."""
        return SCALAR_TYPES[self._spec.dtype]

    @property
    def numpy_dtype(self) -> str:
        """Name of the numpy element type."""
        return str(self._spec.dtype)

    def is_memory_planned(self) -> bool:
        """Whether the program's memory plan contains it."""
        return self._spec.is_planned

    @property
    def is_dynamic(self) -> bool:
        """Whether a run may have smaller sizes."""
        return not self._spec.is_static

    def nbytes(self) -> int:
        """Bytes at its largest shape."""
        return self._spec.nbytes

    def __str__(self) -> str:
        return str(self._spec)


class MethodMeta:
    """Inputs and outputs of a method, without loading it."""

    def __init__(self, decoded: DecodedMethod) -> None:
        self._decoded = decoded

    def name(self) -> str:
        """The method's name."""
        return self._decoded.name

    def num_inputs(self) -> int:
        """Number of inputs."""
        return len(self._decoded.inputs)

    def num_outputs(self) -> int:
        """Number of outputs."""
        return len(self._decoded.outputs)

    def input_tensor_meta(self, index: int) -> TensorInfo:
        """The tensor input ``index``. Raises `InvalidInputError` where there is no such input or it is not a tensor."""
        return self._tensor(self._decoded.inputs, index, "input")

    def output_tensor_meta(self, index: int) -> TensorInfo:
        """The tensor output ``index``. Raises `InvalidInputError` where there is no such output or it is not a
        tensor."""
        return self._tensor(self._decoded.outputs, index, "output")

    def uses_backend(self, name: str) -> bool:
        """Whether a delegate of the method is for this backend."""
        return any(delegate.backend == name for delegate in self._decoded.delegates)

    def _tensor(self, indices: tuple[int, ...], index: int, what: str) -> TensorInfo:
        if not 0 <= index < len(indices):
            raise InvalidInputError(f"{self._decoded.where} has {len(indices)} {what}s; got number {index}")
        value = self._decoded.values[indices[index]]
        if not isinstance(value, TensorValue):
            raise InvalidInputError(f"{self._decoded.where}: {what} {index} is a {type(value).__name__}, no tensor")
        return TensorInfo(value)

    def describe(self, outputs: bool = False) -> list[str]:
        """A text for each input (or output): its type, or its kind where it is not a tensor."""
        indices = self._decoded.outputs if outputs else self._decoded.inputs
        values = [self._decoded.values[i] for i in indices]
        return [str(v) if isinstance(v, TensorValue) else type(v).__name__ for v in values]

    def __repr__(self) -> str:
        return f"MethodMeta({self.name()!r}, inputs={self.describe()}, outputs={self.describe(outputs=True)})"
