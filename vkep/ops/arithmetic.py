"""Elementwise operators of several inputs, with numpy's broadcasting (ONNX operators)."""

from __future__ import annotations

import functools
import math
import operator as operators
from collections.abc import Callable

from vkep.dtypes import BOOL
from vkep.ir import algebra as fn
from vkep.ir import expr as ex
from vkep.ir.algebra import equal, not_equal, where
from vkep.ir.builder import Builder, Operand
from vkep.ir.expr import Expr
from vkep.ir.tensor import Tensor, broadcast_shapes
from vkep.kernels.kernel import MOST_READ
from vkep.ops.allowed import ARITHMETIC, FLOATING, SIGNED, UNSIGNED, every
from vkep.ops.registry import onnx_history, operator
from vkep.sizes import matches


def _legacy(b: Builder, x: Tensor, y: Tensor, axis: int | None, broadcast: int) -> Tensor:
    """``y`` by the rules before opset 7: of x's shape, or placed from ``axis`` on."""
    if not broadcast or y.shape == x.shape:
        return y
    start = x.rank - y.rank if axis is None else b.axis(axis, x.rank)
    return b.reshape(y, [*y.shape, *[1] * (x.rank - start - y.rank)])


def _declare_binary(
    op_type: str, op: str | Callable[[Builder, Tensor, Tensor], Tensor], among: tuple[str, ...], boolean: bool = False
) -> None:
    """An operator of two tensors, by an expression or a function, with its form before opset 7 where it had one."""

    def lower(b: Builder, x: Tensor, y: Tensor) -> Tensor:
        if op_type != "Pow":  # ONNX's function bodies have float32 constants beside other types
            y = b.cast(y, x.dtype)
        return op(b, x, y) if callable(op) else b.pointwise(op, x, y, dtype=BOOL if boolean else None)

    def lower_1(b: Builder, x: Tensor, y: Tensor, *, axis: int | None = None, broadcast: int = 0) -> Tensor:
        return lower(b, x, _legacy(b, x, y, axis, broadcast))

    def lower_1_consuming(
        b: Builder,
        x: Tensor,
        y: Tensor,
        *,
        axis: int | None = None,
        broadcast: int = 0,
        consumed_inputs: list[int] | None = None,
    ) -> Tensor:
        return lower_1(b, x, y, axis=axis, broadcast=broadcast)

    lower.__name__ = op_type.lower()
    types = {"T": every(op_type, among=among)}
    operator(op_type, since=7, types=types)(lower)
    if onnx_history(op_type, "")[-1].since_version < 7:
        consuming = op_type in ("Add", "Sub", "Mul", "Div")
        operator(op_type, since=1, until=6, types=types)(lower_1_consuming if consuming else lower_1)


def _divide(b: Builder, x: Tensor, y: Tensor) -> Tensor:
    if x.dtype.glsl_compute == "float":
        try:
            shape = broadcast_shapes(x.shape, y.shape)
        except ValueError:
            b.invalid(f"shapes {x.shape} and {y.shape} do not broadcast")
        return b.store(b.divide(x, y), x.dtype, shape=shape)
    if x.dtype.kind == "float":
        return b.pointwise("exact_div", x, y)
    return b.pointwise(_quotient, x, _divisor(b, y), dtype=x.dtype, shape=_broadcast(b, (x, y)))


def _quotient(x: Expr, y: Expr) -> Expr:
    """Of integers, and 0 where ``y`` is: a division by zero must not trap on a CPU driver."""
    zero = equal(y, 0)
    return where(zero, 0, x / where(zero, 1, y))


def _divisor(b: Builder, y: Tensor) -> Operand:
    """An integer divisor: ONNX Runtime refuses 0. (The lowest integer by -1 wraps, as in numpy.)"""
    known = y.array
    if known is not None and known.all():
        return y
    return b.require(y, "ne", "an integer is divided by zero", 0)


@operator("PRelu", since=7, types={"T": every("PRelu", among=(*FLOATING, *SIGNED, *UNSIGNED))})
def prelu(b: Builder, x: Tensor, slope: Tensor) -> Tensor:
    return b.pointwise(lambda v, by: where(v < 0, v * by, v), x, slope)


@operator("PRelu", since=1, until=6, types={"T": every("PRelu", among=FLOATING)})
def prelu_1(b: Builder, x: Tensor, slope: Tensor, *, consumed_inputs: list[int] | None = None) -> Tensor:
    if slope.size > 1:
        slope = b.reshape(slope, [slope.size, *[1] * (x.rank - 2)])
    return prelu(b, x, b.reshape(slope, []) if matches(slope.size, 1) else slope)


# ---- powers and remainders


def _power(b: Builder, x: Tensor, y: Tensor) -> Tensor:
    exponent = y.array if matches(y.size, 1) else None
    if exponent is not None and x.dtype.kind == "float":
        value = float(exponent.reshape(-1)[0])
        simple: dict[float, Callable[[Expr], Expr]] = {1.0: lambda v: v, 2.0: lambda v: v * v, 3.0: lambda v: v * v * v}
        if value in simple:
            return b.pointwise(simple[value], x, shape=broadcast_shapes(x.shape, y.shape))
    shape = _broadcast(b, (x, y))
    base, exact_power = b.reads(x)[0], b.reads(y)[0]
    kind = "double" if x.dtype.name == "float64" else "float"
    power = fn.cast(exact_power, kind)
    real = fn.power(fn.cast(base, kind), power)
    if x.dtype.kind == "float":
        if y.dtype.itemsize > 2 and y.dtype.name not in (
            "float32",
            x.dtype.name,
        ):  # odd ones may be rounded to even ones
            real = where(_is_odd(exact_power), fn.with_sign(real, base), real)
        return b.store(real, x.dtype, shape=shape)
    exact = _integer_power(base, fn.cast(exact_power, base.ctype))
    # truncated towards 0, unless the power's error is all that separates it from an integer
    if y.dtype.kind == "float":
        rounded = fn.round_even(real)
        near = where(abs(rounded - real) < 1e-5 * abs(real), rounded, fn.trunc(real))
        exact = where(equal(fn.floor(power), power), exact, fn.cast(near, base.ctype))
    return b.store(exact, x.dtype, shape=shape)


def _is_odd(x: Expr) -> Expr:
    if x.ctype not in ("float", "double"):
        return not_equal(x & 1, 0)
    return equal(fn.floor(x), x) & not_equal(2 * fn.floor(0.5 * x), x)


def _integer_power(base: Expr, left: Expr) -> Expr:
    """base**left exactly, wrapping as the type does, by squaring (six steps are as many bits as a useful exponent has)."""
    below = where(equal(base, 1), 1, where(equal(base, -1), 1 - (left & 1) * 2, 0))
    result = where(left < 0, below, 1)
    for _ in range(6):
        result = where((left > 0) & not_equal(left & 1, 0), result * base, result)
        base = base * base
        left = where(left > 0, left >> 1, left)
    return result


_declare_binary("Add", "add", ARITHMETIC)
_declare_binary("Sub", "sub", ARITHMETIC)
_declare_binary("Mul", "mul", ARITHMETIC)
_declare_binary("Div", _divide, ARITHMETIC)
_declare_binary("Pow", _power, (*FLOATING, "int32", "int64"))
_declare_binary("And", "and", ("bool",))
_declare_binary("Or", "or", ("bool",))
_declare_binary("Xor", "ne", ("bool",))
_declare_binary("Equal", "eq", (*ARITHMETIC, "bool"), boolean=True)
_declare_binary("Greater", "gt", ARITHMETIC, boolean=True)
_declare_binary("GreaterOrEqual", "ge", ARITHMETIC, boolean=True)
_declare_binary("Less", "lt", ARITHMETIC, boolean=True)
_declare_binary("LessOrEqual", "le", ARITHMETIC, boolean=True)


@operator("Mod", types={"T": every("Mod", among=ARITHMETIC)})
def mod(b: Builder, x: Tensor, y: Tensor, *, fmod: int = 0) -> Tensor:
    if x.dtype.kind == "float":
        return _float_mod(b, x, y, bool(fmod))
    v, divisor = b.reads(x, _divisor(b, y))
    rest = where(equal(divisor, 0), 0, v - divisor * _quotient(v, divisor))
    if not fmod and x.dtype.kind != "uint":  # the sign of the divisor, as Python's %
        rest = where(not_equal(rest, 0) & ((rest < 0) ^ (divisor < 0)), rest + divisor, rest)
    return b.store(rest, x.dtype, shape=_broadcast(b, (x, y)))


def _float_mod(b: Builder, x: Tensor, y: Tensor, fmod: bool) -> Tensor:
    a, d = b.reads(x, y)
    # of float32 the bits: a device may take a subnormal divisor for 0
    zero = equal(fn.float_bits(d) & 0x7FFFFFFF, 0) if a.ctype == "float" else equal(d, 0)
    invalid = fn.isnan(a) | fn.isnan(d) | fn.isinf(a) | zero
    plain = ~(invalid | fn.isinf(d))
    rest = where(plain, ex.apply("exact_remainder", where(plain, a, 1), where(plain, d, 1)), a)
    rest = fn.with_sign(rest, a)  # 0 has it too
    if not fmod:
        across = not_equal(rest, 0) & ((rest < 0) ^ (d < 0))
        moved = where(across, where(fn.isinf(d), d, rest + d), rest)
        rest = where(equal(moved, 0), fn.with_sign(moved, d), moved)
    return b.store(where(invalid, math.nan, rest), x.dtype, shape=_broadcast(b, (x, y)))


# ---- bits


def _declare_bitwise(op_type: str, op: str) -> None:
    def lower(b: Builder, x: Tensor, y: Tensor) -> Tensor:
        return b.pointwise(op, x, y)

    lower.__name__ = op_type.lower()
    operator(op_type, types={"T": every(op_type, among=ARITHMETIC)})(lower)


_declare_bitwise("BitwiseAnd", "bit_and")
_declare_bitwise("BitwiseOr", "bit_or")
_declare_bitwise("BitwiseXor", "bit_xor")


@operator("BitShift", types={"T": every("BitShift", among=ARITHMETIC)})
def bit_shift(b: Builder, x: Tensor, y: Tensor, *, direction: str) -> Tensor:
    if direction not in ("LEFT", "RIGHT"):
        b.invalid(f"direction is {direction!r}, expected 'LEFT' or 'RIGHT'")

    def shifted(v: Expr, by: Expr) -> Expr:
        signed, count = x.dtype.kind == "int", fn.cast(by, "int")
        # a shift by less than nothing or by all bits leaves what extending the sign would
        beyond = where(v < 0, -1, v & 0) if signed and direction == "RIGHT" else 0
        out = (by >= 8 * x.dtype.itemsize) | (by < 0) if signed else by >= 8 * x.dtype.itemsize
        return where(out, beyond, v << count if direction == "LEFT" else v >> count)

    return b.pointwise(shifted, x, y)


# ---- limits


@operator("Clip", since=6, until=10, types={"T": every("Clip", among=FLOATING)})
def clip_6(b: Builder, x: Tensor, *, max: float = 3.4028234663852886e38, min: float = -3.4028234663852886e38) -> Tensor:
    return b.pointwise("limited", x, min, max)


@operator("Clip", since=11, types={"T": every("Clip", among=ARITHMETIC)})
def clip(b: Builder, x: Tensor, min: Tensor | None = None, max: Tensor | None = None) -> Tensor:
    """A missing limit is the last finite number of the type, so that infinities become finite there."""
    v = clipped = b.expr("same", x)
    for op, limit, what, sign in (("max", min, "min", -1), ("min", max, "max", 1)):
        bound = _bound(b, x, limit, what, sign)
        clipped = clipped if bound is None else b.expr(op, clipped, bound)
    if x.dtype.kind == "float":  # max() and min() need not keep NaN
        clipped = where(fn.isnan(v), v, clipped)
    return b.store(clipped, x.dtype, shape=x.shape)


def _bound(b: Builder, x: Tensor, limit: Tensor | None, what: str, sign: int) -> Tensor | float | None:
    """A limit of Clip, above (``sign`` 1) or below (-1); None for one that changes no number."""
    if limit is None:
        return sign * x.dtype.largest if x.dtype.kind == "float" else None
    b.expect(what, limit, (), (1,))  # ONNX says a scalar, ONNX Runtime takes a list of one too
    known = limit.array if x.dtype.kind == "float" else None
    return None if known is not None and known.item() == sign * math.inf else b.reshape(limit, [])


def _fold_variadic(b: Builder, inputs: tuple[Tensor, ...], function: Callable[[Expr, Expr], Expr]) -> Expr:
    """The operator over inputs from left to right. Of many inputs, scalar constants are tensors too: as arguments they would
    all be in one kernel (`vkep.passes.split` bounds what a kernel reads)."""
    leaves = [ex.leaf(t) for t in inputs] if len(inputs) > MOST_READ else b.reads(*inputs)
    return functools.reduce(function, leaves[1:], b.expr("same", leaves[0]))


def _broadcast(b: Builder, inputs: tuple[Tensor, ...]) -> tuple[int, ...]:
    try:
        return broadcast_shapes(*[t.shape for t in inputs])
    except ValueError:
        b.invalid(f"shapes {[t.shape for t in inputs]} do not broadcast")


def _declare_variadic(op_type: str, function: Callable[[Expr, Expr], Expr], among: tuple[str, ...]) -> None:
    def lower(b: Builder, *inputs: Tensor) -> Tensor:
        # constants enter the expression without a leaf, so the shape is given
        return b.store(_fold_variadic(b, inputs, function), inputs[0].dtype, shape=_broadcast(b, inputs))

    lower.__name__ = op_type.lower()
    operator(op_type, since=6, types={"T": every(op_type, among=among)})(lower)


def _first_of(x: Expr, y: Expr, first: Expr) -> Expr:
    """``x`` where it is first, or NaN, which wins, as in numpy: a comparison with NaN is false."""
    return where(fn.isnan(x) | first if x.ctype in ("float", "double") else first, x, y)


_declare_variadic("Max", lambda x, y: _first_of(x, y, x > y), ARITHMETIC)
_declare_variadic("Min", lambda x, y: _first_of(x, y, x < y), ARITHMETIC)
_declare_variadic("Sum", operators.add, FLOATING)


@operator("Mean", since=6, types={"T": every("Mean", among=FLOATING)})
def mean(b: Builder, *inputs: Tensor) -> Tensor:
    total = _fold_variadic(b, inputs, operators.add)
    return b.store(b.expr("div", total, len(inputs)), inputs[0].dtype, shape=_broadcast(b, inputs))


@operator("Where", types={"B": ("bool",), "T": every("Where")})
def where_(b: Builder, condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    chosen = b.expr("where", condition, x, y, ctype=x.dtype.glsl_compute)
    return b.store(chosen, x.dtype, shape=_broadcast(b, (condition, x, y)))
