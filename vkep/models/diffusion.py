"""A small image generator with random weights, in the folder that Optimum exports for Stable Diffusion 1.5 (arXiv:2112.10752).

The operators are those of torch's exporter: group norms as InstanceNormalization between Reshapes, attention as MatMul and
Softmax, the embedding of the time step as sines and cosines.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from vkep.models.bert import attention, embedding
from vkep.models.builder import GraphBuilder

#: tokens of a prompt, width of its embedding, and channels: of latents, and of both networks
TOKENS, WIDTH, LATENT, CHANNELS = 77, 32, 4, (16, 32)
#: heads, groups of a norm, pixels for each latent, and pixels of a side by default
_HEADS, _GROUPS, SCALE, SIDE = 4, 4, 8, 64
_LAYERS = 2
_START, _END = "<|startoftext|>", "<|endoftext|>"
Sizes = tuple[str, str]


def text_encoder() -> onnx.ModelProto:
    """Input `input_ids` int64 [batch, sequence] (up to 77), outputs `last_hidden_state` float32 [batch, sequence, 32] and
    `pooler_output` [batch, 32], which is that of the largest id (CLIP's end, arXiv:2103.00020)."""
    graph = GraphBuilder("text_encoder")
    ids = graph.input("input_ids", ["batch", "sequence"], TensorProto.INT64)
    zero, one = graph.constant("zero", [0]), graph.constant("one", [1])
    length = graph.add("Slice", graph.add("Shape", ids), one, graph.constant("two", [2]))
    positions = graph.add("Slice", embedding(graph, "positions", TOKENS, WIDTH), zero, length, zero)
    x = graph.add("Add", graph.add("Gather", embedding(graph, "tokens", len(_vocabulary()), WIDTH), ids), positions)
    later = np.triu(np.full((TOKENS, TOKENS), -1e4, np.float32), 1)
    both = [graph.add("Concat", *parts, axis=0) for parts in ((zero, zero), (length, length))]
    mask = graph.add("Slice", graph.constant("later", later), *both)
    for k in range(_LAYERS):
        name = f"layers.{k}"
        inside = graph.layer_norm(x, f"{name}.norm1", WIDTH, 1e-5)
        x = graph.add("Add", x, _attention(graph, inside, inside, name, WIDTH, WIDTH, mask))
        inside = graph.linear(graph.layer_norm(x, f"{name}.norm2", WIDTH, 1e-5), f"{name}.fc1", WIDTH, 4 * WIDTH)
        scaled = graph.add("Mul", inside, graph.constant("quick", 1.702))
        inside = graph.add("Mul", inside, graph.add("Sigmoid", scaled))
        x = graph.add("Add", x, graph.linear(inside, f"{name}.fc2", 4 * WIDTH, WIDTH))
    x = graph.layer_norm(x, "norm", WIDTH, 1e-5)
    end = graph.add("ArgMax", ids, axis=1, keepdims=1)
    pooled = graph.add("GatherND", x, end, batch_dims=1)
    graph.output(x, "last_hidden_state", ["batch", "sequence", WIDTH])
    graph.output(pooled, "pooler_output", ["batch", WIDTH])
    return graph.model()


def unet() -> onnx.ModelProto:
    """Inputs `sample` float32 [batch, 4, height, width] (even), `timestep` int64 [] and `encoder_hidden_states` float32 [batch,
    sequence, 32], output `out_sample`, the noise in `sample`, of its shape."""
    graph = GraphBuilder("unet")
    x = graph.input("sample", ["batch", LATENT, "height", "width"])
    step = graph.input("timestep", [], TensorProto.INT64)
    text = graph.input("encoder_hidden_states", ["batch", "sequence", WIDTH])
    few, many = CHANNELS
    rates = np.exp(-np.log(10000) * np.arange(few // 2) / (few // 2))
    angles = graph.add("Mul", graph.add("Cast", step, to=TensorProto.FLOAT), graph.constant("rates", rates))
    time = graph.add("Concat", graph.add("Cos", angles), graph.add("Sin", angles), axis=0)
    time = graph.add("Unsqueeze", time, graph.constant("first", [0]))
    time = graph.linear(_silu(graph, graph.linear(time, "time1", few, many)), "time2", many, many)

    skip = x = _block(graph, _conv(graph, x, "in", LATENT, few), "down", few, few, time)
    x = _conv(graph, x, "smaller", few, many, stride=2)
    x = _pixels_attend(graph, _block(graph, x, "middle", many, many, time), text, "text", many)
    x = _conv(graph, _larger(graph, x), "larger", many, many)
    x = graph.add("Concat", x, skip, axis=1)
    x = _block(graph, x, "up", many + few, few, time)
    x = _conv(graph, _silu(graph, _group_norm(graph, x, "norm", few)), "out", few, LATENT)
    graph.output(x, "out_sample", ["batch", LATENT, "height", "width"])
    return graph.model()


def vae_decoder() -> onnx.ModelProto:
    """Input `latent_sample` float32 [batch, 4, height, width], output `sample` [batch, 3, 8 · height, 8 · width] of about -1 to
    1."""
    graph = GraphBuilder("vae_decoder")
    x = graph.input("latent_sample", ["batch", LATENT, "latent_height", "latent_width"])
    few, many = CHANNELS
    x = _block(graph, _conv(graph, x, "in", LATENT, many), "middle", many, many)
    x = _pixels_attend(graph, x, None, "pixels", many)
    for k, channels in enumerate((few, few, few)):
        x = _conv(graph, _larger(graph, x), f"larger{k}", many if k == 0 else few, channels)
        x = _block(graph, x, f"up{k}", channels, channels)
    x = _conv(graph, _silu(graph, _group_norm(graph, x, "norm", few)), "out", few, 3)
    graph.output(x, "sample", ["batch", 3, "height", "width"])
    return graph.model()


def vae_encoder() -> onnx.ModelProto:
    """Input `sample` float32 [batch, 3, height, width] (multiples of 8), output `latent_parameters` [batch, 8, height / 8,
    width / 8]: means, and logarithms of variances."""
    graph = GraphBuilder("vae_encoder")
    x = graph.input("sample", ["batch", 3, "sample_height", "sample_width"])
    few = CHANNELS[0]
    x = _conv(graph, x, "in", 3, few)
    for k in range(3):
        x = _block(graph, _conv(graph, x, f"smaller{k}", few, few, stride=2), f"down{k}", few, few)
    x = _conv(graph, _silu(graph, _group_norm(graph, x, "norm", few)), "out", few, 2 * LATENT)
    graph.output(x, "latent_parameters", ["batch", 2 * LATENT, "height", "width"])
    return graph.model()


def write_diffusion(folder: Path) -> None:
    """Write the folder: four networks with their configurations, the scheduler's, and a tokenizer of bytes."""
    networks = {
        "text_encoder": (text_encoder(), _TEXT_CONFIG),
        "unet": (unet(), _UNET_CONFIG),
        "vae_decoder": (vae_decoder(), _VAE_CONFIG),
        "vae_encoder": (vae_encoder(), _VAE_CONFIG),
    }
    for name, (model, config) in networks.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        onnx.save(model, folder / name / "model.onnx")
        _write(folder / name / "config.json", config)
    for name in ("scheduler", "tokenizer"):
        (folder / name).mkdir(exist_ok=True)
    _write(folder / "model_index.json", _INDEX)
    _write(folder / "scheduler" / "scheduler_config.json", _SCHEDULER)
    _write(folder / "tokenizer" / "vocab.json", _vocabulary())
    (folder / "tokenizer" / "merges.txt").write_text("#version: 0.2\n", encoding="utf-8")
    special = {"bos_token": _START, "eos_token": _END, "unk_token": _END, "pad_token": _END}
    _write(folder / "tokenizer" / "special_tokens_map.json", special)
    settings = {"tokenizer_class": "CLIPTokenizer", "model_max_length": TOKENS, "errors": "replace", **special}
    _write(folder / "tokenizer" / "tokenizer_config.json", settings)


# ---- parts of the networks


def _silu(graph: GraphBuilder, x: str) -> str:
    return graph.add("Mul", x, graph.add("Sigmoid", x))


def _conv(graph: GraphBuilder, x: str, name: str, c_in: int, c_out: int, stride: int = 1) -> str:
    weight = graph.constant(f"{name}.weight", graph.weight(f"{name}.weight", (c_out, c_in, 3, 3), (9 * c_in) ** -0.5))
    bias = graph.constant(f"{name}.bias", graph.weight(f"{name}.bias", (c_out,), 0.1))
    return graph.add("Conv", x, weight, bias, kernel_shape=[3, 3], strides=[stride] * 2, pads=[1] * 4)


def _larger(graph: GraphBuilder, x: str) -> str:
    """Twice the height and the width."""
    scales = graph.constant("scales", np.array([1, 1, 2, 2], np.float32))
    how = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return graph.add("Resize", x, "", scales, mode="nearest", **how)


def _group_norm(graph: GraphBuilder, x: str, name: str, channels: int) -> str:
    ones, zeros = (graph.constant(n, np.full(_GROUPS, v, np.float32)) for n, v in (("ones", 1), ("zeros", 0)))
    grouped = graph.add("Reshape", x, graph.constant("groups", [0, _GROUPS, -1]))
    normed = graph.add("InstanceNormalization", grouped, ones, zeros, epsilon=1e-5)
    normed = graph.add("Reshape", normed, graph.add("Shape", x))
    scale = graph.constant(f"{name}.weight", 1 + graph.weight(f"{name}.weight", (channels, 1, 1), 0.1))
    offset = graph.constant(f"{name}.bias", graph.weight(f"{name}.bias", (channels, 1, 1), 0.05))
    return graph.add("Add", graph.add("Mul", normed, scale), offset)


def _block(graph: GraphBuilder, x: str, name: str, c_in: int, c_out: int, time: str | None = None) -> str:
    """Two convolutions with a residual; ``time`` [1, 32] is added between them."""
    inside = _conv(graph, _silu(graph, _group_norm(graph, x, f"{name}.norm1", c_in)), f"{name}.conv1", c_in, c_out)
    if time is not None:
        added = graph.linear(_silu(graph, time), f"{name}.time", CHANNELS[1], c_out)
        inside = graph.add("Add", inside, graph.add("Unsqueeze", added, graph.constant("pixels_axes", [2, 3])))
    inside = _conv(
        graph, _silu(graph, _group_norm(graph, inside, f"{name}.norm2", c_out)), f"{name}.conv2", c_out, c_out
    )
    return graph.add("Add", inside, x if c_in == c_out else _conv(graph, x, f"{name}.short", c_in, c_out))


def _attention(
    graph: GraphBuilder, x: str, other: str, name: str, width: int, other_width: int, mask: str | None = None
) -> str:
    """Attention of ``x`` [batch, rows, width] to ``other`` [batch, keys, other_width]."""

    def split(value: str, part: str, wide: int, perm: list[int]) -> str:
        heads = graph.constant(f"heads.{width}", [0, -1, _HEADS, width // _HEADS])
        rows = graph.add("Reshape", graph.linear(value, f"{name}.{part}", wide, width), heads)
        return graph.add("Transpose", rows, perm=perm)

    q = split(x, "q", width, [0, 2, 1, 3])
    k, v = split(other, "k", other_width, [0, 2, 3, 1]), split(other, "v", other_width, [0, 2, 1, 3])
    return graph.linear(attention(graph, q, k, v, width, _HEADS, mask), f"{name}.out", width, width)


def _pixels_attend(graph: GraphBuilder, x: str, text: str | None, name: str, channels: int) -> str:
    """Pixels attend to one another, then to ``text``."""
    rows = graph.add(
        "Reshape", _group_norm(graph, x, f"{name}.norm", channels), graph.constant("rows", [0, channels, -1])
    )
    rows = graph.add("Transpose", rows, perm=[0, 2, 1])
    normed = graph.layer_norm(rows, f"{name}.norm1", channels, 1e-5)
    rows = graph.add("Add", rows, _attention(graph, normed, normed, f"{name}.self", channels, channels))
    if text is not None:
        normed = graph.layer_norm(rows, f"{name}.norm2", channels, 1e-5)
        rows = graph.add("Add", rows, _attention(graph, normed, text, f"{name}.cross", channels, WIDTH))
    image = graph.add("Reshape", graph.add("Transpose", rows, perm=[0, 2, 1]), graph.add("Shape", x))
    return graph.add("Add", x, image)


# ---- the other files


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")


def _vocabulary() -> dict[str, int]:
    """The letters of bytes as CLIP's tokenizer has them, within a word and at its end."""
    shown = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    letters = [chr(b) for b in shown] + [chr(256 + k) for k in range(256 - len(shown))]
    return {text: k for k, text in enumerate([*letters, *(f"{c}</w>" for c in letters), _START, _END])}


_VAE_CONFIG: Mapping[str, Any] = {
    "_class_name": "AutoencoderKL",
    "block_out_channels": [CHANNELS[0]] * 4,
    "down_block_types": ["DownEncoderBlock2D"] * 4,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
    "latent_channels": LATENT,
    "sample_size": SIDE,
    "scaling_factor": 0.18215,
}
_UNET_CONFIG: Mapping[str, Any] = {
    "_class_name": "UNet2DConditionModel",
    "in_channels": LATENT,
    "out_channels": LATENT,
    "sample_size": SIDE // SCALE,
    "block_out_channels": list(CHANNELS),
    "cross_attention_dim": WIDTH,
    "time_cond_proj_dim": None,
}
_TEXT_CONFIG: Mapping[str, Any] = {
    "architectures": ["CLIPTextModel"],
    "model_type": "clip_text_model",
    "hidden_size": WIDTH,
    "num_hidden_layers": _LAYERS,
    "max_position_embeddings": TOKENS,
}
_SCHEDULER: Mapping[str, Any] = {
    "_class_name": "DDIMScheduler",
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "num_train_timesteps": 1000,
    "clip_sample": False,
    "set_alpha_to_one": False,
    "steps_offset": 1,
}
_INDEX: Mapping[str, Any] = {
    "_class_name": "StableDiffusionPipeline",
    "_diffusers_version": "0.36.0",
    "requires_safety_checker": False,
    "safety_checker": [None, None],
    "feature_extractor": [None, None],
    "image_encoder": [None, None],
    "scheduler": ["diffusers", "DDIMScheduler"],
    "text_encoder": ["transformers", "CLIPTextModel"],
    "tokenizer": ["transformers", "CLIPTokenizer"],
    "unet": ["diffusers", "UNet2DConditionModel"],
    "vae": ["diffusers", "AutoencoderKL"],
}
