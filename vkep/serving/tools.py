"""Calls of tools in the text of an answer, in the forms that chat templates tell models to use."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vkep.generation.grammar import of_schema

#: what encloses a call in the form of Hermes, Qwen and others
_BEGIN, _END = "<tool_call>", "</tool_call>"
_MOST_CALLS = 128


@dataclass(frozen=True)
class Call:
    """A call: the function's name, and its arguments as JSON."""

    name: str
    arguments: str


@dataclass(frozen=True)
class Form:
    """How a model writes calls. enclosed: each between tags; else the answer is one call, or a list of them. arguments: the name
    of the arguments in a call's object."""

    enclosed: bool
    arguments: str

    @classmethod
    def of(cls, template: str) -> Form | None:
        """The form that a chat template asks for; None for a template that takes no tools."""
        if not re.search(r"\btools\b", template):
            return None
        parameters = re.search(r"""["']name["']\s*:[^}]{0,80}["']parameters["']\s*:""", template) is not None
        enclosed = _BEGIN in template
        return cls(enclosed, "parameters" if parameters and not enclosed else "arguments")

    def grammar(self, tools: Sequence[Mapping[str, Any]], name: str) -> str:
        """The grammar of one call of the function ``name`` ("*": of any)."""
        functions = [tool["function"] for tool in tools if name in ("*", tool["function"]["name"])]
        schema = of_schema({"anyOf": [self._schema(function) for function in functions]})
        if not self.enclosed:
            return schema
        return f'start: "{_BEGIN}\\n" call "\\n{_END}"\n' + schema.replace("start:", "call:", 1)

    def _schema(self, function: Mapping[str, Any]) -> dict[str, Any]:
        parameters = function.get("parameters") or {"type": "object", "properties": {}, "additionalProperties": False}
        return {
            "type": "object",
            "properties": {"name": {"const": function["name"]}, self.arguments: parameters},
            "required": ["name", self.arguments],
            "additionalProperties": False,
        }


class Calls:
    """Separates the calls of tools from the text of one answer, piece by piece."""

    def __init__(self, form: Form, tools: Sequence[Mapping[str, Any]]) -> None:
        self._form, self._names = form, {tool["function"]["name"] for tool in tools}
        self._held = ""  #: text that may be a call
        self._plain = False  #: the answer cannot be a call any more
        self.found: list[Call] = []

    def add(self, text: str) -> str:
        """Take a piece; returns the text before which no call can begin."""
        if self._plain:
            return text
        self._held += text
        if not self._form.enclosed:
            begins = self._held.lstrip()[:1]
            return "" if not begins or begins in "[{" else self._flush()
        shown = ""
        while (start := self._held.find(_BEGIN)) >= 0:
            shown += self._held[:start]
            end = self._held.find(_END, start)
            if end < 0:
                self._held = self._held[start:]
                return shown
            inner, whole = self._held[start + len(_BEGIN) : end], self._held[start : end + len(_END)]
            self._held = self._held[end + len(_END) :]
            if not self._take(inner):
                shown += whole
        kept = next(
            (n for n in range(min(len(_BEGIN) - 1, len(self._held)), 0, -1) if _BEGIN.startswith(self._held[-n:])), 0
        )
        shown, self._held = shown + self._held[: len(self._held) - kept], self._held[len(self._held) - kept :]
        return shown if not self.found else shown.strip()

    def end(self) -> str:
        """The text that was held back and is no call."""
        if self._held and not self._form.enclosed and self._take(self._held):
            self._held = ""
        return self._flush()

    def _flush(self) -> str:
        text, self._held = self._held, ""
        self._plain = not self._form.enclosed
        return text

    def _take(self, text: str) -> bool:
        """Whether a text is one call or a list of them."""
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return False
        given = value if isinstance(value, list) else [value]
        calls = [call for one in given if (call := self._call(one)) is not None]
        if not calls or len(calls) < len(given) or len(self.found) + len(calls) > _MOST_CALLS:
            return False
        self.found += calls
        return True

    def _call(self, value: Any) -> Call | None:
        if not isinstance(value, dict) or not isinstance(value.get("name"), str) or value["name"] not in self._names:
            return None
        arguments = value.get("arguments", value.get("parameters", {}))
        return Call(value["name"], arguments if isinstance(arguments, str) else json.dumps(arguments))
