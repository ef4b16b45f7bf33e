"""The words that the site's search must find. `tools/docs.sh` searches them in the built site."""

from __future__ import annotations

from pathlib import Path

from tools.site_search import WORDS, wrong

ROOT = Path(__file__).resolve().parents[2]


def test_a_page_has_its_words_and_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for page, words in WORDS.items():
        text = (ROOT / "docs" / page).read_text(encoding="utf-8").lower()
        assert f": {page}\n" in navigation
        assert [term for word in words for term in word.lower().split() if term not in text] == []


def test_another_page_in_front_is_wrong() -> None:
    words = {"a.md": ("one", "two"), "g/b.md": ("three",)}
    assert wrong({"one": ["a.html"], "two": ["a.html", "g/b.html"], "three": ["g/b.html"]}, words) == []
    assert wrong({"one": ["g/b.html", "a.html"], "two": []}, words) == [
        "'one': expected a.md, found g/b.html, a.html",
        "'two': expected a.md, found nothing",
        "'three': expected g/b.md, found nothing",
    ]
