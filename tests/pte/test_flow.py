"""Which write each read sees: random memory plans, run once through the arenas byte by byte and once as the flow says."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from vkep.errors import InvalidPteError
from vkep.pte.flow import INPUT, Flow, analyse
from vkep.pte.schema import TensorShapeDynamism
from vkep.pte.steps import DelegateStep, JumpStep, KernelStep, MoveStep, Step
from vkep.pte.values import ListValue, Place, TensorValue, Value

STATIC = TensorShapeDynamism.STATIC
SIZE = 24


def tensor(index: int, offset: int, count: int, shape: tuple[int, ...] | None = None) -> TensorValue:
    order = tuple(range(len(shape or (count,))))
    return TensorValue(index, np.dtype(np.uint8), shape or (count,), order, STATIC, Place(1, offset, count))


class Run:
    """A method's runs in a model of memory: kernels and delegates write bytes that depend on all that they read."""

    def __init__(
        self, values: list[Value], inputs: list[int], outputs: list[int], steps: list[Step], flow: Flow
    ) -> None:
        self.values, self.inputs, self.outputs, self.steps, self.flow = values, inputs, outputs, steps, flow
        self.exact = np.zeros(SIZE, np.uint8)
        self.lazy = np.zeros(SIZE, np.uint8)

    def view(self, memory: Any, index: int) -> Any:
        value = self.values[index]
        assert isinstance(value, TensorValue) and value.place is not None
        return memory[value.place.offset : value.place.end]

    @staticmethod
    def made(seen: list[Any], step: int, position: int, count: int) -> Any:
        seed = hash((step, position, *(bytes(s) for s in seen))) & 0xFFFFFFFF
        return np.random.default_rng(seed).integers(0, 256, count, np.uint8)

    def through_arenas(self, given: list[Any]) -> list[bytes]:
        memory = self.exact
        for index, array in zip(self.inputs, given, strict=True):
            self.view(memory, index)[...] = array
        for number, step in enumerate(self.steps):
            reads, writes = _ports(step)
            seen = [self.view(memory, i).copy() for i in reads]
            for position, index in enumerate(writes):
                target = self.view(memory, index)
                target[...] = self.made(seen, number, position, len(target))
        return [bytes(self.view(memory, i)) for i in self.outputs]

    def as_the_flow_says(self, given: list[Any]) -> list[bytes]:
        memory, flow, results = self.lazy, self.flow, dict[Any, Any]()
        own = {}
        for number, (index, array) in enumerate(zip(self.inputs, given, strict=True)):
            results[INPUT, number] = array
            if flow.writes[INPUT, number].to_arena:
                self.view(memory, index)[...] = array
            else:
                own[index] = array
        for number, step in enumerate(self.steps):
            reads, writes = _ports(step)
            sources = flow.sources.get(number, (None,) * len(reads))
            seen = []
            for index, source in zip(reads, sources, strict=True):
                held = own.get(index) if source is None else results[source]
                seen.append((self.view(memory, index) if held is None else held).copy())
            for position, index in enumerate(writes):
                made = self.made(seen, number, position, len(self.view(memory, index)))
                if isinstance(step, KernelStep):
                    self.view(memory, index)[...] = made
                    continue
                results[number, position] = made
                if flow.writes[number, position].to_arena:
                    self.view(memory, index)[...] = made
        found = []
        for index, source in zip(self.outputs, flow.outputs, strict=True):
            held = own.get(index) if source is None else results[source]
            found.append(bytes(self.view(memory, index) if held is None else held))
        return found


def _ports(step: Step) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if isinstance(step, DelegateStep):
        return step.inputs, step.outputs
    assert isinstance(step, KernelStep)
    return step.arguments, step.writes


@pytest.mark.parametrize("seed", range(8))
def test_reads_see_what_the_memory_plan_gives(seed: int) -> None:
    """Values that overlap in every way, most of them in the same few places; two runs, since state stays in the arena."""
    r = random.Random(seed)
    on_device = 0
    for _ in range(100):
        places = [(r.randrange(0, 5) * 4, r.choice((4, 4, 4, 2, 8))) for _ in range(4)]
        values: list[Value] = []
        for index in range(r.randrange(4, 12)):
            offset, count = r.choice(places)
            shape = (count // 2, 2) if r.random() < 0.3 else None
            values.append(tensor(index, offset, min(count, SIZE - offset), shape))
        pick = range(len(values))
        inputs = r.sample(pick, r.randrange(0, 3))
        steps: list[Step] = []
        for _ in range(r.randrange(1, 8)):
            reads = tuple(r.choices(pick, k=r.randrange(0, 3)))
            writes = tuple(r.choices(pick, k=r.randrange(1, 3)))
            steps.append(
                DelegateStep(r.randrange(3), reads, writes) if r.random() < 0.6 else KernelStep("k", reads, writes)
            )
        outputs = r.choices(pick, k=2)
        flow = analyse(values, inputs, outputs, steps, [0, 0, 1], "test")
        run = Run(values, inputs, outputs, steps, flow)
        on_device += sum(w.on_device for w in flow.writes.values())
        for _ in range(3):
            given = [np.array([r.randrange(256) for _ in range(_count(values[i]))], np.uint8) for i in inputs]
            assert run.as_the_flow_says(given) == run.through_arenas(given)
    assert on_device > 5, "some tensors do stay on the device"


def _count(value: Value) -> int:
    assert isinstance(value, TensorValue)
    return value.nbytes


def test_a_chain_of_delegates_stays_on_the_device() -> None:
    values: list[Value] = [tensor(0, 0, 4), tensor(1, 4, 4), tensor(2, 4, 4, (2, 2)), tensor(3, 8, 4)]
    steps: list[Step] = [DelegateStep(0, (0,), (1,)), DelegateStep(1, (2,), (3,))]
    flow = analyse(values, [0], [3], steps, ["same", "same"], "test")
    assert flow.sources == {0: ((INPUT, 0),), 1: ((0, 0),)}, "an elided view is the tensor itself"
    assert flow.writes[0, 0].on_device and not flow.writes[0, 0].to_arena
    assert flow.outputs == ((1, 0),)
    apart = analyse(values, [0], [3], steps, ["one", "other"], "test")
    assert apart.sources[1] == (None,) and apart.writes[0, 0].to_arena


def test_another_order_of_dimensions_stays_only_where_both_read_by_dimensions() -> None:
    between = replace(tensor(1, 4, 4, (2, 2)), dim_order=(1, 0))
    values: list[Value] = [tensor(0, 0, 4), between, tensor(2, 8, 4)]
    steps: list[Step] = [DelegateStep(0, (0,), (1,)), DelegateStep(1, (1,), (2,))]
    assert analyse(values, [0], [2], steps, ["same", "same"], "test").writes[0, 0].on_device
    for as_stored in ([0], [1], [0, 1]):
        flow = analyse(values, [0], [2], steps, ["same", "same"], "test", as_stored)
        assert flow.sources[1] == (None,) and flow.writes[0, 0].to_arena and not flow.writes[0, 0].on_device


def test_a_part_of_a_result_goes_through_the_arena() -> None:
    values: list[Value] = [tensor(0, 0, 8), tensor(1, 8, 8), tensor(2, 8, 4), tensor(3, 16, 4)]
    steps: list[Step] = [DelegateStep(0, (0,), (1,)), DelegateStep(0, (2,), (3,))]
    flow = analyse(values, [0], [3], steps, [0], "test")
    assert flow.sources[1] == (None,) and flow.writes[0, 0].to_arena


def test_lists_are_read_too() -> None:
    values: list[Value] = [tensor(0, 0, 4), tensor(1, 4, 4), ListValue((1,), tensors=True), tensor(3, 8, 4)]
    steps: list[Step] = [DelegateStep(0, (0,), (1,)), KernelStep("cat", (2,), (3,))]
    assert analyse(values, [0], [3], steps, [0], "test").writes[0, 0].to_arena


@pytest.mark.parametrize("step", [MoveStep(0, 1), JumpStep(0, 0)])
def test_with_jumps_everything_goes_through_the_arenas(step: Step) -> None:
    values: list[Value] = [tensor(0, 0, 4), tensor(1, 4, 4)]
    flow = analyse(values, [0], [1], [DelegateStep(0, (0,), (1,)), step], [0], "test")
    assert not flow.linear and all(w.to_arena for w in flow.writes.values()) and flow.outputs == (None,)


def test_a_constant_is_not_written() -> None:
    constant = TensorValue(0, np.dtype(np.uint8), (4,), (0,), STATIC, constant=memoryview(b"1234"))
    with pytest.raises(InvalidPteError, match="writes value 0, which is a constant"):
        analyse([constant], [], [], [KernelStep("k", (), (0,))], [], "test")
