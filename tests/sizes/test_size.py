"""Sizes: arithmetic as with whole numbers, conditions that hold exactly where all decisions come out the same, bounds."""

from __future__ import annotations

import math
import pickle
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vkep.sizes import (
    Real,
    Size,
    SizeError,
    Trace,
    active,
    at_hand,
    called,
    divides,
    fixed,
    fixed_text,
    hint,
    largest,
    matches,
    plain_text,
    power_of_two_in,
    stays_few,
    whole,
    wholes,
)
from vkep.sizes.magic import magic

Program = tuple[Any, ...]
SYMBOLS = 3
sizes = st.lists(st.integers(2, 300), min_size=SYMBOLS, max_size=SYMBOLS)
others = st.lists(st.one_of(st.just(1), st.integers(1, 300)), min_size=SYMBOLS, max_size=SYMBOLS)


def _inner(inner: st.SearchStrategy[Program]) -> st.SearchStrategy[Program]:
    small = st.integers(-9, 9)
    return st.one_of(
        st.tuples(st.sampled_from("+-*"), inner, inner),
        st.tuples(st.sampled_from(["//", "%"]), inner, small.filter(bool).map(lambda n: ("number", n))),
        st.tuples(st.sampled_from(["//", "%"]), inner, st.tuples(st.just("symbol"), st.integers(0, SYMBOLS - 1))),
        st.tuples(st.just("neg"), inner),
        st.tuples(st.just("max"), inner, inner),
        st.tuples(st.just("abs"), inner),
    )


programs = st.recursive(
    st.one_of(
        st.tuples(st.just("symbol"), st.integers(0, SYMBOLS - 1)), st.tuples(st.just("number"), st.integers(-40, 40))
    ),
    _inner,
    max_leaves=8,
)
decisions = st.lists(
    st.tuples(st.sampled_from(["<", "<=", ">", ">=", "==", "!=", "bool"]), programs, programs), max_size=4
)


def value(program: Program, given: list[Any]) -> Any:
    """What a program computes, of numbers or sizes."""
    op, *inner = program
    if op == "symbol":
        return given[inner[0]]
    if op == "number":
        return inner[0]
    a, *rest = [value(p, given) for p in inner]
    if op == "neg":
        return -a
    if op == "abs":
        return abs(a)
    return BINARY[op](a, rest[0])


BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "max": lambda a, b: largest(a, b),
}
TESTS: dict[str, Callable[[Any, Any], bool]] = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "bool": lambda a, b: bool(a),
}


def traced(at: list[int]) -> tuple[Trace, list[Any]]:
    trace = Trace()
    return trace, [trace.symbol(n) for n in at]


@given(programs, sizes, others)
def test_formulas_are_what_whole_numbers_give(program: Program, at: list[int], other: list[int]) -> None:
    trace, symbols = traced(at)
    found = value(program, symbols)
    assert hint(found) == value(program, at)
    formulas = trace.formulas([found])
    assert formulas(at) == (value(program, at),)
    if trace.holds().hold(other):
        assert formulas(other) == (value(program, other),)


@given(decisions, sizes, others)
def test_conditions_hold_exactly_where_decisions_come_out_the_same(
    asked: list[tuple[str, Program, Program]], at: list[int], other: list[int]
) -> None:
    trace, symbols = traced(at)
    told = [TESTS[op](value(a, symbols), value(b, symbols)) for op, a, b in asked]
    assert told == [TESTS[op](value(a, at), value(b, at)) for op, a, b in asked]
    holds = trace.holds()
    assert holds.hold(at) and not holds.failed(at)
    assert holds.hold(other) == (not holds.failed(other))
    if holds.hold(other):
        assert told == [TESTS[op](value(a, other), value(b, other)) for op, a, b in asked]


@given(st.sampled_from(["<", "<=", ">", ">=", "==", "!=", "bool"]), programs, programs, sizes, others)
def test_a_single_decision_has_no_more_conditions_than_it_needs(
    op: str, a: Program, b: Program, at: list[int], other: list[int]
) -> None:
    if "abs" in repr((a, b)):  # decides on the way
        return
    trace, symbols = traced(at)
    told = TESTS[op](value(a, symbols), value(b, symbols))
    assert trace.holds().hold(other) == (told == TESTS[op](value(a, other), value(b, other)))


@given(decisions, programs, sizes, others)
def test_bounds_hold_for_every_size_that_meets_the_conditions(
    asked: list[tuple[str, Program, Program]], program: Program, at: list[int], other: list[int]
) -> None:
    trace, symbols = traced(at)
    for op, a, b in asked:
        TESTS[op](value(a, symbols), value(b, symbols))
    found = value(program, symbols)
    if isinstance(found, Size) and trace.holds().hold(other):
        for bounds in (trace.bounds(found), trace._tight_bounds(found)):
            assert bounds[0] <= value(program, other) <= bounds[1]


@given(programs, sizes, others)
def test_a_plain_number_is_asked_for_under_the_condition_that_it_is_the_same(
    program: Program, at: list[int], other: list[int]
) -> None:
    trace, symbols = traced(at)
    found = value(program, symbols)
    before = trace.holds()
    assert fixed(found, "why") == value(program, at)
    if before.hold(other):
        assert trace.holds().hold(other) == (value(program, other) == value(program, at))


@given(programs, programs, sizes)
def test_formulas_are_plain_data(a: Program, b: Program, at: list[int]) -> None:
    trace, symbols = traced(at)
    formulas = trace.formulas([value(a, symbols), 2.5, value(b, symbols)])
    again = pickle.loads(pickle.dumps(formulas))
    assert again == formulas and again(at) == formulas(at) == (value(a, at), 2.5, value(b, at))


def test_values_of_0_and_1_are_plain_numbers() -> None:
    trace = Trace()
    assert trace.symbol(0) == 0 and trace.symbol(1) == 1 and isinstance(trace.symbol(7), Size)
    holds = trace.holds()
    assert holds.hold([0, 1, 2]) and not holds.hold([1, 1, 7]) and not holds.hold([0, 0, 7])
    assert holds.hold([0, 1, 1]) and not holds.hold([0, 1, 0])
    assert trace.fixed_symbols() == [0, 1]


def test_equal_formulas_are_equal_without_a_condition() -> None:
    trace, (n, m, _) = traced([6, 4, 2])
    before = len(trace.conditions)
    assert (n + m) * (n - m) == n * n - m * m and n * m // m == n and (4 * n + 3) // 4 == n and n * m % n == 0
    assert hash(n + 1) == hash(1 + n) and {n * 2: "twice"}[n + n] == "twice"
    assert (n * m + m * m) // (n + m) == m and (n * m + m * m) % (m + n) == 0 and (n * n - 1) // (n + 1) == n - 1
    assert 4 * n * n - n > 0 and n >= 1 and n != 0 and n * 2 != 7
    assert len(trace.conditions) == before


def test_sizes_of_two_traces_differ() -> None:
    assert traced([5, 2, 2])[1][0] != traced([5, 2, 2])[1][0]


def test_choices_at_hand_record_nothing() -> None:
    trace, (n, m, _) = traced([48, 7, 2])
    before = len(trace.conditions)

    @at_hand
    def tile(total: int, most: int = 64) -> int:
        return min(total, most)

    assert tile(n) == 48 and tile(4, most=n) == 4
    assert not divides(4, m) and divides(4, n * 4) and power_of_two_in(n * 4, 16) == 4 and power_of_two_in(12, 16) == 4
    assert len(trace.conditions) == before
    assert divides(4, n)
    assert trace.holds().hold([52, 7, 2]) and not trace.holds().hold([50, 7, 2])
    general = Trace(general=True)
    other = general.symbol(48)
    before = len(general.conditions)
    assert not divides(4, other) and divides(4, 8 * other) and divides(4, 8) and len(general.conditions) == before
    assert not matches(other, 48) and matches(2 * other, other + other) and len(general.conditions) == before


def test_few_of_something() -> None:
    """A size of the run has conditions for both answers, a computed one only where it is few and stays so."""
    assert stays_few(8, 8) and not stays_few(9, 8)
    trace, (n, m, _) = traced([5, 7, 2])
    before = len(trace.conditions)
    assert not stays_few(n * m, 8) and stays_few(n % 4, 3) and len(trace.conditions) == before
    assert stays_few(n, 8) and not stays_few(m, 4) and stays_few(2 * n + 2, 14)
    holds = trace.holds()
    assert holds.hold([6, 5, 2]) and not any(map(holds.hold, [[7, 7, 2], [5, 4, 2]]))
    for other in (Trace(general=True), Trace(seen=[[9]])):
        n = other.symbol(4)
        before = len(other.conditions)
        assert not stays_few(2 * n, 16) and len(other.conditions) == before
        assert stays_few(n, 8) and other.holds().hold([8]) and not other.holds().hold([9])


def test_numbers_that_match() -> None:
    trace, (n, m, _) = traced([48, 7, 2])
    before = len(trace.conditions)
    assert not matches(n, m) and not matches(n, 47) and matches(n + m, m + n) and matches(3, 3) and not matches(3, 4)
    assert len(trace.conditions) == before
    assert matches(n, 48)
    assert trace.holds().hold([48, 7, 2]) and not trace.holds().hold([50, 7, 2])


def test_functions_of_sizes() -> None:
    trace, (n, m, _) = traced([48, 7, 2])
    numbers = [
        called("magic_multiplier", n),
        called("magic_shift", n),
        n.bit_length(),
        1 << m.bit_length(),
        largest(n, m),
    ]
    formulas = trace.formulas(numbers)
    for at in ([48, 7, 2], [9, 300, 2]):
        assert formulas(at) == (*magic(at[0]), at[0].bit_length(), 1 << at[1].bit_length(), max(at[:2]))
    assert len(trace.conditions) == 3  # that each is 2 at least


def test_floats_are_computed_and_decide_under_the_condition_of_the_comparison() -> None:
    trace, (n, m, _) = traced([16, 7, 2])
    scale = 1.0 / n**0.5 + 0.25 * m
    assert isinstance(scale, Real) and scale.hint == 1 / 16**0.5 + 0.25 * 7
    assert trace.formulas([scale, -scale, n / m])([64, 3, 2]) == (1 / 64**0.5 + 0.75, -(1 / 64**0.5 + 0.75), 64 / 3)
    assert not trace.fixed_symbols()
    assert 0 < scale <= 2.5 and scale != 2.5 and not trace.fixed_symbols()
    assert trace.holds().hold([64, 7, 2]) and not trace.holds().hold([64, 10, 2])
    with pytest.raises(SizeError, match=re.escape("got ((1.0 / (s0 ** 0.5)) + (s1 * 0.25))")):
        float(scale)
    assert fixed(scale, "why") == scale.hint and trace.fixed_symbols() == [0, 1]
    assert not trace.holds().hold([64, 7, 2])


def test_wholes_of_other_kinds() -> None:
    _, (n, _, _) = traced([16, 7, 2])
    assert whole(np.int64(3)) == 3 and whole(n) is n and wholes([np.int32(2), n, True]) == (2, n, 1)
    assert np.int64(3) * n == n * 3 and n + np.int64(1) == n + 1
    assert isinstance(np.int64(3) * n, Size) and isinstance(n - np.int64(1), Size)


def test_sizes_compare_with_floats() -> None:
    trace, (n, m, _) = traced([16, 7, 2])
    before = len(trace.conditions)
    assert n < math.inf and n > -math.inf and n > 0.0 and n > -0.0 and n != 0.5 and n != 0.0
    assert len(trace.conditions) == before
    assert n > 12.5 and m < 7.5 and n != 7.0
    holds = trace.holds()
    assert holds.hold([13, 7, 2]) and not holds.hold([12, 7, 2]) and not holds.hold([13, 8, 2])
    assert n > 1.5 * m and n != m / 2 and m / 2 < n and not trace.fixed_symbols()
    assert trace.holds().hold([16, 7, 2]) and trace.holds().hold([13, 7, 2])
    assert np.int64(17) > n and n == np.int64(16) and trace.fixed_symbols() == [0]


def test_sizes_and_floats_round_without_a_condition() -> None:
    trace, (n, m, _) = traced([16, 7, 2])
    assert math.floor(n) is n and math.ceil(n) is n and round(n) is n and n**5 == n * n * n * n * n
    half = m / 2
    rounded = [math.floor(half), math.ceil(half), round(half), math.trunc(half)]
    assert trace.formulas(rounded)([16, 9, 2]) == (4, 5, 4, 4)
    assert not trace.fixed_symbols()
    assert int(fixed(half, "why")) == 3 and trace.fixed_symbols() == [1]


def test_an_extent_that_is_not_active_is_0_and_decides_as_if_it_were() -> None:
    trace, (n, _, _) = traced([16, 7, 2])
    rows = active(n - 10, 7)
    assert rows == 7 and rows > 6 and int(rows) == 7 and active(n - 20, 7) == 7 and not trace.fixed_symbols()
    wide = active(n - 10, 7) * n
    assert wide > 100
    assert trace.formulas([rows, wide, called("magic_shift", rows)])([9, 7, 2]) == (0, 0, magic(1)[1])
    assert trace.formulas([rows])([11, 7, 2]) == (7,)
    assert not trace.holds().hold([9, 7, 2]) and trace.holds().hold([15, 7, 2])  # 7 * 9 is not above 100
    assert active(3, 7) == 7 and active(0, 7) == 0


def test_floats_of_an_element_type_are_those_of_numpy() -> None:
    trace, (n, m, _) = traced([16, 7, 2])
    third = called("float32.Div", n, 3.0)
    half = called("float16.Mul", called("float16.Cast", m), 0.1)
    whole_part = called("int64.Cast", called("float32.Div", n, 0.0))
    assert isinstance(third, Real) and isinstance(whole_part, Size)
    assert trace.formulas([third, half, whole_part])([40, 9, 2]) == (
        float(np.float32(40) / np.float32(3)),
        float(np.float16(np.float32(9) * np.float32(0.1))),
        2**63 - 1,
    )
    assert called("float32.Div", 1.0, 3.0) == float(np.float32(1) / np.float32(3))


def test_sizes_in_text() -> None:
    trace, (n, m, _) = traced([16, 7, 2])
    text = f"a [{n}, {m + 1!r}] of {[n]}"
    assert plain_text(text) == "a [16, 8] of [16]" and not trace.fixed_symbols()
    assert fixed_text(f"x[{n}]", trace, "why") == "x[16]" and trace.fixed_symbols() == [0]
    with pytest.raises(SizeError):
        f"{m:03}"


def test_conditions_that_do_not_hold_are_reported() -> None:
    trace, (n, m, _) = traced([16, 7, 2])
    assert n * m < 200 and n // 4 == 4
    assert trace.holds().failed([40, 7, 2]) == ["(-1*s0*s1 + 199) >= 0", "((s0 // (4)) + -4) == 0"]


def test_conditions_do_not_hold_where_a_formula_has_no_value() -> None:
    trace, (n, m, _) = traced([16, 7, 2])
    assert n // m == 2
    assert not trace.holds().hold([16, 0, 2]) and trace.holds().failed([16, 0, 2])


@pytest.mark.parametrize("divide", [lambda n: n // 0, lambda n: n % 0, lambda n: divmod(n, 0)])
def test_division_by_zero(divide: Callable[[Any], Any]) -> None:
    with pytest.raises(ZeroDivisionError):
        divide(traced([16, 7, 2])[1][0])
