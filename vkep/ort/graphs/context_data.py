"""The bytes of an EPContext node: one plan and its packed weights, or, where shapes are known only in a run, the ONNX
nodes and weights to plan from; and the device that they were made for.

Reading it runs no code: it may come from a model of unknown origin.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
from collections.abc import Mapping
from enum import Enum
from typing import Any

import onnx

import vkep
from gpu_shared.capabilities import DeviceCapabilities
from vkep.errors import InvalidModelError
from vkep.graph.load import read_graph
from vkep.graph.model import Graph, ValueInfo
from vkep.graph.normalize import bodies
from vkep.graph.weights import ArrayWeight, Weight
from vkep.ir.program import IslandStep
from vkep.plan.encoded import DAMAGED, chunks, plan_fields, read, read_plan
from vkep.shaders.source import shader_digest

MAGIC = b"VKEPCTX2"


class Fit(Enum):
    """Whether compiled data fits a device: the values of OrtCompiledModelCompatibility."""

    NOT_OURS = 0
    OPTIMAL = 1
    RECOMPILE = 2  #: it runs, but another driver might choose faster kernels
    UNSUPPORTED = 3


# ---- the device it was made for


def compatibility(device: DeviceCapabilities) -> str:
    """The properties that a plan depends on, as text: vkep and its shaders, the device's model and limits, the
    driver."""
    limits = (
        device.subgroup_size,
        device.min_subgroup_size,
        device.max_subgroup_size,
        device.max_workgroup_invocations,
        device.max_workgroup_size,
        device.max_workgroup_count,
        device.max_shared_memory_bytes,
        device.max_push_constants_size,
    )
    fields = {
        "vkep": vkep.__version__,
        "shaders": shader_digest()[:16],
        "device": f"{device.vendor_id:04x}:{device.device_id:04x}",
        "limits": hashlib.blake2b(repr(limits).encode(), digest_size=8).hexdigest(),
        "driver": f"{device.driver_name} {device.driver_version:x}",
    }
    return ";".join(f"{k}={v}" for k, v in fields.items())


def fit(info: str, device: DeviceCapabilities) -> Fit:
    """Whether data with this compatibility text fits a device."""
    made, here = _fields(info), _fields(compatibility(device))
    if "vkep" not in made:
        return Fit.NOT_OURS
    if any(made.get(key) != here[key] for key in ("vkep", "shaders", "device", "limits")):
        return Fit.UNSUPPORTED
    return Fit.OPTIMAL if made.get("driver") == here["driver"] else Fit.RECOMPILE


def _fields(info: str) -> dict[str, str]:
    return dict(part.split("=", 1) for part in info.split(";") if "=" in part)


# ---- the bytes


@dataclasses.dataclass(frozen=True)
class Nodes:
    """An island that is planned for each signature of a run."""

    graph: Graph
    opsets: Mapping[str, int]
    ir_version: int


def encode(island: IslandStep | Nodes, info: str) -> bytes:
    """One island as bytes; ``info`` is the device's `compatibility`."""
    if isinstance(island, IslandStep):
        content = {"plan": plan_fields(island.plan)}
        weights = {ref.key: island.weights[ref.key] for ref in island.plan.constants}
    else:
        content = {"nodes": _nodes(island)}
        weights = dict(island.graph.weights)
    return b"".join(chunks(MAGIC, {"compatibility": info, **content}, weights))


def decode(data: bytes, device: DeviceCapabilities) -> IslandStep | Nodes:
    """Decode an island. Raises `InvalidModelError` for bytes that are not such data, that are truncated, or that were
    made for another device; the text names the cause."""
    if data[: len(MAGIC)] != MAGIC:
        raise InvalidModelError("EPContext: the data is not vkep's (or of another format): compile the model again")
    try:
        header, arrays = read(MAGIC, data)
        made_for = str(header["compatibility"])
        if fit(made_for, device) in (Fit.NOT_OURS, Fit.UNSUPPORTED):
            raise InvalidModelError(
                f"EPContext: compiled for {made_for!r}, and this is {compatibility(device)!r}: compile the model again here"
            )
        weights: dict[str, Weight] = {key: ArrayWeight(key, array) for key, array in arrays.items()}
        if "nodes" in header:
            return _read_nodes(header["nodes"], weights)
        return IslandStep(read_plan(header["plan"]), weights, ())
    except DAMAGED as error:
        if isinstance(error, InvalidModelError):
            raise
        raise InvalidModelError(f"EPContext: the data is damaged ({type(error).__name__}: {error})") from error


def _nodes(island: Nodes) -> dict[str, Any]:
    proto = onnx.GraphProto(name=island.graph.name, node=[n.proto for n in island.graph.nodes])
    return {
        "graph": base64.b64encode(proto.SerializeToString(deterministic=True)).decode(),
        "opsets": dict(island.opsets),
        "ir_version": island.ir_version,
        "inputs": [(v.name, v.elem_type, v.shape) for v in island.graph.inputs],
    }


def _has_weights(graph: onnx.GraphProto) -> bool:
    """Whether a graph or a body in it has initializers, which might name any file."""
    inner = [body for node in graph.node for body in bodies(node)]
    return bool(graph.initializer or graph.sparse_initializer) or any(map(_has_weights, inner))


def _read_nodes(entry: Mapping[str, Any], weights: Mapping[str, Weight]) -> Nodes:
    content = base64.b64decode(entry["graph"], validate=True)
    try:
        proto = onnx.GraphProto.FromString(content)
    except Exception as error:  # an exception class of protobuf
        raise ValueError(f"the nodes do not parse: {error}") from error
    opsets = {str(domain): int(version) for domain, version in entry["opsets"].items()}
    if _has_weights(proto):
        raise InvalidModelError("EPContext: the data's graphs carry weights of their own")
    read = read_graph(proto, opsets, None, int(entry["ir_version"]), "")
    inputs = tuple(
        ValueInfo(str(name), int(elem_type), None if shape is None else tuple(shape))
        for name, elem_type, shape in entry["inputs"]
    )
    return Nodes(dataclasses.replace(read, weights=dict(weights), inputs=inputs), opsets, int(entry["ir_version"]))
