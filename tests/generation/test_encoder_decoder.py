"""Encoders with decoders: the tokens of ONNX Runtime's CPU provider, sources of texts and of audio."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.generation.genai_sources import write_genai_sources
from tools.ort_cpu import cpu_session
from vkep.errors import InvalidInputError
from vkep.generation import Generator, encoder_decoder
from vkep.generation.audio import log_mel, mel_bands
from vkep.generation.folder import read_folder
from vkep.models.language import BEGIN
from vkep.models.sources import write_sources

Array = np.ndarray[Any, Any]


class Sources:
    """An encoder and its decoders on ONNX Runtime, which compute all tokens again."""

    def __init__(self, folder: Path, feeds: dict[str, Array]) -> None:
        names = ("encoder_model", "decoder_model", "decoder_with_past_model")
        self._sessions = {name: cpu_session(folder / f"{name}.onnx") for name in names}
        self._known = {"encoder_hidden_states": self._run("encoder_model", feeds)["last_hidden_state"]}
        if "attention_mask" in feeds:
            self._known["encoder_attention_mask"] = feeds["attention_mask"]

    def _run(self, name: str, feeds: dict[str, Array]) -> dict[str, Array]:
        session = self._sessions[name]
        wanted = {i.name for i in session.get_inputs()}
        results = session.run(None, {k: v for k, v in feeds.items() if k in wanted})
        return dict(zip((o.name for o in session.get_outputs()), results, strict=True))

    def logits(self, tokens: list[int], first: Sequence[int] = (BEGIN,)) -> Array:
        """Of the token after the first ones and these [vocabulary]."""
        known, name = self._known, "decoder_model"
        for token in [*first, *tokens]:
            results = self._run(name, {**known, "input_ids": np.array([[token]], np.int64)})
            last = results.pop("logits")[0, -1]
            known = known | {n.replace("present.", "past_key_values."): v for n, v in results.items()}
            name = "decoder_with_past_model"
        return last

    def greedy(self, count: int) -> list[int]:
        """The most probable tokens."""
        tokens: list[int] = []
        for _ in range(count):
            tokens.append(int(self.logits(tokens).argmax()))
        return tokens


def feeds_of(folder: Path, source: Any) -> dict[str, Array]:
    """The encoder's inputs for token ids, or audio."""
    if isinstance(source, list):
        return {"input_ids": np.array([source]), "attention_mask": np.ones((1, len(source)), np.int64)}
    if not (folder / "generation_config.json").exists():
        return {"input_values": source[None], "attention_mask": np.ones((1, source.size), np.int64)}
    return {"input_features": log_mel(source, folder)[None]}


def merged(folder: Path) -> None:
    """The two decoders in one file, as optimum merges them."""
    first, later = (onnx.load(folder / f"{n}.onnx") for n in ("decoder_model", "decoder_with_past_model"))
    inputs = {v.name: v for m in (first, later) for v in m.graph.input}
    outputs = {v.name: v for v in first.graph.output}
    bodies = {}
    for name, model in (("else_branch", first), ("then_branch", later)):
        graph = model.graph
        del graph.input[:]
        made = {v.name for v in graph.output}
        for missing in (n for n in outputs if n not in made):  # what does not change is passed on
            old = missing.replace("present.", "past_key_values.")
            graph.node.append(helper.make_node("Identity", [old], [missing]))
        del graph.output[:]
        graph.output.extend(outputs.values())
        bodies[name] = graph
    branch = helper.make_tensor_value_info("use_cache_branch", TensorProto.BOOL, [1])
    node = helper.make_node("If", ["use_cache_branch"], list(outputs), **bodies)
    graph = helper.make_graph([node], "merged", [*inputs.values(), branch], list(outputs.values()))
    onnx.save(
        helper.make_model(graph, opset_imports=first.opset_import, ir_version=10), folder / "decoder_model_merged.onnx"
    )
    for name in ("decoder_model", "decoder_with_past_model"):
        (folder / f"{name}.onnx").unlink()


def check_that_a_refused_source_ends_its_answer_alone(
    generator: Generator, sources: list[Any], tokens: list[list[int]]
) -> None:
    """A token that only the encoder's run refuses, since it does not have it."""
    wrong = [999_999]
    settings = generator.sampling(max_tokens=8, ignore_end=True)
    batch = generator.batch(4)
    answers = [batch.add(source, settings, start=[BEGIN]) for source in (sources[0], wrong, sources[1])]
    while batch.in_progress:
        batch.step()
    assert [a.reason for a in answers] == ["length", "error", "length"]
    assert [answers[0].tokens, answers[2].tokens] == tokens
    assert isinstance(answers[1].error, InvalidInputError)
    again = batch.add(sources[0], settings, start=[BEGIN])  # in the refused one's row, or another
    while batch.in_progress:
        batch.step()
    assert again.tokens == tokens[0]
    batch.close()
    with pytest.raises(InvalidInputError):
        generator.generate([*sources, wrong], start=[BEGIN], max_tokens=8)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["t5", "whisper", "moonshine"])
def test_the_same_tokens(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder_decoder, "CAPACITY_STEP", 4)  # caches move to larger memory
    write_sources(tmp_path, kind)
    rng = np.random.default_rng(3)
    sources: list[Any]
    if kind == "t5":
        sources = [[int(t) for t in rng.integers(0, 256, n)] for n in (5, 9)]
    else:
        sources = [rng.normal(0, 0.1, n).astype(np.float32) for n in (16000, 30000)]
    tokens = [Sources(tmp_path, feeds_of(tmp_path, s)).greedy(8) for s in sources]
    assert tokens[0] != tokens[1]
    if kind == "t5":
        merged(tmp_path)
    with Generator(tmp_path, fallback="error") as generator:
        answers = generator.generate(sources, start=[BEGIN], max_tokens=8, ignore_end=True)
        assert [a.tokens for a in answers] == tokens
        assert answers[0].prompt == [BEGIN]
        latest = generator.decoder.sessions[-1]._parts.graph.latest
        assert latest is not None and latest.program.in_place  # no token copies its caches
        more = generator.generate(sources[1], start=[BEGIN, tokens[1][0]], max_tokens=7, ignore_end=True)
        assert more.tokens == tokens[1][1:]
        with pytest.raises(InvalidInputError, match="the source "):
            generator.generate(np.zeros((2, 2, 2), np.float32))
        if kind == "t5":
            check_that_a_refused_source_ends_its_answer_alone(generator, sources, tokens)


@pytest.mark.gpu
def test_the_form_of_onnxruntime_genai(tmp_path: Path) -> None:
    """The encoder writes the keys and values of the source; one decoder reads them."""
    lang = write_genai_sources(tmp_path)
    sources = [np.random.default_rng(k).normal(0, 0.1, 16000).astype(np.float32) for k in range(2)]
    encoder, decoder = (cpu_session(tmp_path / f"{n}.onnx") for n in ("encoder", "decoder"))

    def tokens_of(source: Array, start: list[int], count: int) -> list[int]:
        names = [o.name for o in encoder.get_outputs()]
        made = dict(zip(names, encoder.run(None, {"audio_features": log_mel(source, tmp_path)[None]}), strict=True))
        kept = {n.replace("present", "past"): v for n, v in made.items() if "cross" in n}
        empty = np.zeros((1, lang.heads, 0, lang.size), np.float32)
        kept |= {i.name: empty for i in decoder.get_inputs() if "self" in i.name}
        tokens, new = [], start
        for _ in range(count):
            outputs = [o.name for o in decoder.get_outputs()]
            got = dict(zip(outputs, decoder.run(None, kept | {"input_ids": np.array([new], np.int32)}), strict=True))
            new = [int(got.pop("logits")[0, -1].argmax())]
            tokens += new
            kept |= {n.replace("present", "past"): v for n, v in got.items()}
        return tokens

    with Generator(tmp_path, fallback="error") as generator:
        for start in ([BEGIN], [BEGIN, 40, 41]):
            wanted = [tokens_of(source, start, 6) for source in sources]
            answers = generator.generate(sources, start=start, max_tokens=6, ignore_end=True)
            assert [a.tokens for a in answers] == wanted
        assert wanted[0] != wanted[1]
        assert generator.generate(sources[0], max_tokens=2).prompt == [BEGIN]  # the configuration's
    names = ["<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>"]
    added = [{"id": 60 + k, "content": name} for k, name in enumerate(names)]
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": added}))
    assert read_folder(tmp_path).start_tokens == (60, 61, 62, 63)


def test_bands_have_the_same_area_and_no_gap() -> None:
    bands = mel_bands(80, 400, 16000)
    assert bands.shape == (80, 201)
    assert (bands[:, 1:].sum(0) > 0)[:198].all()
    np.testing.assert_allclose(bands[60:].sum(1) * 40, 1, atol=0.02)  # 40 Hz apart; narrower ones have few samples


def test_a_tone_is_in_its_band(tmp_path: Path) -> None:
    tone = np.sin(2 * np.pi * 1000 * np.arange(16000) / 16000).astype(np.float32)
    heard = log_mel(tone, tmp_path)
    assert heard.shape == (80, 3000)
    bands = mel_bands(80, 400, 16000)
    assert heard[:, 50].argmax() == bands[:, 25].argmax()  # 1000 Hz is the 25th of 40 Hz
    assert heard[:, 2000].max() == heard.min()  # silence is 8 below the loudest, in tenth powers
    with pytest.raises(InvalidInputError, match=r"31\.2 s of audio"):
        log_mel(np.zeros(500000, np.float32), tmp_path)
