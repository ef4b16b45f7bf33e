"""Integers that the model computes: sizes, arithmetic on sizes, and assertions about sizes, which need no code."""

from __future__ import annotations

from collections.abc import Callable

from vkep.aten.builder import INT64, GraphBuilder, Size, Val
from vkep.aten.registry import aten


@aten("aten.sym_size.int")
def sym_size(b: GraphBuilder, x: Val, dim: int) -> Size:
    return b.size(x, b.axis(dim, x.rank))


@aten("et_vk.select_as_symint.default")
def select_as_symint(b: GraphBuilder, x: Val, dim: int, index: int) -> Size:
    axis = b.axis(dim, x.rank)
    taken = b.op("Gather", x, b.constant(index, INT64), axis=axis, dims=[d for k, d in enumerate(x.dims) if k != axis])
    return b.reshape(b.cast(taken, INT64), [])


@aten("add")
def add(b: GraphBuilder, x: Size, y: Size) -> Size:
    result = b.arithmetic("Add", x, y)
    if isinstance(result, Val) and isinstance(x, int) != isinstance(y, int):
        symbol, number = (x, y) if isinstance(x, Val) else (y, x)
        assert isinstance(symbol, Val)
        assert isinstance(number, int)
        base, offset = b.offsets.get(symbol.name, (symbol.name, 0))
        b.offsets[result.name] = (base, offset + number)
    return result


@aten("sub")
def sub(b: GraphBuilder, x: Size, y: Size) -> Size:
    return add(b, x, -y) if isinstance(y, int) else b.arithmetic("Sub", x, y)


@aten("mul")
def mul(b: GraphBuilder, x: Size, y: Size) -> Size:
    return b.arithmetic("Mul", x, y)


@aten("floordiv")
def floordiv(b: GraphBuilder, x: Size, y: Size) -> Size:
    if isinstance(x, int) and isinstance(y, int):
        return x // y
    x, y = b.number(x, INT64), b.number(y, INT64)
    return b.op("Div", b.op("Sub", x, b.op("Mod", x, y)), y)


def _comparison(name: str, op_type: str, compare: Callable[[int, int], bool]) -> None:
    @aten(name)
    def function(b: GraphBuilder, x: Size, y: Size) -> Size:
        if isinstance(x, int) and isinstance(y, int):
            return compare(x, y)
        return b.cast(b.op(op_type, b.number(x, INT64), b.number(y, INT64)), INT64)


for _name, _op_type, _compare in (
    ("lt", "Less", int.__lt__),
    ("gt", "Greater", int.__gt__),
    ("ge", "GreaterOrEqual", int.__ge__),
    ("le", "LessOrEqual", int.__le__),
    ("eq", "Equal", int.__eq__),
):
    _comparison(_name, _op_type, _compare)


@aten("aten._assert_scalar.default")
def assert_scalar(b: GraphBuilder, x: object, assert_msg: object = None) -> None:
    return None


@aten("aten.sym_constrain_range_for_size.default", "aten.sym_constrain_range.default")
def sym_constrain_range(b: GraphBuilder, size: object, min: object = None, max: object = None) -> None:
    return None
