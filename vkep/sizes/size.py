"""`Size`: an integer with a formula, and its current value (its hint).

A size is a polynomial over nodes: the sizes of a trace, and results of integer division and other functions of sizes.
Polynomials have a normal form, so that equality can be decided without a value. Where Python needs a decision (a
comparison, a truth value), the size decides by its hint, and the trace records the condition under which the decision
holds. Python gets no plain number of a size (`int`, `range`, an index): `SizeError`. Code that needs one asks for it with
`fixed` and says why; the condition is then that the size equals its hint.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import numpy as np

from vkep.sizes.formulas import CALLS

#: nodes whose values are multiplied, in ascending order
Product = tuple[int, ...]
#: products with their coefficients, in ascending order of products
Terms = tuple[tuple[Product, int], ...]

#: marks around a size's value within text: text for people drops the marks, text for compilers needs the value
_OPEN, _CLOSE = "\ue000", "\ue001"
_MARKED = re.compile(f"{_OPEN}([0-9]+):(-?[0-9]+){_CLOSE}")


class Tracing(Protocol):
    """The interface of `vkep.sizes.trace.Trace` that sizes use."""

    shown: list[Size]
    general: bool

    def product(self, product: Product) -> int:
        """The size that is the product of nodes."""

    def is_positive(self, value: Any) -> bool:
        """Whether a value is above 0; records the condition."""

    def is_zero(self, value: Any) -> bool:
        """Whether a value is 0; records the condition."""

    def vanishes(self, value: Any) -> bool:
        """Whether a size is 0, for a choice that is faster then; records the condition."""

    def stays_few(self, value: Any, most: int) -> bool:
        """Whether a size is at most ``most``, for a choice that is faster then; records the condition."""

    def fixed(self, value: Any, why: str) -> Any:
        """The value as a plain number; records that it must stay the same, and why."""

    def constant(self, value: Any) -> Any:
        """The value of a number that is the same at all sizes. Raises `SizeError` for others."""

    def divided(self, a: Any, b: Any) -> Any:
        """``a // b``."""

    def remainder(self, a: Any, b: Any) -> Any:
        """``a % b``."""

    def called(self, name: str, *arguments: Any) -> Any:
        """The result of a named function of sizes."""

    def real(self, op: str, a: Any, b: Any) -> Real:
        """The result of an operation on real numbers of sizes."""

    def marked(self, size: Size, begin: str, end: str) -> str:
        """A size within text, marked by the range that it is used for."""


class SizeError(RuntimeError):
    """Code takes a number that differs between runs for a plain number, without `fixed` and a reason. ``symbols``: the sizes that
    the number depends on."""

    def __init__(self, text: str, symbols: set[int]) -> None:
        super().__init__(
            f"a plain number is expected, got {text}, which a run's sizes give; use vkep.sizes.whole or largest in place of int "
            "and max, or vkep.sizes.fixed with the reason why a plan needs the number"
        )
        self.symbols = symbols


class Size:
    """An integer of a trace. Arithmetic with integers returns sizes, or a plain `int` where the formula is constant."""

    __slots__ = ("const", "hint", "terms", "trace")

    def __init__(self, trace: Tracing, terms: Terms, const: int, hint: int) -> None:
        self.trace, self.terms, self.const, self.hint = trace, terms, const, hint

    # ---- arithmetic

    def __add__(self, other: Any) -> Any:
        kind = other.__class__
        if kind is int:
            return Size(self.trace, self.terms, self.const + other, self.hint + other)
        if kind is Size:
            terms = dict(self.terms)
            for product, count in other.terms:
                terms[product] = terms.get(product, 0) + count
            return made(self.trace, terms, self.const + other.const)
        return _other(self, other, "+", lambda x: self + x)

    __radd__ = __add__

    def __neg__(self) -> Size:
        return Size(self.trace, tuple([(p, -c) for p, c in self.terms]), -self.const, -self.hint)

    def __pos__(self) -> Size:
        return self

    __floor__ = __ceil__ = __round__ = __pos__

    def __sub__(self, other: Any) -> Any:
        if other.__class__ is int:
            return Size(self.trace, self.terms, self.const - other, self.hint - other)
        if other.__class__ is Size:
            return self + -other
        return _other(self, other, "-", lambda x: self - x)

    def __rsub__(self, other: Any) -> Any:
        return -self + other if other.__class__ is int else _other(other, self, "-", lambda x: x - self, other)

    def __mul__(self, other: Any) -> Any:
        kind = other.__class__
        if kind is int:
            if other == 0:
                return 0
            if other == 1:
                return self
            terms = tuple([(p, c * other) for p, c in self.terms])
            return Size(self.trace, terms, self.const * other, self.hint * other)
        if kind is Size:
            product: dict[Product, int] = {}
            for a, x in (*self.terms, ((), self.const)) if self.const else self.terms:
                for b, y in (*other.terms, ((), other.const)) if other.const else other.terms:
                    key = tuple(sorted(a + b))
                    product[key] = product.get(key, 0) + x * y
            const = product.pop((), 0)
            return made(self.trace, product, const)
        return _other(self, other, "*", lambda x: self * x)

    __rmul__ = __mul__

    def __pow__(self, other: Any) -> Any:
        if other.__class__ is int and other >= 0:
            return math.prod([self] * other)
        return _real(self.trace, "**", self, other)

    def __floordiv__(self, other: Any) -> Any:
        if other.__class__ in (int, Size):
            return self.trace.divided(self, other)
        return _other(self, other, "//", lambda x: self // x)

    def __rfloordiv__(self, other: Any) -> Any:
        if other.__class__ is int:
            return self.trace.divided(other, self)
        return _other(other, self, "//", lambda x: x // self, other)

    def __mod__(self, other: Any) -> Any:
        if other.__class__ in (int, Size):
            return self.trace.remainder(self, other)
        return _other(self, other, "%", lambda x: self % x)

    def __rmod__(self, other: Any) -> Any:
        return self.trace.remainder(whole(other), self)

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __lshift__(self, count: int) -> Any:
        return self * (1 << whole(count))

    def __rlshift__(self, base: int) -> Any:
        return self.trace.called("power", base, self)

    def __rshift__(self, count: int) -> Any:
        return self // (1 << whole(count))

    def __abs__(self) -> Size:
        return self if self >= 0 else -self

    def __truediv__(self, other: Any) -> Real:
        return _real(self.trace, "/", self, other)

    def __rtruediv__(self, other: Any) -> Real:
        return _real(self.trace, "/", other, self)

    def bit_length(self) -> Any:
        """As `int.bit_length`."""
        return self.trace.called("bit_length", self)

    # ---- decisions

    def __lt__(self, other: Any) -> bool:
        return self.trace.is_positive(_difference(other, self))

    def __gt__(self, other: Any) -> bool:
        return self.trace.is_positive(_difference(self, other))

    def __le__(self, other: Any) -> bool:
        return not self.trace.is_positive(_difference(self, other))

    def __ge__(self, other: Any) -> bool:
        return not self.trace.is_positive(_difference(other, self))

    def __eq__(self, other: object) -> bool:
        if other.__class__ is Size and other.trace is not self.trace:
            return False
        if other.__class__ is int or other.__class__ is Size:
            return self.trace.is_zero(self - other)
        if other.__class__ is Real:
            return bool(other == self)
        if isinstance(other, float):
            return other.is_integer() and self.trace.is_zero(self - int(other))
        return self.trace.is_zero(self - other.__index__()) if hasattr(other, "__index__") else NotImplemented

    def __bool__(self) -> bool:
        return not self.trace.is_zero(self)

    def __hash__(self) -> int:
        # A dictionary finds an entry by sizes where their formulas are equal.
        return hash((id(self.trace), self.terms, self.const))

    # ---- plain numbers

    def __index__(self) -> int:
        return int(self.trace.constant(self))

    __int__ = __index__
    __trunc__ = __index__

    def __float__(self) -> float:
        return float(self.trace.constant(self))

    def __repr__(self) -> str:
        return self.trace.marked(self, _OPEN, _CLOSE)

    def __format__(self, spec: str) -> str:
        return repr(self) if not spec else format(self.trace.constant(self), spec)


class Real:
    """A float that is computed from sizes. It is written to a plan's arguments. A comparison decides by its current value, and
    the trace records the condition that it comes out the same."""

    __slots__ = ("hint", "node", "trace")

    def __init__(self, trace: Tracing, node: int, hint: float) -> None:
        self.trace, self.node, self.hint = trace, node, hint

    def __add__(self, other: Any) -> Real:
        return _real(self.trace, "+", self, other)

    def __radd__(self, other: Any) -> Real:
        return _real(self.trace, "+", other, self)

    def __sub__(self, other: Any) -> Real:
        return _real(self.trace, "-", self, other)

    def __rsub__(self, other: Any) -> Real:
        return _real(self.trace, "-", other, self)

    def __mul__(self, other: Any) -> Real:
        return _real(self.trace, "*", self, other)

    def __rmul__(self, other: Any) -> Real:
        return _real(self.trace, "*", other, self)

    def __truediv__(self, other: Any) -> Real:
        return _real(self.trace, "/", self, other)

    def __rtruediv__(self, other: Any) -> Real:
        return _real(self.trace, "/", other, self)

    def __pow__(self, other: Any) -> Real:
        return _real(self.trace, "**", self, other)

    def __neg__(self) -> Real:
        return _real(self.trace, "-", 0.0, self)

    def __float__(self) -> float:
        return float(self.trace.constant(self))

    def __int__(self) -> int:
        return int(float(self))

    def __floor__(self) -> Any:
        return self.trace.called("floor", self)

    def __ceil__(self) -> Any:
        return self.trace.called("ceil", self)

    def __trunc__(self) -> Any:
        return self.trace.called("int64.Cast", self)

    def __round__(self) -> Any:
        return self.trace.called("round", self)

    def __eq__(self, other: object) -> bool:
        if other.__class__ is Real and other.node == self.node:
            return True
        return self._decides("equal", self, other)

    def __bool__(self) -> bool:
        return not self._decides("equal", self, 0.0)

    def __hash__(self) -> int:
        return hash((id(self.trace), self.node))

    def __lt__(self, other: Any) -> bool:
        return self._decides("less", self, other)

    def __gt__(self, other: Any) -> bool:
        return self._decides("less", other, self)

    def __le__(self, other: Any) -> bool:
        return self._decides("at_most", self, other)

    def __ge__(self, other: Any) -> bool:
        return self._decides("at_most", other, self)

    def _decides(self, name: str, *pair: Any) -> bool:
        """A comparison of two numbers; records the condition that it comes out the same."""
        if not all(is_size(x) or isinstance(x, (int, float, np.number)) for x in pair):
            return NotImplemented
        return bool(self.trace.called(name, *[x.item() if isinstance(x, np.number) else x for x in pair]))

    def __repr__(self) -> str:
        return repr(self.hint)


def made(trace: Tracing, terms: dict[Product, int], const: int) -> Any:
    """The size with a polynomial; an `int` where it is constant."""
    kept = tuple(sorted([(product, count) for product, count in terms.items() if count]))
    if not kept:
        return const
    return Size(trace, kept, const, const + sum([count * trace.product(product) for product, count in kept]))


def is_size(value: object) -> bool:
    """Whether a number depends on a run's sizes."""
    return value.__class__ is Size or value.__class__ is Real


def called(name: str, *arguments: Any) -> Any:
    """Apply a function of `vkep.sizes.formulas.CALLS`."""
    sized = next((a for a in arguments if is_size(a)), None)
    return CALLS[name](*arguments) if sized is None else sized.trace.called(name, *arguments)


def fixed(value: Any, why: str) -> Any:
    """An `int` or a `float` in place of a number that depends on sizes: the plan serves only sizes that give the same number.

    Args:
        value: a size, or any other number, which is returned.
        why: why a plan needs the number; ``vkep explain --sizes`` prints it.
    """
    return value.trace.fixed(value, why) if is_size(value) else value


def largest(*values: Any) -> Any:
    """The maximum of integers, without a condition on which one it is."""
    return called("max", *values) if len(values) > 1 else values[0]


def smallest(*values: Any) -> Any:
    """The minimum of integers, without a condition on which one it is."""
    return -largest(*[-value for value in values])


def active(count: Any, number: Any) -> Any:
    """``number`` where ``count`` is above 0, else 0: the extent of what a run computes only then. Lowering takes it for the
    number, so what has this extent may also be computed where the count is 0: its results must not matter then.
    """
    return called("active", count, number)


def hint(value: Any) -> Any:
    """The current value, without a condition: for choices that are valid for every size (a tile, an order)."""
    return value.hint if value.__class__ is Size or value.__class__ is Real else value


def whole(value: Any) -> Any:
    """An integer as an `int` or a `Size`: replaces ``int`` in code that supports sizes."""
    return value if value.__class__ is int or value.__class__ is Size else int(value)


def wholes(values: Iterable[Any]) -> tuple[Any, ...]:
    """A shape whose elements are converted by `whole`."""
    return tuple([v if v.__class__ is int or v.__class__ is Size else int(v) for v in values])


def plain_text(text: str) -> str:
    """Text for people: sizes in it are replaced by their current values."""
    return _MARKED.sub(r"\2", text) if _OPEN in text else text


def text_parts(text: str, trace: Tracing) -> list[Any]:
    """The alternating strings and sizes of a text."""
    parts: list[Any] = _MARKED.split(text)  # text, number, value, text and so on
    return [trace.shown[int(parts[k])] if k % 3 else parts[k] for k in range(len(parts)) if k % 3 < 2]


def fixed_text(text: str, trace: Tracing, why: str) -> str:
    """Text for a compiler: sizes in it are fixed at their values."""
    return _MARKED.sub(lambda found: str(trace.fixed(trace.shown[int(found[1])], why)), text) if _OPEN in text else text


def _difference(a: Any, b: Any) -> Any:
    """An integer that is positive exactly where ``a > b``."""
    if a.__class__ is Real or b.__class__ is Real:
        return called("less", b, a)
    if a.__class__ not in (int, Size):
        a = _rounded(a, math.ceil)
    if b.__class__ not in (int, Size):
        b = _rounded(b, math.floor)
    return a - b


def _rounded(x: Any, towards: Callable[[float], int]) -> int:
    """The integer that a size is compared with instead of a number of another type."""
    x = x.__index__() if hasattr(x, "__index__") else float(x)
    if math.isinf(x):
        return (1 << 200) if x > 0 else -(1 << 200)
    return towards(x)


def _other(a: Any, b: Any, op: str, again: Callable[[int], Any], other: Any = None) -> Any:
    """Arithmetic of a size with a number that is neither `int` nor `Size`."""
    other = b if other is None else other
    trace = (a if a.__class__ is Size else b).trace
    if other.__class__ is Real or isinstance(other, float):
        return _real(trace, op, a, b)
    try:
        return again(other.__index__())  # numpy's integers, bool
    except AttributeError:
        return NotImplemented


def _real(trace: Tracing, op: str, a: Any, b: Any) -> Real:
    return trace.real(op, a, b)
