"""What a service measures: one table of metrics, kept by prometheus_client or by Ray."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

#: prefix of all names
PREFIX = "vkep_"
_SECONDS = tuple(0.001 * 2**k for k in range(14))


@dataclass(frozen=True)
class Metric:
    """A metric: its kind ("counter", "gauge" or "histogram"), its description, its labels, and a histogram's bounds."""

    kind: str
    text: str
    tags: Sequence[str] = ()
    bounds: Sequence[float] = ()


_MODEL = ("model", "version")
METRICS: Mapping[str, Metric] = {
    "requests": Metric("counter", "Inference requests by status.", (*_MODEL, "status")),
    "http_requests": Metric("counter", "HTTP requests by kind of path and status.", ("path", "status")),
    "http_seconds": Metric("histogram", "Seconds of HTTP requests, streams to their end.", ("path",), _SECONDS),
    "errors": Metric("counter", "Requests that failed, by the error's class.", ("kind",)),
    "run_rows": Metric("histogram", "Rows of a run.", _MODEL, tuple(2.0**k for k in range(12))),
    "run_requests": Metric("histogram", "Requests that share a run.", _MODEL, tuple(2.0**k for k in range(10))),
    "run_seconds": Metric("histogram", "Seconds of a run.", _MODEL, _SECONDS),
    "queue_seconds": Metric("histogram", "Seconds that a request waited for its run.", _MODEL, _SECONDS),
    "generation_requests": Metric("counter", "Requests for texts by status.", ("model", "status")),
    "generation_prompt_tokens": Metric("counter", "Tokens of prompts.", ("model",)),
    "generation_tokens": Metric("counter", "Tokens of answers.", ("model",)),
    "generation_answers": Metric("gauge", "Answers in progress.", ("model",)),
    "generation_step_seconds": Metric("histogram", "Seconds of a step.", ("model",), _SECONDS),
    "generation_first_token_seconds": Metric("histogram", "Seconds to an answer's first token.", ("model",), _SECONDS),
}


class Measures(Protocol):
    """Keeps the metrics of `METRICS`, by their names there. Thread-safe."""

    def add(self, name: str, value: float, **tags: str) -> None:
        """Add to a counter, or observe a value of a histogram."""

    def set(self, name: str, value: float, **tags: str) -> None:
        """Set a gauge."""

    def exposition(self) -> tuple[bytes, str] | None:
        """The page for Prometheus and its content type; None where another process has it."""


class Prometheus:
    """`Measures` of this process."""

    def __init__(self) -> None:
        import prometheus_client as client

        self._client, self._registry = client, client.CollectorRegistry()
        client.ProcessCollector(registry=self._registry)
        kinds = {"counter": client.Counter, "gauge": client.Gauge, "histogram": client.Histogram}
        self._kept = {}
        for name, metric in METRICS.items():
            more = {"buckets": metric.bounds} if metric.bounds else {}
            made = kinds[metric.kind](PREFIX + name, metric.text, metric.tags, registry=self._registry, **more)
            self._kept[name] = made

    def add(self, name: str, value: float, **tags: str) -> None:
        """As `Measures.add`."""
        one = self._kept[name].labels(**tags)
        if METRICS[name].kind == "histogram":
            one.observe(value)
        else:
            one.inc(value)

    def set(self, name: str, value: float, **tags: str) -> None:
        """As `Measures.set`."""
        self._kept[name].labels(**tags).set(value)

    def exposition(self) -> tuple[bytes, str]:
        """As `Measures.exposition`."""
        return self._client.generate_latest(self._registry), self._client.CONTENT_TYPE_LATEST
