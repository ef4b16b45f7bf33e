"""Operators on numbers: sizes, the arithmetic of symbolic ones, conditions."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from vkep.executorch.portable.registry import Array, Number, kernel

_P = "executorch_prim::"
_TWO: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "floordiv": operator.floordiv,
    "truediv": operator.truediv, "mod": operator.mod, "eq": operator.eq, "gt": operator.gt, "lt": operator.lt,
    "ge": operator.ge, "le": operator.le, "ne": operator.ne, "sym_max": max, "sym_min": min,
}  # fmt: skip
_ONE: dict[str, Callable[[Any], Any]] = {
    "neg": operator.neg, "ceil": math.ceil, "round": round, "trunc": math.trunc, "sym_float": float, "sym_int": int,
    "sym_not": operator.not_,
}  # fmt: skip


def _two(function: Callable[[Any, Any], Any]) -> Callable[[Number, Number], Number]:
    return lambda a, b: function(a, b)


def _one(function: Callable[[Any], Any]) -> Callable[[Number], Number]:
    return lambda a: function(a)


for _name, _both in _TWO.items():
    kernel(f"{_P}{_name}.Scalar", *([f"{_P}{_name}.int"] if _name in ("mod", "floordiv") else []))(_two(_both))
for _name, _single in _ONE.items():
    kernel(f"{_P}{_name}.Scalar")(_one(_single))


@kernel(f"{_P}sym_ite.Scalar")
def ite(condition: Number, first: Number, second: Number) -> Number:
    return first if condition else second


@kernel("sym_size.int")
def sym_size(self: Array, dim: int) -> int:
    return self.shape[dim]


@kernel("sym_stride.int")
def sym_stride(self: Array, dim: int) -> int:
    return self.strides[dim] // self.itemsize


@kernel("sym_numel")
def sym_numel(self: Array) -> int:
    return self.size


@kernel("_local_scalar_dense")
def local_scalar(self: Array) -> Number:
    value: Number = self.reshape(-1)[0].item()
    return value


@kernel("sym_constrain_range", "sym_constrain_range_for_size")
def constrain(size: Number, least: int | None, most: int | None) -> None:
    """Checks a bound that was asserted at export. Raises ``ValueError``."""
    if (least is not None and size < least) or (most is not None and size > most):
        raise ValueError(f"{size} is not from {least} to {most}, as the model asserts")


@kernel(f"{_P}et_view.default", f"{_P}et_view")
def et_view(self: Array, size: Any) -> Array:
    """The same elements with another shape; the runtime gives the output its input's memory."""
    return self.reshape(tuple(size))


@kernel(f"{_P}et_copy_index.tensor")
def et_copy_index(to: Array, element: Array, index: int) -> Array:
    """What a loop has stacked so far, with one more element at ``index``."""
    return np.concatenate([to[:index], element[None]]) if index else element[None].copy()
