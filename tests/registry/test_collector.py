"""A user's ``__del__`` method closes objects of vkep, and the garbage collector calls it: it must wait for no lock."""

from __future__ import annotations

import functools
import gc
import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from onnx import parser

import gpu_shared
import vkep
import vkep.generation
from gpu_shared import steady
from gpu_shared.memory import Buffer
from gpu_shared.steady import closing
from tests.collecting import Ring, held_elsewhere
from tests.processes import python
from tools.waiting import comes_true
from vkep.cuda import SharedTensor
from vkep.executorch.core import Core
from vkep.executorch.method import Method
from vkep.session.replicas import RenewedSession, Replicas

if TYPE_CHECKING:
    from gpu_shared import SharedGpuContext

MODEL = parser.parse_model('<ir_version: 9, opset_import: ["": 18]> g (float[n] x) => (float[n] y) { y = Relu(x) }')


def _session(context: SharedGpuContext) -> Any:
    made = vkep.InferenceSession(MODEL, context=context)
    made.run(None, {"x": np.ones(3, np.float32)})
    return made


def _tensor(context: SharedGpuContext) -> Any:
    with vkep.InferenceSession(MODEL, context=context) as session:
        return session.device_tensor(np.ones(3, np.float32))


#: makes an object that has ``close`` and ``closed``
CLOSED: dict[str, Callable[[SharedGpuContext], Any]] = {
    "session": _session,
    "tensor": _tensor,
    "lease": lambda context: context.lease("test"),
    "buffer": lambda context: Buffer(context.device, 256, "device", label="test"),
    "context": lambda context: context,
}


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("kind", CLOSED)
def test_what_it_closes(own_context: SharedGpuContext, kind: str) -> None:
    made = CLOSED[kind](own_context)
    closes = getattr(made, "_parts", made)  # a session's
    Ring(ends=made.close)
    with held_elsewhere(steady._gate):  # work that waits for another thread does not begin
        gc.collect()
        assert not closes.closed
    assert comes_true(lambda: closes.closed and not steady._working.held)


@pytest.mark.usefixtures("no_collection")
def test_many_closes_take_one_thread() -> None:
    done: list[int] = []
    close = closing(done.append)
    for number in range(300):
        Ring(ends=functools.partial(close, number))
    before = steady.idle_threads()
    with held_elsewhere(steady._gate):
        gc.collect()
        assert done == []
    assert comes_true(lambda: len(done) == 300)
    assert sorted(done) == list(range(300))
    assert steady.idle_threads() < before + 10


@pytest.mark.usefixtures("no_collection")
def test_an_error_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    class Bad:
        @closing
        def close(self) -> None:
            raise ValueError("a bad one")

    Ring(ends=Bad().close)
    gc.collect()
    assert comes_true(lambda: caplog.records)
    assert [str(r.exc_info[1]) for r in caplog.records if r.exc_info] == ["a bad one"]
    with pytest.raises(ValueError, match="a bad one"):
        Bad().close()


@pytest.mark.parametrize("when", ["before", "after"])
def test_at_the_end_of_the_interpreter(when: str) -> None:
    """What was collected right before the exit is closed by it, and what is collected after it at once; in a forked child too."""
    done = python(
        f"""
        import gc, os
        from gpu_shared.steady import Queue, closing
        from tests.collecting import Ring

        queue = Queue()

        def make():
            Ring(ends=lambda: queue.put(lambda: os.write(1, b"queued ")))
            Ring(ends=closing(lambda: os.write(1, b"closed ")))
            if {when == "before"}:
                gc.collect()

        if hasattr(os, "fork") and (child := os.fork()):
            os.waitpid(child, 0)
        make()
        """
    )
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert sorted(done.stdout.split()) == sorted(["queued", "closed"] * (1 + hasattr(os, "fork")))


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer's signal")
def test_no_interrupt_is_lost_in_the_collector() -> None:
    """The collector drops what a callback of its own raises, and handles signals in those that are written in Python. This
    needs a separate process: Hypothesis has such a callback."""
    done = python(
        """
        import signal
        import gpu_shared.steady

        class Interrupt(Exception):
            pass

        def interrupt(*_):
            raise Interrupt

        lost = 0
        signal.signal(signal.SIGALRM, interrupt)
        for _ in range(30):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.01)
                list(zip(range(400_000)))  # many objects for the collector, and no Python code
                while signal.getitimer(signal.ITIMER_REAL)[0]:
                    pass
                lost += 1
            except Interrupt:
                pass
        print(lost, "lost")
        """
    )
    assert done.stdout == "0 lost\n", done.stdout + done.stderr


def test_every_close_is_outside_of_the_collector() -> None:
    public = [getattr(module, name) for module in (gpu_shared, vkep, vkep.generation) for name in module.__all__]
    classes = {one for one in public if isinstance(one, type)} | {Core, Method, Replicas, RenewedSession, SharedTensor}
    closes = {(kind.__name__, name): getattr(kind, name, None) for kind in classes for name in ("close", "release")}
    found = {name for name, method in closes.items() if method is not None}
    assert len(found) > 15
    assert {name for name in found if not hasattr(closes[name], "is_closing")} == set()
