"""OpenAI's requests and answers as data."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vkep.generation import Event
from vkep.serving.answers import Answering, Choice, error_of
from vkep.serving.kserve import ProtocolError
from vkep.serving.openai import parse_request
from vkep.serving.tools import Call, Calls, Form

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
    assert parsed(False, prompt=[1, 2]).prompts == [[1, 2]]
    assert parsed(False, prompt=["a", "b"], n=2, echo=True).prompts == ["a", "b"]


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        ({}, "messages is {}: Field required"),
        ({"messages": []}, r"messages is \[\]"),
        ({"messages": [{"role": "user"}]}, "has no content"),
        ({"messages": ["hello"]}, "messages.0 is 'hello'"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "JSON cannot be read"),
        ({"messages": HELLO * 5000}, "at most 4096 items"),
        ({"messages": HELLO, "temperature": "hot"}, "temperature is 'hot'"),
        ({"messages": HELLO, "max_tokens": True}, "max_tokens is True"),
        ({"messages": HELLO, "n": 200}, "n is 200"),
        ({"messages": HELLO, "suffix": "x"}, "only '' is supported"),
        ({"messages": HELLO, "n": True}, "n is True"),
        ({"messages": HELLO, "frobnicate": 1}, "frobnicate is 1"),
        ({"messages": HELLO, "stop": [1]}, "stop"),
        ({"messages": HELLO, "stop": ["~"] * 1_000_000}, "1000002 values"),
        ({"messages": HELLO, "stop": ["~"] * 10_000}, "stop"),
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


def event_of(text: str, reason: str = "") -> Event:
    return Event(None, 1, text, reason)  # type: ignore[arg-type]  # no answer is read


def choice_of(request: Any, form: Form | None = None) -> Choice:
    return Choice(0, request, form, "", str)


def test_a_stream_in_the_chat_form() -> None:
    request = parsed(messages=HELLO, stream=True, stream_options={"include_usage": True})
    answering, choice = Answering(request, "m"), choice_of(request)
    chunks = [choice.chunk(event_of("he")), choice.chunk(event_of("")), choice.chunk(event_of("", "context"))]
    assert chunks[1] is None
    first, last, counts, done = events(
        *(answering.chunk(chunk) for chunk in chunks if chunk is not None), answering.end(3, 2)
    )
    assert first["object"] == "chat.completion.chunk" and first["model"] == "m"
    assert first["choices"][0] == {"index": 0, "finish_reason": None, "delta": {"role": "assistant", "content": "he"}}
    assert last["choices"][0] == {"index": 0, "finish_reason": "length", "delta": {}}
    assert (
        counts["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5} and counts["choices"] == []
    )
    assert done == "[DONE]" and first["id"] == last["id"]


def test_whole_answers() -> None:
    request = parsed(messages=HELLO)
    choice = choice_of(request)
    choice.take(event_of("hi", "stop"))
    whole = Answering(request, "m").whole([choice.whole()], 3, 2)
    assert whole["object"] == "chat.completion"
    assert whole["choices"] == [
        {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hi"}}
    ]
    request = parsed(False, prompt="x")
    choice = choice_of(request)
    choice.take(event_of("hi", "length"))
    whole = Answering(request, "m").whole([choice.whole()], 1, 1)
    assert whole["object"] == "text_completion" and whole["choices"][0]["text"] == "hi"


TOOLS = [{"type": "function", "function": {"name": name}} for name in ("add", "look")]
ENCLOSED, PLAIN = Form(True, "arguments"), Form(False, "parameters")
ADD = Call("add", '{"x": 1}')


@pytest.mark.parametrize(
    ("form", "text", "shown", "calls"),
    [
        (ENCLOSED, 'Yes.<tool_call>{"name": "add", "arguments": {"x": 1}}</tool_call>', "Yes.", [ADD]),
        (ENCLOSED, '<tool_call>\n{"name": "add", "arguments": {"x": 1}}\n</tool_call>' * 2, "", [ADD, ADD]),
        (ENCLOSED, '<tool_call>{"name": "rm", "arguments": {}}</tool_call>', None, []),
        (ENCLOSED, "<tool_call>{", None, []),
        (ENCLOSED, "a < b <tool", None, []),
        (PLAIN, '{"name": "add", "parameters": {"x": 1}}', "", [ADD]),
        (PLAIN, ' [{"name": "add", "arguments": {"x": 1}}, {"name": "look"}]', "", [ADD, Call("look", "{}")]),
        (PLAIN, '{"name": "rm", "parameters": {}}', None, []),
        (PLAIN, '{"answer": 1} or [2]', None, []),
        (PLAIN, 'As JSON: {"name": "add"}', None, []),
    ],
)
def test_calls_are_found_however_the_text_is_cut(form: Form, text: str, shown: str | None, calls: list[Call]) -> None:
    for step in (1, 2, 7, len(text)):
        one = Calls(form, TOOLS)
        pieces = [one.add(text[at : at + step]) for at in range(0, len(text), step)]
        assert "".join(pieces) + one.end() == (text if shown is None else shown)
        assert one.found == calls


def test_the_form_of_calls_is_that_of_the_template() -> None:
    assert Form.of("{{ messages }}") is None
    assert Form.of("{% if tools %}<tool_call>{'name': x, 'arguments': y}{% endif %}") == ENCLOSED
    assert Form.of('{% for t in tools %}{"name": name, "parameters": dictionary}{% endfor %}') == PLAIN
    assert Form.of("{{ tools | tojson }}") == Form(False, "arguments")


def test_errors_have_openais_fields() -> None:
    assert error_of(400, "no", "n")["error"] == {
        "message": "no",
        "type": "invalid_request_error",
        "param": "n",
        "code": None,
    }
    assert error_of(404, "no", "model")["error"]["code"] == "model_not_found"
    assert error_of(429, "no")["error"]["code"] == "rate_limit_exceeded"
    assert error_of(503, "no")["error"]["type"] == "server_error"
