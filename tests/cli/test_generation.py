"""``vkep generate``, and ``vkep bench`` of a folder."""

from __future__ import annotations

import json
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vkep.models.language import write_language
from vkep.models.sources import write_sources
from vkep.models.vision_language import write_vision_language

pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")
pytestmark = pytest.mark.gpu


def test_a_folder_answers_and_is_measured(run: Callable[..., Any], tmp_path: Path) -> None:
    write_language(tmp_path, layers=1)
    asked = ("generate", tmp_path, "--prompt", "hi", "-n", 6, "--temperature", 1, "--seed", 5, "--top-p", 0.9)
    [answer] = json.loads(run(*asked, "--json").stdout)["answers"]
    assert (answer["prompt_tokens"], answer["reason"], len(answer["tokens"])) == (3, "length", 6)
    assert run(*asked).stdout == answer["text"] + "\n"
    chat = json.loads(run("generate", tmp_path, "-p", "hi", "-n", 2, "--chat", "--system", "be brief", "--json").stdout)
    assert chat["answers"][0]["prompt_tokens"] == len("<system>be brief\n<user>hi\n<assistant>")
    found = json.loads(run("bench", tmp_path, "-p", 20, "-g", 4, "-n", 1, "--warmup", 1, "--json").stdout)["results"]
    assert [rate["test"] for rate in found] == ["pp20", "tg4"]
    assert all(rate["tokens_per_second"] > 0 for rate in found)
    usual = json.loads(run("bench", tmp_path, "-n", 1, "--warmup", 1, "--json").stdout)["results"]
    assert [rate["test"] for rate in usual] == ["pp128", "tg64"]  # the model takes 256 tokens


def test_sounds_are_transcribed(run: Callable[..., Any], tmp_path: Path) -> None:
    write_sources(tmp_path / "model", "whisper")
    with wave.open(str(tmp_path / "a.wav"), "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", ""))
        file.writeframes(np.random.default_rng(0).integers(-3000, 3000, 16000).astype("<i2").tobytes())
    asked = ("transcribe", tmp_path / "model", tmp_path / "a.wav", "-n", 6, "-l", "de", "--condition-on-prev-tokens")
    [found] = json.loads(run(*asked, "--json").stdout)["transcripts"]
    assert found["language"] == "de" and found["segments"][0]["start"] <= 1
    shown = run(*asked).stdout.splitlines()
    assert len(shown) >= len(found["segments"]) and " s:" in shown[0]
    both = run("transcribe", tmp_path / "model", *[tmp_path / "a.wav"] * 2, *asked[3:]).stdout.splitlines()
    assert both == [f"{tmp_path / 'a.wav'}:", *shown] * 2
    assert run(*asked, "--task", "sing").exit_code == 2


def test_a_prompt_has_images(run: Callable[..., Any], tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    write_vision_language(tmp_path / "model")
    image.new("RGB", (40, 50), "red").save(tmp_path / "a.png")
    asked = ("generate", tmp_path / "model", "-p", "hi <image>", "-n", 2, "--json", "--image", tmp_path / "a.png")
    [answer] = json.loads(run(*asked).stdout)["answers"]
    assert answer["prompt_tokens"] == len("<s>hi ".replace("<s>", "s")) + 16
    [chat] = json.loads(run(*asked, "--chat").stdout)["answers"]
    assert chat["prompt_tokens"] == len("<user>hi <image>\n<assistant>") + 16
    several = run(*asked, "-p", "more")
    assert several.exit_code == 2 and "--image belongs to one --prompt" in several.stderr
    missing = run(*asked[:-1], tmp_path / "none.png")
    assert missing.exit_code == 2 and "none.png" in missing.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("--system", "be brief"), 2, "--system belongs to --chat"),
        (("--top-p", "2"), 2, "top_p is 2.0"),
        ((), 2, "is not a folder"),
    ],
)
def test_wrong_requests_are_refused(
    run: Callable[..., Any], tmp_path: Path, arguments: tuple[str, ...], status: int, message: str
) -> None:
    folder = tmp_path / ("none" if not arguments else "model")
    if arguments:
        write_language(folder, layers=1)
    result = run("generate", folder, "-p", "hi", *arguments)
    assert (result.exit_code, result.stdout) == (status, "")
    assert message in result.stderr


@pytest.mark.gpu
def test_a_task_about_an_image_has_regions(run: Callable[..., Any], tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    from vkep.generation import Generator
    from vkep.models.vision_language import write_florence

    write_florence(tmp_path / "model")
    picture = image.new("RGB", (60, 40), (90, 90, 90))
    picture.save(tmp_path / "a.png")
    with Generator(tmp_path / "model") as generator:
        expected = generator.vision_task("<REGION_PROPOSAL>", picture, max_tokens=24)
    asked = ("generate", tmp_path / "model", "-n", 24, "--image", tmp_path / "a.png", "-p")
    [answer] = json.loads(run(*asked, "<REGION_PROPOSAL>", "--json").stdout)["answers"]
    assert tuple(answer["tokens"]) == expected.tokens and answer["text"] == expected.text
    assert [tuple(region["box"]) for region in answer["regions"]] == [region.box for region in expected.regions]
    shown = run(*asked, "<REGION_PROPOSAL>").stdout
    assert expected.text in shown and shown.count("region: box (") == len(expected.regions)
    assert run(*asked, "What does it show?").exit_code == 0
    wrong = run(*asked, "<OD> cars")
    assert wrong.exit_code and "expected of the task <OD> nothing" in wrong.output
    two = run(*asked, "<OD>", "--image", tmp_path / "a.png")
    assert two.exit_code == 2 and "is about one --image" in two.output
