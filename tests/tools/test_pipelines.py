"""The table of pipelines: each that is measured is right and whole. No time is asserted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import vkep
from tools import beside_torch, pipelines

PAGE = pipelines.PAGE

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    "name", ["chat", "chat about an image", "voice activity (silero-vad's form)", "detection (YOLOv8's form)"]
)
def test_a_row(name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelines, "ITERATIONS", 6)
    monkeypatch.setattr(pipelines, "SIZES", 3)
    assert pipelines.main(["--only", name, "--rounds", "1"]) == 0
    row = [cell.strip() for cell in capsys.readouterr().out.splitlines()[-1].split("|")][1:-1]
    assert row[0] == name and row[2] == "all"
    assert row[3] == "same tokens" or float(row[3].removeprefix("difference ")) < 1e-4
    assert int(row[4]) <= 3 + ("image" in name) and float(row[5].split()[0]) > 0
    if name.startswith("chat"):
        assert float(row[5].split()[0]) < 1  # no cache, no logits


def test_the_page_has_the_table() -> None:
    text = pipelines.PAGE.read_text(encoding="utf-8")
    table = text.partition(pipelines.BEGIN_TABLE)[2].partition(pipelines.END_TABLE)[0]
    names = [line.split("|")[1].strip() for line in table.strip().splitlines()[2:]]
    assert names == list(pipelines.PIPELINES)


def test_a_row_is_written_beside_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page, name = tmp_path / "page.md", "semantic search"
    page.write_text(pipelines.PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setattr(pipelines, "PAGE", page)
    monkeypatch.setattr(pipelines, "measure", lambda name, *_: f"| {name} | measured now |")
    assert pipelines.main(["--only", name, "--write"]) == 0
    before, after = (p.read_text(encoding="utf-8").splitlines() for p in (PAGE, page))
    assert len(before) == len(after)
    assert [line for line in after if line not in before] == [f"| {name} | measured now |"]


def test_the_rows_beside_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the same caption stay; those that were measured elsewhere go, and the first table stays whichever is written."""
    page = tmp_path / "page.md"
    page.write_text(PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setattr(pipelines, "PAGE", page)
    assert list(beside_torch.ROWS) == [name for name in pipelines.PIPELINES if name in beside_torch.ROWS]

    def written(caption: str, name: str) -> list[str]:
        lines = [caption, "", *beside_torch.HEAD, f"| {name} | 1.00 |"]
        monkeypatch.setattr(beside_torch, "table", lambda *_: iter(lines))
        assert pipelines.main(["--torch", "cpu", "--write"]) == 0
        table, after = page.read_text(encoding="utf-8").split(pipelines.BEGIN_TORCH)[1].split(pipelines.END_TORCH)
        assert page.read_text(encoding="utf-8").startswith(
            PAGE.read_text(encoding="utf-8").split(pipelines.BEGIN_TORCH)[0]
        )
        assert after == PAGE.read_text(encoding="utf-8").split(pipelines.END_TORCH)[1]
        return table.strip().splitlines()

    head = ["On one card:", "", *beside_torch.HEAD]
    written("On one card:", "semantic search")
    assert written("On one card:", "chat") == [*head, "| chat | 1.00 |", "| semantic search | 1.00 |"]
    assert written("On another:", "chat")[2:] == [*beside_torch.HEAD, "| chat | 1.00 |"]


def test_runs_beside_torch_have_ended() -> None:
    """A run whose results stay on the device returns before its end: this one takes over a tenth of a second on a CPU driver."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[N, 512, 512] x) => (float[N, 512, 512] y) { a = MatMul (x, x) y = MatMul (a, x) }"""
    )
    with vkep.InferenceSession(model) as session:
        binding, timeline = session.io_binding(), session.lease.context.timeline
        binding.bind_input("x", session.device_tensor(np.zeros((8, 512, 512), np.float32)))
        binding.bind_output("y", "gpu")
        for _ in range(3):  # the third is a repeated one
            before = timeline.submitted
            beside_torch.run_whole([(session, binding)])
            assert timeline.completed == timeline.submitted > before


@pytest.mark.nightly
@pytest.mark.slow
def test_a_row_beside_torch(capsys: pytest.CaptureFixture[str]) -> None:
    """On the CPU; of a network of `vkep.models` vkep's time is known alone, with the reason."""
    for package in ("torch", "transformers", "diffusers"):
        pytest.importorskip(package)
    names = ["voice activity (silero-vad's form)", "background removal (U2-Net's form)"]
    assert pipelines.main(["--torch", "cpu", "--rounds", "1", "--jobs", "2", "--only", *names]) == 0
    lines = capsys.readouterr().out.splitlines()
    alone, both = (
        [cell.strip() for cell in line.split("|")][1:-1] for line in lines if line.startswith(("| v", "| b"))
    )
    assert float(alone[1]) > 0 and alone[2:] == ["-"] * 3
    assert f"{names[0]}: torch: NotImplementedError: no network of torch's is the same" in lines
    assert all(float(cell) > 0 for cell in both[1:4]) and float(both[4].removeprefix("difference ")) < 1e-4
