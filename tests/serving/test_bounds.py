"""Bodies and messages that become far more than their bytes are refused before, and JSON is that of RFC 8259."""

from __future__ import annotations

import gzip
import json
import sys
import time
import zlib
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.serving.test_kserve import MODEL
from vkep.serving import messages
from vkep.serving.kserve import (
    InferRequest,
    ModelSpec,
    ProtocolError,
    TensorSpec,
    infer_response,
    inflated,
    parse_infer,
)


def refused(body: bytes, **headers: Any) -> int:
    """The status of a request that is refused, within a second of processor time and 300 MB."""
    import resource

    spent, memory = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ProtocolError) as raised:
        parse_infer([inflated(body, headers.get("encoding", "gzip"), 64 << 20, 64 << 20)], headers.get("length"), MODEL)
    assert time.process_time() - spent < 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 300 << 10
    assert len(str(raised.value)) < 2000
    return raised.value.status


@pytest.mark.skipif(sys.platform == "win32", reason="the module resource is POSIX")
@pytest.mark.parametrize(
    "text",
    [
        b'{"inputs":[' + b"[]," * (10 << 20) + b"[]]}",
        b'{"inputs":[' + b"{}," * (10 << 20) + b"{}]}",
        b'{"inputs":[' + b'{"a":{"b":[' * (2 << 20),
        b"[" * (30 << 20),
        b'{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":[' + b"0," * (30 << 20) + b"0]}]}",
        b'{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":[' + b"1.25," * (10 << 20) + b"0]}]}",
        b'{"inputs":[{"name":"x","shape":[' + b"1," * (1 << 20) + b"4]}]}",
        b'{"inputs":[],"outputs":[' + b'{"name":"y"},' * (4 << 20) + b"{}]}",
        b'{"' + b"a" * (60 << 20) + b'":1}',
        b"\0" * (80 << 20),
    ],
)
def test_a_small_body_that_becomes_many_objects_is_refused(text: bytes) -> None:
    assert refused(gzip.compress(text, 1)) in (400, 413)


@pytest.mark.skipif(sys.platform == "win32", reason="the module resource is POSIX")
def test_a_body_of_very_many_members_is_refused() -> None:
    assert refused(gzip.compress(b"") * (1 << 20)) == 400


@pytest.mark.parametrize("size", [(1 << 20) - 1, 1 << 20, (1 << 20) + 1, (3 << 20) + 77])
def test_bodies_of_several_pieces_are_whole(size: int) -> None:
    for body in (b"a" * size, bytes(range(256)) * (size // 256) + b"z"):
        assert inflated(gzip.compress(body), "gzip", 4 << 20) == body
        assert inflated(zlib.compress(body), "deflate", len(body)) == body
        with pytest.raises(ProtocolError, match="more bytes"):
            inflated(zlib.compress(body), "deflate", len(body) - 1)


@pytest.mark.parametrize("encoding", ["GZIP", " gzip ", "x-gzip", "Gzip"])
def test_codings_are_case_insensitive(encoding: str) -> None:
    assert inflated(gzip.compress(b"abc"), encoding, 3) == b"abc"


def test_a_gzip_body_has_one_member_or_more() -> None:
    body = gzip.compress(b"ab") + gzip.compress(b"") + gzip.compress(b"c" * 100_000)
    assert inflated(body, "gzip", 1 << 20) == b"ab" + b"c" * 100_000
    assert inflated(body + bytes(9), "gzip", 1 << 20)[:2] == b"ab"
    for wrong, status in ((body + b"x", 400), (body[:-1], 400), (body, 413)):
        with pytest.raises(ProtocolError) as raised:
            inflated(wrong, "gzip", 100 if status == 413 else 1 << 20)
        assert raised.value.status == status
    with pytest.raises(ProtocolError, match="further bytes"):
        inflated(zlib.compress(b"a") + b"b", "deflate", 9)


def test_answers_are_json_without_nan() -> None:
    spec = ModelSpec("m", "1", {}, {"y": TensorSpec("y", "FP32", (4,))})
    values = [np.nan, np.inf, -np.inf, 1]
    for dtype in (np.float32, np.float16, np.float64, ml_dtypes.bfloat16):
        answer = infer_response(spec, InferRequest({}, {"y": False}), {"y": np.array(values).astype(dtype)})
        text = bytes(answer.pieces[0]).decode()
        assert json.loads(text, parse_constant=pytest.fail)["outputs"][0]["data"] == [None, None, None, 1.0]


@pytest.mark.parametrize(
    "data", ["NaN", "Infinity", "-Infinity", "1e999", "1e39", "9" * 5000, '"1"', "true", "null", "[]", "{}"]
)
def test_numbers_that_json_or_the_type_does_not_have_are_refused(data: str) -> None:
    body = f'{{"inputs": [{{"name": "x", "shape": [1], "datatype": "FP32", "data": [{data}]}}]}}'.encode()
    spec = ModelSpec("m", "1", {"x": TensorSpec("x", "FP32", (None,))}, {"y": TensorSpec("y", "FP32", (None,))})
    with pytest.raises(ProtocolError) as raised:
        parse_infer([body], None, spec)
    assert raised.value.status == 400 and len(str(raised.value)) < 1000


def test_messages_of_very_many_parts_are_refused() -> None:
    def part(number: int, content: bytes) -> bytes:
        return bytes([number << 3 | 2]) + messages_varint(len(content)) + content

    def messages_varint(value: int) -> bytes:
        return bytes([value & 127 | 128]) + messages_varint(value >> 7) if value > 127 else bytes([value])

    fine = part(1, b"m") + part(7, bytes(20 << 20))
    assert messages.read("ModelInferRequest", fine).model_name == "m"
    for attack in (
        part(5, b"") * (10 << 20),
        part(5, part(3, b"\1" * (9 << 20))),
        part(5, part(5, part(8, b"") * (5 << 20))),
        part(6, part(1, b"y")) * 10_000,
        b"\xff" * 100,
        b"\x0b" * 100,
    ):
        started = time.process_time()
        with pytest.raises(ProtocolError):
            messages.parse_infer(messages.read("ModelInferRequest", attack), MODEL)
        assert time.process_time() - started < 1
