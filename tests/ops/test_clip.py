"""Clip in every version, type and form at infinities, NaN and the ends of the type's range: a missing limit is the last finite
number, a limit that is infinite is none. Computed, folded, and after a kernel whose epilogue it is."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from ml_dtypes import finfo
from onnx import helper

from tests.ops.cases import Array, by_onnxruntime, graph_of, model_of, on_vulkan
from tests.ops.special_values import FLOATS, special

pytestmark = pytest.mark.usefixtures("vulkan")
VERSIONS = (6, 11, 12, 13)
#: the limits: missing, infinite, finite; also both in the wrong order
ENDS = (None, -math.inf, math.inf, -2.5, 7.0)
FORMS = list(itertools.product(ENDS, ENDS))
#: those of attributes, which ONNX Runtime wants in order
ORDERED = [(low, high) for low, high in FORMS if (low or -3e38) <= (high or 3e38)]


def _forms(opset: int) -> list[tuple[float | None, float | None]]:
    return ORDERED if opset < 11 else FORMS


def _nodes(source: str, opset: int, kind: str) -> tuple[list[Any], dict[str, Array]]:
    """A Clip of a value for each pair of limits, and the limits."""
    constants = {f"end{k}": np.array(end).astype(FLOATS[kind]) for k, end in enumerate(ENDS) if end is not None}
    nodes = []
    for k, (low, high) in enumerate(_forms(opset)):
        given: dict[str, Any] = {"min": low, "max": high} if opset < 11 else {}
        limits = [] if opset < 11 else ["" if v is None else f"end{ENDS.index(v)}" for v in (low, high)]
        nodes.append(helper.make_node("Clip", [source, *limits], [f"y{k}"], **given))
    return nodes, constants


def _expected(x: Array, opset: int) -> list[Array]:
    """By ONNX's text: before version 11 the last finite numbers are those of float32."""
    last = float(finfo(np.float32 if opset < 11 else x.dtype).max)
    wide, found = x.astype(np.float64), []
    for low, high in _forms(opset):
        limited = np.minimum(np.maximum(wide, -last if low is None else low), last if high is None else high)
        with np.errstate(over="ignore"):
            found.append(limited.astype(x.dtype))
    return found


def _assert_equal(got: Array, right: Array, what: str) -> None:
    assert got.dtype == right.dtype, what
    np.testing.assert_array_equal(got.astype(np.float64), right.astype(np.float64), what)


@pytest.mark.parametrize("opset", VERSIONS)
@pytest.mark.parametrize("kind", FLOATS)
def test_every_form(kind: str, opset: int) -> None:
    """Limits as inputs of a run and as constants; the whole node folded; against ONNX Runtime where it computes in the type."""
    x = special(FLOATS[kind])
    nodes, ends = _nodes("x", opset, kind)
    values, wanted = {"x": x} | ends, _expected(x, opset)
    outputs = [f"y{k}" for k in range(len(wanted))]
    native = kind == "float32" or (kind in ("float16", "float64") and opset >= 12)
    for constants in ([], list(ends), list(values)):
        model = graph_of(nodes, values, outputs, constants, opset)
        for k, (got, right) in enumerate(zip(on_vulkan(model, values), wanted, strict=True)):
            _assert_equal(got, right, f"{_forms(opset)[k]}, constants {constants}")
        if native:
            for k, (theirs, right) in enumerate(zip(by_onnxruntime(model, values), wanted, strict=True)):
                _assert_equal(theirs, right, f"ONNX Runtime, {_forms(opset)[k]}")


@pytest.mark.parametrize("opset", VERSIONS)
@pytest.mark.parametrize("kind", ["float32", "float16"])
@pytest.mark.parametrize("producer", ["Conv", "Gemm", "MatMul", "Add"])
def test_after_an_operator(producer: str, kind: str, opset: int) -> None:
    """Clip is fused into the operator, whose result overflows; the limits are constants."""
    dtype = FLOATS[kind]
    x = (np.array([[1, -1, 2, 0, 0.5, -3, 3.9, 0.25]]) * float(finfo(dtype).max) / 4).astype(dtype)
    x = x[:, None, None] if producer == "Conv" else x.T
    y = np.full(
        (1, 1, 1, 1) if producer == "Conv" else (1, 1), float(finfo(dtype).max) if producer == "Add" else 4.0
    ).astype(dtype)
    values = {"x": x, "w": y} | ({"b": np.zeros(1, dtype)} if producer == "Gemm" else {})
    read = list(values)
    nodes, ends = _nodes("c", opset, kind)
    kept = [k for k, form in enumerate(_forms(opset)) if None in form]
    with np.errstate(over="ignore"):
        whole = x + y if producer == "Add" else x * y.reshape(-1)[0]
    wanted = _expected(whole, opset)
    for k in kept:  # each alone, so that it is fused
        made = helper.make_node(producer, read, ["c"])
        model = graph_of([made, nodes[k]], values | ends, [f"y{k}"], [*read[1:], *ends], opset)
        _assert_equal(on_vulkan(model, values)[0], wanted[k], str(_forms(opset)[k]))


@pytest.mark.parametrize("kind", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])
def test_integers(kind: str) -> None:
    dtype = np.dtype(kind)
    info = np.iinfo(dtype)
    x = np.array([info.min, info.min + 1, 0, 3, info.max - 1, info.max], dtype)
    for low, high in itertools.product((None, 2), (None, 3)):
        limits = [None if v is None else np.array(v, dtype) for v in (low, high)]
        inputs = {"x": x, "low": limits[0], "high": limits[1]}
        for constants in ([], [name for name, v in inputs.items() if v is not None]):
            model = model_of("Clip", inputs, constants=constants, opset=13)
            right = np.minimum(np.maximum(x, info.min if low is None else low), info.max if high is None else high)
            np.testing.assert_array_equal(
                on_vulkan(model, {k: v for k, v in inputs.items() if v is not None})[0], right
            )
