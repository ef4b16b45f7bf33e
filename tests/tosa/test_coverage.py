"""The table of TOSA operators in docs/vgf.md is what the lowering does."""

from __future__ import annotations

import warnings
from pathlib import Path

from tools.tosa_coverage.__main__ import OPERATORS, WHY_NOT, table

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "vgf.md"


def test_the_table_of_operators_is_up_to_date() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # onnx's own, while it makes its cases
        made = table()
    assert made in DOCUMENT.read_text(encoding="utf-8"), "run python -m tools.tosa_coverage --write"
    assert [line.split(" | ")[0] for line in made.splitlines()[2:]] == [f"| {name}" for name in OPERATORS]
    assert all(f"| {name} | (" in made for name in WHY_NOT)
