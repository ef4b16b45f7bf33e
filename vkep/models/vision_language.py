"""A small language model that reads images, with random weights, in folders of transformers.js and of onnxruntime-genai."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from vkep.models import sources
from vkep.models.builder import IR_VERSION, OPSET, GraphBuilder
from vkep.models.language import (
    ARCHITECTURES,
    BEGIN,
    END,
    Language,
    embeddings_model,
    genai_config,
    language_model,
    optimum_config,
    write_tokenizer,
)

#: edge of an image and of a patch, and the token that stands for an image
EDGE, PATCH, IMAGE = 32, 8, 259
#: of an encoder of patches: frames of a patch, and patches in each direction that become a feature
FRAMES, MERGE = 2, 2
_MEAN, _STD = [0.48, 0.46, 0.41], [0.27, 0.26, 0.28]
#: tokens of locations in images, in thousandths of their width and height
LOCATIONS = {f"<loc_{16 * k}>": 260 + k for k in range(60)}
TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for part in m['content'] %}{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}{% endfor %}"
    "{% endif %}{{ '\n' }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


def vision_encoder(width: int, edge: int = EDGE) -> onnx.ModelProto:
    """Input `pixel_values` float32 [images, 3, edge, edge], output `image_features` [images, (edge / 8)², width]: patches by a
    convolution (arXiv:2010.11929), and a layer with a residual."""
    w = GraphBuilder("vision_encoder")
    x = w.input("pixel_values", ["images", 3, edge, edge])
    kernel = w.constant("patches", w.weight("patches", (width, 3, PATCH, PATCH), (3 * PATCH**2) ** -0.5))
    x = w.add("Conv", x, kernel, kernel_shape=[PATCH] * 2, strides=[PATCH] * 2)
    x = w.add("Reshape", x, w.constant("flat", [0, width, -1]))
    x = w.add("Transpose", x, perm=[0, 2, 1])
    normed = w.layer_norm(x, "norm", width, 1e-6)
    x = w.add("Add", x, w.add("Relu", w.linear(normed, "inner", width, width)))
    w.output(x, "image_features", ["images", (edge // PATCH) ** 2, width])
    return w.model()


def patch_encoder(width: int) -> onnx.ModelProto:
    """Inputs `pixel_values` float32 [patches, 384] and `image_grid_thw` int64 [images, 3], output `image_features`
    [patches / 4, width]: four patches become a feature, as in Qwen2-VL (arXiv:2409.12191)."""
    w = GraphBuilder("patch_encoder")
    x = w.input("pixel_values", ["patches", FRAMES * 3 * PATCH**2])
    grid = w.input("image_grid_thw", ["images", 3], TensorProto.INT64)
    x = w.add("Reshape", x, w.constant("groups", [-1, MERGE**2 * FRAMES * 3 * PATCH**2]))
    x = w.linear(x, "patches", MERGE**2 * FRAMES * 3 * PATCH**2, width)
    edge = w.add("Cast", w.add("ReduceMax", grid, keepdims=0), to=TensorProto.FLOAT)
    x = w.add("Add", x, w.add("Reciprocal", edge))
    w.output(x, "image_features", ["features", width])
    return w.model()


def joined_embeddings(language: Language) -> onnx.ModelProto:
    """The embeddings of tokens with features of images in the places of `IMAGE`, as onnxruntime-genai's builder writes them:
    inputs `input_ids` int64 [batch, length] and `image_features` [count, hidden], output `inputs_embeds`."""
    made = embeddings_model(language)
    graph = made.graph
    graph.node[-1].output[0] = "texts"
    graph.input.append(helper.make_tensor_value_info("image_features", TensorProto.FLOAT, ["count", language.hidden]))
    numbers = {"image": np.int64(IMAGE)}
    graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in numbers.items())
    graph.node.extend(
        [
            helper.make_node("Equal", ["input_ids", "image"], ["is_image"]),
            helper.make_node("NonZero", ["is_image"], ["across"]),
            helper.make_node("Transpose", ["across"], ["places"], perm=[1, 0]),
            helper.make_node("ScatterND", ["texts", "places", "image_features"], ["inputs_embeds"]),
        ]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)


def write_vision_language(folder: Path, name: str = "llama", form: str = "transformers.js") -> Language:
    """Write an architecture's folder, in the ``form`` that transformers.js reads or ``genai``; ``patches`` is the former for
    Qwen2-VL, with positions in three dimensions. Returns what was written."""
    language = replace(ARCHITECTURES[name], kind="llava")
    if form == "patches":
        language = replace(language, kind="qwen2_vl", sections=(2, 3, 3))
    folder.mkdir(parents=True, exist_ok=True)
    decoder = language_model(replace(language, kind=ARCHITECTURES[name].kind), reads_embeddings=True)
    if form == "genai":
        parts = {"model.onnx": decoder, "embedding.onnx": joined_embeddings(language)}
        vision = "vision.onnx"
    else:
        parts = {"onnx/decoder_model_merged.onnx": decoder, "onnx/embed_tokens.onnx": embeddings_model(language)}
        vision = "onnx/vision_encoder.onnx"
        (folder / "onnx").mkdir(exist_ok=True)
    encoder = patch_encoder if form == "patches" else vision_encoder
    for path, model in {**parts, vision: encoder(language.hidden)}.items():
        onnx.save(model, folder / path)
    for path, config in (_genai(language) if form == "genai" else _transformers(language)).items():
        (folder / path).write_text(json.dumps(config, indent=1), encoding="utf-8")
    write_tokenizer(folder, {"<image>": IMAGE}, chat_template=TEMPLATE)
    return language


def write_florence(folder: Path) -> Language:
    """Write an encoder and a decoder that read embeddings, and an encoder of images, as transformers.js has them of Florence-2
    (arXiv:2311.06242). Returns what was written."""
    (folder / "onnx").mkdir(parents=True, exist_ok=True)
    models = {
        "vision_encoder": vision_encoder(sources.SOURCES.hidden),
        "embed_tokens": embeddings_model(sources.SOURCES),
        "encoder_model": sources.encoder("florence2"),
        "decoder_model": sources.decoder("florence2", first=True),
        "decoder_with_past_model": sources.decoder("florence2", first=False),
    }
    for name, model in models.items():
        onnx.save(model, folder / "onnx" / f"{name}.onnx")
    text = {"decoder_start_token_id": BEGIN, "eos_token_id": END, "max_position_embeddings": sources.SOURCES.context}
    sizes = {"do_center_crop": False, "size": {"height": EDGE, "width": EDGE}}
    reads = {"image_processor_type": "CLIPImageProcessor", "image_mean": _MEAN, "image_std": _STD, **sizes}
    config = {"model_type": "florence2", "is_encoder_decoder": True, "text_config": text}
    for path, values in {"config.json": config, "preprocessor_config.json": reads}.items():
        (folder / path).write_text(json.dumps(values, indent=1), encoding="utf-8")
    write_tokenizer(folder, LOCATIONS)
    return sources.SOURCES


def _transformers(language: Language) -> dict[str, Any]:
    text = optimum_config(language) | {"num_key_value_heads": language.kv_heads, "head_dim": language.size}
    colors = {"image_mean": _MEAN, "image_std": _STD}
    if language.kind == "qwen2_vl":
        patches = {"patch_size": PATCH, "merge_size": MERGE, "temporal_patch_size": FRAMES}
        bounds = {"min_pixels": EDGE**2, "max_pixels": 4 * EDGE**2}
        reads: dict[str, Any] = {"image_processor_type": "Qwen2VLImageProcessor", **patches, **bounds, **colors}
    else:
        sizes = {"size": {"shortest_edge": EDGE}, "crop_size": {"height": EDGE, "width": EDGE}}
        reads = {"image_processor_type": "CLIPImageProcessor", **sizes, **colors}
    config = {"model_type": language.kind, "image_token_id": IMAGE, "text_config": text}
    return {"config.json": config, "preprocessor_config.json": reads}


def _genai(language: Language) -> dict[str, Any]:
    config = genai_config(language)
    model = config["model"] | {"type": "llava", "image_token_id": IMAGE}
    model["decoder"]["inputs"] = {"inputs_embeds": "inputs_embeds"} | {
        key: value for key, value in model["decoder"]["inputs"].items() if key != "input_ids"
    }
    model["vision"] = {
        "filename": "vision.onnx",
        "inputs": {"pixel_values": "pixel_values"},
        "outputs": {"image_features": "image_features"},
    }
    model["embedding"] = {
        "filename": "embedding.onnx",
        "inputs": {"input_ids": "input_ids", "image_features": "image_features"},
        "outputs": {"inputs_embeds": "inputs_embeds"},
    }
    steps: dict[str, dict[str, Any]] = {
        "DecodeImage": {"color_space": "RGB"},
        "Resize": {"height": EDGE, "width": EDGE, "interpolation": "CUBIC"},
        "Rescale": {},
        "Normalize": {"mean": _MEAN, "std": _STD},
        "Permute3D": {"dims": [2, 0, 1]},
    }
    transforms = [{"operation": {"name": kind.lower(), "type": kind, "attrs": attrs}} for kind, attrs in steps.items()]
    return {
        "genai_config.json": {**config, "model": model},
        "processor_config.json": {"processor": {"name": "image_processing", "transforms": transforms}},
    }
