"""The table of pipelines: each that is measured is right and whole. No time is asserted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import pipelines

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
