"""OrtEpProfilerImpl: each dispatch's time on the GPU, in ONNX Runtime's profile, with the node it belongs to.

While a profile is collected, each fused node is run a second time with a timestamp after every dispatch, each waiting
for the one before: the time of a dispatch by itself. (The results and overlaps of the run are those of the first one.)
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vkep.ort.boundary import NULL, CStruct, ffi, releases, status
from vkep.session.execution.executor import Executable
from vkep.session.reports.introspection import flatten

if TYPE_CHECKING:
    from vkep.ort.api import Ort

_KERNEL = 2  # OrtProfilingEventCategory


@dataclass
class _GpuEvent:
    name: str
    start_us: int
    duration_us: int
    arguments: dict[str, str] = field(default_factory=dict)


class Profiler(CStruct, struct="OrtEpProfilerImpl"):
    """One profile. ``active`` is the list that it is in while it collects."""

    def __init__(self, ort: Ort, active: list[Profiler]) -> None:
        super().__init__()
        self._ort, self._active = ort, active
        self._zero_ns = 0  # time.monotonic_ns() when ONNX Runtime's profile began
        self._events: list[_GpuEvent] = []
        self._unclaimed: dict[int, list[_GpuEvent]] = {}  # by correlation id, until the ONNX Runtime event ends
        self._lock = threading.Lock()
        self._local = threading.local()

    @status
    def StartProfiling(self, offset_ns: int) -> None:
        self._zero_ns = time.monotonic_ns() - offset_ns
        self._active.append(self)

    @status
    def StartEvent(self, correlation: int) -> None:
        self._stack.append(correlation)

    @status
    def StopEvent(self, correlation: int, event: Any) -> None:
        if correlation in self._stack:
            self._stack.remove(correlation)
        with self._lock:
            mine = self._unclaimed.pop(correlation, [])
        if mine:
            name = "" if event == NULL else self._ort.text(self._ort.ep_api.ProfilingEvent_GetName, event)
            for gpu_event in mine:
                gpu_event.arguments["ort_event"] = name

    @status
    def EndProfiling(self, container: Any) -> None:
        if self in self._active:
            self._active.remove(self)
        ort, ep_api = self._ort, self._ort.ep_api
        with self._lock:
            events, self._events = self._events, []
        made = []
        try:
            made = [self._make(event) for event in events]
            if made:
                array = ffi.new("OrtProfilingEvent const *[]", made)
                ort.check(ep_api.ProfilingEventsContainer_AddEvents(container, array, len(made)))
        finally:
            for event in made:
                ep_api.ReleaseProfilingEvent(event)

    @releases
    def Release(self) -> None:
        if self in self._active:
            self._active.remove(self)
        self.release()

    def measure(self, node: str, executable: Executable, values: Mapping[str, Any]) -> None:
        """Time the dispatches of a fused node that has just run; ``values`` are those of the run."""
        for island in flatten(executable).islands:
            if not all(name in values for name in island.inputs):
                continue  # inside a part that was planned during the run, whose own values no longer exist
            at = (time.monotonic_ns() - self._zero_ns) / 1e3
            times = island.profile(values)
            correlation = self._stack[-1] if self._stack else 0
            events = []
            for dispatch, nanoseconds in zip(island.plan.dispatches, times, strict=True):
                arguments = {
                    "op_name": dispatch.label,
                    "node": node,
                    "correlation_id": str(correlation),
                    "shader": island.plan.pipelines[dispatch.pipeline].shader.source,
                    "workgroups": "x".join(map(str, dispatch.grid)),
                    "gpu_ns": f"{nanoseconds:.0f}",
                    "flops": str(dispatch.flops),
                    "bytes": str(dispatch.bytes),
                }
                duration = nanoseconds / 1e3
                events.append(_GpuEvent(dispatch.label, round(at), max(1, round(duration)), arguments))
                at += duration
            with self._lock:
                self._events += events
                self._unclaimed.setdefault(correlation, []).extend(events)

    @property
    def _stack(self) -> list[int]:
        """Correlation ids of the events that are open on this thread."""
        if not hasattr(self._local, "stack"):
            self._local.stack = []
        stack: list[int] = self._local.stack
        return stack

    def _make(self, event: _GpuEvent) -> Any:
        texts = [ffi.new("char[]", t.encode()) for pair in event.arguments.items() for t in pair]
        keys, values = ffi.new("char const *[]", texts[0::2]), ffi.new("char const *[]", texts[1::2])
        return self._ort.get(
            self._ort.ep_api.CreateProfilingEvent,
            "OrtProfilingEvent *",
            _KERNEL,
            os.getpid(),
            threading.get_native_id() & 0x7FFFFFFF,
            event.name.encode() or b"dispatch",
            event.start_us,
            event.duration_us,
            keys,
            values,
            len(event.arguments),
        )
