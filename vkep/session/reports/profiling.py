"""A session's profile: the same file as ONNX Runtime's ``enable_profiling`` writes.

The file is a JSON list of complete events of the "Trace Event Format" (Google, 2016), which Perfetto opens: ``ts`` and
``dur`` in microseconds; category ``Session`` for opening and runs, ``Node`` for each dispatch's time on the GPU.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping
from typing import Any

from vkep.session.execution.executor import Executable
from vkep.session.ort_interface.options import VULKAN
from vkep.session.reports.introspection import flatten


class SessionProfile:
    """Events since its construction. Thread-safe."""

    def __init__(self, prefix: str) -> None:
        self.start_ns = time.perf_counter_ns()
        stamp = time.strftime("%Y-%m-%d_%H-%M-%S")
        self._path = f"{prefix}_{stamp}.json"
        self._events: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        self._warned = False

    def add(self, category: str, name: str, start_ns: int, duration_ns: float, **arguments: object) -> None:
        """An event that began at ``start_ns`` of `time.perf_counter_ns`."""
        event = {
            "cat": category,
            "pid": os.getpid(),
            "tid": threading.get_native_id(),
            "ph": "X",
            "name": name,
            "ts": (start_ns - self.start_ns) / 1e3,
            "dur": duration_ns / 1e3,
            "args": arguments,
        }
        with self._lock:
            self._events.append(event)

    def add_run(self, executable: Executable, values: Mapping[str, Any], start_ns: int, tag: str) -> None:
        """Add a run that has just ended, and the times of its dispatches, from a second run in which each waits for the
        one before. ``values`` are those of the run."""
        now = time.perf_counter_ns()
        self.add("Session", "model_run", start_ns, now - start_ns, tag=tag)
        for island in flatten(executable).islands:
            if not all(name in values for name in island.inputs):
                continue  # in a part that was planned during the run, whose own values no longer exist
            times = island.profile(values)
            at = float(now)
            for dispatch, nanoseconds in zip(island.plan.dispatches, times, strict=True):
                shader = island.plan.pipelines[dispatch.pipeline].shader.source
                arguments = {"provider": VULKAN, "op_name": dispatch.label, "shader": shader, "tag": tag}
                arguments |= {"flops": str(dispatch.flops), "bytes": str(dispatch.bytes)}
                self.add("Node", f"{dispatch.label}_kernel_time", int(at), nanoseconds, **arguments)
                at += nanoseconds

    def end(self) -> str:
        """Write the file at the first call; returns its name. Raises ``OSError``."""
        with self._lock:
            if not self._warned:
                with open(self._path, "w", encoding="utf-8") as file:
                    json.dump(sorted(self._events, key=lambda e: float(e["ts"])), file)
                self._warned = True
        return self._path
