"""`Trace`: the sizes of one lowering, the nodes computed from them, and the conditions that were recorded."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from vkep.sizes.formulas import BINARY, CALLS, REALS, TESTS, WHOLES, Formulas, Operand, nodes_of
from vkep.sizes.size import Real, Size, SizeError, Terms, hint, is_size, made

#: conditions: the relation of a polynomial to 0
ZERO, NONZERO, AT_LEAST = "==", "!=", ">="
#: the bound of a size that has none
MOST = 1 << 62
#: a number of which all sizes so far may be multiples by chance: those to come are assumed to be multiples of half of it (kernels
#: ask for multiples of 8 at most)
_LARGE_STEP = 16
#: maximum number of terms in a quotient of two polynomials
_LONGEST_QUOTIENT = 16


class Trace:
    """Sizes, nodes and conditions of one lowering. Not thread-safe."""

    def __init__(self, general: bool = False, seen: Sequence[Sequence[int]] = ()) -> None:
        """``general``: nothing is chosen for sizes that a number divides (`vkep.sizes.divides`): fewer plans serve all sizes.
        ``seen``: the sizes of runs before; what is chosen for sizes that a number divides serves these too."""
        self.general, self._seen = general, seen
        self.nodes: list[tuple[str, tuple[Operand, ...]]] = []
        self.conditions: dict[tuple[str, Terms, int], str] = {}  #: with why a size is fixed
        self.symbols = 0
        self.lowering = False  #: whether an operator is being lowered: a comparison may only choose a kernel
        self.shown: list[Size] = []  #: sizes that were written into text
        self._hints: list[int | float] = []
        self._low: list[int] = []
        self._high: list[int] = []
        self._ids: dict[tuple[str, tuple[Operand, ...]], int] = {}

    def symbol(self, value: int) -> int | Size:
        """The next size of a run, with its current value. Values of 0 and 1 become plain numbers, under the condition that
        they stay so: they decide which tensors are empty and which dimensions broadcast. Other sizes are at least 1."""
        node = self._node("symbol", (self.symbols,), value, 0, MOST)
        self.symbols += 1
        size = Size(self, (((node,), 1),), 0, value)
        if value in (0, 1):
            self.fixed(size, "a dimension of 0 or 1 decides what is empty and what broadcasts")
            return value
        self._condition(AT_LEAST, size.terms, -1)
        return size

    @property
    def values(self) -> list[int]:
        """The current sizes, in order."""
        return [int(self._hints[self._ids["symbol", (k,)]]) for k in range(self.symbols)]

    # ---- requests of sizes

    def product(self, product: tuple[int, ...]) -> int:
        """The current value of nodes multiplied with each other."""
        return math.prod([int(self._hints[node]) for node in product])

    def is_positive(self, value: Any) -> bool:
        """Decide whether ``value > 0``."""
        if value.__class__ is int:
            return bool(value > 0)
        low, high = self._tight_bounds(value)
        if low > 0 or high <= 0:
            return low > 0
        if value.hint > 0:
            self._condition(AT_LEAST, value.terms, value.const - 1)
            return True
        flipped = -value
        self._condition(AT_LEAST, flipped.terms, flipped.const)
        return False

    def is_zero(self, value: Any) -> bool:
        """Decide whether ``value == 0``."""
        if value.__class__ is int:
            return bool(value == 0)
        low, high = self._tight_bounds(value)
        if low > 0 or high < 0:
            return False
        if low == high == 0:
            return True
        common = math.gcd(*[count for _, count in value.terms])
        if value.const % common:
            return False
        self._condition(NONZERO if value.hint else ZERO, value.terms, value.const)
        return not value.hint

    def vanishes(self, value: Size) -> bool:
        """Whether a size is 0 now, was in the runs before, and is in those that `_expected` gives, so that a choice for it is
        worth a condition; in a general trace none is. Then the condition is recorded."""
        return not value.hint and self._lasts(ZERO, value) and self.is_zero(value)

    def stays_few(self, value: Size, most: int) -> bool:
        """As `vanishes`, whether a size is at most ``most``. Of a size of the run itself both answers are conditions."""
        rest = most - value
        [(product, count), *more] = value.terms
        own = not more and count == 1 and not value.const and [self.nodes[node][0] for node in product] == ["symbol"]
        known = own or self._tight_bounds(rest)[0] >= 0
        return bool((known or (rest.hint >= 0 and self._lasts(AT_LEAST, rest))) and rest >= 0)

    def _lasts(self, relation: str, value: Size) -> bool:
        """Whether the value has had a relation to 0, which it has now, in the runs before, and has it in those that `_expected`
        gives. In a general trace nothing lasts."""
        if self.general or not self._seen or self.bounds(value) == (0, 0):
            return not self.general
        holds = replace(self.formulas([value]), relations=(relation,)).hold
        return all(map(holds, (*self._seen, *self._expected)))

    @functools.cached_property
    def _expected(self) -> list[list[int]]:
        """Sizes that runs may have: larger by the number that divides those so far (by half of a large one, see `_LARGE_STEP`) in
        all of them, or in one by twice, four times and so on as much. A product of two
        sizes, or a quotient, is divisible by chance where its parts are not."""
        now = self.values
        columns = zip(*self._seen, now, strict=True)
        common = [math.gcd(*column) for column in columns]
        steps = [0 if size < 2 else n if n < _LARGE_STEP else n // 2 for n, size in zip(common, now, strict=True)]
        found = [[size + step for size, step in zip(now, steps, strict=True)]]
        for k, step in enumerate(steps):
            while 0 < step <= now[k]:
                found.append([*now[:k], now[k] + step, *now[k + 1 :]])
                step *= 2
        return found

    def fixed(self, value: Any, why: str) -> Any:
        """The current value, under the condition that it stays the same: of a float, that every size stays the same that it is
        computed from. ``why``: see `vkep.sizes.fixed`."""
        if value.__class__ is Real:
            for symbol in self.symbols_of(value):
                node = self._ids["symbol", (symbol,)]
                self.fixed(Size(self, (((node,), 1),), 0, int(self._hints[node])), why)
        elif self.bounds(value) != (value.hint, value.hint):
            self._condition(ZERO, value.terms, value.const - value.hint, why)
        return value.hint

    def constant(self, value: Any) -> Any:
        """The value of a number that is the same at all sizes. Raises `SizeError` for others."""
        if value.__class__ is Real or self.bounds(value) != (value.hint, value.hint):
            formulas = self.formulas([value])
            raise SizeError(formulas.text(formulas.results[0]), self.symbols_of(value))
        return value.hint

    def divided(self, a: Any, b: Any) -> Any:
        """``a // b``, where one is a size. Raises ``ZeroDivisionError``."""
        if b == 0:
            raise ZeroDivisionError("a size divided by 0")
        if a.__class__ is int and a == 0:
            return 0
        if b.__class__ is Size:
            exact = _divided_exactly(self, a, b) if a.__class__ is Size else None
            if exact is not None:
                return exact
            low, high = (self.bounds(a) if a.__class__ is Size else (a, a)), self.bounds(b)
            known = (0, low[1]) if low[0] >= 0 and high[0] > 0 else (-MOST, MOST)
            return self._of("//", a, b, hint(a) // b.hint, *known)
        if b < 0:
            return self.divided(-a, -b)
        if a.terms[0][1] < 0:  # towards positive numbers: -n // 8 is -((n + 7) // 8)
            return -self.divided(-a + (b - 1), b)
        # multiples of b leave the division: (4n + 3) // 4 is n
        outside = {p: c // b for p, c in a.terms}
        inside = made(self, {p: c % b for p, c in a.terms}, a.const % b)
        whole_part = made(self, outside, a.const // b)
        if inside.__class__ is int:
            return whole_part + inside // b
        low_in, high_in = self._tight_bounds(inside)
        if low_in >= 0 and high_in < b:
            return whole_part
        common = math.gcd(b, *[c for _, c in inside.terms])
        if common > 1:
            inside = made(self, {p: c // common for p, c in inside.terms}, inside.const // common)
            b //= common
            low_in, high_in = self.bounds(inside)
        return whole_part + self._of("//", inside, b, inside.hint // b, low_in // b, high_in // b)

    def remainder(self, a: Any, b: Any) -> Any:
        """``a % b``, where one is a size. Raises ``ZeroDivisionError``."""
        if b == 0:
            raise ZeroDivisionError("a size modulo 0")
        if a.__class__ is int and a == 0:
            return 0
        if b.__class__ is Size:
            if a.__class__ is Size and _divided_exactly(self, a, b) is not None:
                return 0
            known = (0, self.bounds(b)[1]) if self.bounds(b)[0] > 0 else (-MOST, MOST)
            return self._of("%", a, b, hint(a) % b.hint, *known)
        if b < 0:
            return a - self.divided(a, b) * b
        inside = made(self, {p: c % b for p, c in a.terms}, a.const % b)
        if inside.__class__ is int:
            return inside % b
        low, high = self.bounds(inside)
        if low >= 0 and high < b:
            return inside
        return self._of("%", inside, b, inside.hint % b, 0, b - 1)

    def called(self, name: str, *arguments: Any) -> Any:
        """A function of `vkep.sizes.formulas.CALLS`."""
        if not any(map(is_size, arguments)):
            return CALLS[name](*arguments)
        value, low, high = CALLS[name](*map(hint, arguments)), 0, MOST
        if name == "active":  # lowering takes it for the number
            number = arguments[1]
            value, (low, high) = hint(number), self.bounds(number) if number.__class__ is Size else (number, number)
        elif name in REALS:
            return Real(self, self._node(name, tuple(map(operand, arguments)), value, -MOST, MOST), value)
        if name in WHOLES:
            low = -MOST
        elif name in TESTS:
            high = 1
        elif name == "gcd":
            low = 1  # of numbers that are not all 0
        elif name == "max":
            bounds = [self._tight_bounds(a) if a.__class__ is Size else (a, a) for a in arguments]
            low, high = max(least for least, _ in bounds), max(most for _, most in bounds)
            for k, argument in enumerate(arguments):
                if all(bounds[k][0] >= most for _, most in (*bounds[:k], *bounds[k + 1 :])):
                    return argument
        return self._size(self._node(name, tuple(map(operand, arguments)), value, low, high))

    def real(self, op: str, a: Any, b: Any) -> Real:
        """A float of two numbers."""
        value = BINARY[op](hint(a), hint(b))
        return Real(self, self._node(op, (operand(a), operand(b)), value, -MOST, MOST), value)

    def marked(self, size: Size, begin: str, end: str) -> str:
        """A size within text: see `vkep.sizes.size.plain_text`."""
        self.shown.append(size)
        return f"{begin}{len(self.shown) - 1}:{size.hint}{end}"

    # ---- bounds

    def bounds(self, size: Size) -> tuple[int, int]:
        """The range of a size for all possible sizes of a run."""
        low = high = size.const
        for product, count in size.terms:
            least = most = count
            for node in product:
                if self._low[node] < 0:
                    return -MOST, MOST
                least, most = least * self._low[node], most * self._high[node]
            low, high = (low + least, high + most) if count > 0 else (low + most, high + least)
        return low, high

    def _tight_bounds(self, size: Size) -> tuple[int, int]:
        """As `bounds`, also where terms of both signs meet: 4nn - n is positive, since in powers of (n - 2) all its
        coefficients are positive.
        """
        low, high = self.bounds(size)
        if low > 0 or high < 0 or len(size.terms) < 2:
            return low, high
        for product, count in size.terms:  # x - b * (x // b) is a remainder
            op, operands = self.nodes[product[0]]
            if len(product) > 1 or op != "//" or not isinstance(operands[1], int) or count % operands[1]:
                continue
            times = count // operands[1]  # of x in place of the quotient
            taken = operands[0]
            terms = dict(size.terms)
            del terms[product]
            for p, c in taken[1]:
                terms[p] = terms.get(p, 0) + times * c
            rest = made(self, terms, size.const + times * taken[2])
            least, most = self.bounds(rest) if rest.__class__ is Size else (rest, rest)
            ends = (0, -times * (operands[1] - 1))
            low, high = max(low, least + min(ends)), min(high, most + max(ends))
        shifted: dict[tuple[int, ...], int] = {(): size.const}
        for product, count in size.terms:
            parts: dict[tuple[int, ...], int] = {(): count}
            for node in product:
                if self._low[node] < 0:
                    return low, high
                parts = {
                    **{(*p, node): c for p, c in parts.items()},
                    **{p: c * self._low[node] for p, c in parts.items()},
                }
            for part, times in parts.items():
                shifted[part] = shifted.get(part, 0) + times
        base = shifted.pop(())
        if all(c >= 0 for c in shifted.values()):
            low = max(low, base)
        if all(c <= 0 for c in shifted.values()):
            high = min(high, base)
        return low, high

    def _condition(self, relation: str, terms: Terms, const: int, why: str = "") -> None:
        common = math.gcd(*[count for _, count in terms])
        if common > 1:  # rounds to values that integers can reach
            terms, const = tuple([(p, c // common) for p, c in terms]), const // common
        if relation != AT_LEAST and terms[0][1] < 0:
            terms, const = tuple([(p, -c) for p, c in terms]), -const
        self.conditions.setdefault((relation, terms, const), why)
        if len(terms) == 1 and len(terms[0][0]) == 1 and abs(terms[0][1]) == 1:
            [((node,), sign)] = terms
            if relation == ZERO:
                self._low[node] = self._high[node] = -const * sign
            elif relation == AT_LEAST and sign > 0:
                self._low[node] = max(self._low[node], -const)
            elif relation == AT_LEAST:
                self._high[node] = min(self._high[node], const)

    # ---- nodes

    def _of(self, op: str, a: Any, b: Any, value: int, low: int, high: int) -> Size:
        return self._size(self._node(op, (operand(a), operand(b)), value, low, high))

    def _size(self, node: int) -> Size:
        return Size(self, (((node,), 1),), 0, int(self._hints[node]))

    def _node(self, op: str, operands: tuple[Any, ...], value: int | float, low: int, high: int) -> int:
        key = (op, operands)
        found = self._ids.get(key)
        if found is None:
            found = self._ids[key] = len(self.nodes)
            self.nodes.append(key)
            self._hints.append(value)
            self._low.append(low)
            self._high.append(high)
        return found

    def symbols_of(self, value: Any) -> set[int]:
        """The numbers of the symbols that a number depends on."""
        waiting, seen, symbols = nodes_of(operand(value)), set[int](), set[int]()
        while waiting:
            node = waiting.pop()
            if node in seen:
                continue
            seen.add(node)
            op, operands = self.nodes[node]
            if op == "symbol":
                symbols.add(int(operands[0]))
            waiting += [n for taken in operands for n in nodes_of(taken)]
        return symbols

    # ---- the end

    def formulas(self, results: list[Any]) -> Formulas:
        """Formulas for these numbers (sizes, floats or plain ones)."""
        return Formulas.of(self.nodes, self.symbols, [operand(r) for r in results])

    def fixed_symbols(self) -> list[int]:
        """The sizes whose value lowering needed, by their number."""
        return [
            k for k in range(self.symbols) if (n := self._ids["symbol", (k,)]) >= 0 and self._low[n] == self._high[n]
        ]

    def range_of(self, symbol: int) -> tuple[int, int]:
        """The least and the most that the conditions on a size alone allow."""
        node = self._ids["symbol", (symbol,)]
        return self._low[node], self._high[node]

    def alone(self, symbol: int, terms: Terms) -> int:
        """1 or -1 where the terms are that size or its negative; else 0."""
        [(product, count), *more] = terms
        node = self._ids["symbol", (symbol,)]
        return count if product == (node,) and abs(count) == 1 and not more else 0

    def holds(self) -> Formulas:
        """Formulas for the conditions: each is a number that must have the relation to 0 in `relations`. An extent that is not
        active counts as in lowering, as if it were."""
        nodes = [("+", (operands[1], 0)) if op == "active" else (op, operands) for op, operands in self.nodes]
        return Formulas.of(nodes, self.symbols, [("sum", t, c) for _, t, c in self.conditions], self.relations)

    @property
    def relations(self) -> tuple[str, ...]:
        """The relations of the conditions."""
        return tuple([relation for relation, _, _ in self.conditions])


def operand(value: Any) -> Operand:
    """A number in the form that nodes refer to."""
    if value.__class__ is Size:
        return ("sum", value.terms, value.const)
    if value.__class__ is Real:
        return ("node", value.node)
    return value if isinstance(value, float) else int(value)


def _divided_exactly(trace: Trace, a: Size, b: Size) -> Any:
    """``a / b`` where that is a polynomial, by long division; else None."""
    rest = {**dict(a.terms), (): a.const} if a.const else dict(a.terms)
    divisor = {**dict(b.terms), (): b.const} if b.const else dict(b.terms)
    lead = max(divisor, key=_degree)
    quotient: dict[tuple[int, ...], int] = {}
    while rest and len(quotient) <= _LONGEST_QUOTIENT:
        first = max(rest, key=_degree)
        left = list(first)
        if rest[first] % divisor[lead] or any(not _removed(left, node) for node in lead):
            return None
        product, count = tuple(left), rest[first] // divisor[lead]
        quotient[product] = count
        for term, times in divisor.items():
            key = tuple(sorted(product + term))
            rest[key] = rest.get(key, 0) - count * times
            if not rest[key]:
                del rest[key]
    if rest:
        return None
    const = quotient.pop((), 0)
    return made(trace, quotient, const)


def _degree(product: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
    return len(product), product


def _removed(nodes: list[int], node: int) -> bool:
    if node not in nodes:
        return False
    nodes.remove(node)
    return True
