"""Beam search: the most probable continuations of one prompt, which grow side by side.

The scores, and when a search ends, are those of transformers' ``generate`` with ``num_beams`` and ``early_stopping=False``.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from vkep.errors import InvalidInputError
from vkep.generation.decoder import Decoder, Made
from vkep.generation.encoder_decoder import EncoderDecoder
from vkep.generation.rows import Rows
from vkep.session import InferenceSession

Array = np.ndarray[Any, Any]
#: largest number of beams: each holds caches of its own
MOST_BEAMS = 64


@dataclass(frozen=True)
class Hypothesis:
    """One continuation. ``score`` is the sum of its tokens' logarithms of probabilities, divided by their number (an end token
    counts) to the power of the length penalty."""

    tokens: list[int]  #: without the end token
    score: float
    text: str = ""  #: where the folder has a tokenizer that was loaded


@dataclass(frozen=True)
class Search:
    """The settings of a search.

    beams: continuations that grow together, up to 64. count: how many of the best are returned, up to ``beams``. max_tokens: of
    each. length_penalty: more than 0 favours long continuations, less than 0 short ones. end_tokens: ids that end one.

    Raises `InvalidInputError` for numbers out of range.
    """

    beams: int
    count: int
    max_tokens: int
    length_penalty: float
    end_tokens: frozenset[int]

    def __post_init__(self) -> None:
        if not 1 <= self.beams <= MOST_BEAMS or not 1 <= self.count <= self.beams or self.max_tokens < 1:
            raise InvalidInputError(
                f"beams is {self.beams}, count {self.count}, max_tokens {self.max_tokens}; expected 1 to {MOST_BEAMS} beams, a "
                "count of 1 to beams, and 1 token or more"
            )

    @property
    def candidates(self) -> int:
        """How many continuations a step ranks: ``beams`` go on even where all ends are among them (as in transformers)."""
        return max(2, 1 + len(self.end_tokens)) * self.beams


@dataclass
class _Beam:
    """A continuation that goes on, and the row with its caches."""

    total: float
    tokens: list[int] = field(default_factory=list)
    row: int = 0


class Ranking:
    """The most probable next tokens of each row of a decoder's logits, ranked on the device."""

    def __init__(self, decoder: Decoder | EncoderDecoder, count: int, masks: Sequence[Sequence[int]]) -> None:
        """``masks``: token ids that are never chosen, of the first token and of later ones."""
        self._session = InferenceSession(_ranking(decoder.element, count), context=decoder.session.lease)
        self._masks = []
        for never in masks:
            mask = np.zeros(decoder.vocabulary, np.float32)
            mask[[token for token in never if token < decoder.vocabulary]] = -np.inf
            self._masks.append(self._session.device_tensor(mask))

    def of(self, made: Made, later: bool) -> tuple[Array, Array]:
        """The logarithms of probabilities float32 [rows, count], and their tokens int64 [rows, count]."""
        values, tokens = self._session.run(None, {"logits": made.logits, "mask": self._masks[later]})
        return values, tokens

    def close(self) -> None:
        """Close the session."""
        for mask in self._masks:
            mask.close()
        self._session.close()


def search(rows: Rows, decoder: Decoder | EncoderDecoder, row: int, made: Made, asked: Search) -> list[Hypothesis]:
    """The best continuations of the sequence in ``row``, whose last run was ``made``; the best one first. Rows 0 to ``beams`` - 1
    are the search's. Raises as `InferenceSession.run`."""
    folder = decoder.folder
    width = min(asked.candidates, decoder.vocabulary)
    ranking = Ranking(decoder, width, [(*folder.never, *folder.never_first), folder.never])
    try:
        return _search(rows, ranking, row, made, asked)
    finally:
        ranking.close()


def _search(rows: Rows, ranking: Ranking, row: int, made: Made, asked: Search) -> list[Hypothesis]:
    beams = [_Beam(0.0, [], row)]
    found: list[tuple[float, int, list[int]]] = []  # a heap: the worst one first
    ranked = {row: tuple(part[0] for part in ranking.of(made, later=False))}
    for length in range(1, asked.max_tokens + 1):
        best = sorted(
            ((beam.total + float(value), -k, int(token)) for k, beam in enumerate(beams)
             for value, token in zip(*ranked[beam.row], strict=True) if value > -np.inf),
            reverse=True,
        )[: asked.candidates]  # fmt: skip
        going: list[tuple[float, int, int]] = []
        for rank, (total, k, token) in enumerate(best):
            if token not in asked.end_tokens:
                going.append((total, -k, token))
            elif rank < asked.beams:
                _keep(found, asked, total, length, beams[-k].tokens)
        going = going[: asked.beams]
        attainable = going[0][0] / length**asked.length_penalty if going else -np.inf
        if length == asked.max_tokens or not going or (len(found) == asked.beams and found[0][0] >= attainable):
            if len(found) < asked.beams or length == asked.max_tokens:
                for total, k, token in going:
                    _keep(found, asked, total, length, [*beams[k].tokens, token])
            break
        beams = _grown(rows, beams, going, asked.beams)
        ranked = {}
        for run, made in rows.step({beam.row: beam.tokens[-1] for beam in beams}, None):
            values, tokens = ranking.of(made, later=True)
            ranked.update({r: (values[k], tokens[k]) for k, r in enumerate(run)})
    best_first = sorted(found, key=lambda one: (-one[0], one[1]))
    return [Hypothesis(tokens, score) for score, _, tokens in best_first[: asked.count]]


def _keep(
    found: list[tuple[float, int, list[int]]], asked: Search, total: float, length: int, tokens: list[int]
) -> None:
    """Add a continuation to the best ones so far."""
    heapq.heappush(found, (total / length**asked.length_penalty, -length, list(tokens)))
    if len(found) > asked.beams:
        heapq.heappop(found)


def _grown(rows: Rows, beams: list[_Beam], going: list[tuple[float, int, int]], count: int) -> list[_Beam]:
    """The beams after a step. The first continuation of each has its row; others get copies of it in rows that are free."""
    taken = {beams[k].row for _, k, _ in going}
    free = [row for row in range(count) if row not in taken]
    owned: set[int] = set()
    made = []
    for total, k, token in going:
        row = beams[k].row
        if row in owned:
            rows.fork(row, free[0])
            row = free.pop(0)
        owned.add(row)
        made.append(_Beam(total, [*beams[k].tokens, token], row))
    return made


def _ranking(element: int, count: int) -> onnx.ModelProto:
    """A graph: ``logits`` [rows, length, vocabulary] and ``mask`` float32 [vocabulary], which is added to the logarithms of the
    last token's probabilities; the largest ones ``values`` float32 [rows, count] and their ``tokens`` int64."""
    nodes = [
        helper.make_node("Slice", ["logits", "from", "to", "axis"], ["last"]),
        helper.make_node("Squeeze", ["last", "axis"], ["row"]),
        helper.make_node("Cast", ["row"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("LogSoftmax", ["numbers"], ["logs"], axis=-1),
        helper.make_node("Add", ["logs", "mask"], ["masked"]),
        helper.make_node("TopK", ["masked", "count"], ["values", "tokens"]),
    ]
    inputs = [
        helper.make_tensor_value_info("logits", element, ["rows", "length", "vocabulary"]),
        helper.make_tensor_value_info("mask", TensorProto.FLOAT, ["vocabulary"]),
    ]
    outputs = [
        helper.make_tensor_value_info("values", TensorProto.FLOAT, ["rows", count]),
        helper.make_tensor_value_info("tokens", TensorProto.INT64, ["rows", count]),
    ]
    weights = [
        helper.make_tensor(name, TensorProto.INT64, [1], [value])
        for name, value in (("from", -1), ("to", 2**31 - 1), ("axis", 1), ("count", count))
    ]
    graph = helper.make_graph(nodes, "ranking", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
