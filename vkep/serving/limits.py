"""Who may send requests, how many at once, and how much of the processors reading them may take."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
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


def _of_client() -> int:
    """Threads that one client's requests may be read in at once: half of the processors."""
    return max(1, (os.cpu_count() or 1) // 2)


@dataclass
class _Line:
    """The work of one client: what is done or waits, and the places of what is done."""

    places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_of_client()))
    count: int = 0


class Turns:
    """Work on requests in threads, so that the event loop stays free: a client has half of the processors at most, and its
    further work waits. For one event loop."""

    def __init__(self) -> None:
        self._lines: dict[str, _Line] = {}

    async def __call__(self, client: str, work: Callable[..., Any], *args: Any, threads: Executor | None = None) -> Any:
        """The result of ``work(*args)`` for a client, in ``threads`` (the event loop's own by default). Client "": one that is
        not known, which has no turns. Raises as the work."""
        run = asyncio.get_running_loop().run_in_executor
        if not client:
            return await run(threads, work, *args)
        line = self._lines.setdefault(client, _Line())
        line.count += 1
        try:
            async with line.places:
                return await run(threads, work, *args)
        finally:
            line.count -= 1
            if not line.count:
                del self._lines[client]
