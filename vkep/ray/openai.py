"""OpenAI's chat and completion requests and answers as data (https://platform.openai.com/docs/api-reference/chat)."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vkep.ray.kserve import ProtocolError

#: maps a request's names to settings of `vkep.generation.Sampling`, with their types
_SETTINGS: dict[str, tuple[str, type | tuple[type, ...]]] = {
    "temperature": ("temperature", (int, float)),
    "top_p": ("top_p", (int, float)),
    "top_k": ("top_k", int),
    "min_p": ("min_p", (int, float)),
    "repetition_penalty": ("repetition_penalty", (int, float)),
    "seed": ("seed", int),
    "max_tokens": ("max_tokens", int),
    "max_completion_tokens": ("max_tokens", int),
    "stop": ("stop", (str, list)),
    "ignore_eos": ("ignore_end", bool),
}
#: fields that a request may have only with these values: others request features that do not exist
_ONLY: dict[str, Sequence[Any]] = {
    "n": (1, None),
    "best_of": (1, None),
    "echo": (False, None),
    "logprobs": (False, None),
    "top_logprobs": (0, None),
    "presence_penalty": (0, None),
    "frequency_penalty": (0, None),
    "logit_bias": ({}, None),
    "suffix": ("", None),
    "tools": ([], None),
    "tool_choice": ("none", "auto", None),
    "functions": ([], None),
    "response_format": ({"type": "text"}, None),
}
_IGNORED = {"user", "metadata", "store", "service_tier"}
#: why an answer ended, in OpenAI's terms
_REASONS = {"stop": "stop", "length": "length", "context": "length", "memory": "length", "cancelled": "stop"}


@dataclass(frozen=True)
class ChatRequest:
    """The content of a request: a conversation or a prompt (a text or token ids), and settings.

    settings: of `vkep.generation.Sampling`.
    """

    model: str
    messages: Sequence[Mapping[str, Any]] | None
    prompt: str | Sequence[int] | None
    settings: Mapping[str, Any]
    stream: bool
    usage: bool  #: whether a stream ends with the counts of tokens


def parse_request(body: bytes, chat: bool) -> ChatRequest:
    """A request to ``/v1/chat/completions``, or ``/v1/completions``. Raises `ProtocolError` (400)."""
    try:
        given = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(400, f"the request's JSON cannot be read: {error}") from None
    if not isinstance(given, dict):
        raise ProtocolError(400, "the request is no JSON object")
    said = {"model", "stream", "stream_options", "messages" if chat else "prompt"}
    unknown = sorted(set(given) - said - set(_SETTINGS) - set(_ONLY) - _IGNORED)
    if unknown:
        raise ProtocolError(400, f"the request has {unknown}, which are not known here")
    for name, allowed in _ONLY.items():
        if name in given and given[name] not in allowed:
            raise ProtocolError(400, f"{name} is {given[name]!r}; only {allowed[0]!r} can be had here")
    settings = {}
    for name, (setting, kinds) in _SETTINGS.items():
        value = given.get(name)
        if value is None:
            continue
        if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool):
            raise ProtocolError(400, f"{name} is {value!r}, which it cannot be")
        settings[setting] = value
    stop = settings.get("stop")
    if isinstance(stop, list) and not all(isinstance(text, str) for text in stop):
        raise ProtocolError(400, f"stop is {stop!r}, expected a text or a list of texts")
    options = given.get("stream_options") or {}
    if not isinstance(options, dict) or not isinstance(given.get("stream", False), (bool, type(None))):
        raise ProtocolError(400, "stream is expected to be true or false, stream_options an object")
    model = given.get("model", "")
    if not isinstance(model, str):
        raise ProtocolError(400, f"model is {model!r}, expected a name")
    return ChatRequest(
        model,
        _messages(given.get("messages")) if chat else None,
        None if chat else _prompt(given.get("prompt")),
        settings,
        bool(given.get("stream")),
        bool(options.get("include_usage")),
    )


def _messages(messages: Any) -> Sequence[Mapping[str, Any]]:
    if not isinstance(messages, list) or not messages:
        raise ProtocolError(400, "messages is expected to be a list of at least one message")
    found = []
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list):  # parts of text
            texts = [
                part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None for part in content
            ]
            content = None if None in texts else "".join(map(str, texts))
        if not isinstance(content, str) or not isinstance(message.get("role"), str):
            raise ProtocolError(400, f"a message is {message!r}, expected an object with role and content, both texts")
        found.append({**message, "content": content})
    return found


def _prompt(prompt: Any) -> str | Sequence[int]:
    ids = isinstance(prompt, list) and prompt and all(isinstance(t, int) and not isinstance(t, bool) for t in prompt)
    if not isinstance(prompt, str) and not ids:
        raise ProtocolError(400, "prompt is expected to be one text, or a list of token ids")
    return prompt


class Answering:
    """The response objects of one answer."""

    def __init__(self, request: ChatRequest, model: str) -> None:
        self._chat = request.messages is not None
        self._usage = request.usage
        kind = "chat.completion" if self._chat else "text_completion"
        self._head = {
            "id": f"{'chatcmpl' if self._chat else 'cmpl'}-{uuid.uuid4().hex}",
            "object": f"{kind}.chunk" if self._chat and request.stream else kind,
            "created": int(time.time()),
            "model": model,
        }
        self._first = True

    def chunk(self, text: str, reason: str) -> bytes:
        """A server-sent event with a piece of the answer."""
        choice: dict[str, Any] = {"index": 0, "finish_reason": _REASONS.get(reason)}
        if self._chat:
            choice["delta"] = {"role": "assistant"} if self._first else {}
            if text or self._first:
                choice["delta"]["content"] = text
        else:
            choice["text"] = text
        self._first = False
        return event({**self._head, "choices": [choice]})

    def end(self, prompt: int, tokens: int) -> bytes:
        """The last events: the counts of tokens where they were requested, and the end marker."""
        counts = event({**self._head, "choices": [], "usage": usage(prompt, tokens)}) if self._usage else b""
        return counts + b"data: [DONE]\n\n"

    def whole(self, text: str, reason: str, prompt: int, tokens: int) -> dict[str, Any]:
        """The whole answer in one object."""
        choice: dict[str, Any] = {"index": 0, "finish_reason": _REASONS.get(reason)}
        choice.update({"message": {"role": "assistant", "content": text}} if self._chat else {"text": text})
        return {**self._head, "choices": [choice], "usage": usage(prompt, tokens)}


def usage(prompt: int, tokens: int) -> dict[str, int]:
    """The counts of tokens."""
    return {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}


def event(value: Any) -> bytes:
    """A server-sent event."""
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def error_of(status: int, text: str) -> dict[str, Any]:
    """An error in the form that OpenAI's clients read."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": text, "type": kind, "code": status, "param": None}}
