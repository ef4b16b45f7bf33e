"""The plans of the cases of tools.plan_cases are those that were kept: a change that is meant to change none does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest

from tools import plan_digests
from tools.plan_cases import PlanCase, plan_cases
from tools.plan_devices import DEVICES

_CASES = {case.name: case for case in plan_cases()}
_KEPT = plan_digests.kept()
#: other versions of onnx have other node cases
_SAME_ONNX = _KEPT["onnx"]["version"] == onnx.__version__


@pytest.fixture(autouse=True)
def det_declined() -> None:
    """The catalog has no Det; see conftest.py."""


@pytest.mark.skipif(not _SAME_ONNX, reason="the node cases that were kept are another version's")
def test_every_case_is_kept() -> None:
    assert _KEPT.keys() - {"onnx"} == _CASES.keys()


@pytest.mark.parametrize("case", [c for c in _CASES.values() if _SAME_ONNX or "/" not in c.name], ids=lambda c: c.name)
def test_plans_are_those_that_were_kept(case: PlanCase) -> None:
    assert plan_digests.digests(case) == _KEPT[case.name], (
        "python -m tools.plan_digests --write keeps the new plans; the commit says what changed in them and why"
    )


def test_decoder_steps_are_in_place_and_sized_plans_have_sizes() -> None:
    for case in _CASES.values():
        program = case.program(DEVICES["cpu"]) if case.sized or case.name.startswith("llama") else None
        if program is not None:
            assert any(getattr(step, "sizes", None) is not None for step in program.steps) == case.sized, case.name
            assert program.in_place or case.sized, case.name


def test_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """It counts the plans where none changed, and names those that did."""
    file, few = tmp_path / "kept.json", [c for c in _CASES.values() if c.name.startswith("node/test_exp")]
    monkeypatch.setattr(plan_digests, "plan_cases", lambda every: few)
    options = ["plan_digests", "--spirv", "--file", str(file)]
    for more, code in (["--write"], 0), ([], 0):
        monkeypatch.setattr("sys.argv", [*options, *more])
        assert plan_digests.main() == code
    assert f"{len(few)} plans on 3 devices: unchanged" in capsys.readouterr().out
    changed = json.loads(file.read_text())
    changed[few[0].name]["cpu"] = "other"
    file.write_text(json.dumps(changed))
    assert plan_digests.main() == 1
    assert capsys.readouterr().out.splitlines() == [
        f"another plan: {few[0].name} on cpu",
        f"{len(few)} plans on 3 devices: 1 changed",
    ]
