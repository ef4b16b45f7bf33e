"""Contextual biasing: phrases that a search prefers, as an automaton over tokens (Aho and Corasick, 1975,
doi:10.1145/360825.360855)."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from vkep.errors import InvalidInputError
from vkep.hotword_texts import read_phrases
from vkep.text import shown

Array = np.ndarray[Any, Any]
#: numbers that the table of an automaton may have
_MOST_CELLS = 1 << 24
#: more than differences of logarithms are; sums of it are far from what float32 holds
MOST_SCORE = 1e6


@dataclass
class _Node:
    """What was said of phrases: ``score`` of its last token, ``total`` of all of them."""

    score: float = 0.0
    total: float = 0.0
    ends: bool = False  #: whether a phrase ends here
    following: dict[int, _Node] = field(default_factory=dict)
    place: int = 0


@dataclass(frozen=True)
class Hotwords:
    """An automaton, state 0 before any phrase. ``columns`` int64 [vocabulary]: the column of a token in the tables, 0 for those
    of no phrase. After a token in a state, ``next`` int64 [states, columns] is the state, and ``gains`` float32 [states, columns]
    is what the score of the tokens gains: the score of each token within a phrase, which a phrase that is not completed loses
    again.

    The rules are those of sherpa-onnx's streaming recognizer, where a completed phrase begins no other one.
    """

    columns: Array
    next: Array
    gains: Array

    @classmethod
    def of(cls, phrases: Sequence[Sequence[int]], scores: Sequence[float], vocabulary: int) -> Hotwords:
        """An automaton of phrases of tokens; a score is added for each token. Raises `InvalidInputError` for an empty phrase, a
        score that is not above 0 or more than `MOST_SCORE`, tokens beyond the vocabulary, and for more phrases than a table of
        2^24 numbers has room for.
        """
        root = _Node()
        for phrase, score in zip(phrases, scores, strict=True):
            wrong = [token for token in phrase if not 0 < token < vocabulary]
            if not phrase or wrong or not isinstance(score, (int, float, np.number)) or not 0 < score <= MOST_SCORE:
                raise InvalidInputError(
                    f"a hotword has tokens {list(phrase)} and score {shown(score)}; expected tokens of 1 to {vocabulary - 1} "
                    f"and a score above 0, of at most {MOST_SCORE:.0e}"
                )
            node = root
            for token in phrase:
                after = node.following.setdefault(token, _Node())
                after.score = max(after.score, score)
                after.total = node.total + after.score
                node = after
            node.ends = True
        return cls._table(root, vocabulary)

    @classmethod
    def _table(cls, root: _Node, vocabulary: int) -> Hotwords:
        nodes, waiting = list[_Node](), deque([root])
        while waiting:
            nodes.append(waiting.popleft())
            nodes[-1].place = len(nodes) - 1
            waiting.extend(nodes[-1].following.values())
        tokens = sorted({token for node in nodes for token in node.following})
        if len(nodes) * (len(tokens) + 1) > _MOST_CELLS:
            raise InvalidInputError(
                f"hotwords have {len(nodes)} beginnings and {len(tokens)} different tokens; their product may be {_MOST_CELLS}"
            )
        columns = np.zeros(vocabulary, np.int64)
        columns[tokens] = np.arange(1, len(tokens) + 1)
        goes = np.zeros((len(nodes), len(tokens) + 1), np.int64)
        totals = np.array([node.total for node in nodes], np.float32)
        reached = np.array(
            [node.total if node.ends else 0.0 for node in nodes], np.float32
        )  # by the phrase that ends there
        falls = np.zeros(len(nodes), np.int64)
        direct = np.full(goes.shape, np.nan, np.float32)
        for node in nodes:  # shorter beginnings first: those that a node falls back to
            if node is not root:
                goes[node.place] = goes[falls[node.place]]
                if not node.ends:
                    reached[node.place] = reached[falls[node.place]]
            for token, after in node.following.items():
                column = columns[token]
                falls[after.place] = goes[node.place, column] if node is not root else 0
                goes[node.place, column] = after.place
                direct[node.place, column] = after.score
        gains = np.where(np.isnan(direct), totals[goes] - totals[:, None], direct)
        completed = reached[goes] != 0
        gains = np.where(completed, gains + reached[goes] - totals[goes], gains).astype(np.float32)
        return cls(columns, np.where(completed, 0, goes), gains)

    @classmethod
    def read(
        cls,
        given: Sequence[str | Sequence[int]] | Mapping[str, float] | Path,
        score: float,
        symbols: Mapping[int, str],
        vocabulary: int,
        split: Callable[[str], list[str]] = str.split,
    ) -> Hotwords | None:
        """An automaton of phrases: token ids, or texts that ``split`` makes those of ``symbols`` of, with a ``score`` or scores
        of their own, or a file of these. None without phrases. Raises as `of`, `read_phrases` and ``split``, and
        `InvalidInputError` for texts that are no tokens."""
        pairs: Sequence[tuple[str | Sequence[int], float]]
        if isinstance(given, (str, bytes)):
            raise InvalidInputError(
                f"hotwords are the text {shown(given)}; expected a list of phrases, a mapping, or Path(...) of a file"
            )
        if isinstance(given, Path):
            pairs = read_phrases(given, score)
        else:
            pairs = list(given.items()) if isinstance(given, Mapping) else [(phrase, score) for phrase in given]
        if not pairs:
            return None
        ids = {text: token for token, text in symbols.items()}
        phrases = []
        for phrase, _ in pairs:
            try:
                words = split(phrase) if isinstance(phrase, str) else [operator.index(token) for token in phrase]
            except TypeError:
                raise InvalidInputError(f"hotword {shown(phrase)} is neither a text nor a list of token ids") from None
            wrong = [word for word in words if isinstance(word, str) and word not in ids]
            if wrong:
                raise InvalidInputError(
                    f"hotword {shown(phrase)} has {shown(wrong[0])}, which is no token of tokens.txt: write its tokens with "
                    "spaces between and no hotwords_unit, or set the unit of the model's tokens"
                )
            phrases.append([ids[word] if isinstance(word, str) else word for word in words])
        return cls.of(phrases, [own for _, own in pairs], vocabulary)
