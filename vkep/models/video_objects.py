"""A small model in the parts of `vkep.video_objects`, with random weights: SAM 2's form (arXiv:2408.00714) without its depth."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
from onnx import TensorProto

from vkep.models.builder import GraphBuilder

#: edge of a frame, and of its features; channels of features, and of memories; frames of which a memory has a time
EDGE, SMALL, WIDE, THIN, AGES = 64, 4, 64, 64, 7


def _image_encoder() -> onnx.ModelProto:
    w = GraphBuilder("image_encoder")
    x, channels = w.input("pixel_values", [1, 3, EDGE, EDGE]), 3
    for name, wide, stride in (("fine", WIDE // 8, 4), ("medium", WIDE // 4, 2), ("features", WIDE, 2)):
        kernel = w.weight(name, (wide, channels, stride, stride), (channels * stride**2) ** -0.5)
        x = w.add("Conv", x, w.constant(f"{name}.weight", kernel), kernel_shape=[stride] * 2, strides=[stride] * 2)
        x, channels = w.add("Tanh", x, stem=name), wide
    w.output(
        w.add("Add", x, w.constant("none", w.weight("none", (1, WIDE, 1, 1), 0.3))), "alone", [1, WIDE, SMALL, SMALL]
    )
    for name, wide, edge in (("fine", WIDE // 8, 16), ("medium", WIDE // 4, 8), ("features", WIDE, SMALL)):
        w.output({"features": x}.get(name, name), name, [1, wide, edge, edge])
    return w.model()


def _memory_attention() -> onnx.ModelProto:
    w = GraphBuilder("memory_attention")
    features = w.input("features", [1, WIDE, SMALL, SMALL])
    memories, pointers = (
        w.input("memories", ["rows", SMALL**2, THIN]),
        w.input("pointers", ["pointer_rows_in_all", WIDE]),
    )
    read, known = (
        [w.input(f"{name}_{what}", [f"{name}_count"], TensorProto.INT64) for what in ("rows", "ages")]
        for name in ("memory", "pointer")
    )
    ages = w.add("Gather", w.constant("ages", w.weight("ages", (AGES, 1, THIN), 0.5)), read[1])
    flat = w.constant("flat", [-1, WIDE])
    keys = w.add("Reshape", w.add("Add", w.add("Gather", memories, read[0]), ages), flat)
    since = w.add("Unsqueeze", w.add("Cast", known[1], to=TensorProto.FLOAT), w.constant("one", [1]))
    times = w.add("MatMul", since, w.constant("times", w.weight("times", (1, WIDE), 0.05)))
    keys = w.add("Concat", keys, w.add("Add", w.add("Gather", pointers, known[0]), times), axis=0)
    query = w.add("Transpose", w.add("Reshape", features, w.constant("rows_of", [WIDE, -1])), perm=[1, 0])
    turned = w.add("Transpose", w.linear(keys, "key", WIDE, WIDE), perm=[1, 0])
    scores = w.add("MatMul", w.linear(query, "query", WIDE, WIDE), turned)
    weights = w.add("Softmax", w.add("Mul", scores, w.constant("scale", WIDE**-0.5)), axis=-1)
    found = w.add("Add", query, w.add("MatMul", weights, w.linear(keys, "value", WIDE, WIDE)))
    x = w.add("Reshape", w.add("Transpose", found, perm=[1, 0]), w.constant("image", [1, WIDE, SMALL, SMALL]))
    w.output(x, "conditioned", [1, WIDE, SMALL, SMALL])
    return w.model()


def _mask_decoder(name: str) -> onnx.ModelProto:
    w = GraphBuilder(name)
    features = w.input("features", [1, WIDE, SMALL, SMALL])
    fine, medium = w.input("fine", [1, WIDE // 8, 16, 16]), w.input("medium", [1, WIDE // 4, 8, 8])
    points, labels = w.input("points", [1, "points", 2]), w.input("labels", [1, "points"], TensorProto.INT64)
    places = w.add("Sin", w.linear(w.add("Div", points, w.constant("edge", EDGE / 6)), "place", 2, WIDE))
    kinds = w.add("Add", labels, w.constant("first", [1]))
    asked = w.add("Add", places, w.add("Gather", w.constant("kinds", w.weight("kinds", (5, WIDE), 1.0)), kinds))
    asked = w.add("ReduceMean", asked, w.constant("one", [1]), keepdims=0)  # [1, wide]
    pooled = w.add("ReduceMean", features, w.constant("plane", [2, 3]), keepdims=0)
    token = w.add("Tanh", w.linear(w.add("Add", asked, pooled), "token", WIDE, WIDE))

    def larger(x: str, layer: str, n_in: int, n_out: int) -> str:
        kernel = w.constant(f"{layer}.weight", w.weight(layer, (n_in, n_out, 2, 2), n_in**-0.5))
        return w.add("ConvTranspose", x, kernel, kernel_shape=[2, 2], strides=[2, 2])

    x = w.add("Tanh", w.add("Add", larger(features, "up", WIDE, WIDE // 4), medium))
    x = w.add("Tanh", w.add("Add", larger(x, "more", WIDE // 4, WIDE // 8), fine))
    x = w.add("Reshape", x, w.constant("flat", [WIDE // 8, -1]))
    x = w.add("MatMul", w.linear(token, "mask", WIDE, WIDE // 8), x)
    x = w.add("Reshape", x, w.constant("image", [1, 1, 16, 16]))
    size = w.constant("size", [1, 1, EDGE, EDGE])
    large = w.add("Resize", x, "", "", size, mode="linear", coordinate_transformation_mode="half_pixel")
    w.output(x, "mask", [1, 1, 16, 16])
    w.output(large, "large", [1, 1, EDGE, EDGE])
    w.output(w.linear(token, "pointer", WIDE, WIDE), "pointer", [1, WIDE])
    w.output(w.linear(token, "score", WIDE, 1), "score", [1, 1])
    return w.model()


def _mask_reader() -> onnx.ModelProto:
    w = GraphBuilder("mask_reader")
    features = w.input("features", [1, WIDE, SMALL, SMALL])
    shown = w.input("shown", [1, 1, EDGE, EDGE])
    large = w.add("Sub", w.add("Mul", shown, w.constant("twenty", 20.0)), w.constant("ten", 10.0))
    w.output(large, "large", [1, 1, EDGE, EDGE])
    w.output(w.add("AveragePool", "large", kernel_shape=[4, 4], strides=[4, 4]), "mask", [1, 1, 16, 16])
    edge = EDGE // SMALL
    where = w.add("AveragePool", shown, kernel_shape=[edge, edge], strides=[edge, edge])
    plane = w.constant("plane", [2, 3])
    pooled = w.add("ReduceMean", w.add("Mul", features, where), plane, keepdims=0)
    w.output(w.linear(pooled, "pointer", WIDE, WIDE), "pointer", [1, WIDE])
    there = w.add("ReduceMax", "large", plane, keepdims=0)
    w.output(there, "score", [1, 1])
    return w.model()


def _memory_encoder() -> onnx.ModelProto:
    w = GraphBuilder("memory_encoder")
    features = w.input("features", [1, WIDE, SMALL, SMALL])
    large, score = w.input("large", [1, 1, EDGE, EDGE]), w.input("score", [1, 1])
    prompted, zero = w.input("prompted", [], TensorProto.BOOL), w.constant("zero", 0.0)
    sharp = w.add("Cast", w.add("Greater", large, zero), to=TensorProto.FLOAT)
    mask = w.add("Where", prompted, sharp, w.add("Sigmoid", large))
    edge = EDGE // SMALL
    mask = w.add("AveragePool", mask, kernel_shape=[edge, edge], strides=[edge, edge])
    there = w.add("Reshape", w.add("Sigmoid", score), w.constant("scalar", [1, 1, 1, 1]))
    x = w.add("Add", w.add("Mul", features, mask), there)
    x = w.add("Transpose", w.add("Reshape", x, w.constant("flat", [1, WIDE, -1])), perm=[0, 2, 1])
    w.output(w.linear(x, "memory", WIDE, THIN), "memory", [1, SMALL**2, THIN])
    return w.model()


def write_video_objects(folder: Path) -> None:
    """Write the parts, and how frames are read."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = {
        "image_encoder": _image_encoder(),
        "memory_attention": _memory_attention(),
        "mask_decoder": _mask_decoder("mask_decoder"),
        "mask_decoder_points": _mask_decoder("mask_decoder_points"),
        "memory_encoder": _memory_encoder(),
        "mask_reader": _mask_reader(),
    }
    for name, part in parts.items():
        onnx.save(part, folder / f"{name}.onnx")
    settings = {
        "image_processor_type": "ViTImageProcessor",
        "size": {"height": EDGE, "width": EDGE},
        "resample": 2,
        "image_mean": [0.485, 0.456, 0.406],
        "image_std": [0.229, 0.224, 0.225],
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(settings, indent=1))
