"""The garbage collector deletes ONNX Runtime's objects between any two bytecodes: it must wait for none of vkep's locks."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gpu_shared import steady
from tests.collecting import Ring, held_elsewhere
from tests.ort.conftest import graph
from tools.waiting import LONG_S, comes_true
from vkep.arena.config import ArenaConfig
from vkep.ort.boundary import released, wait_for_releases

if TYPE_CHECKING:
    from gpu_shared import SharedGpuContext

MODEL = graph("g (float[n] x) => (float[n] y) { y = Relu(x) }")


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("kernels", ["compile", "registry"])
def test_a_session_that_it_deletes(registered: Any, kernels: str) -> None:
    import onnxruntime

    from vkep.ort.boundary import live, live_structs
    from vkep.ort.memory import domain as memory

    before = live_structs()
    made = onnxruntime.InferenceSession(
        MODEL, providers=[(registered.EP_NAME, {"kernels": kernels})], enable_fallback=0
    )
    made.run(None, {"x": np.ones(5, np.float32)})
    domain = live("OrtEp")[-1].runtime.domain
    Ring(made)
    del made
    with held_elsewhere(memory._registry_lock, domain.lock, domain.arena._bfc._lock):
        gc.collect()
    assert live_structs() == before


@pytest.mark.usefixtures("no_collection")
def test_a_value_that_it_deletes(on_gpu: Callable[[Any], Any]) -> None:
    from vkep.ort.memory import domain as memory

    kept = on_gpu(np.ones(3, np.float32))
    domain = memory.domain_of(kept.data_ptr())
    domain.trim()  # else the block may be returned without calling Python
    before = domain.live_blocks
    Ring(on_gpu(np.ones(5, np.float32)))
    with held_elsewhere(domain.lock, domain.arena._bfc._lock):
        gc.collect()
        assert domain.live_blocks == before + 1
    wait_for_releases()
    assert domain.live_blocks == before


@pytest.mark.usefixtures("no_collection")
def test_memory_that_it_releases_is_waited_for(own_context: SharedGpuContext) -> None:
    from vkep.ort.memory import domain as memory

    nbytes = 3 << 20
    domain = memory.acquire(own_context, ArenaConfig(max_mem=2 * nbytes - 1))
    try:
        pointer, may_end = domain.alloc(nbytes), threading.Event()

        def free() -> None:
            may_end.wait(LONG_S)
            domain.free(pointer)

        Ring(ends=lambda: released(free))
        gc.collect()
        threading.Timer(0.1, may_end.set).start()
        domain.free(domain.alloc(nbytes))
    finally:
        domain.release()


@pytest.mark.usefixtures("no_collection")
def test_releases_keep_their_order(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr(steady, "PATIENCE", 0.01)

    def release(name: str) -> None:
        done.append(name)
        if name == "first":
            raise ValueError("a bad one")

    Ring(ends=lambda: released(release, "first"))
    assert not wait_for_releases()
    with held_elsewhere(steady._gate):
        gc.collect()
        released(release, "second")  # after the first, though the collector does not call it
        assert done == []
    assert comes_true(lambda: done == ["first", "second"])
    assert [str(r.exc_info[1]) for r in caplog.records if r.exc_info] == ["a bad one"]
    released(release, "third")
    assert done[2:] == ["third"]


@pytest.mark.usefixtures("no_collection")
def test_a_release_within_a_release() -> None:
    done: list[str] = []

    def first() -> None:
        wait_for_releases()  # does not wait for the second one
        released(done.append, "within")
        done.append("first")

    def both() -> None:
        released(first)
        released(done.append, "second")

    Ring(ends=both)
    with held_elsewhere(steady._gate):
        gc.collect()
    assert comes_true(lambda: done == ["within", "first", "second"])


@pytest.mark.usefixtures("no_collection")
def test_a_release_waits_for_earlier_ones_but_not_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    may_end = threading.Event()
    Ring(ends=lambda: released(lambda: done.append(f"first {may_end.wait(LONG_S)}")))
    gc.collect()
    monkeypatch.setattr(steady, "PATIENCE", 0.01)
    released(done.append, "late")
    assert done == []
    monkeypatch.setattr(steady, "PATIENCE", LONG_S)
    threading.Timer(0.1, may_end.set).start()
    released(done.append, "now")
    assert done == ["first True", "late", "now"]
