"""T5 and Moonshine with random weights as optimum exports them: the greedy tokens of transformers, of sources of several lengths
that share runs. Needs torch, transformers and optimum-onnx."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.calls import noted
from vkep.generation import Generator, Sampling
from vkep.generation.decoder import Decoder

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
exporters = pytest.importorskip("optimum.exporters.onnx")
pytestmark = pytest.mark.gpu
VOCABULARY, BEGIN, END = 97, 0, 1


def _model(kind: str) -> Any:
    torch.manual_seed(1)
    tokens = {"vocab_size": VOCABULARY, "decoder_start_token_id": BEGIN, "eos_token_id": END, "pad_token_id": BEGIN}
    if kind == "t5":
        sizes = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4}
        distances = {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 20}
        config = transformers.T5Config(**tokens, **sizes, **distances, tie_word_embeddings=False)
        model = transformers.T5ForConditionalGeneration(config)
    else:
        each = {"hidden_layers": 2, "attention_heads": 4, "key_value_heads": 4}
        parts = {f"{part}_num_{name}": count for part in ("encoder", "decoder") for name, count in each.items()}
        sizes = {"hidden_size": 32, "intermediate_size": 48, "max_position_embeddings": 64, "bos_token_id": BEGIN}
        model = transformers.MoonshineForConditionalGeneration(transformers.MoonshineConfig(**tokens, **sizes, **parts))
    for name, weight in model.named_parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, 0, 2.0 if "relative" in name else 0.3)
    return model.eval()


@pytest.mark.parametrize("kind", ["t5", "moonshine"])
def test_the_same_tokens(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, rng = _model(kind), np.random.default_rng(0)
    lengths = [5, 130, 9, 17, 33]
    sources: list[Any] = [rng.integers(3, VOCABULARY, n).tolist() for n in lengths]
    if kind == "moonshine":
        sources = [rng.normal(0, 0.5, 3000 + 400 * n).astype(np.float32) for n in lengths]
    counts, expected = [20, 14, 25, 9, 30], []
    for source, count in zip(sources, counts, strict=True):
        given = torch.tensor(np.asarray(source)[None])
        name = "input_ids" if kind == "t5" else "input_values"
        limits = {"max_new_tokens": count, "eos_token_id": None, "do_sample": False, "num_beams": 1}
        made = model.generate(**{name: given}, attention_mask=torch.ones_like(given, dtype=torch.long), **limits)
        expected.append(made[0, 1 : count + 1].tolist())
    assert len({tuple(tokens[:5]) for tokens in expected}) == 5 and len({t for each in expected for t in each}) > 9
    task = "text2text-generation" if kind == "t5" else "automatic-speech-recognition"
    exporters.onnx_export_from_model(model, tmp_path, task=f"{task}-with-past", do_validation=False)
    rows = noted(monkeypatch, Decoder, "_run", lambda self, ids, *rest: int(ids.shape[0]))
    with Generator(tmp_path, fallback="error", max_sequences=4) as generator:
        batch, answers = generator.batch(), list[Any]()
        for source, count in zip(sources, counts, strict=True):
            while len(batch.in_progress) == 4:
                batch.step()
            answers.append(batch.add(source, Sampling(max_tokens=count, ignore_end=True)))
            batch.step()
        while batch.in_progress:
            batch.step()
        batch.close()
    assert [answer.tokens for answer in answers] == expected
    assert max(rows) == 4 and len(rows) < sum(counts) / 1.5
