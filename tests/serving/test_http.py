"""Bodies of requests as the services read them."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Mapping
from typing import Any

import pytest

pytest.importorskip("starlette")

from starlette.requests import Request

from vkep.serving.http import read_body
from vkep.serving.kserve import ProtocolError
from vkep.serving.limits import Turns


def read(pieces: list[bytes], headers: Mapping[str, str], most: int = 100) -> Any:
    messages = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
    sent = iter([*messages, {"type": "http.request", "body": b"", "more_body": False}])

    async def receive() -> Any:
        return next(sent)

    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    return asyncio.run(read_body(Request({"type": "http", "headers": raw}, receive), most, 30, Turns()))


def test_a_body_stays_in_the_pieces_that_arrived() -> None:
    pieces = [b"ab", b"cde", b"f"]
    found = read([pieces[0], b"", *pieces[1:]], {"content-length": "6"})
    assert len(found) == 3 and all(got is sent for got, sent in zip(found, pieces, strict=True))


def test_a_compressed_body_is_one_piece() -> None:
    whole = gzip.compress(b"x" * 90)
    sent = {"content-length": str(len(whole)), "content-encoding": "gzip"}
    assert list(read([whole[:9], whole[9:]], sent)) == [b"x" * 90]


def test_a_body_without_a_length_is_read_whole() -> None:
    assert list(read([b"ab", b"cde"], {})) == [b"ab", b"cde"]


@pytest.mark.parametrize(
    ("pieces", "headers", "status"),
    [
        ([b"ab"], {"content-length": "3"}, 400),
        ([b"abcd"], {"content-length": "3"}, 413),
        ([b"x" * 60, b"x" * 60], {}, 413),
        ([], {"content-length": "101"}, 413),
        ([], {"content-length": "-1"}, 413),
        ([], {"content-length": "9" * 5000}, 413),
    ],
)
def test_bodies_of_another_size_are_refused(pieces: list[bytes], headers: dict[str, str], status: int) -> None:
    with pytest.raises(ProtocolError) as refused:
        read(pieces, headers)
    assert refused.value.status == status
