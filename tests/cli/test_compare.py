"""``vkep compare``: values in order, the first that differs, and what cannot be compared."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

Run = Callable[..., Any]
pytestmark = pytest.mark.gpu
TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
three (float[2, 4] x) => (float[2, 4] y) <float[4] w = {1, 2, 3, BIAS}> {
    a = Exp(x)
    b = Add(a, w)
    y = Tanh(b)
}
"""


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """Two models whose second node differs."""
    paths = tmp_path / "a.onnx", tmp_path / "b.onnx"
    for path, bias in zip(paths, ("-2", "-3"), strict=True):
        onnx.save(onnx.parser.parse_model(TEXT.replace("BIAS", bias)), path)
    return paths


def test_a_model_against_the_cpu(run: Run, pair: tuple[Path, Path]) -> None:
    found = run("compare", pair[0], "--json")
    assert found.exit_code == 0, found.output
    data = json.loads(found.stdout)
    assert data["ok"] and data["first"] is None
    assert [(one["name"], one["operator"]) for one in data["values"]] == [("a", "Exp"), ("b", "Add"), ("y", "Tanh")]


def test_the_first_value_that_differs_is_named(run: Run, pair: tuple[Path, Path]) -> None:
    data = json.loads(run("compare", *pair, "--json").stdout)
    assert [one["name"] for one in data["values"] if not one["ok"]] == ["b", "y"] and data["first"] == "b"
    found = run("compare", *pair)
    assert found.exit_code == 1
    assert "first value that differs: b, computed by Add" in found.stdout
    assert run("compare", *pair, "--tolerance", 10).exit_code == 0
    only = json.loads(run("compare", *pair, "--outputs-only", "--json").stdout)
    assert not only["ok"] and only["values"] == [] and [one["name"] for one in only["outputs"]] == ["y"]


def test_stored_results_give_inputs_and_values(run: Run, pair: tuple[Path, Path], tmp_path: Path) -> None:
    x = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
    np.savez(
        tmp_path / "r.npz", in_x=x, out_a=np.exp(x), out_y=np.tanh(np.exp(x) + np.array([1, 2, 3, -2], np.float32))
    )
    data = json.loads(run("compare", pair[0], tmp_path / "r.npz", "--json").stdout)
    assert data["ok"] and [one["name"] for one in data["values"]] == ["a", "y"]
    assert run("compare", pair[1], tmp_path / "r.npz").exit_code == 1


def test_models_of_other_types_and_inputs(run: Run, pair: tuple[Path, Path], tmp_path: Path) -> None:
    half = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> h (float16[2, 4] x) => (float16[2, 4] y) { a = Exp(x) y = Tanh(a) }'
    )
    onnx.save(half, tmp_path / "half.onnx")
    data = json.loads(run("compare", pair[0], tmp_path / "half.onnx", "--tolerance", "0.01", "--json").stdout)
    assert [one["name"] for one in data["values"]] == ["a", "y"] and data["values"][0]["ok"]
    half.graph.input[0].name = half.graph.node[0].input[0] = "z"
    onnx.save(half, tmp_path / "other.onnx")
    refused = run("compare", pair[0], tmp_path / "other.onnx")
    assert refused.exit_code == 2 and "has the inputs z, the first model x" in refused.stderr


def test_weights_beside_the_model_are_found(run: Run, pair: tuple[Path, Path], tmp_path: Path) -> None:
    proto = onnx.load(pair[0])
    proto.graph.initializer[0].CopyFrom(
        onnx.numpy_helper.from_array(np.array([1, 2, 3, -2], np.float32), "w")
    )  # raw bytes
    onnx.save(proto, tmp_path / "e.onnx", save_as_external_data=True, location="e.data", size_threshold=0)
    assert (tmp_path / "e.data").exists() and run("compare", tmp_path / "e.onnx").exit_code == 0
