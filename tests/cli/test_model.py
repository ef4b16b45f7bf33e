"""``vkep model``: each model opens, runs wholly on the device, and agrees with the CPU; wrong requests are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vkep.models.starters import STARTERS

Run = Callable[..., Any]
#: what runs the model that was written
CALLS = {
    "cnn": ["--dim", "batch=2", "--check-cpu"],
    "bert": ["--dim", "batch=2", "--dim", "sequence=7", "--check-cpu"],
    "classifier": ["--dim", "batch=2", "--dim", "sequence=7", "--check-cpu"],
    "sentences": ["--dim", "batch=2", "--dim", "sequence=7", "--check-cpu"],
    "detector": ["--dim", "batch=2", "--check-cpu"],
    "vad": ["--dim", "batch=2", "--dim", "samples=512", "--check-cpu"],
    "recognizer": ["--dim", "batch=2", "--check-cpu"],
    "mixed": ["--prefer", "vulkan_first", "--check-cpu"],
    "program": [],
}


def test_every_model_is_listed(run: Run) -> None:
    assert list(json.loads(run("model", "--json").stdout)["models"]) == list(STARTERS)
    assert all(name in run("model").stdout for name in STARTERS)


@pytest.mark.gpu
@pytest.mark.parametrize("name", CALLS)
def test_a_model_runs_and_agrees_with_the_cpu(run: Run, tmp_path: Path, name: str) -> None:
    path = tmp_path / STARTERS[name].path
    assert json.loads(run("model", name, "-o", path, "--json").stdout)["written"] == str(path)
    model = path / "model.onnx" if path.is_dir() else path
    found = run("run", model, *CALLS[name], "--json")
    assert found.exit_code == 0, found.output
    data = json.loads(found.stdout)
    if name != "program":  # whose reciprocal runs in numpy
        assert data["check"]["ok"] and "cpu" not in data["report"]["counts"]


def test_the_models_without_an_output_option_are_written_here(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, one in STARTERS.items():
        assert run("model", name).exit_code == 0 and Path(one.path).exists()


def test_a_decoder_has_the_sizes_that_are_asked_for(run: Run, tmp_path: Path) -> None:
    asked = ("--architecture", "qwen3", "--precision", "int4", "--size", "layers=3", "--size", "context=128")
    assert run("model", "decoder", "-o", tmp_path / "d", *asked).exit_code == 0
    config = json.loads((tmp_path / "d" / "genai_config.json").read_text())["model"]
    assert (config["type"], config["context_length"], config["decoder"]["num_hidden_layers"]) == ("qwen3", 128, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("cnnn",), "no model named 'cnnn'; there are: cnn, bert"),
        (("cnn", "--size", "layers=2"), "are for decoder, not for cnn"),
        (("decoder", "--size", "layer=2"), "no size named 'layer'; there are: layers, hidden"),
        (("decoder", "--size", "layers=two"), "expected a size, such as layers=4"),
        (("decoder", "--precision", "int3"), "expected one of"),
        (("cnn", "-o", "none/here.onnx"), "there is no folder none"),
    ],
)
def test_wrong_requests_are_refused(run: Run, tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    result = run("model", *arguments)
    assert result.exit_code == 2 and message in result.stderr
