"""The document of a page: a JSON object with the nodes, plans and run times of a model.

Keys (times in nanoseconds, sizes in bytes, nodes and dispatches by position in their lists):

- ``format`` (3), ``vkep``, ``made`` (ISO time), ``title``, ``device``, ``context``, ``notes``
- ``nodes``: name, op, domain, module (`vkep.view.modules`), where, reason, declined, inputs, outputs, attributes
- ``values``: name, dtype, shape, kind, and of weights ``stats`` (`vkep.view.weights`); ``model``: what the file says of itself
- ``islands``: the numbers of `vkep.session.reports.report.IslandReport`; ``dispatches``: those of `describe_plan`, with
  ``island``, ``nodes``, and where they were measured ``samples`` (alone, one a run), their median ``ns``, and ``limit_ns``
- ``regions``: what delegates other than Vulkan's run: ``kind``, ``nodes``, ``about`` (a text)
- ``runs``: ``start``, ``end``, ``uncertainty``, ``host`` and ``gpu`` (lists of spans); ``opening``: spans before the runs
- ``pace``: float32 operations a nanosecond of a fixed kernel beside each run: how fast the device was meanwhile
- ``limits``: what the device does at best, and when that was measured; ``memory``: slabs, arenas, weights, heaps;
  ``contexts``: device, users, timeline
"""

from __future__ import annotations

import datetime
import importlib.metadata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import PureWindowsPath
from typing import Any

from vkep.arena.dump import ArenaSnapshot
from vkep.graph.model import Model
from vkep.plan.records import Plan
from vkep.text import one_line
from vkep.view.dispatches import describe_plan
from vkep.view.graph import GraphDocument
from vkep.view.memory import slab_buffers

FORMAT = 3
#: maximum number of an arena's chunks that are shown, the largest first
_MOST_CHUNKS = 2000


def new_document(title: str, device: str, context: str) -> dict[str, Any]:
    """A document without nodes or runs. Of a path as title only the last part is kept: pages are passed on."""
    made = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    lists = ("notes", "nodes", "values", "islands", "dispatches", "regions", "runs", "pace", "opening")
    return {
        "format": FORMAT,
        "vkep": _version(),
        "made": made,
        "title": one_line(without_folders(title)),
        "device": device,
        "context": context,
        **{name: [] for name in lists},
        "model": {},
        "limits": None,
        "memory": {"slabs": [], "arenas": [], "weights": [], "heaps": []},
        "contexts": {},
    }


def without_folders(text: str) -> str:
    """The last part of a path, for a page that is passed on to others; after " of " where that comes before the path."""
    what, of, path = text.partition(" of ")
    if not of or "/" in what or "\\" in what:
        return PureWindowsPath(text).name or text  # splits at both kinds of separators
    return f"{what} of {without_folders(path)}"


def _version() -> str:
    try:
        return importlib.metadata.version("vkep")
    except importlib.metadata.PackageNotFoundError:  # run from a checkout
        return ""


def model_facts(model: Model) -> dict[str, Any]:
    """What an ONNX file says of itself, without what is empty; ``opsets`` and ``properties`` are objects."""
    about = model.metadata
    found = {
        "producer": about.producer_name,
        "graph": about.graph_name,
        "domain": about.domain,
        "version": about.version,
        "IR version": model.ir_version,
        "opsets": {domain or "ai.onnx": version for domain, version in model.opsets.items()},
        "description": about.description,
        "graph's description": about.graph_description,
        "properties": dict(about.custom_metadata_map),
    }
    return {name: value for name, value in found.items() if value}


def add_graph(document: dict[str, Any], graph: GraphDocument) -> None:
    """The nodes and values."""
    document["nodes"], document["values"] = graph.nodes, graph.values


def add_plan(document: dict[str, Any], plan: Plan, report: Mapping[str, Any], graph: GraphDocument) -> None:
    """An island: its dispatches, its slab and its weights."""
    island = len(document["islands"])
    document["islands"].append(dict(report))
    for described in describe_plan(plan):
        document["dispatches"].append({**described, "island": island, "nodes": graph.nodes_of(described["label"])})
    document["memory"]["slabs"].append(
        {
            "island": island,
            "bytes": plan.activation_bytes,
            "live_peak": plan.live_peak_bytes,
            "dispatches": len(plan.dispatches),
            "buffers": [asdict(buffer) for buffer in slab_buffers(plan)],
        }
    )
    document["memory"]["weights"] += [
        {"island": island, "name": c.label, "bytes": c.nbytes, "key": c.key} for c in plan.constants
    ]


def add_region(document: dict[str, Any], graph: GraphDocument, kind: str, names: Iterable[str], about: str) -> None:
    """What a delegate other than Vulkan's runs: the nodes of these names."""
    nodes = [n for name in dict.fromkeys(names) for n in graph.nodes_named(name)]
    document["regions"].append({"kind": kind, "nodes": nodes, "about": about})


def add_times(
    document: dict[str, Any], samples: Sequence[Sequence[Sequence[float]]], limits: Iterable[float] | None
) -> None:
    """Add the nanoseconds of each dispatch alone: of each island, in several runs (`InferenceSession.profile`); the
    median of each dispatch is used. ``limits``: the least time of each dispatch on the device.
    """
    flat = [[ns for island in sample for ns in island] for sample in samples]
    for index, dispatch in enumerate(document["dispatches"]):
        ordered = sorted(sample[index] for sample in flat)
        dispatch |= {"ns": ordered[(len(ordered) - 1) // 2], "samples": [sample[index] for sample in flat]}
    for dispatch, limit in zip(document["dispatches"], limits or (), strict=False):
        dispatch["limit_ns"] = limit


def arena_document(snapshot: ArenaSnapshot, what: str) -> dict[str, Any]:
    """An arena's counters, and its regions with their chunks (only the largest, where there are very many)."""
    every = sorted((c.size for r in snapshot.regions for c in r.chunks), reverse=True)
    least = every[_MOST_CHUNKS] if len(every) > _MOST_CHUNKS else 0
    return {
        "what": what,
        "name": snapshot.name,
        "stats": asdict(snapshot.stats),
        "fragmentation": snapshot.external_fragmentation,
        "wasted": snapshot.wasted_bytes,
        "regions": [
            {
                "id": region.id,
                "kind": region.kind,
                "size": region.size,
                "chunks": [[c.offset, c.size, c.requested, c.in_use] for c in region.chunks if c.size >= least],
            }
            for region in snapshot.regions
        ],
    }
