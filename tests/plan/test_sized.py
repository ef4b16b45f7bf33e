"""Plans for other sizes, and layouts of their buffers, without a device."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vkep.plan.layout import laid_out
from vkep.plan.memory import live_peak, pack
from vkep.plan.records import Dispatch, PipelineKey, Plan, Port, Relocation, ShaderVariant, Slot, Space
from vkep.plan.sized import Buffer, MovingPorts, PlanSizes, faults, instance, ports
from vkep.sizes import Formulas, Trace

lists = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 5000), st.integers(0, 50)), min_size=1, max_size=12
)


def sized(hint: int, *results: Any) -> tuple[Formulas, Trace]:
    trace = Trace()
    n = trace.symbol(hint)
    return trace.formulas([r(n) if callable(r) else r for r in results]), trace


def plan() -> tuple[Plan, PlanSizes]:
    """Two dispatches over a buffer of 4 * n bytes and one of 1024, an input [n, 2] and an output [2 * n], for n = 8."""
    values, _ = sized(8, lambda n: n, lambda n: 4 * n, lambda n: 2 * n, lambda n: n * 0.5, lambda n: (n + 3) // 4, 1024)
    key = PipelineKey(ShaderVariant("a.comp", ()), (), 24, True)
    first = Dispatch(
        pipeline=0,
        arguments=struct.pack("<QQIf", 0, 0, 8, 4.0),
        relocations=(Relocation(0, Space.PORT, 0, 0), Relocation(8, Space.ACTIVATION, 0, 0)),
        grid=(2, 1, 1),
        barrier=False,
        label="first",
        reads=(),
        writes=(),
        flops=0,
        bytes=0,
    )
    second = Dispatch(
        pipeline=0,
        arguments=struct.pack("<QQIf", 0, 0, 7, 1.0),
        relocations=(Relocation(0, Space.ACTIVATION, 0, 16), Relocation(8, Space.ACTIVATION, 0, 256 + 32)),
        grid=(1, 1, 1),
        barrier=True,
        label="second",
        reads=(),
        writes=(),
        flops=0,
        bytes=0,
    )
    made = Plan(
        ports=(Port("x", "float32", (8, 2), 64, True), Port("y", "float32", (16,), 64, False)),
        constants=(),
        activation_bytes=1280,
        slots=(Slot(0, 0), Slot(1, 32)),
        pipelines=(key,),
        dispatches=(first, second),
        faults=((1, "an index is outside [0, 8]"), (2, "no number")),
    )
    sizes = PlanSizes(
        values=values,
        arguments=((0, 16, "I", 0), (0, 20, "f", 3)),
        grids=((0, 0, 4),),
        addends=((1, 1, 1),),
        slots=((1, 1),),
        shapes=((0, 0, 0), (1, 0, 2)),
        faults=((0, ("an index is outside [0, ", 0, "]")),),
        buffers=(Buffer(1, 0, 1), Buffer(5, 1, 1)),
        places=((0, 1, 0, 0), (1, 0, 0, 16), (1, 1, 1, 32)),
    )
    return made, sizes


def test_the_instance_for_the_sizes_at_hand_differs_in_nothing_but_places() -> None:
    made, sizes = plan()
    offsets, slab = pack(sizes.lifetimes(sizes.values([8])))
    again = instance(made, sizes, [8])
    assert again.activation_bytes == slab and again.live_peak_bytes == live_peak(sizes.lifetimes(sizes.values([8])))
    assert (again.ports, again.slots, again.faults) == (made.ports, made.slots, made.faults)
    assert [d.arguments for d in again.dispatches] == [d.arguments for d in made.dispatches]
    assert again.dispatches[1].relocations[0].addend == offsets[0] + 16


@pytest.mark.parametrize("n", [2, 9, 4000])
def test_an_instance_has_the_numbers_of_its_sizes(n: int) -> None:
    made, sizes = plan()
    other = instance(made, sizes, [n])
    first, second = other.dispatches
    assert struct.unpack("<QQIf", first.arguments) == (0, 0, n, n / 2) and first.grid == ((n + 3) // 4, 1, 1)
    assert second.arguments == made.dispatches[1].arguments and second.grid == (1, 1, 1)
    offsets, slab = pack(sizes.lifetimes(sizes.values([n])))
    assert [r.addend for r in first.relocations] == [0, offsets[0]]
    assert [r.addend for r in second.relocations] == [offsets[0] + 16, offsets[1] + 4 * n]
    assert other.activation_bytes == slab and other.slots == (Slot(0, 0), Slot(1, 4 * n))
    assert [(p.shape, p.nbytes) for p in other.ports] == [((n, 2), 8 * n), ((2 * n,), 8 * n)]
    assert other.faults == ((1, f"an index is outside [0, {n}]"), (2, "no number"))
    values = sizes.values([n])
    moved = MovingPorts(made, sizes).at(values)
    assert ports(made, moved) == other.ports and faults(made, sizes, values) == other.faults


@given(lists, st.lists(st.integers(2, 600), min_size=1, max_size=6))
def test_layouts_keep_what_lives_together_apart_and_waste_little(
    buffers: list[tuple[int, int, int, int]], runs: list[int]
) -> None:
    results: list[Any] = [lambda n, a=a, b=b: a * n + b for _, _, b, a in buffers]
    values, _ = sized(7, *results)
    sizes = PlanSizes(
        values=values, buffers=tuple([Buffer(k, f, f + more) for k, (f, more, _, _) in enumerate(buffers)])
    )
    layout = laid_out(sizes, values(runs[:1]))
    largest = [0] * len(buffers)
    for n in runs:
        found = values([n])
        if not layout.fits(found):
            before, layout = layout, laid_out(sizes, found, layout)
            assert all(new >= old for new, old in zip(layout.capacity, before.capacity, strict=True))
        assert layout.fits(found)
        largest = [max(a, b) for a, b in zip(largest, found, strict=True)]
        for i, (a, at) in enumerate(zip(sizes.buffers, layout.offsets, strict=True)):
            assert at % 256 == 0 and at + layout.capacity[i] <= layout.nbytes
            for j in range(i):
                b, other = sizes.buffers[j], layout.offsets[j]
                if a.first <= b.last and b.first <= a.last and layout.capacity[i] and layout.capacity[j]:
                    assert at + layout.capacity[i] <= other or other + layout.capacity[j] <= at


def test_small_buffers_that_grow_by_one_are_laid_out_a_few_times() -> None:
    """Each new layout is recorded again."""
    values, _ = sized(7, *[lambda n, k=k: k * 64 * n for k in range(1, 5)])
    sizes = PlanSizes(values=values, buffers=tuple([Buffer(k, k, k + 1) for k in range(4)]))
    layout, made = laid_out(sizes, values([7])), 0
    for n in range(8, 1000):
        if not layout.fits(values([n])):
            layout, made = laid_out(sizes, values([n]), layout), made + 1
    assert made <= 8  # log2(1000 / 7) is 7.2
