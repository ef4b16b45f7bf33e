"""Streams of requests: several are answered at once, and the answers keep the requests' order. asyncio alone."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

Request = TypeVar("Request")
Answer = TypeVar("Answer")
_END: Any = object()


async def in_order(
    requests: AsyncIterator[Request], answer: Callable[[Request], Awaitable[Answer]], most: int
) -> AsyncGenerator[Answer, None]:
    """The answer to each of ``requests``, in order. At most ``most`` are in progress: while the first of them is not
    done, or its answer is not taken, no further request is read. Requests in progress are cancelled when the caller
    leaves.

    Raises as ``requests`` and ``answer``.
    """

    async def following() -> Request:
        return await anext(requests, _END)

    in_progress: deque[asyncio.Future[Answer]] = deque()
    reading: asyncio.Future[Request] | None = asyncio.ensure_future(following())
    try:
        while reading is not None or in_progress:
            waits: set[asyncio.Future[Any]] = {in_progress[0]} if in_progress else set()
            if reading is not None and len(in_progress) < most:
                waits.add(reading)
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if in_progress and in_progress[0].done():
                yield in_progress.popleft().result()
            elif reading is not None and reading.done():
                request = reading.result()
                ended = request is _END
                reading = None if ended else asyncio.ensure_future(following())
                if not ended:
                    in_progress.append(asyncio.ensure_future(answer(request)))
    finally:
        for one in in_progress:
            one.cancel()
        if reading is not None:
            reading.cancel()
