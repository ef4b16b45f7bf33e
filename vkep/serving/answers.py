"""OpenAI's answers as data: whole objects, and the events of streams."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from vkep.serving.openai import ChatRequest
from vkep.serving.tools import Calls, Form

if TYPE_CHECKING:
    from vkep.generation import Event
    from vkep.generation.batch import Logprob

#: why an answer ended, in OpenAI's terms
_REASONS = {"stop": "stop", "length": "length", "context": "length", "memory": "length", "cancelled": "stop"}
#: an error's type and code by its status; others are the request's fault
_KINDS = {
    401: ("invalid_request_error", "invalid_api_key"),
    429: ("rate_limit_error", "rate_limit_exceeded"),
}


class Choice:
    """One answer of a request, step by step."""

    def __init__(
        self, index: int, request: ChatRequest, form: Form | None, prompt: str, token_text: Callable[[int], str]
    ) -> None:
        """``form``: of calls of tools, where the request has any; ``prompt``: the text that precedes a completion's answer;
        ``token_text``: the text of a token."""
        self._index, self._chat, self._token_text = index, request.messages is not None, token_text
        self._calls = Calls(form, request.tools) if form is not None else None
        self._prompt, self._first = prompt, True
        self._text, self._reason = prompt, ""
        self._logprobs: list[Logprob] = []
        self._wants = request.settings.get("logprobs") is not None
        self._at = len(prompt)

    def take(self, event: Event) -> str:
        """Take a step's event; returns the text that a reader sees of it."""
        text = event.text
        if self._calls is not None:
            text = self._calls.add(text) + (self._calls.end() if event.reason else "")
        if event.logprob is not None:
            self._logprobs.append(event.logprob)
        self._text += text
        self._reason = event.reason
        return text

    def _finish(self) -> str | None:
        called = self._calls is not None and bool(self._calls.found) and self._reason == "stop"
        return "tool_calls" if called else _REASONS.get(self._reason)

    def chunk(self, event: Event) -> dict[str, Any] | None:
        """The choice of a stream's event; None where there is nothing to send."""
        text = self.take(event)
        found: dict[str, Any] = {"index": self._index, "finish_reason": self._finish()}
        logprobs = self._shown_logprobs()
        if not (text or event.reason or self._first or logprobs):
            return None
        if self._wants:
            found["logprobs"] = logprobs
            self._logprobs = []
        if self._chat:
            found["delta"] = {"role": "assistant"} if self._first else {}
            if text or self._first:
                found["delta"]["content"] = text
            if event.reason and self._calls is not None and self._calls.found:
                found["delta"]["tool_calls"] = [{"index": k, **call} for k, call in enumerate(self._tool_calls())]
        else:
            found["text"] = self._prompt + text if self._first else text
        self._first = False
        return found

    def whole(self) -> dict[str, Any]:
        """The choice of a whole answer."""
        found: dict[str, Any] = {"index": self._index, "finish_reason": self._finish()}
        if self._wants:
            found["logprobs"] = self._shown_logprobs()
        if not self._chat:
            return {**found, "text": self._text}
        message: dict[str, Any] = {"role": "assistant", "content": self._text}
        if calls := self._tool_calls():
            message |= {"content": self._text or None, "tool_calls": calls}
        return {**found, "message": message}

    def _tool_calls(self) -> list[dict[str, Any]]:
        return [
            {
                "id": f"call_{uuid.uuid4().hex[:24]}",
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in (self._calls.found if self._calls is not None else ())
        ]

    def _shown_logprobs(self) -> dict[str, Any] | None:
        """The logarithms in the form of chats, or of completions."""
        if not self._logprobs:
            return None
        if self._chat:
            content = [
                {
                    **self._logprob(one.token, one.value),
                    "top_logprobs": [self._logprob(*top) for top in one.top.items()],
                }
                for one in self._logprobs
            ]
            return {"content": content, "refusal": None}
        texts = [self._token_text(one.token) for one in self._logprobs]
        offsets = []
        for text in texts:
            offsets.append(self._at)
            self._at += len(text)
        return {
            "tokens": texts,
            "token_logprobs": [one.value for one in self._logprobs],
            "top_logprobs": [{self._token_text(t): value for t, value in one.top.items()} for one in self._logprobs],
            "text_offset": offsets,
        }

    def _logprob(self, token: int, value: float) -> dict[str, Any]:
        text = self._token_text(token)
        whole = "\N{REPLACEMENT CHARACTER}" not in text  # else a part of a character's bytes
        return {"token": text, "logprob": value, "bytes": list(text.encode()) if whole else None}


class Answering:
    """The response objects of one request."""

    def __init__(self, request: ChatRequest, model: str) -> None:
        chat = request.messages is not None
        self._usage = request.usage
        kind = "chat.completion" if chat else "text_completion"
        self._head = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4().hex}",
            "object": f"{kind}.chunk" if chat and request.stream else kind,
            "created": int(time.time()),
            "model": model,
        }

    def chunk(self, choice: dict[str, Any]) -> bytes:
        """A server-sent event with a piece of an answer."""
        return event({**self._head, "choices": [choice]})

    def end(self, prompt: int, tokens: int) -> bytes:
        """The last events: the counts of tokens where they were requested, and the end marker."""
        counts = event({**self._head, "choices": [], "usage": usage(prompt, tokens)}) if self._usage else b""
        return counts + b"data: [DONE]\n\n"

    def whole(self, choices: Sequence[dict[str, Any]], prompt: int, tokens: int) -> dict[str, Any]:
        """All answers in one object."""
        return {**self._head, "choices": list(choices), "usage": usage(prompt, tokens)}


def card(name: str, created: int) -> dict[str, Any]:
    """A model that was opened at a time, as the list of models has it."""
    return {"id": name, "object": "model", "created": created, "owned_by": "vkep"}


def usage(prompt: int, tokens: int) -> dict[str, int]:
    """The counts of tokens."""
    return {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}


def event(value: Any) -> bytes:
    """A server-sent event."""
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def error_of(status: int, text: str, param: str | None = None) -> dict[str, Any]:
    """An error in the form that OpenAI's clients read."""
    kind, code = _KINDS.get(status, ("invalid_request_error" if status < 500 else "server_error", None))
    if status == 404 and param == "model":
        code = "model_not_found"
    return {"error": {"message": text, "type": kind, "param": param, "code": code}}
