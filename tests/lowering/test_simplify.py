"""Cheaper forms of fused expressions: their values are those of the expressions, by numpy."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest

from vkep.dtypes import DTYPES, FLOAT32
from vkep.ir import algebra as fn
from vkep.ir import expr as ex
from vkep.ir.code import generate
from vkep.ir.composed import composed
from vkep.ir.evaluate import evaluate
from vkep.ir.tensor import Tensor
from vkep.passes.simplify import by_inverses, in_floats
from vkep.sizes import Trace

RANGES = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-32768, 32767), "uint16": (0, 65535)}


def _x() -> ex.Leaf:
    return ex.leaf(Tensor.contiguous(FLOAT32, (4096,)))


def _values(seed: int) -> np.ndarray:
    """Numbers of all sizes, and middles between whole numbers."""
    rng = np.random.default_rng(seed)
    drawn = rng.standard_normal(3000) * 10.0 ** rng.integers(-3, 12, 3000)
    middles, special = rng.integers(-600, 600, 1000) / 2, [np.inf, -np.inf, *np.zeros(94)]
    return np.concatenate([drawn, middles, special]).astype(np.float32)


def _number(value: float, ctype: str = "float") -> ex.Expr:
    return fn.cast(ex.Const(ctype, value=value), "float") if ctype != "float" else ex.Const(ctype, value=value)


def _codes(x: ex.Expr, rng: np.random.Generator, kind: str) -> tuple[ex.Expr, int]:
    """A quantization as the operators write it, and its zero point."""
    low, high = RANGES[kind]
    zero = int(rng.integers(low, high + 1)) if rng.integers(3) else 0
    shifted = fn.round_even(fn.exact_divide(x, _number(float(np.float32(rng.uniform(0.01, 2))))))
    if zero or rng.integers(2):
        shifted = shifted + _number(float(zero))
    return fn.cast(fn.clamp(shifted, low, high), "uint" if kind[0] == "u" else "int"), zero


@pytest.mark.parametrize("seed", range(40))
def test_codes_stay_whole_numbers(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = _x()
    value: ex.Expr = x
    for _ in range(rng.integers(1, 5)):
        codes, zero = _codes(value, rng, str(rng.choice(list(RANGES))))
        less = zero if rng.integers(4) else int(rng.integers(0, 200))  # another model's zero point
        whole = fn.cast(codes, "int") - less
        value = fn.cast(whole, "float") * _number(float(np.float32(rng.uniform(0.01, 2))))
        value = value + x if rng.integers(2) else value
    simpler = in_floats(value)
    assert "cast" not in _operations(simpler)
    given = _values(seed)
    expected = evaluate(value, lambda _: given)
    np.testing.assert_array_equal(evaluate(simpler, lambda _: given), expected)
    compiled = composed(simpler)
    assert not {"round", "cast"} & {*_operations(compiled)}
    np.testing.assert_array_equal(evaluate(compiled, lambda _: given), expected)


@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "uint16", "int32"])
@pytest.mark.parametrize("less", [0, 7, -(2**21), 2**22])
def test_small_integers_become_floats_by_their_bits(kind: str, less: int) -> None:
    given = np.array([0, 1, np.iinfo(kind).min, np.iinfo(kind).max], kind)
    x = ex.leaf(Tensor.contiguous(DTYPES[kind], (4,)))
    expr = fn.cast(fn.cast(x, "int") - less if less else fn.cast(x, "int"), "float")
    made = composed(expr)
    assert ("small_float" in _operations(made)) == (kind != "int32" and abs(less) <= 2**21)
    np.testing.assert_array_equal(evaluate(made, lambda _: given), evaluate(expr, lambda _: given))


def test_a_sum_may_be_rounded_beyond_an_integer_type() -> None:
    x = ex.leaf(Tensor.contiguous(FLOAT32, (4,)))
    codes = fn.clamp(fn.round_even(x) + 3.0, 0, 255)
    for value, converts in ((fn.clamp(x, -(2.0**31), 2.0**31 - 128) + 100.0, "to_int("), (codes, " int(")):
        assert converts in generate(fn.cast(value, "int"), lambda _: "x").statements


def _operations(expr: ex.Expr) -> list[str]:
    """The operation of each node that is no leaf and no number."""
    done: dict[int, ex.Expr] = {}
    for node in ex.remaining(expr, done):
        done[id(node)] = node
    return [node.op for node in done.values() if node.args]


def test_what_is_not_limited_is_converted() -> None:
    x = _x()
    kept = [
        fn.cast(fn.cast(fn.round_even(x), "int"), "float"),  # it wraps, or is limited, by the type
        fn.cast(fn.cast(fn.clamp(x, -128, 127), "int"), "float"),  # it is truncated
        fn.cast(fn.cast(fn.clamp(fn.round_even(x) + 0.5, -128, 127), "int"), "float"),
        fn.cast(fn.cast(fn.clamp(fn.round_even(x), -np.inf, np.nan), "int"), "float"),
        fn.cast(fn.cast(fn.clamp(fn.round_even(x) + np.inf, -128, 127), "int"), "float"),
        fn.cast(fn.cast(fn.clamp(fn.round_even(x), -(2.0**30), 2.0**30), "int"), "float"),  # float32 skips numbers
        fn.cast(fn.cast(fn.clamp(fn.round_even(x), -128, 127), "uint"), "float"),  # it wraps
        fn.cast(fn.cast(fn.clamp(fn.round_even(x), 0, 255), "uint") - 3, "float"),  # so does this
    ]
    for expr in kept:
        assert in_floats(expr) is expr


def test_quotients_of_a_sum() -> None:
    total, other, given = _x(), _x(), _values(0)
    made = by_inverses(fn.exact_divide(total + 1.0, _number(1.4142135)) + fn.exact_divide(other, _number(3.0)), total)
    assert sorted(_operations(made)) == ["add", "add", "exact_div", "mul"]
    with np.errstate(all="ignore"):
        left, right = (given + np.float32(1)) / np.float32(1.4142135), given / np.float32(3)
    found, usual = evaluate(made, lambda _: given), np.isfinite(given)
    np.testing.assert_array_equal(found[~usual], (left + right)[~usual])
    found, left, right = found[usual], left[usual], right[usual]
    assert np.all(np.abs(found - left - right) <= 4e-7 * (np.abs(left) + np.abs(right)))


@pytest.mark.parametrize("by", [0.0, 1e-30, 1e30, np.inf])
def test_quotients_whose_inverse_is_not_usual(by: float) -> None:
    total = _x()
    expr = fn.exact_divide(total, _number(by))
    assert by_inverses(expr, total) is expr


def test_quotients_by_sizes() -> None:
    total, size = _x(), cast(int, Trace().symbol(7))
    expr = fn.exact_divide(total, ex.Const("float", value=size))
    assert by_inverses(expr, total) is expr
