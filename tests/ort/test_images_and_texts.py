"""Models of images and texts through transformers' own pipelines and Optimum's classes: the CPU provider's results. Run where
optimum-onnx is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vkep.models.diffusion import write_diffusion

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
optimum = pytest.importorskip("optimum.onnxruntime")
image = pytest.importorskip("PIL.Image")

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.nightly]

PAGE = Path(__file__).parents[2] / "docs" / "clients" / "optimum.md"
VULKAN = {"provider": "VulkanExecutionProvider"}
#: of small networks with weights that make answers differ
SMALL = {
    "hidden_size": 32,
    "intermediate_size": 37,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "initializer_range": 0.3,
}
TEXT = {"vocab_size": 514, "max_position_embeddings": 64, "bos_token_id": 512, "eos_token_id": 513, "pad_token_id": 513}
SEEN = {"image_size": 32, "patch_size": 8, **SMALL}
SQUARE = {"height": 32, "width": 32}
LABELS = ["a cat", "two dogs", "a red car", "nothing"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("letters")
    write_diffusion(folder)
    return transformers.CLIPTokenizer.from_pretrained(folder / "tokenizer", model_max_length=64)


@pytest.fixture
def exported(registered: Any, tokenizer: Any, tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Exports a network of transformers with Optimum."""
    from optimum.exporters.onnx import main_export

    import vkep.optimum

    def export(net: Any, task: str, *parts: Any) -> Path:
        for part in (net.eval(), tokenizer, *parts):
            part.save_pretrained(tmp_path / "torch")
        options = {"task": task, "library_name": "transformers", "do_validation": False, "no_post_process": True}
        main_export(str(tmp_path / "torch"), str(tmp_path / "onnx"), **options)
        return tmp_path / "onnx"

    torch.manual_seed(0)
    vkep.optimum.register()
    yield export
    vkep.optimum.unregister()


def pictures() -> list[Any]:
    """Of three sizes."""
    rng = np.random.default_rng(0)
    return [image.fromarray(rng.integers(0, 256, (40 + 8 * k, 70 - 9 * k, 3), np.uint8)) for k in range(3)]


def both(kind: str, folder: Path) -> list[Any]:
    """A model on the CPU, and on the device."""
    models = [getattr(optimum, kind).from_pretrained(folder, **options) for options in ({}, VULKAN)]
    assert models[1].providers[0] == VULKAN["provider"]
    return models


def clip() -> tuple[Any, Any]:
    config = transformers.CLIPConfig(text_config={**TEXT, **SMALL}, vision_config=SEEN, projection_dim=32)
    processor = transformers.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size=SQUARE)
    return transformers.CLIPModel(config), processor


def siglip() -> tuple[Any, Any]:
    config = transformers.SiglipConfig(text_config={**TEXT, **SMALL, "projection_size": 32}, vision_config=SEEN)
    return transformers.SiglipModel(config), transformers.SiglipImageProcessor(size=SQUARE)


@pytest.mark.parametrize("make", [clip, siglip])
def test_labels_of_images(exported: Callable[..., Path], tokenizer: Any, make: Callable[[], tuple[Any, Any]]) -> None:
    net, processor = make()
    task = "zero-shot-image-classification"
    scores = []
    for model in both("ORTModelForZeroShotImageClassification", exported(net, task, processor)):
        pipeline = transformers.pipeline(task, model=model, tokenizer=tokenizer, image_processor=processor)
        found = [pipeline(p, candidate_labels=LABELS[: 2 + k]) for k, p in enumerate(pictures())]
        found += pipeline(pictures(), candidate_labels=LABELS, hypothesis_template="{}")  # a list of images
        scores.append([{each["label"]: each["score"] for each in answers} for answers in found])
    assert len(scores[0]) == 6
    for theirs, ours in zip(*scores, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-4)
    assert max(abs(a - b) for answers in scores[0] for a in answers.values() for b in answers.values()) > 0.01


@pytest.mark.parametrize("make", [clip, siglip])
def test_features_of_images(exported: Callable[..., Path], make: Callable[[], tuple[Any, Any]]) -> None:
    both_parts, processor = make()
    kind = type(both_parts).__name__.replace("Model", "VisionModel")
    net = getattr(transformers, kind)(both_parts.config.vision_config)
    found = []
    for model in both("ORTModelForFeatureExtraction", exported(net, "feature-extraction", processor)):
        pipeline = transformers.pipeline("image-feature-extraction", model=model, image_processor=processor)
        found.append([np.array(pipeline(p)) for p in pictures()] + [np.array(pipeline(pictures(), batch_size=3))])
    for theirs, ours in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4)


def captions(model: Any, tokenizer: Any, processor: Any, **more: Any) -> list[Any]:
    """Greedy ones and those of beams."""
    pipeline = transformers.pipeline("image-to-text", model=model, tokenizer=tokenizer, image_processor=processor)
    count: dict[str, Any] = {"max_new_tokens": 8, "min_new_tokens": 8, **more}
    return [pipeline(p, generate_kwargs=count | way) for p in pictures() for way in ({}, {"num_beams": 3})]


def test_captions_of_an_encoder_and_a_decoder(exported: Callable[..., Path], tokenizer: Any) -> None:
    sizes = {"n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "initializer_range": 0.3}
    texts = {name: value for name, value in TEXT.items() if name != "max_position_embeddings"}
    decoder = transformers.GPT2Config(add_cross_attention=True, is_decoder=True, **sizes, **texts)
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(
        transformers.ViTConfig(**SEEN), decoder
    )
    net = transformers.VisionEncoderDecoderModel(config)
    for settings in (net.config, net.generation_config):
        settings.decoder_start_token_id, settings.pad_token_id, settings.eos_token_id = 512, 513, 513
    processor = transformers.ViTImageProcessor(size=SQUARE)
    folder = exported(net, "image-to-text-with-past", processor)
    theirs, ours = (captions(model, tokenizer, processor) for model in both("ORTModelForVision2Seq", folder))
    assert ours == theirs and len({str(c) for c in theirs}) > 3


def blip(kind: str) -> tuple[Any, Any]:
    texts = {**TEXT, **SMALL, "sep_token_id": 513, "encoder_hidden_size": 32, "projection_dim": 32}
    config = transformers.BlipConfig(text_config=texts, vision_config=SEEN, projection_dim=32)
    torch.manual_seed(0)
    return getattr(transformers, kind)(config).eval(), transformers.BlipImageProcessor(size=SQUARE)


def test_optimum_exports_no_blip(exported: Callable[..., Path]) -> None:
    """What docs/clients/optimum.md says; where a version does, say how."""
    for task in ("image-to-text", "feature-extraction"):
        with pytest.raises(ValueError, match="custom or unsupported architecture"):
            exported(*blip("BlipForConditionalGeneration")[:1], task, blip("BlipForConditionalGeneration")[1])


def test_captions_of_blip_by_the_page(registered: Any, tokenizer: Any, tmp_path: Path) -> None:
    (code,) = [block for block in PAGE.read_text("utf-8").split("```python\n") if "def run_by" in block]
    made: dict[str, Any] = {}
    exec(code.split("\ntokenizer = ")[0], made)
    net, processor = blip("BlipForConditionalGeneration")
    expected = captions(net, tokenizer, processor, use_cache=False)
    made["export"](net, tmp_path)
    for provider in ("CPUExecutionProvider", "VulkanExecutionProvider"):
        made["run_by"](net, tmp_path, provider)
        assert captions(net, tokenizer, processor, use_cache=False) == expected
    assert len({str(c) for c in expected}) > 3


def test_blip_says_whether_an_image_and_a_text_match(registered: Any, tokenizer: Any, tmp_path: Path) -> None:
    net, processor = blip("BlipForImageTextRetrieval")
    texts = tokenizer(LABELS[:3], padding=True, return_tensors="pt")
    inputs = {
        "input_ids": texts["input_ids"],
        "pixel_values": processor(pictures(), return_tensors="pt")["pixel_values"],
    }
    inputs["attention_mask"] = texts["attention_mask"]
    axes = {name: {0: "n", 1: "tokens"} for name in ("input_ids", "attention_mask")} | {"pixel_values": {0: "n"}}
    torch.onnx.export(
        Matches(net),
        tuple(inputs.values()),
        tmp_path / "model.onnx",
        input_names=list(inputs),
        output_names=["itm_score"],
        dynamic_axes=axes,
        opset_version=18,
        dynamo=False,
    )
    net.config.save_pretrained(tmp_path)
    few = {name: tensor[:2] for name, tensor in inputs.items()}
    theirs, ours = both("ORTModelForCustomTasks", tmp_path)
    for given in (inputs, few):
        np.testing.assert_allclose(ours(**given)["itm_score"], theirs(**given)["itm_score"], atol=1e-4)
        np.testing.assert_allclose(ours(**given)["itm_score"], Matches(net)(*given.values()).detach(), atol=1e-3)


class Matches(torch.nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net

    def forward(self, ids: Any, pixels: Any, mask: Any) -> Any:
        return self.net(input_ids=ids, pixel_values=pixels, attention_mask=mask).itm_score
