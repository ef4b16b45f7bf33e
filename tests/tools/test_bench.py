"""The bench: what it makes of times, and that a peer's trouble stays the peer's."""

from __future__ import annotations

import json
import math
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from tools.bench import checks
from tools.bench.__main__ import main
from tools.bench.measure import Result, measure_model, runs_a_turn
from tools.bench.peers.base import relative_error
from tools.bench.remote import Worker, WorkerFailed
from tools.bench.table import markdown_table, number
from tools.bench.targets import verdicts
from tools.models.catalog import write_model


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model("op_add_2x3", tmp_path_factory.mktemp("models"))


def test_relative_error_is_against_the_largest_reference() -> None:
    reference = {"y": np.array([0.0, -4.0])}
    assert relative_error({"y": np.array([0.4, -4.0])}, reference) == pytest.approx(0.1)
    assert relative_error({"y": np.array([[0.0], [-4.0]])}, reference) == 0
    assert relative_error({"y": np.array([np.nan, -4.0])}, reference) == math.inf
    assert relative_error({"y": np.array([0.0])}, reference) == math.inf
    assert relative_error({}, reference) == math.inf


def test_percentiles_are_of_the_samples() -> None:
    result = Result("m", "p", samples_ms=[float(value) for value in range(1, 11)])
    assert result.median_ms == 5.5
    assert result.percentile_ms(10) == 1
    assert result.percentile_ms(90) == 9
    assert math.isnan(Result("m", "p").median_ms)


@pytest.mark.parametrize(("milliseconds", "runs"), [(0.001, 20), (9.0, 12), (99.0, 2), (500.0, 1)])
def test_a_turn_lasts_about_as_long_for_fast_and_slow_models(milliseconds: float, runs: int) -> None:
    assert runs_a_turn(milliseconds) == runs


@pytest.mark.parametrize(("value", "text"), [(1368.2, "1368"), (27.94, "27.9"), (0.00616, "0.00616"), (math.nan, "-")])
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_the_ratio_is_against_the_base() -> None:
    results = [Result("m", "vkep", samples_ms=[2.0]), Result("m", "other", samples_ms=[5.0])]
    lines = markdown_table(results, "vkep").splitlines()
    assert lines[2].split(" | ")[4] == "1.00"
    assert lines[3].split(" | ")[4] == "2.50"


def test_the_provider_is_compared_turn_by_turn() -> None:
    plain = Result("m", "vkep", samples_ms=[1.0, 1.0, 9.0, 2.0, 2.0, 2.0, 3.0, 3.0, 3.0], turn=3)
    provider = Result("m", "vkep-ort", samples_ms=[1.0, 1.05, 1.1, 2.05, 2.05, 9.0, 3.2, 3.2, 3.2], turn=3)
    assert plain.turns_ms == [1.0, 2.0, 3.0] and provider.turns_ms == [1.05, 2.05, 3.2]
    close, _ = verdicts([plain, provider])
    assert close.held and "turn by turn +0.050, at most +0.100" in str(close)


def test_a_model_is_measured_and_compared(tiny: Path) -> None:
    (result,) = measure_model(tiny, ["ort-cpu"], 2, os.environ, 600)
    assert result.status == "measured", result.detail
    assert len(result.samples_ms) == 2 * 20
    assert result.relative_error == 0
    assert 0 < result.median_ms < result.fresh_process_ms
    assert result.fresh_process_ms > result.open_ms > 0


def test_a_wrong_result_shows_as_error(tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "wrong.onnx"
    path.write_bytes(tiny.read_bytes())
    with np.load(tiny.with_suffix(".npz")) as stored:
        np.savez(path.with_suffix(".npz"), **{key: stored[key] + (key == "out_y") for key in stored})
    (result,) = measure_model(path, ["ort-cpu"], 1, os.environ, 600)
    assert result.relative_error > 0.1


def test_a_broken_model_fails_and_the_others_go_on(tiny: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    broken.with_suffix(".npz").write_bytes(tiny.with_suffix(".npz").read_bytes())
    report = tmp_path / "results" / "report.json"
    code = main(["--models", str(broken), str(tiny), "--peers", "ort-cpu", "--rounds", "1", "--json", str(report)])
    assert code == 1
    first, second = json.loads(report.read_text())["results"]
    assert (first["status"], second["status"]) == ("failed", "measured")
    assert first["median_ms"] is None
    assert "broken" in first["detail"] or "protobuf" in first["detail"].lower()


def test_a_worker_that_dies_says_so(tiny: Path) -> None:
    with Worker("ort-cpu", dict(os.environ), 600) as worker:
        worker._process.kill()
        with pytest.raises(WorkerFailed, match="the process ended with code"):
            worker.ask(do="open", peer="ort-cpu", model=str(tiny))


def test_a_worker_that_does_not_answer_is_ended(tiny: Path) -> None:
    with Worker("ort-cpu", dict(os.environ), 0.01) as worker:
        if hasattr(signal, "SIGSTOP"):
            worker._process.send_signal(signal.SIGSTOP)
        with pytest.raises(WorkerFailed, match="no answer to 'open'"):
            worker.ask(do="open", peer="ort-cpu", model=str(tiny))
        assert worker._process.wait(timeout=120) != 0


def test_a_peer_that_is_not_installed_is_unavailable(tiny: Path, tmp_path: Path) -> None:
    # A module of this name that cannot be imported stands for one that is not installed.
    (tmp_path / "ncnn.py").write_text("raise ModuleNotFoundError('no ncnn', name='ncnn')")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    (result,) = measure_model(tiny, ["ncnn"], 1, environment, 600)
    assert (result.status, result.detail) == ("unavailable", "ncnn is not installed")


def test_an_unknown_model_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--models", "nothing"]) == 2
    assert "nothing is no model of the catalog" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("plain", "provider", "rival", "close", "ahead"),
    [
        (10.0, 10.4, 12.0, True, True),
        (10.0, 10.6, 12.0, False, True),
        (0.5, 0.59, 0.58, True, False),
        (0.5, 0.61, 0.7, False, True),
        (10.0, 10.0, None, True, None),
    ],
)
def test_the_promises_for_the_provider_are_read_from_the_results(
    plain: float, provider: float, rival: float | None, close: bool, ahead: bool | None
) -> None:
    results = [Result("m", "vkep", samples_ms=[plain]), Result("m", "vkep-ort", samples_ms=[provider])]
    if rival is None:
        results.append(Result("m", "ep-webgpu", status="unavailable", detail="not installed"))
    else:
        results.append(Result("m", "ep-webgpu", samples_ms=[rival]))
    found = verdicts(results)
    assert [v.held for v in found] == [close, ahead]
    assert all(v.model == "m" for v in found)
    if ahead is None:
        assert "not measured (ep-webgpu unavailable: not installed)" in str(found[1])


def test_the_cost_of_checks_is_measured() -> None:
    cost = checks.measure(*checks.table_reader(), 2)
    assert cost.with_checks_ms > 0 < cost.without_ms
    assert math.isfinite(cost.wall_percent) and math.isfinite(cost.processor_percent)
