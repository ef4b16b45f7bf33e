"""HTTP parts that the services share: bodies within limits, and the status of an error."""

from __future__ import annotations

import asyncio
import logging

import numpy as np
from starlette.requests import Request

from gpu_shared.errors import DeviceLostError, OutOfDeviceMemoryError
from vkep.errors import InvalidInputError
from vkep.ray import kserve
from vkep.ray.kserve import ProtocolError

logger = logging.getLogger("vkep.ray")
_ALIGNMENT = 64


async def read_body(request: Request, most: int, seconds: float) -> bytes | memoryview:
    """Read a request's body, decompressed. What follows its JSON (`HEADER_LENGTH`) is aligned for tensors of any type, where
    the size is known before. Raises `ProtocolError`: 413 above ``most`` bytes, 408 where it takes more
    than ``seconds``, 400 where it ends early, 415 for an unknown encoding."""
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > most:
        raise ProtocolError(413, f"the body has {length} bytes, and {most} are allowed")

    async def gather() -> bytes | memoryview:
        pieces, size = [], 0
        announced = int(length) if "content-length" in request.headers else None
        whole = _aligned(announced or 0, request.headers.get(kserve.HEADER_LENGTH, "0"))
        more = True
        while more:
            message = await request.receive()
            if message["type"] == "http.disconnect":
                raise ProtocolError(400, "the body ended before its end")
            piece, more = message.get("body", b""), message.get("more_body", False)
            end = size + len(piece)
            if end > (most if announced is None else announced):
                raise ProtocolError(413, f"the body has more than the {announced or most} bytes that are allowed")
            if announced is None:
                pieces.append(piece)
            else:
                whole[size:end] = piece
            size = end
        return b"".join(pieces) if announced is None else whole[:size]

    try:
        body = await asyncio.wait_for(gather(), seconds)
    except asyncio.TimeoutError:
        raise ProtocolError(408, f"the body was not there within {seconds} s") from None
    if len(body) < int(length):
        raise ProtocolError(400, f"the body has {len(body)} bytes, and {length} were announced")
    return kserve.inflated(body, request.headers.get("content-encoding", ""), most)


def _aligned(size: int, head: str) -> memoryview:
    """Memory for ``size`` bytes, aligned after those of the JSON."""
    space = np.empty(size + _ALIGNMENT, np.uint8)
    skip = int(head) if head.isdecimal() and len(head) < 20 else 0
    start = -(space.ctypes.data + skip) % _ALIGNMENT
    return space.data[start : start + size]


def answer_of(error: BaseException) -> tuple[int, str]:
    """The HTTP status and the text for an error."""
    if isinstance(error, ProtocolError):
        return error.status, str(error)
    if isinstance(error, InvalidInputError):
        return 400, str(error)
    if isinstance(error, (DeviceLostError, OutOfDeviceMemoryError, MemoryError)):
        return 503, str(error)
    logger.error("a request failed", exc_info=error)
    return 500, f"{type(error).__name__}: {error}"


def retry_after(status: int, seconds: float) -> dict[str, str]:
    """The header with the time after which a client may retry; only for 503."""
    return {"Retry-After": str(max(1, round(seconds)))} if status == 503 else {}
