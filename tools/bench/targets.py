"""The targets of the ONNX Runtime provider, read from one table: `python -m tools.bench --check`."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from tools.bench.measure import Result

PLAIN, PROVIDER, RIVAL = "vkep", "vkep-ort", "ep-webgpu"
#: the provider's latency over the plain session's: at most this share, or this many milliseconds, whichever is larger
SHARE, MILLISECONDS = 0.05, 0.1


@dataclass(frozen=True)
class Verdict:
    """One target on one model; ``held`` is None where a peer was not measured."""

    model: str
    promise: str
    held: bool | None
    text: str

    def __str__(self) -> str:
        word = {True: "held", False: "NOT HELD", None: "not measured"}[self.held]
        return f"{self.model}: {self.promise}: {word} ({self.text})"


def verdicts(results: Iterable[Result]) -> list[Verdict]:
    """Both targets for each model: close to the plain session, and faster than the other provider on the same driver."""
    by_model: dict[str, dict[str, Result]] = {}
    for result in results:
        by_model.setdefault(result.model, {})[result.peer] = result
    found = []
    for model, peers in by_model.items():
        found.append(_close(model, peers))
        found.append(_ahead(model, peers))
    return found


def _close(model: str, peers: dict[str, Result]) -> Verdict:
    promise = f"{PROVIDER} within {SHARE:.0%} or {MILLISECONDS * 1e3:.0f} us of {PLAIN}"
    missing = _missing(peers, PLAIN, PROVIDER)
    if missing:
        return Verdict(model, promise, None, missing)
    plain, ours = peers[PLAIN], peers[PROVIDER]
    allowed = max(SHARE * plain.median_ms, MILLISECONDS)
    # by the turns of one round, which are close in time, so that a slow phase of the machine affects both
    more = statistics.median(b - a for a, b in zip(plain.turns_ms, ours.turns_ms, strict=True))
    text = f"{ours.median_ms:.3f} ms; turn by turn {more:+.3f}, at most {allowed:+.3f}"
    return Verdict(model, promise, more <= allowed, text)


def _ahead(model: str, peers: dict[str, Result]) -> Verdict:
    promise = f"{PROVIDER} ahead of {RIVAL}"
    missing = _missing(peers, PROVIDER, RIVAL)
    if missing:
        return Verdict(model, promise, None, missing)
    ours, theirs = peers[PROVIDER].median_ms, peers[RIVAL].median_ms
    return Verdict(model, promise, ours < theirs, f"{ours:.3f} ms, against {theirs:.3f} ms")


def _missing(peers: dict[str, Result], *names: str) -> str:
    lines = []
    for name in names:
        result = peers.get(name)
        if result is None:
            lines.append(f"{name} is not among the peers")
        elif result.status != "measured":
            lines.append(f"{name} {result.status}: {result.detail.strip().partition(chr(10))[0]}")
    return "; ".join(lines)
