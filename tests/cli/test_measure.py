"""Comparing with a reference, latency numbers, spans and written outputs."""

from __future__ import annotations

import math
import os
import re
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vkep.cli.common import UsageError, file_name
from vkep.cli.measure import (
    Comparison,
    Latency,
    Spans,
    check_target,
    compare,
    cpu_reference,
    reference_outputs,
    save_outputs,
    statistics_of,
    time_concurrent_runs,
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
def test_results_that_cannot_be_compared_are_not_equal(got: np.ndarray, expected: np.ndarray, problem: str) -> None:
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
    assert found == Latency(runs=10, median_ms=5.5, p90_ms=9.0, p99_ms=100.0, min_ms=1.0, max_ms=100.0)
    assert Latency.of([3.0]) == Latency(1, 3.0, 3.0, 3.0, 3.0, 3.0)
    assert Latency.of([]) is None


def test_runs_from_several_threads_are_as_many_as_asked_for() -> None:
    together = threading.Barrier(3, timeout=60)
    latency, rate = time_concurrent_runs(together.wait, 6, 3)
    assert latency.runs == 6 and rate > 0
    numbers = iter(range(10))

    def failing() -> None:
        if next(numbers) == 4:
            raise RuntimeError("the fifth")

    with pytest.raises(RuntimeError, match="the fifth"):
        time_concurrent_runs(failing, 100_000_000, 2)


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


@pytest.mark.parametrize("target", ["out", "out.npz"])
def test_text_is_written_with_a_fixed_width_and_nothing_else_that_is_no_tensor(tmp_path: Path, target: str) -> None:
    path = tmp_path / target
    text = np.array([["a", "größer"], ["", "b"]], object)
    save_outputs({"t": text}, path)
    stored = np.load(path)["t"] if path.suffix else np.load(path / "t.npy")
    assert stored.dtype.kind == "U"
    assert np.array_equal(stored.astype(object), text)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    for bad, message in (
        ([np.zeros(2), np.zeros(2)], "output 'bad' is a list"),  # numpy would stack them
        (None, "output 'bad' is a NoneType"),
        (np.array([b"a", "b"], object), r"holds objects \(bytes, str\)"),
        (np.array(["a\0"], object), "NUL"),
    ):
        with pytest.raises(UsageError, match=message):
            save_outputs({"t": np.zeros(1), "bad": bad}, path)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize("target", ["out", "out.npz"])
def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    save_outputs({"y": np.zeros(3)}, tmp_path / target)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}

    def full(file: Any, *_: object, **__: object) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    monkeypatch.setattr(np.lib.format, "write_array", full)
    with pytest.raises(OSError, match="No space left"):
        save_outputs({"y": np.ones(3)}, tmp_path / target)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_targets_are_tried_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder.npz").mkdir()
    for target, folder, message in (
        ("x.npy", True, "expected a folder or an .npz file"),
        ("file", True, "is a file, expected a folder"),
        ("file/below", True, "Not a directory"),
        ("folder.npz", False, "is a folder, expected a file"),
        ("file/t.json", False, "Not a directory"),
    ):
        with pytest.raises(UsageError, match=f"^--option {tmp_path / target}: {message}"):
            check_target("--option", tmp_path / target, folder=folder)
    check_target("--option", tmp_path / "new" / "folder", folder=True)
    check_target("--option", tmp_path / "new" / "all.npz")
    check_target("--option", tmp_path / "file")
    check_target("--option", Path(os.devnull))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder.npz"]


def test_file_names_stay_in_their_folder() -> None:
    assert file_name("../../etc/passwd") == "_.._etc_passwd"
    assert file_name("..") == "_"
    assert file_name("größe") == "größe"


def test_statistics() -> None:
    found = statistics_of(np.array([[1.0, np.nan, 3.0]], np.float32))
    assert found == {"dtype": "float32", "shape": [1, 3], "not_finite": 1, "min": 1.0, "max": 3.0, "mean": 2.0}
    assert statistics_of(np.zeros((0, 2))) == {"dtype": "float64", "shape": [0, 2]}
    assert statistics_of([1, 2]) == {"type": "list", "length": 2}


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
