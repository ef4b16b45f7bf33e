"""The time of diffusers' part of a step is measured. Run where diffusers and optimum-onnx are installed."""

from __future__ import annotations

import pytest

from tools.bench import image_steps

pytest.importorskip("diffusers")
pytest.importorskip("optimum.onnxruntime")


def test_a_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_steps, "SIDES", (64,))
    monkeypatch.setattr(image_steps, "STEPS", 4)
    assert image_steps.main() == 0
    rows = [line.split("|") for line in capsys.readouterr().out.splitlines()[2:]]
    assert [row[1].strip() for row in rows] == list(image_steps.SCHEDULERS)
    assert all(0 < float(row[2].split()[0]) < 1000 for row in rows)
