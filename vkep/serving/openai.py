"""OpenAI's chat and completion requests and answers as data (https://platform.openai.com/docs/api-reference/chat)."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from vkep.errors import InvalidInputError, shortened, shown
from vkep.generation.sampling import MOST_STOPS, Sampling
from vkep.serving.kserve import ProtocolError

#: limits of lists; numbers have those of `vkep.generation.Sampling`
_MOST_MESSAGES, _MOST_PARTS, _MOST_TOKENS, _LONGEST_NAME = 4096, 1024, 1 << 20, 256
#: fields that a request may have only with these values: others request features that do not exist. Null asks for nothing
_ONLY: dict[str, Sequence[Any]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "presence_penalty": (0, 0.0),
    "frequency_penalty": (0, 0.0),
    "logit_bias": ({},),
    "suffix": ("",),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "verbosity": ("medium",),
}
#: fields that change no answer
_IGNORED = (
    "user",
    "metadata",
    "store",
    "service_tier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
)
#: why an answer ended, in OpenAI's terms
_REASONS = {"stop": "stop", "length": "length", "context": "length", "memory": "length", "cancelled": "stop"}
#: a request's names of settings of `vkep.generation.Sampling`, where they differ
_RENAMED = {"max_completion_tokens": "max_tokens", "ignore_eos": "ignore_end"}


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class _StreamOptions(_Strict):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class _Part(_Strict):
    type: Literal["text"]
    text: str


class _Message(_Strict, extra="allow"):
    role: str = Field(max_length=_LONGEST_NAME)
    content: str | Annotated[list[_Part], Field(max_length=_MOST_PARTS, fail_fast=True)]


class _Settings(_Strict):
    """Fields that both kinds of requests have."""

    model: str | None = Field(None, max_length=_LONGEST_NAME)
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stop: str | Annotated[list[str], Field(max_length=MOST_STOPS, fail_fast=True)] | None = None
    ignore_eos: bool | None = None


class _Conversation(_Settings):
    messages: list[_Message] = Field(min_length=1, max_length=_MOST_MESSAGES, fail_fast=True)


class _Completion(_Settings):
    prompt: str | Annotated[list[int], Field(min_length=1, max_length=_MOST_TOKENS, fail_fast=True)]


_OURS = set(_Settings.model_fields) - {"model", "stream", "stream_options"}


@dataclass(frozen=True)
class ChatRequest:
    """The content of a request: a conversation or a prompt (a text or token ids), and settings.

    settings: of `vkep.generation.Sampling`, which has checked them.
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
        given = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise ProtocolError(400, f"the request's JSON cannot be read: {error}") from None
    if not isinstance(given, dict):
        raise ProtocolError(400, "the request is no JSON object")
    for name, allowed in _ONLY.items():
        value = given.pop(name, None)
        if value is not None and not any(type(value) is type(one) and value == one for one in allowed):
            raise ProtocolError(400, f"{name} is {shown(value)}; only {allowed[0]!r} can be had here")
    for name in _IGNORED:
        given.pop(name, None)
    known = (_Conversation if chat else _Completion).model_fields
    try:
        # null asks for nothing, also in fields that are not known here
        read = (_Conversation if chat else _Completion).model_validate(
            {name: value for name, value in given.items() if value is not None or name in known}
        )
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"][:3]))
        raise ProtocolError(400, f"{shortened(where, 200)} is {shown(first['input'])}: {first['msg']}") from None
    settings = {
        _RENAMED.get(n, n): v for n in sorted(_OURS & read.model_fields_set) if (v := getattr(read, n)) is not None
    }
    try:
        Sampling(**settings)
    except InvalidInputError as error:
        raise ProtocolError(400, str(error)) from None
    return ChatRequest(
        read.model or "",
        list(map(_text_message, read.messages)) if isinstance(read, _Conversation) else None,
        read.prompt if isinstance(read, _Completion) else None,
        settings,
        bool(read.stream),
        bool(read.stream_options and read.stream_options.include_usage),
    )


def _text_message(message: _Message) -> Mapping[str, Any]:
    parts = message.content
    content = parts if isinstance(parts, str) else "".join(part.text for part in parts)
    return {**message.model_dump(), "content": content}


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
