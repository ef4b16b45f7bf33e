"""`python -m tools.bench.dynamic --models`: what it counts of a model, plainly and through ONNX Runtime, and its table."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.bench.sizes.measure import Row, Task, measure, table, written
from tools.bench.sizes.networks import NETWORKS, RANGES


@pytest.mark.parametrize("by_ort", [False, True])
def test_a_model_is_measured(tmp_path: Path, by_ort: bool) -> None:
    if by_ort:
        pytest.importorskip("onnxruntime")
    row = measure(Task("running sum", tmp_path, by_ort))
    assert not row.note and 2 <= row.plans <= 3 and row.pipelines == row.on_cpu == 0 and row.again > 0
    assert row.error < 1e-5


def test_a_model_that_cannot_be_written_has_the_reason(tmp_path: Path) -> None:
    (tmp_path / "scan.onnx").write_bytes(b"no model")
    assert measure(Task("scan", tmp_path)).note.startswith("open: ")


def test_the_table_has_a_line_for_a_model() -> None:
    rows = [
        Row("scan", False, 2, 0, 1.0, 0.5, 3.0, 0.25, 0),
        Row("scan", True, 9, 1, 2.0, 0.5, 3.0, 1.5, 4),
        Row("rnn", False, note="why"),
    ]
    lines = [
        "| scan | loop | 2, 9 | 1.00, 2.00 | 0.5, 0.5 | 0, 1 | 0, 4 | 0.25, 1.50 |",
        "| rnn | loop | why | | | | | |",
    ]
    assert list(table(rows))[2:] == lines
    assert rows[0].faults == [] and rows[1].faults == ["9 plans", "1 pipelines", "host 1.5"]
    old = "text | scan\n\n| scan | loop | 3 | old |\n| loop | loop | 3 |\n"
    assert written(old, rows) == f"text | scan\n\n{lines[0]}\n| loop | loop | 3 |\n{lines[1]}\n"


def test_sizes_are_within_a_factor_of_16() -> None:
    for least, most, _ in (*RANGES.values(), *[r for n in NETWORKS.values() for r in n.ranges.values()]):
        assert least <= most <= 16 * least
