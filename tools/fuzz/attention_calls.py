"""Calls of the attention operators, drawn from what each input and attribute may be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]
Rng = np.random.Generator
FLOATS = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
MICROSOFT = "com.microsoft"


@dataclass
class Case:
    """One call: inputs in order (None: absent), the outputs' names ("" absent), and what of them is defined."""

    op: str
    domain: str
    opset: int
    inputs: dict[str, Array | None]
    outputs: list[str]
    attributes: dict[str, Any]
    dtype: str
    constants: tuple[str, ...] = ()
    #: of an output, by its name: the part that is compared
    part: dict[str, Callable[[Array], Array]] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The call in a line."""
        shapes = {n: f"{v.dtype}{list(v.shape)}" for n, v in self.inputs.items() if v is not None}
        return f"{self.domain or 'ai.onnx'}.{self.op}-{self.opset} {self.attributes} {shapes} -> {self.outputs}"

    def values(self, wide: bool = False) -> dict[str, Array]:
        """The inputs that are there; ``wide``: floats in float32."""
        narrow = (np.float16, ml_dtypes.bfloat16)
        given = {n: v for n, v in self.inputs.items() if v is not None}
        return {n: v.astype(np.float32) if wide and v.dtype.type in narrow else v for n, v in given.items()}

    def model(self, wide: bool = False) -> onnx.ModelProto:
        """The call as a model."""
        values = self.values(wide)
        names = [n if v is not None else "" for n, v in self.inputs.items()]
        node = helper.make_node(self.op, names, self.outputs, domain=self.domain, **self.attributes)
        inputs = [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
            for n, v in values.items()
            if n not in self.constants
        ]
        weights = [numpy_helper.from_array(values[n], n) for n in self.constants if n in values]
        results = [onnx.ValueInfoProto(name=n) for n in self.outputs if n]
        for result in results:
            if result.name == "qk":  # a type of its own
                element = TensorProto.FLOAT if wide else helper.np_dtype_to_tensor_dtype(np.dtype(FLOATS[self.dtype]))
                result.CopyFrom(helper.make_tensor_value_info("qk", element, None))
        graph = helper.make_graph([node], "call", inputs, results, weights)
        opsets = [helper.make_opsetid("", self.opset)]
        opsets += [helper.make_opsetid(self.domain, 1)] if self.domain else []
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def feeds(self, wide: bool = False) -> dict[str, Array]:
        """The inputs of a run."""
        return {n: v for n, v in self.values(wide).items() if n not in self.constants}


def _maybe(rng: Rng, value: Callable[[], Any], chance: float = 0.3) -> Any:
    return value() if rng.random() < chance else None


def _one(rng: Rng, *values: Any) -> Any:
    return values[rng.integers(len(values))]


def _floats(rng: Rng, dtype: str) -> Callable[..., Array]:
    return lambda *shape: rng.normal(0, 1, shape).astype(np.float32).astype(FLOATS[dtype])


def _dtype(rng: Rng) -> str:
    return str(_one(rng, "float32", "float32", "float16", "bfloat16"))


def _tables(rng: Rng, rows: int, half: int, dtype: str) -> tuple[Array, Array]:
    angles = np.outer(np.arange(rows), 1.0 / 100.0 ** (np.arange(half) / half))
    return np.cos(angles).astype(FLOATS[dtype]), np.sin(angles).astype(FLOATS[dtype])


def _drop(options: Mapping[str, tuple[Any, Any]]) -> dict[str, Any]:
    """Attributes, by their value and a default that need not be written."""
    return {name: value for name, (value, default) in options.items() if value != default}


# ---- the operators


def grouped(rng: Rng) -> Case:
    """GroupQueryAttention with anything of its schema."""
    dtype = _dtype(rng)
    new = _floats(rng, dtype)
    kv_heads, group, size = _one(rng, 1, 2, 3), _one(rng, 1, 2, 4), _one(rng, 16, 32)
    heads = kv_heads * group
    stage = _one(rng, "prompt", "prompt in a buffer", "token", "token in a buffer", "chunk", "padded chunk", "shared")
    batch = 1 if stage == "chunk" else int(rng.integers(1, 4))
    length = 1 if "token" in stage else int(rng.integers(1, 6))
    room = {"prompt": 0, "token": 7, "prompt in a buffer": 9}.get(stage, 12)
    counts: Array | None = None
    if "prompt" in stage:
        lengths = rng.integers(1, length + 1, batch)
        lengths[0] = length
    elif stage == "token":
        lengths = rng.integers(1, room + 2, batch)
        lengths[0] = room + 1
    elif stage == "padded chunk":
        counts = np.asarray(rng.integers(0, length + 1, batch), np.int32)
        lengths = np.array([int(rng.integers(max(c, 1), room - length + c + 1)) for c in counts])
    else:
        lengths = rng.integers(max(length, 2), room + 1, batch)
    total = int(max(lengths)) if stage != "prompt" else length
    if stage == "padded chunk" and rng.random() < 0.5:
        total = room
    total = max(total, length)
    packed = stage != "shared" and rng.random() < 0.3
    fresh = 0 if stage == "shared" else length
    q, k, v = new(batch, length, heads * size), new(batch, fresh, kv_heads * size), new(batch, fresh, kv_heads * size)
    quantized = _one(rng, None, None, (8, "int8"), (4, "uint8"), (8, "float8_e4m3fn"))
    kind = _one(rng, "PER_TENSOR", "PER_CHANNEL")
    held = FLOATS[dtype]
    attributes: dict[str, Any] = {}
    scales: list[Array | None] = [None, None]
    width = size
    if quantized is not None:
        bits, name = quantized
        width = size * bits // 8
        held = {"int8": np.int8, "uint8": np.uint8, "float8_e4m3fn": ml_dtypes.float8_e4m3fn}[name]
        attributes = {"k_quant_type": kind, "v_quant_type": kind, "kv_cache_bit_width": bits}
        shape = (1, kv_heads, 1, size) if kind == "PER_CHANNEL" else (1,)
        most = {"int8": 30.0, "uint8": 2.0, "float8_e4m3fn": 60.0}[name]
        scales = [(rng.uniform(1.0, 2.0, shape) / most).astype(np.float32) for _ in "kv"]

    def cache() -> Array:
        if quantized is None:
            return new(batch, kv_heads, room, width)
        if quantized[1] == "float8_e4m3fn":
            return (rng.normal(0, 60, (batch, kv_heads, room, width))).astype(held)
        return rng.integers(*((-127, 128) if quantized[0] == 8 else (0, 256)), (batch, kv_heads, room, width)).astype(
            held
        )

    rotary = int(rng.random() < 0.5)
    half = size // 2 if size == 16 else _one(rng, 8, size // 2)
    cos, sin = _tables(rng, 32, half, dtype) if rotary else (None, None)
    norm = stage != "shared" and rng.random() < 0.25
    causal = 0 if stage in ("prompt", "token in a buffer") and rng.random() < 0.2 else 1
    window = -1 if not causal else _one(rng, -1, -1, 3, 5)
    first = lengths - (length if counts is None else counts)
    places = np.maximum(np.zeros_like(first) if "prompt" in stage else first, 0)[:, None] + np.arange(length) + 2
    qk = _one(rng, 0, 0, 0, 1, 2) if stage != "padded chunk" else 0
    attributes |= {"num_heads": heads, "kv_num_heads": kv_heads, "do_rotary": rotary}
    attributes |= _drop(
        {
            "rotary_interleaved": (rotary and _one(rng, 0, 1), 0),
            "local_window_size": (window, -1),
            "softcap": (_one(rng, 0.0, 0.0, 1.5), 0.0),
            "scale": (_one(rng, 0.0, 0.4), 0.0),
            "smooth_softmax": (_one(rng, -1, 0, 1), -1),
            "causal": (causal, 1),
            "qk_output": (qk, 0),
        }
    )
    inputs: dict[str, Array | None] = {
        "query": np.concatenate([q, k, v], -1) if packed else q,
        "key": None if packed else k,
        "value": None if packed else v,
        "past_key": cache() if room else None,
        "past_value": cache() if room else None,
        "seqlens_k": (lengths - 1).astype(np.int32),
        "total_sequence_length": np.array(total, np.int32),
        "cos_cache": cos,
        "sin_cache": sin,
        "position_ids": _maybe(rng, lambda: places.astype(np.int64)) if rotary else None,
        "attention_bias": _maybe(rng, lambda: new(_one(rng, 1, batch), _one(rng, 1, heads), length, total)),
        "head_sink": _maybe(rng, lambda: new(heads)),
        "k_scale": scales[0],
        "v_scale": scales[1],
        "q_norm_weight": new(size) if norm else None,
        "k_norm_weight": new(size) if norm else None,
        "query_seqlens": counts,
    }
    rows = [
        slice(0, int(counts[b]) if counts is not None else int(lengths[b]) if "prompt" in stage else length)
        for b in range(batch)
    ]

    def answers(y: Array) -> Array:
        return np.concatenate([y[b, rows[b]].reshape(-1) for b in range(batch)])

    def caches(t: Array) -> Array:
        return np.concatenate([t[b, :, : lengths[b]].reshape(-1) for b in range(batch)])

    def scores(t: Array) -> Array:
        return np.concatenate([t[b, :, rows[b], : lengths[b]].reshape(-1) for b in range(batch)])

    outputs = ["y", "present_key", "present_value", *(["qk"] if qk else [])]
    return Case(
        "GroupQueryAttention",
        MICROSOFT,
        21,
        inputs,
        outputs,
        attributes,
        dtype,
        ("total_sequence_length",) if rng.random() < 0.5 else (),
        {"y": answers, "present_key": caches, "present_value": caches, "qk": scores},
    )


def multi_head(rng: Rng) -> Case:
    """MultiHeadAttention in all its layouts."""
    dtype = _dtype(rng)
    new = _floats(rng, dtype)
    batch, heads, size = int(rng.integers(1, 4)), _one(rng, 1, 2, 3), _one(rng, 8, 16)
    length = int(rng.integers(1, 6))
    layout = _one(rng, "apart", "apart", "packed", "packed keys", "cross", "past", "past in a buffer")
    keys = length if layout in ("packed", "past", "past in a buffer") else int(rng.integers(1, 7))
    value_size = _one(rng, size, 4) if layout == "apart" else size
    width, value_width = heads * size, heads * value_size
    inputs: dict[str, Array | None] = {"query": new(batch, length, width), "key": None, "value": None}
    if layout == "packed":
        inputs["query"] = new(batch, length, heads, 3, size)
    elif layout == "packed keys":
        inputs["key"] = new(batch, keys, heads, 2, size)
    elif layout == "cross":
        inputs |= {"key": new(batch, heads, keys, size), "value": new(batch, heads, keys, value_size)}
    else:
        inputs |= {"key": new(batch, keys, width), "value": new(batch, keys, value_width)}
    with_bias = layout not in ("packed", "packed keys") and rng.random() < 0.3
    inputs["bias"] = new(2 * width + value_width) if with_bias else None
    if layout == "cross" and inputs["bias"] is not None:  # keys and values have theirs
        inputs["bias"][width:] = 0
    past = 5 if layout == "past" else 3 if layout == "past in a buffer" else 0
    total = past + keys
    masks: dict[str, Callable[[], Array | None]] = {
        "none": lambda: None,
        "lengths": lambda: rng.integers(1, keys + 1, batch).astype(np.int32),
        "keys": lambda: _ones_first(rng, (batch, total)),
        "queries": lambda: _ones_first(rng, (batch, length, total)),
    }
    allowed = ["none", "none", "keys", "queries"] if past else ["none", "none", "lengths", "keys", "queries"]
    inputs["key_padding_mask"] = masks[_one(rng, *allowed)]()
    inputs["attention_bias"] = _maybe(rng, lambda: new(_one(rng, 1, batch), _one(rng, 1, heads), length, total))
    room = {"past": 5, "past in a buffer": 11}.get(layout, 0)
    inputs["past_key"] = new(batch, heads, room, size) if room else None
    inputs["past_value"] = new(batch, heads, room, value_size) if room else None
    inputs["past_sequence_length"] = np.array([past], np.int32) if layout == "past in a buffer" else None
    outputs = ["y"]
    if layout != "cross" and (room or rng.random() < 0.3):
        outputs = ["y", "present_key", "present_value"]
    if rng.random() < 0.25:
        outputs = [*outputs, *[""] * (3 - len(outputs)), "qk"]
    attributes = {"num_heads": heads} | _drop(
        {
            "unidirectional": (int(length == total and rng.random() < 0.4), 0),
            "scale": (_one(rng, 0.0, 0.3), 0.0),
            "mask_filter_value": (_one(rng, -10000.0, -5.0), -10000.0),
        }
    )
    filled = {n: (lambda t: t[:, :, :total]) for n in ("present_key", "present_value")}
    constants = ("past_sequence_length",) if rng.random() < 0.5 else ()
    return Case("MultiHeadAttention", MICROSOFT, 21, inputs, outputs, attributes, dtype, constants, filled)


def _ones_first(rng: Rng, shape: tuple[int, ...]) -> Array:
    """Masks of 1s, then 0s."""
    counts = rng.integers(1, shape[-1] + 1, (*shape[:-1], 1))
    return (np.arange(shape[-1]) < counts).astype(np.int32)


def decoder_masked(rng: Rng) -> Case:
    """DecoderMaskedMultiHeadAttention: one token."""
    dtype = _dtype(rng) if rng.random() < 0.5 else "float32"
    dtype = "float16" if dtype == "bfloat16" else dtype
    new = _floats(rng, dtype)
    heads, size, beams = _one(rng, 1, 2, 3), _one(rng, 8, 16), _one(rng, 1, 1, 2)
    batch = beams * int(rng.integers(1, 3))
    width = heads * size
    cross = rng.random() < 0.3
    past, room, keys = int(rng.integers(1, 8)), 9, 6
    inputs: dict[str, Array | None] = {"query": new(batch, 1, width)}
    if cross:
        inputs |= {"key": new(batch, heads, keys, size), "value": new(batch, heads, keys, size)}
    else:
        inputs |= {"key": new(batch, 1, width), "value": new(batch, 1, width)}
    total = keys if cross else past + 1
    inputs["mask_index"] = _maybe(rng, lambda: _ones_first(rng, (batch, total)))
    # onnxruntime with beams takes the bias of another sequence
    bias_batch = 1 if beams > 1 else batch
    inputs["attention_bias"] = None if cross else _maybe(rng, lambda: new(bias_batch, heads, 1, total))
    inputs["past_key"] = None if cross else new(batch, heads, room, size)
    inputs["past_value"] = None if cross else new(batch, heads, room, size)
    inputs["past_sequence_length"] = None if cross else np.array([past], np.int32)
    indirect = not cross and (beams > 1 or rng.random() < 0.3)
    inputs["beam_width"] = np.array([beams], np.int32) if indirect else None
    inputs["cache_indirection"] = (
        rng.integers(0, beams, (batch // beams, beams, room)).astype(np.int32) if indirect else None
    )
    inputs["bias"] = _maybe(rng, lambda: new(3 * width))
    if cross and inputs["bias"] is not None:
        inputs["bias"][width:] = 0
    scores = rng.random() < 0.3
    outputs = ["y"] if cross else ["y", "present_key", "present_value"]
    outputs += [*[""] * (3 - len(outputs)), "qk"] if scores else []
    attributes = {"num_heads": heads, "past_present_share_buffer": int(not cross), "output_qk": int(scores)}
    attributes |= _drop({"scale": (_one(rng, 0.0, 0.3), 0.0)})
    part = {n: (lambda t: t[:, :, :total]) for n in ("present_key", "present_value")}
    part["qk"] = lambda t: t[..., :total]
    constants = ("past_sequence_length",) if rng.random() < 0.5 else ()
    return Case("DecoderMaskedMultiHeadAttention", MICROSOFT, 21, inputs, outputs, attributes, dtype, constants, part)


def self_attention(rng: Rng) -> Case:
    """com.microsoft's Attention."""
    dtype = _dtype(rng) if rng.random() < 0.5 else "float32"
    new = _floats(rng, dtype)
    batch, heads, size, length, features = (
        int(rng.integers(1, 4)),
        _one(rng, 1, 2),
        _one(rng, 8, 16),
        int(rng.integers(1, 6)),
        12,
    )
    value_size = _one(rng, size, size, 4)
    sizes = [heads * size, heads * size, heads * value_size]
    past = _one(rng, 0, 0, 3) if value_size == size else 0
    total = past + length
    masks: list[Callable[[], Array | None]] = [
        lambda: None,
        lambda: _ones_first(rng, (batch, total)),
        lambda: _ones_first(rng, (batch, length, total)),
        lambda: rng.integers(1, total + 1, batch).astype(np.int32),
        lambda: np.concatenate([np.full(batch, total), rng.integers(0, total, batch)]).astype(np.int32),
        lambda: np.broadcast_to(
            np.tril(np.ones((total + 2, total + 2), np.int32)), (batch, 1, total + 2, total + 2)
        ).copy(),
    ]
    inputs: dict[str, Array | None] = {
        "input": new(batch, length, features),
        "weights": new(features, sum(sizes)) * FLOATS[dtype](0.3),
        "bias": _maybe(rng, lambda: new(sum(sizes)), 0.7),
        "mask_index": _one(rng, *masks)(),
        "past": new(2, batch, heads, past, size) if past else None,
        "attention_bias": None
        if past
        else _maybe(rng, lambda: new(_one(rng, 1, batch), _one(rng, 1, heads), length, total)),
    }
    attributes = {"num_heads": heads} | _drop(
        {
            "unidirectional": (_one(rng, 0, 1), 0),
            "scale": (_one(rng, 0.0, 0.3), 0.0),
            "mask_filter_value": (_one(rng, -10000.0, -5.0), -10000.0),
        }
    )
    if value_size != size:
        attributes["qkv_hidden_sizes"] = sizes
    outputs = ["y", "present"] if value_size == size and (past or rng.random() < 0.3) else ["y"]
    return Case(
        "Attention", MICROSOFT, 21, inputs, outputs, attributes, dtype, ("weights",) if rng.random() < 0.5 else ()
    )


def standard(rng: Rng) -> Case:
    """ai.onnx Attention 23 and 24."""
    dtype = _dtype(rng)
    new = _floats(rng, dtype)
    opset = _one(rng, 23, 24)
    batch, kv_heads, group, size = int(rng.integers(1, 4)), _one(rng, 1, 2, 3), _one(rng, 1, 2, 3), _one(rng, 8, 16)
    heads, value_size, length = kv_heads * group, _one(rng, size, 4), int(rng.integers(1, 6))
    keys, past = int(rng.integers(1, 7)), _one(rng, 0, 0, 4)
    total = keys + past
    flat = rng.random() < 0.5

    def part(count: int, rows: int, width: int) -> Array:
        return new(batch, rows, count * width) if flat else new(batch, count, rows, width)

    causal = _one(rng, 0, 1)
    shapes = [(length, total), (1, 1, length, total), (batch, heads, length, total), (batch, 1, length, total)]
    if not causal:  # onnx's evaluator lets such a mask's one row hide keys for all queries
        shapes += [(1, heads, 1, total), (1, total)]
    shape = _one(rng, *shapes)
    mask: Callable[[], Array | None] = _one(
        rng,
        lambda: None,
        lambda: None,
        lambda: new(*shape),
        lambda: rng.random(shape) > 0.3,
    )
    inputs: dict[str, Array | None] = {
        "Q": part(heads, length, size),
        "K": part(kv_heads, keys, size),
        "V": part(kv_heads, keys, value_size),
        "attn_mask": mask(),
        "past_key": new(batch, kv_heads, past, size) if past else None,
        "past_value": new(batch, kv_heads, past, value_size) if past else None,
    }
    if opset == 24 and not past and rng.random() < 0.3:
        inputs["nonpad_kv_seqlen"] = rng.integers(min(length, keys), keys + 1, batch).astype(np.int64)
    attributes = _drop(
        {
            "is_causal": (causal, 0),
            "scale": (_one(rng, None, 0.3), None),
            "softcap": (_one(rng, 0.0, 0.0, 1.5), 0.0),
            "softmax_precision": (_one(rng, None, None, 1), None),
        }
    )
    if flat:
        attributes |= {"q_num_heads": heads, "kv_num_heads": kv_heads}
    outputs = ["y", "present_key", "present_value"] if past or rng.random() < 0.2 else ["y"]
    if rng.random() < 0.4:
        mode = _one(rng, *range(int("softcap" in attributes), 4))  # its mode 0 has the soft cap in it
        attributes |= _drop({"qk_matmul_output_mode": (mode, 0)})
        outputs = [*outputs, *[""] * (3 - len(outputs)), "qk"]
    return Case("Attention", "", opset, inputs, outputs, attributes, dtype)


def rotary(rng: Rng) -> Case:
    """RotaryEmbedding of both domains."""
    dtype = _dtype(rng)
    new = _floats(rng, dtype)
    batch, heads, length, size = int(rng.integers(1, 4)), _one(rng, 1, 2, 3), int(rng.integers(1, 6)), _one(rng, 8, 16)
    domain = _one(rng, "", MICROSOFT)
    flat = rng.random() < 0.5
    width = _one(rng, size, size // 2)
    cos, sin = _tables(rng, 16, width // 2, dtype)
    x = new(batch, length, heads * size) if flat else new(batch, heads, length, size)
    ids = rng.integers(0, 16, (batch, length)).astype(np.int64)
    attributes = _drop({"interleaved": (_one(rng, 0, 1), 0)})
    if domain:
        if width != size:
            attributes |= {"rotary_embedding_dim": width, "num_heads": heads}
        elif rng.random() < 0.5:
            attributes |= {"num_heads": heads} if rng.random() < 0.5 else {}
        first = rng.random() < 0.4
        asked: dict[str, Array | None] = {
            "x": x,
            "position_ids": np.array([3], np.int64) if first else ids,
            "cos_cache": cos,
            "sin_cache": sin,
        }
        return Case("RotaryEmbedding", domain, 21, asked, ["y"], attributes, dtype)
    attributes |= {"rotary_embedding_dim": width} if width != size else {}
    attributes |= {"num_heads": heads} if flat else {}
    given: dict[str, Array | None] = {"x": x, "cos_cache": cos, "sin_cache": sin, "position_ids": ids}
    if rng.random() < 0.4:
        given |= {"cos_cache": cos[ids], "sin_cache": sin[ids], "position_ids": None}
    return Case("RotaryEmbedding", domain, 23, given, ["y"], attributes, dtype)


OPERATORS: dict[str, Callable[[Rng], Case]] = {
    "GroupQueryAttention": grouped,
    "MultiHeadAttention": multi_head,
    "DecoderMaskedMultiHeadAttention": decoder_masked,
    "com.microsoft.Attention": self_attention,
    "Attention": standard,
    "RotaryEmbedding": rotary,
}
