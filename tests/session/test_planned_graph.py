"""`PlannedGraph` without a device: signatures, uses, eviction and closing, with executables that only note their end."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any
from unittest import mock

import numpy as np
import pytest

from gpu_shared.errors import ClosedError
from vkep import InvalidInputError
from vkep.graph.model import ValueInfo
from vkep.graph.weights import ArrayWeight
from vkep.ir.infer import Known
from vkep.ir.program import Over, Program
from vkep.session.execution.executor import Executable, Meanwhile, Targets, Values, Watch
from vkep.session.planning import planned_graph
from vkep.session.planning.following import Following
from vkep.session.planning.planned_graph import PlannedGraph
from vkep.sizes import Trace

FLOAT = 1


class Planned(Executable):
    """Stands for an executable."""

    def __init__(self, known: Mapping[str, Known], trace: Trace | None = None, over: Over = ()) -> None:
        super().__init__(Program((), {}, ()), ())
        self.island = mock.Mock()
        self.known = dict(known)
        self.closed = False

    def run(
        self, values: Values, targets: Targets, watch: Watch | None = None, meanwhile: Meanwhile | None = None
    ) -> None:
        values["y"] = self
        if meanwhile is not None:
            meanwhile()

    def prepare(self) -> Planned:
        return self

    def close(self) -> None:
        self.closed = True


def graph(capacity: int = 2, **kwargs: Any) -> PlannedGraph:
    weight = ArrayWeight("w", np.ones(3, np.float32))
    return PlannedGraph(Planned, {"w": weight}, capacity, name="g", **kwargs)


def run(planned: PlannedGraph, *shape: int, dtype: Any = np.float32) -> Any:
    values: dict[str, Any] = {"x": np.zeros(shape, dtype)}
    planned.run(values, {})
    return values["y"]


def test_a_signature_is_planned_once_from_constants_and_specifications() -> None:
    planned = graph()
    one = run(planned, 2, 3)
    latest: Any = planned.latest
    assert run(planned, 2, 3) is one and latest is one
    assert run(planned, 3, 2) is not one
    assert run(planned, 2, 3, dtype=np.int32) is not one
    assert isinstance(one.known["w"], ArrayWeight)
    assert one.known["x"].shape == (2, 3) and one.known["x"].dtype.name == "float32"


def test_the_least_recently_used_goes_once_its_runs_have_ended() -> None:
    planned = graph(capacity=1)
    used = planned.use({"x": np.zeros(1, np.float32)})
    one: Any = used.executable
    with used.hold:
        two = run(planned, 2)
        assert not one.closed and not two.closed
    assert run(planned, 2) is two
    assert one.closed and not two.closed
    assert run(planned, 1) is not one and two.closed


def test_closing_waits_for_the_runs_and_refuses_others() -> None:
    planned = graph()
    used = planned.use({"x": np.zeros(1, np.float32)})
    one: Any = used.executable
    closing = threading.Thread(target=planned.close)
    closing.start()
    closing.join(0.1)
    assert closing.is_alive() and not one.closed
    used.hold.release()
    closing.join(120)
    assert not closing.is_alive() and one.closed and planned.latest is None
    with pytest.raises(ClosedError, match="g"):
        run(planned, 1)


def test_a_plan_depends_on_the_content_that_is_asked_for() -> None:
    planned = graph(capacity=9, asked=("n", "axes"))

    def made(n: int, axes: list[int]) -> Any:
        values: dict[str, Any] = {"n": np.array(n), "axes": np.array(axes)}
        planned.run(values, {})
        return values["y"]

    assert made(3, [1]) is made(3, [1])
    assert made(3, [1]) is not made(3, [0])
    np.testing.assert_array_equal(made(3, [1]).known["axes"].array(), [1])


def test_inputs_are_checked_once_for_each_signature() -> None:
    seen: list[tuple[int, ...]] = []
    planned = graph(check=lambda values: seen.append(values["x"].shape))
    for shape in ((1,), (2,), (1,)):
        run(planned, *shape)
    assert seen == [(1,), (2,)]


def test_static_shapes_have_one_signature_after_which_the_graph_can_be_sealed() -> None:
    planned = graph()
    assert planned.plan_static([ValueInfo("x", FLOAT, (2, "n"))]) is None and planned.latest is None
    key = planned.plan_static([ValueInfo("x", FLOAT, (2, 3))])
    one = planned.latest
    assert key is not None and run(planned, 2, 3) is one
    planned.refuse_new_plans()
    assert run(planned, 2, 3) is one
    with pytest.raises(InvalidInputError, match="g: got shapes other than those that the model declares"):
        run(planned, 3, 3)


def test_a_session_that_is_closed_while_it_plans_keeps_nothing() -> None:
    made: list[Planned] = []

    def plan(known: Mapping[str, Known], trace: Trace | None = None, over: Over = ()) -> Planned:
        planned.close()  # as a progress callback may
        made.append(Planned(known))
        return made[0]

    planned = PlannedGraph(plan, {}, 2)
    with pytest.raises(ClosedError):
        run(planned, 1)
    assert made[0].closed


def test_a_plan_made_ahead_is_not_in_use() -> None:
    """Also where an exception that planning caught still refers to its frames."""
    planned, kept = graph(), []
    made = planned.plan

    def failing(inputs: Mapping[str, Known]) -> Any:
        try:
            raise ValueError("waits for a value")
        except ValueError as error:
            kept.append(error)
        return made(inputs)

    planned.plan = failing  # type: ignore[method-assign, assignment]
    assert planned.plan_static([ValueInfo("x", 1, (2, 3))]) is not None
    closing = threading.Thread(target=planned.close, daemon=True)
    closing.start()
    closing.join(120)
    assert not closing.is_alive()


class Sized(Planned):
    """Stands for an executable that serves all sizes of its inputs."""

    def __init__(self, known: Mapping[str, Known], trace: Trace | None = None, over: Over = ()) -> None:
        super().__init__(known)
        self.program = Program((), {}, (), (), trace.holds() if trace is not None else None)

    def at(self, sizes: Sequence[int]) -> Sized:
        made = Sized({})
        made.sizes = tuple(sizes)
        return made


def test_threads_that_meet_a_new_size_at_once_share_its_executable() -> None:
    planned = PlannedGraph(Sized, {}, 4)
    for size in (2, 3):
        run(planned, size)
    values = {"x": np.zeros(7, np.float32)}
    signature = planned.signature(values)
    known = planned._known(values)
    first, second = (  # both found no entry before
        planned._match(signature, signature, tuple(values), known.__getitem__, ()) for _ in range(2)
    )
    assert first is not None and second is not None and first.executable is second.executable
    assert planned.use(values).executable is first.executable


def test_executables_of_sizes_that_are_forgotten_in_use_are_waited_for() -> None:
    planned = PlannedGraph(Sized, {}, 4)
    for size in (2, 3):
        run(planned, size)
    held = planned.use({"x": np.zeros(7, np.float32)})
    with mock.patch.object(planned_graph, "_SIGNATURES", 1):
        for size in range(8, 14):
            run(planned, size)
    assert held.executable not in [entry.executable for entry in planned._entries.values()]
    closing = threading.Thread(target=planned.close)
    with held.hold:
        closing.start()
        closing.join(0.1)
        assert closing.is_alive()
    closing.join(120)
    assert not closing.is_alive()


def test_a_size_that_keeps_growing_is_planned_during_the_run_before() -> None:
    planned = PlannedGraph(Sized, {}, 4)
    for size in (2, 3, 5, 7, 9):
        run(planned, size)
    assert planned.latest is not None
    with mock.patch.object(planned, "_known_one", side_effect=AssertionError("it reads the inputs")):
        for size in (11, 13):
            assert run(planned, size) is planned.latest
    known = len(planned._entries)
    for size in (20, 14, 31):  # nothing follows from these
        run(planned, size)
    assert len(planned._entries) == known + 3 + 0


def test_a_run_does_not_wait_for_other_threads_planning_to_predict() -> None:
    planned = PlannedGraph(Sized, {}, 4)
    for size in (2, 3, 4, 5):
        run(planned, size)
    ran = threading.Thread(target=run, args=(planned, 6))  # predicted by the run before
    with planned._planning:
        ran.start()
        ran.join(120)
        assert not ran.is_alive()


def test_next_sizes_are_predicted_from_two_equal_steps_only() -> None:
    kind, other = np.dtype(np.float32), np.dtype(np.int64)
    still = (kind, (4, 4), (8, 8))
    for signatures, expected in (
        ([((kind, (2,)), still), ((kind, (3,)), still), ((kind, (4,)), still)], ((kind, (5,)), still)),
        ([((kind, (9, 1)),), ((kind, (6, 2)),), ((kind, (3, 3)),)], ((kind, (0, 4)),)),
        ([((kind, (2,)),), ((kind, (1,)),), ((kind, (0,)),)], None),  # below 0
        ([((kind, (2,)),), ((kind, (3,)),), ((kind, (5,)),)], None),
        ([((kind, (2,)),), ((kind, (2,)),), ((kind, (2,)),)], None),
        ([((kind, (2,)),), ((other, (3,)),), ((kind, (4,)),)], None),
        ([((kind, (2,)),), ((kind, (3,), (9,)),), ((kind, (4,)),)], None),
        ([((other, (), b"1"),), ((other, (), b"2"),), ((other, (), b"3"),)], None),
        ([((list, 2),), ((list, 3),), ((list, 4),)], None),
    ):
        following = Following()
        assert following.after(signatures[0]) is None and following.after(signatures[1]) is None
        found = following.after(signatures[2])
        assert (found and found[0]) == expected
        if found is not None:
            signature, changed = found
            assert [k for k, mark in enumerate(signature) if mark != signatures[2][k]] == list(changed)
