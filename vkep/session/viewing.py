"""Collects the document of a page (`vkep.view`) from the open objects of a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from gpu_shared.context_registry import SharedGpuContextRegistry
from gpu_shared.handles import live_counts
from gpu_shared.memory import memory_budget
from vkep.device.measure.limits import device_limits
from vkep.device.tensor import DeviceTensor
from vkep.memory.staging_ring import STAGING_KINDS, shared_staging_arena
from vkep.session.executor import IslandExecutor
from vkep.session.introspection import Flat, flatten
from vkep.session.report import IslandReport
from vkep.session.session_state import SessionState
from vkep.session.tracing import RunTrace, trace_run
from vkep.view.document import add_graph, add_plan, add_times, arena_document, new_document, without_folders
from vkep.view.graph import GraphDocument, Kind, value_kinds

if TYPE_CHECKING:
    from gpu_shared.context import SharedGpuContext
    from vkep.device.delegate import VulkanDelegate


def session_document(
    state: SessionState,
    feeds: Mapping[str, Any] | None,
    runs: int,
) -> dict[str, Any]:
    """The document of a session, with ``runs`` runs on ``feeds``; without feeds nothing is run. Raises as a run."""
    delegate, context = state.delegate, state.delegate.context
    document = new_document(state.model.source, delegate.capabilities.name, context.label)
    traces: list[RunTrace] = []
    kinds: dict[str, Kind] = {}
    latest = state.graph.latest
    if feeds is not None:
        values = state.inputs_of(feeds)
        kinds |= {name: _kind(value) for name, value in values.items() if hasattr(value, "shape")}
        used = state.graph_of(values).use(values)
        with used.hold:
            used.executable.run(dict(values), {})  # deferred parts are planned then
            flat = flatten(used.executable)
            if runs and context.device.family.timestamp_valid_bits:
                trace_run(used.executable, delegate, flat.islands, dict(values))  # the first run records
                for _ in range(runs):
                    trace, made = trace_run(used.executable, delegate, flat.islands, dict(values))
                    traces.append(trace)
                samples = [_profile(flat.islands, made) for _ in range(runs)]
                kinds = {**{name: _kind(v) for name, v in made.items() if hasattr(v, "shape")}, **kinds}
            elif runs:
                document["notes"].append("The device's queue has no timestamps: nothing is timed.")
            _describe(document, state, flat, kinds)
            if traces:
                limits = device_limits(delegate.capabilities)
                document["limits"] = asdict(limits)
                best = [limits.of_dispatch(i.plan, d) for i in flat.islands for d in i.plan.dispatches]
                add_times(document, samples, best)
    elif latest is not None:
        document["notes"].append("Nothing was run: give inputs to see times.")
        _describe(document, state, flatten(latest), kinds)
    else:
        document["notes"].append("Not planned yet, because input shapes are dynamic: give inputs.")
        _describe(document, state, Flat([]), kinds)
    document["runs"] = [run_document(trace) for trace in traces]
    add_context(document, delegate, [context])
    return document


def _describe(document: dict[str, Any], state: SessionState, flat: Flat, kinds: Mapping[str, Kind]) -> None:
    for island in flat.islands:
        kinds = {**{p.name: (p.dtype, p.shape) for p in island.plan.ports}, **kinds}
    graph = GraphDocument({**value_kinds(state.model, kinds), **kinds})
    graph.add_model(state.model.graph, flat.placements)
    add_graph(document, graph)
    add_islands(document, flat, graph)


def add_islands(document: dict[str, Any], flat: Flat, graph: GraphDocument) -> None:
    """Add the plans, and the steps of other delegates."""
    for island in flat.islands:
        add_plan(document, island.plan, asdict(IslandReport.of(island.plan, len(island.nodes))), graph)
    document["regions"] += [
        f"data graph: {len(g.nodes)} nodes in {len(g.graph.operations)} TOSA operations, VGF of {g.vgf_bytes} bytes, "
        f"{g.constant_bytes} of them constants; {g.shared_bytes} bytes of weights shared with Vulkan"
        for g in flat.graphs
    ]
    document["regions"] += [f"kompute: {region.report()}" for region in flat.kompute]
    if flat.engines:
        document["regions"].append(f"CPU: {', '.join(sorted(flat.engines))}")


def add_context(document: dict[str, Any], delegate: VulkanDelegate, contexts: Sequence[SharedGpuContext]) -> None:
    """Add the memory of the device and its present users."""
    context = delegate.context
    memory = document["memory"]
    memory["arenas"].append(arena_document(delegate.arena.snapshot(), "device"))
    for kind in STAGING_KINDS:
        with shared_staging_arena(delegate.lease, kind) as staging:
            memory["arenas"].append(arena_document(staging.snapshot(), f"staging, {kind}"))
    users = delegate.constants.users
    for weight in memory["weights"]:
        weight["users"] = users.get(weight["key"], 0)
    memory["heaps"] = [asdict(heap) for heap in memory_budget(context.device)]
    memory["resident_weights"] = sum(delegate.constants.resident.values())
    caps = context.capabilities.to_dict()
    document["contexts"] = {
        "device": {name: value for name, value in caps.items() if name not in ("memory_heaps", "queue_families")},
        "contexts": [_context(one) for one in contexts],
        "registered": [f"{token}:{group}" for token, group in sorted(SharedGpuContextRegistry.get().keys())],
        "live_objects": live_counts(),
    }


def _context(context: SharedGpuContext) -> dict[str, Any]:
    return {
        "label": context.label,
        "sync_mode": context.sync_mode.value,
        "owns": [
            name
            for name, owned in (
                ("instance", context.owns_instance),
                ("device", context.owns_device),
                ("timeline", context.owns_timeline_semaphore),
            )
            if owned
        ],
        "queue_family": context.queue_family_index,
        "users": sorted(map(_user, context.users)),
        "timeline": {"submitted": context.timeline.submitted, "completed": context.timeline.completed},
        "validation_messages": len(context.validation_messages),
    }


def _user(text: str) -> str:
    """A user of a context without paths of this machine: a resource by the name of its kind alone."""
    return text.partition(", ")[0].replace("(", "") if text.startswith("resource (") else without_folders(text)


def _profile(islands: Sequence[IslandExecutor], values: Mapping[str, Any]) -> list[list[float]]:
    return [island.profile(values) for island in islands]


def run_document(trace: RunTrace) -> dict[str, Any]:
    """A run for the document."""
    return {
        "start": trace.start,
        "end": trace.end,
        "uncertainty": trace.uncertainty_ns,
        "host": [asdict(span) for span in sorted(trace.host, key=lambda s: (s.start, s.depth))],
        "gpu": [asdict(span) for span in trace.gpu],
    }


def _kind(value: Any) -> Kind:
    dtype = value.dtype.name if isinstance(value, (np.ndarray, DeviceTensor)) else str(value.dtype)
    return dtype, tuple(map(int, value.shape))
