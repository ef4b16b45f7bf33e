"""The order of dispatches: hazards keep theirs, what can run side by side does, and memory does not grow by it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_shared.capabilities import DeviceCapabilities
from tests.session.models import model
from vkep import dtypes
from vkep.graph import load_model
from vkep.ir.infer import Known
from vkep.ir.program import IslandStep, ValueSpec
from vkep.placement.partition import lower
from vkep.plan.records import Plan
from vkep.plan.schedule import FREE_BYTES, Access, schedule

Touched = list[Access]


def _read(memory: str) -> Access:
    return Access(memory, 0, 8, False)


def _write(memory: str) -> Access:
    return Access(memory, 0, 8, True)


def _free(groups: Sequence[int]) -> int:
    return 0


def _no_more_than_in_order(groups: Sequence[int]) -> int:
    """Fewer groups need more."""
    return 2 * FREE_BYTES - max(groups, default=0)


def test_independent_chains_advance_together() -> None:
    chains = [[_read(f"{chain}{step}"), _write(f"{chain}{step + 1}")] for chain in "abc" for step in range(2)]
    assert schedule(chains, _free) == [0, 1, 0, 1, 0, 1]


def test_readers_stand_together_and_a_writer_waits_for_them() -> None:
    assert schedule([[_write("a")], [_read("a")], [_read("a")], [_write("a")], [_read("a")]], _free) == [0, 1, 1, 2, 3]


def test_bytes_that_do_not_overlap_do_not_wait() -> None:
    halves = [[Access("a", 0, 4, True)], [Access("a", 4, 8, True)], [Access("a", 3, 5, False)]]
    assert schedule(halves, _free) == [0, 0, 1]


def test_nothing_moves_where_no_group_is_saved() -> None:
    # the second could stand beside the first, but the order of the program has as few groups
    touched = [[_write("a")], [_read("a"), _write("b")], [_write("c")], [_read("b"), _read("c")]]
    assert schedule(touched, _free) == [0, 1, 1, 2]
    assert schedule([], _free) == []


def test_a_block_that_is_overwritten_whole_is_not_remembered() -> None:
    """A step that reads and writes one buffer, many times over: the work does not grow by the square."""
    steps = [[_read("state"), _write("state"), Access("all", 8 * i, 8 * i + 8, True)] for i in range(20000)]
    assert schedule(steps, _free) == list(range(20000))


def test_memory_is_worth_more_than_a_group() -> None:
    """All of ten buffers at once, or two at a time: what looks less far ahead may do with less."""
    touched: list[Touched] = []
    for i in range(10):
        touched += [[_write(f"a{i}")], [_read(f"a{i}"), _write(f"b{i}")], [_read(f"b{i}"), _write("sum")]]

    def alive(groups: Sequence[int]) -> int:
        spans: dict[object, tuple[int, int]] = {}
        for group, accesses in zip(groups, touched, strict=True):
            for access in accesses:
                first, last = spans.get(access.memory, (group, group))
                spans[access.memory] = (min(first, group), max(last, group))
        return FREE_BYTES * max(sum(a <= g <= b for a, b in spans.values()) for g in range(max(groups) + 1))

    eager, careful = schedule(touched, _free), schedule(touched, alive)
    in_order = schedule(touched, _no_more_than_in_order)
    assert max(eager) < max(careful) <= max(in_order)
    assert alive(careful) <= alive(in_order) < alive(eager)


_ACCESS = st.builds(
    lambda memory, start, length, writes: Access(memory, start, start + length, writes),
    st.integers(0, 3), st.integers(0, 6), st.integers(1, 4), st.booleans(),
)  # fmt: skip


@given(st.lists(st.lists(_ACCESS, min_size=1, max_size=4), max_size=24), st.booleans())
def test_every_hazard_keeps_its_order(touched: list[Touched], bounded: bool) -> None:
    groups = schedule(touched, _no_more_than_in_order if bounded else _free)
    assert sorted(set(groups)) == list(range(len(set(groups)))), "no group is empty"
    for later, new in enumerate(touched):
        for earlier, old in enumerate(touched[:later]):
            hazard = any(
                a.memory == b.memory and (a.writes or b.writes) and max(a.start, b.start) < min(a.end, b.end)
                for a in old
                for b in new
            )
            assert not hazard or groups[earlier] < groups[later]


# ---- in plans

#: a GPU too large for one of these products, which are cut along k and summed in a second dispatch
GPU = DeviceCapabilities.for_tests(device_type="discrete", subgroup_size=32, min_subgroup_size=32, max_subgroup_size=32)
PROJECTIONS = """g (float[64,256] x, float[256,256] a, float[256,256] b, float[256,256] c)
    => (float[64,256] q, float[64,256] k, float[64,256] v) { q = MatMul(x, a) k = MatMul(x, b) v = MatMul(x, c) }"""
#: the shortcut's convolution needs only x, and the sum both
BLOCK = """g (float[1,16,8,8] x, float[16,16,1,1] a, float[16,16,3,3] b, float[16,16,1,1] s) => (float[1,16,8,8] y) {
    c = Conv(x, a) r = Relu(c) d = Conv<pads=[1,1,1,1]>(r, b) t = Conv(x, s) u = Add(d, t) y = Relu(u) }"""


def _plan(text: str, caps: DeviceCapabilities) -> Plan:
    graph = load_model(model(text)).graph
    known: dict[str, Known] = {v.name: ValueSpec(dtypes.DTYPES["float32"], v.static_shape or ()) for v in graph.inputs}
    [step] = lower(graph.nodes, known, [v.name for v in graph.outputs], {"": 18}, caps).steps
    assert isinstance(step, IslandStep)
    return step.plan


def test_products_that_share_an_input_need_one_barrier() -> None:
    plan = _plan(PROJECTIONS, GPU)
    assert len(plan.dispatches) == 6, "each is cut in two passes"
    assert [d.barrier for d in plan.dispatches] == [False, False, False, True, False, False]


@pytest.mark.parametrize("caps", [DeviceCapabilities.for_tests(), GPU])
def test_a_shortcut_runs_beside_the_way_that_it_leaves_out(caps: DeviceCapabilities) -> None:
    plan = _plan(BLOCK, caps)
    labels = [d.label for d in plan.dispatches]
    groups: list[list[str]] = [[]]
    for dispatch, label in zip(plan.dispatches, labels, strict=True):
        if dispatch.barrier:
            groups.append([])
        groups[-1].append(label)
    shortcut = next(i for i, group in enumerate(groups) if any(label.startswith("Conv_3") for label in group))
    assert len(groups[shortcut]) > 1, groups
    assert "Add" in groups[-1][-1], "the sum is in the epilogue of the convolution that waits for most"


def test_groups_do_not_cost_memory_that_the_order_of_the_program_does_not() -> None:
    """Six chains, a step of each in turn: side by side their results would all be there at once."""
    steps = " ".join(f"a{i} = Softmax<axis={i % 2}>(x)" for i in range(6))
    steps += " ".join(f" b{i} = Softmax<axis={(i + 1) % 2}>(a{i})" for i in range(6))
    steps += " ".join(f" y{i} = ReduceSum<keepdims=0>(b{i})" for i in range(6))
    outputs = ", ".join(f"float y{i}" for i in range(6))
    plan = _plan(f"g (float[2048,2048] x) => ({outputs}) {{ {steps} }}", GPU)
    one = 4 * 2048 * 2048
    assert plan.activation_bytes <= 7.1 * one, "six results of the first step, and one of the second"


def test_memory_shared_in_turn_adds_no_barrier() -> None:
    """Four independent chains: buffers of one group never share memory, which would make one wait for the other."""
    chains = " ".join(
        f"m{i} = MatMul(x, w{i}) s{i} = Softmax<axis=-1>(m{i}) y{i} = MatMul(s{i}, w{i})" for i in range(4)
    )
    inputs = ", ".join(f"float[32,32] w{i}" for i in range(4))
    outputs = ", ".join(f"float[32,32] y{i}" for i in range(4))
    for caps in (DeviceCapabilities.for_tests(), GPU):
        plan = _plan(f"g (float[32,32] x, {inputs}) => ({outputs}) {{ {chains} }}", caps)
        per_chain = len(plan.dispatches) // 4
        assert sum(d.barrier for d in plan.dispatches) == per_chain - 1
