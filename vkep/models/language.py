"""Small language models with random weights, in the folders that onnxruntime-genai's builder and optimum write.

    vkep model decoder -o FOLDER --architecture llama --precision int4 --size layers=4 --size hidden=512

The graphs have the builder's form: packed projections, GroupQueryAttention with its tables of angles, norms with the sum before
them, MatMulNBits for weights of 4 bits, MoE. Those of `OPTIMUM` have torch's form: caches that grow by Concat, attention in plain
operators.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from vkep.models.builder import IR_VERSION, OPSET, Array, GraphBuilder

MICROSOFT = "com.microsoft"
BLOCK = 32
#: float32; float16; weights of 4 bits in a model of float32, and of float16
PRECISIONS = ("fp32", "fp16", "int4", "int4-fp16")
#: most numbers that a weight draws: a larger one repeats them along its last axis, so that large models are made in seconds
DRAWN = 1 << 22
#: ids of the special tokens
PAD, BEGIN, END = 256, 257, 258
TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@dataclass(frozen=True)
class Language:
    """An architecture and its sizes."""

    kind: str = "llama"
    layers: int = 2
    hidden: int = 64
    heads: int = 4
    kv_heads: int = 2
    size: int = 16  #: features of a head
    wide: int = 128  #: width of the feed-forward part
    vocabulary: int = 320
    context: int = 256
    base: float = 10000.0  #: base of the angles (theta)
    biased: bool = False  #: the projections of attention have a bias
    head_norm: bool = False  #: queries and keys are normalized
    activation: str = "silu"
    post_norm: bool = False  #: results of attention and of the feed-forward part are normalized too
    embedding_scale: float = 1.0
    softcap: float = 0.0  #: soft cap of attention's scores
    logit_cap: float = 0.0
    window: int = 0  #: number of keys that even layers see; 0: all
    sinks: bool = False
    experts: int = 0
    rotated: float = 1.0  #: share of a head's features that are rotated by the position
    cache_bits: int = 0  #: bits of a quantized cache's numbers, 8 or 4; 0: floats
    sections: tuple[
        int, ...
    ] = ()  #: of half a head's features, those that each of a position's numbers turns (Qwen2-VL)
    latent: int = 0  #: size of the latent vector of keys and values (DeepSeek); 0: none


ARCHITECTURES = {
    "llama": Language(),
    "mistral": Language("mistral", window=16),
    "smollm": Language("smollm", heads=3, kv_heads=1, hidden=48),
    "qwen2": Language("qwen2", biased=True),
    "qwen3": Language("qwen3", head_norm=True, size=32),
    "gemma2": Language(
        "gemma2",
        activation="gelu",
        post_norm=True,
        embedding_scale=8.0,
        softcap=50.0,
        logit_cap=30.0,
        window=16,
    ),
    "gemma3": Language(
        "gemma3_text", head_norm=True, activation="gelu", post_norm=True, embedding_scale=8.0, window=16
    ),
    "phi3": Language("phi3", kv_heads=4),
    "phi4": Language("phi3", rotated=0.5, size=32),
    "mixtral": Language("mixtral", experts=4),
    "gptoss": Language("gptoss", biased=True, window=16, sinks=True, experts=4),
    "deepseek": Language("deepseek_v3", kv_heads=4, latent=24),
    "gpt2": Language("gpt2", kv_heads=4),
}
#: architectures whose graph has the form that optimum exports
OPTIMUM = {"deepseek", "gpt2"}


class Writer(GraphBuilder):
    """Adds what language models have to the graph."""

    def __init__(self, name: str, language: Language, precision: str) -> None:
        super().__init__(name, float16=precision.endswith("fp16"))
        self.language, self.packed = language, precision.startswith("int4")

    def contrib(self, op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> list[str]:
        """The results of an operator of com.microsoft."""
        return self.add_many(op, *inputs, outputs=outputs, domain=MICROSOFT, **attributes)

    def product(self, x: str, name: str, n_in: int, n_out: int, bias: bool = False) -> str:
        """``x @ W``, in 4 bits where the model is."""
        drawn = min(n_out, max(1, DRAWN // n_in))
        weight = self.weight(f"{name}.weight", (n_in, drawn), 1.5 * n_in**-0.5)
        if self.packed and n_in % BLOCK == 0:
            codes, scales = packed(weight.T)
            codes, scales = np.resize(codes, (n_out, *codes.shape[1:])), np.resize(scales, n_out * (n_in // BLOCK))
            stored = [self._stored(f"{name}.codes", codes), self.constant(f"{name}.scales", scales)]
            [x] = self.contrib("MatMulNBits", x, *stored, K=n_in, N=n_out, bits=4, block_size=BLOCK, accuracy_level=0)
        else:
            x = self.add("MatMul", x, self.constant(f"{name}.weight", np.resize(weight.T, (n_out, n_in)).T))
        if not bias:
            return x
        return self.add("Add", x, self.constant(f"{name}.bias", self.weight(f"{name}.bias", (n_out,), 0.1)))

    def _stored(self, name: str, array: Array) -> str:
        self.initializers[name] = onnx.numpy_helper.from_array(array, name)
        return name

    def scale(self, name: str, size: int) -> str:
        """The factors of a norm, near 1."""
        return self.constant(f"{name}.weight", 1 + self.weight(f"{name}.weight", (size,), 0.1))

    def norm(self, x: str, name: str, size: int) -> str:
        """Division by the root mean square."""
        scale = self.scale(name, size)
        return self.add("SimplifiedLayerNormalization", x, scale, axis=-1, epsilon=1e-6, stash_type=1)

    def added_norm(self, x: str, more: str, name: str) -> tuple[str, str]:
        """The norm of a sum, and the sum."""
        scale = self.scale(name, self.language.hidden)
        outputs = self.contrib("SkipSimplifiedLayerNormalization", x, more, scale, outputs=4, epsilon=1e-6)
        self.nodes[-1].output[1] = self.nodes[-1].output[2] = ""
        return outputs[0], outputs[3]

    def experts(self, x: str, name: str) -> str:
        """Each token is processed by the two experts that a router chooses."""
        lang = self.language
        router = self.product(x, f"{name}.router", lang.hidden, lang.experts)
        router = self.add("Reshape", router, self.constant("router_shape", [-1, lang.experts]))
        parts: list[str] = []
        for part, n_out, n_in in (("up", 2 * lang.wide, lang.hidden), ("down", lang.hidden, lang.wide)):
            full = f"{name}.experts.{part}"
            parts.append(self.constant(full, self.weight(full, (lang.experts, n_out, n_in), 1.5 * n_in**-0.5)))
            bias = self.weight(f"{full}.bias", (lang.experts, n_out), 0.1)
            parts.append(self.constant(f"{full}.bias", bias) if lang.biased else "")
        settings: dict[str, Any] = {
            "k": 2,
            "normalize_routing_weights": 1,
            "activation_type": "swiglu",
            "swiglu_fusion": 1,
        }
        if lang.sinks:  # gpt-oss's gate
            settings |= {"activation_alpha": 1.702, "activation_beta": 1.0, "swiglu_limit": 7.0}
        else:
            settings |= {"activation_alpha": 1.0, "activation_beta": 0.0}
        [y] = self.contrib("MoE", x, router, *parts, **settings)
        return y

    def finished(self) -> onnx.ModelProto:
        """The model."""
        graph = helper.make_graph(self.nodes, self.name, self.inputs, self.outputs, list(self.initializers.values()))
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="vkep.models")


def packed(weight: Array) -> tuple[Array, Array]:
    """Weights [n, k] as MatMulNBits has them: codes uint8 [n, k / BLOCK, BLOCK / 2], scales float32 [n * k / BLOCK]."""
    n, k = weight.shape
    blocks = weight.reshape(n, k // BLOCK, BLOCK)
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(-1)[..., None], -1)
    scales = np.where(largest == 0, 1, largest / -8).astype(np.float32)
    codes = np.clip(np.rint(blocks / scales) + 8, 0, 15).astype(np.uint8)
    return codes[..., ::2] | codes[..., 1::2] << 4, scales.reshape(-1)


def _embeddings(w: Writer) -> str:
    """The embeddings of the input ``input_ids``."""
    language = w.language
    ids = w.input("input_ids", ["batch", "length"], TensorProto.INT64)
    drawn = min(language.vocabulary, max(1, DRAWN // language.hidden))
    table = w.weight("embeddings.weight", (drawn, language.hidden), 1.0)
    table = np.resize(table, (language.vocabulary, language.hidden))
    x = w.add("Gather", w.constant("embeddings.weight", table), ids)
    if language.embedding_scale != 1:
        x = w.add("Mul", x, w.constant("embedding_scale", language.embedding_scale))
    return x


def embeddings_model(language: Language, precision: str = "fp32") -> onnx.ModelProto:
    """The embeddings of a `language_model` that reads them."""
    w = Writer("embeddings", language, precision)
    w.output(_embeddings(w), "inputs_embeds", ["batch", "length", language.hidden])
    return w.finished()


def language_model(language: Language, precision: str = "fp32", *, reads_embeddings: bool = False) -> onnx.ModelProto:
    """The model of an architecture; it reads tokens, or the embeddings of `embeddings_model`."""
    w = Writer(language.kind, language, precision)
    if reads_embeddings:
        x = w.input("inputs_embeds", ["batch", "length", language.hidden])
    else:
        x = _embeddings(w)
    mask = w.input("attention_mask", ["batch", "total"], TensorProto.INT64)
    attention = _torch_attention if language.kind in {ARCHITECTURES[n].kind for n in OPTIMUM} else _grouped_attention
    shared = _positions(w, x, mask) if attention is _torch_attention else _lengths(w, mask)
    normed = w.norm(x, "layers.0.norm", language.hidden)
    for layer in range(language.layers):
        y = attention(w, normed, layer, shared)
        if language.post_norm:
            y = w.norm(y, f"layers.{layer}.attention_norm", language.hidden)
        normed, x = w.added_norm(x, y, f"layers.{layer}.product_norm")
        y = _products(w, normed, f"layers.{layer}")
        if language.post_norm:
            y = w.norm(y, f"layers.{layer}.products_norm", language.hidden)
        normed, x = w.added_norm(x, y, f"layers.{layer + 1}.norm")
    logits = w.product(normed, "head", language.hidden, language.vocabulary)
    if language.logit_cap:
        cap = w.constant("logit_cap", language.logit_cap)
        logits = w.add("Mul", w.add("Tanh", w.add("Div", logits, cap)), cap)
    w.output(logits, "logits", ["batch", "length", language.vocabulary])
    return w.finished()


def _products(w: Writer, x: str, name: str) -> str:
    lang = w.language
    if lang.experts:
        return w.experts(x, name)
    gate = w.product(x, f"{name}.gate", lang.hidden, lang.wide)
    up = w.product(x, f"{name}.up", lang.hidden, lang.wide)
    if lang.activation == "gelu":
        [gate] = w.contrib("FastGelu", gate)
    else:
        gate = w.add("Mul", gate, w.add("Sigmoid", gate))
    return w.product(w.add("Mul", gate, up), f"{name}.down", lang.wide, lang.hidden)


def _lengths(w: Writer, mask: str) -> list[str]:
    """GroupQueryAttention's inputs from the mask, and its tables of angles."""
    lang, one = w.language, w.constant("one", [1])
    last = w.add("Sub", w.add("ReduceSum", mask, one, keepdims=0), one)
    total = w.add("Gather", w.add("Shape", mask), w.constant("one_index", np.asarray(1)))
    casts = [w.add("Cast", value, to=TensorProto.INT32) for value in (last, total)]
    turned = int(lang.size * lang.rotated)
    angles = np.outer(np.arange(lang.context), lang.base ** -(np.arange(0, turned, 2) / turned))
    return [*casts, w.constant("cos", np.cos(angles)), w.constant("sin", np.sin(angles))]


#: the type of a quantized cache's elements by the bits of a number, and the greatest number
_QUANTIZED = {8: (TensorProto.INT8, 127), 4: (TensorProto.UINT8, 7)}


def _width_and_type(w: Writer, size: int) -> tuple[int, int | None]:
    """The last size of a cache for ``size`` features of a head, and its type; None: the model's floats."""
    bits = w.language.cache_bits
    return (size * bits // 8, int(_QUANTIZED[bits][0])) if bits else (size, None)


def _cache(w: Writer, layer: int, size: int, kv_heads: int) -> list[str]:
    width, kind = _width_and_type(w, size)
    shape: list[int | str] = ["batch", kv_heads, "past", width]
    return [w.input(f"past_key_values.{layer}.{part}", shape, kind) for part in ("key", "value")]


def _keep(w: Writer, layer: int, values: list[str], size: int, kv_heads: int) -> None:
    width, kind = _width_and_type(w, size)
    for part, value in zip(("key", "value"), values, strict=True):
        w.output(value, f"present.{layer}.{part}", ["batch", kv_heads, "total", width], kind)


def _grouped_attention(w: Writer, x: str, layer: int, shared: list[str]) -> str:
    lang, name = w.language, f"layers.{layer}"
    rows, kv_rows = lang.heads * lang.size, lang.kv_heads * lang.size
    qkv = [w.product(x, f"{name}.qkv", lang.hidden, rows + 2 * kv_rows, lang.biased), "", ""]
    if lang.head_norm:
        sizes = w.constant("qkv_sizes", [rows, kv_rows, kv_rows])
        qkv = w.add_many("Split", qkv[0], sizes, outputs=3, axis=-1)
        for place, heads in ((0, lang.heads), (1, lang.kv_heads)):
            apart = w.add("Reshape", qkv[place], w.constant(f"apart_{heads}", [0, -1, heads, lang.size]))
            apart = w.norm(apart, f"{name}.head_norm.{place}", lang.size)
            qkv[place] = w.add("Reshape", apart, w.constant(f"merged_{heads}", [0, -1, heads * lang.size]))
    past = _cache(w, layer, lang.size, lang.kv_heads)
    sink = [w.constant(f"{name}.sinks", w.weight(f"{name}.sinks", (lang.heads,), 1.0))] if lang.sinks else []
    settings: dict[str, Any] = {"num_heads": lang.heads, "kv_num_heads": lang.kv_heads, "do_rotary": 1}
    if lang.window and layer % 2 == 0:
        settings["local_window_size"] = lang.window
    if lang.softcap:
        settings["softcap"] = lang.softcap
    more = ["", "", *sink] if sink else []
    if lang.cache_bits:
        settings |= {"kv_cache_bit_width": lang.cache_bits, "k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR"}
        scale = w._stored("cache_scale", np.array([6 / _QUANTIZED[lang.cache_bits][1]], np.float32))
        more = ["", "", *(sink or [""]), scale, scale]
    y, *present = w.contrib("GroupQueryAttention", *qkv, *past, *shared, *more, outputs=3, **settings)
    _keep(w, layer, present, lang.size, lang.kv_heads)
    return w.product(y, f"{name}.out", rows, lang.hidden, lang.biased)


def _positions(w: Writer, x: str, mask: str) -> list[str]:
    """Angles of the new tokens [batch, 1, length, size / 2] and the mask's addend to scores [batch, 1, length,
    total]."""
    lang = w.language
    if lang.sections:
        place = w.input("position_ids", [len(lang.sections), "batch", "length"], TensorProto.INT64)
    else:
        place = w.add("Sub", w.add("CumSum", mask, w.constant("axis_1", np.asarray(1))), w.constant("one", [1]))
    length = w.add("Shape", x, start=1, end=2)
    first = w.add("Neg", length)
    if not lang.sections:
        place = w.add("Slice", place, first, w.constant("to_the_end", [2**31 - 1]), w.constant("axis_1_list", [1]))
        place = w.add("Max", place, w.constant("zero", [0]))
    angles = np.outer(np.arange(lang.context), lang.base ** -(np.arange(0, lang.size, 2) / lang.size))
    tables = []
    for name, table in (("cos", np.cos(angles)), ("sin", np.sin(angles))):
        read = w.add("Gather", w.constant(name, table), place)
        if lang.sections:  # arXiv:2409.12191, section 2.1
            parts = w.add_many(
                "Split", read, w.constant("sections", lang.sections), outputs=len(lang.sections), axis=-1
            )
            numbers = [w.constant(f"number_{k}", np.asarray(k)) for k in range(len(parts))]
            parts = [w.add("Gather", part, number) for part, number in zip(parts, numbers, strict=True)]
            read = w.add("Concat", *parts, axis=-1)
        tables.append(w.add("Unsqueeze", read, w.constant("axis_1_list", [1])))
    total = w.add("Shape", mask, start=1, end=2)
    every = w.add(
        "Range",
        w.constant("zero_index", np.asarray(0)),
        w.add("Squeeze", total),
        w.constant("one_index", np.asarray(1)),
    )
    mine = w.add("Slice", every, first, w.constant("to_the_end", [2**31 - 1]), w.constant("axis_0", [0]))
    sees = w.add("LessOrEqual", every, w.add("Unsqueeze", mine, w.constant("axis_1_list", [1])))
    real = w.add("Cast", w.add("Unsqueeze", mask, w.constant("axes_12", [1, 2])), to=TensorProto.BOOL)
    added = w.add("Where", w.add("And", sees, real), w.constant("seen", 0.0), w.constant("hidden", -1e4))
    return [*tables, added]


def _torch_attention(w: Writer, x: str, layer: int, shared: list[str]) -> str:
    lang, name = w.language, f"layers.{layer}"
    cos, sin, added = shared
    rows = lang.heads * lang.size

    def apart(value: str) -> str:
        shaped = w.add("Reshape", value, w.constant("apart", [0, -1, lang.heads, lang.size]))
        return w.add("Transpose", shaped, perm=[0, 2, 1, 3])

    def turned(value: str) -> str:
        halves = w.constant("halves", [lang.size // 2, lang.size // 2])
        a, b = w.add_many("Split", value, halves, outputs=2, axis=-1)
        left = w.add("Sub", w.add("Mul", a, cos), w.add("Mul", b, sin))
        right = w.add("Add", w.add("Mul", b, cos), w.add("Mul", a, sin))
        return w.add("Concat", left, right, axis=-1)

    q = w.product(x, f"{name}.q", lang.hidden, rows)
    if lang.latent:  # arXiv:2405.04434: what keys and values have in common
        x = w.norm(w.product(x, f"{name}.down_kv", lang.hidden, lang.latent), f"{name}.latent", lang.latent)
    k, v = (w.product(x, f"{name}.{part}", lang.latent or lang.hidden, rows) for part in "kv")
    q, k, v = turned(apart(q)), turned(apart(k)), apart(v)
    present = [
        w.add("Concat", old, new, axis=2)
        for old, new in zip(_cache(w, layer, lang.size, lang.heads), (k, v), strict=True)
    ]
    scores = w.add("MatMul", q, w.add("Transpose", present[0], perm=[0, 1, 3, 2]))
    scores = w.add("Mul", scores, w.constant("scale", lang.size**-0.5))
    y = w.add("MatMul", w.add("Softmax", w.add("Add", scores, added), axis=-1), present[1])
    _keep(w, layer, present, lang.size, lang.heads)
    merged = w.add("Reshape", w.add("Transpose", y, perm=[0, 2, 1, 3]), w.constant("merged", [0, -1, rows]))
    return w.product(merged, f"{name}.out", rows, lang.hidden)


def genai_config(language: Language) -> dict[str, Any]:
    """The configuration that onnxruntime-genai reads."""
    caches = {f"past_{part}_names": f"past_key_values.%d.{part}" for part in ("key", "value")}
    results = {f"present_{part}_names": f"present.%d.{part}" for part in ("key", "value")}
    decoder = {
        "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
        "filename": "model.onnx",
        "head_size": language.size,
        "hidden_size": language.hidden,
        "inputs": {"input_ids": "input_ids", "attention_mask": "attention_mask", **caches},
        "outputs": {"logits": "logits", **results},
        "num_attention_heads": language.heads,
        "num_hidden_layers": language.layers,
        "num_key_value_heads": language.kv_heads,
    }
    model = {
        "type": language.kind,
        "vocab_size": language.vocabulary,
        "context_length": language.context,
        "bos_token_id": BEGIN,
        "eos_token_id": END,
        "pad_token_id": PAD,
        "decoder": decoder,
    }
    return {"model": model, "search": {"do_sample": False, "max_length": language.context}}


def optimum_config(language: Language) -> dict[str, Any]:
    """The configuration that transformers reads."""
    return {
        "model_type": language.kind,
        "vocab_size": language.vocabulary,
        "max_position_embeddings": language.context,
        "hidden_size": language.hidden,
        "num_hidden_layers": language.layers,
        "num_attention_heads": language.heads,
        "eos_token_id": END,
    }


def tokenizer(more: Mapping[str, int] | None = None) -> dict[str, Any]:
    """A tokenizer of bytes, as ``tokenizer.json`` has it: the ids are the bytes, then the special tokens, of which there may be
    ``more``."""
    shown = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
    others = iter(range(256, 512))
    letters = [chr(b) if b in shown else chr(next(others)) for b in range(256)]  # GPT-2's alphabet of bytes
    special = {"<pad>": PAD, "<s>": BEGIN, "</s>": END, **(more or {})}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "added_tokens": [{"id": i, "content": text, **flags} for text, i in special.items()],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [BEGIN], "tokens": ["<s>"]}},
        },
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "vocab": {c: i for i, c in enumerate(letters)} | special, "merges": []},
    }


def write_language(folder: Path, name: str = "llama", precision: str = "fp32", **sizes: Any) -> Language:
    """Write an architecture's folder, with other sizes where given. Returns what was written. Raises ``ValueError`` for
    an unknown architecture or precision."""
    if name not in ARCHITECTURES or precision not in PRECISIONS:
        raise ValueError(
            f"got {name!r} in {precision!r}; expected one of {sorted(ARCHITECTURES)} in one of {PRECISIONS}"
        )
    language = replace(ARCHITECTURES[name], **sizes)
    folder.mkdir(parents=True, exist_ok=True)
    large = language.layers * language.hidden * language.wide > 1 << 22
    data: dict[str, Any] = {"save_as_external_data": True, "location": "model.onnx.data"} if large else {}
    onnx.save(language_model(language, precision), folder / "model.onnx", **data)
    optimum = name in OPTIMUM
    config = optimum_config(language) if optimum else genai_config(language)
    (folder / ("config.json" if optimum else "genai_config.json")).write_text(json.dumps(config, indent=1))
    write_tokenizer(folder)
    return language


def write_tokenizer(folder: Path, more: Mapping[str, int] | None = None, **settings: Any) -> None:
    """Write the files of the tokenizer of bytes, with ``more`` special tokens and a chat template; ``settings`` go into
    tokenizer_config.json."""
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer(more)), encoding="utf-8")
    beside = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "chat_template": TEMPLATE,
        **settings,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(beside), encoding="utf-8")
