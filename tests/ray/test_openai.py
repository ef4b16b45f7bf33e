"""OpenAI's requests and answers as data."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vkep.ray.kserve import ProtocolError
from vkep.ray.openai import Answering, parse_request

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
        ({}, "messages is expected"),
        ({"messages": [{"role": "user"}]}, "a message is"),
        ({"messages": ["hello"]}, "a message is"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "a message is"),
        ({"messages": HELLO, "temperature": "hot"}, "temperature is 'hot'"),
        ({"messages": HELLO, "max_tokens": True}, "max_tokens is True"),
        ({"messages": HELLO, "n": 2}, "only 1 can be had"),
        ({"messages": HELLO, "logprobs": True}, "only False can be had"),
        ({"messages": HELLO, "frobnicate": 1}, r"\['frobnicate'\]"),
        ({"messages": HELLO, "stop": [1]}, "stop is"),
        ({"messages": HELLO, "stream": 1}, "stream is expected"),
        ({"messages": HELLO, "model": 1}, "model is 1"),
    ],
)
def test_what_is_refused(request_: Any, says: str) -> None:
    with pytest.raises(ProtocolError, match=says) as raised:
        parsed(**request_)
    assert raised.value.status == 400
    with pytest.raises(ProtocolError, match="prompt is expected"):
        parsed(False, prompt=[True])


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
