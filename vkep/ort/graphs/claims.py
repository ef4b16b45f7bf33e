"""Claims the nodes of an ONNX Runtime graph for Vulkan, in convex sets. The lowering itself decides.

Where all shapes are known the graph is lowered as it is, and `Compile` uses the plans made here. Otherwise the dimensions
that the model leaves open are sizes: a node is declined for what holds at every size, and a refusal that depends on sizes
(a window that does not fit, another number of channels) is left to the runs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from gpu_shared.capabilities import DeviceCapabilities
from vkep import dtypes
from vkep.errors import UnsupportedModelError
from vkep.graph.model import Dim, Node, ValueInfo
from vkep.ir.infer import Known
from vkep.ir.program import IslandStep, Placement, Program, VgfStep, declared_value
from vkep.ops import registry
from vkep.ort.graphs.context_nodes import is_context
from vkep.ort.graphs.convert import OPAQUE, OrtGraphView
from vkep.ort.names import EP_NAME
from vkep.placement.channels_last import is_channels_last, made_by, plain
from vkep.placement.data_dependent import replacement_nodes
from vkep.placement.partition import lower, place
from vkep.placement.policy import VGF, VULKAN, Policy
from vkep.placement.repeats import REPEATED
from vkep.placement.sequences import ON_LISTS
from vkep.placement.steps import Placed
from vkep.sizes import Size, Trace, clear_caches
from vkep.text import counted

T = TypeVar("T", Program, Placed)

logger = logging.getLogger("vkep.ort")

#: reasons of nodes that Vulkan was not asked for
_ELSEWHERE = "another execution provider has it"
_DRIVEN = "ONNX Runtime runs it; the nodes of its bodies are claimed by themselves"
_ON_LISTS = "its sequences and optionals are values of ONNX Runtime's"
_SHOWN = 3  #: reasons in a warning

#: the value of the sizes while claims are made: that of images and sequences, so that few refusals depend on it
_HINT = 64


@dataclass(frozen=True)
class Claims:
    """Sets of nodes to fuse, control-flow nodes to execute, the reasons for the other nodes, and plans where they could
    be made."""

    islands: tuple[tuple[Node, ...], ...]
    control_nodes: tuple[Node, ...]
    declined: Mapping[str, str]  #: maps a node's title to the reason
    program: Program | None
    count: int = 0  #: nodes of the graph

    @property
    def refused(self) -> dict[str, str]:
        """The nodes that Vulkan was asked for and declined, with the reasons."""
        return {title: why for title, why in self.declined.items() if why not in (_ELSEWHERE, _DRIVEN)}

    def lost_weights(self, view: OrtGraphView) -> list[str]:
        """The weights of the graph that its nodes' bodies read and no node that stays in a compiled model: ONNX Runtime
        writes the weights that nodes have as inputs."""
        fused = {n.outputs for island in self.islands for n in island}
        staying = [n for n in view.graph.nodes if n.outputs not in fused]
        kept = {name for n in staying for name in n.inputs}
        outer = view.graph.weights.keys() - view.inner.keys()  # a body that stays keeps its own constants
        return sorted({name for n in staying for name in n.captures if name in outer} - kept)

    def program_for(self, nodes: Sequence[Node], outputs: Sequence[str]) -> Program | None:
        """The islands already planned that compute exactly ``nodes`` (except folded ones) and the values ``outputs``:
        one, or several that alternate between two delegates."""
        if self.program is None:
            return None
        folded = {p.node.outputs for p in self.program.placements if p.where == "folded"}
        wanted = {outputs for n in nodes for outputs in made_by(n)} - folded
        steps: list[IslandStep | VgfStep] = []
        computed: set[tuple[str, ...]] = set()
        made: set[str] = set()
        for step in self.program.steps:
            if not isinstance(step, IslandStep | VgfStep) or not {n.outputs for n in step.nodes} <= wanted:
                continue
            steps.append(step)
            computed |= {n.outputs for n in step.nodes}
            made |= {p.name for p in (step.plan.outputs if isinstance(step, IslandStep) else step.graph.outputs)}
        if computed != wanted or not set(outputs) <= made:
            return None
        return Program(tuple(steps), {}, (), tuple(outputs))


@dataclass
class _Verdicts:
    """The result of lowering each node, by its outputs."""

    repeated: set[tuple[str, ...]] = field(default_factory=set)  #: nodes of loops that a Gather replaces
    #: value: how many nodes compute something (are not folded): one, or with bodies theirs too
    taken: dict[tuple[str, ...], int] = field(default_factory=dict)
    reasons: dict[tuple[str, ...], str] = field(default_factory=dict)


def claim(
    view: OrtGraphView,
    caps: DeviceCapabilities,
    policy: Policy | None = None,
    *,
    min_partition_size: int = 1,
    fallback: str = "cpu",
    has_kernel: Callable[[Node], bool] = lambda node: False,
) -> Claims:
    """Divide a graph into islands by ``policy``. ``has_kernel``: whether the provider has a kernel for a node with
    bodies, so that it may execute it. Raises `UnsupportedModelError` where ``fallback`` is "error" and a node is
    declined."""
    graph = view.graph
    program, placements = _placed(view, caps, policy, lower)
    verdicts = _verdicts(view, placements)
    control_nodes = tuple(n for n in graph.nodes if n.domain == OPAQUE and n.bodies and has_kernel(n))
    others = [
        n for n in graph.nodes if n.outputs not in verdicts.taken and not is_context(n) and n not in control_nodes
    ]
    declined = {n.title: verdicts.reasons[n.outputs] for n in others}
    if declined and fallback == "error":
        lines = "\n  ".join(f"{title}: {reason}" for title, reason in declined.items())
        nodes = counted(len(declined), "node")
        raise UnsupportedModelError(f"fallback='error', and Vulkan declines {nodes}:\n  {lines}")
    for title, reason in declined.items():
        logger.info("not on Vulkan: %s: %s", title, reason)
    islands = _islands(view, verdicts, min_partition_size)
    return Claims(
        (*islands, *((n,) for n in graph.nodes if is_context(n))), control_nodes, declined, program, len(graph.nodes)
    )


def takes(view: OrtGraphView, caps: DeviceCapabilities, policy: Policy) -> bool:
    """Whether every node of the body of an If, Loop or Scan may run on Vulkan."""
    nodes = view.graph.nodes
    if any(is_context(n) for n in nodes):
        return False
    verdicts = _verdicts(view, _placed(view, caps, policy, place)[1])
    for node in nodes:
        if node.outputs not in verdicts.taken:
            logger.debug("%s keeps a body from Vulkan: %s", node.title, verdicts.reasons[node.outputs])
    return all(n.outputs in verdicts.taken for n in nodes)


def _placed(
    view: OrtGraphView, caps: DeviceCapabilities, policy: Policy | None, way: Callable[..., T]
) -> tuple[T | None, Sequence[Placement]]:
    """What ``way`` (`lower` or `place`) makes of a graph, None where dimensions are open; and the placements."""
    if not all(v.is_static or not v.elem_type for v in view.graph.inputs):
        return None, _placements_by_sizes(view, caps, policy, way)
    # declined, not raised: ONNX Runtime itself reports models that no engine may run
    known = known_values(view)
    made = way(view.graph.nodes, known, view.outputs, view.opsets, caps, policy=policy, refusals="decline")
    return made, made.placements


def _verdicts(view: OrtGraphView, placements: Iterable[Placement]) -> _Verdicts:
    verdicts = _Verdicts()
    _judge(view, placements, verdicts)
    _keep_packed_together(view, verdicts)
    _give_up_what_its_driver_reads(view, verdicts)
    _keep_repeats_together(view, verdicts)
    return verdicts


def warn_of_partitions(claims: Collection[Claims]) -> None:
    """Log once for a session that other providers run some of its nodes: ``claims`` are those of its graphs and bodies."""
    refused = [(title, why) for part in claims for title, why in part.refused.items()]
    if not refused:
        return
    titles: dict[str, list[str]] = {}
    for title, why in refused:
        titles.setdefault(why, []).append(title)
    most = sorted(titles, key=lambda why: -len(titles[why]))
    reasons = [f"{titles[why][0]}{_others(len(titles[why]) - 1)}: {why}" for why in most[:_SHOWN]]
    islands = sum(len(part.islands) for part in claims)
    logger.warning(
        "%d of the model's %d nodes run on other providers, and the rest on %s in %d part%s. %s%s. The logger vkep.ort names "
        "each node at INFO (docs/ort.md, 'What is claimed')",
        len(refused),
        sum(part.count for part in claims),
        EP_NAME,
        islands,
        "" if islands == 1 else "s",
        "; ".join(reasons),
        f"; and {len(most) - _SHOWN} more reasons" if len(most) > _SHOWN else "",
    )


def _others(count: int) -> str:
    return f" and {count} more" if count else ""


def _placements_by_sizes(
    view: OrtGraphView, caps: DeviceCapabilities, policy: Policy | None, way: Callable[..., Program | Placed]
) -> Sequence[Placement]:
    """The placements of a graph with open dimensions, by ``way`` (`lower` or `place`). Where an operator needs concrete
    numbers, all nodes are deferred."""
    trace = Trace()
    sizes: dict[str, int | Size] = {}

    def size(dim: Dim) -> int:
        name = dim if isinstance(dim, str) and dim else f"#{len(sizes)}"
        if name not in sizes:
            sizes[name] = trace.symbol(_HINT)
        return sizes[name]  # type: ignore[return-value]

    known = known_values(view, size)
    try:
        return way(
            view.graph.nodes, known, view.outputs, view.opsets, caps, policy=policy, refusals="defer", trace=trace
        ).placements
    except Exception as error:
        logger.debug("lowering with sizes failed; the nodes are placed in the runs", exc_info=True)
        return [Placement(node, "deferred", str(error)) for node in view.graph.nodes]
    finally:
        clear_caches()


def _no_size(dim: Dim) -> int:
    raise AssertionError(f"the dimension {dim!r} of a static graph is not known")


def known_values(view: OrtGraphView, size: Callable[[Dim], int] = _no_size) -> dict[str, Known]:
    """The values that planning knows at the start; ``size`` chooses the dimensions that the model leaves open. Values
    of unknown rank are left out: nodes that read them are planned in a run.
    """
    known: dict[str, Known] = dict(view.graph.weights)
    declared = {info.name: declared_value(info, size) for info in view.graph.inputs}
    known.update({name: value for name, value in declared.items() if value is not None})
    return known


def _judge(view: OrtGraphView, placements: Iterable[Placement], verdicts: _Verdicts) -> None:
    may_be = [n for n in view.graph.nodes if n.op_type in ON_LISTS or n.bodies]
    on_lists = {n.outputs for n in may_be if not _on_tensors(view, n)}
    for placement in placements:
        node = placement.node
        if not any(name in view.pointers for name in node.outputs):
            continue  # part of a function body: it belongs to a node of the graph
        if node.outputs in verdicts.taken or _assigned_elsewhere(view, node):
            verdicts.reasons.setdefault(node.outputs, _ELSEWHERE)
        elif node.domain == OPAQUE:
            verdicts.reasons[node.outputs] = (
                _DRIVEN if node.bodies else "ONNX Runtime's interface does not give its attributes"
            )
        elif placement.reason == REPEATED:
            verdicts.taken[node.outputs] = count_nodes(node)
            verdicts.repeated.add(node.outputs)
        elif node.outputs in on_lists:  # it, or a node that replaces it
            verdicts.reasons[node.outputs] = _ON_LISTS
        elif node.bodies:  # its bodies are asked when it is read
            verdicts.taken[node.outputs] = count_nodes(node)
        elif placement.where in (VULKAN, VGF, "folded"):
            verdicts.taken[node.outputs] = int(placement.where != "folded")
        elif placement.where == "deferred":
            reason = _why_not_later(view, node)
            if reason:
                verdicts.reasons[node.outputs] = reason
            else:
                verdicts.taken[node.outputs] = int(not _folds_later(node))
        else:
            verdicts.reasons.setdefault(node.outputs, placement.reason)


def count_nodes(node: Node) -> int:
    """The number of nodes that a node is: itself, and those of its bodies."""
    return 1 + sum(count_nodes(inner) for body in node.bodies.values() for inner in body.nodes)


def _on_tensors(view: OrtGraphView, node: Node) -> bool:
    names = {*node.reads, *node.outputs} - {"", *view.inner}  # the constants of bodies are tensors
    return all(map(view.elem_type, names))


def _assigned_elsewhere(view: OrtGraphView, node: Node) -> bool:
    api = view.ort.api
    # (after a change of layout ONNX Runtime calls again, and nodes that were claimed before have our name)
    return view.ort.text(api.Node_GetEpName, view.pointer_of(node)) not in ("", EP_NAME)


def _why_not_later(view: OrtGraphView, node: Node) -> str:
    """Why a node whose input shapes are known only in a run will not run on Vulkan; empty where it may."""
    if is_channels_last(node):
        node = plain(node, view.opsets)
    definition = registry.find(replacement_nodes(node, {}, view.opsets)[0])
    if (definition is None and not _folds_later(node)) or node.captures:
        return f"no Vulkan kernel for {node.op_type} (version {node.since_version})"
    for position, name in enumerate(node.inputs):
        info = _info(view, name)
        dtype = dtypes.from_onnx(info.elem_type) if info else None
        if name and dtype is None:
            return f"input {position} has an element type that no kernel takes"
        if definition is not None and dtype is not None and node.schema is not None and node.schema.inputs:
            formal = node.schema.inputs[min(position, len(node.schema.inputs) - 1)]
            allowed = definition.types.get(formal.type_str)
            if allowed is not None and dtype.name not in allowed:
                return f"input {position} is {dtype}; the kernels take {', '.join(allowed)}"
    for position, name in enumerate(node.outputs):
        made = dtypes.from_onnx(view.elem_type(name)) if name else None
        if name and made is None:
            return f"output {position} has an element type that no kernel gives"
    return ""


def _folds_later(node: Node) -> bool:
    """Whether planning computes a node itself once its input's shape is known."""
    return node.op_type in ("Shape", "Size") and not node.domain


def _keep_packed_together(view: OrtGraphView, verdicts: _Verdicts) -> None:
    """Decline nodes that share a value of elements narrower than a byte with nodes of another provider, or with the
    outer graph: ONNX Runtime cannot copy such tensors between providers."""
    nodes = [n for n in view.graph.nodes if not is_context(n)]
    touching: dict[str, list[Node]] = {}
    weights = view.graph.weights
    for node in nodes:
        for name in {*node.reads, *node.outputs} - {""}:
            dtype = None if name in weights else dtypes.from_onnx(view.elem_type(name))
            if dtype is not None and dtype.sub_byte_bits:
                touching.setdefault(name, []).append(node)
    made = {o for n in nodes for o in n.outputs}
    crossing = True
    while crossing:
        crossing = False
        for name, around in touching.items():
            mine = [n for n in around if n.outputs in verdicts.taken]
            outer = view.in_body and name not in made
            if mine and (outer or len(mine) < len(around)):
                crossing = True
                for node in mine:
                    del verdicts.taken[node.outputs]
                    verdicts.reasons[node.outputs] = (
                        f"{name!r} is packed, and ONNX Runtime has no copy of it to other providers"
                    )


def _give_up_what_its_driver_reads(view: OrtGraphView, verdicts: _Verdicts) -> None:
    """Decline the first outputs of bodies that BeamSearch and similar operators run. They assume that all outputs of a
    body have the memory of its first one: as CPU operators they would read device memory before the device has written
    it. Where the CPU provider computes the first output, ONNX Runtime copies the others."""
    if not view.has_own_driver or not view.outputs:
        return
    for node in view.graph.nodes:
        if view.outputs[0] in node.outputs and verdicts.taken.pop(node.outputs, None) is not None:
            verdicts.reasons[node.outputs] = (
                f"its driver reads the output {view.outputs[0]!r} of its body in host memory"
            )


def _keep_repeats_together(view: OrtGraphView, verdicts: _Verdicts) -> None:
    """Decline loops that a Gather replaces unless all of their nodes are in one island: sequences do not leave it."""
    island = {name: stage for stage, nodes in _by_stage(view, verdicts).items() for n in nodes for name in n.outputs}
    makers = {name for n in view.graph.nodes for name in n.outputs}
    lists = [
        (n, name)
        for n in view.graph.nodes
        if n.outputs in verdicts.repeated
        for name in n.reads
        if name in makers and not view.elem_type(name)
    ]
    if any(island.get(n.outputs[0]) is None or island.get(n.outputs[0]) != island.get(name) for n, name in lists):
        for outputs in verdicts.repeated:
            if verdicts.taken.pop(outputs, None) is not None:
                verdicts.reasons[outputs] = _ON_LISTS


def _info(view: OrtGraphView, name: str) -> ValueInfo | None:
    return view.value_info(name) if name else None


def _by_stage(view: OrtGraphView, verdicts: _Verdicts) -> dict[int, list[Node]]:
    """The claimed nodes by stage: a node's stage is the latest of its inputs', plus one where an input is computed on the other
    side. No path leaves a stage and returns, so each group is convex."""
    stages: dict[str, tuple[bool, int]] = {}
    groups: dict[int, list[Node]] = {}
    for node in view.graph.nodes:
        ours = node.outputs in verdicts.taken
        stage = max((s + (side != ours) for side, s in (stages[n] for n in node.reads if n in stages)), default=0)
        stages.update({n: (ours, stage) for n in node.outputs if n})
        if ours:
            groups.setdefault(stage, []).append(node)
    return groups


def _islands(view: OrtGraphView, verdicts: _Verdicts, min_partition_size: int) -> list[tuple[Node, ...]]:
    """The groups of nodes that are fused: those of `_by_stage` with ``min_partition_size`` computing nodes at least."""
    groups = _by_stage(view, verdicts)
    work = {stage: sum(verdicts.taken[n.outputs] for n in nodes) for stage, nodes in groups.items()}
    return [tuple(nodes) for stage, nodes in sorted(groups.items()) if work[stage] >= max(1, min_partition_size)]
