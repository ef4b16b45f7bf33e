"""Adapters in onnxruntime-genai's form: LoRA weights that are inputs with empty weights of their names."""

from __future__ import annotations

import gc
import json
import urllib.request
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.calls import noted
from tests.generation.reference import Reference
from tests.serving.conftest import serving
from tools.lora import add_lora, drawn_adapter, merged
from vkep.cli import app
from vkep.errors import InvalidInputError
from vkep.generation import Generator
from vkep.generation.decoder import Decoder
from vkep.models.language import ARCHITECTURES, OPTIMUM, write_language
from vkep.session.ort_interface.adapters import AdapterFormat
from vkep.session.ort_interface.value import OrtValue

pytestmark = pytest.mark.gpu
for package in ("flatbuffers", "tokenizers", "fastapi"):
    pytest.importorskip(package)
Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def adapted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A folder, the adapters' tensors and files by name, and references by name; "" is the model alone."""
    folder = tmp_path_factory.mktemp("adapted")
    language = write_language(folder, request.param, context=96, layers=1)
    sizes = add_lora(folder / "model.onnx")
    assert len(sizes) >= 4
    files, references = {}, {}
    heads = language.heads if request.param in OPTIMUM else ARCHITECTURES[request.param].kv_heads
    for seed, (name, rank) in enumerate((("", 0), ("one", 4), ("two", 8))):
        files[name] = folder / f"{name}.onnx_adapter"
        tensors = drawn_adapter(sizes, rank, seed, files[name])
        merged(folder / "model.onnx", folder / f"merged{name}.onnx", tensors)
        references[name] = Reference(folder / f"merged{name}.onnx", heads, language.size)
    return folder, files, references


@pytest.fixture
def generator(adapted: Any) -> Iterator[Generator]:
    folder, files, _ = adapted
    with Generator(folder, fallback="error") as opened:
        for name in ("one", "two"):
            opened.load_adapter(files[name], name)
        yield opened


PROMPT = list(range(60, 80))


def test_answers_with_adapters(adapted: Any, generator: Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, references = adapted
    expected = {name: theirs.greedy(PROMPT, 9) for name, theirs in references.items()}
    assert len({tuple(tokens) for tokens in expected.values()}) == 3
    runs = noted(monkeypatch, Decoder, "_run", lambda self, ids, *rest: int(ids.shape[1]))
    for name in ("", "one", "two", "one", ""):
        runs.clear()
        answer = generator.generate(PROMPT, adapter=name, max_tokens=9, ignore_end=True)
        assert answer.tokens == expected[name]
    assert runs[0] == 1  # what an adapter computed is used for the same adapter only
    batch = generator.batch(max_sequences=6)
    answers = []
    for name in ("one", "", "two", "one", ""):  # they join one after the other
        answers.append(batch.add(PROMPT, generator.sampling(adapter=name, max_tokens=9, ignore_end=True)))
        batch.step()
    while batch.in_progress:
        batch.step()
    assert [a.tokens for a in answers] == [expected[name] for name in ("one", "", "two", "one", "")]
    batch.close()


def test_rows_between_those_of_a_run_keep_their_tokens(generator: Generator) -> None:
    """A row of another adapter fills its memory while the rows beside it run."""
    prompts = [[int(t) for t in np.random.default_rng(k).integers(5, 250, n)] for k, n in enumerate((8, 30, 9))]
    settings: dict[str, Any] = {"max_tokens": 50, "ignore_end": True, "temperature": 1.0, "seed": 7, "logprobs": 1}

    def answers(which: list[int]) -> list[tuple[list[int], list[float]]]:
        batch = generator.batch(max_sequences=4)
        made = [batch.add(prompts[k], generator.sampling(adapter=("", "one", "")[k], **settings)) for k in which]
        while batch.in_progress:
            batch.step()
        batch.close()
        return [(a.tokens, [chance.value for chance in a.logprobs or ()]) for a in made]

    alone = [answers([k])[0] for k in range(3)]
    for (tokens, chances), (expected, theirs) in zip(answers([0, 1, 2]), alone, strict=True):
        assert tokens == expected and len(chances) == 50
        np.testing.assert_allclose(chances, theirs, atol=1e-3)


def test_a_service(adapted: Any, generator: Generator) -> None:
    folder, files, _ = adapted
    expected = [generator.generate("hello", adapter=name, max_tokens=5, ignore_end=True).text for name in ("", "one")]
    options = (
        "--adapter",
        f"one={files['one']}",
        "--adapter",
        f"{folder.name}:two={files['two']}",
        "--max-sequences",
        "3",
    )
    with serving(folder, [f"{folder.name}={folder}"], *options) as running:
        cards = {one["id"]: one.get("parent") for one in running.get("/v1/models")["data"]}
        assert cards == {folder.name: None, "one": folder.name, "two": folder.name}
        for name, text in zip((folder.name, "one"), expected, strict=True):
            body = {"model": name, "prompt": "hello", "max_tokens": 5, "ignore_eos": True, "temperature": 0}
            request = urllib.request.Request(f"{running.url}/v1/completions", json.dumps(body).encode())
            with urllib.request.urlopen(request, timeout=60) as answer:
                found = json.load(answer)
            assert (found["model"], found["choices"][0]["text"]) == (name, text)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["x"], "expected NAME=PATH"),
        (["other:x=a"], "expected NAME=PATH"),
        (["a:x=none"], "no such file"),
        (["a:x=FILE", "b:x=FILE"], "'x' is the name of another"),
        (["a:b=FILE"], "'b' is the name of another"),
    ],
)
def test_wrong_adapters_of_a_service(adapted: Any, given: list[str], says: str) -> None:
    folder, files, _ = adapted
    options = [part for one in given for part in ("--adapter", one.replace("FILE", str(files["one"])))]
    result = CliRunner().invoke(app, ["serve", f"a={folder}", f"b={folder}", *options])
    assert result.exit_code == 2 and says in " ".join(result.output.replace("│", " ").split())


def test_another_adapter_of_a_name(adapted: Any, generator: Generator) -> None:
    _, files, references = adapted
    settings: dict[str, Any] = {"adapter": "one", "max_tokens": 6, "ignore_end": True}
    assert isinstance(generator.decoder, Decoder)
    old = weakref.ref(generator.decoder.adapters["one"])
    batch = generator.batch(max_sequences=2)
    first = batch.add(PROMPT, generator.sampling(**settings))
    for _ in range(3):
        batch.step()
    generator.load_adapter(files["two"], "one")
    second = batch.add(PROMPT, generator.sampling(**settings))
    while batch.in_progress:
        batch.step()
    batch.close()
    assert first.tokens == references["one"].greedy(PROMPT, 6)
    assert second.tokens == references["two"].greedy(PROMPT, 6)
    del batch, first, second
    gc.collect()
    assert old() is None  # no binding keeps its tensors


def test_what_is_refused(adapted: Any, generator: Generator, tmp_path: Path) -> None:
    _, files, _ = adapted
    with pytest.raises(InvalidInputError, match=r"adapter is 'three'; loaded are \['one', 'two'\]"):
        generator.generate(PROMPT, adapter="three")
    with pytest.raises(InvalidInputError, match="expected a name"):
        generator.load_adapter(files["one"], "")
    with pytest.raises(FileNotFoundError):
        generator.load_adapter(tmp_path / "none", "x")
    for tensor, message in (
        (("lora.0.a", np.zeros((3, 4), np.float32)), "its 'lora.0.a' has the shape"),
        (("lora.0.a", np.zeros(3, np.float32)), "its 'lora.0.a' has the shape"),
        (("other", np.zeros((3, 4), np.float32)), "its 'other' has the shape"),
    ):
        form = AdapterFormat()
        form.set_parameters({tensor[0]: OrtValue.ortvalue_from_numpy(tensor[1])})
        form.export_adapter(tmp_path / "wrong")
        with pytest.raises(InvalidInputError, match=message):
            generator.load_adapter(tmp_path / "wrong", "wrong")
