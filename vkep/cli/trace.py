"""Runs as Chrome trace events, the format that Perfetto and chrome://tracing open.

The format is the "Trace Event Format" (Google, 2016), JSON object form: complete events (``ph`` "X") with ``ts`` and
``dur`` in microseconds, counters (``ph`` "C"), and metadata events (``ph`` "M") that name processes and threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from vkep.cli.measure import Span

HOST, GPU = 1, 2


def chrome_trace(spans: Sequence[Span], document: Mapping[str, Any], model: str) -> dict[str, Any]:
    """The trace of host spans (seconds of `time.perf_counter`) and of the runs of a document (`vkep.view.document`).

    Each run has its own rows for the GPU, several where dispatches overlap. Counters: ``queue depth``, the submits that
    the GPU has not finished, and ``slab in use``, the bytes of temporary buffers that are live at a dispatch.
    """
    runs = document["runs"]
    origin = min([s.start * 1e9 for s in spans] + [run["start"] for run in runs], default=0.0)
    events: list[dict[str, Any]] = [
        _named("process_name", HOST, 0, "host"),
        _named("process_name", GPU, 0, f"GPU: {document['device']}"),
    ]
    tracks = {track: number for number, track in enumerate(dict.fromkeys(["main", *(s.track for s in spans)]), 1)}
    for track, number in tracks.items():
        events.append(_named("thread_name", HOST, number, model if track == "main" else track))
    for span in sorted(spans, key=lambda s: (s.start, -s.end)):
        start, duration = span.start * 1e9 - origin, (span.end - span.start) * 1e9
        events.append(_complete(span.name, HOST, tracks[span.track], start, duration, {}))
    dispatches = {(d["island"], d["index"]): d for d in document["dispatches"]}
    rows = 0
    for number, run in enumerate(runs, 1):
        for step in run["host"]:
            name = f"traced run {number}" if step["depth"] == 0 else step["name"]
            start, duration = step["start"] - origin, step["end"] - step["start"]
            events.append(_complete(name, HOST, tracks["main"], start, duration, {}))
        lanes = _lanes(run["gpu"])
        for lane, found in enumerate(lanes, rows + 1):
            events.append(_named("thread_name", GPU, lane, f"run {number}" + " (overlapping)" * (lane > rows + 1)))
            for one in found:
                arguments = _arguments(dispatches.get((one["island"], one["dispatch"])))
                name = one["name"] or arguments.get("kernel", "")
                start, duration = one["start"] - origin, one["end"] - one["start"]
                events.append(_complete(name, GPU, lane, start, duration, arguments))
        rows += len(lanes)
        events += _counters(run, origin, document)
    uncertain = max((run["uncertainty"] for run in runs), default=0.0)
    note = f"the GPU's times are on the host's clock, within {uncertain / 1e3:.1f} us"
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"device": document["device"], "note": note}}


def _lanes(spans: Iterable[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Distribute spans over rows so that none overlaps another in its row."""
    lanes: list[list[Mapping[str, Any]]] = []
    for span in sorted(spans, key=lambda s: (s["start"], -s["end"])):
        free = next((lane for lane in lanes if lane[-1]["end"] <= span["start"]), None)
        if free is None:
            lanes.append(free := [])
        free.append(span)
    return lanes


def _arguments(dispatch: Mapping[str, Any] | None) -> dict[str, Any]:
    """The arguments of a dispatch's event; empty for a whole region."""
    if dispatch is None:
        return {}
    made = {name: dispatch[name] for name in ("kernel", "island", "grid", "flops", "bytes", "candidate")}
    alone = dispatch["ns"]
    made |= {"dispatch": dispatch["index"], "ns_alone": alone, "limit_ns": dispatch.get("limit_ns")}
    if alone:
        made |= {f"g{what}_per_s": round(dispatch[what] / alone, 3) for what in ("flops", "bytes")}
    return made


def _counters(run: Mapping[str, Any], origin: float, document: Mapping[str, Any]) -> list[dict[str, Any]]:
    slabs = {slab["island"]: slab["buffers"] for slab in document["memory"]["slabs"]}
    events = []
    for span in run["gpu"]:
        alive = (b["nbytes"] for b in slabs.get(span["island"], ()) if b["first"] <= span["dispatch"] <= b["last"])
        events.append(_counter("slab in use", span["start"] - origin, "bytes", sum(alive)))
    if run["gpu"]:
        events.append(_counter("slab in use", max(s["end"] for s in run["gpu"]) - origin, "bytes", 0))
    # a submit is in the queue from its call to the end of the last dispatch before the host's wait for it is over
    changes = [(s["end"], 1) for s in run["host"] if s["name"] == "submit"]
    for wait in (s for s in run["host"] if s["name"] == "wait"):
        ended = [s["end"] for s in run["gpu"] if s["end"] <= wait["end"] + run["uncertainty"]]
        changes.append((max(ended, default=wait["end"]), -1))
    depth = 0
    for at, change in sorted(changes):
        depth += change
        events.append(_counter("queue depth", at - origin, "submits", max(depth, 0)))
    return events


def _named(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


def _complete(
    name: str, process: int, thread: int, start: float, duration: float, arguments: dict[str, Any]
) -> dict[str, Any]:
    times = {"ts": start / 1e3, "dur": duration / 1e3}
    return {"name": name, "ph": "X", "pid": process, "tid": thread, **times, "args": arguments}


def _counter(name: str, at: float, unit: str, value: float) -> dict[str, Any]:
    return {"name": name, "ph": "C", "pid": GPU, "ts": at / 1e3, "args": {unit: value}}
