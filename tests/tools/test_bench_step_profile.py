"""The parts of a language model's step, as the bench prints them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools.bench.step_profile import main
from vkep.models.language import write_language


@pytest.mark.gpu
def test_every_dispatch_of_a_step_is_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_language(tmp_path / "tiny", layers=1)
    asked = ["--sequences", 2, "--cached", 3, "--steps", 2, "--lines", 2, "--json", tmp_path / "step.json"]
    assert main([str(a) for a in [tmp_path / "tiny", *asked]]) == 0
    told = json.loads((tmp_path / "step.json").read_text())
    printed = capsys.readouterr().out.splitlines()
    count, barriers = (sum(line[name] for line in told["lines"]) for name in ("count", "barriers"))
    assert f"{count} dispatches, {barriers} barriers" in printed[0]
    assert len(printed) == 4
    assert f"{len(told['lines']) - 2} more kinds" in printed[3]
    assert count >= barriers > 0
    assert {"matmul", "norm"} <= {line["kernel"].split("_")[0].split(".")[0] for line in told["lines"]}
    assert told["sequences"] == 2
    assert 0 < told["gaps"] < told["span"]
