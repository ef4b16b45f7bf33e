"""The table of docs/executorch.md is what the cases give."""

from __future__ import annotations

from tools import aten_table


def test_the_coverage_table_is_up_to_date() -> None:
    text = aten_table.PATH.read_text(encoding="utf-8")
    assert aten_table.BEGIN in text
    assert aten_table.with_section(text) == text, "run python -m tools.aten_table"
