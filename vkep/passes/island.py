"""Nodes that are lowered together: what a plan is made of."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpu_shared.capabilities import DeviceCapabilities
from vkep.errors import Decline
from vkep.graph.model import Node
from vkep.graph.weights import Weight
from vkep.ir.builder import Builder
from vkep.ir.infer import Known, dtype_of
from vkep.ir.program import IslandStep, ValueSpec
from vkep.ir.tensor import Storage, Tensor
from vkep.kernels.tuning import Choice
from vkep.passes.attention import lower_attention
from vkep.passes.emit import emit
from vkep.passes.fuse import optimize
from vkep.passes.in_place import in_place
from vkep.passes.layout import lay_out
from vkep.plan.records import Port
from vkep.sizes import Trace


@dataclass
class Island:
    """Convex: no path between two of its nodes leaves it. ``stage`` says when it runs."""

    stage: int
    builder: Builder
    tensors: dict[str, Tensor] = field(default_factory=dict)
    ports: list[Port] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)

    def tensor(self, name: str, known: Mapping[str, Known]) -> Tensor:
        """The value of a name: made here, a constant, or an input of the plan. Raises `Decline`."""
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
        size = math.prod(value.shape) * value.dtype.itemsize
        port = Port(name, value.dtype.name, value.shape, size, is_input=True)
        storage = Storage(size, port=len(self.ports), label=name)
        self.ports.append(port)
        return Tensor.contiguous(value.dtype, value.shape, storage)

    def step(
        self,
        wanted: set[str],
        caps: DeviceCapabilities,
        tuned: Mapping[str, Choice] | None = None,
        trace: Trace | None = None,
        over: Mapping[str, str] | None = None,
    ) -> IslandStep | None:
        """The plan that makes the values ``wanted``; None where it makes none of them. ``tuned`` and ``trace`` as for `emit`;
        ``over``: values that a run writes to the memory of an input, by that input.
        """
        made = [n for node in self.nodes for n in node.outputs if n in wanted]
        ports, results = list(self.ports), []
        for name in dict.fromkeys(made):
            tensor = self.tensors[name]
            port = Port(name, tensor.dtype.name, tensor.shape, tensor.nbytes, is_input=False)
            storage = Storage(tensor.nbytes, port=len(ports), label=name)
            ports.append(port)
            results.append(self.builder.copy(tensor, out=Tensor.contiguous(tensor.dtype, tensor.shape, storage)))
        places = {port.name: k for k, port in enumerate(ports)}
        shared = {
            places[result]: places[name] for name, result in (over or {}).items() if _fits(ports, places, name, result)
        }
        if not results:
            return None
        ops = lower_attention(lay_out(self.builder.ops, caps), results, caps)
        ops = optimize(ops, results)
        if shared:
            ops = in_place(ops, {t.storage.port: t for t in results if t.storage.port is not None}, shared)
        planned = emit(ops, ports, caps, check_data=self.builder.check_data, tuned=tuned, trace=trace, shared=shared)
        written = tuple([ports[k].name for k in shared])
        return IslandStep(planned.plan, planned.weights, tuple(self.nodes), planned.sizes, written)


def _fits(ports: Sequence[Port], places: Mapping[str, int], name: str, result: str) -> bool:
    """Whether an output may lie in the memory of an input."""
    if name not in places or result not in places:
        return False
    source, target = ports[places[name]], ports[places[result]]
    return source.is_input and not target.is_input and (source.dtype, source.shape) == (target.dtype, target.shape)
