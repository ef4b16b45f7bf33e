"""The garbage collector deletes ONNX Runtime's objects between any two bytecodes: it must wait for none of vkep's locks."""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gpu_shared.steady import end_later, settle
from tests.ort.conftest import graph
from vkep.arena.config import ArenaConfig
from vkep.ort.releasing import released

if TYPE_CHECKING:
    from gpu_shared import SharedGpuContext

MODEL = graph("g (float[n] x) => (float[n] y) { y = Relu(x) }")
_LONG = 20.0  # seconds: only for what would hang


class Ring:
    """Refers to itself, so that only the collector deletes it, and what it holds."""

    def __init__(self, held: object) -> None:
        self.held, self.me = held, self


class Tells:
    """Passes its name to `released` when it is deleted."""

    def __init__(self, name: str, told: Callable[[str], None]) -> None:
        self._name, self._told = name, told

    def __del__(self) -> None:
        released(self._told, self._name)


@contextlib.contextmanager
def held_elsewhere(*locks: Any) -> Iterator[None]:
    """Another thread holds these locks, for 20 s at most; then the test fails."""
    holds, done, in_time = threading.Event(), threading.Event(), []

    def hold() -> None:
        with contextlib.ExitStack() as stack:
            for lock in locks:
                stack.enter_context(lock)
            holds.set()
            in_time.append(done.wait(_LONG))

    thread = threading.Thread(target=hold)
    thread.start()
    assert holds.wait(_LONG)
    try:
        yield
    finally:
        done.set()
        thread.join()
    assert in_time == [True], "it waited for a lock"


@pytest.fixture
def no_collection(collected: None) -> Iterator[None]:
    """The collector runs only where a test calls it."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("kernels", ["compile", "registry"])
def test_a_session_that_it_deletes(registered: Any, kernels: str) -> None:
    import onnxruntime

    from vkep.ort import memory
    from vkep.ort.boundary import live, live_structs

    before = live_structs()
    made = onnxruntime.InferenceSession(
        MODEL, providers=[(registered.EP_NAME, {"kernels": kernels})], enable_fallback=0
    )
    made.run(None, {"x": np.ones(5, np.float32)})
    domain = live("OrtEp")[-1].runtime.domain
    ring = Ring(made)
    del made, ring
    with held_elsewhere(memory._registry_lock, domain.lock, domain.arena._bfc._lock):
        gc.collect()
    assert live_structs() == before


@pytest.mark.usefixtures("no_collection")
def test_a_value_that_it_deletes(on_gpu: Callable[[Any], Any]) -> None:
    from vkep.ort import memory

    kept = on_gpu(np.ones(3, np.float32))
    domain = memory.domain_of(kept.data_ptr())
    before = domain.live_blocks
    ring = Ring(on_gpu(np.ones(5, np.float32)))
    assert domain.live_blocks == before + 1
    del ring
    with held_elsewhere(domain.lock, domain.arena._bfc._lock):
        gc.collect()
    settle()
    assert domain.live_blocks == before


@pytest.mark.usefixtures("no_collection")
def test_its_releases_keep_their_order(caplog: pytest.LogCaptureFixture) -> None:
    may_end, done = threading.Event(), []

    def told(name: str) -> None:
        may_end.wait(_LONG)
        done.append((name, threading.current_thread() is threading.main_thread()))
        if name == "bad":
            raise ValueError("a bad one")

    ring = Ring([Tells("bad", told), Tells("good", told)])
    del ring
    gc.collect()
    released(told, "after")  # not by the collector, and not before the others
    assert done == []
    may_end.set()
    with caplog.at_level(logging.ERROR, "gpu_shared"):
        settle()
    assert done == [("bad", False), ("good", False), ("after", False)]
    assert [str(r.exc_info[1]) for r in caplog.records if r.exc_info] == ["a bad one"]
    released(told, "at once")
    assert done[3:] == [("at once", True)]


def test_memory_that_is_released_in_another_thread_is_waited_for(own_context: SharedGpuContext) -> None:
    from vkep.ort import memory

    nbytes = 3 << 20
    domain = memory.acquire(own_context, ArenaConfig(max_mem=2 * nbytes - 1))
    try:
        pointer, may_end = domain.alloc(nbytes), threading.Event()
        end_later(functools.partial(_wait, may_end))
        end_later(lambda: domain.free(pointer))
        threading.Timer(0.1, may_end.set).start()
        domain.free(domain.alloc(nbytes))
    finally:
        domain.release()


def _wait(event: threading.Event) -> None:
    event.wait(_LONG)
