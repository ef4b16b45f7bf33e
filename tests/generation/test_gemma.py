"""Gemma 3 with images in onnxruntime-genai's folders: prompts, pixels and answers are those of onnxruntime-genai."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from vkep.generation import Generator
from vkep.generation.images import Processor
from vkep.generation.vision import FIRST_TOKEN
from vkep.models.language import ARCHITECTURES, genai_config, language_model, write_tokenizer
from vkep.models.vision_language import IMAGE, joined_embeddings, vision_encoder

pytest.importorskip("onnxruntime_genai")
pytest.importorskip("PIL.Image")
pytest.importorskip("tokenizers")
from tests.generation.genai import Genai, picture

pytestmark = pytest.mark.gpu
EDGE, CONTEXT = 128, 1024
NAMED = {"<image_soft_token>": IMAGE, "<start_of_image>": 260, "<end_of_image>": 261}


def write_gemma(folder: Path) -> None:
    """A folder with 256 features of an image, as onnxruntime-genai has it of Gemma 3."""
    language = replace(ARCHITECTURES["gemma3"], kind="gemma3", context=CONTEXT)
    embeddings = joined_embeddings(language)
    features = embeddings.graph.input[1]
    features.CopyFrom(helper.make_tensor_value_info("image_features", 1, ["images", "count", language.hidden]))
    embeddings.graph.initializer.append(numpy_helper.from_array(np.array([-1, language.hidden]), "flat"))
    embeddings.graph.node.insert(0, helper.make_node("Reshape", ["image_features", "flat"], ["rows"]))
    embeddings.graph.node[-1].input[2] = "rows"
    decoder = language_model(replace(language, kind="gemma3_text"), reads_embeddings=True)
    parts = {"model": decoder, "embedding": embeddings, "vision": vision_encoder(language.hidden, EDGE)}
    for name, part in parts.items():
        onnx.save(part, folder / f"{name}.onnx")
    config = genai_config(language)
    model = config["model"]
    reads = model["decoder"]["inputs"]
    model["decoder"]["inputs"] = {
        "inputs_embeds": "inputs_embeds",
        **{k: v for k, v in reads.items() if k != "input_ids"},
    }
    same = {name: {name: name} for name in ("pixel_values", "image_features", "input_ids", "inputs_embeds")}
    model["vision"] = {"filename": "vision.onnx", "inputs": same["pixel_values"], "outputs": same["image_features"]}
    texts = {"inputs": same["input_ids"] | same["image_features"], "outputs": same["inputs_embeds"]}
    model["embedding"] = {"filename": "embedding.onnx", **texts}
    (folder / "genai_config.json").write_text(json.dumps(config))
    steps = {
        "DecodeImage": {"color_space": "RGB"},
        "Resize": {"height": EDGE, "width": EDGE, "interpolation": "LINEAR"},
        "Rescale": {"rescale_factor": 1 / 255},
        "Normalize": {"mean": [0.5] * 3, "std": [0.5] * 3},
        "Permute3D": {"dims": [2, 0, 1]},
    }
    transforms = [{"operation": {"name": kind.lower(), "type": kind, "attrs": attrs}} for kind, attrs in steps.items()]
    settings = {"processor": {"name": "images", "transforms": transforms}}
    (folder / "processor_config.json").write_text(json.dumps(settings))
    write_tokenizer(folder, NAMED)


def check(folder: Path) -> None:
    """Compare a folder's prompts, pixels and answers."""
    theirs, answers = Genai(folder), set()
    with Generator(folder, fallback="error") as generator:
        for image in (picture(200, 300), picture(100, 80), picture(128, 128)):
            made = theirs.inputs("ab<start_of_image>cd", image)
            np.testing.assert_array_equal(Processor.of(folder).pixels(image).values, made["pixel_values"].as_numpy())
            prompt = generator.tokens([*b"ab", NAMED["<start_of_image>"], *b"cd"], [image])
            shown = [token if token < FIRST_TOKEN else IMAGE for token in prompt]
            assert shown == made["input_ids"].as_numpy()[0].tolist()
            expected = theirs.greedy("ab<start_of_image>cd", image, 8, CONTEXT)
            answer = generator.generate(prompt, max_tokens=8, ignore_end=True)
            assert answer.tokens[: len(expected)] == expected
            answers.add(tuple(expected))
    assert len(answers) == 3


def test_answers_are_those_of_onnxruntime_genai(tmp_path: Path) -> None:
    write_gemma(tmp_path)
    check(tmp_path)


def test_a_folder_of_the_builder(tmp_path: Path) -> None:
    """The builder up to 0.13 makes it with transformers 4; later ones need transformers 5, whose settings of Gemma 3 they do not
    read."""
    pytest.importorskip("torch")
    builder = pytest.importorskip("onnxruntime_genai").__version__
    version = pytest.importorskip("transformers").__version__
    if int(version.split(".")[0]) > 4 or tuple(map(int, builder.split(".")[:2])) > (0, 13):
        pytest.skip(f"onnxruntime-genai {builder} with transformers {version} builds no Gemma 3")
    from tests.generation.gemma_of_builder import exported

    check(exported(tmp_path))
