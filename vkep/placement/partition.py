"""Assigns nodes: each is lowered by the first delegate that accepts it (`vkep.placement.policy` has the order); the
others are grouped for the CPU, in stages (`vkep.placement.steps`)."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from gpu_shared.capabilities import DeviceCapabilities
from gpu_shared.errors import OutOfDeviceMemoryError
from vkep.errors import Decline, ExpressionError, InvalidNode
from vkep.graph.model import Node
from vkep.graph.weights import SizesWeight, Weight
from vkep.ir.builder import Builder, NeedsValue
from vkep.ir.infer import Known, infer, may_be_sizes, shape_of
from vkep.ir.ops import may_fail
from vkep.ir.program import (
    Over,
    Placement,
    Program,
    ValueSpec,
)
from vkep.ir.tensor import Tensor
from vkep.passes.island import Island
from vkep.placement.control import MAX_TOTAL_UNROLLED, Expansion, HostDriven, expand, is_control
from vkep.placement.data_dependent import replacement_nodes
from vkep.placement.fold import FoldError, can_fold, total_limit
from vkep.placement.fold_sizes import fold_with_sizes
from vkep.placement.inlined import Inlined
from vkep.placement.kompute import KOMPUTE
from vkep.placement.kompute import find as find_kp
from vkep.placement.nodes import check_known, check_sizes, lower_node
from vkep.placement.policy import VGF, VULKAN, Partition, Policy
from vkep.placement.repeats import REPEATED, without_repeats
from vkep.placement.sequences import dissolve, dissolves, named_elements
from vkep.placement.steps import Placed
from vkep.placement.texts import gives_texts, numbered
from vkep.sizes import Trace, is_size

#: what happens to a node that breaks its operator's specification: an error, or a decline as others are. "defer": a refusal
#: that depends on sizes of the trace is left to the runs, which have the sizes
Refusals = Literal["raise", "decline", "defer"]
#: the delegates to offer a node to where no data graphs are available
_ALONE: tuple[str, ...] = (VULKAN,)


def lower(
    nodes: Sequence[Node],
    known: Mapping[str, Known],
    outputs: Sequence[str],
    opsets: Mapping[str, int],
    caps: DeviceCapabilities,
    policy: Policy | None = None,
    *,
    may_postpone: bool = False,
    refusals: Refusals = "raise",
    trace: Trace | None = None,
    over: Over = (),
) -> Program:
    """Place and plan ``nodes``, given the known values (weights, typed inputs).

    Without a ``policy`` the Vulkan delegate is the only one. Partitions that the policy finds too small are dissolved,
    their nodes offered to the other delegate, until all may stay: the same model gives the same partitions.

    ``over``: the outputs that a run writes to an input's memory, where the program can do that (`Program.in_place`).
    ``may_postpone``: where a plan needs the content of a value in ``known`` that may be sizes, the program is one deferred step.

    Raises `InvalidNode` with the node's title for a node that breaks its operator's specification; ``refusals`` has other
    ways.
    """
    replaced = without_repeats(nodes, known, outputs, opsets.get("", 1))
    if replaced is not None:
        nodes, known = replaced.nodes, {**known, **replaced.weights}
    made = functools.partial(_Partitioner, nodes, known, outputs, opsets, caps, over)
    for every_size in (False, True):
        current: Policy | None = policy or Policy()
        while current is not None:
            partitioner = made(current, refusals, trace, every_size)
            current = partitioner.place()
            if may_postpone and partitioner.asks_inputs:
                return partitioner.postponed(partitioner.asks_inputs)
        try:
            partitioner.name_elements()
            partitioner.placements += [
                Placement(node, "inlined", REPEATED) for node in (replaced.gone if replaced else ())
            ]
            return partitioner.program()
        except OutOfDeviceMemoryError:  # fusion left a result in memory that exceeds one buffer: its node declines it
            if every_size:
                raise
    raise AssertionError("the second attempt returns or raises")


def place(
    nodes: Sequence[Node],
    known: Mapping[str, Known],
    outputs: Sequence[str],
    opsets: Mapping[str, int],
    caps: DeviceCapabilities,
    trace: Trace | None = None,
    policy: Policy | None = None,
    refusals: Refusals = "raise",
) -> Placed:
    """Every node with what is known of its values, placed by the first attempt of `lower`: partitions that the policy
    finds too small stay. Nothing is planned. Raises as `lower`."""
    partitioner = _Partitioner(
        nodes, known, outputs, opsets, caps, (), policy or Policy(), refusals, trace, every_size=False
    )
    partitioner.place()
    return partitioner


class _Partitioner(Placed):
    def __init__(
        self,
        nodes: Sequence[Node],
        known: Mapping[str, Known],
        outputs: Sequence[str],
        opsets: Mapping[str, int],
        caps: DeviceCapabilities,
        over: Over,
        policy: Policy,
        refusals: Refusals,
        trace: Trace | None,
        every_size: bool,
    ) -> None:
        """``every_size``: check all results against the device's largest buffer, or only inputs: fusion may remove the
        others."""
        super().__init__(nodes, known, outputs, caps, over, policy.tuned, trace)
        self.every_size, self.policy, self.refusals, self.opsets = every_size, policy, refusals, opsets
        self.asks_inputs = ""  #: why a node needs the content of an input of the program
        self.may_fold = total_limit(known.values())  #: bytes of further results
        self.may_unroll = MAX_TOTAL_UNROLLED  #: nodes of unrolled loops

    def place(self) -> Policy | None:
        """Place every node; returns the policy for another attempt, or None where the placement is final."""
        for node in self.nodes:
            self._place(node)
        return self.policy.prune(self._partitions())

    def _partitions(self) -> list[Partition]:
        replaceable = {id(p.node) for p in self.placements if p.where == VGF and VULKAN not in p.declined}
        found = [Partition(VULKAN, tuple(island.nodes)) for island in self.islands.values()]
        for island in self.graphs.by_stage.values():
            swap = all(id(n) in replaceable and not self.graphs.is_quantized(n) for n in island.nodes)
            found.append(Partition(VGF, tuple(island.nodes), island.flops, swap))
        return found

    # ---- one node

    def _place(self, node: Node) -> None:
        if self._waits(node, node.reads):
            return
        if is_control(node) or dissolves(node, self.known) or gives_texts(node, self.opsets):
            self._place_inlined(node)
            return
        if self.lists and self._waits(node, self._leaves(node.reads)):
            return
        self.placed.append(node)
        inputs = [self.known[n] for n in node.reads]
        self.graphs.note(node)
        if self._folded(node, inputs):
            return
        first, *rest = replacement_nodes(node, self.known, self.opsets)
        conditions = len(self.trace.conditions) if self.trace is not None else 0
        try:
            self._offer(first)
        except NeedsValue as need:
            if need.names:
                self.needed_values |= dict.fromkeys(need.names)
                if all(map(self._is_length, need.names)):
                    self.asks_inputs = need.reason
                self._defer(node, need.reason)
            else:  # a value that the node computes itself never becomes known
                self._to_cpu(node, need.reason)
        except Decline as decline:
            self._refused(node, decline, conditions)
        else:
            if rest:  # the node's own line in the report; its parts' lines follow
                self.placements[-1] = replace(self.placements[-1], node=node)
            for part in rest:
                self._place(part)

    def _refused(self, node: Node, decline: Decline, conditions: int) -> None:
        """Place a node that no delegate lowers. ``conditions``: how many the trace had before."""
        if isinstance(decline, InvalidNode) and self.refusals == "raise":
            raise decline.at(node.title) from None
        if self.refusals == "defer" and self.trace is not None:
            if isinstance(decline, InvalidNode):  # also of a number that holds only under a condition
                by_size = any(_has_sizes(self.known[n]) for n in node.reads) or conditions > self.trace.symbols
            else:
                by_size = len(self.trace.conditions) > conditions
            if by_size:
                self._defer(node, decline.reason)
                return
        self._to_cpu(node, decline.reason)

    def _waits(self, node: Node, names: Iterable[str]) -> bool:
        """Whether the node is deferred, since one of the values is not known yet."""
        missing = next((name for name in names if name not in self.known), None)
        if missing is not None:
            self._defer(node, f"waits for the shape of {missing!r}")
        return missing is not None

    def name_elements(self) -> None:
        """Give the elements of sequences among the outputs new names: another sequence may hold the same tensors."""
        for name in [n for n in self.outputs if n in self.lists]:
            value, nodes = named_elements(name, self.lists[name], self.opsets.get("", 1))
            for node in nodes:
                self._place(node)
            self.lists[name] = self.list_outputs[name] = value
        self.outputs = tuple(dict.fromkeys(self._leaves(self.outputs)))

    def _expansion(self, node: Node) -> Expansion:
        if is_control(node):
            return expand(node, self.known, self.opsets, self.may_unroll)
        return (
            numbered(node, self.opsets) if gives_texts(node, self.opsets) else dissolve(node, self.known, self.opsets)
        )

    def _place_inlined(self, node: Node) -> None:
        try:
            expansion = self._expansion(node)
        except Decline as decline:
            if isinstance(decline, InvalidNode) and self.refusals == "raise":
                raise decline.at(node.title) from None
            if self._waits(node, self._leaves(node.reads)):
                return
            self.placed.append(node)
            self._to_cpu(node, decline.reason)
            return
        if isinstance(expansion, Inlined):
            self.known.update(expansion.weights)
            self.known.update(expansion.values)
            self.lists.update(expansion.values)
            folds = not expansion.nodes and not expansion.values
            self.placements.append(Placement(node, "folded" if folds else "inlined"))
            self.may_unroll -= len(expansion.nodes)
            for inner in expansion.nodes:
                self._place(inner)
        elif isinstance(expansion, HostDriven):
            stage = self._stage(node, "control")
            self.control.setdefault(stage, []).append(node)
            self.placed.append(node)
            self.placements.append(Placement(node, "control", expansion.reason))
            self.made.update({name: ("control", stage) for name in node.outputs if name})
        else:
            self.needed_values[expansion.name] = None
            self._defer(node, expansion.reason)

    def _folded(self, node: Node, inputs: Sequence[Known]) -> bool:
        is_shape = node.op_type in ("Shape", "Size") and not node.domain
        if is_shape and inputs and isinstance(inputs[0], ValueSpec):
            if not can_fold(node):
                return False
            name = node.outputs[0]
            results: Sequence[Weight | None] | None = [shape_of(node, name, inputs[0].shape)]
        elif self.may_fold > 0 and all(isinstance(v, Weight) for v in inputs) and can_fold(node):
            weights = [v if isinstance(v := self.known.get(n), Weight) else None for n in node.inputs]
            try:
                results = fold_with_sizes(node, weights, self.opsets)
            except FoldError:
                return False
        else:
            return False
        if results is None:
            return False
        self.known.update({r.name: r for r in results if r is not None})
        self.may_fold -= sum(r.nbytes for r in results if r is not None)
        self.placements.append(Placement(node, "folded"))
        return True

    def _offer(self, node: Node) -> None:
        """Lower a node for the first delegate that accepts it. Raises `Decline` with each delegate's reason,
        `NeedsValue` where one only lacks a value, or `InvalidNode`."""
        order, reasons = _ALONE, dict[str, str]()
        if self.policy.graphs:
            follows = any(self.made.get(name, ("", 0))[0] == VGF for name in node.reads)
            order = self.policy.order(node, self.graphs.is_quantized(node), follows)
            reasons = self.policy.passed_over(node)
        waits: NeedsValue | None = None
        for kind in order:
            reasons.pop(kind, None)
            refused = self.policy.why_refused(node, kind)
            if refused:
                reasons[kind] = refused
                continue
            try:
                self._lower(node, reasons) if kind == VULKAN else self._lower_graph(node, reasons)
                return
            except NeedsValue as need:
                waits = need
            except InvalidNode:
                raise
            except Decline as decline:
                reasons[kind] = decline.reason
        try:
            if waits is not None:
                raise waits
        finally:
            del waits  # its traceback has this frame: a cycle would keep the run's tensors until it is collected
        if find_kp(node) is not None:
            try:
                self._lower_kompute(node, reasons)
                return
            except Decline as decline:
                reasons = {KOMPUTE: decline.reason, **reasons}
                order = (KOMPUTE, *order)
        raise Decline("; ".join(f"{k}: {r}" for k, r in reasons.items()) if len(order) > 1 else reasons[order[0]])

    def _lower_graph(self, node: Node, declined: Mapping[str, str]) -> None:
        if self._checks_data(node):
            raise Decline("Vulkan's kernels check its indices or divisors (check_data), a data graph cannot")
        stage = self._stage(node, VGF)
        for port in self.graphs.add(node, stage, self.known):
            self.known[port.name] = ValueSpec(port.dtype, port.shape)
            self.made[port.name] = (VGF, stage)
        self.placements.append(Placement(node, VGF, island=stage, declined=dict(declined)))

    def _lower_kompute(self, node: Node, declined: Mapping[str, str]) -> None:
        stage = self._stage(node, KOMPUTE)
        for name, spec in self.kompute.add(node, stage, self.known):
            self.known[name] = spec
            self.made[name] = (KOMPUTE, stage)
        self.placements.append(Placement(node, KOMPUTE, island=stage, declined=dict(declined)))

    def _checks_data(self, node: Node) -> bool:
        """Whether Vulkan's kernels for a node check data that only a run has. Raises `InvalidNode` as they do, since
        the lowering to TOSA does not compare a node with its operator's specification."""
        island = self._new_island(0)
        try:
            self._add(island, node)
        except InvalidNode:
            raise
        except Decline:
            return False
        return self.policy.check_data and any(map(may_fail, island.builder.ops))

    def _new_island(self, stage: int) -> Island:
        return Island(stage, Builder(self.caps, check_data=self.policy.check_data))

    def _lower(self, node: Node, declined: Mapping[str, str]) -> None:
        stage = self._stage(node, "vulkan")
        island = self.islands.get(stage) or self._new_island(stage)
        results = self._add(island, node)
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
        self.placements.append(Placement(node, "vulkan", island=stage, declined=dict(declined)))

    def _add(self, island: Island, node: Node) -> Sequence[Tensor]:
        """Add a node's operations to an island; returns its results. Raises `Decline`; then the island is unchanged."""
        check_known(node)
        builder = island.builder
        ops = len(builder.ops)
        builder.node = node
        arguments: list[Tensor | None] = []
        if self.trace is not None:
            self.trace.lowering = True
        try:
            with builder.attempt(island.ports, island.tensors, island.capacities):
                arguments += [island.tensor(n, self.known) if n else None for n in node.inputs]
                check_sizes(self.caps, zip(node.inputs, arguments, strict=True), self.every_size)
                builder.place = self.growing.place(node, functools.partial(island.tensor, known=self.known))
                results = lower_node(builder, node, arguments, self.opsets)
                if self.every_size:
                    check_sizes(self.caps, ((node.title, t) for op in builder.ops[ops:] for t in op.outputs), True)
        except NeedsValue as need:
            if not need.names:
                pairs = zip(node.inputs, arguments, strict=True)
                need.names = tuple(n for n, t in pairs if t is not None and t.storage is need.tensor.storage)
            raise
        except ExpressionError as error:
            error.args = (f"{node.title}: {error}",)  # with the traceback of the line that wrote the expression
            raise
        finally:
            builder.node = builder.place = None
            if self.trace is not None:
                self.trace.lowering = False
        return results

    def _to_cpu(self, node: Node, reason: str) -> None:
        stage = self._stage(node, "cpu")
        self.cpu.setdefault(stage, []).append((node, reason))
        self.placements.append(Placement(node, "cpu", reason))
        specs = infer(node, self.known, self.opsets)
        for name, spec in zip(node.outputs, specs, strict=True):
            if name:
                self.made[name] = ("cpu", stage)
                if spec is not None:
                    self.known[name] = spec

    def _defer(self, node: Node, reason: str) -> None:
        self.deferred.append(node)
        self.placed.append(node)
        self.placements.append(Placement(node, "deferred", reason))

    def _is_length(self, name: str) -> bool:
        """Whether a value is an input of the program whose content may be sizes."""
        known = self.known.get(name)
        return (
            name not in self.made and isinstance(known, ValueSpec) and may_be_sizes(known.dtype, math.prod(known.shape))
        )


def _has_sizes(value: Known) -> bool:
    """Whether the shape or the content of a value depends on sizes."""
    return isinstance(value, SizesWeight) or any(map(is_size, getattr(value, "shape", ())))
