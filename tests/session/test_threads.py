"""Many threads: on one session, on sessions of one context, while others close."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper

import vkep
from tests.calls import noted
from tests.session.models import ADD_RELU, CPU_MIDDLE, DYNAMIC, model
from tools.waiting import comes_true
from vkep import InferenceSession, SharedGpuContext
from vkep.device.pipelines import PipelineStore

Open = Callable[..., InferenceSession]


def _weighted(seed: int) -> Any:
    proto = model("g (float[n,64] x) => (float[n,64] y) { a = MatMul(x, w) y = Relu(a) }")
    weight = np.random.default_rng(seed).standard_normal((64, 64), np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    return proto, weight


def test_four_sessions_on_one_context_in_eight_threads(own_context: SharedGpuContext) -> None:
    made = [_weighted(seed) for seed in range(4)]
    sessions = [InferenceSession(proto, context=own_context) for proto, _ in made]
    barrier = threading.Barrier(8)

    def work(index: int) -> None:
        rng = np.random.default_rng(index)
        session, weight = sessions[index % 4], made[index % 4][1]
        barrier.wait()
        for turn in range(12):
            x = rng.standard_normal((1 + (index + turn) % 5, 64), np.float32)
            np.testing.assert_allclose(session.run(None, {"x": x})[0], np.maximum(x @ weight, 0), rtol=1e-3, atol=1e-4)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    for session in sessions:
        session.close()


@pytest.mark.parametrize("concurrency", [1, 2, 4])
def test_one_session_in_four_threads(open_session: Open, concurrency: int) -> None:
    session = open_session(ADD_RELU, concurrency=concurrency)

    def work(index: int) -> None:
        for turn in range(40):
            x = np.full((2, 3), index * 100 + turn, np.float32)
            np.testing.assert_array_equal(session.run(None, {"x": x, "b": np.ones(3, np.float32)})[0], x + 1)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    [island] = session.islands()
    assert len(island.runner.recordings) <= concurrency


def test_one_context_opened_from_many_threads(vulkan: object, no_leak: Callable[[], dict[str, int]]) -> None:
    barrier = threading.Barrier(6)

    def work(index: int) -> object:
        barrier.wait()
        with InferenceSession(ADD_RELU, token="opened by threads") as session:
            barrier.wait()
            session.run(None, {"x": np.ones((2, 3), np.float32), "b": np.ones(3, np.float32)})
            barrier.wait()
            return id(session.context)

    with ThreadPoolExecutor(6) as pool:
        assert len(set(pool.map(work, range(6)))) == 1
    assert no_leak() == {}


def test_a_signature_is_planned_once_for_all_threads(open_session: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    session = open_session(DYNAMIC)
    planned = noted(monkeypatch, session._parts.graph, "plan", lambda *given: 1)
    barrier = threading.Barrier(4)

    def work(_: int) -> None:
        barrier.wait()
        session.run(None, {"x": np.ones((5, 3), np.float32), "b": np.ones(3, np.float32)})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert planned == [1]


@pytest.mark.parametrize("proto", [DYNAMIC, CPU_MIDDLE], ids=["gpu", "cpu"])
def test_closing_waits_for_the_runs_of_others(own_context: SharedGpuContext, proto: Any) -> None:
    """A run either ends with its result or says that the session is closed: nothing between."""
    feeds = {"x": np.ones((2, 3), np.float32), "b": np.ones(3, np.float32)}
    if proto is CPU_MIDDLE:
        feeds = {"x": np.stack([np.eye(3, dtype=np.float32)] * 2)}
    for _ in range(5):
        session = InferenceSession(proto, context=own_context)
        started = threading.Barrier(5)
        results: list[object] = []

        def work(session: InferenceSession = session, started: Any = started, results: Any = results) -> None:
            started.wait()
            try:
                while True:
                    results.append(session.run(None, feeds)[0].shape)
            except vkep.ClosedError:
                results.append("closed")

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        started.wait()
        while len(results) < 8:  # runs of several threads are in progress
            time.sleep(0.001)
        session.close()
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive()
        assert results.count("closed") == 4
        assert set(results) == {"closed", (2,) if proto is CPU_MIDDLE else (2, 3)}


def test_other_sessions_run_on_while_one_closes(own_context: SharedGpuContext) -> None:
    (proto, weight), (other, _) = _weighted(1), _weighted(2)
    x = np.ones((3, 64), np.float32)
    stop = threading.Event()
    with InferenceSession(proto, context=own_context) as session:
        turns = [0, 0]

        def run(index: int) -> None:
            while not stop.is_set():
                np.testing.assert_allclose(
                    session.run(None, {"x": x})[0], np.maximum(x @ weight, 0), rtol=1e-3, atol=1e-4
                )
                turns[index] += 1

        with ThreadPoolExecutor(2) as pool:
            running = [pool.submit(run, index) for index in range(2)]
            for _ in range(15):
                with InferenceSession(other, context=own_context) as second:
                    second.run(None, {"x": x})
            both_ran = comes_true(lambda: min(turns) > 0)
            stop.set()
            for one in running:
                one.result()
            assert both_ran


def test_plans_are_evicted_while_in_use(open_session: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """More signatures than the cache holds, from four threads at once: right results, a bounded cache, no new shaders."""
    session = open_session(DYNAMIC, plan_cache_size=2)
    b = np.array([1, 2, 3], np.float32)
    for rows in (40, 41, 42):  # of three columns: in vectors of four, and one by one; the last with sizes
        session.run(None, {"x": np.ones((rows, 3), np.float32), "b": b})
    made = noted(monkeypatch, PipelineStore, "_make", lambda store, keys, *_: len(keys))

    def work(index: int) -> None:
        for turn in range(25):
            x = np.full((30 + (index * 3 + turn) % 7, 3), index + turn, np.float32)
            np.testing.assert_array_equal(session.run(None, {"x": x, "b": b})[0], -x * b)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    graph = session._parts.graph
    assert graph.plan_count <= 2 + 2 and not graph._evicted  # of one signature each, and with sizes
    assert not any(entry.uses.held for entry in graph._entries.values())
    assert made == [], "a new signature compiles no shader"


def test_tensors_are_written_and_read_from_threads(open_session: Open) -> None:
    session = open_session(ADD_RELU)

    def work(index: int) -> None:
        for turn in range(20):
            value = np.full((5, 7), index * 50 + turn, np.float32)
            with session.device_tensor(value) as tensor:
                np.testing.assert_array_equal(tensor.numpy(), value)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
