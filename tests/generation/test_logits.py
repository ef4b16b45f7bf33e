"""Logits of packed and half precision weights, step by step, against those of ONNX Runtime's CPU provider."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from tests.generation.reference import Reference
from vkep.generation import Generator
from vkep.generation.decoder import Decoder
from vkep.models.language import write_language

pytestmark = pytest.mark.gpu
Array = np.ndarray[Any, Any]
COUNT = 40


def tokens(count: int) -> list[int]:
    return [int(t) for t in np.random.default_rng(count).integers(0, 256, count)]


def ours(folder: Path, prompt: list[int], answer: list[int]) -> Array:
    """As `Reference.logits`."""
    found = []
    with Generator(folder, fallback="error") as generator:
        decoder = generator.decoder
        assert isinstance(decoder, Decoder)
        caches = decoder.caches()
        caches.grow(1, len(prompt) + len(answer))
        done = 0
        for part in (prompt, *([token] for token in answer[:-1])):
            made = decoder.on_rows(np.array([part], np.int64), [done], caches, 0)
            found.append(made.logits.numpy()[0, -1].astype(np.float32))
            done += len(part)
        caches.close()
    return np.array(found)


def in_float32(model: onnx.ModelProto) -> onnx.ModelProto:
    """A float16 model with the same weights in float32."""
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT16:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), tensor.name))
    for value in (*model.graph.input, *model.graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT16:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    return model


def test_packed_weights(tmp_path: Path) -> None:
    language = write_language(tmp_path, "gptoss", "int4")
    theirs = Reference(tmp_path / "model.onnx", language.kv_heads, language.size).logits(tokens(11), tokens(COUNT))
    assert np.abs(ours(tmp_path, tokens(11), tokens(COUNT)) - theirs).max() < 1e-4 * np.abs(theirs).max()


def test_half_precision(tmp_path: Path) -> None:
    """Both round: what is held is the distance from the same weights in float32, which is ONNX Runtime's too."""
    language = write_language(tmp_path, "qwen3", "fp16")
    half = Reference(tmp_path / "model.onnx", language.kv_heads, language.size).logits(tokens(11), tokens(COUNT))
    found = ours(tmp_path, tokens(11), tokens(COUNT))
    onnx.save(in_float32(onnx.load(tmp_path / "model.onnx")), tmp_path / "model.onnx")
    true = Reference(tmp_path / "model.onnx", language.kv_heads, language.size).logits(tokens(11), tokens(COUNT))
    near, theirs = (np.median(np.abs(x - true).max(1)) / np.abs(true).max() for x in (found, half))
    assert near < 2e-3
    assert near < 2 * theirs
