"""Grammars that an answer's text follows, by the package llguidance (``pip install vkep[serve]``)."""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from vkep.errors import InvalidInputError, VkepError
from vkep.generation.templates import MissingPackageError
from vkep.generation.text import FILE
from vkep.text import shortened

if TYPE_CHECKING:
    from vkep.generation.folder import ModelFolder

#: grammars that are kept compiled, and the most characters of one
_KEPT, LONGEST = 32, 1 << 17
#: limits of llguidance, below its own: a grammar is a request's, and is followed in the thread that makes all answers
_LIMITS = {
    "initial_lexer_fuel": 500_000,
    "step_lexer_fuel": 50_000,
    "step_max_items": 10_000,
    "max_grammar_size": 50_000,
}


#: JSON as Python writes it: white space could make an answer endless
_FORM = {"x-guidance": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}}


def of_schema(schema: Mapping[str, Any]) -> str:
    """The grammar of JSON texts that a JSON schema allows."""
    return f"start: %json {json.dumps({**schema, **_FORM})}"


class Grammar:
    """A grammar's state after the tokens of one answer."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def mask(self, vocabulary: int) -> np.ndarray[Any, Any]:
        """Which tokens may follow, bool [vocabulary]. Raises `VkepError` where the grammar's limits are reached."""
        bits = np.unpackbits(np.frombuffer(self._matcher.compute_bitmask(), np.uint8), bitorder="little")
        self._check()
        allowed = np.zeros(vocabulary, np.bool_)
        allowed[: len(bits)] = bits[:vocabulary]
        return allowed

    def take(self, token: int) -> None:
        """Continue after a token. Raises `VkepError` for one that may not follow."""
        self._matcher.consume_token(token)
        self._check()

    @property
    def ended(self) -> bool:
        """Whether nothing may follow."""
        return bool(self._matcher.is_stopped())

    def _check(self) -> None:
        if self._matcher.is_error():
            raise VkepError(f"the answer cannot follow its grammar: {shortened(self._matcher.get_error(), 500, 240)}")


class Grammars:
    """The grammars of a folder's tokenizer; compiled ones are kept. Thread-safe."""

    def __init__(self, folder: ModelFolder, vocabulary: int) -> None:
        self._folder, self._vocabulary = folder, vocabulary
        self._kept: dict[str, Any] = {}  # the oldest one comes first
        self._lock = threading.Lock()

    @functools.cached_property
    def _tokenizer(self) -> tuple[Any, Any]:
        """llguidance's module and tokenizer. Raises `MissingPackageError`, `InvalidInputError`."""
        try:
            import llguidance
        except ImportError as error:
            raise MissingPackageError(
                f"grammars and JSON schemas need the package llguidance: pip install 'vkep[serve]' ({error})"
            ) from None
        from vkep.generation.folder import read_text

        ends = sorted(self._folder.end_tokens)
        try:
            text = read_text(self._folder.path, FILE)
            return llguidance, llguidance.LLTokenizer(text, self._vocabulary or None, ends or None)
        except (ValueError, OSError) as error:
            raise InvalidInputError(
                f"llguidance has no grammars for the tokenizer of {self._folder.path}: {shortened(str(error))}"
            ) from None

    def knows(self, grammar: str) -> bool:
        """Whether a grammar is compiled already."""
        return grammar in self._kept

    def compiled(self, grammar: str) -> Any:
        """The matcher of a grammar before the first token. A new one is compiled, which may take a second. Raises
        `InvalidInputError` for one that cannot be used, and `MissingPackageError` without llguidance."""
        found = self._kept.get(grammar)
        if found is None:
            found = self._compiled(grammar)
            with self._lock:
                while len(self._kept) >= _KEPT:
                    del self._kept[next(iter(self._kept))]
                self._kept[grammar] = found
        return found

    def _compiled(self, grammar: str) -> Any:
        if len(grammar) > LONGEST:
            raise InvalidInputError(f"the grammar has {len(grammar)} characters, and {LONGEST} are allowed")
        llguidance, tokenizer = self._tokenizer
        matcher = llguidance.LLMatcher(tokenizer, grammar, log_level=0, limits=llguidance.LLParserLimits(**_LIMITS))
        if matcher.is_error():
            raise InvalidInputError(f"the grammar cannot be used: {shortened(matcher.get_error(), 500, 240)}")
        return matcher

    def begin(self, grammar: str) -> Grammar:
        """A grammar before the first token: a text in llguidance's form of Lark, or what `of_schema` gives. Raises as
        `compiled`."""
        return Grammar(self.compiled(grammar).deep_copy())
