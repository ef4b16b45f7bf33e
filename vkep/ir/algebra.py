"""Functions of pointwise expressions, beside Python's operators (`vkep.ir.expr.Expr`): operator functions are written in them.

Numbers may stand for arguments. They have the type of the expressions beside them, and are literals in the kernel's code. For a
number that differs between models (an attribute), an argument of the kernel is better, as `Builder.reads` and
`Builder.pointwise` make them. All raise `ExpressionError` for types that they do not take.
"""

from __future__ import annotations

from collections.abc import Callable

from vkep.dtypes import DType
from vkep.ir import pointwise_ops
from vkep.ir.expr import Expr, Operand, apply


def where(condition: Expr, x: Operand, y: Operand) -> Expr:
    """``x`` where the condition holds, elsewhere ``y``."""
    return apply("where", condition, x, y)


def equal(x: Operand, y: Operand) -> Expr:
    """Whether the values are equal."""
    return apply("eq", x, y)


def not_equal(x: Operand, y: Operand) -> Expr:
    """Whether the values differ; true for NaN."""
    return apply("ne", x, y)


def cast(x: Expr, ctype: str) -> Expr:
    """The value in another GLSL type: floats are truncated towards 0, integers wrap. The value itself where it has the type."""
    return x if x.ctype == ctype else apply("cast", x, ctype=ctype)


def minimum(x: Operand, y: Operand) -> Expr:
    """GLSL's min, which may return a number for NaN."""
    return apply("min", x, y)


def maximum(x: Operand, y: Operand) -> Expr:
    """GLSL's max, which may return a number for NaN."""
    return apply("max", x, y)


def clamp(x: Operand, low: Operand, high: Operand) -> Expr:
    """GLSL's clamp, which may return a number for NaN."""
    return apply("clamp", x, low, high)


def limited(x: Operand, low: Operand, high: Operand) -> Expr:
    """A clamp of floats that keeps NaN."""
    return apply("limited", x, low, high)


def power(x: Operand, y: Operand) -> Expr:
    """``x ** y`` of floats, with C's rules for special values."""
    return apply("pow", x, y)


def exact_divide(x: Operand, y: Operand) -> Expr:
    """A correctly rounded quotient of floats (`vkep.ir.builder.Builder.divide`)."""
    return apply("exact_div", x, y)


def with_sign(size: Operand, sign: Operand) -> Expr:
    """A float's size with the sign of another, which may be -0."""
    return apply("with_sign", size, sign)


def stored_as(x: Expr, dtype: DType) -> Expr:
    """The value as storing it as ``dtype`` and reading it again would round or wrap it."""
    return apply(pointwise_ops.storing_op(dtype), x)


def swish(x: Expr, slope: Operand | None = None) -> Expr:
    """``x * sigmoid(slope * x)``; without a slope the SiLU."""
    return x / (1.0 + exp(-x if slope is None else -slope * x))


def _named(op: str) -> Callable[[Expr], Expr]:
    def function(x: Expr) -> Expr:
        return apply(op, x)

    function.__name__, function.__doc__ = op, f"The operation {op!r}."
    return function


floor, ceil, trunc, round_even = map(_named, ("floor", "ceil", "trunc", "round"))
sqrt, inversesqrt, exp, expm1, log, log1p = map(_named, ("sqrt", "inversesqrt", "exp", "expm1", "log", "log1p"))
sin, cos, tan, asin, acos, atan = map(_named, ("sin", "cos", "tan", "asin", "acos", "atan"))
sinh, cosh, tanh, asinh, acosh, atanh = map(_named, ("sinh", "cosh", "tanh", "asinh", "acosh", "atanh"))
sigmoid, softplus, erf, gelu, gelu_tanh = map(_named, ("sigmoid", "softplus", "erf", "gelu", "gelu_tanh"))
relu, sign = map(_named, ("relu", "sign"))
isnan, isinf = map(_named, ("isnan", "isinf"))
float_bits, half_bits, bfloat16_bits, double_bits = map(
    _named, ("float_bits", "half_bits", "bfloat16_bits", "double_bits")
)
from_float_bits, from_half_bits, from_bfloat16_bits, from_double_bits = map(
    _named, ("from_float_bits", "from_half_bits", "from_bfloat16_bits", "from_double_bits")
)
