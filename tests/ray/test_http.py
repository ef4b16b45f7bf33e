"""Bodies of requests as the services read them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

pytest.importorskip("starlette")

from starlette.requests import Request

from vkep.ray.http import read_body
from vkep.ray.kserve import HEADER_LENGTH, ProtocolError


def read(pieces: list[bytes], headers: Mapping[str, str], most: int = 100) -> Any:
    messages = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
    sent = iter([*messages, {"type": "http.request", "body": b"", "more_body": False}])

    async def receive() -> Any:
        return next(sent)

    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    return asyncio.run(read_body(Request({"type": "http", "headers": raw}, receive), most, 30))


@pytest.mark.parametrize("head", [0, 3, 7, 11])
def test_binary_data_are_aligned_and_in_order(head: int) -> None:
    body = bytes(range(41))
    found = read([body[:5], body[5:20], body[20:]], {"content-length": "41", HEADER_LENGTH: str(head)})
    assert bytes(found) == body
    assert np.frombuffer(found[head:], np.uint8).ctypes.data % 64 == 0


def test_a_body_without_a_length_is_read_whole() -> None:
    assert bytes(read([b"ab", b"cde"], {})) == b"abcde"


@pytest.mark.parametrize(
    ("pieces", "headers", "status"),
    [
        ([b"ab"], {"content-length": "3"}, 400),
        ([b"abcd"], {"content-length": "3"}, 413),
        ([b"x" * 60, b"x" * 60], {}, 413),
        ([], {"content-length": "101"}, 413),
        ([], {"content-length": "-1"}, 413),
    ],
)
def test_bodies_of_another_size_are_refused(pieces: list[bytes], headers: dict[str, str], status: int) -> None:
    with pytest.raises(ProtocolError) as refused:
        read(pieces, headers)
    assert refused.value.status == status
