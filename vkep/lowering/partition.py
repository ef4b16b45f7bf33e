"""Assigning nodes: lower each for Vulkan where its function accepts it, gather the others for the CPU, in stages.

A stage is a run of one kind of step. A node's stage is the latest of its inputs' stages, plus one where it runs
elsewhere than that input was made; nodes of one kind and stage make one convex island.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx

from gpu_shared.capabilities import DeviceCapabilities
from vkep import dtypes
from vkep.dtypes import DTYPES, DType
from vkep.errors import Decline
from vkep.graph.model import Node
from vkep.graph.weights import ArrayWeight, Weight
from vkep.lowering.builder import Builder, NeedsValue
from vkep.lowering.emit import emit
from vkep.lowering.fold import FoldError, can_fold, fold
from vkep.lowering.fuse import optimize
from vkep.lowering.nodes import check_known, lower_node
from vkep.lowering.program import CpuStep, DeferredStep, HostValue, IslandStep, Placement, Program, Step, ValueSpec
from vkep.lowering.tensor import Storage, Tensor
from vkep.plan.records import Port

Known = Weight | ValueSpec | HostValue


@dataclass
class _Island:
    stage: int
    builder: Builder
    tensors: dict[str, Tensor] = field(default_factory=dict)
    ports: list[Port] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)


def lower(
    nodes: Sequence[Node],
    known: Mapping[str, Known],
    outputs: Sequence[str],
    opsets: Mapping[str, int],
    caps: DeviceCapabilities,
) -> Program:
    """Place and plan ``nodes`` given what is known of the values they start from (weights, typed inputs)."""
    return _Partitioner(nodes, known, outputs, opsets, caps).run()


class _Partitioner:
    def __init__(
        self,
        nodes: Sequence[Node],
        known: Mapping[str, Known],
        outputs: Sequence[str],
        opsets: Mapping[str, int],
        caps: DeviceCapabilities,
    ) -> None:
        self.nodes, self.outputs, self.opsets, self.caps = nodes, outputs, opsets, caps
        self.known: dict[str, Known] = dict(known)
        self.made: dict[str, tuple[str, int]] = {}  # value: (kind, stage) of the step that makes it
        self.islands: dict[int, _Island] = {}
        self.cpu: dict[int, list[tuple[Node, str]]] = {}
        self.deferred: list[Node] = []
        self.values: set[str] = set()
        self.placements: list[Placement] = []

    def run(self) -> Program:
        for node in self.nodes:
            self._place(node)
        steps = self._steps()
        constants = {n: v for n in self.outputs if isinstance(v := self.known.get(n), Weight)}
        return Program(tuple(steps), constants, tuple(self.placements))

    # ---- one node

    def _place(self, node: Node) -> None:
        unknown = [n for n in node.reads if n not in self.known]
        if unknown:
            self._defer(node, f"waits for the shape of {unknown[0]!r}")
            return
        inputs = [self.known[n] for n in node.reads]
        if can_fold(node) and self._folded(node, inputs):
            return
        try:
            self._lower(node)
        except NeedsValue as need:
            if need.names:
                self.values.update(need.names)
                self._defer(node, need.reason)
            else:  # a value that the node makes for itself never becomes known
                self._to_cpu(node, need.reason)
        except Decline as decline:
            self._to_cpu(node, decline.reason)

    def _folded(self, node: Node, inputs: Sequence[Known]) -> bool:
        if node.op_type in ("Shape", "Size") and isinstance(inputs[0], ValueSpec) and not node.domain:
            results: list[np.ndarray | None] = [_shape_of(node, inputs[0].shape)]
        elif all(isinstance(v, Weight) for v in inputs):
            arrays = [self._array(n) for n in node.inputs]
            try:
                results = fold(node, arrays, self.opsets)
            except FoldError:
                return False
        else:
            return False
        if any(r is not None and r.dtype not in _GPU_DTYPES for r in results):
            return False
        for name, result in zip(node.outputs, results, strict=True):
            if name and result is not None:
                self.known[name] = ArrayWeight(name, result)
        self.placements.append(Placement(node, "folded"))
        return True

    def _array(self, name: str) -> np.ndarray | None:
        value = self.known.get(name)
        return value.array() if isinstance(value, Weight) else None

    def _lower(self, node: Node) -> None:
        check_known(node)
        stage = self._stage(node, "vulkan")
        island = self.islands.get(stage) or _Island(stage, Builder(self.caps))
        builder = island.builder
        ops, ports, tensors = len(builder.ops), len(island.ports), dict(island.tensors)
        builder.node = node
        arguments: list[Tensor | None] = []
        try:
            arguments += [self._tensor(island, n) if n else None for n in node.inputs]
            results = lower_node(builder, node, arguments, self.opsets)
        except Decline as decline:
            if isinstance(decline, NeedsValue) and not decline.names:
                pairs = zip(node.inputs, arguments, strict=True)
                decline.names = tuple(n for n, t in pairs if t is not None and t.storage is decline.tensor.storage)
            del builder.ops[ops:], island.ports[ports:]
            island.tensors = tensors
            raise
        finally:
            builder.node = None
        self.islands[stage] = island
        island.nodes.append(node)
        for name, tensor in zip(node.outputs, results, strict=False):
            if name:
                island.tensors[name] = tensor
                self.known[name] = ValueSpec(tensor.dtype, tensor.shape)
                self.made[name] = ("vulkan", stage)
        missing = [n for n in node.outputs[len(results) :] if n]
        if missing:
            raise AssertionError(f"{node.title}: its operator function made no output {missing}")
        self.placements.append(Placement(node, "vulkan", island=stage))

    def _tensor(self, island: _Island, name: str) -> Tensor:
        if name not in island.tensors:
            value = self.known[name]
            if _dtype(value) is None:
                raise Decline(f"input {name!r} has an element type that no kernel takes")
            if isinstance(value, Weight):
                island.tensors[name] = island.builder.weight(value)
            else:
                assert isinstance(value, ValueSpec)
                island.tensors[name] = self._import(island, name, value)
        return island.tensors[name]

    def _import(self, island: _Island, name: str, value: ValueSpec) -> Tensor:
        size = int(np.prod(value.shape, dtype=np.int64)) * value.dtype.itemsize
        port = Port(name, value.dtype.name, value.shape, size, is_input=True)
        storage = Storage(size, port=len(island.ports), label=name)
        island.ports.append(port)
        return Tensor.contiguous(value.dtype, value.shape, storage)

    def _stage(self, node: Node, kind: str) -> int:
        stages = [0]
        for name in node.reads:
            if name in self.made:
                made_by, stage = self.made[name]
                stages.append(stage + (made_by != kind))
        return max(stages)

    def _to_cpu(self, node: Node, reason: str) -> None:
        stage = self._stage(node, "cpu")
        self.cpu.setdefault(stage, []).append((node, reason))
        self.placements.append(Placement(node, "cpu", reason))
        specs = self._infer(node)
        for name, spec in zip(node.outputs, specs, strict=True):
            if name:
                self.made[name] = ("cpu", stage)
                if spec is not None:
                    self.known[name] = spec

    def _infer(self, node: Node) -> list[ValueSpec | None]:
        """Shapes of a CPU node's outputs, where ONNX can tell them from the inputs'."""
        nothing: list[ValueSpec | None] = [None] * len(node.outputs)
        if node.schema is None:
            return nothing
        types, data = {}, {}
        for name in node.reads:
            value = self.known[name]
            dtype = _dtype(value)
            if dtype is None or isinstance(value, HostValue):
                return nothing
            types[name] = onnx.helper.make_tensor_type_proto(dtype.onnx, value.shape)
            if isinstance(value, Weight) and value.nbytes <= 1 << 16:
                data[name] = onnx.numpy_helper.from_array(value.array(), name)
        try:
            inferred = onnx.shape_inference.infer_node_outputs(
                node.schema,
                node.proto,
                types,
                data,
                opset_imports=[onnx.helper.make_opsetid(d, v) for d, v in self.opsets.items()],
            )
        except (
            Exception
        ):  # inference is a help, never a requirement: without it the rest is planned when values are there
            return nothing
        return [_spec(inferred.get(name)) for name in node.outputs]

    def _defer(self, node: Node, reason: str) -> None:
        self.deferred.append(node)
        self.placements.append(Placement(node, "deferred", reason))

    # ---- the steps

    def _steps(self) -> list[Step]:
        later = {n for node in self.deferred for n in node.reads} | set(self.outputs)
        cpu_reads = {n for nodes in self.cpu.values() for node, _ in nodes for n in node.reads}
        steps: list[tuple[int, Step]] = []
        for stage, island in self.islands.items():
            elsewhere = {p.name for other in self.islands.values() if other is not island for p in other.ports}
            step = self._island_step(island, later | cpu_reads | elsewhere)
            if step is not None:
                steps.append((stage, step))
        for stage, nodes in self.cpu.items():
            steps.append((stage, self._cpu_step(nodes, later)))
        ordered = [step for _, step in sorted(steps, key=lambda s: s[0])]
        if self.deferred:
            ordered.append(self._deferred_step())
        return ordered

    def _island_step(self, island: _Island, wanted: set[str]) -> IslandStep | None:
        made = [n for node in island.nodes for n in node.outputs if n in wanted]
        builder, ports, results = island.builder, list(island.ports), []
        for name in dict.fromkeys(made):
            tensor = island.tensors[name]
            port = Port(name, tensor.dtype.name, tensor.shape, tensor.nbytes, is_input=False)
            storage = Storage(tensor.nbytes, port=len(ports), label=name)
            ports.append(port)
            results.append(builder.copy(tensor, out=Tensor.contiguous(tensor.dtype, tensor.shape, storage)))
        if not results:
            return None
        ops = optimize(builder.ops, results)
        planned = emit(ops, ports, self.caps)
        return IslandStep(planned.plan, planned.weights, tuple(island.nodes))

    def _cpu_step(self, placed: Sequence[tuple[Node, str]], later: set[str]) -> CpuStep:
        nodes = [node for node, _ in placed]
        made = [n for node in nodes for n in node.outputs if n]
        inputs, constants = self._needs(nodes, set(made))
        wanted = later | _reads_outside(self.nodes, nodes)
        return CpuStep(
            tuple(nodes),
            inputs,
            tuple(n for n in made if n in wanted),
            constants,
            tuple(reason for _, reason in placed),
        )

    def _deferred_step(self) -> DeferredStep:
        made = [n for node in self.deferred for n in node.outputs if n]
        inputs, constants = self._needs(self.deferred, set(made))
        outputs = tuple(n for n in made if n in set(self.outputs))
        values = frozenset(n for n in inputs if n in self.values)
        return DeferredStep(tuple(self.deferred), inputs, outputs, values, constants)

    def _needs(self, nodes: Sequence[Node], made: set[str]) -> tuple[tuple[str, ...], dict[str, Weight]]:
        """The values that a group of nodes takes in, and the constants that it reads."""
        needed = dict.fromkeys(n for node in nodes for n in node.reads if n not in made)
        constants = {n: v for n in needed if isinstance(v := self.known.get(n), Weight)}
        return tuple(n for n in needed if n not in constants), constants


def _reads_outside(all_nodes: Iterable[Node], group: Sequence[Node]) -> set[str]:
    inside = {id(n) for n in group}
    return {name for node in all_nodes if id(node) not in inside for name in node.reads}


_GPU_DTYPES = {d.numpy for d in DTYPES.values()}


def _dtype(value: Known) -> DType | None:
    if isinstance(value, HostValue):
        return None
    return value.dtype if isinstance(value, ValueSpec) else dtypes.from_onnx(value.elem_type)


def _shape_of(node: Node, shape: tuple[int, ...]) -> np.ndarray:
    if node.op_type == "Size":
        return np.array(int(np.prod(shape, dtype=np.int64)), np.int64)
    return np.array(shape[node.attributes.get("start", 0) : node.attributes.get("end")], np.int64)


def _spec(type_proto: onnx.TypeProto | None) -> ValueSpec | None:
    if type_proto is None or not type_proto.HasField("tensor_type") or not type_proto.tensor_type.HasField("shape"):
        return None
    dtype = dtypes.from_onnx(type_proto.tensor_type.elem_type)
    dims = type_proto.tensor_type.shape.dim
    if dtype is None or not all(d.HasField("dim_value") for d in dims):
        return None
    return ValueSpec(dtype, tuple(int(d.dim_value) for d in dims))
