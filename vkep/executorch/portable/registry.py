"""The table of portable kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import ml_dtypes
import numpy as np

from vkep.aten.arguments import Parameters

Array = np.ndarray[Any, Any]
Number = int | float | bool
Function = TypeVar("Function", bound=Callable[..., Any])
#: elements that need no exact count
_FEW = 1 << 16
_NARROW = {np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)}


@dataclass(frozen=True)
class PortableKernel:
    """``function`` takes the operator's arguments without outputs, arrays for tensors, and returns an array, several, or
    a number. It must not write to its arguments. ``elements`` takes the same, and returns at least the number of elements of the
    largest array that the function creates.
    """

    name: str
    function: Callable[..., Any]
    arguments: int
    elements: Callable[..., int]


KERNELS: dict[str, PortableKernel] = {}


def broadcast(*arguments: Any) -> int:
    """The elements of the shape that all arrays among the arguments broadcast to, or their sum where they do not."""
    arrays = list(_arrays(arguments))
    most = math.prod([a.size for a in arrays])
    if most <= _FEW or len(arrays) == 1:
        return most
    try:
        return math.prod(np.broadcast_shapes(*[a.shape for a in arrays]))
    except ValueError:
        return sum(a.size for a in arrays)


def _arrays(arguments: Sequence[Any]) -> Iterator[Array]:
    for argument in arguments:
        if isinstance(argument, np.ndarray):
            yield argument
        elif isinstance(argument, list):
            yield from _arrays(argument)


def kernel(*names: str, elements: Callable[..., int] = broadcast) -> Callable[[Function], Function]:
    """Declare a function as the kernel of operators (``aten::`` is put before names without a namespace).

    Its parameters are the operator's arguments without outputs; a record of `vkep.aten.arguments` stands for several.
    ``elements``: see `PortableKernel`.
    """

    def declare(function: Function) -> Function:
        parameters = Parameters.of(function)
        call: Callable[..., Any] = function
        count = elements
        if not parameters.is_flat:
            call = lambda *flat: function(*parameters.grouped(flat))  # noqa: E731
            if elements is not broadcast:
                count = lambda *flat: elements(*parameters.grouped(flat))  # noqa: E731
        for short in names:
            name = short if "::" in short else f"aten::{short}"
            if name in KERNELS:
                raise ValueError(f"{name} is declared twice")
            KERNELS[name] = PortableKernel(name, call, len(parameters.flat), count)
        return function

    return declare


def kernels(table: Mapping[str, Callable[..., Any]], elements: Callable[..., int] = broadcast) -> None:
    """Declare kernels that are one expression each, under names separated by spaces (see `kernel`)."""
    for names, function in table.items():
        kernel(*names.split(), elements=elements)(function)


def wide(array: Array) -> Array:
    """float16 and bfloat16 as float32, for computing."""
    return array.astype(np.float32) if array.dtype in _NARROW else array


def axes_of(dim: Sequence[int] | int | None, rank: int) -> tuple[int, ...]:
    """Normalized dimensions; an empty list means all."""
    if dim is None or (not isinstance(dim, int) and len(dim) == 0):
        return tuple(range(rank))
    dims = (dim,) if isinstance(dim, int) else tuple(dim)
    return tuple(d % rank if rank else 0 for d in dims) if rank else ()


def pair(values: Sequence[int], count: int = 2) -> tuple[int, ...]:
    """One number for each spatial dimension; a single one is repeated."""
    values = tuple(values)
    return values * count if len(values) == 1 else values
