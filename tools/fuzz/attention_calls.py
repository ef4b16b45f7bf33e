"""Calls of the attention operators, drawn from what each input and attribute may be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
    """One call: inputs in order (None: absent), the outputs' names ("": absent), and which elements of the outputs are
    defined."""

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
    #: caches are bound in place: a present is written to its past's tensor, where it has the past's shape
    in_place: bool = False
    #: the inputs of runs before it
    before: Sequence[Mapping[str, Array]] = ()

    @property
    def text(self) -> str:
        """The call on one line."""
        shapes = {n: f"{v.dtype}{list(v.shape)}" for n, v in self.inputs.items() if v is not None}
        where = " in place" if self.in_place else ""
        return f"{self.domain or 'ai.onnx'}.{self.op}-{self.opset}{where} {self.attributes} {shapes} -> {self.outputs}"

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
            if result.name == "qk":  # its type may differ
                element = TensorProto.FLOAT if wide else helper.np_dtype_to_tensor_dtype(np.dtype(FLOATS[self.dtype]))
                result.CopyFrom(helper.make_tensor_value_info("qk", element, None))
        graph = helper.make_graph([node], "call", inputs, results, weights)
        opsets = [helper.make_opsetid("", self.opset)]
        opsets += [helper.make_opsetid(self.domain, 1)] if self.domain else []
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def feeds(self, wide: bool = False) -> dict[str, Array]:
        """The inputs of a run."""
        return {n: v for n, v in self.values(wide).items() if n not in self.constants}


def maybe(rng: Rng, value: Callable[[], Any], chance: float = 0.3) -> Any:
    return value() if rng.random() < chance else None


def one_of(rng: Rng, *values: Any) -> Any:
    return values[rng.integers(len(values))]


def floats_of(rng: Rng, dtype: str) -> Callable[..., Array]:
    return lambda *shape: rng.normal(0, 1, shape).astype(np.float32).astype(FLOATS[dtype])


def a_dtype(rng: Rng) -> str:
    return str(one_of(rng, "float32", "float32", "float16", "bfloat16"))


def tables(rng: Rng, rows: int, half: int, dtype: str) -> tuple[Array, Array]:
    angles = np.outer(np.arange(rows), 1.0 / 100.0 ** (np.arange(half) / half))
    return np.cos(angles).astype(FLOATS[dtype]), np.sin(angles).astype(FLOATS[dtype])


def without_defaults(options: Mapping[str, tuple[Any, Any]]) -> dict[str, Any]:
    """The attributes without those that have their default value, from pairs of a value and a default."""
    return {name: value for name, (value, default) in options.items() if value != default}


# ---- the operators


def multi_head(rng: Rng) -> Case:
    """MultiHeadAttention in all its layouts."""
    dtype = a_dtype(rng)
    new = floats_of(rng, dtype)
    batch, heads, size = int(rng.integers(1, 4)), one_of(rng, 1, 2, 3), one_of(rng, 8, 16)
    length = int(rng.integers(1, 6))
    layout = one_of(rng, "apart", "apart", "packed", "packed keys", "cross", "past", "past in a buffer")
    keys = length if layout in ("packed", "past", "past in a buffer") else int(rng.integers(1, 7))
    value_size = one_of(rng, size, 4) if layout == "apart" else size
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
    if layout == "cross" and inputs["bias"] is not None:  # keys and values have their own bias
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
    inputs["key_padding_mask"] = masks[one_of(rng, *allowed)]()
    inputs["attention_bias"] = maybe(rng, lambda: new(one_of(rng, 1, batch), one_of(rng, 1, heads), length, total))
    room = {"past": 5, "past in a buffer": 11}.get(layout, 0)
    inputs["past_key"] = new(batch, heads, room, size) if room else None
    inputs["past_value"] = new(batch, heads, room, value_size) if room else None
    inputs["past_sequence_length"] = np.array([past], np.int32) if layout == "past in a buffer" else None
    outputs = ["y"]
    if layout != "cross" and (room or rng.random() < 0.3):
        outputs = ["y", "present_key", "present_value"]
    if rng.random() < 0.25:
        outputs = [*outputs, *[""] * (3 - len(outputs)), "qk"]
    attributes = {"num_heads": heads} | without_defaults(
        {
            "unidirectional": (int(length == total and rng.random() < 0.4), 0),
            "scale": (one_of(rng, 0.0, 0.3), 0.0),
            "mask_filter_value": (one_of(rng, -10000.0, -5.0), -10000.0),
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
    """DecoderMaskedMultiHeadAttention with one new token."""
    dtype = a_dtype(rng) if rng.random() < 0.5 else "float32"
    dtype = "float16" if dtype == "bfloat16" else dtype
    new = floats_of(rng, dtype)
    heads, size, beams = one_of(rng, 1, 2, 3), one_of(rng, 8, 16), one_of(rng, 1, 1, 2)
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
    inputs["mask_index"] = maybe(rng, lambda: _ones_first(rng, (batch, total)))
    # onnxruntime with beams takes the bias of another sequence
    bias_batch = 1 if beams > 1 else batch
    inputs["attention_bias"] = None if cross else maybe(rng, lambda: new(bias_batch, heads, 1, total))
    inputs["past_key"] = None if cross else new(batch, heads, room, size)
    inputs["past_value"] = None if cross else new(batch, heads, room, size)
    inputs["past_sequence_length"] = None if cross else np.array([past], np.int32)
    indirect = not cross and (beams > 1 or rng.random() < 0.3)
    inputs["beam_width"] = np.array([beams], np.int32) if indirect else None
    inputs["cache_indirection"] = (
        rng.integers(0, beams, (batch // beams, beams, room)).astype(np.int32) if indirect else None
    )
    inputs["bias"] = maybe(rng, lambda: new(3 * width))
    if cross and inputs["bias"] is not None:
        inputs["bias"][width:] = 0
    scores = rng.random() < 0.3
    outputs = ["y"] if cross else ["y", "present_key", "present_value"]
    outputs += [*[""] * (3 - len(outputs)), "qk"] if scores else []
    attributes = {"num_heads": heads, "past_present_share_buffer": int(not cross), "output_qk": int(scores)}
    attributes |= without_defaults({"scale": (one_of(rng, 0.0, 0.3), 0.0)})
    part = {n: (lambda t: t[:, :, :total]) for n in ("present_key", "present_value")}
    part["qk"] = lambda t: t[..., :total]
    constants = ("past_sequence_length",) if rng.random() < 0.5 else ()
    return Case("DecoderMaskedMultiHeadAttention", MICROSOFT, 21, inputs, outputs, attributes, dtype, constants, part)


def self_attention(rng: Rng) -> Case:
    """com.microsoft's Attention."""
    dtype = a_dtype(rng) if rng.random() < 0.5 else "float32"
    new = floats_of(rng, dtype)
    batch, heads, size, length, features = (
        int(rng.integers(1, 4)),
        one_of(rng, 1, 2),
        one_of(rng, 8, 16),
        int(rng.integers(1, 6)),
        12,
    )
    value_size = one_of(rng, size, size, 4)
    sizes = [heads * size, heads * size, heads * value_size]
    past = one_of(rng, 0, 0, 3) if value_size == size else 0
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
        "bias": maybe(rng, lambda: new(sum(sizes)), 0.7),
        "mask_index": one_of(rng, *masks)(),
        "past": new(2, batch, heads, past, size) if past else None,
        "attention_bias": None
        if past
        else maybe(rng, lambda: new(one_of(rng, 1, batch), one_of(rng, 1, heads), length, total)),
    }
    attributes = {"num_heads": heads} | without_defaults(
        {
            "unidirectional": (one_of(rng, 0, 1), 0),
            "scale": (one_of(rng, 0.0, 0.3), 0.0),
            "mask_filter_value": (one_of(rng, -10000.0, -5.0), -10000.0),
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
    dtype = a_dtype(rng)
    new = floats_of(rng, dtype)
    opset = one_of(rng, 23, 24)
    batch, kv_heads, group, size = (
        int(rng.integers(1, 4)),
        one_of(rng, 1, 2, 3),
        one_of(rng, 1, 2, 3),
        one_of(rng, 8, 16),
    )
    heads, value_size, length = kv_heads * group, one_of(rng, size, 4), int(rng.integers(1, 6))
    keys, past = int(rng.integers(1, 7)), one_of(rng, 0, 0, 4)
    total = keys + past
    flat = rng.random() < 0.5

    def part(count: int, rows: int, width: int) -> Array:
        return new(batch, rows, count * width) if flat else new(batch, count, rows, width)

    causal = one_of(rng, 0, 1)
    shapes = [(length, total), (1, 1, length, total), (batch, heads, length, total), (batch, 1, length, total)]
    if not causal:  # onnx's evaluator lets such a mask's one row hide keys for all queries
        shapes += [(1, heads, 1, total), (1, total)]
    shape = one_of(rng, *shapes)
    mask: Callable[[], Array | None] = one_of(
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
    attributes = without_defaults(
        {
            "is_causal": (causal, 0),
            "scale": (one_of(rng, None, 0.3), None),
            "softcap": (one_of(rng, 0.0, 0.0, 1.5), 0.0),
            "softmax_precision": (one_of(rng, None, None, 1), None),
        }
    )
    if flat:
        attributes |= {"q_num_heads": heads, "kv_num_heads": kv_heads}
    outputs = ["y", "present_key", "present_value"] if past or rng.random() < 0.2 else ["y"]
    if rng.random() < 0.4:
        mode = one_of(rng, *range(int("softcap" in attributes), 4))  # in its mode 0 the output includes the soft cap
        attributes |= without_defaults({"qk_matmul_output_mode": (mode, 0)})
        outputs = [*outputs, *[""] * (3 - len(outputs)), "qk"]
    return Case("Attention", "", opset, inputs, outputs, attributes, dtype)


def rotary(rng: Rng) -> Case:
    """RotaryEmbedding of both domains."""
    dtype = a_dtype(rng)
    new = floats_of(rng, dtype)
    batch, heads, length, size = (
        int(rng.integers(1, 4)),
        one_of(rng, 1, 2, 3),
        int(rng.integers(1, 6)),
        one_of(rng, 8, 16),
    )
    domain = one_of(rng, "", MICROSOFT)
    flat = rng.random() < 0.5
    width = one_of(rng, size, size // 2)
    cos, sin = tables(rng, 16, width // 2, dtype)
    x = new(batch, length, heads * size) if flat else new(batch, heads, length, size)
    ids = rng.integers(0, 16, (batch, length)).astype(np.int64)
    attributes = without_defaults({"interleaved": (one_of(rng, 0, 1), 0)})
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
