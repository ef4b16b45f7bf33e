"""Sounds in prompts of Phi-4-multimodal: features, answers as onnxruntime-genai gives them, what is refused."""

from __future__ import annotations

import base64
import json
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.generation.phi_folders import write_phi
from tools.lora import add_lora, merged
from vkep.errors import InvalidInputError
from vkep.generation import Generator
from vkep.generation.sounds import features_of
from vkep.generation.vision import FIRST_TOKEN
from vkep.models.language import write_language
from vkep.models.starters import STARTERS
from vkep.session.ort_interface.adapters import AdapterFormat
from vkep.session.ort_interface.value import OrtValue

pytest.importorskip("onnxruntime_genai")
pytest.importorskip("PIL.Image")
pytest.importorskip("tokenizers")
from tests.generation.genai import Genai, picture, tone, wav

SETTINGS: dict[str, Any] = {"max_tokens": 8, "ignore_end": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("phi") / "phi4mm"
    write_phi(path, "phi4mm")
    return path


@pytest.fixture(scope="module")
def generator(folder: Path) -> Iterator[Generator]:
    with Generator(folder, fallback="error") as opened:
        yield opened


def test_features_are_those_of_transformers() -> None:
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    extractor = transformers.Phi4MultimodalFeatureExtractor()
    for seconds in (0.025, 0.5, 2.005, 7.3):
        made = extractor(tone(seconds), sampling_rate=16000, return_tensors="np")
        np.testing.assert_allclose(features_of(tone(seconds)), np.asarray(made["audio_input_features"])[0], atol=1e-3)


def test_features_are_near_those_of_onnxruntime_genai(folder: Path) -> None:
    """It computes them with fewer digits."""
    theirs = Genai(folder)
    for seconds in (0.5, 2.005):
        made = theirs.inputs("<|audio_1|>", None, tone(seconds))
        expected = made["audio_embeds"].as_numpy()[0]
        assert np.abs(features_of(tone(seconds)) - expected).max() < 0.1
        assert made["audio_sizes"].as_numpy().tolist() == [-(-len(expected) // 8)]


@pytest.mark.gpu
def test_answers_are_those_of_onnxruntime_genai(folder: Path, generator: Generator, tmp_path: Path) -> None:
    theirs, answers = Genai(folder), []
    for seconds, seed in ((0.5, 1), (2.005, 2), (3.0, 3)):
        sound = tone(seconds, seed)
        expected = theirs.greedy("a<|audio_1|>bc", None, 8, 6144, sound)
        tokens = generator.tokens([*b"a", -(10**8) - 1, *b"bc"], sounds=[sound])
        assert len(tokens) == 3 + -(-((sound.size - 400) // 160 + 1) // 8)
        assert generator.generate(tokens, **SETTINGS).tokens[: len(expected)] == expected
        answers.append(expected)
    both = theirs.greedy("a<|image_1|>b<|audio_1|>c", picture(119, 120), 8, 6144, tone(0.5, 1))
    prompt = [*b"a", -1, *b"b", -(10**8) - 1, *b"c"]
    made = generator.generate(prompt, images=[picture(119, 120)], sounds=[tone(0.5, 1)], **SETTINGS)
    assert made.tokens[: len(both)] == both
    assert len({tuple(found) for found in [*answers, both]}) == 4
    assert not [n for s in generator.decoder.sessions for n in s.report().nodes if n.where == "cpu"]
    (tmp_path / "a.wav").write_bytes(wav(tone(0.5, 1)))
    begin = generator.text.encode("")
    for given in (tone(0.5, 1), tmp_path / "a.wav", str(tmp_path / "a.wav")):
        said = generator.generate("a<|audio_1|>bc", sounds=[given], **SETTINGS)
        assert (
            said.tokens == generator.generate([*begin, *b"a", -(10**8) - 1, *b"bc"], sounds=[given], **SETTINGS).tokens
        )
    assert generator.tokens([5], sounds=[tone(0.5, 1)])[-1] == 5  # without a mark before all else


@pytest.mark.gpu
def test_chats_have_sounds(folder: Path, generator: Generator, tmp_path: Path) -> None:
    """In parts of messages, and of the service's in OpenAI's form: answers are those of onnxruntime-genai."""
    pytest.importorskip("fastapi")
    from tests.serving.conftest import serving

    sounds, text = [tone(0.5, 1), tone(0.8, 2)], {"type": "text", "text": "a <|audio_1|>"}
    (tmp_path / "b.wav").write_bytes(wav(sounds[1]))
    first: dict[str, Any] = {"role": "user", "content": [{"type": "audio", "audio": sounds[0]}, text]}
    more: list[dict[str, Any]] = [
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": [{"type": "audio", "audio": tmp_path / "b.wav"}]},
    ]
    tokens = list(generator.chat_tokens([first, *more]))
    shown, last = "", -1
    for token in tokens:
        shown += (chr(token) if token < 256 else "#") if token < FIRST_TOKEN or token != last + 1 else ""
        last = token
    assert shown == "<|user|>#a <|audio_1|><|end|><|assistant|>b<|end|><|user|>#<|end|><|assistant|>"
    alone = {"role": "user", "content": [first["content"][0], {"type": "text", "text": "what?"}]}
    expected = Genai(folder).greedy("<|user|><|audio_1|>what?<|end|><|assistant|>", None, 8, 6144, sounds[0])
    settings = {"max_tokens": 8, "temperature": 0}
    made = generator.chat([alone], **settings)
    assert made.tokens[: len(expected)] == expected
    assert made.tokens != generator.chat([{"role": "user", "content": "what?"}], **settings).tokens

    def asked(sound: bytes, form: str = "wav") -> bytes:
        part = {"type": "input_audio", "input_audio": {"data": base64.b64encode(sound).decode(), "format": form}}
        message = {"role": "user", "content": [part, alone["content"][1]]}
        return json.dumps({"model": "phi4mm", "messages": [message], **settings}).encode()

    with serving(folder.parent, [folder.name]) as running:
        url = f"{running.url}/v1/chat/completions"

        def post(body: bytes) -> Any:
            request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
            try:
                with urllib.request.urlopen(request, timeout=120) as response:
                    return json.load(response)
            except urllib.error.HTTPError as error:
                return json.load(error)["error"]

        assert post(asked(wav(sounds[0])))["choices"][0]["message"]["content"] == made.text
        for wrong, message in (
            (
                asked(b"", "mp3"),
                "messages[0].content[0]: input_audio has data of str and format 'mp3'; expected base64 and",
            ),
            (asked(b"RIFF"), "sound 1 of 1: the sound is no WAV file"),
            (asked(wav(sounds[0])[:40]), "sound 1 of 1: the sound is no WAV file"),
            (asked(wav(sounds[0][:200])), "sound 1 of 1: a sound has 200 samples"),
        ):
            error = post(wrong)
            assert error["param"] == "messages" and error["message"].startswith(message), error
        assert post(asked(wav(sounds[0])))["choices"][0]["message"]["content"] == made.text


@pytest.mark.gpu
def test_a_sound_beside_images_has_other_features(generator: Generator) -> None:
    sound, image = tone(0.5), picture(60, 60)
    alone, beside = generator.tokens([-(10**8) - 1], sounds=[sound]), generator.tokens([-1], [image], [sound])
    assert not set(alone) & set(beside)
    assert list(alone) == list(generator.tokens([-(10**8) - 1], sounds=[sound]))


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("prompt", "sounds", "message"),
    [
        ("<|audio_2|>", [tone(0.1)], r"marks of 1 sounds numbered \[2\], and 1 sounds are passed"),
        ("<|audio_1|><|image_1|>", [tone(0.1)], r"marks of 1 images numbered \[1\], and 0 images"),
        ("<|audio_1|>", [tone(0.02)], "sound 1 of 1: a sound has 320 samples at 16 kHz; expected 400 to"),
        ("", [tone(0.1), np.zeros(800)], "sound 2 of 2: the sound is float64"),
        ("", [np.zeros((2, 800), np.float32)], "sound 1 of 1: the sound is float32"),
        ("", [7], "the sound is int"),
    ],
)
def test_wrong_sounds_are_refused(generator: Generator, prompt: str, sounds: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        generator.generate(prompt, sounds=sounds)


@pytest.mark.gpu
def test_models_without_an_encoder_of_sounds_refuse_them(folder: Path, tmp_path: Path) -> None:
    write_phi(tmp_path / "phi3v", "phi3v")
    with Generator(tmp_path / "phi3v") as generator, pytest.raises(InvalidInputError, match="has no encoder of sounds"):
        generator.generate([5], sounds=[tone(0.1)])
    for write in (write_language, STARTERS["images"].write):
        write(tmp_path / write.__name__)
        said = [{"role": "user", "content": [{"type": "audio", "audio": tone(0.1)}]}]
        with (
            Generator(tmp_path / write.__name__) as generator,
            pytest.raises(InvalidInputError, match="has no encoder of so"),
        ):
            generator.chat(said)
    write_phi(tmp_path / "other", "phi4mm")
    (tmp_path / "other" / "speech.json").write_text(json.dumps({"feature_extraction": {"sequence": []}}))
    with Generator(tmp_path / "other") as generator, pytest.raises(InvalidInputError, match="knows Phi4AudioEmbed"):
        generator.generate([5], sounds=[tone(0.1)])


@pytest.mark.gpu
def test_images_and_sounds_have_adapters(tmp_path: Path) -> None:
    """That of images where there are some, else that of sounds. onnxruntime-genai has them as weights of its decoder."""
    pytest.importorskip("flatbuffers")
    folder = tmp_path / "phi4mm"
    write_phi(folder, "phi4mm")
    sizes = add_lora(folder / "model.onnx")
    config, theirs = json.loads((folder / "genai_config.json").read_text()), {}
    for seed, part in enumerate(("vision", "speech")):
        random, adapter = np.random.default_rng(seed), AdapterFormat()
        shapes = {f"{n}.{k}": shape for n, (a, b) in sizes.items() for k, shape in (("a", (a, 4)), ("b", (4, b)))}
        tensors = {name: random.normal(0, 0.2, shape).astype(np.float32) for name, shape in shapes.items()}
        adapter.set_parameters({name: OrtValue.ortvalue_from_numpy(value) for name, value in tensors.items()})
        adapter.export_adapter(str(folder / f"{part}.onnx_adapter"))
        shutil.copytree(folder, tmp_path / part)
        merged(folder / "model.onnx", tmp_path / part / "model.onnx", tensors)
        theirs[part] = Genai(tmp_path / part)
    for part in theirs:
        config["model"][part]["adapter_filename"] = f"{part}.onnx_adapter"
    (folder / "genai_config.json").write_text(json.dumps(config))
    with Generator(folder, fallback="error") as generator:
        for part, text, ids, image, sound in (
            ("vision", "a<|image_1|>b", [*b"a", -1, *b"b"], picture(60, 60), None),
            ("speech", "a<|audio_1|>b", [*b"a", -(10**8) - 1, *b"b"], None, tone(0.5)),
            ("vision", "<|image_1|><|audio_1|>b", [-1, -(10**8) - 1, *b"b"], picture(60, 60), tone(0.5)),
        ):
            expected = theirs[part].greedy(text, image, 8, 6144, sound)
            images, sounds = ([one] if one is not None else [] for one in (image, sound))
            made = generator.generate(ids, images=images, sounds=sounds, **SETTINGS).tokens
            assert made[: len(expected)] == expected
