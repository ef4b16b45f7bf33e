"""Comparisons, logic and selection."""

from __future__ import annotations

from vkep.aten.builder import BOOL, GraphBuilder, Number, Val
from vkep.aten.pointwise import promoted
from vkep.aten.registry import aten


def _comparison(name: str, op_type: str) -> None:
    @aten(f"aten.{name}.Tensor", f"aten.{name}.Scalar")
    def function(b: GraphBuilder, x: Val, other: Val | Number) -> Val:
        x, y = promoted(b, x, other)
        if x.elem == BOOL and op_type != "Equal":  # ONNX orders numbers only
            x, y = b.cast(x, b_int), b.cast(y, b_int)
        return b.op(op_type, x, y)

    b_int = 6  # int32


for _name, _op_type in {
    "eq": "Equal", "lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual",
}.items():  # fmt: skip
    _comparison(_name, _op_type)


@aten("aten.ne.Scalar", "aten.ne.Tensor")
def not_equal(b: GraphBuilder, x: Val, other: Val | Number) -> Val:
    return b.op("Not", b.op("Equal", *promoted(b, x, other)))


def _logic(name: str, op_type: str) -> None:
    @aten(f"aten.logical_{name}.default")
    def logical(b: GraphBuilder, x: Val, other: Val) -> Val:
        return b.op(op_type, b.cast(x, BOOL), b.cast(other, BOOL))

    @aten(f"aten.bitwise_{name}.Tensor")
    def bitwise(b: GraphBuilder, x: Val, other: Val) -> Val:
        x, other = promoted(b, x, other)
        return b.op(op_type if x.elem == BOOL else f"Bitwise{op_type}", x, other)


_logic("and", "And")
_logic("or", "Or")


@aten("aten.logical_not.default")
def logical_not(b: GraphBuilder, x: Val) -> Val:
    return b.op("Not", b.cast(x, BOOL))


@aten("aten.bitwise_not.default")
def bitwise_not(b: GraphBuilder, x: Val) -> Val:
    return b.op("Not" if x.elem == BOOL else "BitwiseNot", x)


@aten("aten.where.self")
def where(b: GraphBuilder, condition: Val, x: Val, other: Val) -> Val:
    x, other = promoted(b, x, other, b.results[0].elem)
    return b.op("Where", b.cast(condition, BOOL), x, other, elem=x.elem)
