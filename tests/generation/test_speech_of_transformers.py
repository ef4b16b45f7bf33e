"""Transcriptions of long sounds against transformers' own generation, with the same random weights in torch. Needs torch,
transformers and optimum-onnx."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vkep.generation import Generator

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
exporters = pytest.importorskip("optimum.exporters.onnx")
from tools.speech_networks import SUPPRESSED, moonshine, whisper  # noqa: E402

pytestmark = pytest.mark.gpu
Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def model() -> Any:
    """A Whisper with random weights, whose times are about as probable as its texts."""
    return whisper()


@pytest.fixture(scope="module")
def generator(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Generator]:
    folder = tmp_path_factory.mktemp("whisper")
    model.save_pretrained(folder / "torch")
    logging.getLogger("optimum").setLevel(logging.ERROR)
    exporters.main_export(
        str(folder / "torch"), folder / "onnx", task="automatic-speech-recognition-with-past", do_validation=False
    )
    assert json.loads((folder / "onnx" / "generation_config.json").read_text())["suppress_tokens"] == SUPPRESSED
    with Generator(folder / "onnx", fallback="error") as opened:
        yield opened


def theirs(model: Any, features: Array, most: int, language: str | None, task: str | None, **settings: Any) -> Any:
    """Segments by transformers."""
    with torch.no_grad():
        made = model.generate(
            torch.from_numpy(features)[None],
            return_timestamps=True,
            return_segments=True,
            language=language,
            task=task,
            max_new_tokens=most,
            **{"do_sample": False, "temperature": None if features.shape[1] <= 3000 else 0.0, **settings},
        )
    return made["segments"][0]


def drawn_features(rng: np.random.Generator) -> Array:
    """Of 31 to 110 seconds, which get louder and quieter."""
    features = rng.normal(0, rng.uniform(0.5, 3), (80, round(100 * float(rng.uniform(31, 110))))).astype(np.float32)
    loudness = np.repeat(rng.uniform(0, 2, (1, features.shape[1] // 50 + 1)), 50, 1)
    return features * loudness[:, : features.shape[1]].astype(np.float32)


def same(made: Any, wanted: Any) -> bool:
    """Whether segments are the same."""
    found = [(s.tokens, round(s.start, 3), round(s.end, 3)) for s in made.segments]
    return found == [(s["tokens"].tolist(), round(float(s["start"]), 3), round(float(s["end"]), 3)) for s in wanted]


@pytest.mark.parametrize("seed", range(12))
def test_the_same_segments(model: Any, generator: Generator, seed: int) -> None:
    rng = np.random.default_rng(seed)
    features = drawn_features(rng)
    most = int(rng.integers(4, 40))
    language = [None, "en", "de", "fr"][int(rng.integers(4))]
    task = ["transcribe", "translate"][int(rng.integers(2))]
    wanted = theirs(model, features, most, language, task)
    made = generator.transcribe(features, language=language, task=task, max_tokens=most)
    assert same(made, wanted)


#: what a random model's answers meet sometimes: tokens repeat, and the best of 1,767 tokens has a probability of 0.05 to 0.5
THRESHOLDS = {
    "compression_ratio_threshold": (1.2, 2.0),
    "logprob_threshold": (-2.6, -1.2),
    "no_speech_threshold": (0.0, 0.003),
}


def test_the_same_long_forms(model: Any, generator: Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows that continue the text of those before; answers that are made again at a higher temperature (with the most probable
    token, here in both engines), and after which a window does not continue; windows without speech."""
    monkeypatch.setattr(torch, "multinomial", lambda chances, num_samples: chances.argmax(-1, keepdim=True))
    counts = dict.fromkeys(("continued", "again", "silent"), 0)
    for seed in range(9):
        rng = np.random.default_rng(100 + seed)
        features, most = drawn_features(rng), int(rng.integers(4, 28))
        given = {name: float(rng.uniform(*span)) for name, span in THRESHOLDS.items() if rng.random() < 0.7}
        if "logprob_threshold" not in given:
            given.pop("no_speech_threshold", None)
        temperatures = [(0.0,), (0.0, 0.3), (0.0, 0.7), (0.0, 0.2, 0.8)][int(rng.integers(4))]
        settings: dict[str, Any] = {
            "condition_on_prev_tokens": bool(rng.random() < 0.8),
            "temperature": temperatures,
            **given,
        }
        wanted = theirs(model, features, most, "en", "transcribe", **settings, top_k=0)
        made = generator.transcribe(features, language="en", max_tokens=most, **settings, top_k=1)
        assert same(made, wanted), settings
        plain = generator.transcribe(features, language="en", max_tokens=most)
        lower = generator.transcribe(features, language="en", max_tokens=most, **{**settings, "temperature": (0.0,)})
        loud = {name: value for name, value in settings.items() if name != "no_speech_threshold"}
        counts["continued"] += made.tokens != plain.tokens
        counts["again"] += lower.tokens != made.tokens
        counts["silent"] += generator.transcribe(features, language="en", max_tokens=most, **loud).tokens != made.tokens
    assert min(counts.values()) > 1, counts


def test_several_sounds_and_short_ones(model: Any, generator: Generator) -> None:
    rng = np.random.default_rng(77)
    sounds = [rng.normal(0, 2, (80, n)).astype(np.float32) for n in (3000, 4100, 3000, 6700)]
    made = generator.transcribe(sounds, language="en", max_tokens=20)
    for sound, one in zip(sounds, made, strict=True):
        wanted = [t for s in theirs(model, sound, 20, "en", "transcribe") for t in s["tokens"].tolist()]
        assert one.tokens == wanted


def test_moonshine(tmp_path: Path) -> None:
    """Its encoder reads samples, and its decoder a mask of them."""
    made = moonshine()
    made.save_pretrained(tmp_path / "torch")
    task = "automatic-speech-recognition-with-past"
    exporters.main_export(str(tmp_path / "torch"), tmp_path / "onnx", task=task, do_validation=False)
    with Generator(tmp_path / "onnx", fallback="error") as generator:
        for count in (16000, 23000, 41000):
            samples = np.random.default_rng(count).normal(0, 0.1, count).astype(np.float32)
            with torch.no_grad():
                tokens = made.generate(
                    input_values=torch.from_numpy(samples)[None], max_new_tokens=8, min_new_tokens=8, do_sample=False
                )
            answer = generator.generate(samples, max_tokens=8, ignore_end=True)
            assert [*answer.prompt, *answer.tokens] == tokens[0].tolist()
