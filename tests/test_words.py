"""Words that CONTRIBUTING.md lists as not to use are not in the documentation, nor in the code's comments and docstrings."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
CODE = [*(ROOT / "vkep").rglob("*.py"), *(ROOT / "registry").rglob("*.py")]


def listed() -> list[str]:
    """The left-hand column of the table."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.partition("\n## Words\n")[2].partition("\n## ")[0].partition("|---|---|\n")[2]
    cells = [row.split("|")[1] for row in table.splitlines() if row.startswith("|")]
    return [word.strip() for cell in cells for word in cell.split(",")]


def found(text: str, words: list[str]) -> list[str]:
    """The words in a text, where they begin and end as words; "told apart" is another verb."""
    pattern = "|".join(rf"\b{re.escape(word)}\b(?! apart)" for word in words).replace(r"\ ", r"\s+")
    return [" ".join(match.split()) for match in re.findall(pattern, text, re.IGNORECASE)]


def test_the_words_not_to_use_are_not_used() -> None:
    words = listed()
    assert len(words) > 5
    uses = {str(path.relative_to(ROOT)): found(path.read_text(encoding="utf-8"), words) for path in [*PAGES, *CODE]}
    assert {path: used for path, used in uses.items() if used} == {}


def test_a_word_is_found_over_a_line_break() -> None:
    assert found("What\nbecomes of it is told; they are told apart.", ["what becomes of", "is told", "are told"]) == [
        "What becomes of",
        "is told",
    ]
