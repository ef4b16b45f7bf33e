"""Values at which functions and drivers differ, and what each elementwise operator gives there: numpy in float64, rounded."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from ml_dtypes import bfloat16, finfo

Array = np.ndarray[Any, Any]
FLOATS: dict[str, Any] = {"float32": np.float32, "float16": np.float16, "bfloat16": bfloat16, "float64": np.float64}

#: zeros, units, integers of both parities, halves, large numbers, infinities, NaN (each with both signs)
_SIZES = [0.0, 1.0, 0.5, 1.5, 2.0, 2.5, 3.0, 7.0, 60.0, 88.0, 1e-7, 1e-3, 300.0, math.inf]


def special(dtype: Any) -> Array:
    """The values in a type, with its smallest normal number, a subnormal one and a large one."""
    info: Any = finfo(dtype)
    sizes = [*_SIZES, float(info.smallest_normal), float(info.smallest_normal) / 4, float(info.max) * 0.45]
    return np.array([*sizes, *(-s for s in sizes), math.nan], np.float64).astype(dtype)


@dataclass(frozen=True)
class Case:
    """An operator of ``inputs`` floats: its exact function, and how much of the result's size may be wrong in float32 (and the
    narrower types, beyond their rounding) and float64. ``absolute``: the same for results near 0."""

    exact: Callable[..., Any]
    inputs: int = 1
    error: float = 1e-6
    double_error: float = 1e-14
    absolute: float = 0.0
    attributes: dict[str, Any] = field(default_factory=dict)


def _erf(x: Array) -> Array:
    return np.vectorize(math.erf, otypes=[np.float64])(x)


def _wide(number: float) -> np.float64:
    """An attribute, which is a float32."""
    return np.float64(np.float32(number))


#: exponentials may have an error of 3 + 2 abs(x) ULP (Vulkan spec, "Precision and Operation of SPIR-V Instructions")
_EXPONENTIAL = 3e-5
_GAMMA, _ALPHA = _wide(1.05070102214813232421875), _wide(1.67326319217681884765625)

UNARY: dict[str, Case] = {
    "Abs": Case(np.abs),
    "Acos": Case(np.arccos),
    "Acosh": Case(np.arccosh),
    "Asin": Case(np.arcsin),
    "Asinh": Case(np.arcsinh),
    "Atan": Case(np.arctan),
    "Atanh": Case(np.arctanh),
    "Ceil": Case(np.ceil),
    "Celu": Case(lambda x: np.where(x < 0, np.expm1(x), x), error=_EXPONENTIAL),
    "Clip": Case(lambda x: x),
    "Cos": Case(np.cos),
    "Cosh": Case(np.cosh, error=_EXPONENTIAL),
    "Elu": Case(lambda x: np.where(x < 0, np.expm1(x), x), error=_EXPONENTIAL, absolute=1e-16),
    "Erf": Case(_erf),
    "Exp": Case(np.exp, error=_EXPONENTIAL),
    "Floor": Case(np.floor),
    "Gelu": Case(lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2))), absolute=1e-11, double_error=1e-12),
    "HardSigmoid": Case(lambda x: np.clip(_wide(0.2) * x + 0.5, 0, 1)),
    "HardSwish": Case(lambda x: x * np.clip(x / 6 + 0.5, 0, 1)),
    "Identity": Case(lambda x: x),
    "IsInf": Case(np.isinf),
    "IsNaN": Case(np.isnan),
    "LeakyRelu": Case(lambda x: np.where(x < 0, _wide(0.01) * x, x)),
    "Log": Case(np.log),
    "Mish": Case(lambda x: x * np.tanh(np.logaddexp(0, x)), error=_EXPONENTIAL, absolute=1e-36),
    "Neg": Case(np.negative),
    "Reciprocal": Case(lambda x: 1 / x),
    "Relu": Case(lambda x: np.where(np.isnan(x) | (x > 0), x, 0)),
    "Round": Case(np.round),
    "Selu": Case(lambda x: _GAMMA * np.where(x > 0, x, _ALPHA * np.expm1(x)), error=_EXPONENTIAL, absolute=1e-16),
    "Shrink": Case(lambda x: np.where(np.abs(x) > 0.5, x, 0)),
    "Sigmoid": Case(lambda x: 1 / (1 + np.exp(-x)), error=_EXPONENTIAL),
    "Sign": Case(lambda x: np.where(x == 0, x, np.sign(x))),
    "Sin": Case(np.sin),
    "Sinh": Case(np.sinh, error=_EXPONENTIAL),
    "Softplus": Case(lambda x: np.logaddexp(0, x), error=_EXPONENTIAL),
    "Softsign": Case(lambda x: x / (1 + np.abs(x))),
    "Sqrt": Case(np.sqrt),
    "Swish": Case(lambda x: x / (1 + np.exp(-x)), error=_EXPONENTIAL),
    "Tan": Case(np.tan),
    "Tanh": Case(np.tanh),
    "ThresholdedRelu": Case(lambda x: np.where(x > 1, x, 0)),
}

BINARY: dict[str, Case] = {
    "Add": Case(np.add, 2),
    "Sub": Case(np.subtract, 2),
    "Mul": Case(np.multiply, 2),
    "Div": Case(np.divide, 2),
    "Pow": Case(np.power, 2, 2e-5, 1e-12),
    "Mod": Case(np.fmod, 2, attributes={"fmod": 1}),
    "Max": Case(np.maximum, 2),
    "Min": Case(np.minimum, 2),
    "Sum": Case(np.add, 2),
    "Mean": Case(lambda x, y: (x + y) / 2, 2),
    "PRelu": Case(lambda x, y: np.where(x < 0, x * y, x), 2),
    "Equal": Case(np.equal, 2),
    "Less": Case(np.less, 2),
    "LessOrEqual": Case(np.less_equal, 2),
    "Greater": Case(np.greater, 2),
    "GreaterOrEqual": Case(np.greater_equal, 2),
}
#: beyond this size, angles in double precision lose all digits (`vkep.ops.doubles`)
LARGEST_ANGLE = 1e6


def pairs(dtype: Any) -> tuple[Array, Array]:
    """All pairs of the special values."""
    values = special(dtype)
    return np.repeat(values, values.size), np.tile(values, values.size)


def differences(case: Case, inputs: list[Array], got: Array) -> list[str]:
    """Where a result differs from the exact one by more than the type's rounding and the case's error: texts.

    A result below the normal numbers may be 0, with its sign; one near the largest number may be that or infinity.
    """
    with np.errstate(all="ignore"):
        exact = np.asarray(case.exact(*(x.astype(np.float64) for x in inputs)))
        if exact.dtype == bool:
            right = got == exact
        else:
            wanted, found = exact.astype(got.dtype).astype(np.float64), got.astype(np.float64)
            info: Any = finfo(got.dtype)
            error = (case.double_error if got.dtype == np.float64 else case.error) + float(info.eps)
            large = float(info.max) * (1 - error)
            right = np.isclose(found, wanted, error, float(info.smallest_normal) + case.absolute, equal_nan=True)
            right |= (np.abs(found) >= large) & (np.abs(exact) >= large)
            signs = np.isnan(wanted) | (np.signbit(found) == np.signbit(wanted))
            right &= signs | ((found == 0) & (wanted != 0) & (np.abs(wanted) <= case.absolute))
            right &= np.isfinite(found) | ~np.isfinite(wanted) | (np.abs(exact) >= large)
    wrong = np.flatnonzero(~right)
    return [f"{tuple(float(x[k]) for x in inputs)}: got {got[k]}, expected {exact[k]}" for k in wrong]
