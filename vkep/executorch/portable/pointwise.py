"""Pointwise operators."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from vkep.executorch.portable.registry import Array, Number, kernel, kernels, wide

erf = np.vectorize(math.erf, otypes=[np.float64])


def _sigmoid(x: Array) -> Array:
    return 0.5 * (1 + np.tanh(0.5 * x))


def _float(x: Array) -> Array:
    """The operand of a function of real numbers: integers become float32, as in torch."""
    return wide(x) if x.dtype.kind not in "iub" else x.astype(np.float32)


_REAL: dict[str, Callable[[Array], Array]] = {
    "acos": np.arccos, "acosh": np.arccosh, "asin": np.arcsin, "asinh": np.arcsinh, "atan": np.arctan,
    "atanh": np.arctanh, "cos": np.cos, "cosh": np.cosh, "erf": erf, "exp": np.exp, "expm1": np.expm1, "log": np.log,
    "exp2": np.exp2, "log10": np.log10, "log1p": np.log1p, "log2": np.log2, "reciprocal": np.reciprocal,
    "rsqrt": lambda x: 1 / np.sqrt(x), "sigmoid": _sigmoid, "sin": np.sin, "sinh": np.sinh, "sqrt": np.sqrt,
    "tan": np.tan, "tanh": np.tanh,
    "silu": lambda x: x * _sigmoid(x),
    "hardsigmoid": lambda x: np.clip(x + 3, 0, 6) / 6,
    "hardswish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "mish": lambda x: x * np.tanh(np.logaddexp(0, x)),
}  # fmt: skip
_ANY: dict[str, Callable[[Array], Array]] = {
    "abs": np.abs, "neg": np.negative, "sign": lambda x: np.where(np.isnan(x), 0, np.sign(x)),
    "relu": lambda x: np.maximum(x, x.dtype.type(0)),
    "relu6": lambda x: np.clip(x, 0, 6), "isinf": np.isinf, "isnan": np.isnan, "logical_not": np.logical_not,
    "bitwise_not": np.invert, "ceil": np.ceil, "floor": np.floor, "round": np.rint, "trunc": np.trunc,
}  # fmt: skip


def _unary(function: Callable[[Array], Array], convert: Callable[[Array], Array]) -> Callable[[Array], Array]:
    return lambda x: function(convert(x))


kernels({f"{name}.out": _unary(function, _float) for name, function in _REAL.items()})
kernels({f"{name}.out": _unary(function, wide) for name, function in _ANY.items()})

_BINARY: dict[str, Callable[[Array, Array | Number], Array]] = {
    "mul": np.multiply, "fmod": np.fmod, "remainder": np.remainder, "eq": np.equal, "ne": np.not_equal,
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or, "bitwise_xor": np.bitwise_xor, "bitwise_left_shift": np.left_shift,
    "bitwise_right_shift": np.right_shift,
}  # fmt: skip
_TENSORS: dict[str, Callable[[Array, Array], Array]] = {
    "maximum": np.maximum, "minimum": np.minimum, "atan2": np.arctan2, "logical_and": np.logical_and,
    "logical_or": np.logical_or, "logical_xor": np.logical_xor, "floor_divide": np.floor_divide,
}  # fmt: skip


def _number(x: Array | Number, other: Array | Number) -> Array | Number:
    """A number that the array's integer type cannot hold converts the array to the wider type."""
    if isinstance(x, np.ndarray):
        return wide(x)
    if isinstance(other, np.ndarray) and other.dtype.kind in "iu" and isinstance(x, int):
        info = np.iinfo(other.dtype)
        return x if info.min <= x <= info.max else np.asarray(x)
    return x


def _binary(function: Callable[..., Array]) -> Callable[[Array | Number, Array | Number], Array]:
    return lambda x, other: function(_number(x, other), _number(other, x))


for _name, _function in _BINARY.items():
    _overloads = ["Tensor_out", "Scalar_out", "Tensor_Scalar_out", "Scalar_Tensor_out"]
    kernel(*(f"{_name}.{o}" for o in (_overloads if _name != "mul" else ["out", "Scalar_out"])))(_binary(_function))
kernels({f"{name}.out": _binary(function) for name, function in _TENSORS.items()})


def _scaled(x: Array | Number, like: Array | Number, alpha: Number) -> Array | Number:
    number = _number(x, like)
    return number if alpha == 1 else np.multiply(number, alpha)


_EXPRESSIONS: dict[str, Callable[..., Any]] = {
    "add.out add.Scalar_out": lambda x, other, alpha: np.add(_number(x, other), _scaled(other, x, alpha)),
    "sub.out sub.Scalar_out": lambda x, other, alpha: np.subtract(_number(x, other), _scaled(other, x, alpha)),
    "rsub.Scalar_out rsub.Tensor_out": lambda x, other, alpha: np.subtract(_number(other, x), _scaled(x, other, alpha)),
    "div.out div.Scalar_out": _binary(np.true_divide),
    "where.self_out": lambda condition, x, other: np.where(condition != 0, x, other),
    "hardtanh.out": lambda x, least, most: np.clip(wide(x), least, most),
    "round.decimals_out": lambda x, decimals: np.round(wide(x), decimals),
    "masked_fill.Scalar_out masked_fill.Tensor_out": lambda x, mask, value: np.where(
        mask, np.asarray(value).astype(x.dtype), x
    ),
}
kernels(_EXPRESSIONS)


@kernel("div.out_mode", "div.Scalar_mode_out")
def div_mode(self: Array, other: Array | Number, rounding_mode: str | None) -> Array:
    left, right = _number(self, other), _number(other, self)
    if rounding_mode == "floor":
        return np.floor_divide(left, right)
    quotient = np.true_divide(left, right)
    return np.trunc(quotient) if rounding_mode == "trunc" else quotient


@kernel("pow.Tensor_Tensor_out", "pow.Tensor_Scalar_out", "pow.Scalar_out")
def power(self: Array | Number, exponent: Array | Number) -> Array:
    if isinstance(exponent, float) and exponent == 0.5:
        return np.sqrt(_number(self, exponent))
    return np.power(_number(self, exponent), _number(exponent, self))


@kernel("clamp.out", "clamp.Tensor_out")
def clamp(self: Array, least: Array | Number | None, most: Array | Number | None) -> Array:
    result = wide(self)
    if least is not None and np.size(least):
        result = np.maximum(result, _number(least, result))
    if most is not None and np.size(most):
        result = np.minimum(result, _number(most, result))
    return result


@kernel("leaky_relu.out")
def leaky_relu(self: Array, negative_slope: Number) -> Array:
    x = wide(self)
    return np.where(x > 0, x, x * negative_slope)


@kernel("elu.out")
def elu(self: Array, alpha: Number, scale: Number, input_scale: Number) -> Array:
    x = wide(self)
    return np.where(x > 0, x * scale, alpha * scale * np.expm1(np.minimum(x, 0) * input_scale))


@kernel("gelu.out")
def gelu(self: Array, approximate: str) -> Array:
    x = wide(self)
    if approximate == "tanh":
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
    return 0.5 * x * (1 + erf(x / math.sqrt(2)))


@kernel("glu.out")
def glu(self: Array, dim: int) -> Array:
    first, second = np.split(wide(self), 2, axis=dim)
    return first * _sigmoid(second)


@kernel("logit.out")
def logit(self: Array, eps: float | None) -> Array:
    x = _float(self)
    if eps is not None:
        x = np.clip(x, eps, 1 - eps)
    return np.log(x / (1 - x))


@kernel("softplus.out")
def softplus(self: Array, beta: Number, threshold: Number) -> Array:
    x = wide(self)
    return np.where(x * beta > threshold, x, np.logaddexp(0, x * beta) / beta)
