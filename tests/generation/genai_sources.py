"""Whisper in the two files that onnxruntime-genai's builder writes, with random weights."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
from onnx import TensorProto

from vkep.models.language import BEGIN, END, Language, Writer, tokenizer
from vkep.models.sources import SOURCES, SPEECH, WHISPER, encoder


def write_genai_sources(folder: Path, times: bool = False) -> Language:
    """Write Whisper as onnxruntime-genai's builder does: the encoder computes the keys and values of the source, and one decoder
    reads them. With ``times`` the tokenizer has the tokens of languages, tasks and times.
    """
    lang = WHISPER if times else SOURCES
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(encoder("whisper", caches=True), folder / "encoder.onnx")
    onnx.save(_genai_decoder(lang), folder / "decoder.onnx")
    parts = ("key", "value")
    sizes = {"num_hidden_layers": SOURCES.layers, "num_key_value_heads": SOURCES.heads, "head_size": SOURCES.size}
    decoder = {
        "filename": "decoder.onnx",
        "inputs": {"input_ids": "input_ids"}
        | {f"past_{p}_names": f"past_{p}_self_%d" for p in parts}
        | {f"cross_past_{p}_names": f"past_{p}_cross_%d" for p in parts},
        "outputs": {"logits": "logits"} | {f"present_{p}_names": f"present_{p}_self_%d" for p in parts},
    }
    encoding = {
        "filename": "encoder.onnx",
        "inputs": {"audio_features": "audio_features"},
        "outputs": {"encoder_hidden_states": "hidden_states"}
        | {f"cross_present_{p}_names": f"present_{p}_cross_%d" for p in parts},
    }
    model = {
        "type": "whisper",
        "context_length": SOURCES.context,
        "eos_token_id": END,
        "decoder_start_token_id": BEGIN,
        "decoder": decoder | sizes,
        "encoder": encoding | sizes,
    }
    (folder / "genai_config.json").write_text(json.dumps({"model": model, "search": {"do_sample": False}}))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer(SPEECH if times else None)))
    return lang


def _genai_decoder(lang: Language) -> onnx.ModelProto:
    w = Writer("whisper_genai_decoder", lang, "fp32")
    ids = w.input("input_ids", ["batch", "length"], TensorProto.INT32)  # as the builder writes it
    x = w.add("Gather", w.constant("table", w.weight("table", (lang.vocabulary, lang.hidden), 1.0)), ids)
    for layer in range(lang.layers):
        for kind in ("self", "cross"):
            name = f"{layer}.{kind}"
            normed = w.layer_norm(x, f"{name}.norm", lang.hidden, 1e-6)
            length = "past" if kind == "self" else "states"
            shape: list[int | str] = ["batch", lang.heads, length, lang.size]
            pasts = [w.input(f"past_{part}_{kind}_{layer}", shape) for part in ("key", "value")]
            q = w.product(normed, f"{name}.q", lang.hidden, lang.hidden)
            if kind == "self":
                both = [w.product(normed, f"{name}.{p}", lang.hidden, lang.hidden) for p in "kv"]
                operands, settings = [q, *both, "", "", "", *pasts], {"outputs": 3, "unidirectional": 1}
            else:
                operands, settings = [q, *pasts], {"outputs": 1}
            y, *presents = w.contrib("MultiHeadAttention", *operands, num_heads=lang.heads, **settings)
            for part, value in zip(("key", "value"), presents, strict=False):
                w.output(value, f"present_{part}_self_{layer}", ["batch", lang.heads, "keys", lang.size])
            x = w.add("Add", x, w.product(y, f"{name}.out", lang.hidden, lang.hidden))
        normed = w.layer_norm(x, f"{layer}.norm", lang.hidden, 1e-6)
        inside = w.add("Relu", w.product(normed, f"{layer}.up", lang.hidden, lang.wide))
        x = w.add("Add", x, w.product(inside, f"{layer}.down", lang.wide, lang.hidden))
    logits = w.product(w.layer_norm(x, "norm", lang.hidden, 1e-6), "head", lang.hidden, lang.vocabulary)
    w.output(logits, "logits", ["batch", "length", lang.vocabulary])
    return w.finished()
