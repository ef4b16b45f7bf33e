"""Phi-3.5-vision and Phi-4-multimodal in onnxruntime-genai's folders: pixels, answers, and numbers of images in texts."""

from __future__ import annotations

import base64
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.generation.phi_folders import IMAGE, SIZES, steps, write_phi
from tools.lora import add_lora, merged
from tools.ort_cpu import cpu_session
from vkep.errors import InvalidInputError, InvalidModelError
from vkep.generation import Generator
from vkep.generation.crops import Crops, nearest_ratio
from vkep.generation.images import Processor
from vkep.generation.vision import FIRST_TOKEN
from vkep.session.ort_interface.adapters import AdapterFormat
from vkep.session.ort_interface.value import OrtValue

pytest.importorskip("onnxruntime_genai")
pytest.importorskip("PIL.Image")
pytest.importorskip("tokenizers")
from PIL import Image

from tests.generation.genai import Genai, picture, png

Array = np.ndarray[Any, Any]
SETTINGS: dict[str, Any] = {"max_tokens": 8, "ignore_end": True}


PICTURES = [picture(500, 700), picture(119, 120), picture(300, 60), picture(60, 600)]


@pytest.fixture(scope="module", params=SIZES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("phi") / request.param
    write_phi(path, request.param)
    return Path(path)


@pytest.fixture(scope="module")
def generator(folder: Path) -> Iterator[Generator]:
    with Generator(folder, fallback="error") as opened:
        yield opened


class Parts:
    """The folder's models on ONNX Runtime, joined by numpy: for several images and an adapter."""

    def __init__(self, folder: Path, decoder: str = "model.onnx") -> None:
        self.vision, self.embedding = (cpu_session(folder / f"{name}.onnx") for name in ("vision", "embedding"))
        self.decoder, self.processor = cpu_session(folder / decoder), Processor.of(folder, "steps.json")
        self.mark = IMAGE if folder.name == "phi4mm" else -1

    def greedy(self, prompt: list[int], images: list[Array], count: int) -> list[int]:
        """The most probable tokens; -k stands for image k."""
        features = [self._features(image) for image in images]
        ids = [t for token in prompt for t in ([self.mark] * len(features[-token - 1]) if token < 0 else [token])]
        read = [features[-token - 1] for token in prompt if token < 0] or [np.zeros((0, 64), np.float32)]
        given = {"image_features": np.concatenate(read), "audio_features": np.zeros((0, 64), np.float32)}
        past = {
            i.name: np.zeros((1, i.shape[1], 0, i.shape[3]), np.float32)
            for i in self.decoder.get_inputs()
            if i.name.startswith("past")
        }
        outputs, tokens, done = [o.name for o in self.decoder.get_outputs()], list[int](), 0
        for _ in range(count):
            reads = [i.name for i in self.embedding.get_inputs()]
            given["input_ids"] = np.array([ids], np.int64)
            [embeds] = self.embedding.run(None, {name: given[name] for name in reads})
            given = {name: np.zeros((0, 64), np.float32) for name in reads}
            done += len(ids)
            step = {"inputs_embeds": embeds, "attention_mask": np.ones((1, done), np.int64), **past}
            results = dict(zip(outputs, self.decoder.run(None, step), strict=True))
            past = {name: results[name.replace("past_key_values", "present")] for name in past}
            ids = [int(results["logits"][0, -1].argmax())]
            tokens += ids
        return tokens

    def _features(self, image: Array) -> Array:
        pixels = self.processor.pixels(image)
        edge = pixels.values.shape[-1]
        sizes = np.array([[pixels.rows * edge, pixels.columns * edge]], np.int64)
        given = {"pixel_values": pixels.values[None], "image_sizes": sizes, "image_attention_mask": pixels.mask}
        given["image_attention_mask"] = None if pixels.mask is None else pixels.mask[None]
        reads = [i.name for i in self.vision.get_inputs()]
        return np.asarray(self.vision.run(None, {name: given[name] for name in reads})[0])


def test_pixels_are_those_of_onnxruntime_genai(folder: Path) -> None:
    theirs, processor = Genai(folder), Processor.of(folder, "steps.json")
    for image in (*PICTURES, picture(336, 1344), picture(31, 30), picture(2000, 40)):
        made, expected = processor.pixels(image), theirs.inputs("<|image_1|>", image)
        np.testing.assert_allclose(made.values[None], expected["pixel_values"].as_numpy(), atol=1e-6)
        edge = made.values.shape[-1]
        assert expected["image_sizes"].as_numpy().tolist() == [[made.rows * edge, made.columns * edge]]
        if made.mask is not None:
            np.testing.assert_array_equal(made.mask[None], expected["image_attention_mask"].as_numpy())


def test_many_crops_take_the_nearest_ratio() -> None:
    """As the processor of transformers; sizes by hand."""
    assert nearest_ratio((1000, 1000), 100, 9).canvas == (300, 300)
    assert nearest_ratio((1000, 500), 100, 9).canvas == (400, 200)
    assert nearest_ratio((150, 50), 100, 1).canvas == (100, 100)
    wide = nearest_ratio((3000, 500), 100, 9)
    assert wide.canvas == (600, 100) and wide.size == (600, 100) and wide.at == (0, 0)


def test_an_image_that_is_too_long_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="too long"):
        Crops(448, 4, nearest_ratio).cut(Image.new("RGB", (30000, 10)), lambda values: values)


@pytest.mark.gpu
def test_answers_are_those_of_onnxruntime_genai(folder: Path, generator: Generator) -> None:
    theirs = Genai(folder)
    for image in PICTURES:
        expected = theirs.greedy("a<|image_1|>bc", image, 8, 6144)
        assert generator.generate([*b"a", -1, *b"bc"], images=[image], **SETTINGS).tokens[: len(expected)] == expected
    assert not [n for s in generator.decoder.sessions for n in s.report().nodes if n.where == "cpu"]


@pytest.mark.gpu
def test_several_images_have_numbers(folder: Path, generator: Generator) -> None:
    parts, one, other = Parts(folder), PICTURES[1], PICTURES[2]
    cases = [([5, -1, 7, -2, 9], [one, other]), ([5, -2, 7, -1, 9], [one, other]), ([-1, 7], [other]), ([60, 61], [])]
    for prompt, given in cases:
        assert generator.generate(prompt, images=given, **SETTINGS).tokens == parts.greedy(prompt, given, 8)
    unmarked = generator.generate([7, 9], images=[one], **SETTINGS)
    assert unmarked.tokens == parts.greedy([-1, 7, 9], [one], 8)
    texts = generator.tokens("x<|image_2|>y<|image_1|>", [one, other])
    assert list(texts) == list(generator.tokens([*generator.tokens("x"), -2, *b"y", -1], [one, other]))
    twice = generator.tokens([-1, 5, -1], [one])
    assert list(twice) == [*twice[: len(twice) // 2], 5, *twice[: len(twice) // 2]]


@pytest.mark.gpu
@pytest.mark.parametrize("prompt", [[5, -2], [-1, -3], [-1], "<|image_1|><|image_3|>"])
def test_other_numbers_are_refused(generator: Generator, prompt: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"marks of [12] images numbered \[.*\], and 2 images are passed"):
        generator.generate(prompt, images=PICTURES[1:3])
    with pytest.raises(InvalidInputError, match="has the number 0; the first one has 1"):
        generator.generate("<|image_1|><|image_0|>", images=PICTURES[1:3])


@pytest.mark.gpu
def test_chats_number_their_images(folder: Path, generator: Generator) -> None:
    one, other = ({"type": "image", "image": image} for image in PICTURES[1:3])
    said: list[dict[str, Any]] = [
        {"role": "user", "content": [one, {"type": "text", "text": "see <|image_2|>"}]},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": [{"type": "text", "text": "and"}, other]},
    ]
    tokens = list(generator.chat_tokens(said))
    after = "\n" if folder.name == "phi3v" else ""
    shown, last = "", -1
    for token in tokens:
        new = token < FIRST_TOKEN or token != last + 1
        shown += (chr(token) if token < 256 else "#") if new else ""
        last = token
    expected = f"<|user|>#{after}see <|image_2|><|end|><|assistant|>yes<|end|><|user|>and#{after}<|end|><|assistant|>"
    assert shown == expected
    assert len(generator.chat(said, **SETTINGS).tokens) == 8
    with pytest.raises(InvalidInputError, match="a part of a message is"):
        generator.chat_tokens([{"role": "user", "content": [one, {"type": "sound"}]}])


@pytest.mark.gpu
def test_the_chat_service_takes_images(folder: Path, generator: Generator) -> None:
    pytest.importorskip("fastapi")
    from tests.serving.conftest import serving

    url = f"data:image/png;base64,{base64.b64encode(png(PICTURES[1])).decode()}"
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "what?"}]
    asked = {"model": folder.name, "messages": [{"role": "user", "content": parts}], "max_tokens": 8, "temperature": 0}
    own = [{"role": "user", "content": [{"type": "image", "image": PICTURES[1]}, parts[1]]}]
    with serving(folder.parent, [folder.name]) as running:
        request = urllib.request.Request(
            f"{running.url}/v1/chat/completions", json.dumps(asked).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as response:
            answer = json.load(response)
    assert answer["choices"][0]["message"]["content"] == generator.chat(own, max_tokens=8).text


@pytest.mark.gpu
def test_images_have_an_adapter(tmp_path: Path) -> None:
    pytest.importorskip("flatbuffers")
    folder = tmp_path / "phi4mm"
    write_phi(folder, "phi4mm")
    random = np.random.default_rng(0)
    tensors = {
        f"{name}.{part}": random.normal(0, 0.2, shape).astype(np.float32)
        for name, (n_in, n_out) in add_lora(folder / "model.onnx").items()
        for part, shape in (("a", (n_in, 4)), ("b", (4, n_out)))
    }
    adapter = AdapterFormat()
    adapter.set_parameters({name: OrtValue.ortvalue_from_numpy(value) for name, value in tensors.items()})
    adapter.export_adapter(str(folder / "images.onnx_adapter"))
    config = json.loads((folder / "genai_config.json").read_text())
    config["model"]["vision"]["adapter_filename"] = "images.onnx_adapter"
    (folder / "genai_config.json").write_text(json.dumps(config))
    plain = Parts(folder)
    adapted = Parts(folder, merged(folder / "model.onnx", folder / "merged.onnx", tensors).name)
    image, prompt = PICTURES[1], [5, -1, 7]
    with Generator(folder, fallback="error") as generator:
        expected = adapted.greedy(prompt, [image], 8)
        assert expected != plain.greedy(prompt, [image], 8)
        assert generator.generate(prompt, images=[image], **SETTINGS).tokens == expected
        assert generator.search(generator.tokens(prompt, [image]), beams=1, **SETTINGS)[0].tokens == expected
        assert generator.generate([5, 7], **SETTINGS).tokens == plain.greedy([5, 7], [], 8)
        mixed = generator.generate([generator.tokens(prompt, [image]), [5, 7]], **SETTINGS)
        assert [a.tokens for a in mixed] == [expected, plain.greedy([5, 7], [], 8)]
    (folder / "images.onnx_adapter").unlink()
    with pytest.raises(FileNotFoundError, match=r"images\.onnx_adapter"):
        Generator(folder)


@pytest.mark.gpu
def test_the_tokens_of_phi_4_in_transformers(tmp_path: Path) -> None:
    """Its encoder of images and its embeddings by torch, its decoder by onnxruntime-genai's builder."""
    torch = pytest.importorskip("torch")
    version = pytest.importorskip("transformers").__version__
    builder = pytest.importorskip("onnxruntime_genai").__version__
    if int(version.split(".")[0]) > 4 or tuple(map(int, builder.split(".")[:2])) > (0, 13):
        pytest.skip(
            f"onnxruntime-genai {builder} builds with transformers 5; {version} is installed, or differs in Phi-4"
        )
    from tests.generation.phi_of_transformers import exported, greedy

    (tmp_path / "steps.json").write_text(json.dumps(steps("phi4mm")))
    processor = Processor.of(tmp_path, "steps.json")
    shown, count = picture(300, 448), 256 + 1 + 16 + 11 * 16 + 11  # rows of the whole image, and of half its crop
    pictures = [shown, shown[::-1].copy()]

    def given(image: Array) -> tuple[Any, Any, Any]:
        made = processor.pixels(image)
        assert made.mask is not None
        return torch.tensor(made.values)[None], torch.tensor([[448, 448]]), torch.tensor(made.mask)[None]

    model, built = exported(tmp_path, *given(shown), count)
    answers = []
    with Generator(built, fallback="error") as generator:
        for image in pictures:
            prompt = [*b"ab", -1, *b"what"]
            expected = greedy(model, prompt, *given(image), count, 10)
            answer = generator.generate(prompt, images=[image], max_tokens=10)
            assert answer.tokens == expected
            answers.append(expected)
    assert answers[0] != answers[1]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"dyhd_base_resolution": 450}, InvalidModelError),
        ({"dynamic_hd": 0}, InvalidModelError),
        ({"dynamic_hd": 1 << 20}, InvalidModelError),
        ({"dynamic_hd": 64, "dyhd_base_resolution": 4088}, InvalidModelError),
    ],
)
def test_steps_that_are_wrong_are_refused(change: dict[str, Any], error: type[Exception], tmp_path: Path) -> None:
    step = {"type": "Phi4VisionDynamicPreprocess", "attrs": change}
    settings = {"processor": {"transforms": [{"operation": step}]}}
    (tmp_path / "steps.json").write_text(json.dumps(settings))
    with pytest.raises(error, match=r"steps\.json"):
        Processor.of(tmp_path, "steps.json")


@pytest.mark.gpu
def test_an_encoder_of_crops_needs_their_steps(tmp_path: Path) -> None:
    folder = tmp_path / "phi3v"
    write_phi(folder, "phi3v")
    (folder / "steps.json").write_text(json.dumps({"processor": {"transforms": []}}))
    with Generator(folder) as generator:
        assert generator.generate([5, 7], max_tokens=2, ignore_end=True).tokens
        with pytest.raises(InvalidInputError, match=r"cannot be used for images: .*image_sizes"):
            generator.generate([5], images=[PICTURES[1]])
