"""OpenAI's requests and answers as data."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vkep.serving.kserve import ProtocolError
from vkep.serving.openai import Answering, parse_request

HELLO = [{"role": "user", "content": "hello"}]


def parsed(chat: bool = True, **request: Any) -> Any:
    return parse_request(json.dumps(request).encode(), chat)


def events(*pieces: bytes) -> list[Any]:
    texts = [line.removeprefix("data: ") for line in b"".join(pieces).decode().split("\n\n") if line]
    return [text if text == "[DONE]" else json.loads(text) for text in texts]


def test_a_conversation() -> None:
    request = parsed(
        model="m", messages=HELLO, max_completion_tokens=5, temperature=0, stop="x", n=1, user="u", seed=None
    )
    assert request.messages == HELLO and not request.stream
    assert request.settings == {"max_tokens": 5, "temperature": 0, "stop": "x"}
    parts = parsed(
        messages=[{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    )
    assert parts.messages[0]["content"] == "ab"


def test_a_completion() -> None:
    assert parsed(False, prompt="hello", stream=True).stream
    assert parsed(False, prompt=[1, 2]).prompt == [1, 2]


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        ({}, "messages is {}: Field required"),
        ({"messages": []}, r"messages is \[\]"),
        ({"messages": [{"role": "user"}]}, r"messages.0.content is"),
        ({"messages": ["hello"]}, "messages.0 is 'hello'"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "JSON cannot be read"),
        ({"messages": HELLO * 5000}, "at most 4096 items"),
        ({"messages": HELLO, "temperature": "hot"}, "temperature is 'hot'"),
        ({"messages": HELLO, "max_tokens": True}, "max_tokens is True"),
        ({"messages": HELLO, "n": 2}, "only 1 can be had"),
        ({"messages": HELLO, "logprobs": True}, "only False can be had"),
        ({"messages": HELLO, "n": True}, "n is True"),
        ({"messages": HELLO, "frobnicate": 1}, "frobnicate is 1"),
        ({"messages": HELLO, "stop": [1]}, "stop"),
        ({"messages": HELLO, "stop": ["~"] * 1_000_000}, "stop"),
        ({"messages": HELLO, "stop": "x" * 100_000}, "stop"),
        ({"messages": HELLO, "stream": 1}, "stream is 1"),
        ({"messages": HELLO, "temperature": 10**400}, "JSON|temperature"),
        ({"messages": HELLO, "temperature": float("nan")}, "JSON"),
        ({"messages": HELLO, "top_k": 10**30}, "top_k"),
        ({"messages": HELLO, "seed": 1.5}, "seed is 1.5"),
        ({"messages": HELLO, "max_tokens": 0}, "max_tokens is 0"),
        ({"messages": HELLO, "model": 1}, "model is 1"),
    ],
)
def test_what_is_refused(request_: Any, says: str) -> None:
    with pytest.raises(ProtocolError, match=says) as raised:
        parsed(**request_)
    assert raised.value.status == 400
    assert len(str(raised.value)) < 1000
    with pytest.raises(ProtocolError, match="prompt"):
        parsed(False, prompt=[True])


@pytest.mark.parametrize(
    "field",
    [
        {"parallel_tool_calls": True},
        {"logit_bias": None},
        {"n": 1},
        {"service_tier": "auto"},
        {"new": None},
        {"presence_penalty": 0.0},
        {"modalities": ["text"]},
        {"tools": []},
        {"function_call": "none"},
    ],
)
def test_fields_that_ask_for_nothing(field: dict[str, Any]) -> None:
    assert parsed(messages=HELLO, **field).settings == {}


@given(st.binary(max_size=50), st.booleans())
def test_noise_is_refused(body: bytes, chat: bool) -> None:
    with pytest.raises(ProtocolError):
        parse_request(body, chat)


def test_a_stream_in_the_chat_form() -> None:
    answering = Answering(parsed(messages=HELLO, stream=True, stream_options={"include_usage": True}), "m")
    first, last, counts, done = events(answering.chunk("he", ""), answering.chunk("", "context"), answering.end(3, 2))
    assert first["object"] == "chat.completion.chunk" and first["model"] == "m"
    assert first["choices"][0] == {"index": 0, "finish_reason": None, "delta": {"role": "assistant", "content": "he"}}
    assert last["choices"][0] == {"index": 0, "finish_reason": "length", "delta": {}}
    assert (
        counts["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5} and counts["choices"] == []
    )
    assert done == "[DONE]" and first["id"] == last["id"]


def test_whole_answers() -> None:
    whole = Answering(parsed(messages=HELLO), "m").whole("hi", "stop", 3, 2)
    assert whole["object"] == "chat.completion"
    assert whole["choices"] == [
        {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hi"}}
    ]
    whole = Answering(parsed(False, prompt="x"), "m").whole("hi", "length", 1, 1)
    assert whole["object"] == "text_completion" and whole["choices"][0]["text"] == "hi"
