"""Adapter files, and runs with them."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper, parser

import vkep
from vkep import (
    AdapterFormat,
    InferenceSession,
    InvalidInputError,
    InvalidModelError,
    LoraAdapter,
    OrtValue,
    RunOptions,
)

Open = Callable[..., InferenceSession]
X = np.array([[1, 2], [3, 4]], np.float32)
DOWN, UP = np.array([[1], [-1]], np.float32), np.array([[2, 5]], np.float32)


def model() -> bytes:
    """``x @ w + (x @ down) @ up``, with weights for an update of rank 0."""
    made = parser.parse_model(
        """<ir_version: 8, opset_import: ["": 18]>
        g (float[2,2] x, float[2,rank] down, float[rank,2] up) => (float[2,2] y) {
            p = MatMul(x, w)  d = MatMul(x, down)  q = MatMul(d, up)  y = Add(p, q)
        }"""
    )
    weights = {"w": np.eye(2), "down": np.zeros((2, 0)), "up": np.zeros((0, 2))}
    made.graph.initializer.extend(numpy_helper.from_array(a.astype(np.float32), n) for n, a in weights.items())
    return bytes(made.SerializeToString())


def written(path: Path, **arrays: Any) -> Path:
    made = AdapterFormat()
    made.set_adapter_version(7)
    made.set_model_version(3)
    made.set_parameters({name: OrtValue.ortvalue_from_numpy(array) for name, array in arrays.items()})
    made.export_adapter(path)
    return path


def active(path: Path) -> RunOptions:
    adapter, options = LoraAdapter(), RunOptions()
    adapter.Load(path)
    options.add_active_adapter(adapter)
    return options


@pytest.mark.gpu
def test_runs_with_adapters(open_session: Open, tmp_path: Path) -> None:
    session, options = open_session(model()), active(written(tmp_path / "a", down=DOWN, up=UP))
    expected = X + X @ DOWN @ UP
    for _ in range(2):
        np.testing.assert_array_equal(session.run(None, {"x": X}, options)[0], expected)
        np.testing.assert_array_equal(session.run(None, {"x": X})[0], X)
    np.testing.assert_array_equal(session.run(None, {"x": X, "up": 2 * UP}, options)[0], X + 2 * X @ DOWN @ UP)
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_output("y", "cpu")
    session.run_with_iobinding(binding, options)
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], expected)
    adapter, both = LoraAdapter(), RunOptions()
    both.add_active_adapter(adapter)
    for factor in (1, 3):  # an adapter that is loaded again has other tensors
        adapter.Load(written(tmp_path / f"{factor}", down=DOWN, up=factor * UP))
        np.testing.assert_array_equal(session.run(None, {"x": X}, both)[0], X + factor * X @ DOWN @ UP)
    with pytest.raises(InvalidInputError, match=r"unknown inputs \['other'\]"):
        session.run(None, {"x": X}, active(written(tmp_path / "b", other=UP)))


def test_files_are_those_of_onnxruntime(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", "1.20")
    arrays = {"down": DOWN, "codes": np.arange(7, dtype=np.int8), "none": np.zeros((0, 4), np.float16)}
    theirs = onnxruntime.AdapterFormat.read_adapter(str(written(tmp_path / "ours", **arrays)))
    assert (theirs.get_adapter_version(), theirs.get_model_version()) == (7, 3)
    theirs.export_adapter(str(tmp_path / "theirs"))
    for values in (theirs.get_parameters(), AdapterFormat.read_adapter(tmp_path / "theirs").get_parameters()):
        assert values.keys() == arrays.keys()
        for name, array in arrays.items():
            np.testing.assert_array_equal(values[name].numpy(), array, strict=True)


def test_files_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no adapter at"):
        AdapterFormat.read_adapter(tmp_path / "nothing")
    (tmp_path / "model").write_bytes(model())
    with pytest.raises(InvalidModelError, match="expected b'TORT'"):
        LoraAdapter().Load(tmp_path / "model")
    texts: Any = np.array(["text"], object)
    made = AdapterFormat()
    made.set_parameters({"t": texts})
    with pytest.raises(TypeError, match="STRING is not in the adapter format"):
        made.export_adapter(tmp_path / "texts")
    made.set_parameters({"t": OrtValue.ortvalue_from_numpy(np.array(2.5))})
    with pytest.raises(ValueError, match="'t' has no axis, expected one or more"):
        made.export_adapter(tmp_path / "texts")
    assert not (tmp_path / "texts").exists()


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    content = written(tmp_path / "whole", down=DOWN, up=UP).read_bytes()
    rng, path, refused = random.Random(3), tmp_path / "damaged", 0
    for _ in range(300):
        damaged = bytearray(content)
        for _ in range(rng.randint(1, 3)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        path.write_bytes(damaged[: rng.choice([None, rng.randrange(len(damaged))])])
        try:
            AdapterFormat.read_adapter(path)
        except vkep.InvalidModelError:
            refused += 1
    assert refused > 100
