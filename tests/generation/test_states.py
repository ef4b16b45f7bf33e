"""Decoders whose layers have states beside keys and values: short convolutions, as LFM2 has them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.calls import noted
from tests.generation.test_beams import agree
from tests.generation.test_beams import expected as beams_of
from tools.ort_cpu import cpu_session
from vkep.errors import InvalidInputError
from vkep.generation import Generator, Sampling
from vkep.generation.decoder import Decoder
from vkep.models.language import MICROSOFT, write_language

pytestmark = pytest.mark.gpu
HIDDEN, WIDTH = 64, 4
Array = np.ndarray[Any, Any]


def write_convolved(folder: Path) -> None:
    """Llama, whose embeddings go through a causal convolution with a state."""
    language = write_language(folder, "llama", context=96, layers=1)
    model = onnx.load(folder / "model.onnx")
    embeds = next(n for n in model.graph.node if n.op_type == "Gather" and "input_ids" in n.input)
    result, embeds.output[0] = embeds.output[0], "conv.embeds"
    weight = np.random.default_rng(1).normal(0, 0.7, (HIDDEN, 1, WIDTH)).astype(np.float32)
    at = list(model.graph.node).index(embeds) + 1
    nodes = [
        helper.make_node("Transpose", ["conv.embeds"], ["conv.x"], perm=[0, 2, 1]),
        helper.make_node(
            "CausalConvWithState",
            ["conv.x", "conv.weight", "", "past.0.conv"],
            ["conv.y", "present.0.conv"],
            domain=MICROSOFT,
            ndim=1,
            activation="none",
        ),
        helper.make_node("Transpose", ["conv.y"], [result], perm=[0, 2, 1]),
    ]
    for k, node in enumerate(nodes):
        model.graph.node.insert(at + k, node)
    model.graph.initializer.append(numpy_helper.from_array(weight, "conv.weight"))
    shape: list[str | int | None] = ["batch", HIDDEN, WIDTH - 1]
    model.graph.input.append(helper.make_tensor_value_info("past.0.conv", TensorProto.FLOAT, shape))
    model.graph.output.append(helper.make_tensor_value_info("present.0.conv", TensorProto.FLOAT, shape))
    onnx.save(model, folder / "model.onnx")
    config = json.loads((folder / "genai_config.json").read_text())
    decoder = config["model"]["decoder"]
    decoder["inputs"]["past_conv_names"], decoder["outputs"]["present_conv_names"] = "past.%d.conv", "present.%d.conv"
    (folder / "genai_config.json").write_text(json.dumps(config))
    assert language.hidden == HIDDEN


def logits(session: Any, tokens: Sequence[int]) -> Array:
    """Of the token after some [vocabulary], by ONNX Runtime in one run."""
    feeds = {"input_ids": np.array([tokens], np.int64), "attention_mask": np.ones((1, len(tokens)), np.int64)}
    for i in session.get_inputs():
        if i.name.startswith("past"):
            sizes = [size if isinstance(size, int) else 0 for size in i.shape[1:]]
            feeds[i.name] = np.zeros((1, *(sizes if "conv" in i.name else (*sizes[:2], 16))), np.float32)
    found: Array = session.run(["logits"], feeds)[0][0, -1]
    return found


def greedy(session: Any, prompt: Sequence[int], count: int) -> list[int]:
    """The most probable tokens by ONNX Runtime, each from the whole sequence."""
    tokens: list[int] = []
    for _ in range(count):
        tokens.append(int(logits(session, [*prompt, *tokens]).argmax()))
    return tokens


def test_states_stay_on_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_convolved(tmp_path)
    system = [int(t) for t in np.random.default_rng(5).integers(1, 250, 40)]
    prompts = [[5, 60, 7], [*system, 9], [*system, 11, 12], list(range(30, 47))]
    theirs = cpu_session(tmp_path / "model.onnx")
    expected = {tuple(p): greedy(theirs, p, 10) for p in prompts}
    with Generator(tmp_path, fallback="error", max_sequences=3, lookup=4) as generator:
        assert isinstance(generator.decoder, Decoder) and generator.decoder.has_states
        for prompt in prompts:
            assert generator.generate(prompt, max_tokens=10, ignore_end=True).tokens == expected[tuple(prompt)]
        batch, sampling = generator.batch(4), Sampling(max_tokens=10, ignore_end=True)
        answers = []
        for prompt in [*prompts, *prompts[::-1]]:  # they join and leave at different steps
            while len(batch.in_progress) == 4:
                batch.step()
            answers.append(batch.add(prompt, sampling))
            batch.step()
            batch.step()
            if len(answers) == 3:
                batch.cancel(answers.pop(1))  # its row lies between two others
        while batch.in_progress:
            batch.step()
        assert all(a.tokens == expected[tuple(a.prompt)] for a in answers)
        # the next turn of a conversation goes on from the states
        first = generator.generate(prompts[0], max_tokens=6, ignore_end=True)
        turn = [*prompts[0], *first.tokens, 33, 34]
        run = Decoder._run
        runs = noted(monkeypatch, Decoder, "_run", lambda self, ids, *more: int(ids.shape[1]))
        assert generator.generate(turn, max_tokens=4, ignore_end=True).tokens == greedy(theirs, turn, 4)
        assert runs[0] == 3
        # a run that fails: the row begins again
        third = batch.add(prompts[3], sampling)
        for _ in range(4):
            batch.step()
        fails = iter([True, False])

        def failing(self: Decoder, *given: Any) -> Any:
            made = run(self, *given)
            if next(fails, False):
                raise RuntimeError("after the states were written")
            return made

        monkeypatch.setattr(Decoder, "_run", failing)
        with pytest.raises(RuntimeError):
            batch.step()
        while batch.in_progress:
            batch.step()
        assert third.tokens == expected[tuple(prompts[3])]
        found = generator.search(prompts[0], beams=3, count=2, max_tokens=5, ignore_end=True)  # beams copy states
        agree(found, beams_of(lambda tokens: logits(theirs, [*prompts[0], *tokens]), 3, 5, 1.0, set()))
        batch.close()


def test_models_with_states_neither_have_a_draft_nor_are_one(tmp_path: Path) -> None:
    write_convolved(tmp_path)
    write_language(tmp_path / "plain", "llama", context=48, layers=1)
    for first, second in ((tmp_path, tmp_path / "plain"), (tmp_path / "plain", tmp_path)):
        with pytest.raises(InvalidInputError, match="a model whose layers have states"):
            Generator(first, draft=second)
