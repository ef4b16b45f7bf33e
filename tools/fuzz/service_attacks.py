"""Requests that `tools.fuzz.services` sends beside innocent ones: of each kind an endless, seeded sequence.

A request is bytes for a path, and a manner of sending it: whole, slowly, or without reading the answer.
"""

from __future__ import annotations

import gzip
import io
import json
import random
import wave
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

CHAT, COMPLETIONS, EMBEDDINGS, INFER = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v2/models/{}/infer",
)
TRANSCRIPTIONS = "/v1/audio/transcriptions"
#: manners of sending: whole; the head and a byte of the body, then nothing; whole, and the answer is not read; whole, and gone
WHOLE, SLOW, UNREAD, GONE = "whole", "slow", "unread", "gone"


@dataclass(frozen=True)
class Attack:
    """One request."""

    path: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    manner: str = WHOLE


def json_bytes(value: Any) -> bytes:
    """A value in JSON, as a body."""
    return json.dumps(value).encode()


def chat(**more: Any) -> dict[str, Any]:
    """A request for a short answer."""
    return {
        "model": "llama",
        "messages": [{"role": "user", "content": "Number"}],
        "max_tokens": 4,
        "ignore_eos": True,
        **more,
    }


def tensor(x: np.ndarray[Any, Any], name: str = "x", kind: str = "FP32") -> dict[str, Any]:
    """A tensor in the Open Inference protocol's JSON."""
    return {"name": name, "datatype": kind, "shape": list(x.shape), "data": x.ravel().tolist()}


#: fields of both APIs, and values that each may get
_FIELDS = (
    "model", "messages", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "min_p", "n",
    "stop", "seed", "stream", "stream_options", "presence_penalty", "frequency_penalty", "repetition_penalty",
    "logit_bias", "logprobs", "top_logprobs", "response_format", "tools", "tool_choice", "echo", "best_of",
    "user", "ignore_eos", "unknown", "prompt",
)  # fmt: skip


def _value(rng: random.Random, depth: int = 0) -> Any:
    simple: tuple[Any, ...] = (
        None, True, False, 0, -1, 1, 1.5, -0.0, 1e308, 2**31, 2**63, 2**64, -(2**63) - 1, 10**400, "", "x", "1", "\0",
        "\ud800", "a" * 5000, "<|im_end|>", "</s>", "\u202e", [], {}, [[]], [None], [0] * 100, ["x"] * 20, [-1], [10**30],
        {"65": 1}, {"x": 1}, {"type": "json_object"}, {"type": "text"}, {"include_usage": True},
        [{"role": "user", "content": "x"}] * 3,
    )  # fmt: skip
    if depth < 3 and rng.random() < 0.2:
        return rng.choice(([_value(rng, depth + 1)] * rng.randint(1, 4), {rng.choice(_FIELDS): _value(rng, depth + 1)}))
    return rng.choice(simple)


def fields(rng: random.Random) -> Attack:
    """A field of a request with another value."""
    if rng.random() < 0.7:
        path = rng.choice((CHAT, COMPLETIONS))
        body = chat() if path == CHAT else {"model": "llama", "prompt": "Number", "max_tokens": 4}
        for _ in range(rng.randint(1, 2)):
            body[rng.choice(_FIELDS)] = _value(rng)
        body["max_tokens"] = body["max_tokens"] if rng.random() < 0.2 else 4
        return Attack(path, json_bytes(body))
    one = tensor(np.ones((2, 3), np.float32))
    one[rng.choice(("name", "datatype", "shape", "data", "parameters", "other"))] = _value(rng)
    return Attack(
        INFER.format(rng.choice(("square", "pick"))), json_bytes({"inputs": [one], "outputs": [{"name": "y"}]})
    )


def damaged(rng: random.Random) -> Attack:
    """A valid request with some of its bytes changed."""
    given = rng.choice(
        (
            fields(rng),
            Attack(CHAT, json_bytes(chat())),
            Attack(INFER.format("square"), json_bytes({"inputs": [tensor(np.ones((1, 3)))]})),
        )
    )
    body = _changed(rng, given.body, (b"", b"[", b"{", b'"', b"\xff", b"9" * 400, b"NaN", b"\\ud800", b","))
    headers = rng.choice(
        ({}, {}, {"Content-Encoding": "gzip"}, {"Inference-Header-Content-Length": str(rng.randint(-2, 300))})
    )
    return Attack(given.path, body, headers)


def _changed(rng: random.Random, given: bytes, pieces: Sequence[bytes]) -> bytes:
    """A body with some of its bytes replaced."""
    body = bytearray(given)
    for _ in range(rng.randint(1, 5)):
        at = rng.randrange(len(body) + 1)
        body[at : at + rng.randint(0, 3)] = rng.choice(pieces)
    return bytes(body)


#: types of forms, the first of which is right, and pieces of forms and of sounds
_FORMS = (
    "multipart/form-data; boundary=b",
    "multipart/form-data; boundary*0=b; boundary*=b",
    "multipart/form-data; boundary*=utf-8''b",
    f"multipart/form-data; boundary={'b' * 5000}",
    "multipart/form-data",
)
_PIECES = (b"", b"\0", b"\x02", b"\xff", b"\r\n", b"--b", b'"', b"*0=", b"*=", b"''", b";", b":", b"9" * 400, b"nan")


def uploads(rng: random.Random) -> Attack:
    """Forms with a sound, most with some of the bytes of the sound's head or of the form changed."""
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setparams((rng.choice((1, 2)), 2, 16000, 0, "NONE", ""))
        writer.writeframes(rng.randbytes(2 * rng.choice((0, 2, 320, 16000))))
    sound, more = file.getvalue(), {"model": rng.choice((b"whisper", b"whisper", b"llama")), "max_tokens": b"4"}
    for name in rng.sample(("language", "temperature", "response_format", "stream", "other"), rng.randint(0, 2)):
        more[name] = rng.choice((b"en", b"0", b"-1", b"nan", b"1e999", b"srt", b"true", b"", b"9" * 5000))
    if rng.random() < 0.4:
        sound = _changed(rng, sound[:44], _PIECES) + sound[44:]
    fields = [
        b'--b\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n' % (n.encode(), v) for n, v in more.items()
    ]
    body = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n%b\r\n' % sound
    parts = b"".join(fields) + b"--b--\r\n"
    body += _changed(rng, parts, _PIECES) if rng.random() < 0.3 else parts
    return Attack(TRANSCRIPTIONS, body, {"Content-Type": rng.choice(_FORMS) if rng.random() < 0.3 else _FORMS[0]})


def _bomb(text: bytes) -> Callable[[random.Random], Attack]:
    packed = gzip.compress(text, 1)

    def made(rng: random.Random) -> Attack:
        path = rng.choice((INFER.format("square"), CHAT))
        return Attack(path, packed, {"Content-Encoding": "gzip"})

    return made


def shapes(rng: random.Random) -> Attack:
    """Tensors of other shapes, or with an index outside its axis, beside those of innocent requests."""
    rows = rng.choice((0, 1, 2, 31, 32, 33, 200))
    x = np.full((rows, 3), rng.random(), np.float32)
    if rng.random() < 0.5:
        return Attack(INFER.format("square"), json_bytes({"inputs": [tensor(x)]}))
    index = np.full((rng.choice((rows, 1)), 1), rng.choice((0, 2, 3, 7, -4, 2**40)), np.int64)
    return Attack(INFER.format("pick"), json_bytes({"inputs": [tensor(x), tensor(index, "i", "INT64")]}))


def many(rng: random.Random) -> Attack:
    """Many answers to one request, longer than innocent ones."""
    body = {"model": "llama", "prompt": "Number", "n": rng.choice((8, 32)), "max_tokens": 64, "ignore_eos": True}
    return Attack(COMPLETIONS, json_bytes(body))


def long_prompts(rng: random.Random) -> Attack:
    """Prompts of many tokens, each another one."""
    return Attack(
        COMPLETIONS, json_bytes({"model": "llama", "prompt": [rng.randrange(256) for _ in range(240)], "max_tokens": 2})
    )


def grammars(rng: random.Random) -> Attack:
    """Schemas that take long to compile or to follow."""
    name = f"p{rng.randrange(10**6)}"
    schema: dict[str, Any] = rng.choice(
        (
            {"enum": [f"{name}{k}" for k in range(rng.choice((10, 3000)))]},
            {
                "type": "string",
                "pattern": rng.choice(("(a|b)*c{1,900}", "(x+x+)+y", "(.*a){20}", "\\d{1,400}(\\w|é)+$", "[", "(?=x)")),
            },
            {"type": "object", "properties": {f"{name}{k}": {"type": "string", "maxLength": 5000} for k in range(200)}},
            {"anyOf": [{"type": "array", "items": {"type": "integer", "multipleOf": k + 3}} for k in range(40)]},
            {
                "$ref": "#/$defs/a",
                "$defs": {"a": {"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/a"}}, {"const": name}]}},
            },
            {"type": "array", "minItems": 10**6, "items": {"type": "number"}},
            {"type": "none"},
        )
    )
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    return Attack(CHAT, json_bytes(chat(response_format=form, max_tokens=20, temperature=1)))


def settings(rng: random.Random) -> Attack:
    """Settings at their limits, of an answer that is made beside the innocent ones."""
    more = rng.choice(
        (
            {"logit_bias": {str(k): rng.choice((-100, 100)) for k in range(300)}},
            {"stop": ["~" * rng.randint(1, 1000) for _ in range(16)]},
            {"logprobs": True, "top_logprobs": 20},
            {"temperature": 1e30, "top_k": 1, "repetition_penalty": 1e30},
            {"temperature": 1e-30, "min_p": 1.0},
            {"presence_penalty": 2, "frequency_penalty": -2},
            {"tools": [{"type": "function", "function": {"name": f"f{k}"}} for k in range(128)]},
        )
    )
    return Attack(CHAT, json_bytes(chat(**more, max_tokens=16)))


def slow(rng: random.Random) -> Attack:
    """A body that does not arrive."""
    return Attack(rng.choice((CHAT, INFER.format("square"))), json_bytes(chat()), manner=SLOW)


def unread(rng: random.Random) -> Attack:
    """A stream whose reader reads nothing, or goes away."""
    body = {"model": "llama", "prompt": "Number", "max_tokens": 100, "ignore_eos": True, "stream": rng.random() < 0.7}
    return Attack(COMPLETIONS, json_bytes(body), manner=rng.choice((UNREAD, GONE)))


KINDS: Mapping[str, Callable[[random.Random], Attack]] = {
    "fields": fields,
    "damaged": damaged,
    "uploads": uploads,
    "shapes": shapes,
    "settings": settings,
    "grammars": grammars,
    "many answers": many,
    "long prompts": long_prompts,
    "bomb of lists": _bomb(b'{"inputs":[' + b"[]," * (10 << 20) + b"[]]}"),
    "bomb of zeros": _bomb(
        b'{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":[' + b"0," * (30 << 20) + b"0]}]}"
    ),
    "slow bodies": slow,
    "unread streams": unread,
}


def attacks(kind: str, seed: int) -> Iterator[Attack]:
    """The requests of a kind."""
    rng = random.Random(f"{kind} {seed}")
    while True:
        yield KINDS[kind](rng)
