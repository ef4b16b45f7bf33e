"""The models whose sizes are open: where each comes from, which sizes it takes, and what its inputs hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from tools.bench.sizes.texts import text_model
from tools.models.catalog import Options, build_model
from vkep.models.language import ARCHITECTURES, language_model

Array = np.ndarray[Any, Any]
Dims = Mapping[str, int]
#: of an input: its array from its shape, the sizes and a generator
Fill = Callable[[tuple[int, ...], Dims, np.random.Generator], Array]


def _ones(shape: tuple[int, ...], dims: Dims, rng: np.random.Generator) -> Array:
    return np.ones(shape, np.int64)


def _up_to(dim: str) -> Fill:
    return lambda shape, dims, rng: rng.integers(2, dims[dim], shape)


def _boxes(shape: tuple[int, ...], dims: Dims, rng: np.random.Generator) -> Array:
    return (rng.random(shape) * 10).astype(np.float32)


def _durations(shape: tuple[int, ...], dims: Dims, rng: np.random.Generator) -> Array:
    return (rng.random(shape) * 4).astype(np.float32)


def _length(shape: tuple[int, ...], dims: Dims, rng: np.random.Generator) -> Array:
    return np.full(shape, dims["sequence"])


def _speed(shape: tuple[int, ...], dims: Dims, rng: np.random.Generator) -> Array:
    return rng.uniform(0.8, 1.2, shape).astype(np.float32)


def _scales(shape: tuple[int, ...], dims: Dims, rng: np.random.Generator) -> Array:
    """Of noise, lengths and the durations' noise: without noise the results are those of others."""
    return np.array([0, rng.uniform(0.8, 1.2), 0], np.float32)


def _points(shape: tuple[int, ...], dims: Dims, rng: np.random.Generator) -> Array:
    return (rng.random(shape) * 64).astype(np.float32)


def _labels(shape: tuple[int, ...], dims: Dims, rng: np.random.Generator) -> Array:
    """Of points: in the object, or outside."""
    return rng.integers(0, 2, shape).astype(np.int32)


def _sparse(shape: tuple[int, ...], dims: Dims, rng: np.random.Generator) -> Array:
    return np.maximum(rng.standard_normal(shape), 0).astype(np.float32)


#: sizes of a dimension by its name: the least and the most (at most 16 times as large), and what they are multiples of
RANGES: Mapping[str, tuple[int, int, int]] = {
    "height": (32, 96, 1),
    "width": (32, 96, 1),
    "batch": (1, 4, 1),
    "sequence": (8, 128, 1),
    "samples": (2000, 12000, 1),
    "past": (8, 128, 1),
    "length": (1, 1, 1),
    "frames": (30, 30, 1),
    "t": (5, 80, 1),
    "n": (9, 140, 1),
    "m": (9, 140, 1),
}
FILLS: Mapping[str, Fill] = {"mask": _ones, "attention_mask": _ones}


@dataclass(frozen=True)
class Network:
    """A model: how its file is written (``write``), the sizes that `RANGES` does not give, and inputs that are not random."""

    name: str
    kind: str
    write: Callable[[Path], None]
    ranges: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)
    fills: Mapping[str, Fill] = field(default_factory=dict)

    def draw(self, names: list[str], rng: np.random.Generator) -> dict[str, int]:
        """Sizes of the dimensions ``names``. The number of keys is that of the past and of the new tokens."""
        dims = {}
        for name in names:
            if name != "total":
                least, most, step = self.ranges.get(name) or RANGES[name]
                dims[name] = step * int(rng.integers(-(-least // step), most // step + 1))
        return {**dims, "total": dims["past"] + dims["length"]} if "total" in names else dims

    def feeds(self, inputs: list[Any], dims: Dims, rng: np.random.Generator) -> dict[str, Array]:
        """An array for each input of a session."""
        made: dict[str, Array] = {}
        for info in inputs:
            shape = tuple([dims[d] if isinstance(d, str) else int(d) for d in info.shape])
            fill = self.fills.get(info.name) or FILLS.get(info.name)
            if fill is not None:
                made[info.name] = fill(shape, dims, rng)
            elif "int64" in info.type:
                made[info.name] = rng.integers(3, 30, shape)
            elif "bool" in info.type:
                made[info.name] = rng.random(shape) > 0.5
            else:
                made[info.name] = rng.standard_normal(shape).astype(
                    np.float16 if "float16" in info.type else np.float32
                )
        return made


def _traced(name: str, kind: str, quiet: bool = False, **more: Any) -> Network:
    """``quiet``: random numbers are next to 0."""

    def write(path: Path) -> None:
        from tools.bench.sizes.exports import export

        export(name, path)
        if quiet:
            proto = onnx.load(path)
            for node in proto.graph.node:
                if node.op_type.startswith("Random"):
                    width = "scale" if "Normal" in node.op_type else "high"
                    node.attribute.append(helper.make_attribute(width, 1e-30))
            onnx.save(proto, path)

    return Network(name, kind, write, **more)


def _built(name: str, kind: str, build: Callable[[], onnx.ModelProto], **more: Any) -> Network:
    return Network(name, kind, lambda path: onnx.save(build(), path), **more)


def _text(name: str, kind: str, **more: Any) -> Network:
    return _built(name, kind, lambda: text_model(name), **more)


def _catalog(name: str, kind: str, **more: Any) -> Network:
    return _built(f"{name} (catalog)", kind, lambda: build_model(name, Options(dynamic=True)), **more)


def _genai(name: str, **more: Any) -> Network:
    return _built(f"{name} (genai)", "decoder", lambda: language_model(ARCHITECTURES[name]), **more)


def _sides(step: int, least: int = 32, most: int = 96) -> dict[str, tuple[int, int, int]]:
    return dict.fromkeys(("height", "width"), (least, most, step))


#: memories of SAM 2, of 16 pixels each, and pointers to objects of four numbers each
_PAIRS = {"images": (2, 6, 1), "texts": (2, 6, 1), "batch": (2, 6, 1), "sequence": (5, 60, 1)}
_KEPT = {"kept": (16, 112, 16), "pointers": (4, 64, 4)}

_ALL = (
    *[_traced(name, "image", ranges=_sides(1, 8, 40)) for name in ("esrgan", "esrgan@dynamo", "pixelshuffle")],
    *[_traced(name, "image") for name in ("unet", "unet@dynamo", "vgg")],
    _traced("style", "image", ranges=_sides(4)),
    _traced("inception", "image"),
    *[_traced(name, "image", ranges=_sides(32, 32, 192)) for name in ("yolo", "yolo@dynamo", "textdetector")],
    _traced("rt_detr", "image", ranges=_sides(32, 32, 192)),
    *[_traced(name, "image", ranges=_sides(32, 64, 192)) for name in ("yolo_nms", "yolo_end")],
    _traced("u2net", "image"),
    *[_traced(name, "image and text", ranges=_PAIRS) for name in ("clip", "siglip", "blip")],
    _traced("sam2_image", "video", ranges={"batch": (1, 4, 1)}),
    _traced(
        "sam2_masks",
        "video",
        ranges={"objects": (2, 6, 1), "count": (2, 9, 1)},
        fills={"points": _points, "labels": _labels},
    ),
    *[_traced(f"sam2_attention{form}", "video", ranges=_KEPT) for form in ("", "@dynamo")],
    _traced("sam2_memory", "video", ranges={"batch": (1, 4, 1)}),
    _traced("frames", "image", ranges=_sides(4)),
    _traced("textreader", "line of text"),
    _traced("textattention", "line of text"),
    _traced("sd_unet", "diffusion", ranges={**_sides(2, 8, 24), "batch": (2, 2, 1), "sequence": (9, 9, 1)}),
    _traced("vae_decoder", "diffusion", ranges=_sides(1, 8, 24)),
    _traced("vae_encoder", "diffusion", ranges=_sides(2)),
    *[_traced(name, "image") for name in ("resnet", "convnext", "segformer", "mobilenet", "regnet")],
    *[_traced(name, "image", ranges=_sides(8)) for name in ("dinov2", "vit", "swin", "swin2sr")],
    *[_traced(name, "text") for name in ("bert", "bert@dynamo", "roberta", "distilbert", "albert", "electra", "mpnet")],
    *[_traced(name, "text") for name in ("t5_encoder", "bart_encoder", "gpt_neox@dynamo")],
    *[_traced(name, "audio") for name in ("wav2vec2", "hubert", "encodec", "dac", "moonshine@dynamo")],
    _traced("demucs", "audio", ranges={"samples": (2000, 12000, 1)}),
    _traced("vits", "speech", ranges={"sequence": (4, 40, 1)}, quiet=True),
    _traced("kokoro", "speech", ranges={"sequence": (4, 40, 1)}, fills={"speed": _speed}, quiet=True),
    _traced("piper", "speech", ranges={"sequence": (4, 40, 1)}, fills={"count": _length, "scales": _scales}),
    *[_traced(name, "recurrent", ranges={"sequence": (4, 60, 1)}) for name in ("lstm", "lstm_large", "gru_large")],
    *[_traced(name, "decoder") for name in ("gpt2_cache", "llama_cache", "llama_cache@dynamo", "qwen3_cache")],
    *[_traced(name, "decoder") for name in ("gemma3_cache", "gemma3_cache@dynamo", "phi_cache", "whisper_cache")],
    _catalog("bert_enc", "text"),
    _catalog("gpt2step", "decoder"),
    _catalog("mobilenetv2", "batches", ranges={"batch": (2, 6, 1)}),
    *[_genai(name) for name in ("llama", "gemma2", "gpt2")],
    _built("llama of 32 layers (genai)", "decoder", lambda: language_model(replace(ARCHITECTURES["llama"], layers=32))),
    *[_text(name, "loop") for name in ("loop", "growing loop", "scan", "rnn")],
    _text("non-zero", "count", fills={"x": _sparse}),
    *[_text(name, "count") for name in ("rows by a test", "compress", "unique", "greedy CTC")],
    _text("largest of a share", "size"),
    _text("largest k", "count", fills={"k": _up_to("n")}),
    _text("non-maximum suppression", "count", fills={"corners": _boxes}),
    _text("repeats by counts", "count", fills={"lengths": _durations}),
    _text("reverse by lengths", "size", fills={"ends": _up_to("t")}),
    _text("spectrum", "audio"),
    *[_text(name, "size") for name in ("running sum", "affine grid", "resize to a share")],
    _text("relative positions", "size", ranges={"n": (9, 120, 1)}),
    _text("branch by length", "size"),
)
NETWORKS: Mapping[str, Network] = {network.name: network for network in _ALL}
