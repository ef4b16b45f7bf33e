"""Comparing with a reference, latency numbers, spans and written outputs."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from vkep.cli.common import UsageError
from vkep.cli.measure import (
    Comparison,
    Latency,
    Spans,
    compare,
    cpu_reference,
    file_name,
    reference_outputs,
    save_outputs,
    statistics_of,
    time_runs,
)
from vkep.errors import VkepError


def one(got: object, expected: object, tolerance: float | None = None) -> Comparison:
    (found,) = compare({"y": got}, {"y": expected}, "a test", tolerance)
    return found


def test_the_error_is_relative_to_the_largest_magnitude() -> None:
    found = one(np.array([1.0, 100.0], np.float32), np.array([1.5, 100.0], np.float32))
    assert found.max_difference == 0.5
    assert found.relative_error == pytest.approx(0.005)
    assert found.tolerance == 1e-4
    assert not found.ok
    assert one(np.array([100.001], np.float32), np.array([100.0], np.float32)).ok
    assert one(np.array([100.5], np.float32), np.array([100.0], np.float32), tolerance=0.01).ok
    assert one(np.array([1.005], np.float16), np.array([1.0], np.float32)).ok  # float16 has its own tolerance
    assert one(np.zeros(3, np.float32), np.zeros(3, np.float32)).ok
    assert one(np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32)).ok


@pytest.mark.parametrize(
    ("got", "expected", "problem"),
    [
        (np.zeros((2, 3), np.float32), np.zeros((3, 2), np.float32), r"shape \(2, 3\), the reference has \(3, 2\)"),
        (np.array([np.nan], np.float32), np.array([1.0], np.float32), "other places"),
        (np.array([1.0], np.float32), np.array([np.nan], np.float32), "other places"),
        (np.array([np.inf], np.float32), np.array([-np.inf], np.float32), "other places"),
        (np.array([np.inf, 1], np.float32), np.array([1, np.inf], np.float32), "other places"),
        (np.array(["a"]), np.array(["b"]), "other text"),
    ],
)
def test_what_cannot_be_compared_is_not_equal(got: np.ndarray, expected: np.ndarray, problem: str) -> None:
    found = one(got, expected)
    assert not found.ok
    assert found.relative_error == math.inf
    assert re.search(problem, found.problem)


def test_not_finite_at_the_same_places_is_equal() -> None:
    values = np.array([np.nan, np.inf, -np.inf, 2.0], np.float32)
    assert one(values, values.copy()).ok
    assert one(np.array(["a"]), np.array(["a"])).ok


def test_integers_must_be_equal() -> None:
    large = np.array([2**62, 2**62 + 1], np.int64)
    assert one(large, large.copy()).ok
    assert not one(np.array([1000001]), np.array([1000000])).ok
    assert one(np.array([True]), np.array([True])).ok
    assert not one(np.array([True]), np.array([False])).ok


def test_only_outputs_of_the_reference_are_compared_and_one_must_be() -> None:
    outputs = {"a": np.zeros(1), "b": np.zeros(1)}
    assert [c.name for c in compare(outputs, {"b": np.zeros(1)}, "file.npz")] == ["b"]
    with pytest.raises(UsageError, match=r"file.npz has none of the outputs \['a', 'b'\]; it has \['c'\]"):
        compare(outputs, {"c": np.zeros(1)}, "file.npz")


def test_the_outputs_of_an_archive() -> None:
    x = np.zeros(1)
    assert set(reference_outputs({"in_x": x, "out_y": x})) == {"y"}
    assert set(reference_outputs({"in_x": x, "y": x})) == {"y"}


def test_latency_numbers() -> None:
    found = Latency.of([5.0, 1.0, 2.0, 3.0, 4.0, 6.0, 7.0, 8.0, 9.0, 100.0])
    assert found == Latency(runs=10, median_ms=5.5, p90_ms=9.0, min_ms=1.0, max_ms=100.0)
    assert Latency.of([3.0]) == Latency(1, 3.0, 3.0, 3.0, 3.0)
    assert Latency.of([]) is None


def test_spans_and_phases(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100))
    monkeypatch.setattr("time.perf_counter", lambda: float(next(clock)))
    seen: list[tuple[str, int, int, str]] = []
    spans = Spans()
    with spans.span("open"):  # 0
        notify = spans.watch(lambda *call: seen.append(call))
        notify("shaders", 1, 2, "a")
        notify("shaders", 2, 2, "b")  # 1
        notify("weights", 5, 5, "w")  # 2: overlaps the shaders, on a track of its own
        notify("shaders", 1, 1, "c")  # 3: of the next island
    assert [(s.name, s.start, s.end, s.track) for s in spans.items] == [
        ("shaders", 0.0, 1.0, "shaders"),
        ("weights", 0.0, 2.0, "weights"),
        ("shaders", 1.0, 3.0, "shaders"),
        ("open", 0.0, 4.0, "main"),
    ]
    assert [call[3] for call in seen] == ["a", "b", "w", "c"]
    assert time_runs(lambda: "result", 3, spans) == "result"
    assert spans.ms("run") == [1000.0] * 3


def test_outputs_are_written_to_a_folder_or_an_archive(tmp_path: Path) -> None:
    outputs = {"y": np.arange(3), "scope/out:0": np.zeros((2, 2), np.float16), "file": np.array(1.5)}
    written = save_outputs(outputs, tmp_path / "folder")
    assert [p.name for p in written] == ["y.npy", "scope_out_0.npy", "file.npy"]
    assert np.array_equal(np.load(written[0]), np.arange(3))
    (archive,) = save_outputs(outputs, tmp_path / "new" / "all.npz")
    with np.load(archive) as stored:
        assert set(stored) == set(outputs)
        assert stored["scope/out:0"].dtype == np.float16
    with pytest.raises(UsageError, match="two outputs would be written to"):
        save_outputs({"a/b": np.zeros(1), "a:b": np.zeros(1)}, tmp_path / "clash")


def test_file_names_stay_in_their_folder() -> None:
    assert file_name("../../etc/passwd") == "_.._etc_passwd"
    assert file_name("..") == "_"
    assert file_name("größe") == "größe"


def test_statistics() -> None:
    found = statistics_of(np.array([[1.0, np.nan, 3.0]], np.float32))
    assert found == {"dtype": "float32", "shape": [1, 3], "not_finite": 1, "min": 1.0, "max": 3.0, "mean": 2.0}
    assert statistics_of(np.zeros((0, 2))) == {"dtype": "float64", "shape": [0, 2]}
    assert statistics_of([1, 2]) == {"type": "list"}


@pytest.mark.parametrize("installed", [True, False])
def test_the_reference_on_the_cpu(models: Path, installed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not installed:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        monkeypatch.setitem(sys.modules, "onnxruntime", None)
    x, x2 = np.full((2, 3), 2.0, np.float32), np.full((2, 3), 0.5, np.float32)
    found, engine = cpu_reference(models / "add.onnx", ["y"], {"x": x, "x2": x2})
    assert np.array_equal(found["y"], x + x2)
    assert engine == ("onnxruntime" if installed else "onnx.reference")
    with pytest.raises(VkepError, match="the reference on the CPU"):
        cpu_reference(models / "add.onnx", ["y"], {"x": x})
