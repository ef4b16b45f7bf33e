"""Elementwise operators of one input (ONNX operators)."""

from __future__ import annotations

from collections.abc import Callable

from vkep.dtypes import BOOL, FLOAT32
from vkep.ir import algebra as fn
from vkep.ir.algebra import where
from vkep.ir.builder import Builder
from vkep.ir.expr import Expr
from vkep.ir.tensor import Tensor
from vkep.ops.allowed import ARITHMETIC, FLOATING, SIGNED, UNSIGNED, every
from vkep.ops.microsoft import MICROSOFT
from vkep.ops.registry import FLOATS, operator


def _hard_sigmoid(x: Expr, alpha: Expr | float, beta: Expr | float) -> Expr:
    return fn.limited(x * alpha + beta, 0, 1)


#: with the element types that GLSL has the function for
_UNARY: dict[str, tuple[Callable[[Expr], Expr], tuple[str, ...]]] = {
    "Acos": (fn.acos, ARITHMETIC),
    "Acosh": (fn.acosh, FLOATING),
    "Asin": (fn.asin, ARITHMETIC),
    "Asinh": (fn.asinh, FLOATING),
    "Atan": (fn.atan, ARITHMETIC),
    "Atanh": (fn.atanh, FLOATING),
    "Ceil": (fn.ceil, FLOATING),
    "Cos": (fn.cos, ARITHMETIC),
    "Cosh": (fn.cosh, ARITHMETIC),
    "Erf": (fn.erf, ARITHMETIC),
    "Exp": (fn.exp, FLOATING),
    "Floor": (fn.floor, FLOATING),
    "HardSwish": (lambda x: x * _hard_sigmoid(x, 1 / 6, 0.5), ARITHMETIC),
    "Log": (fn.log, FLOATING),
    "Reciprocal": (lambda x: fn.exact_divide(1, x), FLOATING),
    "Round": (fn.round_even, FLOATING),
    "Sigmoid": (fn.sigmoid, ARITHMETIC),
    "Sin": (fn.sin, ARITHMETIC),
    "Sinh": (fn.sinh, ARITHMETIC),
    "Softplus": (fn.softplus, FLOATING),
    "Softsign": (lambda x: x / (1 + abs(x)), FLOATING),
    "Sqrt": (fn.sqrt, FLOATING),
    "Tan": (fn.tan, ARITHMETIC),
    "Tanh": (fn.tanh, ARITHMETIC),
}
#: those whose first version has the consumed_inputs attribute of ONNX's earliest opset
_SINCE_6 = {"Ceil", "Exp", "Floor", "Log", "Reciprocal", "Sigmoid", "Sqrt", "Tanh"}


def _declare_unary(op_type: str, function: Callable[[Expr], Expr], among: tuple[str, ...]) -> None:
    def lower(b: Builder, x: Tensor) -> Tensor:
        if x.dtype.kind != "float":  # Erf before version 13: the integer part of the float's value
            return b.cast(b.pointwise(function, b.cast(x, FLOAT32)), x.dtype)
        return b.pointwise(function, x)

    lower.__name__ = op_type.lower()
    operator(op_type, types={"T": every(op_type, among=among)}, since=6 if op_type in _SINCE_6 else 1)(lower)


for _name, (_function, _among) in _UNARY.items():
    _declare_unary(_name, _function, _among)


@operator("Relu", since=6, types={"T": every("Relu", among=(*FLOATING, *SIGNED))})
def relu(b: Builder, x: Tensor) -> Tensor:
    return b.pointwise(fn.relu if x.dtype.kind == "float" else lambda v: fn.maximum(v, 0), x)


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
        return b.pointwise(lambda v: fn.minimum(v, 1), x)
    return b.pointwise(lambda v: where(v > 0, 1, where(v < 0, -1, v)), x)


@operator("Not", types={"T": ("bool",)})
def not_(b: Builder, x: Tensor) -> Tensor:
    return b.pointwise("not", x)


@operator("BitwiseNot", types={"T": every("BitwiseNot", among=ARITHMETIC)})
def bitwise_not(b: Builder, x: Tensor) -> Tensor:
    return b.pointwise("bit_not", x)


def _read(b: Builder, x: Tensor) -> Tensor:
    """8-bit floats as float32, in which kernels can compute."""
    return b.cast(x, FLOAT32) if x.dtype.kind == "bits" else x


@operator("IsNaN", types={"T1": every("IsNaN", "T1")})
def is_nan(b: Builder, x: Tensor) -> Tensor:
    return b.pointwise("isnan", _read(b, x), dtype=BOOL)


@operator("IsInf", types={"T1": every("IsInf", "T1")})
def is_inf(b: Builder, x: Tensor, *, detect_negative: int = 1, detect_positive: int = 1) -> Tensor:
    if not detect_negative and not detect_positive:
        return b.full(x.shape, False, BOOL)

    def of_sides(v: Expr) -> Expr:
        infinite = fn.isinf(v)
        if detect_negative and detect_positive:
            return infinite
        return infinite & ((v > 0) if detect_positive else (v < 0))

    return b.pointwise(of_sides, _read(b, x), dtype=BOOL)


@operator("Gelu", since=20, types={"T": every("Gelu", among=FLOATING)})
def gelu(b: Builder, x: Tensor, *, approximate: str = "none") -> Tensor:
    if approximate not in ("none", "tanh"):
        b.invalid(f"approximate is {approximate!r}, expected 'none' or 'tanh'")
    return b.pointwise("gelu_tanh" if approximate == "tanh" else "gelu", x)


@operator("LeakyRelu", since=6, types={"T": every("LeakyRelu", among=FLOATING)})
def leaky_relu(b: Builder, x: Tensor, *, alpha: float = 0.01) -> Tensor:
    return b.pointwise(lambda v, slope: where(v < 0, v * slope, v), x, alpha)


@operator("Elu", since=6, types={"T": every("Elu", among=FLOATING)})
def elu(b: Builder, x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return b.pointwise(lambda v, scale: where(v < 0, scale * fn.expm1(v), v), x, alpha)


@operator("Selu", since=6, types={"T": every("Selu", among=FLOATING)})
def selu(
    b: Builder, x: Tensor, *, alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875
) -> Tensor:
    return b.pointwise(lambda v, scale, all_: all_ * where(v > 0, v, scale * fn.expm1(v)), x, alpha, gamma)


@operator("Celu", types={"T": every("Celu", among=FLOATING)})
def celu(b: Builder, x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return b.pointwise(lambda v, scale: where(v < 0, scale * fn.expm1(v / scale), v), x, alpha)


@operator("HardSigmoid", since=6, types={"T": every("HardSigmoid", among=FLOATING)})
def hard_sigmoid(b: Builder, x: Tensor, *, alpha: float = 0.2, beta: float = 0.5) -> Tensor:
    return b.pointwise(_hard_sigmoid, x, alpha, beta)


@operator("ThresholdedRelu", types={"T": every("ThresholdedRelu", among=FLOATING)})
def thresholded_relu(b: Builder, x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return b.pointwise(lambda v, least: where(v > least, v, 0), x, alpha)


@operator("Shrink", types={"T": every("Shrink", among=(*FLOATING, *SIGNED, *UNSIGNED))})
def shrink(b: Builder, x: Tensor, *, bias: float = 0.0, lambd: float = 0.5) -> Tensor:
    kind = x.dtype.glsl_compute
    v, least, moved = b.reads(x if x.dtype.kind == "float" else b.expr("cast", x, ctype="float"), lambd, bias)
    shrunk = where(v < -least, v + moved, where(v > least, v - moved, 0))
    return b.store(fn.cast(shrunk, kind), x.dtype, shape=x.shape)


@operator("Mish", types={"T": every("Mish", among=FLOATING)})
def mish(b: Builder, x: Tensor) -> Tensor:
    def tanh_of_softplus(v: Expr) -> Expr:
        """tanh(log(1 + e)) for e = exp(x), without the cancellation of 1 + e."""
        grown = fn.exp(where(v > 20, 20, v))
        size = grown * (grown + 2)
        return size / (size + 2)

    return b.pointwise(lambda v: v * tanh_of_softplus(v), x)


@operator("Swish", types={"T": every("Swish", among=FLOATING)})
def swish(b: Builder, x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return b.pointwise(fn.swish, x, alpha)


@operator("Identity", types={"T": every("Identity"), "V": every("Identity", "V")})
def identity(b: Builder, x: Tensor) -> Tensor:
    return x


@operator("SampleOp", domain=MICROSOFT, types={"x": (*FLOATS, "float64", "int32", "int64", "uint32", "uint64")})
def sample_op(b: Builder, x: Tensor) -> Tensor:
    """An echo: what ONNX Runtime shows how an operator is added with."""
    return x


@operator("Gelu", domain=MICROSOFT, types={"x": FLOATS})
def gelu_(b: Builder, x: Tensor) -> Tensor:
    return gelu(b, x)


@operator("BiasGelu", domain=MICROSOFT, types={"x bias": FLOATS})
def bias_gelu(b: Builder, x: Tensor, bias: Tensor) -> Tensor:
    b.expect("bias", bias, x.shape[-1:])
    return gelu(b, b.pointwise("add", x, bias, shape=x.shape))


@operator("FastGelu", domain=MICROSOFT, types={"x bias": FLOATS})
def fast_gelu(b: Builder, x: Tensor, bias: Tensor | None = None) -> Tensor:
    b.expect("bias", bias, x.shape[-1:])
    if bias is not None:
        x = b.pointwise("add", x, bias, shape=x.shape)
    return gelu(b, x, approximate="tanh")


@operator("QuickGelu", domain=MICROSOFT, types={"x": FLOATS})
def quick_gelu(b: Builder, x: Tensor, *, alpha: float = 1.702) -> Tensor:
    return b.pointwise(fn.swish, x, alpha)
