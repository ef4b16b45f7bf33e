"""The table of portable kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import ml_dtypes
import numpy as np

from vkep.aten.arguments import Parameters

Array = np.ndarray[Any, Any]
Number = int | float | bool
Function = TypeVar("Function", bound=Callable[..., Any])
_NARROW = {np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)}


@dataclass(frozen=True)
class PortableKernel:
    """``function`` takes the operator's arguments without outputs, arrays for tensors, and returns an array, several, or
    a number. It must not write to its arguments.
    """

    name: str
    function: Callable[..., Any]
    arguments: int


KERNELS: dict[str, PortableKernel] = {}


def kernel(*names: str) -> Callable[[Function], Function]:
    """Declare a function as the kernel of operators (``aten::`` is put before names without a namespace).

    Its parameters are the operator's arguments without outputs; a record of `vkep.aten.arguments` stands for several.
    """

    def declare(function: Function) -> Function:
        parameters = Parameters.of(function)
        call = function if parameters.is_flat else lambda *flat: function(*parameters.grouped(flat))
        for short in names:
            name = short if "::" in short else f"aten::{short}"
            if name in KERNELS:
                raise ValueError(f"{name} is declared twice")
            KERNELS[name] = PortableKernel(name, call, len(parameters.flat))
        return function

    return declare


def kernels(table: Mapping[str, Callable[..., Any]]) -> None:
    """Declare kernels that are one expression each, under names separated by spaces (see `kernel`)."""
    for names, function in table.items():
        kernel(*names.split())(function)


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
