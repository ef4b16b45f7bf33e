"""Elementwise operators: one GLSL expression each (ONNX operators; broadcasting as numpy's)."""

from __future__ import annotations

import math

import numpy as np

from vkep import dtypes
from vkep.lowering.builder import Builder
from vkep.lowering.expr import Expr
from vkep.lowering.tensor import Tensor
from vkep.ops.registry import ANY, FLOATS, NUMERIC, operator

_BOOL = dtypes.DTYPES["bool"]


# ---- one input, one expression

_UNARY_FLOAT = {
    "Acos": "acos({0})",
    "Acosh": "acosh({0})",
    "Asin": "asin({0})",
    "Asinh": "asinh({0})",
    "Atan": "atan({0})",
    "Atanh": "atanh({0})",
    "Ceil": "ceil({0})",
    "Cos": "cos({0})",
    "Cosh": "cosh({0})",
    "Exp": "exp({0})",
    "Floor": "floor({0})",
    "HardSwish": "({0} * clamp({0} * (1.0 / 6.0) + 0.5, 0.0, 1.0))",
    "Log": "log({0})",
    "Reciprocal": "(1.0 / {0})",
    "Round": "roundEven({0})",
    "Sigmoid": "(1.0 / (1.0 + exp(-{0})))",
    "Sin": "sin({0})",
    "Sinh": "sinh({0})",
    "Softplus": "({0} > 20.0 ? {0} : log(1.0 + exp({0})))",
    "Softsign": "({0} / (1.0 + abs({0})))",
    "Sqrt": "sqrt({0})",
    "Tan": "tan({0})",
    # tanh overflows to NaN in some drivers for large arguments
    "Tanh": "tanh(clamp({0}, -20.0, 20.0))",
}


def _unary(b: Builder, x: Tensor, *, template: str) -> Tensor:
    return b.pointwise(template, x)


def _declare_unary(op_type: str, template: str) -> None:
    def lower(b: Builder, x: Tensor) -> Tensor:
        return _unary(b, x, template=template)

    lower.__name__ = op_type.lower()
    operator(op_type, types={"T": FLOATS}, since=_since(op_type))(lower)


def _since(op_type: str) -> int:
    """The first version without the ``consumed_inputs`` attribute of ONNX's earliest opset."""
    return 6 if op_type in {"Ceil", "Exp", "Floor", "Log", "Reciprocal", "Sigmoid", "Sqrt", "Tanh"} else 1


for _name, _template in _UNARY_FLOAT.items():
    _declare_unary(_name, _template)


@operator("Relu", since=6, types={"T": (*FLOATS, "int8", "int32", "int64")})
def relu(b: Builder, x: Tensor) -> Tensor:
    # max() would turn NaN into 0; ONNX and numpy keep it
    return b.pointwise("({0} < {1} ? {1} : {0})", x, 0)


@operator("Abs", since=6, types={"T": NUMERIC})
def abs_(b: Builder, x: Tensor) -> Tensor:
    if x.dtype.kind == "uint":
        return x
    return b.pointwise("abs({0})", x)


@operator("Neg", since=6, types={"T": (*FLOATS, "int8", "int32", "int64")})
def neg(b: Builder, x: Tensor) -> Tensor:
    return b.pointwise("(-{0})", x)


@operator("Sign", types={"T": NUMERIC})
def sign(b: Builder, x: Tensor) -> Tensor:
    return b.pointwise("({0} > {1} ? {2} : ({0} < {1} ? -{2} : {0}))", x, 0, 1)


@operator("Not", types={"T": ("bool",)})
def not_(b: Builder, x: Tensor) -> Tensor:
    return b.pointwise("(!{0})", x)


@operator("IsNaN", types={"T1": FLOATS})
def is_nan(b: Builder, x: Tensor) -> Tensor:
    return b.pointwise("isnan({0})", x, dtype=_BOOL)


@operator("Erf", types={"T": FLOATS})
def erf(b: Builder, x: Tensor) -> Tensor:
    return b.store(erf_expr(b, b.expr("{0}", x)), x.dtype)


def erf_expr(b: Builder, x: Expr) -> Expr:
    """The error function, absolute error below 1.5e-7 (Abramowitz and Stegun, 7.1.26), odd by construction."""
    t = b.expr("(1.0 / (1.0 + 0.3275911 * abs({0})))", x)
    poly = "((((1.061405429 * {0} - 1.453152027) * {0} + 1.421413741) * {0} - 0.284496736) * {0} + 0.254829592) * {0}"
    y = b.expr("(1.0 - (" + poly + ") * exp(-{1} * {1}))", t, x)
    return b.expr("({1} < 0.0 ? -{0} : ({1} > 0.0 ? {0} : {1}))", y, x)


@operator("Gelu", since=20, types={"T": FLOATS})
def gelu(b: Builder, x: Tensor, *, approximate: str = "none") -> Tensor:
    v = b.expr("{0}", x)
    if approximate == "tanh":
        inner = f"clamp({math.sqrt(2 / math.pi)!r} * ({{0}} + 0.044715 * {{0}} * {{0}} * {{0}}), -20.0, 20.0)"
        return b.store(b.expr("(0.5 * {0} * (1.0 + tanh(" + inner + ")))", v), x.dtype)
    scaled = b.expr(f"({{0}} * {math.sqrt(0.5)!r})", v)
    return b.store(b.expr("(0.5 * {0} * (1.0 + {1}))", v, erf_expr(b, scaled)), x.dtype)


@operator("LeakyRelu", since=6, types={"T": FLOATS})
def leaky_relu(b: Builder, x: Tensor, *, alpha: float = 0.01) -> Tensor:
    return b.pointwise("({0} < 0.0 ? {0} * {1} : {0})", x, alpha)


@operator("Elu", since=6, types={"T": FLOATS})
def elu(b: Builder, x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return b.pointwise("({0} < 0.0 ? {1} * (exp({0}) - 1.0) : {0})", x, alpha)


@operator("Selu", since=6, types={"T": FLOATS})
def selu(
    b: Builder, x: Tensor, *, alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875
) -> Tensor:
    return b.pointwise("({2} * ({0} > 0.0 ? {0} : {1} * (exp({0}) - 1.0)))", x, alpha, gamma)


@operator("Celu", types={"T": ("float32",)})
def celu(b: Builder, x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return b.pointwise("(max({0}, 0.0) + min(0.0, {1} * (exp({0} / {1}) - 1.0)))", x, alpha)


@operator("HardSigmoid", since=6, types={"T": FLOATS})
def hard_sigmoid(b: Builder, x: Tensor, *, alpha: float = 0.2, beta: float = 0.5) -> Tensor:
    return b.pointwise("clamp({0} * {1} + {2}, 0.0, 1.0)", x, alpha, beta)


@operator("ThresholdedRelu", types={"T": FLOATS})
def thresholded_relu(b: Builder, x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return b.pointwise("({0} > {1} ? {0} : 0.0)", x, alpha)


@operator("Shrink", types={"T": FLOATS})
def shrink(b: Builder, x: Tensor, *, bias: float = 0.0, lambd: float = 0.5) -> Tensor:
    return b.pointwise("({0} < -{2} ? {0} + {1} : ({0} > {2} ? {0} - {1} : 0.0))", x, bias, lambd)


@operator("Mish", types={"T": FLOATS})
def mish(b: Builder, x: Tensor) -> Tensor:
    soft = b.expr("({0} > 20.0 ? {0} : log(1.0 + exp({0})))", x)
    return b.store(b.expr("({0} * tanh(clamp({1}, -20.0, 20.0)))", b.expr("{0}", x), soft), x.dtype)


@operator("PRelu", since=7, types={"T": FLOATS})
def prelu(b: Builder, x: Tensor, slope: Tensor) -> Tensor:
    return b.pointwise("({0} < 0.0 ? {0} * {1} : {0})", x, slope)


@operator("Clip", since=6, until=6, types={"T": FLOATS})
def clip_6(b: Builder, x: Tensor, *, max: float = 3.4028234663852886e38, min: float = -3.4028234663852886e38) -> Tensor:
    return b.pointwise("({0} < {1} ? {1} : ({0} > {2} ? {2} : {0}))", x, min, max)


@operator("Clip", since=11, types={"T": NUMERIC})
def clip(b: Builder, x: Tensor, min: Tensor | None = None, max: Tensor | None = None) -> Tensor:
    v = b.expr("{0}", x)
    if min is not None:
        v = b.expr("({0} < {1} ? {1} : {0})", v, min)
    if max is not None:
        v = b.expr("({0} > {1} ? {1} : {0})", v, max)
    return b.store(v, x.dtype, shape=x.shape)


@operator("Identity", types={"T": ANY, "V": ANY})
def identity(b: Builder, x: Tensor) -> Tensor:
    return x


@operator("Dropout", since=7, until=11, types={"T": FLOATS})
def dropout_7(b: Builder, x: Tensor, *, ratio: float = 0.5) -> list[Tensor]:
    return [x, b.full(x.shape, True, _BOOL)]


@operator("Dropout", since=12, types={"T": FLOATS, "T2": ("bool",)})
def dropout(
    b: Builder, x: Tensor, ratio: Tensor | None = None, training_mode: Tensor | None = None, *, seed: int = 0
) -> list[Tensor]:
    if training_mode is not None and bool(b.value(training_mode, "training_mode").reshape(-1)[0]):
        rate = 0.5 if ratio is None else float(b.value(ratio, "ratio").reshape(-1)[0])
        if rate:
            b.decline("training mode with random dropout")
    return [x, b.full(x.shape, True, _BOOL)]


# ---- casts

_CASTABLE = (*ANY, "uint32", "uint64", "int16", "uint16", "float64", "bfloat16")


def _target(b: Builder, to: int) -> dtypes.DType:
    dtype = dtypes.from_onnx(to)
    if dtype is None:
        b.decline(f"no kernel casts to {dtypes.onnx_name(to)}")
    return dtype


@operator("Cast", since=6, until=18, types={"T1": _CASTABLE})
def cast_6(b: Builder, x: Tensor, *, to: int) -> Tensor:
    return b.cast(x, _target(b, to))


@operator("Cast", since=19, types={"T1": _CASTABLE})
def cast(b: Builder, x: Tensor, *, to: int, saturate: int = 1, round_mode: str = "up") -> Tensor:
    return b.cast(x, _target(b, to))  # saturate and round_mode concern 8-bit floats only


@operator("CastLike", types={"T1": _CASTABLE, "T2": _CASTABLE})
def cast_like(b: Builder, x: Tensor, target_type: Tensor, *, saturate: int = 1, round_mode: str = "up") -> Tensor:
    return b.cast(x, target_type.dtype)


# ---- two inputs


def _declare_binary(op_type: str, template: str, types: tuple[str, ...] = NUMERIC, boolean: bool = False) -> None:
    def lower(b: Builder, x: Tensor, y: Tensor) -> Tensor:
        return b.pointwise(template, x, y, dtype=_BOOL if boolean else None)

    lower.__name__ = op_type.lower()
    operator(op_type, since=7, types={"T": types})(lower)


_declare_binary("Add", "({0} + {1})")
_declare_binary("Sub", "({0} - {1})")
_declare_binary("Mul", "({0} * {1})")
_declare_binary("And", "({0} && {1})", ("bool",))
_declare_binary("Or", "({0} || {1})", ("bool",))
_declare_binary("Xor", "({0} != {1})", ("bool",))
_declare_binary("Equal", "({0} == {1})", ANY, boolean=True)
_declare_binary("Greater", "({0} > {1})", NUMERIC, boolean=True)
_declare_binary("Less", "({0} < {1})", NUMERIC, boolean=True)


@operator("GreaterOrEqual", since=12, types={"T": NUMERIC})
def greater_or_equal(b: Builder, x: Tensor, y: Tensor) -> Tensor:
    return b.pointwise("({0} >= {1})", x, y, dtype=_BOOL)


@operator("LessOrEqual", since=12, types={"T": NUMERIC})
def less_or_equal(b: Builder, x: Tensor, y: Tensor) -> Tensor:
    return b.pointwise("({0} <= {1})", x, y, dtype=_BOOL)


@operator("Div", since=7, types={"T": NUMERIC})
def div(b: Builder, x: Tensor, y: Tensor) -> Tensor:
    if x.dtype.kind == "float":
        return b.pointwise("({0} / {1})", x, y)
    # an integer divided by zero is undefined in ONNX and must not trap on a CPU driver
    return b.pointwise("({1} == {2} ? {2} : {0} / {1})", x, y, 0)


@operator("Pow", since=7, types={"T": (*FLOATS, "int32", "int64")})
def pow_(b: Builder, x: Tensor, y: Tensor) -> Tensor:
    exponent = y.array if y.size == 1 else None
    if exponent is not None and x.dtype.kind == "float":
        value = float(exponent.reshape(-1)[0])
        simple = {1.0: "{0}", 2.0: "({0} * {0})", 3.0: "({0} * {0} * {0})", 0.5: "sqrt({0})", -0.5: "inversesqrt({0})"}
        if value in simple:
            return b.store(b.expr(simple[value], x), x.dtype, shape=np.broadcast_shapes(x.shape, y.shape))
    base = b.expr("{0}" if x.dtype.kind == "float" else "float({0})", x, ctype="float")
    power = b.expr("{0}" if y.dtype.kind == "float" else "float({0})", y, ctype="float")
    # GLSL's pow is undefined below zero; ONNX's is the real power for whole exponents
    whole = b.expr("(floor({0}) == {0})", power, ctype="bool")
    odd = b.expr("(mod({0}, 2.0) == 1.0)", power, ctype="bool")
    size = b.expr("({1} == 0.0 ? 1.0 : pow(abs({0}), {1}))", base, power)
    negative = b.expr("({1} ? ({2} ? -{0} : {0}) : uintBitsToFloat(0x7fc00000u))", size, whole, odd)
    result = b.expr("({0} < 0.0 ? {2} : {1})", base, size, negative)
    if x.dtype.kind != "float":
        result = b.expr(f"{x.dtype.glsl_compute}(round({{0}}))", result, ctype=x.dtype.glsl_compute)
    return b.store(result, x.dtype)


@operator("Mod", types={"T": NUMERIC})
def mod(b: Builder, x: Tensor, y: Tensor, *, fmod: int = 0) -> Tensor:
    if x.dtype.kind == "float":
        if not fmod:
            b.decline("Mod of floats needs fmod=1 (ONNX)")
        return b.pointwise("({0} - {1} * trunc({0} / {1}))", x, y)
    rest = b.expr("({1} == {2} ? {2} : {0} - {1} * ({0} / {1}))", x, y, 0)
    if fmod or x.dtype.kind == "uint":
        return b.store(rest, x.dtype)
    # the sign of the divisor, as Python's %
    return b.store(b.expr("({0} != {2} && (({0} < {2}) != ({1} < {2})) ? {0} + {1} : {0})", rest, y, 0), x.dtype)


# ---- any number of inputs


def _fold_variadic(b: Builder, inputs: tuple[Tensor, ...], template: str) -> Expr:
    result = b.expr("{0}", inputs[0])
    for tensor in inputs[1:]:
        result = b.expr(template, result, tensor)
    return result


def _declare_variadic(op_type: str, template: str, types: tuple[str, ...], since: int) -> None:
    def lower(b: Builder, *inputs: Tensor) -> Tensor:
        return b.store(_fold_variadic(b, inputs, template), inputs[0].dtype)

    lower.__name__ = op_type.lower()
    operator(op_type, since=since, types={"T": types})(lower)


# NaN wins, as in numpy: a comparison with NaN is false, so the first branch tests for it
_MAX = "({0} != {0} || {0} > {1} ? {0} : {1})"
_MIN = "({0} != {0} || {0} < {1} ? {0} : {1})"
_declare_variadic("Sum", "({0} + {1})", FLOATS, 6)
_declare_variadic("Max", _MAX, FLOATS, 6)
_declare_variadic("Min", _MIN, FLOATS, 6)


@operator("Mean", since=6, types={"T": FLOATS})
def mean(b: Builder, *inputs: Tensor) -> Tensor:
    return b.store(b.expr("({0} * {1})", _fold_variadic(b, inputs, "({0} + {1})"), 1.0 / len(inputs)), inputs[0].dtype)


@operator("Where", types={"B": ("bool",), "T": ANY})
def where(b: Builder, condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return b.store(b.expr("({0} ? {1} : {2})", condition, x, y, ctype=x.dtype.glsl_compute), x.dtype)
