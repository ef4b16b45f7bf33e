"""HTTP parts that the services share: bodies within limits, and the status of an error."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from typing import TypeVar

from starlette.requests import Request

from gpu_shared.errors import DeviceLostError
from vkep.errors import InvalidInputError
from vkep.serving import kserve
from vkep.serving.kserve import ProtocolError
from vkep.serving.limits import Turns

logger = logging.getLogger("vkep.serving")
Result = TypeVar("Result")


async def read_body(request: Request, most: int, seconds: float, turns: Turns, text: int = 0) -> Sequence[bytes]:
    """Read a request's body, decompressed: the pieces that arrived. Its first ``text`` bytes are JSON, whose values
    `kserve.inflated` limits. ``turns`` runs the decompression in a thread.

    Raises `ProtocolError`: 413 above ``most`` bytes, 408 where it takes more than ``seconds``, 400 where it ends early, 415 for
    an unknown encoding, and as `kserve.inflated`.
    """
    length = request.headers.get("content-length")
    if length is not None and (not length.isdecimal() or len(length) > kserve.MOST_DIGITS or int(length) > most):
        raise ProtocolError(413, f"the body has {length[:99]} bytes, and {most} are allowed")
    allowed = most if length is None else int(length)
    pieces: list[bytes] = []

    async def gather() -> int:
        size, more = 0, True
        while more:
            message = await request.receive()
            if message["type"] == "http.disconnect":
                raise ProtocolError(400, "the body ended before its end")
            piece, more = message.get("body", b""), message.get("more_body", False)
            size += len(piece)
            if size > allowed:
                raise ProtocolError(413, f"the body has more than the {allowed} bytes that are allowed")
            if piece:
                pieces.append(piece)
        return size

    try:
        size = await asyncio.wait_for(gather(), seconds)
    except asyncio.TimeoutError:
        raise ProtocolError(408, f"the body was not there within {seconds} s") from None
    if length is not None and size < allowed:
        raise ProtocolError(400, f"the body has {size} bytes, and {length} were announced")
    encoding = request.headers.get("content-encoding")
    if encoding is None:
        return pieces
    return [await turns(client_of(request), kserve.inflated, b"".join(pieces), encoding, most, text)]


def client_of(request: Request) -> str:
    """The client that `Limits.client` named; "" where it is not known."""
    return str(request.scope.get("vkep.client", ""))


def answer_of(error: BaseException) -> tuple[int, str]:
    """The HTTP status and the text for an error."""
    if isinstance(error, ProtocolError):
        return error.status, str(error)
    if isinstance(error, InvalidInputError):
        return 400, str(error)
    if isinstance(error, (DeviceLostError, MemoryError)):
        return 503, str(error)
    logger.error("a request failed", exc_info=error)
    return 500, f"{type(error).__name__}: {error}"


def retry_after(status: int, seconds: float) -> dict[str, str]:
    """The header with the time after which a client may retry; only for 429 and 503."""
    return {"Retry-After": str(max(1, round(seconds)))} if status in (429, 503) else {}


async def unless_gone(request: Request, work: Awaitable[Result]) -> Result:
    """The result of work for a request whose body was read; the work is cancelled when the client goes away. Raises as the work,
    and `ProtocolError` (499) for a client that has gone."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ProtocolError(499, "the client has gone away")
    finally:
        watch.cancel()
        task.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
