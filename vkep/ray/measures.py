"""The metrics of a service at Ray's Prometheus endpoint."""

from __future__ import annotations

import threading
from collections import Counter

from ray.util import metrics

from vkep.serving.measures import METRICS, PREFIX

#: seconds between reports of counts to Ray: a report for each request would take as long as reading its JSON
_COUNT_S = 1.0


class RayMeasures:
    """`vkep.serving.measures.Measures` of a replica."""

    def __init__(self) -> None:
        self._kept = {
            name: metrics.Histogram(PREFIX + name, one.text, list(one.bounds), tuple(one.tags))
            if one.kind == "histogram"
            else (metrics.Gauge if one.kind == "gauge" else metrics.Counter)(PREFIX + name, one.text, tuple(one.tags))
            for name, one in METRICS.items()
        }
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, tuple[tuple[str, str], ...]]] = Counter()  # that Ray does not know yet

    def add(self, name: str, value: float, **tags: str) -> None:
        """As `Measures.add`."""
        if METRICS[name].kind == "histogram":
            self._kept[name].observe(value, tags)
            return
        with self._lock:
            if not self._counts:
                timer = threading.Timer(_COUNT_S, self._report)
                timer.daemon = True
                timer.start()
            self._counts[name, tuple(tags.items())] += value  # type: ignore[assignment]  # of whole numbers

    def _report(self) -> None:
        with self._lock:
            counts, self._counts = self._counts, Counter()
        for (name, tags), count in counts.items():
            if count:
                self._kept[name].inc(count, dict(tags))

    def set(self, name: str, value: float, **tags: str) -> None:
        """As `Measures.set`."""
        self._kept[name].set(value, tags)

    def exposition(self) -> None:
        """None: Ray has them."""
