"""Elementwise operators of one input, as GLSL expressions (ONNX operators)."""

from __future__ import annotations

from vkep import dtypes
from vkep.dtypes import DTYPES
from vkep.ir.builder import Builder
from vkep.ir.expr import Expr
from vkep.ir.pointwise_ops import NAN
from vkep.ir.tensor import Tensor
from vkep.ops import doubles
from vkep.ops.allowed import ARITHMETIC, FLOATING, SIGNED, SINGLE, UNSIGNED, every
from vkep.ops.registry import operator

_BOOL = dtypes.DTYPES["bool"]

# Series where the plain formula would cancel: GLSL has neither log1p nor expm1, and drivers compute tanh, sinh and
# their inverses from exponentials and logarithms, whose relative error grows without bound towards 0.
_LOG1P = (
    "({0} < 0.03 && {0} > -0.03 ? {0} * (1.0 - {0} * (0.5 - {0} * (1.0 / 3.0 - {0} * (0.25 - {0} * 0.2)))) : "
    "log(1.0 + {0}))"
)
_EXPM1 = (
    "(abs({0}) < 0.1 ? {0} * (1.0 + {0} * (0.5 + {0} * (1.0 / 6.0 + {0} * (1.0 / 24.0 + {0} * (1.0 / 120.0))))) : "
    "exp({0}) - 1.0)"
)
_TANH = (
    "(abs({0}) < 0.1 ? {0} * (1.0 - {0} * {0} * (1.0 / 3.0 - {0} * {0} * (2.0 / 15.0 - {0} * {0} * (17.0 / 315.0)))) : "
    "limited_tanh({0}))"
)

#: with the element types that GLSL has the function for
_EXACT = {
    "Ceil": "ceil({0})",
    "Floor": "floor",
    "Reciprocal": "exact_quotient(1.0, {0})",
    "Round": "round",
    "Softsign": "({0} / (1.0 + abs({0})))",
    "Sqrt": "sqrt",
}
_SINGLE = {
    "Acos": "accurate_acos({0})",
    "Asin": "accurate_asin({0})",
    "Atan": "accurate_atan({0})",
    "Cos": "accurate_cos({0})",
    "Cosh": "accurate_cosh({0})",
    "HardSwish": "({0} * limited({0} * (1.0 / 6.0) + 0.5, 0.0, 1.0))",
    "Sigmoid": "(1.0 / (1.0 + exp(-{0})))",
    "Sin": "accurate_sin({0})",
    "Sinh": "accurate_sinh({0})",
    "Tan": "accurate_tan({0})",
    "Tanh": _TANH,
    "Erf": "accurate_erf({0})",
}


def _in_double(b: Builder, op_type: str, x: Tensor) -> Tensor:
    return b.store(doubles.UNARY[op_type](b, b.expr("same", x)), x.dtype)


def _declare_unary(op_type: str, op: str, among: tuple[str, ...]) -> None:
    def lower(b: Builder, x: Tensor) -> Tensor:
        if x.dtype.name == "float64" and op_type in doubles.UNARY:
            return _in_double(b, op_type, x)
        if x.dtype.kind != "float":  # Erf before version 13: the integer part of the float's value
            return b.cast(b.pointwise(op, b.cast(x, DTYPES["float32"])), x.dtype)
        return b.pointwise(op, x)

    lower.__name__ = op_type.lower()
    # from the first version without the consumed_inputs attribute of ONNX's earliest opset
    first = 6 if op_type in {"Ceil", "Exp", "Floor", "Log", "Reciprocal", "Sigmoid", "Sqrt", "Tanh"} else 1
    operator(op_type, types={"T": every(op_type, among=among)}, since=first)(lower)


for _name, _template in _EXACT.items():
    _declare_unary(_name, _template, FLOATING)
for _name, _template in _SINGLE.items():
    _declare_unary(_name, _template, ARITHMETIC)


@operator("Exp", since=6, types={"T": every("Exp", among=FLOATING)})
def exp(b: Builder, x: Tensor) -> Tensor:
    if x.dtype.name == "float64":
        return _in_double(b, "Exp", x)
    return b.pointwise("exp", x)


@operator("Log", since=6, types={"T": every("Log", among=FLOATING)})
def log(b: Builder, x: Tensor) -> Tensor:
    if x.dtype.name == "float64":
        return _in_double(b, "Log", x)
    return b.pointwise("accurate_log({0})", x)


def _log1p(b: Builder, x: Expr) -> Expr:
    return b.expr(_LOG1P, x)


def _softplus(b: Builder, x: Expr) -> Expr:
    return b.expr("({0} > 20.0 ? {0} : {1})", x, _log1p(b, b.expr("exp", x)))


@operator("Softplus", types={"T": every("Softplus", among=FLOATING)})
def softplus(b: Builder, x: Tensor) -> Tensor:
    if x.dtype.name == "float64":
        return _in_double(b, "Softplus", x)
    return b.store(_softplus(b, b.expr("same", x)), x.dtype)


@operator("Asinh", types={"T": every("Asinh", among=FLOATING)})
def asinh(b: Builder, x: Tensor) -> Tensor:
    if x.dtype.name == "float64":
        return _in_double(b, "Asinh", x)
    v = b.expr("same", x)
    size = b.expr("abs", v)
    near = _log1p(b, b.expr("({0} + {0} * {0} / (1.0 + sqrt({0} * {0} + 1.0)))", size))
    result = b.expr("({0} > 1e9 ? log_of_double({0}) : {1})", size, near)
    return b.store(b.expr("with_sign", result, v), x.dtype)


@operator("Acosh", types={"T": every("Acosh", among=FLOATING)})
def acosh(b: Builder, x: Tensor) -> Tensor:
    if x.dtype.name == "float64":
        return _in_double(b, "Acosh", x)
    v = b.expr("({0} - 1.0)", x)
    near = _log1p(b, b.expr("({0} + sqrt({0} * ({0} + 2.0)))", v))
    result = b.expr("({0} > 1e9 ? log_of_double({0}) : {1})", v, near)
    return b.store(b.expr(f"({{0}} < 0.0 ? {NAN} : {{1}})", v, result), x.dtype)


@operator("Atanh", types={"T": every("Atanh", among=FLOATING)})
def atanh(b: Builder, x: Tensor) -> Tensor:
    if x.dtype.name == "float64":
        return _in_double(b, "Atanh", x)
    v = b.expr("same", x)
    size = b.expr("abs", v)
    half = b.expr("(0.5 * {0})", _log1p(b, b.expr("(2.0 * {0} / (1.0 - {0}))", size)))
    return b.store(b.expr("with_sign", half, v), x.dtype)


@operator("Relu", since=6, types={"T": every("Relu", among=(*FLOATING, *SIGNED))})
def relu(b: Builder, x: Tensor) -> Tensor:
    templates = {"float": "relu({0})", "double": "(isnan({0}) || {0} > {1} ? {0} : {1})"}
    return b.pointwise(templates.get(x.dtype.glsl_compute, "max"), x, 0)


@operator("Abs", since=6, types={"T": every("Abs", among=ARITHMETIC)})
def abs_(b: Builder, x: Tensor) -> Tensor:
    if x.dtype.kind == "uint":
        return x
    return b.pointwise("abs", x)


@operator("Neg", since=6, types={"T": every("Neg", among=ARITHMETIC)})
def neg(b: Builder, x: Tensor) -> Tensor:
    return b.pointwise("neg", x)


@operator("Sign", types={"T": every("Sign", among=ARITHMETIC)})
def sign(b: Builder, x: Tensor) -> Tensor:
    if x.dtype.kind == "uint":
        return b.pointwise("({0} > {1} ? {2} : {1})", x, 0, 1)
    return b.pointwise("({0} > {1} ? {2} : ({0} < {1} ? -{2} : {0}))", x, 0, 1)


@operator("Not", types={"T": ("bool",)})
def not_(b: Builder, x: Tensor) -> Tensor:
    return b.pointwise("not", x)


@operator("BitwiseNot", types={"T": every("BitwiseNot", among=ARITHMETIC)})
def bitwise_not(b: Builder, x: Tensor) -> Tensor:
    return b.pointwise("(~{0})", x)


def _read(b: Builder, x: Tensor) -> Tensor:
    """8-bit floats as float32, in which kernels can compute."""
    return b.cast(x, dtypes.DTYPES["float32"]) if x.dtype.kind == "bits" else x


@operator("IsNaN", types={"T1": every("IsNaN", "T1")})
def is_nan(b: Builder, x: Tensor) -> Tensor:
    return b.pointwise("isnan", _read(b, x), dtype=_BOOL)


@operator("IsInf", types={"T1": every("IsInf", "T1")})
def is_inf(b: Builder, x: Tensor, *, detect_negative: int = 1, detect_positive: int = 1) -> Tensor:
    if not detect_negative and not detect_positive:
        return b.full(x.shape, False, _BOOL)
    side = "" if detect_negative and detect_positive else (" && {0} > 0.0" if detect_positive else " && {0} < 0.0")
    return b.pointwise(f"(isinf({{0}}){side})", _read(b, x), dtype=_BOOL)


@operator("Gelu", since=20, types={"T": every("Gelu", among=FLOATING)})
def gelu(b: Builder, x: Tensor, *, approximate: str = "none") -> Tensor:
    if approximate not in ("none", "tanh"):
        b.invalid(f"approximate is {approximate!r}, expected 'none' or 'tanh'")
    if x.dtype.name == "float64":
        v = b.expr("same", x)
        inner = b.expr("({0} * 0.7071067811865476lf)", v)
        if approximate == "tanh":
            inner = b.expr("(0.7978845608028654lf * ({0} + 0.044715lf * {0} * {0} * {0}))", v)
        grown = doubles.UNARY["Tanh" if approximate == "tanh" else "Erf"](b, inner)
        return b.store(b.expr("(0.5lf * {0} * (1.0lf + {1}))", v, grown), x.dtype)
    return b.pointwise("gelu_tanh({0})" if approximate == "tanh" else "gelu({0})", x)


@operator("LeakyRelu", since=6, types={"T": every("LeakyRelu", among=FLOATING)})
def leaky_relu(b: Builder, x: Tensor, *, alpha: float = 0.01) -> Tensor:
    return b.pointwise("({0} < 0.0 ? {0} * {1} : {0})", x, alpha)


@operator("Elu", since=6, types={"T": every("Elu", among=SINGLE)})
def elu(b: Builder, x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return b.pointwise("({0} < 0.0 ? {1} * " + _EXPM1 + " : {0})", x, alpha)


@operator("Selu", since=6, types={"T": every("Selu", among=SINGLE)})
def selu(
    b: Builder, x: Tensor, *, alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875
) -> Tensor:
    return b.pointwise("({2} * ({0} > 0.0 ? {0} : {1} * " + _EXPM1 + "))", x, alpha, gamma)


@operator("Celu", types={"T": every("Celu", among=SINGLE)})
def celu(b: Builder, x: Tensor, *, alpha: float = 1.0) -> Tensor:
    v = b.expr("same", x)
    grown = b.expr(_EXPM1, b.expr("div", v, alpha))
    return b.store(b.expr("({0} < 0.0 ? {1} * {2} : {0})", v, alpha, grown), x.dtype)


@operator("HardSigmoid", since=6, types={"T": every("HardSigmoid", among=SINGLE)})
def hard_sigmoid(b: Builder, x: Tensor, *, alpha: float = 0.2, beta: float = 0.5) -> Tensor:
    line = b.expr("mul_add", x, alpha, beta)
    return b.store(b.expr("limited({0}, 0.0, 1.0)", line), x.dtype)


@operator("ThresholdedRelu", types={"T": every("ThresholdedRelu", among=FLOATING)})
def thresholded_relu(b: Builder, x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return b.pointwise("({0} > {1} ? {0} : {2})", x, alpha, 0)


@operator("Shrink", types={"T": every("Shrink", among=(*FLOATING, *SIGNED, *UNSIGNED))})
def shrink(b: Builder, x: Tensor, *, bias: float = 0.0, lambd: float = 0.5) -> Tensor:
    v = b.expr("same", x) if x.dtype.kind == "float" else b.expr("cast", x, ctype="float")
    shrunk = b.expr("({0} < -{2} ? {0} + {1} : ({0} > {2} ? {0} - {1} : {3}))", v, bias, lambd, 0)
    if x.dtype.kind == "float":
        return b.store(shrunk, x.dtype)
    return b.store(b.expr("cast", shrunk, ctype=x.dtype.glsl_compute), x.dtype)


@operator("Mish", types={"T": every("Mish", among=FLOATING)})
def mish(b: Builder, x: Tensor) -> Tensor:
    if x.dtype.name == "float64":
        v = b.expr("same", x)
        return b.store(b.expr("({0} * {1})", v, doubles.tanh(b, doubles.softplus(b, v))), x.dtype)
    # tanh(log(1 + e)) for e = exp(x), without the cancellation of 1 + e
    grown = b.expr("exp({0} > 20.0 ? 20.0 : {0})", x)
    return b.store(
        b.expr("({0} * (({1} * ({1} + 2.0)) / ({1} * ({1} + 2.0) + 2.0)))", b.expr("same", x), grown), x.dtype
    )


@operator("Swish", types={"T": every("Swish", among=FLOATING)})
def swish(b: Builder, x: Tensor, *, alpha: float = 1.0) -> Tensor:
    if x.dtype.name == "float64":
        v = b.expr("same", x)
        opened = doubles.sigmoid(b, b.expr("({0} * {1})", v, alpha))
        return b.store(b.expr("({0} * {1})", v, opened), x.dtype)
    return b.pointwise("({0} / (1.0 + exp(-{1} * {0})))", x, alpha)


@operator("Identity", types={"T": every("Identity"), "V": every("Identity", "V")})
def identity(b: Builder, x: Tensor) -> Tensor:
    return x
