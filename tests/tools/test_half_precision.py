"""The command that compares float16 with torch's: its verdicts, its table and its limits, without torch."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from tools.half_precision import __main__ as command
from tools.half_precision.__main__ import Row, lost, main, relative_error, table
from tools.half_precision.networks import NETWORKS, TIMM, TORCHVISION, TRANSFORMERS


def test_there_are_thirty_networks_from_three_packages() -> None:
    assert len(set(NETWORKS)) == len(NETWORKS) >= 30
    assert len(TORCHVISION) + len(TRANSFORMERS) + len(TIMM) == len(NETWORKS)


def test_the_error_is_of_the_worst_output() -> None:
    exact, off = np.array([3.0, 4.0]), np.array([3.0, 4.5])
    assert relative_error([exact, off], [exact, exact]) == pytest.approx(0.1)
    assert relative_error([np.array([3.0, np.nan])], [exact]) == math.inf
    assert relative_error([exact[:1]], [exact]) == math.inf
    assert relative_error([np.zeros(2)], [np.zeros(2)]) == 0
    assert relative_error([exact], [np.zeros(2)]) == math.inf


def test_a_row_has_a_fault_beyond_the_limits() -> None:
    assert not Row("a", vkep32=1e-6, vkep16=1.4e-3, torch16=1e-3).judged().fault
    assert "1.60 times" in Row("a", vkep32=1e-6, vkep16=1.6e-3, torch16=1e-3).judged().fault
    assert "float32" in Row("a", vkep32=0.1, vkep16=1e-3, torch16=1e-3).judged().fault
    assert "float16" in Row("a", vkep32=1e-6, vkep16=math.inf, torch16=1e-3).judged().fault


def test_a_crash_is_a_fault_and_a_network_that_takes_too_long_is_not_measured() -> None:
    assert lost("a", "crashed: the process ended with exit code -11").fault
    slow = lost("a", "hung: no result in 60 s")
    assert slow.note == "hung: no result in 60 s" and not slow.fault and math.isnan(slow.ratio)


def test_the_table_lists_what_was_not_measured() -> None:
    rows = [
        Row("near", 1e-6, 1e-3, 1e-3),
        Row("far", 1e-6, 3e-3, 1e-3, ["TopK"]).judged(),
        Row("absent", note="building: ModuleNotFoundError: No module named 'timm'"),
    ]
    text = table(rows)
    assert "| near | 1.00e-06 | 1.00e-03 | 1.00e-03 | 1.00 | - |  |" in text
    assert "| far | 1.00e-06 | 3.00e-03 | 1.00e-03 | 3.00 | TopK | float16 is 3.00 times" in text
    assert "| absent | - | - | - | - | - | building: ModuleNotFoundError: No module named 'timm' |" in text
    assert "2 of 3 networks measured" in text and "mean 2.00, worst 3.00 (far)" in text
    assert text.splitlines()[-1].startswith("FAULT far: float16 is 3.00 times")


def _measured(name: str, *, device: str, peer: str, optimize: bool) -> Row:
    return Row(name, 1e-6, 2e-3 if name == "bert" else 1e-3, 1e-3).judged()


@pytest.mark.parametrize(("name", "status"), [("resnet18", 0), ("bert", 1)])
def test_the_status_is_1_for_a_fault(
    name: str, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "measure", _measured)
    path = tmp_path / "rows.json"
    assert main(["--models", name, "--jobs", "1", "--json", str(path)]) == status
    assert (f"FAULT {name}" in capsys.readouterr().out) == bool(status)
    assert json.loads(path.read_text())[0]["ratio"] == 1 + status


def test_no_network_begins_after_the_limit(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(command, "measure", _measured)
    assert main(["--models", "resnet18", "--seconds", "-1"]) == 1
    assert "not begun in -1 s" in capsys.readouterr().out
