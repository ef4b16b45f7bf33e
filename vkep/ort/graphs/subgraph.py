"""One graph that ONNX Runtime passes to `Compile`, to be replaced by a fused node."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gpu_shared.capabilities import DeviceCapabilities
from vkep import dtypes
from vkep.errors import InvalidModelError, UnsupportedModelError
from vkep.graph.model import Graph, Node, ValueInfo
from vkep.ir.program import IslandStep, Program
from vkep.ort.boundary import NULL
from vkep.ort.graphs import context_data, context_nodes
from vkep.ort.graphs.claims import known_values
from vkep.ort.graphs.context_data import Nodes
from vkep.ort.graphs.context_nodes import ContextSettings
from vkep.ort.graphs.convert import OrtGraphView
from vkep.ort.nodes.fused import FusedNode
from vkep.placement.partition import lower

if TYPE_CHECKING:
    from vkep.ort.api import Ort
    from vkep.ort.graphs.overrides import Overrides
    from vkep.ort.runtime import Runtime


class OrtSubgraph:
    """An OrtGraph to compile, and the node that replaces it."""

    def __init__(
        self, ort: Ort, graph: Any, fused: Any, overrides: Overrides, known: Mapping[tuple[str, ...], Node]
    ) -> None:
        """``known``: the nodes of its island, by their outputs, which `GetCapability` has read."""
        self._ort = ort
        self.view = OrtGraphView(ort, graph, overrides, known)
        api = ort.api
        self.inputs = self._names(api.Node_GetNumInputs, api.Node_GetInputs, fused)
        self.outputs = self._names(api.Node_GetNumOutputs, api.Node_GetOutputs, fused)
        self.name = ort.text(api.Node_GetName, fused)
        self._loaded: IslandStep | Nodes | None = None

    @property
    def made(self) -> list[str]:
        """The outputs that exist."""
        return [o for o in self.outputs if o]

    def lowered(self, caps: DeviceCapabilities) -> Program | None:
        """Its plan for static shapes; None where its shapes are not static."""
        graph = self.view.graph
        if not all(v.is_static for v in graph.inputs):
            return None
        return lower(graph.nodes, known_values(self.view), self.made, self.view.opsets, caps)

    def loaded(self, device: DeviceCapabilities) -> IslandStep | Nodes | None:
        """The data of an EPContext node; None for other graphs. Raises `InvalidModelError`, and
        `UnsupportedModelError` where data and node disagree about their values."""
        nodes = self.view.graph.nodes
        if len(nodes) != 1 or not context_nodes.is_context(nodes[0]):
            return None
        if self._loaded is None:
            data = context_nodes.read_data(nodes[0], self.view.folder)
            try:
                made = context_data.decode(data, device)
            except InvalidModelError as error:
                raise InvalidModelError(f"{context_nodes.data_place(nodes[0])}: {error}") from error
            if isinstance(made, IslandStep):
                needs = {p.name for p in made.plan.ports}
                has = {*nodes[0].inputs, *nodes[0].outputs}
            else:
                needs = {v.name for v in made.graph.inputs} | {n for n in nodes[0].outputs if n}
                has = {*nodes[0].inputs, *made.graph.weights, *(o for n in made.graph.nodes for o in n.outputs)}
            missing = sorted(needs - has)
            if missing:
                raise UnsupportedModelError(
                    f"{nodes[0].title}: its data and the node do not agree about the values {missing}"
                )
            self._loaded = made
        return self._loaded

    def context_node(self, settings: ContextSettings, program: Program | None, device: DeviceCapabilities) -> Any:
        """The EPContext node for this island in a compiled model: with its plan where one plan computes it, else with
        its nodes, because shapes (or values that determine shapes) are known only in a run."""
        step: Any = program.steps[0] if program is not None and len(program.steps) == 1 else None
        if isinstance(step, IslandStep) and set(self.made) <= {p.name for p in step.plan.outputs}:
            used = {p.name for p in step.plan.inputs}
        else:
            step = Nodes(self.view.graph, self.view.opsets, self.view.ir_version)
            used = {v.name for v in self.view.graph.inputs}
        info = context_data.compatibility(device)
        data = context_data.encode(step, info)
        inputs = [n for n in self.inputs if n in used]
        path = self._ort.text(self._ort.api.Graph_GetModelPath, self.view.pointer)
        return context_nodes.make_node(self._ort, settings, path, self.name, inputs, self.outputs, data, info)

    def node(
        self, runtime: Runtime, program: Program | None, model_inputs: set[str], in_body: bool = False
    ) -> FusedNode:
        """The fused node (``in_body``: of a body). A plan that was loaded has no nodes to plan from, and no constants."""
        view, graph = self.view, self.view.graph
        opsets: Mapping[str, int] = view.opsets
        ir_version = view.ir_version
        if isinstance(self._loaded, Nodes):
            graph, opsets, ir_version = self._loaded.graph, self._loaded.opsets, self._loaded.ir_version
        elif self._loaded is not None:
            assert program is not None
            graph = _graph_of(graph, program)
        holds = set(self.inputs) <= model_inputs | set(view.graph.weights) or not graph.nodes
        return FusedNode(
            runtime,
            graph,
            opsets,
            ir_version,
            self.inputs,
            self.outputs,
            program,
            name=self.name,
            shapes_hold=holds,
            in_body=in_body,
        )

    def _names(self, count: Any, items: Any, node: Any) -> list[str]:
        ort = self._ort
        infos = ort.items(count, items, "OrtValueInfo const *", node)
        return ["" if i == NULL else ort.text(ort.api.GetValueInfoName, i) for i in infos]


def _graph_of(graph: Graph, program: Program) -> Graph:
    step = program.steps[0]
    assert isinstance(step, IslandStep)
    inputs = tuple(ValueInfo(p.name, dtypes.DTYPES[p.dtype].onnx, p.shape) for p in step.plan.inputs)
    return dataclasses.replace(graph, nodes=(), inputs=inputs)
