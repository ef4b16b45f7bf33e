"""A run as Chrome trace events: what Perfetto and chrome://tracing open.

The format is the "Trace Event Format" (Google, 2016), JSON object form: complete events (``ph`` "X") with ``ts`` and
``dur`` in microseconds, and metadata events (``ph`` "M") that name processes and threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vkep.cli.measure import Span
from vkep.cli.plans import DispatchTime

HOST, GPU = 1, 2


def chrome_trace(
    spans: Sequence[Span], times: Sequence[DispatchTime], device: str, gpu_start: float, model: str
) -> dict[str, Any]:
    """The trace of host spans and one profiled run.

    The GPU's clock is not the host's: its dispatches are laid end to end from ``gpu_start`` (seconds of
    `time.perf_counter`, when the profiled run was asked for), so only their lengths are measured.
    """
    origin = min([s.start for s in spans] + [gpu_start])
    events: list[dict[str, Any]] = [
        _named("process_name", HOST, 0, "host"),
        _named("process_name", GPU, 0, f"GPU: {device}"),
    ]
    tracks = {track: number for number, track in enumerate(dict.fromkeys(["main", *(s.track for s in spans)]), 1)}
    for track, number in tracks.items():
        events.append(_named("thread_name", HOST, number, model if track == "main" else track))
    for span in sorted(spans, key=lambda s: (s.start, -s.end)):
        start, duration = (span.start - origin) * 1e6, (span.end - span.start) * 1e6
        events.append(_complete(span.name, HOST, tracks[span.track], start, duration, {}))
    at = (gpu_start - origin) * 1e6
    for island in dict.fromkeys(t.island for t in times):
        events.append(_named("thread_name", GPU, island + 1, f"island {island}"))
    for time in times:
        duration = time.nanoseconds / 1e3
        arguments = {
            "kernel": time.kernel,
            "dispatch": time.index,
            "grid": list(time.grid),
            "flops": time.flops,
            "bytes": time.bytes,
            "gflops_per_s": round(time.gflops_per_s, 3),
            "gbytes_per_s": round(time.gbytes_per_s, 3),
        }
        events.append(_complete(time.label or time.kernel, GPU, time.island + 1, at, duration, arguments))
        at += duration
    note = "dispatches are laid end to end from the host's start of the profiled run; each waits for the one before"
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"device": device, "note": note}}


def _named(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


def _complete(
    name: str, process: int, thread: int, start: float, duration: float, arguments: dict[str, Any]
) -> dict[str, Any]:
    return {"name": name, "ph": "X", "pid": process, "tid": thread, "ts": start, "dur": duration, "args": arguments}
