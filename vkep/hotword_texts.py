"""Phrases that a transducer prefers as texts, in sherpa-onnx's forms: files of them, and their tokens by the model's unit."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np

from vkep.errors import InvalidInputError, InvalidModelError
from vkep.files import file_inside, read_file
from vkep.generation.templates import MissingPackageError
from vkep.text import shown

#: what tokens of a model are: "" where phrases are written as tokens with spaces between
UNITS = ("", "cjkchar", "bpe", "cjkchar+bpe")
BPE_VOCAB, BPE_MODEL = "bpe.vocab", "bpe.model"
_BEGIN = "\u2581"
#: a word of letters of ASCII and western Europe, digits and apostrophes; any other character alone
_PART = re.compile("[A-Za-z0-9'ÀÁÂÄÇÈÉÊËÍÎÏÑÓÔÖÙÚÛÜßàáâäçèéêëíîïñóôöùúûü]+|.")


def read_phrases(file: Path, score: float) -> list[tuple[str, float]]:
    """The phrases of a file, one a line, and their scores: ``:2.5`` at the end of the line, else ``score``.

    Raises `InvalidInputError` for a file that cannot be read, and a line with a score that is no number or not at its end.
    """
    found = []
    lines = read_file(file, "file of hotwords", InvalidInputError).decode("utf-8-sig", "replace").split("\n")
    for number, line in enumerate(lines, 1):
        words = line.split()
        scores = [k for k, word in enumerate(words) if word[0] == ":"]
        try:
            own = [float(words[k][1:]) for k in scores]
        except ValueError:
            own = []
        if len(own) != len(scores) or scores not in ([], [len(words) - 1]):
            raise InvalidInputError(
                f"{file}: line {number} is {shown(line)}; expected words, and a score such as :2.0 only at its end"
            )
        words = words[: len(words) - len(own)]
        if words:
            found.append((" ".join(words), own[0] if own else score))
    return found


def splitter(unit: str, folder: Path) -> Callable[[str], list[str]]:
    """What makes tokens' texts of a phrase: by characters of Chinese, Japanese and Korean (``cjkchar``), by the pieces of a
    folder's ``bpe.vocab`` or ``bpe.model``, or by characters and by pieces of words.

    Raises `InvalidInputError` for another unit, `InvalidModelError` for a folder without pieces, `MissingPackageError` for a
    ``bpe.model`` without the package sentencepiece. The function raises `InvalidInputError` for what no pieces are of.
    """
    if unit not in UNITS:
        raise InvalidInputError(f"hotwords_unit is {shown(unit)}, expected one of {', '.join(map(repr, UNITS))}")
    scores = _pieces(folder) if "bpe" in unit else {}

    def tokens(phrase: str) -> list[str]:
        if not unit:
            return phrase.split()
        parts = phrase.split() if unit == "bpe" else [part for word in phrase.split() for part in _PART.findall(word)]
        whole = [unit == "bpe" or (unit != "cjkchar" and part[0].isascii() and part[0].isalpha()) for part in parts]
        return [
            token
            for part, is_word in zip(parts, whole, strict=True)
            for token in (_cut(_BEGIN + part, scores) if is_word else [part])
        ]

    return tokens


def _pieces(folder: Path) -> dict[str, float]:
    """The scores of pieces by their texts."""
    if (folder / BPE_VOCAB).is_file():
        content = read_file(file_inside(folder, BPE_VOCAB, InvalidModelError), error=InvalidModelError)
        pairs = [line.split() for line in content.decode(errors="replace").split("\n") if line.strip()]
        try:
            return {text: float(np.float32(score)) for text, score in pairs}
        except ValueError as error:
            raise InvalidModelError(
                f"{folder / BPE_VOCAB}: expected a piece and its score in each line: {error}"
            ) from None
    if not (folder / BPE_MODEL).is_file():
        raise InvalidModelError(
            f"{folder} has no {BPE_VOCAB} and no {BPE_MODEL}: write hotwords as tokens, with hotwords_unit=''"
        )
    try:
        import sentencepiece
    except ImportError as error:
        raise MissingPackageError(f"{BPE_MODEL} needs sentencepiece: pip install 'vkep[hotwords]' ({error})") from None
    model = sentencepiece.SentencePieceProcessor(model_file=str(file_inside(folder, BPE_MODEL, InvalidModelError)))
    return {model.id_to_piece(k): model.get_score(k) for k in range(model.get_piece_size())}


def _cut(word: str, scores: dict[str, float]) -> list[str]:
    """The pieces of a word whose scores have the greatest sum in float32 (arXiv:1804.10959, section 3.2); of several the one
    whose first piece is the shortest. Raises `InvalidInputError` where no pieces are the word."""
    longest = max(map(len, scores), default=0)
    best: list[tuple[float, int]] = [
        (0.0, 0)
    ]  # from each place on, the last one first: the sum, and the end of the first piece
    for start in range(len(word) - 1, -1, -1):
        found = (-np.inf, 0)
        for end in range(start + 1, min(start + longest, len(word)) + 1):
            total = float(np.float32(scores.get(word[start:end], -np.inf) + best[len(word) - end][0]))
            if total > found[0]:
                found = total, end
        best.append(found)
    if best[-1][0] == -np.inf:
        raise InvalidInputError(f"hotword {shown(word[1:])} cannot be made of the pieces of {BPE_VOCAB} or {BPE_MODEL}")
    cuts = [0]
    while cuts[-1] < len(word):
        cuts.append(best[len(word) - cuts[-1]][1])
    return [word[a:b] for a, b in itertools.pairwise(cuts)]
