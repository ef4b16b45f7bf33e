"""Functions of floats at the ends of their ranges, powers, remainders and quotients: held to exact arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.cases import model_of, on_vulkan

pytestmark = pytest.mark.usefixtures("vulkan")
Array = np.ndarray[Any, Any]


def _run(op_type: str, inputs: dict[str, Array], **rest: Any) -> Array:
    return on_vulkan(model_of(op_type, inputs, outputs=("out",), **rest), inputs)[0]


def _same(got: Array, expected: Array) -> None:
    """Equal to the bit, but for NaN's payload."""
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got, expected)
    if expected.dtype.kind == "f":
        whole = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(got)[whole], np.signbit(expected)[whole])


@pytest.mark.parametrize(
    ("op_type", "exact", "x"),
    [
        ("Asinh", np.arcsinh, [1e8, 2e9, -5e12, 1e20, -3e38, np.inf, -np.inf, np.nan, 0.0]),
        ("Acosh", np.arccosh, [1.0, 1.5, 2e9, 1e20, 3e38, np.inf, np.nan, 0.5, -1.0, -1e10, -np.inf]),
        ("Cosh", np.cosh, [88.0, 88.8, -89.3, 89.5, -90.0, np.inf, -np.inf, np.nan, 0.0]),
        ("Sinh", np.sinh, [88.0, 88.8, -89.3, 89.5, -90.0, np.inf, -np.inf, np.nan, 0.0, 0.05, -0.09]),
        ("Log", np.log, [1e-45, 3e-42, 1.1754942e-38, 1.1754944e-38, 0.0, np.inf, np.nan, 1.0, 3.0]),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_functions_to_the_ends_of_their_ranges(op_type: str, exact: Any, x: list[float]) -> None:
    values = np.array(x, np.float32)
    with np.errstate(all="ignore"):
        wanted = exact(values.astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(_run(op_type, {"x": values}), wanted, 1e-5)


@pytest.mark.parametrize(("op_type", "exact"), [("Asin", np.arcsin), ("Acos", np.arccos), ("Atan", np.arctan)])
def test_inverse_angles(op_type: str, exact: Any) -> None:
    """All digits, where GLSL's functions leave four."""
    x = np.linspace(-1, 1, 20001, dtype=np.float32)
    edges = np.array([1e-30, -1e-30, 0.0, -0.0, np.nan, 1.0, -1.0], np.float32)
    x = np.concatenate(
        [x, edges, x * 1e-3] + ([x * 10, 1e5 / edges[4:], [np.inf, -np.inf]] if op_type == "Atan" else [[2, -3]])
    )
    x = x.astype(np.float32)
    with np.errstate(all="ignore"):
        wanted = exact(x.astype(np.float64))
    np.testing.assert_allclose(_run(op_type, {"x": x}), wanted, 6e-7, 6e-7 if op_type == "Acos" else 0)


POWERS = [(-np.inf, 0.5), (-np.inf, -0.5), (-np.inf, 3.0), (-8.0, 1 / 3), (1.0, np.nan), (1.0, np.inf), (-1.0, -np.inf),
          (np.nan, 0.0), (-2.0, 3.0), (-2.0, 2.0), (0.0, 2.5), (2.0, -1.5), (np.inf, -1.0)]  # fmt: skip


def test_powers_where_there_is_a_real_one() -> None:
    x, y = np.array(POWERS, np.float32).T.copy()
    with np.errstate(all="ignore"):
        wanted = np.power(x, y)
    np.testing.assert_allclose(_run("Pow", {"x": x, "y": y}), wanted, 1e-5)


@pytest.mark.parametrize("exponent", [np.float64, np.float32, np.float16])
@pytest.mark.parametrize("base", [np.int32, np.int64])
def test_powers_of_mixed_types(base: Any, exponent: Any) -> None:
    """A whole exponent gives all digits, another one is cut towards 0 as in a cast from float."""
    x = np.array([3, -3, 7, 16, 2, 2, 10, 5], base)
    y = np.array([3, 3, 2, 0.5, 0.5, -1, 9, 0], exponent)
    with np.errstate(all="ignore"):
        wanted = np.power(x.astype(np.float64), y.astype(np.float64)).astype(base)
    _same(_run("Pow", {"x": x, "y": y}), wanted)


def test_powers_of_floats_to_doubles() -> None:
    x, y = np.array([2, -3, 9], np.float32), np.array([10, 3, 0.5], np.float64)
    np.testing.assert_allclose(_run("Pow", {"x": x, "y": y}), [1024, -27, 3], 1e-6)


def test_remainders_of_any_size_are_exact() -> None:
    rng = np.random.default_rng(1)
    bits = rng.integers(0, 0x7F800000, (2, 20000)) | rng.integers(0, 2, (2, 20000)) << 31
    x, y = bits.astype(np.uint32).view(np.float32)
    x = np.concatenate([x, np.array([3e38, 1e7, 5.3, -5.3, 7.0, -6.0, 6.0, np.inf, np.nan, 1.0], np.float32)])
    y = np.concatenate([y, np.array([7.0, 0.1, 1e-37, 2.0, np.inf, 3.0, -np.inf, 2.0, 2.0, 0.0], np.float32)])
    with np.errstate(all="ignore"):
        got, expected = _run("Mod", {"x": x, "y": y}, fmod=1), np.fmod(x, y)
    flushed = (
        (expected != 0) & (np.abs(expected) < np.finfo(np.float32).tiny) & (got == 0)
    )  # as a device may subnormals
    _same(np.where(flushed, expected, got), expected)


def test_quotients_by_subnormal_numbers() -> None:
    draw = np.random.default_rng(6)
    x = (2.0 ** draw.uniform(-125, 10, 2000) * draw.choice([-1, 1], 2000)).astype(np.float32)
    y = (2.0 ** draw.uniform(-148, -126, 2000)).astype(np.float32)
    with np.errstate(all="ignore"):
        exact = (x.astype(np.float64) / y).astype(np.float32)
    assert np.isinf(exact).any() and np.isfinite(exact).any()
    np.testing.assert_allclose(_run("Div", {"x": x, "y": y}), exact, 3e-7)


@pytest.mark.gpu
def test_quotients_that_round_to_a_tie() -> None:
    """The quotient that IEEE 754 rounds to, before it is rounded to a whole number: a division by a reciprocal is one unit
    beside it.
    """
    rng = np.random.default_rng(2)
    halves = rng.integers(-120, 120, 20000) + 0.5
    for size in (0.020971458, 0.1, 1 / 3, 3.7e-5):
        scale = np.array(size, np.float32)
        x = (halves * float(scale)).astype(np.float32)
        x = np.concatenate([x, np.nextafter(x, np.float32(np.inf)), np.nextafter(x, np.float32(-np.inf))])
        x[0] = np.float32(float.fromhex("0x1.a9780ep+1"))
        got = _run("QuantizeLinear", {"x": x, "scale": scale, "zero": np.array(0, np.int8)})
        _same(got, np.clip(np.rint(x / scale), -128, 127).astype(np.int8))
