"""Operators of integers: comparisons, bits, division."""

from __future__ import annotations

from dataclasses import replace

from vkep.tosa.graph import TosaBuilder, TosaTensor
from vkep.tosa.ops.casts import cast_to
from vkep.tosa.registry import FLOATS, tosa_operator
from vkep.tosa.type_legalization import SIGNED, bits_of

_BITS = ("int32", "int16", "int8", *SIGNED)
_COMPARED = (*FLOATS, "int32", "int16", "int8", "bool", "uint8", "uint16", "int64")


def _same(b: TosaBuilder, x: TosaTensor, y: TosaTensor) -> tuple[TosaTensor, TosaTensor]:
    """Both operands as floats if they are floats, or as int32: TOSA compares no other integers."""
    if x.dtype in FLOATS:
        return x, y
    if x.dtype == "uint32":
        b.decline("uint32, whose order TOSA's int32 has not")
    return _whole(b, x), _whole(b, y)


def _whole(b: TosaBuilder, x: TosaTensor) -> TosaTensor:
    if x.dtype == "int64":
        return bits_of(b, x)
    if x.array is not None:
        return b.constant(x.array.astype("int32"))
    return cast_to(b, x, "int32")


def _declare_comparison(op_type: str, since: int, name: str, swapped: bool) -> None:
    """``swapped``: TOSA has the comparison with the operands swapped."""

    @tosa_operator(op_type, types=_COMPARED, since=since)
    def compare(b: TosaBuilder, x: TosaTensor, y: TosaTensor) -> TosaTensor:
        return b.elementwise(name, *(_same(b, y, x) if swapped else _same(b, x, y)), dtype="bool")


for _comparison in (
    ("Equal", 7, "equal", False),
    ("Greater", 7, "greater", False),
    ("GreaterOrEqual", 12, "greater_equal", False),
    ("Less", 7, "greater", True),
    ("LessOrEqual", 12, "greater_equal", True),
):
    _declare_comparison(*_comparison)


# ---- bits


def _on_bits(b: TosaBuilder, name: str, x: TosaTensor, *others: TosaTensor) -> TosaTensor:
    made = b.elementwise(name, bits_of(b, x), *(bits_of(b, t) for t in others))
    return replace(made, stored="signed_bits") if x.dtype in SIGNED else made


def _declare_bitwise(op_type: str, name: str) -> None:
    @tosa_operator(op_type, types=_BITS)
    def bitwise(b: TosaBuilder, x: TosaTensor, y: TosaTensor) -> TosaTensor:
        return _on_bits(b, name, x, y)


for _bitwise in (("BitwiseAnd", "bitwise_and"), ("BitwiseOr", "bitwise_or"), ("BitwiseXor", "bitwise_xor")):
    _declare_bitwise(*_bitwise)


@tosa_operator("BitwiseNot", types=_BITS)
def bitwise_not(b: TosaBuilder, x: TosaTensor) -> TosaTensor:
    return _on_bits(b, "bitwise_not", x)


@tosa_operator("BitShift", types=tuple(SIGNED))
def bit_shift(b: TosaBuilder, x: TosaTensor, y: TosaTensor, *, direction: str) -> TosaTensor:
    return _on_bits(b, "logical_left_shift" if direction == "LEFT" else "logical_right_shift", x, y)


# ---- division


def quotient(b: TosaBuilder, x: TosaTensor, y: TosaTensor) -> TosaTensor:
    """int32 by int32, towards zero."""
    return b.elementwise("intdiv", x, y)


@tosa_operator("Mod", types=("int32",), since=10)
def mod(b: TosaBuilder, x: TosaTensor, y: TosaTensor, *, fmod: int = 0) -> TosaTensor:
    rest = b.sub(x, b.mul(quotient(b, x, y), y))
    if fmod:
        return rest
    zero = b.fill(x, 0)
    differs = b.elementwise(
        "logical_xor",
        b.elementwise("greater", zero, rest, dtype="bool"),
        b.elementwise("greater", zero, y, dtype="bool"),
    )
    there = b.unary("logical_not", b.elementwise("equal", rest, zero, dtype="bool"))
    return b.select(b.elementwise("logical_and", differs, there), b.add(rest, y), rest)
