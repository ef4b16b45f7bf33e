"""Data that an operator's specification forbids, in models that Vulkan, data graphs and the CPU share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.mixed.harness import places
from tests.tosa.harness import model
from vkep import InvalidInputError

X = np.arange(24, dtype=np.float32).reshape(4, 6)
#: by the operator that checks: a model whose other nodes are in data graphs, inputs, and a bad one
MODELS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "Gather": (
        "g (float[4,6] x, int64[2] i) => (float[2,6] y) { t = Sin(x) r = Gather(t, i) y = Cos(r) }",
        {"x": X, "i": np.array([0, 1])},
        {"i": np.array([0, 2**32 + 1])},
    ),
    "GatherElements": (
        "g (float[4,6] x, int64[2,6] i) => (float[2,6] y) { t = Sin(x) r = GatherElements(t, i) y = Cos(r) }",
        {"x": X, "i": np.ones((2, 6), np.int64)},
        {"i": np.full((2, 6), -5)},
    ),
    "GatherND": (
        "g (float[4,6] x, int64[2,2] i) => (float[2] y) { t = Sin(x) r = GatherND(t, i) y = Cos(r) }",
        {"x": X, "i": np.ones((2, 2), np.int64)},
        {"i": np.array([[0, 0], [3, 6]])},
    ),
    "ScatterND": (
        "g (float[4,6] x, int64[1,1] i, float[1,6] u) => (float[4,6] y) { t = Sin(x) r = ScatterND(t, i, u) y = Cos(r) }",
        {"x": X, "i": np.ones((1, 1), np.int64), "u": X[:1]},
        {"i": np.array([[4]])},
    ),
    "ScatterElements": (
        """g (float[4,6] x, int64[1,6] i, float[1,6] u) => (float[4,6] y) {
          t = Sin(x) r = ScatterElements(t, i, u) y = Cos(r) }""",
        {"x": X, "i": np.ones((1, 6), np.int64), "u": X[:1]},
        {"i": np.full((1, 6), 2**33)},
    ),
    "Div": (
        "g (int32[4] a, int32[4] b) => (int32[4] y) { t = Abs(a) r = Div(t, b) y = Neg(r) }",
        {"a": np.arange(4, dtype=np.int32), "b": np.ones(4, np.int32)},
        {"b": np.array([1, 0, 1, 1], np.int32)},
    ),
    "Mod of a divisor from a data graph": (
        "g (int32[4] a, int32[4] b) => (int32[4] y) { t = Abs(b) r = Mod(a, t) y = Neg(r) }",
        {"a": np.arange(4, dtype=np.int32), "b": np.ones(4, np.int32)},
        {"b": np.array([1, 0, 1, 1], np.int32)},
    ),
    "through two regions and the CPU": (
        "g (float[4,6] x, int64[2] i) => (float[1,2] y) { r = Gather(x, i) s = Sin(r) q = Slice(s, z, o, o) y = Transpose(q) }",
        {"x": X, "i": np.array([0, 1])},
        {"i": np.array([0, 9])},
    ),
    "in a branch": (
        """g (float[4,6] x, int64[2] i, bool c) => (float[2,6] y) { t = Sin(x)
          y = If (c) <then_branch = a () => (float[2,6] p) { r = Gather(t, i) p = Cos(r) },
                      else_branch = b () => (float[2,6] q) { s = Slice(t, z, w) q = Cos(s) }> }""",
        {"x": X, "i": np.array([0, 1]), "c": np.array(True)},
        {"i": np.array([0, -5])},
    ),
    "in the first step of a loop": (
        """g (float[4,6] x, int64[3,2] i, int64 n) => (float[2,6] y) { t = Sin(x) first = Slice(t, z, w)
          y = Loop (n, , first) <body = l (int64 k, bool c, float[2,6] before) => (bool on, float[2,6] after) {
            on = Identity(c) row = Gather<axis=0>(i, k) r = Gather(t, row) after = Add(before, r) }> }""",
        {"x": X, "i": np.zeros((3, 2), np.int64), "n": np.array(3)},
        {"i": np.array([[0, 99], [0, 1], [0, 1]])},
    ),
}
WEIGHTS = {"z": np.array([0]), "o": np.array([1]), "w": np.array([2])}


@pytest.mark.parametrize("prefer", ["vgf_first", "vulkan_first"])
@pytest.mark.parametrize("name", MODELS)
def test_bad_data_are_refused_by_either_delegate(opened: Any, name: str, prefer: str) -> None:
    text, good, bad = MODELS[name]
    session = opened(model(text, **WEIGHTS), prefer=prefer)
    before = session.run(None, good)
    if prefer == "vgf_first":
        assert {"vgf", "vulkan"} <= set(places(session))
    for _ in range(2):
        with pytest.raises(InvalidInputError, match=r"outside|divided by zero"):
            session.run(None, {**good, **bad})
        np.testing.assert_array_equal(session.run(None, good)[0], before[0])


def test_a_bound_output_of_a_data_graph_carries_the_error(opened: Any) -> None:
    text, good, bad = MODELS["Gather"]
    session = opened(model(text), prefer="vgf_first")
    binding = session.io_binding()
    binding.bind_output("y")
    for feeds, fails in (({**good, **bad}, True), (good, False)):
        for name, array in feeds.items():
            binding.bind_cpu_input(name, array)
        session.run_with_iobinding(binding)
        if fails:
            with pytest.raises(InvalidInputError, match="outside"):
                binding.copy_outputs_to_cpu()
        else:
            np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], session.run(None, good)[0])


def test_the_report_says_why_a_data_graph_has_not_the_node(opened: Any) -> None:
    text, good, bad = MODELS["Gather"]
    session = opened(model(text), prefer="vgf_first")
    (node,) = [n for n in session.report().nodes if n.op_type == "Gather"]
    assert node.where == "vulkan" and "check_data" in node.declined["vgf"]
    unchecked = opened(model(text), prefer="vgf_first", check_data=False)
    assert set(places(unchecked)) == {"vgf"}
    unchecked.run(None, {**good, **bad})
