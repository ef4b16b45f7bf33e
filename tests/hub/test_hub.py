"""Models of the Hugging Face hub, from an endpoint on this machine. Each program is a process, since huggingface_hub reads its
settings when it is imported."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest

from tests.hub.endpoint import Hub, commit, hub_of
from vkep.errors import InvalidInputError
from vkep.hub import HubName, is_hub_name
from vkep.models.language import write_language
from vkep.models.starters import STARTERS

pytest.importorskip("huggingface_hub")
ASK = """
import json, sys
from pathlib import Path
from vkep.generation import published
from vkep import hub
for line in sys.stdin:
    function, name = line.split()
    try:
        path = {"model": hub.model_file, "folder": published.published_folder, "served": published.served,
                "measured": published.measured, "local": published.local_folder}[function](name)
        at = path.as_posix().partition("/snapshots/")[2]
        files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
        print(json.dumps([at, sorted(p.name for p in files)]))
    except Exception as error:
        print(json.dumps([type(error).__name__, str(error)]))
"""


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    """Repositories of acme: a language model, a classifier, an encoder-decoder's files, several models, and none."""
    folder = tmp_path_factory.mktemp("hub")
    write_language(folder / "acme/tiny", layers=1)
    (folder / "acme/tiny/pytorch_model.bin").write_bytes(b"not asked for")
    classifier = folder / "acme/classifier"
    (classifier / "onnx").mkdir(parents=True)
    STARTERS["classifier"].write(classifier)
    model = onnx.load(classifier / "model.onnx")
    (classifier / "model.onnx").unlink()
    onnx.save_model(model, classifier / "onnx/model.onnx", save_as_external_data=True, location="weights.bin")
    shutil.copy(classifier / "onnx/weights.bin", classifier / "onnx/other.bin")
    for name in ("encoder_model", "decoder_model", "decoder_with_past_model"):
        (folder / "acme/t5/onnx").mkdir(parents=True, exist_ok=True)
        STARTERS["cnn"].write(folder / f"acme/t5/onnx/{name}.onnx")
    (folder / "acme/t5/config.json").write_text(json.dumps({"is_encoder_decoder": True}))
    (folder / "acme/torch").mkdir()
    (folder / "acme/torch/config.json").write_text("{}")
    with hub_of(folder) as served:
        yield served


def ask(hub: Hub, cache: Path, *lines: str, **environment: str) -> list[list[str]]:
    """The answers of one process: the path in the cache and the files that are there, or the error and its text."""
    script = cache.parent / "ask.py"
    script.write_text(ASK)
    done = hub.command(script, cache=cache, given="\n".join(lines), **environment)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_only_the_needed_files_are_downloaded_and_stay_for_later(hub: Hub, tmp_path: Path) -> None:
    cache, main = tmp_path / "cache", commit("main")
    lines = (
        "model hf:acme/classifier",
        "served hf:acme/classifier",
        "measured hf:acme/classifier",
        "measured hf:acme/tiny",
        "local acme/tiny",
        "folder acme/t5",
        "model hf:acme/t5@v1/onnx/encoder_model.onnx",
    )
    expected = [
        [f"{main}/onnx/model.onnx", ["model.onnx"]],
        [main, ["config.json", "model.onnx", "tokenizer.json", "tokenizer_config.json", "weights.bin"]],
        [f"{main}/onnx/model.onnx", ["model.onnx"]],
        [main, ["genai_config.json", "model.onnx", "tokenizer.json", "tokenizer_config.json"]],
        [main, ["genai_config.json", "model.onnx", "tokenizer.json", "tokenizer_config.json"]],
        [main, ["config.json", "decoder_model.onnx", "decoder_with_past_model.onnx", "encoder_model.onnx"]],
        [f"{commit('v1')}/onnx/encoder_model.onnx", ["encoder_model.onnx"]],
    ]
    assert ask(hub, cache, *lines) == expected
    asked = len(hub.asked)
    assert ask(hub, cache, *lines[:6], HF_HUB_OFFLINE="1") == expected[:6]
    assert len(hub.asked) == asked


def test_what_is_not_there_is_named(hub: Hub, tmp_path: Path) -> None:
    hub.extra = ["../../outside.onnx", "C:/outside.onnx", "a\\..\\outside.onnx"]
    try:
        answers = ask(
            hub,
            tmp_path / "cache",
            "model hf:acme/nothing",
            "model acme/classifier@v9",
            "model acme/classifier/none.onnx",
            "model acme/t5",
            "model acme/torch",
            "folder acme/torch",
            "model hf:acme",
            "model acme/classifier/../../outside.onnx",
        )
    finally:
        hub.extra = []
    for (kind, text), (error, says) in zip(
        answers,
        (
            ("FileNotFoundError", "hf:acme/nothing: there is no such repository, or it is private"),
            ("FileNotFoundError", "it has no revision 'v9'"),
            ("FileNotFoundError", "there is no such file; its models are: onnx/model.onnx"),
            ("FileNotFoundError", "has several models: onnx/decoder_model.onnx"),
            ("FileNotFoundError", "optimum-cli export onnx --model acme/torch"),
            ("FileNotFoundError", "has no model of a known name"),
            ("InvalidInputError", "'acme' is not OWNER/NAME"),
            ("FileNotFoundError", "there is no such file"),
        ),
        strict=True,
    ):
        assert kind == error and says in text
    assert not any("outside" in path for path in hub.asked)


@pytest.mark.gpu
def test_commands_and_generators_take_the_names(hub: Hub, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    run = ("-m", "vkep", "run", "hf:acme/classifier", "--dim", "batch=1", "--dim", "sequence=4")
    done = hub.command(*run, cache=cache)
    assert "output logits: float32 [1, 3]" in done.stdout and not done.stderr
    program = "from vkep.generation import Generator; print(Generator('acme/tiny').generate('hi', max_tokens=3).tokens)"
    done = hub.command("-c", program, cache=cache)
    assert len(json.loads(done.stdout)) == 3, done.stderr
    done = hub.command("-m", "vkep", "generate", "hf:acme/nothing", "-p", "hi", "--json", cache=cache)
    assert done.returncode == 2 and json.loads(done.stdout)["error"]["kind"] == "FileNotFoundError"


def test_names_are_read() -> None:
    assert HubName.of("hf:a/b@v1.0/c/d.onnx") == HubName("a/b", "v1.0", "c/d.onnx")
    assert str(HubName.of(Path("hf:a/b"))) == "hf:a/b"
    assert is_hub_name("hf:a/b") and not is_hub_name(Path("a/b"))
    for name in ("hf:", "hf:a", "hf:a b/c", "hf:/etc/passwd", "hf:a/b@"):
        with pytest.raises(InvalidInputError, match="OWNER/NAME"):
            HubName.of(name)
