"""Each command on a device: what it prints, its JSON, what it writes."""

from __future__ import annotations

import json
import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

import vkep
from vkep.cli.devices import COSTS
from vkep.kernels.reductions.norm import SOFTMAX
from vkep.view.document import FORMAT

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).resolve().parents[2]
STRINGS = '<ir_version: 10, opset_import: ["" : 21]> t (string[2] x) => (string[2] y) { y = StringConcat(x, x) }'


def json_of(result: Any) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_devices(run: Callable[..., Any]) -> None:
    found = json_of(run("devices", "--json"))["devices"]
    assert [d["name"] for d in found] == [d.name for d in vkep.devices()]
    assert sum(d["default"] for d in found) == 1
    chosen = next(d for d in found if d["default"])
    assert chosen["usable"]
    assert "buffer_device_address" in chosen["features"]
    printed = run("devices").stdout
    for device in found:
        assert device["name"] in printed
        assert device["uuid"] in printed
        assert all(problem in printed for problem in device["problems"])
    assert "(default)" in printed


def test_devices_prints_the_cost_of_missing_features(run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VKEP_WITHOUT", "int64,subgroup_shuffle")
    device = next(d for d in json_of(run("devices", "--json"))["devices"] if d["default"])
    assert {"int64", "subgroup_shuffle"} <= device["costs"].keys() <= COSTS.keys() - set(device["features"])
    printed = run("devices").stdout
    assert "lacks subgroup_shuffle: lanes combine through shared memory" in printed and "every operator runs" in printed


def test_every_feature_that_kernels_ask_for_has_its_cost() -> None:
    asked: set[str] = set()
    for path in (ROOT / "vkep" / "kernels").rglob("*.py"):
        for names in re.findall(r"\.has\(([^)*]+)\)", path.read_text(encoding="utf-8")):
            asked.update(re.findall(r'"(\w+)"', names))
    assert {"subgroup_shuffle", "integer_dot_product"} < asked
    assert asked - {"compute_full_subgroups"} <= COSTS.keys(), (
        "compute_full_subgroups: asked for with subgroup_size_control"
    )


def test_the_default_device_follows_the_environment(run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VKEP_DEVICE", "no such device")
    result = run("devices", "--json")
    assert result.exit_code == 1
    assert not any(d["default"] for d in json.loads(result.stdout)["devices"])


def test_run_prints_placement_times_and_outputs(run: Callable[..., Any], models: Path) -> None:
    result = run("run", models / "add.onnx", "--runs", "4", "--report")
    assert result.exit_code == 0, result.output
    for expected in ("1 vulkan", "first run", "of 3", "output y: float32 [2, 3]", "vulkan   Add"):
        assert expected in result.stdout


def test_run_writes_what_it_computed(run: Callable[..., Any], models: Path, tmp_path: Path) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.save(tmp_path / "x.npy", x)
    arguments = ("-i", f"x={tmp_path / 'x.npy'}", "-i", "x2=ones")
    assert run("run", models / "add.onnx", *arguments, "-o", tmp_path / "out").exit_code == 0
    assert np.array_equal(np.load(tmp_path / "out" / "y.npy"), x + 1)
    found = json_of(run("run", models / "add.onnx", *arguments, "-o", tmp_path / "out.npz", "--json"))
    with np.load(tmp_path / "out.npz") as stored:
        assert np.array_equal(stored["y"], x + 1)
    assert found["written"] == [str(tmp_path / "out.npz")]
    assert found["outputs"]["y"] == {
        "dtype": "float32",
        "shape": [2, 3],
        "not_finite": 0,
        "min": 1.0,
        "max": 6.0,
        "mean": 3.5,
    }
    assert found["report"]["counts"] == {"vulkan": 1}
    assert found["latency"] is None
    assert found["check"] is None


def test_run_checks_against_an_archive_and_the_cpu(run: Callable[..., Any], models: Path) -> None:
    found = json_of(
        run("run", models / "softmax.onnx", "--check", models / "softmax.npz", "--check-cpu", "--runs", 3, "--json")
    )
    first, second = found["check"]["outputs"]
    assert found["check"]["ok"]
    assert first["against"].endswith("softmax.npz")
    assert second["against"].endswith("on the CPU")
    assert max(first["relative_error"], second["relative_error"]) <= 1e-5
    assert found["latency"]["runs"] == 2
    assert found["latency"]["min_ms"] <= found["latency"]["median_ms"] <= found["latency"]["p90_ms"]


def test_a_result_out_of_tolerance_fails(run: Callable[..., Any], models: Path, tmp_path: Path) -> None:
    with np.load(models / "add.npz") as stored:
        wrong = {key: stored[key] + (key == "out_y") * np.float32(0.5) for key in stored}
    np.savez(tmp_path / "wrong.npz", **wrong)
    result = run("run", models / "add.onnx", "--check", tmp_path / "wrong.npz")
    assert result.exit_code == 1
    assert "NOT within 0.0001" in result.stdout
    assert run("run", models / "add.onnx", "--check", tmp_path / "wrong.npz", "--tolerance", 10).exit_code == 0


def test_run_sizes_a_dynamic_model(run: Callable[..., Any], models: Path) -> None:
    by_shape = json_of(run("run", models / "dynamic.onnx", "-s", "z=4x5", "--check-cpu", "--json"))
    assert by_shape["inputs"] == {"x": [4, 8], "z": [4, 5]}
    by_dim = json_of(run("run", models / "dynamic.onnx", "--dim", "batch=4", "--dim", "length=5", "--json"))
    assert by_dim["outputs"] == by_shape["outputs"]  # the same seed, so the same values


@pytest.mark.usefixtures("nonzero_declined")
def test_run_says_what_runs_on_the_cpu_and_why(run: Callable[..., Any], models: Path) -> None:
    result = run("run", models / "mixed.onnx", "--check-cpu")
    assert result.exit_code == 0, result.output
    assert "NonZero" in result.stdout
    assert "no Vulkan kernel for NonZero" in result.stdout
    refused = run("run", models / "mixed.onnx", "--fallback", "error")
    assert refused.exit_code == 1
    assert "no Vulkan kernel for NonZero" in refused.stderr


@pytest.mark.usefixtures("nonzero_declined")
def test_profile_writes_a_trace(run: Callable[..., Any], models: Path, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    result = run("run", models / "mixed.onnx", "--profile", path, "--runs", 2)  # islands inside a deferred part too
    assert result.exit_code == 0, result.output
    trace = json.loads(path.read_text())
    complete = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert {"open", "first run", "run"} <= {e["name"] for e in complete}
    gpu = [e for e in complete if "kernel" in e["args"]]
    assert len({e["tid"] for e in gpu}) == 2
    assert all(e["dur"] >= 0 and e["ts"] >= 0 for e in complete)
    assert sum(e["dur"] for e in gpu) > 0


def test_bench(run: Callable[..., Any], models: Path) -> None:
    arguments = ("bench", models / "add.onnx", models / "softmax.onnx", "-n", 3, "--warmup", 2)
    found = json_of(run(*arguments, "--json"))["results"]
    assert [Path(r["model"]).name for r in found] == ["add.onnx", "softmax.onnx"]
    for result in found:
        assert result["latency"]["runs"] == 3
        assert 0 < result["latency"]["min_ms"] <= result["latency"]["median_ms"]
        assert result["open_ms"] > 0
        assert result["first_run_ms"] > 0
        assert result["placement"] == {"vulkan": 1}
        assert result["runs_per_second"] > 0 and result["peer"] is None
    printed = run(*arguments, "--vs", "cpu", "-c", 2).stdout
    assert "median ms" in printed and "on the CPU" in printed and "from 2 threads" in printed
    assert "softmax" in printed
    batch = json_of(run("bench", models / "dynamic.onnx", "--shape", "z=16x4", "-n", 1, "--json"))["results"][0]
    assert batch["shapes"] == {"x": [16, 8], "z": [16, 4]}


def test_explain_a_plan(run: Callable[..., Any], models: Path) -> None:
    found = json_of(run("explain", models / "softmax.onnx", "--plan", "--json"))
    (island,) = found["islands"]
    assert island["dispatches"] == 1
    (dispatch,) = island["plan"]
    assert dispatch["kernel"] == "softmax.comp"
    assert {"input 'x'", "output 'y'"} <= set(dispatch["operands"].values())
    assert {name for name, _ in SOFTMAX.interface({}).params} <= set(dispatch["params"])
    assert all(size > 0 for size in dispatch["grid"] + dispatch["workgroup"])
    printed = run("explain", models / "softmax.onnx", "--plan", "--nodes").stdout
    assert "softmax.comp" in printed
    assert "input 'x'" in printed
    assert "vulkan   Softmax" in printed
    assert re.search(
        r"1 node in 1 dispatch, 0 barriers, 1 pipeline; activations .* weights 0 B, [\d.]+ k?FLOP", printed
    )


@pytest.mark.usefixtures("nonzero_declined")
def test_explain_times(run: Callable[..., Any], models: Path) -> None:
    found = json_of(run("explain", models / "mixed.onnx", "--time", "--json"))
    times = [t["nanoseconds"] for t in found["times"]]
    lost = [t["nanoseconds"] - t["limit_ns"] for t in found["times"]]
    assert lost == sorted(lost, reverse=True)
    assert all(
        t["limit_ns"] > 0 and t["of_limit"] == pytest.approx(t["limit_ns"] / t["nanoseconds"]) for t in found["times"]
    )
    assert found["total_ns"] == pytest.approx(sum(times))
    assert sum(t["share"] for t in found["times"]) == pytest.approx(1.0)
    assert {t["island"] for t in found["times"]} == {0, 1}
    printed = run("explain", models / "softmax.onnx", "--time").stdout
    assert "100.0%" in printed
    assert "GB/s" in printed
    assert "in 1 dispatch, each" in printed


@pytest.mark.usefixtures("nonzero_declined")
def test_explain_limits_the_times_printed(run: Callable[..., Any], models: Path) -> None:
    printed = run("explain", models / "mixed.onnx", "--time", "--top", 1).stdout
    assert "and 1 more" in printed
    assert "more" not in run("explain", models / "mixed.onnx", "--time", "--top", 0).stdout


def test_explain_a_dynamic_model(run: Callable[..., Any], models: Path) -> None:
    unplanned = run("explain", models / "dynamic.onnx", "--nodes")
    assert unplanned.exit_code == 2
    assert "--dim batch=N" in unplanned.stderr and "plan()" not in unplanned.output
    planned = json_of(run("explain", models / "dynamic.onnx", "--dim", "batch=2", "--dim", "length=3", "--json"))
    assert planned["counts"] == {"vulkan": 2}


def test_explain_says_whether_rows_are_independent(run: Callable[..., Any], tmp_path: Path) -> None:
    texts = {
        "square": "g (float[n,s] x) => (float[n,s] y) { y = Mul (x, x) }",
        "tagger": "g (float[n,4] x) => (float[n,4] y) { t = Transpose (x) s = MatMul (x, t) y = MatMul (s, x) }",
    }
    for name, text in texts.items():
        onnx.save(onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 17]> {text}'), tmp_path / f"{name}.onnx")
    assert run("explain", tmp_path / "square.onnx", "--rows").stdout.splitlines()[-1] == "rows: independent"
    found = json_of(run("explain", tmp_path / "square.onnx", "--rows", "-s", "x=3x5", "--json"))
    assert found["rows"] == {"independent": True, "reason": ""} and found["counts"] == {"vulkan": 1}
    assert "MatMul" in run("explain", tmp_path / "tagger.onnx", "--rows").stdout


def test_explain_says_which_sizes_a_plan_serves(run: Callable[..., Any], tmp_path: Path) -> None:
    text = "g (float[n,4,h] x) => (float[n,4,k] y) { y = MaxPool <kernel_shape: ints = [5]> (x) }"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 17]> {text}'), tmp_path / "pool.onnx")
    lines = run("explain", tmp_path / "pool.onnx", "--sizes", "--dim", "n=3", "--dim", "h=9").stdout.splitlines()
    assert "size n: open (1 or more)" in lines
    at = next(k for k, line in enumerate(lines) if line.startswith("size h: open under conditions (5 to "))
    assert lines[at + 1].startswith("    (h + -5) >= 0 (MaxPool ")
    found = json_of(run("explain", tmp_path / "pool.onnx", "--sizes", "--json"))["sizes"]
    assert [(s["name"], s["state"], s["value"]) for s in found] == [("n", "open", 64), ("h", "conditional", 64)]


def test_contexts_of_the_command_line(run: Callable[..., Any], models: Path) -> None:
    found = json_of(run("run", models / "add.onnx", "--token", "mine", "--group", 3, "--sync", "none", "--json"))
    assert found["report"]["context"] == "mine:3"
    missing = run("run", models / "add.onnx", "--token", "mine", "--mode", "lookup_only")
    assert missing.exit_code == 1
    assert "no live context has token 'mine' and group 0" in missing.stderr.replace("\n", " ")


def test_verbose_logs_to_standard_error_only(run: Callable[..., Any], models: Path) -> None:
    quiet, loud = run("run", models / "add.onnx", "--json"), run("run", models / "add.onnx", "--json", "-vv")
    assert quiet.stderr == ""
    assert "DEBUG gpu_shared" in loud.stderr
    assert json.loads(loud.stdout)["report"]["counts"] == {"vulkan": 1}


def test_version(run: Callable[..., Any]) -> None:
    assert run("--version").stdout == f"vkep {vkep.__version__}\n"


def test_a_sequence_is_reported_and_not_written(run: Callable[..., Any], tmp_path: Path) -> None:
    text = (
        '<ir_version: 8, opset_import: ["" : 17]> s (float[4, 2] x) => (seq(float[1, 2]) z) { z = SplitToSequence(x) }'
    )
    onnx.save(onnx.parser.parse_model(text), tmp_path / "s.onnx")
    result = run("run", tmp_path / "s.onnx", "-o", tmp_path / "out")
    assert result.exit_code == 2
    assert "output z: list of 4" in result.stdout
    assert "output 'z' is a list" in result.stderr
    assert not (tmp_path / "out").exists()


def test_texts_are_read_and_written(run: Callable[..., Any], tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(STRINGS), tmp_path / "t.onnx")
    np.save(tmp_path / "x.npy", np.array(["a", "größer"]))
    result = run("run", tmp_path / "t.onnx", "-i", f"x={tmp_path / 'x.npy'}", "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert np.load(tmp_path / "out" / "y.npy").tolist() == ["aa", "größergrößer"]


def test_the_example_says_which_inputs_it_cannot_make(tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(STRINGS), tmp_path / "t.onnx")
    example = runpy.run_path(str(Path(__file__).resolve().parents[2] / "examples" / "run_model.py"))
    with pytest.raises(SystemExit, match=r"x is tensor\(string\)"):
        example["main"](str(tmp_path / "t.onnx"))


def test_view_writes_a_page_and_compares(run: Callable[..., Any], models: Path, tmp_path: Path) -> None:
    before, after = tmp_path / "before.html", tmp_path / "after.html"
    model = sorted(models.glob("*.onnx"))[0]
    assert run("view", model, "-o", before, "--no-open", "-n", "1").exit_code == 0
    found = json_of(run("view", before, "--against", before, "-o", after, "--json"))
    assert found["title"] == model.name
    assert found["opening"][0]["name"] == "open"
    assert after.read_text(encoding="utf-8").count(f'"format":{FORMAT}') == 2
    assert run("view", before, "-o", before).exit_code == 2
    assert run("view", tmp_path / "no.onnx").exit_code == 2
