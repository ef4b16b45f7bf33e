"""Runs of a binding that did not change: they look nothing up again, and are sent while the run before is in progress."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vkep
from gpu_shared.errors import ClosedError
from gpu_shared.lease import DelegateLease
from tests.calls import noted
from tests.session.models import DYNAMIC, SLOW, model
from vkep import InferenceSession, InvalidInputError
from vkep.device.arguments import ArgumentTable
from vkep.device.bound import Bound
from vkep.device.recorded import RecordedPlan
from vkep.device.run_commands import RunCommands
from vkep.session.binding import IOBinding
from vkep.session.planning.planned_graph import PlannedGraph

Open = Callable[..., InferenceSession]
TURN = model("g (float[2,3] x, float[2,3] b) => (float[2,3] y, float[2,3] z) { y = Sub(b, x) z = Neg(x) }")
X = np.array([[1, -2, 3], [4, 5, -6]], np.float32)


def bound(session: InferenceSession, **tensors: Any) -> IOBinding:
    binding = session.io_binding()
    inputs = {v.name for v in session.get_inputs()}
    for name, tensor in tensors.items():
        (binding.bind_input if name in inputs else binding.bind_output)(name, tensor)
    return binding


def looked_up_by(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """One element for each run that was looked up."""
    return noted(monkeypatch, PlannedGraph, "run", lambda *_, **__: None)


def test_runs_that_change_their_input_in_place(open_session: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run reads what the run before it wrote, and nothing waits between them."""
    session = open_session(
        model("g (float[64] x) => (float[64] y) { c = Constant<value = float {0.5}>() y = Add(x, c) }")
    )
    x, looked_up = (
        session.device_tensor(np.arange(64, dtype=np.float32)),
        looked_up_by(monkeypatch),
    )
    binding = bound(session, x=x, y=x)
    for _ in range(300):
        session.run_with_iobinding(binding)
    np.testing.assert_array_equal(x.numpy(), np.arange(64) + 150)
    assert len(looked_up) == 2


def test_a_run_that_repeats_prepares_nothing(open_session: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    session = open_session(TURN)
    x, b, y, z = (session.device_tensor(array) for array in (X, X + 1, X, X))
    binding = bound(session, x=x, b=b, y=y, z=z)
    for _ in range(4):
        session.run_with_iobinding(binding)
    prepared = [
        noted(monkeypatch, owner, name, lambda *_, **__: None)
        for owner, name in ((ArgumentTable, "bind"), (RunCommands, "_key"), (Bound, "of"))
    ]
    x.write(2 * X)
    for _ in range(20):
        session.run_with_iobinding(binding)
    np.testing.assert_array_equal(y.numpy(), 1 - X)
    np.testing.assert_array_equal(z.numpy(), -2 * X)
    assert prepared == [[], [], []]


@pytest.mark.parametrize("rooms", [1, 2])
def test_two_bindings_in_turns(open_session: Open, monkeypatch: pytest.MonkeyPatch, rooms: int) -> None:
    """Of other shapes each time: two plans, then one with sizes, whose arguments change between the runs."""
    session, rng = open_session(DYNAMIC, concurrency=rooms, plan_cache_size=4), np.random.default_rng(3)
    cases = []
    for n, k in ((4, 5), (7, 2), (3, 9)):
        x, b = rng.standard_normal((n, k), np.float32), rng.standard_normal(k, np.float32)
        y = session.empty_device_tensor((n, k))
        cases.append((bound(session, x=session.device_tensor(x), b=session.device_tensor(b), y=y), y, -(x * b)))
    looked_up = looked_up_by(monkeypatch)
    for turn in range(40):
        for binding, y, _ in cases:
            session.run_with_iobinding(binding)
            if turn % 9 == 5:
                y.write(np.zeros(y.shape, np.float32))
                session.run_with_iobinding(binding)
    for _, y, expected in cases:
        np.testing.assert_array_equal(y.numpy(), expected)
    assert len(looked_up) == 6


def test_content_bindings_and_sizes_may_change_between_runs(open_session: Open) -> None:
    session = open_session(TURN)
    x, b, y, z = (session.device_tensor(X * k) for k in (1, 2, 0, 0))
    binding = bound(session, x=x, b=b, y=y, z=z)
    for k in range(1, 30):
        if k % 5 == 0:
            x.write(X * k)
        if k % 7 == 0:
            x = session.device_tensor(X * k)
            binding.bind_input("x", x)
        if k == 20:
            y = session.empty_device_tensor((2, 3))
            binding.bind_output("y", y)
        session.run_with_iobinding(binding)
        now = x.numpy()
        np.testing.assert_array_equal(y.numpy(), 2 * X - now)
        np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[1], -now)
        assert binding.get_outputs() == [y, z]


def test_what_was_closed_is_refused(open_session: Open) -> None:
    session = open_session(TURN)
    x, b, y, z = (session.device_tensor(X) for _ in range(4))
    binding = bound(session, x=x, b=b, y=y, z=z)
    for _ in range(3):
        session.run_with_iobinding(binding)
    z.close()
    with pytest.raises(InvalidInputError, match="output 'z': the device tensor is closed"):
        session.run_with_iobinding(binding)
    binding.bind_output("z", session.device_tensor(X))
    for _ in range(3):
        session.run_with_iobinding(binding)
    x.close()
    with pytest.raises(InvalidInputError, match="input 'x': the device tensor is closed"):
        session.run_with_iobinding(binding)
    binding.bind_input("x", b)
    for _ in range(3):
        session.run_with_iobinding(binding)
    session.close()
    with pytest.raises(ClosedError):
        session.run_with_iobinding(binding)


def test_an_evicted_plan_is_made_again(open_session: Open) -> None:
    session = open_session(model("g (float[n] x, int64[m] i) => (float[k] y) { y = Gather(x, i) }"), plan_cache_size=1)
    x, i, y = session.device_tensor(np.arange(8, dtype=np.float32)), session.device_tensor(np.array([3, 1])), None
    y = session.empty_device_tensor((2,))
    binding = bound(session, x=x, i=i, y=y)
    for k in range(6):
        session.run_with_iobinding(binding)
        np.testing.assert_array_equal(y.numpy(), [3, 1])
        if k >= 2:
            session.run(None, {"x": np.zeros(4 + k, np.float32), "i": np.zeros(1 + k, np.int64)})


def test_data_that_break_the_specification_are_found(open_session: Open) -> None:
    session = open_session(model("g (float[8] x, int64[2] i) => (float[2] y) { y = Gather(x, i) }"))
    x, i, y = (session.device_tensor(v) for v in (np.arange(8, dtype=np.float32), np.array([3, 1]), np.zeros(2, "f4")))
    binding = bound(session, x=x, i=i, y=y)
    for _ in range(4):
        session.run_with_iobinding(binding)
    i.write(np.array([3, 8]))
    session.run_with_iobinding(binding)
    with pytest.raises(InvalidInputError, match="Gather"):
        y.numpy()
    i.write(np.array([5, 7]))
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(y.numpy(), [5, 7])


def test_views_profiles_and_options_see_the_run(open_session: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    session = open_session(TURN)
    binding = bound(session, **{name: session.device_tensor(X) for name in "xbyz"})
    looked_up = looked_up_by(monkeypatch)
    for _ in range(4):
        session.run_with_iobinding(binding)
    assert len(looked_up) == 2
    stop = vkep.RunOptions(terminate=True)
    with pytest.raises(vkep.RunTerminatedError):
        session.run_with_iobinding(binding, stop)
    watched: list[Any] = []

    def watch(step: Any, values: Any, targets: Any) -> None:
        watched.append(step)
        step.run(values, targets)

    session._parts.watch = watch
    session.run_with_iobinding(binding)
    assert len(watched) == 1


def test_an_interrupted_run_is_waited_for(open_session: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """After its submit, before the submit's number is known; the write must come after it."""
    session = open_session(SLOW)
    sizes = (256, 256)
    x, w, y = (session.device_tensor(np.full(sizes, k, np.float32)) for k in (1, 0, 7))
    binding = bound(session, x=x, w=w, y=y)
    for _ in range(3):
        session.run_with_iobinding(binding)
    submit = DelegateLease.submit

    def interrupted(*arguments: Any) -> int:
        submit(*arguments)
        raise KeyboardInterrupt

    for _ in range(2):
        with monkeypatch.context() as patched:
            patched.setattr(DelegateLease, "submit", interrupted)
            with pytest.raises(KeyboardInterrupt):
                session.run_with_iobinding(binding)
        y.write(np.ones(sizes, np.float32))
        np.testing.assert_array_equal(y.numpy(), np.ones(sizes))
        session.run_with_iobinding(binding)
        np.testing.assert_array_equal(y.numpy(), np.zeros(sizes))


def test_the_device_is_not_given_runs_without_end(open_session: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    session = open_session(SLOW, concurrency=1)
    sizes = (256, 256)
    binding = bound(session, **{name: session.device_tensor(np.ones(sizes, np.float32)) for name in "xwy"})
    lease, ahead = session._parts.delegate.lease, []
    stage = RecordedPlan.stage

    def staged(self: RecordedPlan, what: Any) -> Any:
        made = stage(self, what)
        ahead.append(lease.timeline.submitted - lease.timeline.completed)
        return made

    monkeypatch.setattr(RecordedPlan, "stage", staged)
    for _ in range(150):
        session.run_with_iobinding(binding)
    assert 2 < max(ahead) <= 64


def test_threads_with_bindings_of_one_session(open_session: Open) -> None:
    session = open_session(
        model("g (float[64] x) => (float[64] y) { c = Constant<value = float {1}>() y = Add(x, c) }")
    )
    tensors = [session.device_tensor(np.zeros(64, np.float32)) for _ in range(4)]

    def work(tensor: Any) -> None:
        binding = bound(session, x=tensor, y=tensor)
        for _ in range(100):
            session.run_with_iobinding(binding)

    threads = [threading.Thread(target=work, args=(tensor,)) for tensor in tensors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for tensor in tensors:
        np.testing.assert_array_equal(tensor.numpy(), np.full(64, 100))
