"""Who may send requests, and how many at once."""

from __future__ import annotations

import contextlib
import hmac
from collections import Counter
from collections.abc import Iterator, Sequence

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
