"""OpenAI's requests as data (https://platform.openai.com/docs/api-reference): chat, completions, embeddings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from vkep.errors import InvalidInputError
from vkep.generation.grammar import of_schema
from vkep.generation.sampling import MOST_LOGPROBS, MOST_STOPS, MOST_TOKENS, Sampling
from vkep.serving.jsontext import JsonCount
from vkep.serving.kserve import ProtocolError
from vkep.text import shortened, shown

#: limits of lists; numbers have those of `vkep.generation.Sampling`
_MOST_MESSAGES, _MOST_PARTS, _MOST_PROMPT, _LONGEST_NAME, _MOST_TOOLS = 4096, 1024, 1 << 18, 256, 128
#: values, and lists and objects, of a body: reading them keeps other requests waiting. Shorter bodies than ``_LONG`` have fewer
_MOST_VALUES, _MOST_LISTS, _LONG = 1 << 18, 1 << 15, 1 << 16
#: answers of a request, the most logarithms of a completion, and texts of a request for embeddings
MOST_CHOICES, _MOST_OF_COMPLETION, _MOST_INPUTS = 128, 5, 2048
#: fields that a request may have only with these values: others request features that do not exist. Null asks for nothing
_ONLY: dict[str, Sequence[Any]] = {
    "suffix": ("",),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "verbosity": ("medium",),
    "reasoning_effort": ("none", "medium"),
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


class _ImageUrl(_Strict):
    url: str
    detail: str | None = None


class _ImagePart(_Strict):
    type: Literal["image_url"]
    image_url: _ImageUrl


class _InputAudio(_Strict):
    data: str
    format: str


class _SoundPart(_Strict):
    type: Literal["input_audio"]
    input_audio: _InputAudio


_AnyPart = Annotated[_Part | _ImagePart | _SoundPart, Field(discriminator="type")]


class _Called(_Strict):
    name: str = Field(max_length=_LONGEST_NAME)
    arguments: str


class _Call(_Strict, extra="ignore"):
    id: str = Field(max_length=_LONGEST_NAME)
    type: Literal["function"] = "function"
    function: _Called


class _Message(_Strict, extra="allow"):
    role: str = Field(max_length=_LONGEST_NAME)
    content: str | Annotated[list[_AnyPart], Field(max_length=_MOST_PARTS, fail_fast=True)] | None = None
    tool_calls: Annotated[list[_Call], Field(max_length=_MOST_TOOLS, fail_fast=True)] | None = None


class _Function(_Strict):
    name: str = Field(min_length=1, max_length=_LONGEST_NAME, pattern=r"^[a-zA-Z0-9_.-]+$")
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class _Tool(_Strict):
    type: Literal["function"]
    function: _Function


class _Named(_Strict):
    name: str = Field(max_length=_LONGEST_NAME)


class _Chosen(_Strict):
    type: Literal["function"]
    function: _Named


class _Schema(_Strict):
    name: str = Field(max_length=_LONGEST_NAME)
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema", default_factory=dict)
    strict: bool | None = None


class _Format(_Strict):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: _Schema | None = None


class _Settings(_Strict):
    """Fields that both kinds of requests for texts have."""

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
    n: int | None = Field(None, ge=1, le=MOST_CHOICES)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    logit_bias: Annotated[dict[str, float], Field(max_length=MOST_TOKENS)] | None = None


class Conversation(_Settings):
    """The body of ``/v1/chat/completions``."""

    messages: list[_Message] = Field(min_length=1, max_length=_MOST_MESSAGES, fail_fast=True)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MOST_LOGPROBS)
    response_format: _Format | None = None
    tools: Annotated[list[_Tool], Field(max_length=_MOST_TOOLS, fail_fast=True)] | None = None
    tool_choice: Literal["none", "auto", "required"] | _Chosen | None = None
    parallel_tool_calls: bool | None = None


_Tokens: TypeAlias = Annotated[list[int], Field(min_length=1, max_length=_MOST_PROMPT, fail_fast=True)]


class Completion(_Settings):
    """The body of ``/v1/completions``."""

    prompt: (
        str
        | _Tokens
        | Annotated[list[str], Field(min_length=1, max_length=MOST_CHOICES, fail_fast=True)]
        | Annotated[list[_Tokens], Field(min_length=1, max_length=MOST_CHOICES, fail_fast=True)]
    )
    logprobs: int | None = Field(None, ge=0, le=_MOST_OF_COMPLETION)
    echo: bool | None = None
    best_of: int | None = Field(None, ge=1, le=MOST_CHOICES)


class EmbeddingsRequest(_Strict):
    """The body of ``/v1/embeddings``."""

    model: str | None = Field(None, max_length=_LONGEST_NAME)
    input: (
        str
        | _Tokens
        | Annotated[list[str], Field(min_length=1, max_length=_MOST_INPUTS, fail_fast=True)]
        | Annotated[list[_Tokens], Field(min_length=1, max_length=_MOST_INPUTS, fail_fast=True)]
    )
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = Field(None, ge=1)

    def inputs(self) -> Sequence[str | Sequence[int]]:
        """The texts, or the token ids, one for each embedding."""
        return _several(self.input)


@dataclass(frozen=True)
class ChatRequest:
    """The content of a request for texts: a conversation or prompts (texts or token ids), and settings.

    settings: of `vkep.generation.Sampling`, which has checked them. n: answers to each prompt. tools: as the request has them;
    tool: the name of the one that must be called, "*" for any, "" where none must be.
    """

    model: str
    messages: Sequence[Mapping[str, Any]] | None
    prompts: Sequence[str | Sequence[int]]
    settings: Mapping[str, Any]
    stream: bool
    usage: bool  #: whether a stream ends with the counts of tokens
    n: int = 1
    echo: bool = False
    tools: Sequence[Mapping[str, Any]] = field(default_factory=tuple)
    tool: str = ""


_Body = TypeVar("_Body", bound=BaseModel)


def read(kind: type[_Body], body: bytes) -> _Body:
    """A request's body as one of the classes of this module. Raises `ProtocolError` (400)."""
    count = JsonCount()
    count.add(body if len(body) > _LONG else b"")
    if count.values > _MOST_VALUES or count.lists > _MOST_LISTS:
        raise ProtocolError(
            400,
            f"the request has {count.values} values and {count.lists} lists and objects, "
            f"and {_MOST_VALUES} and {_MOST_LISTS} are allowed",
        )
    try:
        given = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise ProtocolError(400, f"the request's JSON cannot be read: {error}") from None
    if not isinstance(given, dict):
        raise ProtocolError(400, "the request is no JSON object")
    for name, allowed in _ONLY.items():
        value = given.pop(name, None)
        if value is not None and not any(type(value) is type(one) and value == one for one in allowed):
            raise ProtocolError(400, f"{name} is {shown(value)}; only {allowed[0]!r} is supported", name)
    for name in _IGNORED:
        given.pop(name, None)
    known = kind.model_fields
    try:
        # null asks for nothing, also in fields that are not known here
        return kind.model_validate({name: v for name, v in given.items() if v is not None or name in known})
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = shortened(".".join(map(str, first["loc"][:3])), 200)
        raise ProtocolError(
            400, f"{where} is {shown(first['input'])}: {first['msg']}", shortened(str(first["loc"][0]), 200)
        ) from None


def parse_request(body: bytes, chat: bool) -> ChatRequest:
    """A request to ``/v1/chat/completions``, or ``/v1/completions``. Raises `ProtocolError` (400)."""
    read_as: Conversation | Completion = read(Conversation, body) if chat else read(Completion, body)
    settings = {
        _RENAMED.get(name, name): value
        for name in sorted((_Settings.model_fields.keys() - _OTHER) & read_as.model_fields_set)
        if (value := getattr(read_as, name)) is not None
    }
    if "logit_bias" in settings:
        settings["logit_bias"] = _biases(settings["logit_bias"])
    more: dict[str, Any] = _of_chat(read_as) if isinstance(read_as, Conversation) else _of_completion(read_as)
    settings |= {name: more.pop(name) for name in ("logprobs", "grammar") if name in more}
    try:
        Sampling(**settings)
    except InvalidInputError as error:
        raise ProtocolError(400, str(error), str(error).split(" ", 1)[0]) from None
    return ChatRequest(
        model=read_as.model or "",
        settings=settings,
        stream=bool(read_as.stream),
        usage=bool(read_as.stream_options and read_as.stream_options.include_usage),
        n=read_as.n or 1,
        **more,
    )


#: fields that are no settings of an answer
_OTHER = {"model", "stream", "stream_options", "n"}


def _of_chat(given: Conversation) -> dict[str, Any]:
    if given.top_logprobs and not given.logprobs:
        raise ProtocolError(400, "top_logprobs needs logprobs: true", "top_logprobs")
    found: dict[str, Any] = {"messages": list(map(_message, given.messages)), "prompts": ()}
    if given.logprobs:
        found["logprobs"] = given.top_logprobs or 0
    choice = given.tool_choice or "auto"
    tools = given.tools or []
    names = [tool.function.name for tool in tools]
    if len(set(names)) < len(names):
        raise ProtocolError(400, f"tools has functions of the same name: {shown(names)}", "tools")
    if isinstance(choice, _Chosen):
        found["tool"] = choice.function.name
        if choice.function.name not in names:
            raise ProtocolError(400, f"tool_choice names {shown(found['tool'])}, which is none of tools", "tool_choice")
    elif choice == "required":
        found["tool"] = "*"
        if not tools:
            raise ProtocolError(400, "tool_choice is 'required', and the request has no tools", "tool_choice")
    if choice != "none":
        found["tools"] = tuple(tool.model_dump(exclude_none=True) for tool in tools)
    form = given.response_format
    if form is not None and form.type != "text":
        if found.get("tools"):
            raise ProtocolError(400, "response_format is supported only without tools", "response_format")
        if (form.json_schema is None) is (form.type == "json_schema"):
            raise ProtocolError(
                400, "json_schema belongs to a response_format of type 'json_schema'", "response_format"
            )
        found["grammar"] = of_schema(form.json_schema.schema_ if form.json_schema is not None else {"type": "object"})
    return found


def _of_completion(given: Completion) -> dict[str, Any]:
    if given.best_of is not None and given.best_of != (given.n or 1):
        raise ProtocolError(400, f"best_of is {given.best_of}; only the value of n is supported", "best_of")
    if given.echo and given.logprobs is not None:
        raise ProtocolError(400, "echo is supported only without logprobs: the prompt's tokens have none", "echo")
    prompts = _several(given.prompt)
    if len(prompts) * (given.n or 1) > MOST_CHOICES:
        raise ProtocolError(
            400, f"n is {given.n} for {len(prompts)} prompts: a request may have {MOST_CHOICES} answers", "n"
        )
    found: dict[str, Any] = {"messages": None, "prompts": prompts, "echo": bool(given.echo)}
    return found | ({"logprobs": given.logprobs} if given.logprobs is not None else {})


def _several(given: Any) -> Sequence[str | Sequence[int]]:
    """A text, token ids, or a list of these, as a list."""
    return [given] if isinstance(given, str) or isinstance(given[0], int) else given


def _biases(given: Mapping[str, float]) -> dict[int, float]:
    """Numbers by token, whose ids are texts in JSON."""
    wrong = [key for key in given if not (key.isascii() and key.isdecimal() and len(key) < 10)]
    if wrong:
        raise ProtocolError(400, f"logit_bias has the key {shown(wrong[0])}, expected a token id", "logit_bias")
    return {int(key): value for key, value in given.items()}


def _message(message: _Message) -> Mapping[str, Any]:
    """A message as templates read it: one text, and the arguments of calls as objects."""
    parts = message.content
    found = message.model_dump(exclude_none=True)
    texts = [part for part in parts or () if isinstance(part, _Part)]
    if not isinstance(parts, list) or len(texts) == len(parts):  # with images and sounds the parts stay apart
        found["content"] = parts if isinstance(parts, str) else "".join(part.text for part in texts)
    if message.tool_calls is None and parts is None:
        raise ProtocolError(400, f"a message of role {shown(message.role)} has no content", "messages")
    for call in found.get("tool_calls", ()):
        try:
            arguments = json.loads(call["function"]["arguments"])
        except (ValueError, RecursionError):
            continue  # as the model wrote it
        if isinstance(arguments, dict):
            call["function"]["arguments"] = arguments
    return found
