"""Nodes that are lowered together, into one plan."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpu_shared.capabilities import DeviceCapabilities
from vkep.errors import Decline
from vkep.graph.model import Node
from vkep.graph.weights import Weight
from vkep.ir.builder import Builder
from vkep.ir.infer import Known, dtype_of
from vkep.ir.place import Place, is_at
from vkep.ir.program import IslandStep, ValueSpec
from vkep.ir.tensor import Storage, Tensor, contiguous_strides
from vkep.kernels.tuning import Choice
from vkep.passes.emit import emit
from vkep.passes.pipeline import run_passes
from vkep.passes.rewrite import Goal
from vkep.passes.written_sizes import write_sizes
from vkep.plan.records import Port
from vkep.sizes import Trace


@dataclass
class Island:
    """A convex set of nodes: no path between two of them leaves it. ``stage`` orders islands."""

    stage: int
    builder: Builder
    tensors: dict[str, Tensor] = field(default_factory=dict)
    ports: list[Port] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    #: of inputs that have one (`ValueSpec.capacity`)
    capacities: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def tensor(self, name: str, known: Mapping[str, Known]) -> Tensor:
        """The tensor of a name: computed here, a constant, or an input of the plan. Raises `Decline`."""
        if name not in self.tensors:
            value = known[name]
            if dtype_of(value) is None:
                raise Decline(f"input {name!r} has an element type that no kernel takes")
            if isinstance(value, Weight):
                self.tensors[name] = self.builder.weight(value)
            else:
                assert isinstance(value, ValueSpec)
                self.tensors[name] = self._import(name, value)
        return self.tensors[name]

    def _import(self, name: str, value: ValueSpec) -> Tensor:
        """Make a value an input port. With a ``capacity``, its storage and strides are those of the larger tensor."""
        itemsize, capacity = value.dtype.itemsize, value.capacity or value.shape
        port = Port(name, value.dtype.name, value.shape, math.prod(value.shape) * itemsize, is_input=True)
        storage = Storage(math.prod(capacity) * itemsize, port=len(self.ports), label=name)
        self.ports.append(port)
        if value.capacity:
            self.capacities[name] = value.capacity
        return Tensor(value.dtype, value.shape, storage, contiguous_strides(capacity))

    def step(
        self,
        wanted: set[str],
        caps: DeviceCapabilities,
        tuned: Mapping[str, Choice] | None = None,
        trace: Trace | None = None,
        over: Mapping[str, str] | None = None,
    ) -> IslandStep | None:
        """Add the values ``wanted`` as output ports, and make the plan; None where the island makes none of them.

        ``tuned`` and ``trace`` as for `emit`; ``over``: values that a run writes to the memory of an input, each with that input.
        Raises `InvalidNode` where such an input has too little room.
        """
        made = [n for node in self.nodes for n in node.outputs if n in wanted]
        ports, results, written, shared = list(self.ports), [], [], {}
        for name in dict.fromkeys(made):
            tensor, port, source = self.tensors[name], len(ports), (over or {}).get(name, "")
            place = self._place(source, tensor)
            ports.append(Port(name, tensor.dtype.name, tensor.shape, tensor.nbytes, is_input=False))
            if place is None:
                out = Tensor.contiguous(tensor.dtype, tensor.shape, Storage(tensor.nbytes, port=port, label=name))
            else:
                written.append((name, source))
                if is_at(tensor, place):  # an operator has written it there (`Place.joined`), or it has no elements
                    results.append(tensor)
                    continue
                assert place.storage.port is not None
                shared[port] = place.storage.port
                memory = Storage(place.storage.nbytes, port=port, label=name)
                out = Tensor(tensor.dtype, tensor.shape, memory, place.strides)
            results.append(self.builder.copy(tensor, out=out))
        if not results:
            return None
        if trace is not None:
            write_sizes(self.builder)
        ops = run_passes(self.builder.ops, Goal(results, caps, shared))
        planned = emit(ops, ports, caps, check_data=self.builder.check_data, tuned=tuned, trace=trace, shared=shared)
        return IslandStep(planned.plan, planned.weights, tuple(self.nodes), planned.sizes, tuple(written))

    def _place(self, source: str, made: Tensor) -> Tensor | None:
        """The place of a value in the memory of an input; None where type or shape do not fit, or ``source`` is no input of this
        plan. Raises `InvalidNode`."""
        if source not in {port.name for port in self.ports}:
            return None
        past, capacity = self.tensors[source], self.capacities.get(source, ())
        if past.dtype is not made.dtype or len(past.shape) != len(made.shape):
            return None
        if capacity:
            return Place(past.view(capacity, past.strides), past.shape).leading(made.shape)
        return past if past.shape == made.shape else None
