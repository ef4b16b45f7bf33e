"""Folders that lack something, and tokenizers and templates of other kinds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vkep.errors import InvalidInputError, InvalidModelError, UnsupportedModelError
from vkep.generation import Generator
from vkep.generation.templates import render
from vkep.generation.text import Text, TextStream
from vkep.models.language import tokenizer, write_language

pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("folder")
    write_language(folder, layers=1)
    return folder


def _without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def _config(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        config = json.loads((folder / "genai_config.json").read_text())
        for key, value in changes.items():
            config["model"]["decoder"][key] = value
        (folder / "genai_config.json").write_text(json.dumps(config))

    return change


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        (_without("genai_config.json"), FileNotFoundError, "has neither genai_config.json"),
        (_without("model.onnx"), FileNotFoundError, "genai_config.json beside it asks for it"),
        (lambda f: (f / "genai_config.json").write_text("{"), InvalidModelError, "no JSON"),
        (lambda f: (f / "genai_config.json").write_text("[]"), InvalidModelError, "expected an object, found list"),
        (lambda f: (f / "genai_config.json").write_text("{}"), InvalidModelError, "has no 'model'"),
        (_config(num_hidden_layers=2), InvalidModelError, "no cache of keys and values named"),
        (_config(inputs={"more": "attention_mask"}), UnsupportedModelError, r"has inputs \['attention_mask'\]"),
    ],
)
def test_a_folder_that_lacks_something(
    written: Path, tmp_path: Path, change: Callable[[Path], None], error: type[Exception], match: str
) -> None:
    for file in written.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    change(tmp_path)
    with pytest.raises(error, match=match):
        Generator(tmp_path)


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="is not a folder"):
        Generator(tmp_path / "none")


def test_tokenizers_of_other_kinds(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"tokenizer\.json is not there\. Prompts of token ids"):
        Text(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"")
    with pytest.raises(FileNotFoundError, match=r"tokenizer\.model is a tokenizer of another kind"):
        Text(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model": 1}')
    with pytest.raises(InvalidModelError, match="no tokenizer that the package tokenizers reads"):
        Text(tmp_path)


@pytest.fixture
def text(tmp_path: Path) -> Text:
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer()))
    return Text(tmp_path)


def test_a_character_waits_for_its_last_byte(text: Text) -> None:
    whole = "na\N{LATIN SMALL LETTER I WITH DIAERESIS}ve \N{GRINNING FACE}\N{GRINNING FACE} ok"
    stream = TextStream(text)
    pieces = [stream.add(token) for token in whole.encode()]
    assert "".join(pieces) == whole
    assert set("".join(pieces)) == set(whole)
    assert pieces[2:4] == ["", whole[2]]
    unfinished = TextStream(text)
    assert unfinished.add(0xF0) == ""
    assert unfinished.end() == "\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize("stop", [["END"], ["ND", "zzz"], ["a" * 40]])
def test_text_that_may_begin_a_stop_text_is_held_back(text: Text, stop: list[str]) -> None:
    stream, shown = TextStream(text, stop), ""
    for token in b"first EN, then END of it":
        shown += stream.add(token)
        assert not any(shown.endswith(s[:k]) for s in stop for k in range(1, len(s)))
        if stream.stopped:
            break
    expected = {"END": "first EN, then ", "ND": "first EN, then E"}.get(stop[0], "first EN, then END of it")
    assert shown + stream.end() == expected


def test_a_template_cannot_reach_the_interpreter() -> None:
    assert render("{{ 'a' | tojson }}{%- for m in x %}{{ m }}{% break %}{% endfor %}", {"x": [1, 2]}) == '"a"1'
    with pytest.raises(InvalidInputError, match="only users"):
        render("{{ raise_exception('only users') }}", {})
    for bad in ("{{ ''.__class__.__mro__ }}{{ x.y.z }}", "{{ x.append(1) }}", "{% nothing %}"):
        with pytest.raises(InvalidInputError, match="chat template refuses"):
            render(bad, {"x": []})


def test_a_folder_without_a_template(text: Text) -> None:
    with pytest.raises(InvalidInputError, match="has no chat template"):
        text.chat([{"role": "user", "content": "hi"}])
