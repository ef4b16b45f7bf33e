"""Finds the mutable buffers among a delegate's constants: those that it changes, and keeps between runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from vkep.aten.registry import find
from vkep.errors import UnsupportedProgramError
from vkep.pte.vk_graph import OperatorCall, ValueList, VkGraph, VkTensor

#: copies a constant to the device: its result equals its constant
PREPACK = "et_vk.prepack.default"


@dataclass
class States:
    """``alias`` maps a prepacked value to its constant; ``outputs`` maps a changed constant to its new value."""

    alias: dict[int, int] = field(default_factory=dict)
    outputs: dict[int, int] = field(default_factory=dict)

    def id(self, value_id: int) -> int:
        """Return the id of the constant that a value is an alias of; its own id where it is none."""
        return self.alias.get(value_id, value_id)


def find_states(graph: VkGraph, program_outputs: int) -> States:
    """Find the constants that an operator writes in place, and those whose new value is an output that the program does
    not use.

    The exporter puts the new values of buffers in front of the outputs (unless alias_buffer_mutations is set) and does
    not record which buffer each belongs to: it is the one constant of the same type and sizes that the value is
    computed from. Raises `UnsupportedProgramError` where there is not exactly one.
    """
    states = States()
    made = set(graph.input_ids)
    for call in graph.chain:
        if is_prepack(call):
            states.alias[call.args[-1]] = states.id(call.args[0])
            continue
        for value_id in map(states.id, _written(graph, call)):
            value = graph.values[value_id]
            if isinstance(value, VkTensor) and value.constant_id >= 0 and value_id not in made:
                made.add(value_id)
                states.outputs[value_id] = value_id
    for value_id in graph.output_ids[: max(len(graph.output_ids) - program_outputs, 0)]:
        states.outputs[_buffer_of(graph, states, value_id)] = value_id
    return states


def is_prepack(call: OperatorCall) -> bool:
    """Whether a call only prepares a constant for one of ExecuTorch's kernels."""
    operator = find(call.name)
    return operator is not None and operator.name == PREPACK and len(call.args) == 2


def _written(graph: VkGraph, call: OperatorCall) -> list[int]:
    operator = find(call.name)
    *given, out = call.args or (0,)
    written: list[int] = []
    if operator is not None:
        positions = [i for i, p in enumerate(operator.parameters) if p.name in operator.mutates]
        written = [given[i] for i in positions if i < len(given)]
    return [*written, *_flat(graph, [out])]


def _buffer_of(graph: VkGraph, states: States, value_id: int) -> int:
    new = graph.values[value_id]
    found = [
        i
        for i in sorted(_sources(graph, states, value_id))
        if isinstance(old := graph.values[i], VkTensor)
        and isinstance(new, VkTensor)
        and old.constant_id >= 0
        and (old.datatype, old.dims) == (new.datatype, new.dims)
        and i not in states.outputs
    ]
    if len(found) != 1:
        problem = (
            f"output {graph.output_ids.index(value_id)} is the new value of a buffer, and {len(found)} could be it"
        )
        raise UnsupportedProgramError(
            f"a Vulkan delegate changes a buffer without saying which: {problem}. Export it with "
            "VulkanPartitioner({'alias_buffer_mutations': True})",
            [problem],
        )
    return found[0]


def _sources(graph: VkGraph, states: States, value_id: int) -> set[int]:
    """All values that ``value_id`` is computed from."""
    wanted = {value_id}
    for call in reversed(graph.chain):
        if wanted.intersection(_flat(graph, call.args[-1:])):
            wanted.update(_flat(graph, call.args[:-1]))
    return {states.id(i) for i in wanted}


def _flat(graph: VkGraph, ids: Sequence[int]) -> list[int]:
    values = ((i, graph.values[i]) for i in ids)
    return [k for i, v in values for k in (v.items if isinstance(v, ValueList) else (i,))]
