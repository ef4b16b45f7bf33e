"""Operators of more inputs than a kernel has operands, against numpy and onnxruntime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import helper

from tests.ops.cases import by_onnxruntime, graph_of, model_of, on_vulkan, shared_context

pytestmark = pytest.mark.usefixtures("vulkan")
Array = np.ndarray[Any, Any]

_FOLDS: dict[str, Callable[[Array, Array], Array]] = {
    "Sum": np.add,
    "Mean": np.add,
    "Max": np.maximum,
    "Min": np.minimum,
}


def _folded(op_type: str, values: list[Array]) -> Array:
    """Of numpy, from left to right and in float32; rounded to the element type at the end."""
    kind = values[0].dtype
    total = values[0].astype(np.float32) if kind == np.float16 else values[0]
    for value in values[1:]:
        total = _FOLDS[op_type](total, value.astype(total.dtype))
    return (total / len(values) if op_type == "Mean" else total).astype(kind)


def _assert_like(op_type: str, got: Array, expected: Array) -> None:
    """Equal, but for a GPU's means: its quotient may be 2.5 units of the last place off (Vulkan's specification, "Precision of
    core SPIR-V Instructions")."""
    assert got.dtype == expected.dtype
    if op_type != "Mean" or shared_context().capabilities.device_type == "cpu":
        np.testing.assert_array_equal(got, expected)
    else:
        np.testing.assert_allclose(got, expected, rtol=2.5 * float(np.finfo(expected.dtype).eps))


def _run(op_type: str, inputs: dict[str, Array], **rest: Any) -> Array:
    return on_vulkan(model_of(op_type, inputs, **rest), inputs)[0]


@pytest.mark.gpu
@pytest.mark.parametrize("op_type", _FOLDS)
@pytest.mark.parametrize("count", [31, 32, 33, 60, 800])
def test_many_inputs(op_type: str, count: int) -> None:
    """A call's mask of indirect operands has 32 bits; a sum of more is rounded in the same order."""
    rng = np.random.default_rng(count)
    x = {f"x{i}": rng.standard_normal((2, 5) if i % 7 else (1, 5)).astype(np.float32) for i in range(count)}
    x["x3"][0, 1], x["x30"][0, 2], x["x2"][0, 3] = np.nan, np.nan, np.inf
    expected = _folded(op_type, list(x.values()))
    _assert_like(op_type, _run(op_type, x), expected)
    np.testing.assert_allclose(by_onnxruntime(model_of(op_type, x), x)[0], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("op_type", "dtype"),
    [(o, d) for o in ("Max", "Min") for d in (np.uint8, np.int16, np.int32, np.int64, np.float64)]
    + [(o, d) for o in ("Sum", "Mean") for d in (np.float16, np.float64)],
)
def test_many_inputs_of_each_type(op_type: str, dtype: Any) -> None:
    """Values between the parts of an expression are not rounded to the element type; scalar constants are inputs too."""
    rng = np.random.default_rng(0)
    low, high = (-4, 4) if np.dtype(dtype).kind == "f" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    x = {f"x{i}": rng.uniform(low, high, (3, 4) if i % 3 else ()).astype(dtype) for i in range(70)}
    constants = [f"x{i}" for i in range(0, 70, 6)]
    _assert_like(op_type, _run(op_type, x, constants=constants), _folded(op_type, list(x.values())))


@pytest.mark.parametrize("repeated", [False, True])
def test_thousands_of_inputs(repeated: bool) -> None:
    x = np.array([1.5, -2, np.inf], np.float32)
    names = ["x"] * 3000 if repeated else ["x", *(f"c{i}" for i in range(2999))]
    values = {"x": x, **{name: np.float32(0.25) * np.ones((), np.float32) for name in set(names) - {"x"}}}
    node = helper.make_node("Sum", names, ["y"])
    model = graph_of([node], values, ["y"], [name for name in values if name != "x"])
    np.testing.assert_array_equal(on_vulkan(model, values)[0], x * 3000 if repeated else x + 0.25 * 2999)


def test_a_concat_of_many_inputs() -> None:
    """Each input has a copy of its own."""
    x = {f"x{i}": np.full((2, 1 + i % 3), i, np.float32) for i in range(60)}
    np.testing.assert_array_equal(_run("Concat", x, axis=1), np.concatenate(list(x.values()), axis=1))
