"""Folders of Phi-3.5-vision's and Phi-4-multimodal's form, as onnxruntime-genai reads them, with random weights.

Encoders of one convolution have the inputs of the published ones, and put the features of crops in the same order.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from vkep.models.builder import IR_VERSION, OPSET, GraphBuilder
from vkep.models.language import (
    ARCHITECTURES,
    Language,
    embeddings_model,
    genai_config,
    language_model,
    write_tokenizer,
)

#: by the kind of model: edge of a crop, features of a crop in each direction
SIZES = {"phi3v": (336, 12), "phi4mm": (448, 16)}
#: tokens of Phi-4-multimodal's images and sounds, which onnxruntime-genai knows by these numbers
IMAGE, AUDIO = 200010, 200011
TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def language(kind: str) -> Language:
    """Of the folders."""
    return replace(ARCHITECTURES["phi3" if kind == "phi3v" else "phi4"], context=6144, kind=kind)


def encoder(kind: str, width: int) -> onnx.ModelProto:
    """Inputs `pixel_values` float32 [1, 1 + crops, 3, edge, edge], `image_sizes` int64 [1, 2] and for Phi-4
    `image_attention_mask` float32 [1, 1 + crops, edge / 14, edge / 14]; output `image_features` [features, width]: the rows of
    the crops, each with a vector at its end, a vector, and the rows of the whole image, likewise."""
    edge, grid = SIZES[kind]
    w = GraphBuilder(f"{kind}_encoder")
    pixels = w.input("pixel_values", ["images", "crops", 3, edge, edge])
    sizes = w.input("image_sizes", ["images", 2], TensorProto.INT64)
    zero, one = w.constant("zero", [0]), w.constant("one", [1])
    kernel = w.constant("patches", w.weight("patches", (width, 3, edge // grid, edge // grid), 0.05))
    x = w.add("Reshape", pixels, w.constant("each", [-1, 3, edge, edge]))
    x = w.add("Conv", x, kernel, kernel_shape=[edge // grid] * 2, strides=[edge // grid] * 2)
    x = w.add("Transpose", x, perm=[0, 2, 3, 1])  # [1 + crops, grid, grid, width]
    rows, columns = w.add_many(
        "Split", w.add("Div", sizes, w.constant("edge", [edge])), outputs=2, axis=1, num_outputs=2
    )
    rows, columns = (w.add("Reshape", n, one) for n in (rows, columns))
    last = w.add("Add", w.add("Mul", rows, columns), one)
    whole = w.add("Slice", x, zero, one, zero)
    crops = w.add("Slice", x, one, last, zero)

    def in_grid(values: str, *more: int) -> str:
        """[rows * grid, columns * grid, ..] of [rows * columns, grid, grid, ..]."""
        tail = w.constant(f"tail{len(more)}", [grid, grid, *more])
        apart = w.add("Reshape", values, w.add("Concat", rows, columns, tail, axis=0))
        apart = w.add("Transpose", apart, perm=[0, 2, 1, 3, *range(4, 4 + len(more))])
        high, wide = (w.add("Mul", n, w.constant("grid", [grid])) for n in (rows, columns))
        rest = [w.constant("rest", list(more))] if more else []
        return w.add("Reshape", apart, w.add("Concat", high, wide, *rest, axis=0))

    crops = in_grid(crops, width)
    if kind == "phi4mm":
        mask = w.input("image_attention_mask", ["images", "crops", 2 * grid, 2 * grid])
        bounds = {"starts": [1, 0, 0], "ends": [999] * 3, "axes": [1, 2, 3], "steps": [1, 2, 2]}
        mask = w.add("Slice", mask, *(w.constant(name, value) for name, value in bounds.items()))
        mask = in_grid(mask)
        for axis in (0, 1):
            along = w.add("Gather", mask, w.constant("first", np.asarray(0)), axis=1 - axis)
            count = w.add("Cast", w.add("ReduceSum", along, zero, keepdims=1), to=TensorProto.INT64)
            crops = w.add("Slice", crops, zero, count, w.constant(f"axis{axis}", [axis]))

    def ended(values: str) -> str:
        """Rows with a vector at the end of each, [features, width]."""
        high = w.add("Shape", values, start=0, end=1)
        end = w.constant("end", w.weight("end", (1, 1, width), 1.0))
        end = w.add("Expand", end, w.add("Concat", high, one, w.constant("width", [width]), axis=0))
        return w.add("Reshape", w.add("Concat", values, end, axis=1), w.constant("flat", [-1, width]))

    between = w.constant("between", w.weight("between", (1, width), 1.0))
    x = w.add("Concat", ended(crops), between, ended(w.add("Squeeze", whole, zero)), axis=0)
    w.output(w.linear(x, "out", width, width), "image_features", ["features", width])
    return w.model()


def embeddings(kind: str, lang: Language) -> onnx.ModelProto:
    """The embeddings of tokens, with features of images in the places of negative tokens, or of images and sounds in those of
    `IMAGE` and `AUDIO`."""
    kinds = {"image": ("Less", 0)} if kind == "phi3v" else {"image": ("Equal", IMAGE), "audio": ("Equal", AUDIO)}
    graph = embeddings_model(lang).graph
    table = list(graph.node)
    before, after, ids, embeds = [], [], "input_ids", "embeds"
    for what, (op, token) in kinds.items():
        for name, value in (("token", token), ("none", 0)):
            graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value, np.int64), f"{what}_{name}"))
        graph.input.append(helper.make_tensor_value_info(f"{what}_features", TensorProto.FLOAT, [what, lang.hidden]))
        before += [
            helper.make_node(op, ["input_ids", f"{what}_token"], [f"is_{what}"]),
            helper.make_node("Where", [f"is_{what}", f"{what}_none", ids], [f"without_{what}"]),
        ]
        after += [
            helper.make_node("NonZero", [f"is_{what}"], [f"across_{what}"]),
            helper.make_node("Transpose", [f"across_{what}"], [f"places_{what}"], perm=[1, 0]),
            helper.make_node("ScatterND", [embeds, f"places_{what}", f"{what}_features"], [f"with_{what}"]),
        ]
        ids, embeds = f"without_{what}", f"with_{what}"
    for node in table:
        node.input[:] = [ids if name == "input_ids" else name for name in node.input]
    table[-1].output[0], after[-1].output[0] = "embeds", "inputs_embeds"
    del graph.node[:]
    graph.node.extend([*before, *table, *after])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    onnx.checker.check_model(model, full_check=True)
    return model


def _speech(width: int) -> onnx.ModelProto:
    """The encoder of sounds: inputs `audio_embeds` float32 [1, frames, 80], `audio_attention_mask` bool [1, frames],
    `audio_sizes` and `audio_projection_mode` int64 [1]; output `audio_features` [1, frames / 8, width], of eight frames each."""
    w = GraphBuilder("speech")
    x = w.input("audio_embeds", ["sounds", "frames", 80])
    mask = w.input("audio_attention_mask", ["sounds", "frames"], TensorProto.BOOL)
    sizes = w.input("audio_sizes", ["sounds"], TensorProto.INT64)
    mode = w.input("audio_projection_mode", ["one"], TensorProto.INT64)
    there = w.add("Unsqueeze", w.add("Cast", mask, to=TensorProto.FLOAT), w.constant("last", [2]))
    x = w.add("Mul", w.add("Mul", x, there), w.constant("scale", 0.1))
    x = w.add("Transpose", x, perm=[0, 2, 1])
    kernel = w.constant("down.weight", w.weight("down", (width, 80, 8), 0.05))
    x = w.add("Conv", x, kernel, kernel_shape=[8], strides=[8], pads=[0, 7])
    x = w.add("Slice", w.add("Transpose", x, perm=[0, 2, 1]), w.constant("zero", [0]), sizes, w.constant("one", [1]))
    modes = w.add("Gather", w.constant("modes", w.weight("modes", (4, width), 0.5)), mode)
    w.output(
        w.linear(w.add("Tanh", w.add("Add", x, modes)), "out", width, width),
        "audio_features",
        ["sounds", "made", width],
    )
    return w.model()


def _sounds() -> dict[str, Any]:
    """The file of the steps from a sound to features, as published."""
    rates: dict[str, Any] = {"audio_compression_rate": 8}
    for suffix, size, length, hop in (("", 512, 400, 160), ("_8k", 256, 200, 80)):
        rates |= {
            f"stft_normal{suffix}/{k}": v for k, v in (("n_fft", size), ("frame_length", length), ("hop_length", hop))
        }
        rates |= {f"stft_normal{suffix}/win_fn": "hamming", f"logmel{suffix}/chunk_size": 30}
        rates |= {f"logmel{suffix}/{k}": v for k, v in (("hop_length", hop), ("n_fft", 512), ("n_mel", 80))}
        rates |= {f"logmel{suffix}/{k}": v for k, v in (("feature_first", 0), ("no_padding", 1))}
    steps = {"AudioDecoderEx": {"target_sample_rates": [8000, 16000]}, "Phi4AudioEmbed": rates}
    sequence = [{"operation": {"name": kind.lower(), "type": kind, "attrs": attrs}} for kind, attrs in steps.items()]
    return {"feature_extraction": {"sequence": sequence, "output_aligner": "phi4-audio-aligner"}}


def steps(kind: str) -> dict[str, Any]:
    """The file of the steps from an image to pixels."""
    operations = [{"operation": {"name": _name(step["type"]), **step}} for step in _steps(kind)]
    aligner = {"output_aligner": "phi4-vision-aligner"} if kind == "phi4mm" else {}
    return {"processor": {"name": "images", "transforms": operations, **aligner}}


def _steps(kind: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{"type": "DecodeImage", "attrs": {"color_space": "RGB"}}]
    if kind == "phi3v":
        return [*found, {"type": "Phi3ImageTransform", "attrs": {"num_crops": 16, "num_img_tokens": 144}}]
    half = [0.5] * 3
    return [
        *found,
        {"type": "Phi4VisionDynamicPreprocess", "attrs": {"dynamic_hd": 36, "dyhd_base_resolution": 448}},
        {"type": "Rescale", "inputs": [":0"]},
        {"type": "Normalize", "attrs": {"mean": half, "std": half}},
        {
            "type": "Phi4VisionProcessor",
            "inputs": [":0", "phi4_vision_dynamic_preprocess:1"],
            "attrs": {"dyhd_base_resolution": 448, "interpolation": "CUBIC"},
        },
    ]


def _name(kind: str) -> str:
    """The operation's name as others refer to it."""
    return {"Phi4VisionDynamicPreprocess": "phi4_vision_dynamic_preprocess"}.get(kind, kind.lower())


def write_phi(folder: Path, kind: str) -> Language:
    """Write a folder of ``kind`` phi3v or phi4mm."""
    lang = language(kind)
    folder.mkdir(parents=True, exist_ok=True)
    decoder = language_model(replace(lang, kind="phi3"), reads_embeddings=True)
    parts = {"model": decoder, "embedding": embeddings(kind, lang), "vision": encoder(kind, lang.hidden)}
    same = {n: n for n in ("pixel_values", "image_sizes")}
    config = genai_config(lang)
    model = config["model"]
    model["decoder"]["inputs"] = {"inputs_embeds": "inputs_embeds"} | {
        key: value for key, value in model["decoder"]["inputs"].items() if key != "input_ids"
    }
    features = {"image_features": "image_features"}
    model["vision"] = {
        "filename": "vision.onnx",
        "config_filename": "steps.json",
        "inputs": same,
        "outputs": {**features},
    }
    if kind == "phi4mm":
        model["vision"]["inputs"] = {**same, "attention_mask": "image_attention_mask"}
        parts["speech"] = _speech(lang.hidden)
        names = {n: n for n in ("audio_embeds", "audio_sizes", "audio_projection_mode")}
        model["speech"] = {
            "filename": "speech.onnx",
            "config_filename": "speech.json",
            "inputs": {**names, "attention_mask": "audio_attention_mask"},
            "outputs": {"audio_features": "audio_features"},
        }
        features["audio_features"] = "audio_features"
        (folder / "speech.json").write_text(json.dumps(_sounds()))
    model["embedding"] = {
        "filename": "embedding.onnx",
        "inputs": {"input_ids": "input_ids", **features},
        "outputs": {"inputs_embeds": "inputs_embeds"},
    }
    for name, part in parts.items():
        onnx.save(part, folder / f"{name}.onnx")
    (folder / "steps.json").write_text(json.dumps(steps(kind)))
    (folder / "genai_config.json").write_text(json.dumps(config))
    more = {"<|endoftext10|>": IMAGE, "<|endoftext11|>": AUDIO} if kind == "phi4mm" else {}
    write_tokenizer(folder, more, chat_template=TEMPLATE)
    return lang
