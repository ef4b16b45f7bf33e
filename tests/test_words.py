"""Words that CONTRIBUTING.md lists as not to use are not in the documentation, the product, and tests' comments and names."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
#: words of a cell: a table is read at a glance
LONGEST_CELL = 40
SHADERS = [path for path in (ROOT / "shaders").rglob("*") if path.is_file()]
CODE = [path for name in ("vkep", "registry", "examples", "tests", "tools") for path in (ROOT / name).rglob("*.py")]


def listed() -> list[str]:
    """The left-hand column of the table."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.partition("\n## Words\n")[2].partition("\n## ")[0].partition("|---|---|\n")[2]
    cells = [row.split("|")[1] for row in table.splitlines() if row.startswith("|")]
    return [word.strip() for cell in cells for word in cell.split(",")]


def prose(source: str) -> str:
    """The comments and docstrings of Python code, and the names of its tests as words."""
    tree = ast.parse(source)
    scopes = [n for n in ast.walk(tree) if isinstance(n, ast.Module | ast.ClassDef | ast.FunctionDef)]
    texts = [text for scope in scopes if (text := ast.get_docstring(scope, clean=False))]
    texts += [n.name.replace("_", " ") for n in scopes if isinstance(n, ast.FunctionDef) and n.name.startswith("test_")]
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return "\n.\n".join([*texts, *(token.string for token in tokens if token.type == tokenize.COMMENT)])


def found(text: str, words: list[str]) -> list[str]:
    """The words in a text, where they begin and end as words; "told apart" is another verb."""
    pattern = "|".join(rf"\b{re.escape(word)}\b(?! apart)" for word in words).replace(r"\ ", r"\s+")
    return [" ".join(match.split()) for match in re.findall(pattern, text, re.IGNORECASE)]


def test_the_words_not_to_use_are_not_used() -> None:
    words = listed()
    assert len(words) > 5
    texts = {path: path.read_text(encoding="utf-8") for path in [*PAGES, *SHADERS]}
    for path in CODE:
        source = path.read_text(encoding="utf-8")
        if path.relative_to(ROOT).parts[0] in ("vkep", "registry"):
            texts[path] = source.replace("_", " ")  # names and messages too
        elif found(source.replace("_", " "), words):  # parsing all of them takes long
            texts[path] = prose(source)
    uses = {str(path.relative_to(ROOT)): found(text, words) for path, text in texts.items()}
    assert {path: used for path, used in uses.items() if used} == {}


def long_cells(text: str) -> list[str]:
    """The beginnings of the tables' cells that have more than `LONGEST_CELL` words."""
    rows = [line.strip().strip("|") for line in text.splitlines() if line.lstrip().startswith("|")]
    cells = [re.findall(r"\S*\w\S*", cell) for row in rows for cell in re.split(r"(?<!\\)\|", row)]
    return [" ".join(words[:6]) for words in cells if len(words) > LONGEST_CELL]


def test_no_cell_of_a_table_is_long() -> None:
    found = {
        str(path.relative_to(ROOT)): long_cells(path.read_text(encoding="utf-8")) for path in [*PAGES, CONTRIBUTING]
    }
    assert {path: cells for path, cells in found.items() if cells} == {}
    assert long_cells("| a | " + "word " * 41 + "|\n| b |\n") == ["word word word word word word"]


def test_a_word_is_found_over_a_line_break() -> None:
    assert found("What\nbecomes of it is told; they are told apart.", ["what becomes of", "is told", "are told"]) == [
        "What becomes of",
        "is told",
    ]


def test_comments_docstrings_and_names_of_tests_are_searched() -> None:
    source = '"""A house."""\nheard = "heard"  # anew\ndef test_an_end_amid_a_run():\n    """Nobody."""\n'
    assert sorted(found(prose(source), ["house", "heard", "anew", "amid", "nobody"])) == [
        "Nobody",
        "amid",
        "anew",
        "house",
    ]
