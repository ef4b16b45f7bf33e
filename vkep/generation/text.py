"""Text and tokens: `tokenizer.json`, chat templates, and streamed text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from vkep.errors import InvalidInputError, InvalidModelError, VkepError
from vkep.generation.folder import read_json

FILE, CONFIG = "tokenizer.json", "tokenizer_config.json"
#: the replacement character that a tokenizer returns for an incomplete character
_UNFINISHED = "\N{REPLACEMENT CHARACTER}"
#: number of preceding tokens with which a tokenizer joins texts as it would within the whole one
_BEFORE = 6


class MissingPackageError(VkepError, ImportError):
    """A package of the extra ``vkep[generate]`` is not installed."""


class Text:
    """The tokenizer of a folder.

    Raises ``FileNotFoundError`` where there is no ``tokenizer.json``, `InvalidModelError` where it cannot be read,
    `MissingPackageError` without the package ``tokenizers``.
    """

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
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the package raises plain Exception
            raise InvalidModelError(f"{path}: no tokenizer that the package tokenizers reads ({error})") from None
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._folder = folder

    def encode(self, text: str, special: bool = True) -> list[int]:
        """The tokens of a text; with ``special`` also those that the tokenizer puts around a prompt."""
        return list(self._tokenizer.encode(text, add_special_tokens=special).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, without special ones."""
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))

    def chat(self, messages: Sequence[Mapping[str, Any]], **more: Any) -> list[int]:
        """The tokens of a conversation up to where the next answer begins, by the folder's chat template.

        ``messages`` are objects with ``role`` and ``content``. Raises `InvalidInputError` where the folder has no template or the
        template refuses the messages.
        """
        config = read_json(self._folder / CONFIG) if (self._folder / CONFIG).is_file() else {}
        template = self._template(config)
        special = {k: _content(v) for k, v in config.items() if k.endswith("_token") and v is not None}
        text = render(template, {**special, "messages": list(messages), "add_generation_prompt": True, **more})
        return self.encode(text, special=False)  # the template contains the special tokens

    def _template(self, config: Mapping[str, Any]) -> str:
        file = self._folder / "chat_template.jinja"
        if file.is_file():
            return file.read_text(encoding="utf-8")
        beside = self._folder / "chat_template.json"
        found = config.get("chat_template") or (read_json(beside).get("chat_template") if beside.is_file() else None)
        if isinstance(found, list):  # several templates, by name
            named = {entry.get("name"): entry.get("template") for entry in found}
            found = named.get("default") or next(iter(named.values()), None)
        if not isinstance(found, str):
            raise InvalidInputError(
                f"{self._folder} has no chat template (chat_template.jinja, or chat_template in {CONFIG}); "
                "write the whole prompt, without chat"
            )
        return found


def _content(token: Any) -> str:
    return str(token["content"] if isinstance(token, Mapping) else token)


def render(template: str, values: Mapping[str, Any]) -> str:
    """Render a chat template. Templates come with models that are not trusted: the sandbox keeps them from accessing
    the interpreter.

    Raises `InvalidInputError` where it fails, `MissingPackageError` without the package jinja2.
    """
    try:
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as error:
        raise MissingPackageError(
            f"chat templates need the package jinja2: pip install 'vkep[generate]' ({error})"
        ) from None

    def refuse(message: str) -> NoReturn:
        raise TemplateError(message)

    extensions = ["jinja2.ext.loopcontrols"]
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
    environment.globals.update(raise_exception=refuse, strftime_now=lambda form: datetime.now().strftime(form))
    try:
        return environment.from_string(template).render(values)
    except (TemplateError, TypeError, ValueError, LookupError) as error:
        raise InvalidInputError(f"the chat template refuses the messages: {type(error).__name__}: {error}") from None


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
