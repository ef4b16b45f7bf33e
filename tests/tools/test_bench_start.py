"""The bench of a process's start: every step is there, and a process that fails says why. No time is asserted."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from onnx import parser

from tools.bench import start
from vkep.models.language import write_language

pytestmark = pytest.mark.gpu
TEXT = '<ir_version: 9, opset_import: ["": 18]> g (float[2,3] x) => (float[2,3] y) { y = Relu(x) }'


def test_every_step_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(parser.parse_model(TEXT), tmp_path / "m.onnx")
    assert start.main([str(tmp_path / "m.onnx"), "--processes", "1"]) == 0
    out = capsys.readouterr().out
    rows = {cells[1].strip(): cells[2:4] for line in out.splitlines() if len(cells := line.split("|")) == 5}
    assert {*start.STEPS, start.PIPELINES.strip()} <= set(rows)
    assert start.WEIGHTS.strip() not in rows, "there are no weights"
    assert all(float(cell) >= 0 for step in start.STEPS for cell in rows[step])


def test_a_language_model_is_measured_to_its_first_token(tmp_path: Path) -> None:
    write_language(tmp_path, layers=1)
    spans = json.loads(start._run(["-m", "tools.bench.start", str(tmp_path), "--worker", "0"], cold=False))
    steps = {*start.STEPS, start.PIPELINES, start.WEIGHTS} - {start.SCRIPT_STEP}
    assert steps <= set(spans) and spans[start.WEIGHTS][0] <= spans["first run"][0]


def test_errors_are_reported(tmp_path: Path) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"nothing")
    with pytest.raises(RuntimeError, match="is not an ONNX model"):
        start.measure(tmp_path / "broken.onnx", 1, cold=False)
    with pytest.raises(SystemExit):
        start.main([str(tmp_path / "none.onnx")])
