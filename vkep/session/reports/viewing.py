"""Collects the document of a page (`vkep.view`) from the open objects of a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from gpu_shared.capabilities import DeviceCapabilities
from gpu_shared.context_registry import SharedGpuContextRegistry
from gpu_shared.lifetime import live_counts
from gpu_shared.memory import memory_budget
from vkep.device.measure.limits import DeviceLimits, Pace, device_limits
from vkep.device.tensor import DeviceTensor
from vkep.errors import InvalidModelError
from vkep.graph.model import Graph
from vkep.memory.staging_ring import STAGING_KINDS, shared_staging_arena
from vkep.session.execution.executor import IslandExecutor
from vkep.session.reports.introspection import Flat, flatten
from vkep.session.reports.report import IslandReport
from vkep.session.reports.tracing import RunTrace, trace_run
from vkep.session.session_state import SessionState
from vkep.view.document import (
    add_graph,
    add_plan,
    add_region,
    add_times,
    arena_document,
    model_facts,
    new_document,
    without_folders,
)
from vkep.view.graph import GraphDocument, Kind, value_kinds
from vkep.view.weights import weight_statistics

T = TypeVar("T")
#: limits of the device that were measured longer before a page are measured again
LIMITS_AGE_S = 600.0

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
            timed = runs and context.device.family.timestamp_valid_bits
            if timed:
                trace_run(used.executable, delegate, flat.islands, dict(values))  # the first run records

                def sample() -> list[list[float]]:
                    trace, made = trace_run(used.executable, delegate, flat.islands, dict(values), flat.others)
                    traces.append(trace)
                    kinds.update({name: _kind(v) for name, v in made.items() if hasattr(v, "shape")})
                    return [island.profile(made) for island in flat.islands]

                samples = add_measured(document, delegate.capabilities, runs, sample)
            elif runs:
                document["notes"].append("The device's queue has no timestamps: nothing is timed.")
            _describe(document, state, flat, kinds)
            if timed:
                add_times(document, samples, least_times(document, flat.islands))
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
    add_statistics(document, graph, state.model.graph)
    document["model"] = model_facts(state.model)
    add_graph(document, graph)
    add_islands(document, flat, graph)


def add_statistics(document: dict[str, Any], graph: GraphDocument, model: Graph) -> None:
    """Add the statistics of the weights to their values."""
    unread = 0
    for name, weight in model.weights.items():
        try:
            graph.values[graph.value(name)]["stats"] = weight_statistics(weight)
        except InvalidModelError:  # its file is gone or was changed
            unread += 1
    if unread:
        document["notes"].append(f"{unread} weights could not be read again: they have no statistics.")


def add_islands(document: dict[str, Any], flat: Flat, graph: GraphDocument) -> None:
    """Add the plans, and the steps of other delegates."""
    for island in flat.islands:
        add_plan(document, island.plan, asdict(IslandReport.of(island.plan, len(island.nodes))), graph)
    for g in flat.graphs:
        about = (
            f"{len(g.nodes)} nodes in {len(g.graph.operations)} TOSA operations, VGF of {g.vgf_bytes} bytes, "
            f"{g.constant_bytes} of them constants; {g.shared_bytes} bytes of weights shared with Vulkan"
        )
        add_region(document, graph, "vgf", [node.name for node in g.nodes], about)
    for region in flat.kompute:
        add_region(document, graph, "kompute", [node.name for node in region.step.nodes], str(region.report()))
    if flat.engines:
        nodes = [p.node.name for p in flat.placements if p.where == "cpu"]
        add_region(document, graph, "cpu", nodes, ", ".join(sorted(flat.engines)))


def add_measured(document: dict[str, Any], caps: DeviceCapabilities, runs: int, sample: Callable[[], T]) -> list[T]:
    """Take samples, and add the device's limits and its pace beside each sample. Raises as `device_limits`, and as
    ``sample``."""
    limits = device_limits(caps, max_age_s=LIMITS_AGE_S)
    samples = []
    pace = Pace(caps, limits)
    try:
        for _ in range(runs):
            samples.append(sample())
            document["pace"].append(pace.rate())
    finally:
        pace.close()
    highest = max(document["pace"], default=0.0)
    document["limits"] = asdict(limits.or_higher(DeviceLimits(limits.device, 0.0, highest, highest, highest)))
    return samples


def least_times(document: dict[str, Any], islands: Sequence[IslandExecutor]) -> list[float]:
    """The least nanoseconds of each dispatch by the document's limits."""
    limits = DeviceLimits(**document["limits"])
    return [limits.of_dispatch(i.plan, d) for i in islands for d in i.plan.dispatches]


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
