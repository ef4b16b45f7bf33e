"""Arguments that appear together in the schemas of several ATen operators, as records.

A parameter annotated with a record receives all of its arguments: `vkep.aten` and ExecuTorch's portable kernels
(`vkep.executorch.portable`) declare an operator by a function whose parameters are its schema's arguments.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, dataclass, fields
from itertools import islice
from typing import Any, ClassVar


class Arguments:
    """Base of the records: frozen dataclasses whose fields are the arguments in the schemas' order."""

    prefixed: ClassVar[bool] = False  #: the arguments' names start with the name of the parameter


@dataclass(frozen=True)
class TensorOptions(Arguments):
    """How an operator that creates a tensor stores it. The serialized record of its result has the same information."""

    dtype: object = None
    layout: object = None
    device: object = None
    pin_memory: object = None


@dataclass(frozen=True)
class Convolution(Arguments):
    """Lists have a number for each spatial axis, or one for all."""

    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    transposed: bool
    output_padding: Sequence[int]
    groups: int


@dataclass(frozen=True)
class MaxPool(Arguments):
    """Lists have a number for each spatial axis, or one for all; no stride means the kernel's size."""

    kernel_size: Sequence[int]
    stride: Sequence[int] = ()
    padding: Sequence[int] = (0,)
    dilation: Sequence[int] = (1,)
    ceil_mode: bool = False


@dataclass(frozen=True)
class AveragePool(Arguments):
    """As `MaxPool`; ``divisor_override`` replaces the number of elements that an average divides by."""

    kernel_size: Sequence[int]
    stride: Sequence[int] = ()
    padding: Sequence[int] = (0,)
    ceil_mode: bool = False
    count_include_pad: bool = True
    divisor_override: int | None = None


@dataclass(frozen=True)
class Codes(Arguments):
    """The range and type of quantized values, and the type that dequantizing returns. No result of dequantizing depends
    on them."""

    quant_min: int
    quant_max: int
    dtype: object = None
    out_dtype: object = None


@dataclass(frozen=True)
class Parameters:
    """The parameters of a declared function, with each record replaced by its arguments."""

    flat: tuple[inspect.Parameter, ...]
    _kinds: tuple[
        tuple[Callable[..., Any] | None, int], ...
    ]  #: for each parameter: its record, and its number of arguments

    @property
    def is_flat(self) -> bool:
        """Whether no parameter is a record."""
        return all(kind is None for kind, _ in self._kinds)

    @classmethod
    def of(cls, function: Callable[..., Any], skip: int = 0) -> Parameters:
        """The parameters of a function, but for the first ``skip``."""
        flat: list[inspect.Parameter] = []
        kinds: list[tuple[Callable[..., Any] | None, int]] = []
        for parameter in list(inspect.signature(function).parameters.values())[skip:]:
            kind = getattr(function, "__globals__", {}).get(str(parameter.annotation))
            if not (isinstance(kind, type) and issubclass(kind, Arguments)):
                flat.append(parameter)
                kinds.append((None, 1))
                continue
            own = fields(kind)  # type: ignore[arg-type]  # every record is a dataclass
            for f in own:
                name = f"{parameter.name}_{f.name}" if kind.prefixed else f.name
                default = inspect.Parameter.empty if f.default is MISSING else f.default
                flat.append(parameter.replace(name=name, annotation=f.type, default=default))
            kinds.append((kind, len(own)))
        return cls(tuple(flat), tuple(kinds))

    def grouped(self, values: Iterable[Any]) -> list[Any]:
        """The function's arguments, from a schema's."""
        rest, made = iter(values), []
        for kind, count in self._kinds:
            part = list(islice(rest, count))
            made += part if kind is None else [kind(*part)]
        return made
