"""Cheaper forms of fused expressions.

Drivers for the CPU compile an expression once for each result that a lane stores, and on a GPU conversions between numbers and
integers are slower than sums: what quantization adds to a product was as dear as the product.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from vkep.ir import expr as ex
from vkep.ir.algebra import clamp
from vkep.ir.ops import Op, Pointwise
from vkep.passes.rewrite import Changes, Graph

#: float32 has every whole number up to this
_EXACT = 2**24
_QUOTIENTS = ("div", "exact_div", "exact_div_by_usual")


def codes_in_floats(op: Op, graph: Graph) -> Changes | None:
    """Codes that are dequantized where they are made stay whole numbers in float32."""
    if not isinstance(op, Pointwise):
        return None
    expr = in_floats(op.expr)
    return None if expr is op.expr else {op: [replace(op, expr=expr)]}


def in_floats(expr: ex.Expr) -> ex.Expr:
    """The expression without conversions of limited, rounded numbers to integers and back."""
    done: dict[int, ex.Expr] = {}
    for node in ex.remaining(expr, done):
        made = ex.with_args(node, tuple([done[id(a)] for a in node.args]))
        if made.op == "cast" and made.ctype == "float" and (whole := _whole(made.args[0])) is not None:
            made = whole.expr
        done[id(node)] = made
    return done[id(expr)]


def whole_numbers(integer: ex.Expr) -> ex.Expr | None:
    """The values of an integer expression in float32; None where float32 does not have them, or they are not limited."""
    found = _whole(integer)
    return None if found is None else found.expr


class _Whole(NamedTuple):
    """A clamp in float32 of a rounded number, or of its sum with a known whole one (`_zero_point`), from ``low`` to ``high``."""

    expr: ex.Expr
    low: int
    high: int


def _whole(integer: ex.Expr) -> _Whole | None:
    if integer.ctype not in ("int", "uint") or integer.op not in ("cast", "sub"):
        return None
    first = integer.args[0]
    found = _limited(first) if integer.op == "cast" and first.ctype == "float" else _whole(first)
    if found is not None and integer.op == "sub":
        less = ex.known_number(integer.args[1])
        found = None if less is None else _less(found, int(less))
    return None if found is None or (integer.ctype == "uint" and found.low < 0) else found


def _limited(value: ex.Expr) -> _Whole | None:
    """A clamp of a rounded number, or of its sum with a known whole one."""
    if value.op != "clamp":
        return None
    inner, *limits = value.args
    low, high = map(ex.known_number, limits)
    if low is None or high is None or not all(float(n).is_integer() and abs(n) <= _EXACT for n in (low, high)):
        return None
    return _Whole(value, int(low), int(high)) if _zero_point(inner)[0].op == "round" else None


def _zero_point(total: ex.Expr) -> tuple[ex.Expr, int]:
    """What a sum adds a known whole number to, and this; 0 where it is no such sum."""
    value = ex.known_number(total.args[1]) if total.op == "add" else None
    if value is None or not float(value).is_integer() or abs(value) > _EXACT:
        return total, 0
    return total.args[0], int(value)


def _less(whole: _Whole, number: int) -> _Whole | None:
    """``whole - number``, by other limits and another zero point."""
    low, high = whole.low - number, whole.high - number
    rounded, zero = _zero_point(whole.expr.args[0])
    zero -= number
    if max(abs(low), abs(high), abs(zero)) > _EXACT:
        return None
    moved = rounded + _number(zero) if zero else rounded
    return _Whole(clamp(moved, _number(low), _number(high)), low, high)


def _number(value: int) -> ex.Const:
    return ex.Const("float", value=float(value))


def by_inverses(expr: ex.Expr, total: ex.Leaf) -> ex.Expr:
    """The expression with quotients of what is computed from ``total``, a float32 sum, by known numbers as products with their
    inverses: the sum has a larger error than these have."""
    done: dict[int, ex.Expr] = {}
    follows: set[int] = {id(total)}
    for node in ex.remaining(expr, done):
        if any(id(a) in follows for a in node.args):
            follows.add(id(node))
        made = ex.with_args(node, tuple([done[id(a)] for a in node.args]))
        if made.op in _QUOTIENTS and made.ctype == "float" and id(node.args[0]) in follows:
            by = ex.known_number(made.args[1])
            if by is not None and 2.0**-60 <= abs(by) <= 2.0**60:
                made = made.args[0] * ex.Const("float", value=float(np.float32(1) / np.float32(by)))
        done[id(node)] = made
    return done[id(expr)]
