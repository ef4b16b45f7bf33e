"""Who may send requests, how many at once, and how much of the processors reading them may take."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

from vkep.serving.kserve import ProtocolError

_BEARER = "bearer "


class Limits:
    """The requests in progress of each client. For one event loop."""

    def __init__(self, of_client: int, of_all: int, keys: Sequence[str] = ()) -> None:
        """``of_client``, ``of_all``: the most requests in progress, 0: any number. ``keys``: see `ServiceOptions`."""
        self._of_client, self._of_all = of_client, of_all
        self._keys = [key.encode() for key in keys]
        self._active: Counter[str] = Counter()
        self._count = 0

    def client(self, address: str, authorization: str | None) -> str:
        """The name of a client: its address, or its key where the service has keys. Raises `ProtocolError` (401)."""
        if not self._keys:
            return address
        given = (authorization or "")[len(_BEARER) :].encode(errors="replace")
        has_key = (authorization or "")[: len(_BEARER)].lower() == _BEARER
        for at, key in enumerate(self._keys):
            if has_key and hmac.compare_digest(given, key):
                return f"key {at}"
        raise ProtocolError(401, "the request has no key of this service: send it as Authorization: Bearer KEY")

    @contextlib.contextmanager
    def request(self, client: str) -> Iterator[None]:
        """A ``with`` block around one request. Raises `ProtocolError`: 429 where the client has too many in progress, 503 where
        all clients have."""
        if self._of_client and self._active[client] >= self._of_client:
            raise ProtocolError(
                429, f"{self._active[client]} requests of this client are in progress, as many as are allowed"
            )
        if self._of_all and self._count >= self._of_all:
            raise ProtocolError(503, f"{self._count} requests are in progress, as many as the service takes")
        self._active[client] += 1
        self._count += 1
        try:
            yield
        finally:
            self._count -= 1
            self._active[client] -= 1
            if not self._active[client]:
                del self._active[client]


@dataclass
class _Line:
    """A client that has or waits for places: how many it has or waits for, and those that it may have."""

    places: asyncio.Semaphore
    count: int = 0


class Places:
    """Places of which a client has so many at once; what it does beyond them waits. For one event loop."""

    def __init__(self, of_client: int) -> None:
        self._of_client, self._lines = of_client, dict[str, _Line]()

    @contextlib.asynccontextmanager
    async def one(self, client: str) -> AsyncIterator[None]:
        """An ``async with`` block in a client's place; "": a client that is not known, which has any number."""
        if not client:
            yield
            return
        line = self._lines.setdefault(client, _Line(asyncio.Semaphore(self._of_client)))
        line.count += 1
        try:
            async with line.places:
                yield
        finally:
            line.count -= 1
            if not line.count:
                del self._lines[client]


class Turns:
    """Work on requests in threads, so that the event loop stays free: a client has half of the processors at most."""

    def __init__(self) -> None:
        self._places = Places(max(1, (os.cpu_count() or 1) // 2))

    async def __call__(self, client: str, work: Callable[..., Any], *args: Any, threads: Executor | None = None) -> Any:
        """The result of ``work(*args)`` for a client, in ``threads`` (the event loop's own by default). Raises as the work."""
        async with self._places.one(client):
            return await asyncio.get_running_loop().run_in_executor(threads, work, *args)
