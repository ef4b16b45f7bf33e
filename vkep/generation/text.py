"""Text and tokens: `tokenizer.json`, chat templates, and streamed text."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu_shared.steady import steady
from vkep.errors import InvalidInputError, InvalidModelError, VkepError
from vkep.generation.folder import Record, read_text
from vkep.generation.templates import MissingPackageError, render

FILE, CONFIG = "tokenizer.json", "tokenizer_config.json"
#: the replacement character that a tokenizer returns for an incomplete character
_UNFINISHED = "\N{REPLACEMENT CHARACTER}"
#: number of preceding tokens with which a tokenizer joins texts as it would within the whole one
_BEFORE = 6


class Text:
    """The tokenizer of a folder.

    Raises ``FileNotFoundError`` where there is no ``tokenizer.json``, `InvalidModelError` where it cannot be read,
    `MissingPackageError` without the package ``tokenizers``.
    """

    @steady
    def __init__(self, folder: Path) -> None:
        path = folder / FILE
        if not path.is_file():
            others = sorted(p.name for p in folder.glob("*.model")) + sorted(p.name for p in folder.glob("vocab.*"))
            found = (
                f"; {', '.join(others)} is a tokenizer of another kind: save it with transformers' fast tokenizer"
                if others
                else ""
            )
            raise FileNotFoundError(f"{path} is not there{found}. Prompts of token ids need no tokenizer")
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise MissingPackageError(
                f"prompts of text need the package tokenizers: pip install 'vkep[generate]' ({error})"
            ) from None
        text = read_text(folder, FILE)
        with _panics(InvalidModelError, f"{path}: no tokenizer that the package tokenizers reads"):
            self._tokenizer = Tokenizer.from_str(text)
            self._tokenizer.no_padding()
            self._tokenizer.no_truncation()
        added = self._tokenizer.get_added_tokens_decoder().values()
        #: the texts of special tokens, the longest first
        self._special = sorted({token.content for token in added if token.special and token.content}, key=len)[::-1]
        self._folder = folder

    @steady
    def encode(self, text: str, special: bool = True, numbered: str = "") -> list[int]:
        """The tokens of a text; with ``special`` also those that the tokenizer puts around a prompt. The texts of special
        tokens in it become these tokens. ``numbered``: a regular expression with one group, a number k, and what it finds
        becomes the token -k; the texts between are encoded apart. Raises `InvalidInputError` for a text that UTF-8 cannot have
        (lone surrogates), or that the tokenizer fails for."""
        return self._encoded(self._tokenizer, text, special, numbered)

    def _encoded(self, tokenizer: Any, text: str, special: bool, numbered: str = "") -> list[int]:
        if numbered:
            pieces = enumerate(re.split(numbered, text))
            parts = [
                [-_counted(t)] if k % 2 else self._encoded(tokenizer, t, special and not k) for k, t in pieces if t
            ]
            return [token for part in parts for token in part]
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidInputError(f"the text has a lone surrogate at character {error.start}") from None
        with _panics(InvalidInputError, f"the tokenizer of {self._folder} fails for this text"):
            return list(tokenizer.encode(text, add_special_tokens=special).ids)

    @functools.cached_property
    def _plain(self) -> Any:
        """The tokenizer for texts in which special tokens have no meaning."""
        plain = type(self._tokenizer).from_str(self._tokenizer.to_str())
        plain.encode_special_tokens = True
        return plain

    @steady
    def decode(self, tokens: Sequence[int], special: bool = False) -> str:
        """The text of tokens, with ``special`` that of special ones too. Raises `InvalidModelError` where the tokenizer fails."""
        with _panics(InvalidModelError, f"the tokenizer of {self._folder} fails for these tokens"):
            return str(self._tokenizer.decode(list(tokens), skip_special_tokens=not special))

    @steady
    def chat(
        self, messages: Sequence[Mapping[str, Any]], *, special: bool = False, numbered: str = "", **more: Any
    ) -> list[int]:
        """The tokens of a conversation up to where the next answer begins, by the folder's chat template.

        ``messages`` are objects with ``role`` and ``content``; ``more`` are further values of the template, such as ``tools``.
        Texts of special tokens in them stay texts, unless ``special``: a message cannot end itself and begin another.
        ``numbered`` as of `encode`. Raises
        `InvalidInputError` where the folder has no template or the template refuses the messages.
        """
        template, values = self._template
        marks = Marks(() if special else self._special)
        given = marks.put({"messages": list(messages), **more})
        text = render(template, {**values, "add_generation_prompt": True, **given})
        tokens: list[int] = []
        for piece, is_mark in marks.split(text):  # the template has the special tokens
            tokens += self._encoded(
                self._plain if is_mark else self._tokenizer, piece, special=False, numbered=numbered
            )
        return tokens

    @property
    def template(self) -> str:
        """The chat template. Raises `InvalidInputError` where the folder has none."""
        return self._template[0]

    @steady
    def of_token(self, token: int, before: int | None = None) -> str:
        """The text of one token, of a special one too, where it follows another. Raises as `decode`."""
        with _panics(InvalidModelError, f"the tokenizer of {self._folder} fails for these tokens"):
            start = [] if before is None else [before]
            old = self._tokenizer.decode(start, skip_special_tokens=False) if start else ""
            return str(self._tokenizer.decode([*start, token], skip_special_tokens=False)).removeprefix(old)

    @functools.cached_property
    def _template(self) -> tuple[str, dict[str, str]]:
        """The chat template, and the texts of the special tokens that it may use."""
        config = Record.read(self._folder, CONFIG, needed=False)
        special = {k: _content(v) for k, v in config.values.items() if k.endswith("_token") and v is not None}
        if os.path.lexists(self._folder / "chat_template.jinja"):
            return read_text(self._folder, "chat_template.jinja"), special
        found = config.values.get("chat_template")
        if not found:
            found = Record.read(self._folder, "chat_template.json", needed=False).values.get("chat_template")
        if isinstance(found, list):  # several templates, by name
            named = {
                Record(entry, config.where).text("name"): Record(entry, config.where).text("template")
                for entry in found
            }
            found = named.get("default") or next(iter(named.values()), None)
        if not isinstance(found, str):
            raise InvalidInputError(
                f"{self._folder} has no chat template (chat_template.jinja, or chat_template in {CONFIG}); "
                "write the whole prompt, without chat"
            )
        return found, special


@contextlib.contextmanager
def _panics(error: type[VkepError], message: str) -> Iterator[None]:
    """Raise ``error`` for what the package tokenizers raises: plain exceptions, and panics, which are none."""
    try:
        yield
    except BaseException as problem:
        if not isinstance(problem, Exception) and type(problem).__name__ != "PanicException":
            raise
        raise error(f"{message} ({type(problem).__name__}: {problem})") from None


def _counted(number: str) -> int:
    if not int(number):
        raise InvalidInputError("a mark of an image or a sound has the number 0; the first one has 1")
    return int(number)


def _content(token: Any) -> str:
    return str(token.get("content", "") if isinstance(token, Mapping) else token)


class Marks:
    """Marks in place of the texts of special tokens in messages, to find these in what a template makes of the messages."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts, self._name = texts, secrets.token_hex(8)
        self._find = re.compile("|".join(map(re.escape, texts))) if texts else None

    def put(self, value: Any) -> Any:
        """A message, or a part of it, with marks."""
        if isinstance(value, str) and self._find is not None:
            return self._find.sub(lambda found: f"{self._name}x{self._texts.index(found[0])}x", value)
        if isinstance(value, Mapping):
            return {self.put(key): self.put(item) for key, item in value.items()}
        return [self.put(item) for item in value] if isinstance(value, (list, tuple)) else value

    def split(self, text: str) -> Iterator[tuple[str, bool]]:
        """The text in pieces that are not empty: whether a piece is a special token's text, in place of a mark."""
        for k, piece in enumerate(re.split(f"{self._name}x([0-9]+)x", text)):
            if piece:
                yield (self._texts[int(piece)], True) if k % 2 else (piece, False)


class TextStream:
    """The text of tokens that are added one by one. It holds back bytes of an incomplete character, and text that may
    become a stop text."""

    def __init__(self, text: Text, stop: Sequence[str] = (), before: Sequence[int] = ()) -> None:
        """``before``: the tokens before the first one."""
        self._text, self._stop = text, stop
        self._ids = list(before[-_BEFORE:])
        self._start, self._shown = 0, len(self._ids)
        self._waiting = ""
        self.stopped = False  #: a stop text was found: no further text is returned

    def add(self, token: int) -> str:
        """Add a token; returns the text that is complete with it."""
        self._ids.append(token)
        return self._take(final=False)

    def end(self) -> str:
        """Return the text that was held back."""
        return "" if self.stopped else self._take(final=True)

    def _take(self, final: bool) -> str:
        old = self._text.decode(self._ids[self._start : self._shown])
        new = self._text.decode(self._ids[self._start :])
        if len(new) > len(old) and (final or not new.endswith(_UNFINISHED)):
            self._waiting += new[len(old) :]
            self._start, self._shown = max(0, self._shown - _BEFORE), len(self._ids)
        return self._without_stop(final)

    def _without_stop(self, final: bool) -> str:
        text = self._waiting
        found = [place for stop in self._stop if (place := text.find(stop)) >= 0]
        if found:
            self.stopped, self._waiting = True, ""
            return text[: min(found)]
        kept = 0 if final else max((_overlap(text, stop) for stop in self._stop), default=0)
        self._waiting = text[len(text) - kept :]
        return text[: len(text) - kept]


def _overlap(text: str, stop: str) -> int:
    """How many of the last characters of ``text`` may be the beginning of the stop text."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
