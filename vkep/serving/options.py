"""Options of a service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ServiceOptions:
    """Options of a service, or of a replica on Ray.

    rows: the most rows of one run. independent: models whose rows are independent, whatever is proved of them (True: all).
    examples: the inputs of a request by model, for the runs before the first request. wait_ms: how long the first request of a
    run waits for others (the latency budget) while a run could start: less where no request came for a millisecond and none is
    arriving, longer where all runs are in progress. runs: runs in progress at once. max_body: bytes of a request, also once it
    is decompressed. max_text: the same of requests of OpenAI's API. body_s: seconds within which a request's body must be there.
    retry_after_s: sent to clients while the service is overloaded.
    max_sequences: answers that a language model makes at once; others wait. client_answers: how many of them one client may have
    (0: three quarters).
    client_requests: requests in progress of one client (0: any number), beyond them 429. max_requests: of all clients (0: any
    number), beyond them 503. A client is an address, or with ``keys`` a key. keys: texts of which each request to a model has one
    as ``Authorization: Bearer KEY``; without any, requests need none.
    adapters: adapter files by the names that requests give in place of the model's, by the language model that they are for.
    session: as `vkep.SessionOptions`.
    """

    rows: int = 32
    independent: bool | Sequence[str] = False
    examples: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    wait_ms: float = 5.0
    runs: int = 2
    max_body: int = 64 << 20
    max_text: int = 4 << 20
    body_s: float = 30.0
    retry_after_s: float = 1.0
    max_sequences: int = 16
    client_answers: int = 0
    client_requests: int = 0
    max_requests: int = 0
    keys: Sequence[str] = ()
    adapters: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    session: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            if not getattr(self, name) >= least:
                raise ValueError(f"{name} is {getattr(self, name)!r}, expected at least {least}")
        if not all(self.keys):
            raise ValueError("keys has an empty text, which every client knows")

    def says_independent(self, model: str) -> bool:
        """Whether rows of a model are independent, as the deployment says."""
        return self.independent if isinstance(self.independent, bool) else model in self.independent


_LEAST = {
    **dict.fromkeys(("rows", "runs", "max_body", "max_text", "max_sequences"), 1),
    **dict.fromkeys(("wait_ms", "body_s", "retry_after_s", "client_answers", "client_requests", "max_requests"), 0),
}
