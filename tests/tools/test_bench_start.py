"""The bench of a process's start: every step is there, and a process that fails says why. No time is asserted."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import parser

from tools.bench import start

pytestmark = pytest.mark.gpu
TEXT = '<ir_version: 9, opset_import: ["": 18]> g (float[2,3] x) => (float[2,3] y) { y = Relu(x) }'


def test_every_step_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(parser.parse_model(TEXT), tmp_path / "m.onnx")
    assert start.main([str(tmp_path / "m.onnx"), "--processes", "1"]) == 0
    out = capsys.readouterr().out
    rows = {cells[1].strip(): cells[2:4] for line in out.splitlines() if len(cells := line.split("|")) == 5}
    missing = {step.strip() for step in start.STEPS} - set(rows)
    assert missing == {start.WEIGHTS.strip()}, "there are no weights, and all else is measured"
    assert all(float(cell) >= 0 for step in start.STEPS if step.strip() in rows for cell in rows[step.strip()])


def test_what_goes_wrong_is_told(tmp_path: Path) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"nothing")
    with pytest.raises(RuntimeError, match="is no ONNX model"):
        start.measure(tmp_path / "broken.onnx", 1, cold=False)
    with pytest.raises(SystemExit):
        start.main([str(tmp_path / "none.onnx")])
