"""Pointwise expressions: the operations that a fused kernel computes for one element, as a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Union

import numpy as np

from vkep.errors import ExpressionError
from vkep.ir.meaning import NUMPY
from vkep.ir.pointwise_ops import OPERATIONS
from vkep.ir.tensor import Tensor
from vkep.sizes import serves_others

#: what the operators of an expression take: a number has the type of the expression beside it
Operand = Union["Expr", float, int, bool]


@dataclass(eq=False, slots=True)  # immutable by convention; not frozen, because that makes construction slower
class Expr:
    """A pointwise operation on its arguments, and the GLSL type of its result. Sharing is by identity.

    ``op`` is a name of `vkep.ir.pointwise_ops.OPERATIONS`, or an operator's own GLSL with ``{0}``, ``{1}`` for the arguments.
    """

    ctype: str
    op: str = ""
    args: tuple[Expr, ...] = ()
    _leaves: tuple[Leaf, ...] | None = field(default=None, init=False, repr=False)  #: cached by `leaves`

    def __bool__(self) -> bool:
        raise ExpressionError("an expression has a value only in a kernel: where() selects one of two values by it")

    # `==` is identity: expressions are keys of dictionaries. `vkep.ir.algebra.equal` compares values.

    def __add__(self, other: Operand) -> Expr:
        return apply("add", self, other)

    def __radd__(self, other: Operand) -> Expr:
        return apply("add", other, self)

    def __sub__(self, other: Operand) -> Expr:
        return apply("sub", self, other)

    def __rsub__(self, other: Operand) -> Expr:
        return apply("sub", other, self)

    def __mul__(self, other: Operand) -> Expr:
        return apply("mul", self, other)

    def __rmul__(self, other: Operand) -> Expr:
        return apply("mul", other, self)

    def __truediv__(self, other: Operand) -> Expr:
        return apply("div", self, other)

    def __rtruediv__(self, other: Operand) -> Expr:
        return apply("div", other, self)

    def __mod__(self, other: Operand) -> Expr:
        return apply("mod", self, other)

    def __rmod__(self, other: Operand) -> Expr:
        return apply("mod", other, self)

    def __and__(self, other: Operand) -> Expr:
        return apply("and" if self.ctype == "bool" else "bit_and", self, other)

    __rand__ = __and__

    def __or__(self, other: Operand) -> Expr:
        return apply("or" if self.ctype == "bool" else "bit_or", self, other)

    __ror__ = __or__

    def __xor__(self, other: Operand) -> Expr:
        return apply("ne" if self.ctype == "bool" else "bit_xor", self, other)

    __rxor__ = __xor__

    def __lshift__(self, other: Operand) -> Expr:
        return apply("shift_left", self, other)

    def __rshift__(self, other: Operand) -> Expr:
        return apply("shift_right", self, other)

    # where the right operand is a leaf or a constant, a subclass, Python calls its reflected comparison

    def __lt__(self, other: Operand) -> Expr:
        return apply("lt", self, other)

    def __le__(self, other: Operand) -> Expr:
        return apply("le", self, other)

    def __gt__(self, other: Operand) -> Expr:
        return apply("gt", self, other)

    def __ge__(self, other: Operand) -> Expr:
        return apply("ge", self, other)

    def __neg__(self) -> Expr:
        return apply("neg", self)

    def __abs__(self) -> Expr:
        return apply("abs", self)

    def __invert__(self) -> Expr:
        return apply("not" if self.ctype == "bool" else "bit_not", self)


@dataclass(eq=False, slots=True)
class Leaf(Expr):
    """An element of a tensor. The tensor is a view of the output's shape."""

    tensor: Tensor | None = None


@dataclass(eq=False, slots=True)
class Const(Expr):
    """A scalar known while planning. It is passed as an argument, so that its value selects no shader, unless it is a
    ``literal`` of the operator's code."""

    value: float | int = 0
    literal: bool = False


@dataclass(eq=False, slots=True)
class Checked(Expr):
    """The value of the first argument; where the second one (a bool) is false, the run has a fault."""

    reason: str = ""
    node: str = ""  #: the node whose specification requires it


def apply(op: str, *operands: Operand, ctype: str | None = None) -> Expr:
    """An operation of the table on expressions and numbers. A number is a literal of the type of the operands beside it.

    ``ctype``: the type of the result, where the operands do not determine it. Raises `ExpressionError` for operands that
    the operation does not take.
    """
    types = [_type_of(op, operand) for operand in operands]
    try:
        takes, result = OPERATIONS[op].resolved(types, ctype)
    except TypeError as error:
        raise ExpressionError(f"the operation {op!r} {error}") from None
    pairs = zip(operands, takes, strict=True)
    return Expr(result, op, tuple([o if isinstance(o, Expr) else literal(o, kind) for o, kind in pairs]))


def _type_of(op: str, operand: Any) -> str | None:
    """The GLSL type of an operand; None for a number, which has that of the others."""
    if isinstance(operand, Expr):
        return operand.ctype
    if isinstance(operand, (bool, np.bool_)):
        return "bool"
    if isinstance(operand, (int, float, np.number)) or serves_others(operand):
        return None
    raise ExpressionError(
        f"the operation {op!r} takes expressions and numbers, not {type(operand).__name__}; Builder.reads makes "
        "expressions of tensors"
    )


def literal(value: Any, ctype: str) -> Const:
    """A number as a part of the code; a size, which differs between runs, as an argument. Raises `ExpressionError` for a
    number that the type does not have."""
    if serves_others(value):
        return Const(ctype, value=value)
    kind = NUMPY[ctype].kind
    if kind in "iu":
        limits = np.iinfo(NUMPY[ctype])
        fits = value == value and int(value) == value and limits.min <= value <= limits.max
    else:
        fits = kind == "f" or isinstance(value, (bool, np.bool_))
    if not fits:
        raise ExpressionError(f"{value!r} is no number of the type {ctype}, which the operand beside it has")
    return Const(ctype, value=bool(value) if kind == "b" else float(value) if kind == "f" else int(value), literal=True)


def leaf(tensor: Tensor) -> Leaf:
    """An expression that reads the tensor's element."""
    return Leaf(tensor.dtype.glsl_compute, tensor=tensor)


def leaves(expr: Expr) -> tuple[Leaf, ...]:
    """Each distinct leaf, in order of first use. Cached by the expression, since fusion calls this often."""
    if isinstance(expr, Leaf):
        return (expr,)  # not cached: a reference cycle
    if expr._leaves is None:
        found: dict[Leaf, None] = {}
        seen: set[int] = set()
        stack: list[Expr] = [expr]
        while stack:
            node = stack.pop()
            if isinstance(node, Leaf):
                found[node] = None
            elif node._leaves is not None:
                found.update(dict.fromkeys(node._leaves))
            elif node.args and id(node) not in seen:
                seen.add(id(node))
                stack += node.args[::-1]
        expr._leaves = tuple(found)
    return expr._leaves


def known_number(expr: Expr) -> float | int | None:
    """The number that an expression is in every run; None where it is no number, or one of sizes."""
    while expr.op in ("cast", "same"):
        [expr] = expr.args
    return expr.value if isinstance(expr, Const) and not serves_others(expr.value) else None


def tensors(expr: Expr) -> list[Tensor]:
    """The tensor of each of the `leaves`."""
    return [leaf.tensor for leaf in leaves(expr) if leaf.tensor is not None]


def substitute(expr: Expr, replace: Callable[[Leaf], Expr | None]) -> Expr:
    """The expression with each leaf replaced for which ``replace`` returns an expression; shared parts stay shared."""
    done: dict[int, Expr] = {}
    for leaf in leaves(expr):
        placed = replace(leaf)
        if placed is not None and placed is not leaf:
            done[id(leaf)] = placed
    return _rebuilt(expr, done) if done else expr


# An operator of many inputs is an expression as deep as it has inputs, so no function here recurses.


def remaining(
    expr: Expr, done: Mapping[int, object], args: Callable[[Expr], tuple[Expr, ...]] | None = None
) -> Iterator[Expr]:
    """Each distinct node whose id is not in ``done``, after its arguments, from left to right. The caller adds a node to
    ``done`` before it asks for the next one. ``args``: the arguments of a node, where they are not its own."""
    stack = [expr]
    while stack:
        node = stack[-1]
        if id(node) in done:
            stack.pop()
            continue
        below = node.args if args is None else args(node)
        missing = [a for a in below if id(a) not in done] if below else None
        if missing:
            stack += missing[::-1]
        else:
            stack.pop()
            yield node


def _rebuilt(expr: Expr, done: dict[int, Expr]) -> Expr:
    for node in remaining(expr, done):
        done[id(node)] = with_args(node, tuple([done[id(a)] for a in node.args]))
    return done[id(expr)]


def inline(expr: Expr, inner: Mapping[Leaf, Expr]) -> Expr:
    """The expression with leaves replaced, also in what replaces them; shared parts stay shared."""
    done: dict[int, Expr] = {}

    def args(node: Expr) -> tuple[Expr, ...]:
        return (inner[node],) if isinstance(node, Leaf) and node in inner else node.args

    for node in remaining(expr, done, args):
        made = tuple([done[id(a)] for a in args(node)])
        done[id(node)] = made[0] if isinstance(node, Leaf) and made else with_args(node, made)
    return done[id(expr)]


def with_args(node: Expr, args: tuple[Expr, ...]) -> Expr:
    """The node with other arguments: a copy, unless they are its own."""
    if args == node.args:  # compares identities
        return node
    if isinstance(node, Checked):
        return Checked(node.ctype, node.op, args, node.reason, node.node)
    return Expr(node.ctype, node.op, args)


def is_checked(expr: Expr) -> bool:
    """Whether a part of the expression may have a fault."""
    seen: set[int] = set()
    stack = [expr]
    while stack:
        node = stack.pop()
        if isinstance(node, Checked):
            return True
        if node.args and id(node) not in seen:
            seen.add(id(node))
            stack += node.args
    return False


def count(expr: Expr) -> int:
    """Operations in the expression (its arithmetic cost for one element)."""
    seen: set[int] = set()
    stack = [expr]
    while stack:
        node = stack.pop()
        if node.args and id(node) not in seen:
            seen.add(id(node))
            stack += node.args
    return len(seen)
