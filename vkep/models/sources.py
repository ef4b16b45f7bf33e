"""A small encoder with a decoder and random weights, in the three files that optimum writes of T5 and Whisper."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from vkep.models.language import BEGIN, END, TEMPLATE, Language, Writer, tokenizer

EMBEDS = "inputs_embeds"
SOURCES = Language("t5", hidden=32, heads=2, kv_heads=2, size=16, wide=64, context=64)
MELS, FRAMES = 80, 3000
#: Whisper's tokens after those of `language.tokenizer`: those of times, one for each 0.02 s, follow the last of these
SPEECH = {
    text: END + 1 + k
    for k, text in enumerate(
        ("<|en|>", "<|de|>", "<|fr|>", "<|translate|>", "<|transcribe|>", "<|startofprev|>", "<|notimestamps|>")
    )
}
WHISPER = replace(SOURCES, kind="whisper", vocabulary=SPEECH["<|notimestamps|>"] + 1 + FRAMES // 2 + 1)


def write_sources(folder: Path, kind: str = "t5") -> Language:
    """Write ``kind`` t5, which reads token ids, whisper, which reads features [80, 3000], or moonshine, which reads samples.

    Raises ``ValueError`` for another kind.
    """
    if kind not in ("t5", "whisper", "moonshine"):
        raise ValueError(f"kind is {kind!r}, expected t5, whisper or moonshine")
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(encoder(kind), folder / "encoder_model.onnx")
    for name, first in (("decoder_model", True), ("decoder_with_past_model", False)):
        onnx.save(decoder(kind, first), folder / f"{name}.onnx")
    lang = _language(kind)
    config = {
        "model_type": kind,
        "is_encoder_decoder": True,
        "decoder_start_token_id": BEGIN,
        "eos_token_id": END,
        "max_target_positions": SOURCES.context,
        "vocab_size": lang.vocabulary,
    }
    (folder / "config.json").write_text(json.dumps(config))
    if kind == "whisper":
        (folder / "generation_config.json").write_text(json.dumps(speech_generation()))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer(SPEECH if kind == "whisper" else None)))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return lang


def _language(kind: str) -> Language:
    return WHISPER if kind == "whisper" else SOURCES


def speech_generation() -> dict[str, Any]:
    """``generation_config.json`` of Whisper's form: the ids of languages, of tasks and of the first time."""
    return {
        "decoder_start_token_id": BEGIN,
        "eos_token_id": END,
        "pad_token_id": END,
        "no_timestamps_token_id": SPEECH["<|notimestamps|>"],
        "prev_sot_token_id": SPEECH["<|startofprev|>"],
        "max_initial_timestamp_index": 50,
        "lang_to_id": {name: i for name, i in SPEECH.items() if len(name) == len("<|en|>")},
        "task_to_id": {name: SPEECH[f"<|{name}|>"] for name in ("transcribe", "translate")},
        "is_multilingual": True,
        "return_timestamps": False,
    }


def encoder(kind: str, caches: bool = False) -> onnx.ModelProto:
    """The encoder, which reads token ids, features, samples, or of florence2 embeddings. With ``caches`` it also computes the
    keys and values of the source for each layer of the decoder."""
    w = Writer(f"{kind}_encoder", SOURCES, "fp32")
    if kind not in ("whisper", "moonshine"):
        if kind == "florence2":
            x = w.input(EMBEDS, ["batch", "source", SOURCES.hidden])
        else:
            ids = w.input("input_ids", ["batch", "source"], TensorProto.INT64)
            table = w.weight("source.weight", (SOURCES.vocabulary, SOURCES.hidden), 1.0)
            x = w.add("Gather", w.constant("source.weight", table), ids)
        mask = w.input("attention_mask", ["batch", "source"], TensorProto.INT64)
        real = w.add("Unsqueeze", w.add("Cast", mask, to=TensorProto.FLOAT), w.constant("axis_2", [2]))
        x = w.add("Mul", x, real)
    elif kind == "moonshine":
        samples = w.input("input_values", ["batch", "samples"])
        mask = w.input("attention_mask", ["batch", "samples"], TensorProto.INT64)
        x = w.add("Mul", samples, w.add("Cast", mask, to=TensorProto.FLOAT))
        kernel = w.constant("kernel", w.weight("kernel", (SOURCES.hidden, 1, 400), 0.5))
        frames = w.add(
            "Conv", w.add("Unsqueeze", x, w.constant("axis_1", [1])), kernel, strides=[400], kernel_shape=[400]
        )
        x = w.add("Transpose", frames, perm=[0, 2, 1])
    else:
        features = w.input("audio_features" if caches else "input_features", ["batch", MELS, FRAMES])
        kernel = w.constant("kernel", w.weight("kernel", (SOURCES.hidden, MELS, 3), 0.1))
        frames = w.add("Conv", features, kernel, pads=[1, 1], strides=[50], kernel_shape=[3])
        x = w.add("Transpose", frames, perm=[0, 2, 1])
    x = w.layer_norm(w.add("Tanh", w.product(x, "mixed", SOURCES.hidden, SOURCES.hidden)), "norm", SOURCES.hidden, 1e-6)
    w.output(x, "hidden_states" if caches else "last_hidden_state", ["batch", "states", SOURCES.hidden])
    for layer in range(SOURCES.layers if caches else 0):
        for part in ("key", "value"):
            shaped = w.product("hidden_states", f"{layer}.cross.{part}", SOURCES.hidden, SOURCES.hidden)
            shaped = w.add("Reshape", shaped, w.constant("apart", [0, -1, SOURCES.heads, SOURCES.size]))
            made = w.add("Transpose", shaped, perm=[0, 2, 1, 3])
            w.output(made, f"present_{part}_cross_{layer}", ["batch", SOURCES.heads, "states", SOURCES.size])
    return w.finished()


def decoder(kind: str, first: bool) -> onnx.ModelProto:
    """The decoder of the ``first`` run, or that of later ones."""
    lang = _language(kind)
    w = Writer(f"{kind}_decoder", lang, "fp32")  # one name: both files have the same weights
    if kind == "florence2":
        x = w.input(EMBEDS, ["batch", "length", lang.hidden])
    else:
        ids = w.input("input_ids", ["batch", "length"], TensorProto.INT64)
        x = w.add("Gather", w.constant("table", w.weight("table", (lang.vocabulary, lang.hidden), 1.0)), ids)
    states = w.input("encoder_hidden_states", ["batch", "states", lang.hidden]) if first else ""
    hidden = ""
    if kind not in ("whisper", "moonshine"):
        mask = w.input("encoder_attention_mask", ["batch", "states"], TensorProto.INT64)
        real = w.add("Cast", w.add("Unsqueeze", mask, w.constant("axes_12", [1, 2])), to=TensorProto.BOOL)
        hidden = w.add("Where", real, w.constant("seen", 0.0), w.constant("unseen", -1e4))

    def apart(value: str) -> str:
        shaped = w.add("Reshape", value, w.constant("apart", [0, -1, lang.heads, lang.size]))
        return w.add("Transpose", shaped, perm=[0, 2, 1, 3])

    def attention(name: str, kept: str, source: str, causal: bool) -> str:
        normed = w.layer_norm(x, f"{name}.norm", lang.hidden, 1e-6)
        q = apart(w.product(normed, f"{name}.q", lang.hidden, lang.hidden))
        shape: list[int | str] = ["batch", lang.heads, "past" if causal else "states", lang.size]
        pasts = [] if first else [w.input(f"past_key_values.{kept}.{part}", shape) for part in ("key", "value")]
        both = pasts
        if causal or first:
            both = [apart(w.product(source or normed, f"{name}.{p}", lang.hidden, lang.hidden)) for p in "kv"]
            if pasts:
                both = [w.add("Concat", old, new, axis=2) for old, new in zip(pasts, both, strict=True)]
            for part, value in zip(("key", "value"), both, strict=True):
                w.output(
                    value, f"present.{kept}.{part}", ["batch", lang.heads, "keys" if causal else "states", lang.size]
                )
            both = [f"present.{kept}.{part}" for part in ("key", "value")]
        scores = w.add("MatMul", q, w.add("Transpose", both[0], perm=[0, 1, 3, 2]))
        scores = w.add("Mul", scores, w.constant("scale", lang.size**-0.5))
        if causal and first:  # later tokens see all before them
            length = w.add("Shape", normed, start=1, end=2)
            square = w.add("Concat", length, length, axis=0)
            ones = w.add("Expand", w.constant("unseen", -1e4), square)
            scores = w.add("Add", scores, w.add("Trilu", ones, w.constant("above", np.asarray(1)), upper=1))
        elif hidden and not causal:
            scores = w.add("Add", scores, hidden)
        y = w.add("MatMul", w.add("Softmax", scores, axis=-1), both[1])
        merged = w.add("Reshape", w.add("Transpose", y, perm=[0, 2, 1, 3]), w.constant("merged", [0, -1, lang.hidden]))
        return w.product(merged, f"{name}.out", lang.hidden, lang.hidden)

    for layer in range(lang.layers):
        x = w.add("Add", x, attention(f"{layer}.self", f"{layer}.decoder", "", True))
        x = w.add("Add", x, attention(f"{layer}.cross", f"{layer}.encoder", states, False))
        normed = w.layer_norm(x, f"{layer}.norm", lang.hidden, 1e-6)
        inside = w.add("Relu", w.product(normed, f"{layer}.up", lang.hidden, lang.wide))
        x = w.add("Add", x, w.product(inside, f"{layer}.down", lang.wide, lang.hidden))
    w.output(
        w.product(w.layer_norm(x, "norm", lang.hidden, 1e-6), "head", lang.hidden, lang.vocabulary),
        "logits",
        ["batch", "length", lang.vocabulary],
    )
    return w.finished()
