"""Operators on numbers: sizes, the arithmetic of symbolic ones, conditions."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from vkep.executorch.portable.registry import Array, Number, kernel, kernels

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


kernels({f"{_P}{name}.Scalar": _two(function) for name, function in _TWO.items()})
kernels({f"{_P}{name}.int": _two(_TWO[name]) for name in ("mod", "floordiv")})
kernels({f"{_P}{name}.Scalar": _one(function) for name, function in _ONE.items()})
_EXPRESSIONS: dict[str, Callable[..., Any]] = {
    f"{_P}sym_ite.Scalar": lambda condition, first, second: first if condition else second,
    "sym_size.int": lambda x, dim: x.shape[dim],
    "sym_stride.int": lambda x, dim: x.strides[dim] // x.itemsize,
    "sym_numel": lambda x: x.size,
    "_local_scalar_dense": lambda x: x.reshape(-1)[0].item(),
}
kernels(_EXPRESSIONS)


@kernel("sym_constrain_range", "sym_constrain_range_for_size")
def constrain(size: Number, least: int | None, most: int | None) -> None:
    """Check a bound that was asserted at export. Raises ``ValueError``."""
    if (least is not None and size < least) or (most is not None and size > most):
        raise ValueError(f"{size} is not from {least} to {most}, as the model asserts")


@kernel(f"{_P}et_view.default", f"{_P}et_view")
def et_view(self: Array, size: Any) -> Array:
    """The same elements with another shape; the runtime gives the output its input's memory."""
    return self.reshape(tuple(size))


@kernel(f"{_P}et_copy_index.tensor")
def et_copy_index(to: Array, element: Array, index: int) -> Array:
    """The rows that a loop has stacked so far, with one more at ``index``."""
    return np.concatenate([to[:index], element[None]]) if index else element[None].copy()
