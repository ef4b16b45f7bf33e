"""Embeddings of texts: an encoder's folder as optimum and Sentence Transformers write it."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vkep.errors import InvalidInputError, InvalidModelError
from vkep.generation.folder import CONFIG, DECODERS, GENAI, Record
from vkep.generation.text import Text
from vkep.serving.kserve import ProtocolError

if TYPE_CHECKING:
    from vkep.serving.loaded import LoadedModel, Results
    from vkep.serving.openai import EmbeddingsRequest

Array = np.ndarray[Any, Any]
#: outputs of encoders: of each token, or of the text
_TOKENS, _TEXT = ("last_hidden_state", "token_embeddings"), "sentence_embedding"
#: the inputs that an encoder may have
_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
#: lengths are rounded up to multiples of this where there is a mask, so that texts share runs
_STEP = 16


def encoder_of(folder: Path) -> Path | None:
    """The model file of an encoder's folder; None where it is another folder. Raises as `load_model`."""
    from vkep.graph.load import load_model

    if (folder / GENAI).is_file() or not (folder / CONFIG).is_file():
        return None
    found = [path for place in ("", "onnx") if (path := folder / place / DECODERS[0]).is_file()]
    if not found:
        return None
    outputs = {v.name for v in load_model(found[0]).graph.outputs}
    return found[0] if outputs & {*_TOKENS, _TEXT} else None


class Embedder:
    """A model of embeddings: the mean of a text's tokens, or its first one, as the folder says; of length 1."""

    def __init__(self, folder: Path, model: LoadedModel) -> None:
        """Raises as `Text`; `InvalidModelError` for inputs that an encoder does not have."""
        self.text, self.model = Text(folder), model
        inputs = model.spec.inputs
        if "input_ids" not in inputs or not set(inputs) <= set(_INPUTS):
            raise InvalidModelError(f"{folder}: an encoder with inputs {list(inputs)}, expected {_INPUTS}")
        config = Record.read(folder, CONFIG)
        self._most = Record.read(folder, "sentence_bert_config.json", needed=False).first(
            "max_seq_length"
        ) or config.first("max_position_embeddings")
        pooling = Record.read(folder, "1_Pooling/config.json", needed=False)
        self._first = bool(pooling.values.get("pooling_mode_cls_token"))

    def read(self, request: EmbeddingsRequest) -> list[list[int]]:
        """The tokens of each input. Raises `ProtocolError` for one that is too long, `InvalidInputError`."""
        found = []
        for at, given in enumerate(request.inputs()):
            tokens = self.text.encode(given) if isinstance(given, str) else list(given)
            if not tokens:
                raise ProtocolError(400, f"input {at} is empty", "input")
            if self._most and len(tokens) > self._most:
                raise ProtocolError(400, f"input {at} has {len(tokens)} tokens, and {self._most} are allowed", "input")
            if not all(0 <= token < 1 << 31 for token in tokens):
                raise ProtocolError(400, f"input {at} has something that is no token id", "input")
            found.append(tokens)
        return found

    async def embed(self, inputs: Sequence[Sequence[int]], client: str = "") -> list[Array]:
        """An embedding float32 [size] for each input; those of one length share runs. Raises as `LoadedModel.infer`."""
        results = await asyncio.gather(*(self.model.infer(self._feeds(tokens), client) for tokens in inputs))
        return [self._pooled(found, len(tokens)) for found, tokens in zip(results, inputs, strict=True)]

    def _feeds(self, tokens: Sequence[int]) -> dict[str, Array]:
        count = len(tokens)
        length = -(-count // _STEP) * _STEP if "attention_mask" in self.model.spec.inputs else count
        length = max(min(length, self._most), count) if self._most else length
        ids = np.zeros((1, length), np.int64)
        ids[0, :count] = tokens
        mask = (np.arange(length) < count).astype(np.int64)[None]
        return {
            n: v for n, v in zip(_INPUTS, (ids, mask, np.zeros_like(ids)), strict=True) if n in self.model.spec.inputs
        }

    def _pooled(self, results: Results, count: int) -> Array:
        if _TEXT in results:
            vector = results[_TEXT][0].astype(np.float32)
        else:
            tokens = next(results[name] for name in _TOKENS if name in results)[0].astype(np.float32)
            vector = tokens[0] if self._first else tokens[:count].mean(0)
        length = float(np.linalg.norm(vector))
        if not np.isfinite(length):
            raise InvalidInputError("the model's result has numbers that are not finite")
        return vector / length if length else vector


def answer(request: EmbeddingsRequest, model: str, vectors: Sequence[Array], tokens: int) -> dict[str, Any]:
    """OpenAI's answer. Raises `ProtocolError` for another number of dimensions than the model has."""
    if request.dimensions is not None and any(len(vector) != request.dimensions for vector in vectors):
        raise ProtocolError(400, f"dimensions is {request.dimensions}; the model has {len(vectors[0])}", "dimensions")
    as_text = request.encoding_format == "base64"
    data = [
        {
            "object": "embedding",
            "index": at,
            "embedding": base64.b64encode(vector.astype("<f4").tobytes()).decode() if as_text else vector.tolist(),
        }
        for at, vector in enumerate(vectors)
    ]
    return {"object": "list", "data": data, "model": model, "usage": {"prompt_tokens": tokens, "total_tokens": tokens}}
