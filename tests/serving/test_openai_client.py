"""The openai client, as it is, against `vkep serve`: what works, and what is refused as OpenAI refuses it."""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.serving.conftest import Running
from vkep.generation import Generator

openai = pytest.importorskip("openai")

HELLO = [{"role": "user", "content": "Hello there"}]
ASKED: dict[str, Any] = {"model": "llama", "messages": HELLO, "max_tokens": 6, "temperature": 0}
SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["cat", "dog"]}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["kind", "age"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "get_age", "description": "An age.", "parameters": SCHEMA}}


@pytest.fixture(scope="module")
def client(running: Running) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0, timeout=120) as made:
        yield made


@pytest.fixture(scope="module")
def alone(running: Running) -> Any:
    """The answer of a generator in this process."""
    with Generator(running.log.parent / "llama") as generator:
        generator.text  # noqa: B018
        return generator.chat(HELLO, max_tokens=6)


def test_a_chat_is_the_generators_answer(client: Any, alone: Any) -> None:
    found = client.chat.completions.create(**ASKED)
    assert found.choices[0].message.content == alone.text and found.choices[0].finish_reason == "length"
    assert found.usage.prompt_tokens == len(alone.prompt) and found.usage.completion_tokens == 6


def test_a_chat_has_images(client: Any, running: Running) -> None:
    image = pytest.importorskip("PIL.Image")
    file = io.BytesIO()
    picture = image.fromarray(np.arange(40 * 50 * 3, dtype=np.uint8).reshape(40, 50, 3))
    picture.save(file, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    text = {"type": "text", "text": "What is this?"}
    messages = [{"role": "user", "content": [text, {"type": "image_url", "image_url": {"url": url}}]}]
    asked = {"model": "images", "max_tokens": 6, "temperature": 0}
    with Generator(running.log.parent / "images") as generator:
        generator.text  # noqa: B018
        expected = generator.chat(
            [{"role": "user", "content": [text, {"type": "image", "image": picture}]}], max_tokens=6
        )
    found = client.chat.completions.create(messages=messages, **asked)
    assert found.choices[0].message.content == expected.text and found.usage.prompt_tokens == len(expected.prompt)
    chunks = client.chat.completions.create(messages=messages, stream=True, **asked)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == expected.text
    messages[0]["content"][1] = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}  # type: ignore[index]
    with pytest.raises(openai.BadRequestError, match="nothing is downloaded"):
        client.chat.completions.create(messages=messages, **asked)
    with pytest.raises(openai.BadRequestError, match="has no encoder of images"):
        client.chat.completions.create(
            messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}],
            **{**asked, "model": "llama"},
        )


def _url(value: int, form: str = "PNG") -> tuple[Any, str]:
    """An image of one color, and its data URL."""
    image = pytest.importorskip("PIL.Image")
    file, picture = io.BytesIO(), image.fromarray(np.full((20 + value % 30, 40, 3), value, np.uint8))
    picture.save(file, form)
    return picture, f"data:image/{form.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"


def test_a_chat_has_images_in_several_turns(client: Any, running: Running) -> None:
    """Two images in a message, another one in a later turn: each answer is the generator's."""
    pictures, urls = zip(*(_url(value) for value in (10, 90, 200)), strict=True)
    text = {"type": "text", "text": "and this?"}
    asked = {"model": "images", "max_tokens": 6, "temperature": 0}

    def parts(images: Any, key: str) -> list[dict[str, Any]]:
        made = {
            "image": lambda i: {"type": "image", "image": i},
            "url": lambda i: {"type": "image_url", "image_url": {"url": i}},
        }
        return [*map(made[key], images), text]

    with Generator(running.log.parent / "images") as generator:
        generator.text  # noqa: B018
        theirs: list[Any] = [{"role": "user", "content": parts(urls[:2], "url")}]
        own: list[Any] = [{"role": "user", "content": parts(pictures[:2], "image")}]
        answers = []
        for more in (1, 2, 3):
            found = client.chat.completions.create(messages=theirs, **asked)
            expected = generator.chat(own, max_tokens=6)
            assert found.choices[0].message.content == expected.text
            assert found.usage.prompt_tokens == len(expected.prompt)
            answers.append(expected.text)
            said = {"role": "assistant", "content": expected.text}
            last = slice(2, 3) if more == 1 else slice(0, 0)
            theirs += [said, {"role": "user", "content": parts(urls[last], "url") if more == 1 else "And?"}]
            own += [said, {"role": "user", "content": parts(pictures[last], "image") if more == 1 else "And?"}]
        swapped = client.chat.completions.create(
            messages=[{"role": "user", "content": parts([urls[1], urls[0]], "url")}], **asked
        )
        assert (
            swapped.choices[0].message.content
            == generator.chat(
                [{"role": "user", "content": parts([pictures[1], pictures[0]], "image")}], max_tokens=6
            ).text
        )
    assert len(set(answers)) > 1


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            "https://example.org/a.png",
            r"messages\[1\].content\[1\]: image_url is 'https://example.org/a.png'; expected data:",
        ),
        ("file:///etc/passwd", r"messages\[1\].content\[1\]: image_url is 'file:///etc/passwd'; expected data:"),
        ("data:image/png,abc", r"image_url is 'data:image/png'; expected data:image/...;base64,"),
        ("data:image/png;base64,*", r"messages\[1\].content\[1\]: image_url has no base64"),
        ("data:image/png;base64,", "image 2 of 2: no image that Pillow reads"),
        (f"data:image/png;base64,{base64.b64encode(b'no image').decode()}", "image 2 of 2: no image that Pillow reads"),
        ("cut", "image 2 of 2: the image cannot be read"),
        ("EPS", "image 2 of 2: no image that Pillow reads"),
    ],
)
def test_wrong_images_are_refused(client: Any, running: Running, wrong: str, message: str) -> None:
    """Beside a right one, in a later message; the service goes on."""
    right = _url(30)[1]
    if wrong == "cut":
        head, data = right.split(",")
        file = base64.b64decode(data)
        wrong = f"{head},{base64.b64encode(file[: len(file) * 2 // 3]).decode()}"
    elif wrong == "EPS":
        wrong = _url(30, "EPS")[1]
    image, other = ({"type": "image_url", "image_url": {"url": url}} for url in (right, wrong))
    first, text = {"role": "user", "content": [image]}, {"type": "text", "text": "?"}
    asked = {"model": "images", "max_tokens": 2}
    with pytest.raises(openai.BadRequestError, match=message) as error:
        client.chat.completions.create(messages=[first, {"role": "user", "content": [text, other]}], **asked)
    assert error.value.param == "messages"
    assert client.chat.completions.create(messages=[first], **asked).usage.completion_tokens == 2


def test_a_stream_has_the_same_text(client: Any, alone: Any) -> None:
    chunks = list(client.chat.completions.create(**ASKED, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == alone.text
    assert chunks[-1].usage.completion_tokens == 6 and chunks[-2].choices[0].finish_reason == "length"


def test_several_answers(client: Any) -> None:
    asked = {**ASKED, "temperature": 1.5, "seed": 5, "n": 3}
    found = client.chat.completions.create(**asked)
    texts = [choice.message.content for choice in found.choices]
    assert [choice.index for choice in found.choices] == [0, 1, 2] and len(set(texts)) == 3
    assert found.usage.completion_tokens == 18
    streamed = ["", "", ""]
    for chunk in client.chat.completions.create(**asked, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert streamed == texts
    first = client.chat.completions.create(**{**asked, "n": 1})
    assert first.choices[0].message.content == texts[0]


def test_logarithms_of_probabilities(client: Any) -> None:
    found = client.chat.completions.create(**ASKED, logprobs=True, top_logprobs=3)
    content = found.choices[0].logprobs.content
    assert len(content) == 6 and all(len(one.top_logprobs) == 3 for one in content)
    for one in content:  # the most probable token was taken
        assert one.logprob == pytest.approx(one.top_logprobs[0].logprob) and one.token == one.top_logprobs[0].token
        assert sum(math.exp(top.logprob) for top in one.top_logprobs) <= 1 + 1e-5
    streamed = [
        one
        for chunk in client.chat.completions.create(**ASKED, logprobs=True, stream=True)
        for choice in chunk.choices
        for one in (choice.logprobs.content if choice.logprobs else [])
    ]
    assert [one.logprob for one in streamed] == pytest.approx([one.logprob for one in content])
    old = client.completions.create(model="llama", prompt="Hello", max_tokens=4, logprobs=2).choices[0].logprobs
    assert len(old.tokens) == len(old.token_logprobs) == 4 and all(len(top) <= 2 for top in old.top_logprobs)


def test_penalties_and_biases_change_the_tokens(client: Any) -> None:
    def text(**more: Any) -> str:
        return str(
            client.completions.create(model="llama", prompt="Hello", max_tokens=8, temperature=0, **more)
            .choices[0]
            .text
        )

    assert text(logit_bias={"65": 100}) == "A" * 8
    mixed = text(logit_bias={"65": 60, "66": 59.5}, frequency_penalty=1.0)
    assert set(mixed) == {"A", "B"}
    many = {str(token): 60 for token in range(65, 91)}
    assert len(set(text(logit_bias=many, presence_penalty=2.0))) > len(set(text(logit_bias=many)))


def test_lists_of_prompts_and_echo(client: Any) -> None:
    prompts = ["Hello", "Number 7"]
    found = client.completions.create(model="llama", prompt=prompts, max_tokens=4, temperature=0, n=2, echo=True)
    alone = [
        client.completions.create(model="llama", prompt=p, max_tokens=4, temperature=0).choices[0].text for p in prompts
    ]
    assert [c.text for c in found.choices] == [p + a for p, a in zip(prompts, alone, strict=True) for _ in range(2)]
    tokens = client.completions.create(model="llama", prompt=[[72, 105], [33]], max_tokens=2)
    assert len(tokens.choices) == 2 and tokens.usage.prompt_tokens == 3


def test_stop_texts_end_answers(client: Any) -> None:
    asked = {"model": "llama", "prompt": "Hello", "max_tokens": 8, "temperature": 0, "frequency_penalty": 1}
    asked["logit_bias"] = {"65": 60, "66": 59.5}
    whole = client.completions.create(**asked).choices[0].text
    found = client.completions.create(**asked, stop=["B"]).choices[0]
    assert found.text == whole[: whole.index("B")] and found.finish_reason == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_json_and_schemas(client: Any, stream: bool) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "pet", "schema": SCHEMA, "strict": True}}
    asked = {**ASKED, "max_tokens": 60, "temperature": 1.0, "seed": 3, "response_format": form}
    if stream:
        chunks = client.chat.completions.create(**asked, stream=True)
        text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    else:
        text = client.chat.completions.create(**asked).choices[0].message.content
    found = json.loads(text)
    assert found.keys() == {"kind", "age"} and found["kind"] in ("cat", "dog") and 0 <= found["age"] < 100
    biased = client.chat.completions.create(
        **{**ASKED, "response_format": {"type": "json_object"}, "logit_bias": {"125": 100}}
    )
    assert isinstance(json.loads(biased.choices[0].message.content), dict)


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_that_must_be_called(client: Any, stream: bool) -> None:
    asked = {**ASKED, "model": "caller", "max_tokens": 120, "temperature": 1.0, "seed": 1, "tools": [TOOL]}
    asked["tool_choice"] = {"type": "function", "function": {"name": "get_age"}}
    if stream:
        chunks = list(client.chat.completions.create(**asked, stream=True))
        [call] = [call for c in chunks for choice in c.choices for call in choice.delta.tool_calls or []]
        reason = chunks[-1].choices[0].finish_reason
        assert not "".join(choice.delta.content or "" for c in chunks for choice in c.choices)
    else:
        [choice] = client.chat.completions.create(**asked).choices
        [call], reason = choice.message.tool_calls, choice.finish_reason
        assert choice.message.content is None
    assert call.function.name == "get_age" and json.loads(call.function.arguments).keys() == {"kind", "age"}
    assert reason == "tool_calls" and call.id.startswith("call_")


def test_a_conversation_with_calls_goes_on(client: Any) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "get_age", "arguments": '{"kind": "cat"}'}}
    messages = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "7"},
    ]
    found = client.chat.completions.create(**{**ASKED, "model": "caller", "messages": messages, "tools": [TOOL]})
    assert found.choices[0].finish_reason == "length" and found.usage.prompt_tokens > 100


def test_embeddings(client: Any) -> None:
    found = client.embeddings.create(model="encoder", input=["Hello there", "Hello there", "Another, which is longer"])
    vectors = [one.embedding for one in found.data]
    assert all(sum(x * x for x in vector) == pytest.approx(1, abs=1e-4) for vector in vectors)
    assert vectors[0] == pytest.approx(vectors[1], abs=1e-5) and vectors[0] != pytest.approx(vectors[2], abs=1e-3)
    plain = client.embeddings.create(model="encoder", input="Hello there", encoding_format="float")
    assert plain.data[0].embedding == pytest.approx(vectors[0], abs=1e-5) and plain.usage.prompt_tokens > 0


def test_models(client: Any) -> None:
    assert {one.id for one in client.models.list()} == {"llama", "caller", "encoder", "images"}
    assert client.models.retrieve("llama").id == "llama"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt")


@pytest.mark.parametrize(
    ("param", "more"),
    [
        ("n", {"n": 129}),
        ("temperature", {"temperature": -1}),
        ("temperature", {"temperature": "hot"}),
        ("top_p", {"top_p": 2}),
        ("presence_penalty", {"presence_penalty": 3}),
        ("logit_bias", {"logit_bias": {"x": 1}}),
        ("top_logprobs", {"top_logprobs": 3}),
        ("top_logprobs", {"logprobs": True, "top_logprobs": 21}),
        ("max_tokens", {"max_tokens": 0}),
        ("stop", {"stop": ["x"] * 100}),
        ("messages", {"messages": []}),
        ("messages", {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}),
        ("messages", {"messages": [{"role": "user"}]}),
        ("tools", {"tools": [TOOL]}),  # the template of llama takes none
        ("tools", {"model": "caller", "tools": [TOOL, TOOL]}),
        (
            "tool_choice",
            {"model": "caller", "tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "x"}}},
        ),
        ("tool_choice", {"tool_choice": "required"}),
        ("response_format", {"response_format": {"type": "json_schema"}}),
        (
            "response_format",
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "no"}}}},
        ),
        ("modalities", {"modalities": ["audio"]}),
        ("reasoning_effort", {"reasoning_effort": "high"}),
        ("new_field", {"extra_body": {"new_field": 1}}),
    ],
)
def test_what_is_refused_names_the_parameter(client: Any, param: str, more: dict[str, Any]) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        client.chat.completions.create(**{**ASKED, **more})
    error = raised.value
    assert error.param == param and error.type == "invalid_request_error" and len(error.message) < 2000


def test_other_refusals(client: Any, running: Running) -> None:
    with pytest.raises(openai.NotFoundError) as raised:
        client.chat.completions.create(**{**ASKED, "model": "gpt-9"})
    assert raised.value.code == "model_not_found" and raised.value.param == "model"
    with pytest.raises(openai.BadRequestError, match="best_of"):
        client.completions.create(model="llama", prompt="x", best_of=2)
    with pytest.raises(openai.BadRequestError, match="dimensions"):
        client.embeddings.create(model="encoder", input="x", dimensions=3)
    with pytest.raises(openai.BadRequestError, match="tokens"):
        client.embeddings.create(model="encoder", input="x" * 300)
    with pytest.raises(openai.BadRequestError, match="tokens"):
        client.chat.completions.create(**{**ASKED, "messages": [{"role": "user", "content": "x" * 9000}]})
    with pytest.raises(openai.NotFoundError, match="/v1/responses"):
        client.responses.create(model="llama", input="x")
