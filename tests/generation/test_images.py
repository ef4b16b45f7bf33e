"""Images in prompts: their pixels, their features, and answers as ONNX Runtime gives them."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.generation.images_of_transformers import FILE, images, samples
from tools.ort_cpu import cpu_session
from vkep.errors import InvalidInputError, InvalidModelError, UnsupportedModelError
from vkep.generation import Generator
from vkep.generation.images import GENAI_SETTINGS, SETTINGS, Processor
from vkep.generation.parts import without_media
from vkep.generation.rewrite import FIRST_FEATURE
from vkep.generation.vision import FIRST_TOKEN, ImagePrompt
from vkep.models.language import BEGIN
from vkep.models.vision_language import IMAGE, write_florence, write_vision_language

Image = pytest.importorskip("PIL.Image")
Array = np.ndarray[Any, Any]
EXPECTED = json.loads(FILE.read_text(encoding="utf-8"))


def processor_of(folder: Path, name: str, **changed: Any) -> Processor:
    """The processor of a folder with the settings of one of `EXPECTED`."""
    (folder / SETTINGS).write_text(json.dumps(EXPECTED[name]["settings"] | changed))
    return Processor.of(folder)


@pytest.mark.parametrize("name", EXPECTED)
def test_pixels_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    processor = processor_of(tmp_path, name)
    for image, expected in zip(images(), EXPECTED[name]["images"], strict=True):
        made = processor.pixels(image)
        assert list(made.values.shape) == expected["shape"] and [made.rows, made.columns] == expected["grid"]
        np.testing.assert_allclose(samples(made.values), expected["samples"], atol=2e-5)


def test_images_of_all_kinds_are_the_same(tmp_path: Path) -> None:
    processor, image, file = processor_of(tmp_path, "clip"), images()[0], io.BytesIO()
    Image.fromarray(image).save(file, "PNG")
    path = tmp_path / "image.png"
    path.write_bytes(file.getvalue())
    expected = processor.pixels(image).values
    for given in (Image.fromarray(image), path, str(path), file.getvalue()):
        np.testing.assert_array_equal(processor.pixels(given).values, expected)


@pytest.mark.parametrize(
    "wrong",
    [b"no image", np.zeros((4, 4), np.uint8), np.zeros((4, 4, 3), np.float32), np.zeros((0, 4, 3), np.uint8), 7],
)
def test_what_is_no_image_is_refused(wrong: Any, tmp_path: Path) -> None:
    expected = "8 bytes are none of JPEG|expected uint8|the image is int; expected a path"
    with pytest.raises(InvalidInputError, match=expected):
        processor_of(tmp_path, "clip").pixels(wrong)


def test_a_damaged_image_is_refused(tmp_path: Path) -> None:
    file = io.BytesIO()
    Image.fromarray(images()[4]).save(file, "PNG")
    with pytest.raises(InvalidInputError, match="the image cannot be read"):
        processor_of(tmp_path, "clip").pixels(file.getvalue()[:-400])


def test_an_image_whose_square_would_be_large_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="a square around an image"):
        processor_of(tmp_path, "llava").pixels(Image.new("RGB", (65535, 1)))


def test_photos_are_turned_as_their_file_says(tmp_path: Path) -> None:
    picture, file = Image.fromarray(images()[0]), io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by a quarter
    picture.save(file, "PNG", exif=exif)
    processor = processor_of(tmp_path, "siglip")
    expected = processor.pixels(picture.transpose(Image.Transpose.ROTATE_270)).values
    np.testing.assert_array_equal(processor.pixels(file.getvalue()).values, expected)


@pytest.mark.parametrize("form", ["EPS", "PCX", "TGA"])
def test_bytes_of_other_formats_are_refused(form: str, tmp_path: Path) -> None:
    file = io.BytesIO()
    Image.fromarray(images()[0]).save(file, form)
    with pytest.raises(InvalidInputError, match="no image that Pillow reads"):
        processor_of(tmp_path, "clip").pixels(file.getvalue())


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"image_processor_type": "FuyuImageProcessor"}, UnsupportedModelError),
        ({"do_pan_and_scan": True}, UnsupportedModelError),
        ({"image_std": [1, 0, 1]}, InvalidModelError),
        ({"image_mean": [1, 2]}, InvalidModelError),
        ({"rescale_factor": "a"}, InvalidModelError),
        ({"crop_size": {"height": 0, "width": 4}}, InvalidModelError),
        ({"size": {"shortest_edge": 1 << 20}}, InvalidModelError),
    ],
)
def test_settings_that_are_wrong_are_refused(change: dict[str, Any], error: type[Exception], tmp_path: Path) -> None:
    with pytest.raises(error, match=SETTINGS):
        processor_of(tmp_path, "clip", **change)


@pytest.mark.parametrize(
    "step",
    [
        {"type": "Resize", "attrs": {"height": 32, "width": 32, "keep_aspect": 1}},
        {"type": "Permute3D", "attrs": {"dims": [0, 1, 2]}},
        {"type": "PhiVisionDynamicHD"},
    ],
)
def test_steps_of_genai_that_are_unknown_are_refused(step: dict[str, Any], tmp_path: Path) -> None:
    settings = {"processor": {"name": "p", "transforms": [{"operation": step}]}}
    (tmp_path / GENAI_SETTINGS).write_text(json.dumps(settings))
    with pytest.raises(UnsupportedModelError, match="not supported"):
        Processor.of(tmp_path)


def test_messages_have_their_images_and_sounds_apart() -> None:
    data = base64.b64encode(b"bytes").decode()
    parts = [
        {"type": "text", "text": "see"},
        {"type": "image", "image": "a.png"},
        {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}},
        {"type": "audio", "audio": "a.wav"},
    ]
    messages, *found = without_media([{"role": "system", "content": "s"}, {"role": "user", "content": parts}])
    assert found == [["a.png", b"bytes"], [b"bytes", "a.wav"]]
    image, sound = {"type": "image"}, {"type": "audio"}
    assert messages[1]["content"] == [parts[0], image, sound, image, sound]


@pytest.mark.parametrize(
    "url", ["https://example.org/a.png", "file:///etc/passwd", "data:image/png,abc", "data:;base64,*", 7]
)
def test_nothing_is_downloaded(url: Any) -> None:
    with pytest.raises(InvalidInputError, match="image_url"):
        without_media([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}])


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"type": "input_audio"}, "data of NoneType and format None; expected base64 and 'wav'"),
        ({"type": "input_audio", "input_audio": {"data": "AA==", "format": "mp3"}}, "format 'mp3'; expected base64"),
        ({"type": "input_audio", "input_audio": {"data": 7, "format": "wav"}}, "data of int"),
        ({"type": "input_audio", "input_audio": {"data": "*", "format": "wav"}}, "input_audio has no base64"),
        ({"type": "audio", "path": "a.wav"}, "a part of type audio has .*, expected audio"),
    ],
)
def test_parts_that_are_no_sounds_are_refused(part: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=rf"^messages\[1\]\.content\[0\].*{message}"):
        without_media([{"role": "system", "content": "s"}, {"role": "user", "content": [part]}])


# ---- answers


@pytest.fixture(scope="module", params=["transformers.js llama", "transformers.js gpt2", "genai llama", "patches gpt2"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    form, name = request.param.split()
    path = tmp_path_factory.mktemp("images") / "model"
    write_vision_language(path, name, form)
    return path


@pytest.fixture(scope="module")
def generator(folder: Path) -> Any:
    with Generator(folder, fallback="error") as opened:
        yield opened


class Reference:
    """The folder's models on ONNX Runtime, joined by numpy."""

    def __init__(self, folder: Path) -> None:
        genai = (folder / "genai_config.json").is_file()
        names = (
            ("model.onnx", "embedding.onnx", "vision.onnx")
            if genai
            else ("onnx/decoder_model_merged.onnx", "onnx/embed_tokens.onnx", "onnx/vision_encoder.onnx")
        )
        self.decoder, self.embeddings, self.vision = (cpu_session(folder / name) for name in names)
        table = next(t for t in onnx.load(folder / names[1]).graph.initializer if t.name == "embeddings.weight")
        self.table = onnx.numpy_helper.to_array(table)
        self.processor = Processor.of(folder)

    def greedy(self, prompt: list[int], given: list[Any], count: int) -> list[int]:
        """The most probable tokens; `IMAGE` in the prompt stands for an image."""
        pixels = [self.processor.pixels(image) for image in given]
        grids = [np.array([[1, p.rows, p.columns]], np.int64) for p in pixels]
        feeds = [{"pixel_values": p.values, "image_grid_thw": grid} for p, grid in zip(pixels, grids, strict=True)]
        reads = {i.name for i in self.vision.get_inputs()}
        made = [self.vision.run(None, {k: v for k, v in feed.items() if k in reads})[0] for feed in feeds]
        features = iter([m.reshape(-1, m.shape[-1]) for m in made])
        embeds = np.concatenate([next(features) if t == IMAGE else self.table[[t]] for t in prompt])[None]
        positions = _positions(prompt, [(grid[0, 1] // 2, grid[0, 2] // 2) for grid in grids])
        past = {
            i.name: np.zeros((1, i.shape[1], 0, i.shape[3]), np.float32)
            for i in self.decoder.get_inputs()
            if i.name.startswith("past")
        }
        outputs, tokens, done = [o.name for o in self.decoder.get_outputs()], [], 0
        for _ in range(count):
            done += embeds.shape[1]
            step = {"inputs_embeds": embeds, "attention_mask": np.ones((1, done), np.int64), **past}
            if any(i.name == "position_ids" for i in self.decoder.get_inputs()):
                step["position_ids"] = positions
            results = dict(zip(outputs, self.decoder.run(None, step), strict=True))
            positions = positions[:, :, -1:].max(axis=0, keepdims=True).repeat(3, 0) + 1
            past = {name: results[name.replace("past_key_values", "present")] for name in past}
            tokens.append(int(results["logits"][0, -1].argmax()))
            embeds = self.table[[tokens[-1:]]]
        return tokens


def _positions(prompt: list[int], grids: list[Any]) -> Array:
    """Positions [3, 1, count] of a prompt, one token after the other."""
    found: list[tuple[int, int, int]] = []
    left = list(grids)
    for token in prompt:
        at = max((n for position in found for n in position), default=-1) + 1
        if token != IMAGE:
            found.append((at, at, at))
            continue
        rows, columns = left.pop(0)
        found += [(at, at + r, at + c) for r in range(int(rows)) for c in range(int(columns))]
    return np.array(found, np.int64).T[:, None]


@pytest.mark.gpu
def test_answers_are_those_of_onnx_runtime(generator: Generator, folder: Path) -> None:
    reference = Reference(folder)
    settings: dict[str, Any] = {"max_tokens": 8, "ignore_end": True}
    one, other = images()[0], images()[4]
    cases = [
        ([5, IMAGE, 7, 9], [one]),
        ([5, IMAGE, 7, IMAGE, 9], [one, other]),
        ([5, IMAGE, 7, IMAGE, 9], [other, one]),
        ([IMAGE, 11], [other]),
        ([60, 61, 62], []),
    ]
    for prompt, given in cases:
        expected = reference.greedy(prompt, given, 8)
        assert generator.generate(prompt, images=given, **settings).tokens == expected
    prompts = [generator.tokens(prompt, given) for prompt, given in cases]
    together = generator.generate(prompts, **settings)
    assert [answer.tokens for answer in together] == [reference.greedy(*case, 8) for case in cases]
    unmarked = generator.generate([7, 9], images=[one], **settings)
    assert unmarked.tokens == reference.greedy([IMAGE, 7, 9], [one], 8)


@pytest.mark.gpu
def test_caches_serve_the_same_image_alone(generator: Generator) -> None:
    one, other = images()[1], images()[2]
    first = generator.tokens([5, IMAGE, 7], [one])
    assert generator.tokens([5, IMAGE, 8], [one])[:-1] == first[:-1]
    assert not set(generator.tokens([5, IMAGE, 7], [other])[1:-1]) & set(first)
    again = generator.tokens([5, IMAGE, 7], [one])
    assert again == first and min(first[1:-1]) >= FIRST_TOKEN


@pytest.mark.gpu
def test_features_are_kept_as_long_as_a_prompt_needs_them(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vkep.generation.vision._KEPT", 1)
    pictures = [np.full((32, 32, 3), 8 * k, np.uint8) for k in range(20)]
    settings: dict[str, Any] = {"max_tokens": 4, "ignore_end": True}
    with Generator(folder, fallback="error") as generator:
        expected = [generator.generate([IMAGE, 7], images=[p], **settings).tokens for p in pictures]
        vision = generator.decoder.vision
        assert vision is not None and vision.features.shape[0] == 64  # images that no prompt has made room
        prompts = [generator.tokens([IMAGE, 7], [p]) for p in pictures]  # all of them are needed: the table grows
        assert vision.features.shape[0] >= sum(len(prompt) - 1 for prompt in prompts)
        assert [a.tokens for a in generator.generate(prompts, **settings)] == expected
        lost = list(prompts[0])
        del prompts
        with pytest.raises(InvalidInputError, match="not among the model's"):
            generator.generate(lost)


@pytest.mark.gpu
def test_other_settings_take_prompts_with_images(generator: Generator, folder: Path) -> None:
    settings: dict[str, Any] = {"max_tokens": 8, "ignore_end": True}
    prompt = generator.tokens([5, 6, 5, IMAGE, 5, 6, 5], [images()[3]])
    plain = generator.generate(prompt, **settings).tokens
    drawn = generator.generate(prompt, temperature=0.7, seed=3, repetition_penalty=1.2, **settings)
    assert (
        drawn.tokens == generator.generate(prompt, temperature=0.7, seed=3, repetition_penalty=1.2, **settings).tokens
    )
    assert generator.search(prompt, beams=1, max_tokens=8, ignore_end=True)[0].tokens == plain
    with Generator(folder, fallback="error", lookup=4) as guessing:
        again = guessing.tokens([5, 6, 5, IMAGE, 5, 6, 5], [images()[3]])
        assert guessing.generate(again, **settings).tokens == plain


@pytest.mark.gpu
def test_chats_have_images(generator: Generator) -> None:
    part = {"type": "image", "image": images()[0]}
    said = [{"role": "user", "content": [part, {"type": "text", "text": "see <image>?"}]}]
    tokens = generator.chat_tokens(said)
    assert len(tokens) == sum(token >= FIRST_TOKEN for token in tokens) + len("<user>see <image>?\n<assistant>")
    answer = generator.chat(said, max_tokens=4, ignore_end=True)
    assert answer.prompt == tokens and len(answer.tokens) == 4
    assert "".join(generator.stream_chat(said, max_tokens=4, ignore_end=True)) == answer.text


@pytest.mark.gpu
def test_another_number_of_images_is_refused(generator: Generator) -> None:
    one = images()[0]
    with pytest.raises(InvalidInputError, match="marks of 2 images, and 1 images"):
        generator.generate([IMAGE, 5, IMAGE], images=[one])


@pytest.mark.gpu
def test_images_of_the_same_pixels_and_another_form_are_others(tmp_path: Path) -> None:
    write_vision_language(tmp_path, "gpt2", "patches")
    with Generator(tmp_path, fallback="error") as generator:
        wide, high = (
            generator.tokens([IMAGE], [np.full(shape, 255, np.uint8)]) for shape in ((32, 64, 3), (64, 32, 3))
        )
        assert [(one.rows, one.columns) for prompt in (wide, high) for one in prompt.images] == [(2, 4), (4, 2)]  # type: ignore[attr-defined]


@pytest.mark.gpu
def test_more_features_than_a_model_takes_are_refused(generator: Generator) -> None:
    pictures = [np.full((32, 32, 3), 3 * k, np.uint8) for k in range(80)]
    with pytest.raises(InvalidInputError, match="the model takes 256 tokens"):
        generator.tokens([5], pictures)


@pytest.mark.gpu
def test_a_model_without_images_refuses_them(tmp_path: Path) -> None:
    from vkep.models.language import write_language

    write_language(tmp_path, layers=1)
    with Generator(tmp_path) as plain, pytest.raises(InvalidInputError, match="has no encoder of images"):
        plain.generate([5], images=[images()[0]])


@pytest.mark.gpu
def test_a_prompt_names_the_tiles_of_an_image(tmp_path: Path) -> None:
    write_vision_language(tmp_path, "llama")
    config = json.loads((tmp_path / "config.json").read_text()) | {"model_type": "smolvlm"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    settings = EXPECTED["smolvlm"]["settings"] | {"max_image_size": {"longest_edge": 32}, "size": {"longest_edge": 64}}
    (tmp_path / SETTINGS).write_text(json.dumps(settings))
    with Generator(tmp_path, fallback="error") as generator:
        tokens = list(generator.tokens([IMAGE], [images()[1]]))
        shown = "".join(chr(t) if t < 256 else "#" for t in tokens)
        around, tile = "<fake_token_around_image>", "#" * 16
        assert shown == (
            f"{around}<row_1_col_1>{tile}\n{around}<row_2_col_1>{tile}\n\n{around}<global-img>{tile}{around}"
        )
        features = [t for t in tokens if t >= FIRST_TOKEN]
        assert features == sorted(features) and len(set(features)) == 48
        assert len(generator.generate([IMAGE, 7], images=[images()[1]], max_tokens=3, ignore_end=True).tokens) == 3


# ---- an encoder that reads images and texts


class Florence:
    """The models of `write_florence` on ONNX Runtime, joined by numpy; the decoder computes all tokens again."""

    def __init__(self, folder: Path) -> None:
        names = ("vision_encoder", "embed_tokens", "encoder_model", "decoder_model")
        self.vision, self.embed, self.encoder, self.decoder = (cpu_session(folder / f"onnx/{n}.onnx") for n in names)
        self.processor = Processor.of(folder)

    def greedy(self, prompt: list[int], given: list[Any], count: int) -> list[int]:
        parts = [self.vision.run(None, {"pixel_values": self.processor.pixels(image).values})[0] for image in given]
        [embeds] = self.embed.run(None, {"input_ids": np.array([prompt])})
        joined = np.concatenate([*parts, embeds], axis=1)
        mask = np.ones(joined.shape[:2], np.int64)
        [states] = self.encoder.run(None, {"inputs_embeds": joined, "attention_mask": mask})
        tokens = [BEGIN]
        for _ in range(count):
            [embeds] = self.embed.run(None, {"input_ids": np.array([tokens])})
            known = {"inputs_embeds": embeds, "encoder_hidden_states": states, "encoder_attention_mask": mask}
            tokens.append(int(self.decoder.run(["logits"], known)[0][0, -1].argmax()))
        return tokens[1:]


def test_an_encoder_reads_images_and_text(tmp_path: Path) -> None:
    write_florence(tmp_path)
    reference, prompt = Florence(tmp_path), list(b"What does the image show?")
    with Generator(tmp_path, fallback="error") as generator:
        for given in ([images()[0]], [images()[1]], images()[2:4], []):
            answer = generator.generate(prompt, images=given, max_tokens=8, ignore_end=True)
            assert answer.tokens == reference.greedy(prompt, given, 8)
        best = generator.search(
            generator.tokens(prompt, [images()[0]]), beams=1, count=1, max_tokens=8, ignore_end=True
        )
        assert best[0].tokens == reference.greedy(prompt, [images()[0]], 8)
        assert not [n for s in generator.decoder.sessions for n in s.report().nodes if n.where == "cpu"]


def test_no_prompt_reads_another_one_s_image(tmp_path: Path) -> None:
    """The encoder's prompt of token ids, too: neither by an image's tokens nor by the places of its features."""
    write_florence(tmp_path)
    with Generator(tmp_path, fallback="error") as generator:
        vision = generator.decoder.vision
        assert vision is not None
        picture = np.zeros((60, 80, 3), np.uint8)
        theirs = generator.tokens([5, 6], [picture])
        assert isinstance(theirs, ImagePrompt)
        generator.generate(theirs, max_tokens=1)
        for token in (theirs.images[0].first, FIRST_FEATURE, FIRST_FEATURE + theirs.images[0].row, -1):
            with pytest.raises(InvalidInputError, match=f"token {token} of the source"):
                generator.generate([5, token, 6], max_tokens=1)
            with pytest.raises(InvalidInputError, match="of the source"):
                generator.search([token], max_tokens=1)


def test_the_tokens_of_florence_2_in_transformers(tmp_path: Path) -> None:
    """Exported by torch. Pixels are those of transformers' processor."""
    torch = pytest.importorskip("torch")
    from tests.generation.florence_of_transformers import exported

    model, processor = exported(tmp_path)
    prompt, answers = list(b"What does the image describe?"), set()
    with Generator(tmp_path, fallback="error") as generator:
        for image in images()[:3]:
            pixels = processor(image, return_tensors="pt")["pixel_values"]
            np.testing.assert_allclose(Processor.of(tmp_path).pixels(image).values, pixels.numpy(), atol=2e-5)
            marks = [model.config.image_token_id] * model.get_image_features(pixels).shape[1]
            ids = torch.tensor([[*marks, *prompt]])
            with torch.no_grad():
                made = model.generate(
                    input_ids=ids,
                    attention_mask=torch.ones_like(ids),
                    pixel_values=pixels,
                    max_new_tokens=12,
                    do_sample=False,
                )
            answer = generator.generate(prompt, images=[image], max_tokens=12)
            assert answer.tokens == made[0, 1:].tolist()
            answers.add(tuple(answer.tokens))
    assert len(answers) == 3


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "qwen3_vl"])
def test_the_tokens_of_qwen_vl_in_transformers(kind: str, tmp_path: Path) -> None:
    """Its decoder is made by onnxruntime-genai's builder: positions of tokens have three numbers."""
    torch = pytest.importorskip("torch")
    version = pytest.importorskip("transformers").__version__
    pytest.importorskip("onnxruntime_genai")
    if int(version.split(".")[0]) < 5:
        pytest.skip(f"the builder needs transformers 5; {version} is installed")
    from tests.generation.qwen_of_builder import FIRST, LAST, exported

    grid = torch.tensor([[1, 4, 6]])
    model = exported(tmp_path, grid, kind)
    before, after, answers = [*b"ab", FIRST], [LAST, *b"what"], set()
    with Generator(tmp_path / "built", fallback="error") as generator:
        for image in (images()[0], images()[0][::-1].copy()):
            pixels = Processor.of(tmp_path / "built").pixels(image)
            assert [pixels.rows, pixels.columns] == grid[0, 1:].tolist()
            ids = torch.tensor([[*before, *[IMAGE] * 6, *after]])
            more = {"pixel_values": torch.tensor(pixels.values), "image_grid_thw": grid}
            more["mm_token_type_ids"] = (ids == IMAGE).int()
            with torch.no_grad():
                made = model.generate(
                    input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=10, do_sample=False, **more
                )
            answer = generator.generate([*before, IMAGE, *after], images=[image], max_tokens=10)
            assert answer.tokens == made[0, ids.shape[1] :].tolist()
            answers.add(tuple(answer.tokens))
    assert len(answers) == 2
