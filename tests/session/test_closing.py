"""A context that the application closes takes no new users, and its present ones go on: with all that they first need then."""

from __future__ import annotations

import mmap
import queue
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gpu_shared import ClosedError, ContextNotFoundError, DeviceNotFoundError, SharedGpuContext
from gpu_shared.external import HOST_ALLOCATION, can_import_memory
from tests.session.models import ADD_RELU, DYNAMIC, model
from tools.waiting import LONG_S
from vkep import InferenceSession
from vkep.generation import Generator
from vkep.models.language import write_language

Alive = Callable[[], dict[str, int]]
X = np.array([[1, -2, 3], [4, 5, -6]], np.float32)
B = np.array([1, 1, 1], np.float32)
LOOP = model(
    """g (float[2,3] x, int64 n, float[3] b) => (float[2,3] y) {
      y = Loop (n, , x) <body = l (int64 k, bool c, float[2,3] a) => (bool on, float[2,3] r) {
        on = Identity(c) s = Add(a, b) t = NonZero(s) m = ReduceSum(t) f = CastLike(m, s) r = Add(s, f) }> }"""
)


def bound(session: InferenceSession, **how: Any) -> None:
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_cpu_input("b", B)
    binding.bind_output("y", **how)
    session.run_with_iobinding(binding)
    binding.copy_outputs_to_cpu()


def imported(session: InferenceSession) -> None:
    if not can_import_memory(session.context.device, HOST_ALLOCATION):
        pytest.skip("the driver imports no host memory")
    with session.import_memory(np.frombuffer(mmap.mmap(-1, 1 << 21), np.float32)) as memory:
        memory.tensor((4, 2)).close()


def exported(session: InferenceSession) -> None:
    with session.export_memory(1 << 20) as memory:
        memory.tensor((4, 2)).close()


def of_other_sizes(session: InferenceSession) -> None:
    for size in (2, 300, 5000):
        session.run(None, {"x": np.ones((size, 64), np.float32), "b": np.ones(64, np.float32)})


def later(session: InferenceSession) -> None:
    results: queue.Queue[Any] = queue.Queue()
    session.run_async(None, {"x": X, "b": B}, lambda outputs, _, error: results.put((outputs, error)), None)
    outputs, error = results.get(timeout=LONG_S)
    assert outputs and not error


#: what a user of a context may first do once it is closed
FIRST: dict[str, tuple[Any, Callable[[InferenceSession], Any]]] = {
    "a run": (ADD_RELU, lambda s: s.run(None, {"x": X, "b": B})),
    "a plan for each size": (DYNAMIC, of_other_sizes),
    "a loop on the host": (LOOP, lambda s: s.run(None, {"x": X, "b": B, "n": np.array(3)})),
    "an output on the device": (ADD_RELU, bound),
    "an output for the host": (ADD_RELU, lambda s: bound(s, device="cpu")),
    "a tensor": (ADD_RELU, lambda s: s.device_tensor(X).numpy()),
    "an empty tensor": (ADD_RELU, lambda s: s.empty_device_tensor((9,))),
    "a tensor that the host sees": (ADD_RELU, lambda s: s.empty_device_tensor((9,), host_visible=True)),
    "a large tensor": (ADD_RELU, lambda s: s.device_tensor(np.zeros(40 << 20, np.uint8)).numpy()),
    "memory of the host": (ADD_RELU, imported),
    "memory for others": (ADD_RELU, exported),
    "a run in another thread": (ADD_RELU, later),
    "a profile": (ADD_RELU, lambda s: s.profile({"x": X, "b": B})),
    "a page": (ADD_RELU, lambda s: s.view({"x": X, "b": B}, 1)),
    "reports": (ADD_RELU, lambda s: (s.report(), s.memory())),
    "a session of its own": (ADD_RELU, lambda s: InferenceSession(DYNAMIC, context=s.lease).close()),
}


@pytest.mark.usefixtures("collected")
@pytest.mark.parametrize("what", FIRST)
def test_a_session_goes_on(vulkan: object, no_leak: Alive, what: str) -> None:
    proto, use = FIRST[what]
    session = InferenceSession(proto, token="closing", save_plans=False)
    context = session.context
    context.close()
    assert not context.is_valid and not context.closed
    use(session)
    session.close()
    del session
    assert no_leak() == {} and context.closed


@pytest.mark.usefixtures("collected")
def test_new_users_are_refused(vulkan: object) -> None:
    with InferenceSession(ADD_RELU, token="closing") as session:
        context = session.context
        context.close()
        for new in (
            lambda: InferenceSession(ADD_RELU, context=context),
            lambda: context.lease("new"),
            lambda: context.shared_resource("new", object),
            context.__enter__,
        ):
            with pytest.raises(ClosedError):
                new()
        with pytest.raises(ContextNotFoundError):
            InferenceSession(ADD_RELU, token="closing", context_mode="lookup_only")
        with InferenceSession(ADD_RELU, token="closing") as other:
            assert other.context is not context, "a context of the same key is a new one"
        lease = session.lease
    for past in (lambda: lease.lease("late"), lambda: lease.shared_resource("late", object)):
        with pytest.raises(ClosedError):
            past()


def test_further_leases_defer_the_end(vulkan: object, no_leak: Alive) -> None:
    context = SharedGpuContext.create()
    first = context.lease("first", "none")
    context.close()
    second, resource = first.lease("second"), first.shared_resource("x", object)
    assert second.sync_mode == "none"
    first.close()
    third = second.lease("third", "timeline")
    second.close()
    assert context.users == ("resource 'x'", "lease 'third'")
    resource.release()
    third.wait(third.submit(third.prepare([third.allocate().begin().end()])))
    assert no_leak()["device"] == 1
    third.close()
    assert no_leak() == {}


@pytest.mark.usefixtures("collected")
def test_a_generator_samples(vulkan: object, tmp_path: Any) -> None:
    """The kernel that chooses a token is a session of its own, opened for the first answer that needs it; so are the copies
    of a cache that grows."""
    folder = tmp_path / "gpt2"
    write_language(folder, "gpt2", context=96, layers=1)
    with Generator(folder, token="closing generator") as generator:
        generator._batch._decoder.session.context.close()
        answer = generator.generate([1, 2, 3], max_tokens=40, temperature=0.8, seed=1, ignore_end=True)
        assert len(answer.tokens) == 40


def test_options_that_a_context_does_not_have(vulkan: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A second user's options are honoured, refused, or warned about."""
    with InferenceSession(ADD_RELU, token="second user", validation=False) as first:
        with InferenceSession(ADD_RELU, token="second user", sync_mode="queue_wait_idle", validation=True) as second:
            assert second.context is first.context and second.lease.sync_mode == "queue_wait_idle"
        assert "created without the layers" in caplog.text
        with pytest.raises(DeviceNotFoundError):
            InferenceSession(ADD_RELU, context=first.context, device="no such device")
        InferenceSession(ADD_RELU, context=first.lease, device=first.context.capabilities.uuid).close()
