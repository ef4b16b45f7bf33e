"""Elementwise operators of several inputs, with numpy's broadcasting (ONNX operators)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vkep import dtypes
from vkep.ir import expr as ex
from vkep.ir.builder import Builder, Operand
from vkep.ir.expr import Expr
from vkep.ir.pointwise_ops import NAN
from vkep.ir.tensor import Tensor, broadcast_shapes
from vkep.kernels.kernel import MOST_READ
from vkep.ops import doubles
from vkep.ops.allowed import ARITHMETIC, FLOATING, SIGNED, UNSIGNED, every
from vkep.ops.registry import onnx_history, operator
from vkep.sizes import matches

_BOOL = dtypes.DTYPES["bool"]


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
        return op(b, x, y) if callable(op) else b.pointwise(op, x, y, dtype=_BOOL if boolean else None)

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
    # a division by zero must not trap on a CPU driver
    quotient = b.expr("({1} == {2} ? {2} : {0} / {1})", x, _divisor(b, y), 0)
    return b.pointwise("same", quotient, dtype=x.dtype, shape=_broadcast(b, (x, y)))


def _divisor(b: Builder, y: Tensor) -> Operand:
    """An integer divisor: ONNX Runtime refuses 0. (The lowest integer by -1 wraps, as in numpy.)"""
    known = y.array
    if known is not None and known.all():
        return y
    return b.require(y, "ne", "an integer is divided by zero", 0)


@operator("PRelu", since=7, types={"T": every("PRelu", among=(*FLOATING, *SIGNED, *UNSIGNED))})
def prelu(b: Builder, x: Tensor, slope: Tensor) -> Tensor:
    return b.pointwise("({0} < {2} ? {0} * {1} : {0})", x, slope, 0)


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
        simple = {1.0: "same", 2.0: "({0} * {0})", 3.0: "({0} * {0} * {0})"}
        if value in simple:
            return b.store(b.expr(simple[value], x), x.dtype, shape=broadcast_shapes(x.shape, y.shape))
    shape = _broadcast(b, (x, y))
    power = b.expr("cast", y, ctype="double" if x.dtype.name == "float64" else "float")
    if x.dtype.name == "float64":
        real = doubles.power(b, b.expr("same", x), power)
    else:
        real = b.expr("pow", b.expr("cast", x, ctype="float"), power)
    if x.dtype.kind == "float":
        if y.dtype.itemsize > 2 and y.dtype.name not in (
            "float32",
            x.dtype.name,
        ):  # odd ones may be rounded to even ones
            whole = "(floor({0}) == {0} && 2.0lf * floor(0.5lf * {0}) != {0})"
            odd = b.expr(whole if y.dtype.kind == "float" else "(({0} & {1}) != {2})", y, 1, 0, ctype="bool")
            real = b.expr("({0} ? with_sign({1}, {2}) : {1})", odd, real, b.expr("same", x), ctype=real.ctype)
        return b.store(real, x.dtype, shape=shape)
    kind = x.dtype.glsl_compute
    exact = _integer_power(b, x, b.expr("cast", y, ctype=kind))
    # truncated towards 0, unless the power's error is all that separates it from an integer
    if y.dtype.kind == "float":
        near = b.expr("(abs(round({0}) - {0}) < 1e-5 * abs({0}) ? round({0}) : trunc({0}))", real)
        exact = b.expr("(floor({0}) == {0} ? {1} : {2})", power, exact, b.expr("cast", near, ctype=kind), ctype=kind)
    return b.store(exact, x.dtype, shape=shape)


def _integer_power(b: Builder, x: Tensor, left: Expr) -> Expr:
    """x**left exactly, wrapping as the type does, by squaring (six steps are as many bits as a useful exponent has)."""
    base = b.expr("same", x)
    result = b.expr("({0} < {1} ? ({2} == {3} ? {3} : ({2} == -{3} ? {3} - ({0} & {3}) * ({3} + {3}) : {1})) : {3})",
                    left, 0, base, 1)  # fmt: skip
    for _ in range(6):
        result = b.expr("({0} > {3} && ({0} & {4}) != {3} ? {1} * {2} : {1})", left, result, base, 0, 1)
        base = b.expr("({0} * {0})", base)
        left = b.expr("({0} > {1} ? {0} >> 1 : {0})", left, 0)
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
    divisor = _divisor(b, y)
    rest = b.expr("({1} == {2} ? {2} : {0} - {1} * ({0} / {1}))", x, divisor, 0)
    if not fmod and x.dtype.kind != "uint":  # the sign of the divisor, as Python's %
        rest = b.expr("({0} != {2} && (({0} < {2}) != ({1} < {2})) ? {0} + {1} : {0})", rest, divisor, 0)
    return b.store(rest, x.dtype, shape=_broadcast(b, (x, y)))


def _float_mod(b: Builder, x: Tensor, y: Tensor, fmod: bool) -> Tensor:
    kind = x.dtype.glsl_compute
    a, d = b.expr("same", x), b.expr("same", y)
    # of float32 the bits: a device may take a subnormal divisor for 0
    zero = "(floatBitsToUint({1}) & 0x7fffffffu) == 0u" if kind == "float" else "{1} == 0.0"
    invalid = b.expr(f"(isnan({{0}}) || isnan({{1}}) || isinf({{0}}) || {zero})", a, d, ctype="bool")
    rest = b.expr("({2} || isinf({1}) ? {0} : exact_remainder({0}, {1}))", a, d, invalid)
    rest = b.expr("with_sign", rest, a)  # 0 has it too
    if not fmod:
        moved = b.expr(
            "({0} != {2} && (({0} < {2}) != ({1} < {2})) ? (isinf({1}) ? {1} : {0} + {1}) : {0})", rest, d, 0
        )
        rest = b.expr("({0} == {2} ? ({1} < {2} ? -abs({0}) : abs({0})) : {0})", moved, d, 0)
    result = b.expr(f"({{1}} ? {kind}({NAN}) : {{0}})", rest, invalid)
    return b.store(result, x.dtype, shape=_broadcast(b, (x, y)))


# ---- bits


def _declare_bitwise(op_type: str, sign: str) -> None:
    def lower(b: Builder, x: Tensor, y: Tensor) -> Tensor:
        return b.pointwise(f"({{0}} {sign} {{1}})", x, y)

    lower.__name__ = op_type.lower()
    operator(op_type, types={"T": every(op_type, among=ARITHMETIC)})(lower)


_declare_bitwise("BitwiseAnd", "&")
_declare_bitwise("BitwiseOr", "|")
_declare_bitwise("BitwiseXor", "^")


@operator("BitShift", types={"T": every("BitShift", among=ARITHMETIC)})
def bit_shift(b: Builder, x: Tensor, y: Tensor, *, direction: str) -> Tensor:
    if direction not in ("LEFT", "RIGHT"):
        b.invalid(f"direction is {direction!r}, expected 'LEFT' or 'RIGHT'")
    bits = 8 * x.dtype.itemsize
    sign = "<<" if direction == "LEFT" else ">>"
    # a shift by less than nothing or by all bits leaves what extending the sign would
    beyond = "({0} < {2} ? -{4} : {2})" if direction == "RIGHT" and x.dtype.kind == "int" else "{2}"
    below = "{1} < {2} || " if x.dtype.kind == "int" else ""
    return b.pointwise(f"({below}{{1}} >= {{3}} ? {beyond} : {{0}} {sign} int({{1}}))", x, y, 0, bits, 1)


# ---- limits


@operator("Clip", since=6, until=10, types={"T": every("Clip", among=FLOATING)})
def clip_6(b: Builder, x: Tensor, *, max: float = 3.4028234663852886e38, min: float = -3.4028234663852886e38) -> Tensor:
    return b.pointwise("(isnan({0}) ? {0} : min(max({0}, {1}), {2}))", x, min, max)


@operator("Clip", since=11, types={"T": every("Clip", among=ARITHMETIC)})
def clip(b: Builder, x: Tensor, min: Tensor | None = None, max: Tensor | None = None) -> Tensor:
    v = clipped = b.expr("same", x)
    if min is not None:
        clipped = b.expr("max", clipped, _bound(b, min, "min"))
    if max is not None:
        clipped = b.expr("min", clipped, _bound(b, max, "max"))
    if x.dtype.kind == "float":  # max() and min() need not keep NaN
        clipped = b.expr("(isnan({0}) ? {0} : {1})", v, clipped)
    return b.store(clipped, x.dtype, shape=x.shape)


def _bound(b: Builder, limit: Tensor, what: str) -> Tensor:
    b.expect(what, limit, (), (1,))  # ONNX says a scalar, ONNX Runtime takes a list of one too
    return b.reshape(limit, [])


def _fold_variadic(b: Builder, inputs: tuple[Tensor, ...], op: str) -> Expr:
    """The operator over inputs from left to right. Of many inputs, scalar constants are tensors too: as arguments they would
    all be in one kernel (`vkep.passes.split` bounds what a kernel reads)."""
    of: Sequence[Operand] = [ex.leaf(t) for t in inputs] if len(inputs) > MOST_READ else inputs
    result = b.expr("same", of[0])
    for value in of[1:]:
        result = b.expr(op, result, value)
    return result


def _broadcast(b: Builder, inputs: tuple[Tensor, ...]) -> tuple[int, ...]:
    try:
        return broadcast_shapes(*[t.shape for t in inputs])
    except ValueError:
        b.invalid(f"shapes {[t.shape for t in inputs]} do not broadcast")


def _declare_variadic(op_type: str, op: str, among: tuple[str, ...]) -> None:
    def lower(b: Builder, *inputs: Tensor) -> Tensor:
        chosen = op
        if op in ("<", ">"):  # NaN wins, as in numpy: a comparison with NaN is false, so the first branch tests for it
            nan = "isnan({0}) || " if inputs[0].dtype.kind == "float" else ""
            chosen = f"({nan}{{0}} {op} {{1}} ? {{0}} : {{1}})"
        # constants enter the expression without a leaf, so the shape is given
        return b.store(_fold_variadic(b, inputs, chosen), inputs[0].dtype, shape=_broadcast(b, inputs))

    lower.__name__ = op_type.lower()
    operator(op_type, since=6, types={"T": every(op_type, among=among)})(lower)


_declare_variadic("Max", ">", ARITHMETIC)
_declare_variadic("Min", "<", ARITHMETIC)
_declare_variadic("Sum", "add", FLOATING)


@operator("Mean", since=6, types={"T": every("Mean", among=FLOATING)})
def mean(b: Builder, *inputs: Tensor) -> Tensor:
    total = _fold_variadic(b, inputs, "add")
    return b.store(b.expr("div", total, len(inputs)), inputs[0].dtype, shape=_broadcast(b, inputs))


@operator("Where", types={"B": ("bool",), "T": every("Where")})
def where(b: Builder, condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    chosen = b.expr("where", condition, x, y, ctype=x.dtype.glsl_compute)
    return b.store(chosen, x.dtype, shape=_broadcast(b, (condition, x, y)))
