"""The steps of a program: the nodes of each stage that one delegate, or the CPU, runs together.

A stage is a sequence of steps of one kind. A node's stage is the latest of its inputs' stages, plus one where an input
was computed elsewhere; nodes of one kind and stage form one convex island.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpu_shared.capabilities import DeviceCapabilities
from vkep.dtypes import from_onnx
from vkep.graph.model import Node
from vkep.graph.weights import SizesWeight, Weight
from vkep.ir.infer import Known, dtype_of, may_be_sizes
from vkep.ir.program import (
    ControlStep,
    CpuStep,
    DeferredStep,
    HostValue,
    IslandStep,
    ListValue,
    NoValue,
    Over,
    Placement,
    Program,
    SizedConstant,
    Step,
    element_axis,
)
from vkep.passes.island import Island
from vkep.placement.graph_islands import GraphIslands
from vkep.placement.growing import Growing
from vkep.placement.kompute import KpRegions
from vkep.sizes import Formulas, Trace, is_size, plain_text

#: operators whose results are views of their first input, where they have one
_VIEWS = ("Flatten", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze")


class Placed:
    """The nodes that have been placed, by the step that will run them, and what is known of their values."""

    def __init__(
        self,
        nodes: Sequence[Node],
        known: Mapping[str, Known],
        outputs: Sequence[str],
        caps: DeviceCapabilities,
        over: Over,
        tuned: Mapping[str, tuple[int, ...]],
        trace: Trace | None,
    ) -> None:
        self.nodes, self.outputs, self.caps, self.tuned, self.trace = nodes, tuple(outputs), caps, tuned, trace
        self.graphs = GraphIslands()
        self.kompute = KpRegions()
        self.known: dict[str, Known] = dict(known)
        self.growing = Growing(nodes, over, self.known)
        #: sequences and optionals; those among the program's inputs are in ``known`` from the beginning
        self.lists: dict[str, HostValue] = {n: v for n, v in known.items() if isinstance(v, (ListValue, NoValue))}
        self.list_outputs: dict[str, HostValue] = {}
        self.made: dict[str, tuple[str, int]] = {}  # maps a value to (kind, stage) of the step that computes it
        self.islands: dict[int, Island] = {}
        self.cpu: dict[int, list[tuple[Node, str]]] = {}
        self.control: dict[int, list[Node]] = {}
        self.deferred: list[Node] = []
        self.placed: list[Node] = []  # every node except those that are replaced by their bodies' nodes
        self.needed_values: dict[str, None] = {}  #: the values whose content the deferred nodes need
        self.placements: list[Placement] = []
        self.numbers: dict[str, SizesWeight] = {}  #: inputs and outputs of steps that depend on sizes

    def program(self) -> Program:
        """The program of all nodes, each in the step of its stage."""
        steps = self._steps()
        constants = self._constants(self.outputs)
        conditions = self.trace.holds() if self.trace is not None else None
        placements, outputs = tuple(self.placements), tuple(self.outputs)
        if self.trace is not None:
            placements = tuple([replace(p, reason=plain_text(p.reason)) for p in placements])
        return Program(
            tuple(steps), constants, placements, outputs, conditions, self._constants_of_sizes(), self.list_outputs
        )

    def postponed(self, reason: str) -> Program:
        """All nodes in one deferred step, planned at once during the run: a part planned now would end at the node that
        needs the value."""
        self.deferred = list(self.nodes)
        step = self._deferred_step()
        constants = self._constants(n for n in self.outputs if n not in step.outputs)
        placements = tuple(Placement(node, "deferred", reason) for node in self.nodes)
        # nodes that were lowered before are not used
        conditions = Formulas(self.trace.symbols, (), (), ()) if self.trace is not None else None
        lists = {n: self.lists[n] for n in self.outputs if n in self.lists and n not in step.outputs}
        return Program(
            (step,), constants, placements, tuple(self.outputs), conditions, self._constants_of_sizes(), lists
        )

    def _stage(self, node: Node, kind: str) -> int:
        latest = 0
        for name in self._leaves(node.reads):
            made = self.made.get(name)
            if made is not None:
                latest = max(latest, made[1] + (made[0] != kind))
        return latest

    def _leaves(self, names: Iterable[str]) -> Iterable[str]:
        """The names, with sequences and optionals replaced by their elements."""
        if not self.lists:
            return names
        found: list[str] = []
        for name in names:
            value = self.lists.get(name)
            found += [name] if value is None else self._leaves(value.items) if isinstance(value, ListValue) else []
        return found

    def _constants(self, names: Iterable[str]) -> dict[str, Weight]:
        """Those of the names whose content is known; values that depend on sizes are known once a run has them."""
        found = {n: v for n in names if isinstance(v := self.known.get(n), Weight)}
        self.numbers.update({n: v for n, v in found.items() if isinstance(v, SizesWeight)})
        return {n: v for n, v in found.items() if not isinstance(v, SizesWeight)}

    def _constants_of_sizes(self) -> dict[str, SizedConstant]:
        trace, made = self.trace, {}
        for name, weight in self.numbers.items():
            dtype = from_onnx(weight.elem_type)
            assert trace is not None and dtype is not None
            formulas = trace.formulas(weight.array().reshape(-1).tolist())
            made[name] = SizedConstant(formulas, tuple(weight.shape), dtype)
        return made

    def _defer_views(self) -> None:
        """Repeat before the deferred nodes those that make their inputs as views of the program's inputs: an island would
        copy these views for them."""
        makers = {name: node for island in self.islands.values() for node in island.nodes for name in node.outputs}
        kept = {*self.outputs, *self.needed_values}

        @functools.cache
        def chain(name: str) -> tuple[Node, ...]:
            """The nodes that make a value as a view of the program's inputs, in their order; none where other nodes make it."""
            node = makers.get(name)
            if node is None or node.domain or node.op_type not in _VIEWS or kept.intersection(node.outputs):
                return ()
            made = [chain(read) for read in node.reads if read in self.made]
            return (*(n for nodes in made for n in nodes), node) if all(made) else ()

        nodes = [n for node in self.deferred for name in self._leaves(node.reads) for n in chain(name)]
        self.deferred[:0] = {id(node): node for node in nodes}.values()

    def _steps(self) -> list[Step]:
        self._defer_views()
        made_later = {n for node in self.deferred for n in node.outputs}
        reads_later = {n for node in self.deferred for n in self._leaves(node.reads)} - made_later
        later = reads_later | set(self.outputs)
        outside = [node for nodes in self.cpu.values() for node, _ in nodes]
        outside += [node for nodes in self.control.values() for node in nodes]
        outside_reads = {n for node in outside for n in self._leaves(node.reads)} | self.kompute.reads()
        read_outside = outside_reads | self.graphs.reads()
        steps: list[tuple[int, Step]] = []
        for stage, island in self.islands.items():
            elsewhere = {p.name for other in self.islands.values() if other is not island for p in other.ports}
            wanted = later | read_outside | elsewhere
            read = reads_later | read_outside | elsewhere
            over = {} if self.graphs.by_stage or self.kompute.reads() else self.growing.over(wanted, read)
            step = island.step(wanted, self.caps, self.tuned, self.trace, over)
            if step is not None:
                steps.append((stage, step))
        ports = {p.name for island in self.islands.values() for p in island.ports}
        shared = {key for _, step in steps if isinstance(step, IslandStep) for key in step.weights}
        steps += self.graphs.steps(later | outside_reads | ports, shared)
        steps += self.kompute.steps(later | read_outside | ports)
        for stage, nodes in self.cpu.items():
            steps.append((stage, self._cpu_step(nodes, later)))
        for stage, loops in self.control.items():
            for node in loops:
                inputs, known = self._inputs_and_constants([node], set())
                steps.append((stage, ControlStep(node, inputs, known, self._sizes(inputs))))
        ordered = [step for _, step in sorted(steps, key=lambda s: s[0])]
        if self.deferred:
            ordered.append(self._deferred_step())
        return ordered

    def _cpu_step(self, placed: Sequence[tuple[Node, str]], later: set[str]) -> CpuStep:
        nodes = [node for node, _ in placed]
        made = [n for node in nodes for n in node.outputs if n]
        inputs, constants = self._inputs_and_constants(nodes, set(made))
        inside = {id(n) for n in nodes}
        wanted = later.union(*(self._leaves(n.reads) for n in self.placed if id(n) not in inside))
        return CpuStep(
            tuple(nodes),
            inputs,
            tuple(n for n in made if n in wanted),
            constants,
            tuple(reason for _, reason in placed),
            self._lists(nodes, set(made)),
        )

    def _deferred_step(self) -> DeferredStep:
        """The step that plans the deferred nodes in the run, once it knows the values that they need."""
        made = [n for node in self.deferred for n in node.outputs if n]
        inputs, constants = self._inputs_and_constants(self.deferred, set(made))
        outputs = tuple(n for n in made if n in set(self.outputs))
        numbers = {name: weight for name in inputs if isinstance(weight := self.known.get(name), SizesWeight)}
        # numbers that are formulas here stay sizes there: the host has them
        given = {name for name, weight in numbers.items() if _may_be_sizes(weight)}
        values = tuple([name for name in inputs if name in self.needed_values or name in given])
        lists = self._lists(self.deferred, set(made))
        sizes = {**self._sizes(inputs), **{(name, -1): name for name in values if name in self.made}}
        for name in given:
            elements = numbers[name].array().reshape(-1).tolist()
            sizes.update(
                {(name, element_axis(k, len(elements))): _key_of(n) for k, n in enumerate(elements) if is_size(n)}
            )
        return DeferredStep(tuple(self.deferred), inputs, outputs, values, {**constants, **lists}, sizes)

    def _sizes(self, names: Iterable[str]) -> dict[tuple[str, int], str]:
        """The names of those dimensions of the values ``names`` that are sizes."""
        return {
            (name, axis): _key_of(dim)
            for name in names
            for axis, dim in enumerate(getattr(self.known.get(name), "shape", ()))
            if is_size(dim)
        }

    def _inputs_and_constants(self, nodes: Sequence[Node], made: set[str]) -> tuple[tuple[str, ...], dict[str, Weight]]:
        """The inputs of a group of nodes, and the constants that it reads."""
        reads = (n for node in nodes for n in node.reads if n not in made)
        needed = dict.fromkeys(n for n in self._leaves(reads) if n not in made)
        constants = self._constants(needed)
        return tuple(n for n in needed if n not in constants), constants

    def _lists(self, nodes: Sequence[Node], made: set[str]) -> dict[str, HostValue]:
        """The sequences and optionals among the inputs of a group of nodes."""
        return {n: self.lists[n] for node in nodes for n in node.reads if n in self.lists and n not in made}


def _key_of(size: Any) -> str:
    """The same for equal sizes of one trace."""
    return f"{size.terms} {size.const}"


def _may_be_sizes(weight: SizesWeight) -> bool:
    dtype = dtype_of(weight)
    return dtype is not None and may_be_sizes(dtype, math.prod(weight.shape))
