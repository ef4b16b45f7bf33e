"""Sessions, tensors and contexts end in any order, by any way, and nothing is left."""

from __future__ import annotations

import gc
import itertools
import os
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpu_shared import lifetime, steady
from gpu_shared.steady import on_end, settle
from tests.processes import python
from tests.session.models import ADD_RELU, CPU_MIDDLE, DYNAMIC, model
from tools.fuzz.exits import ENDS, WORK, wrong_end
from tools.waiting import LONG_S, comes_true
from vkep import InferenceSession, InvalidModelError, SharedGpuContext
from vkep.memory import ArenaOutOfMemory
from vkep.models.language import write_language
from vkep.sizes import Trace

Alive = Callable[[], dict[str, int]]
X = np.array([[1, -2, 3], [4, 5, -6]], np.float32)
B = np.array([1, 1, 1], np.float32)
FEEDS = {"x": X, "b": B}
DEFERRED = model("g (float[n] x) => (float[m] y) { i = NonZero(x) t = Transpose(i) y = GatherND(x, t) }")


@pytest.mark.parametrize("order", list(itertools.permutations(range(5)))[::5], ids=lambda o: "".join(map(str, o)))
def test_closed_in_every_order(vulkan: object, no_leak: Alive, order: tuple[int, ...]) -> None:
    """Three sessions and two tensors on one context that only they hold."""
    a = InferenceSession(ADD_RELU, token="orders")
    b = InferenceSession(DYNAMIC, token="orders")
    c = InferenceSession(ADD_RELU, token="orders")
    tensors = a.device_tensor(X), b.empty_device_tensor((2, 3))
    binding = c.io_binding()
    binding.bind_input("x", tensors[0])
    binding.bind_cpu_input("b", B)
    binding.bind_output("y", tensors[1])
    c.run_with_iobinding(binding)
    b.run(None, FEEDS)
    things: list[Any] = [a, b, c, *tensors]
    del binding
    for index in order:
        things[index].close()
        if index != 2 and not {2, 3} & set(order[: order.index(index) + 1]):
            assert c.run(None, {"x": tensors[0], "b": B})[0].shape == (2, 3), "the others go on"
    assert no_leak() == {}, "the context went with its last user, and was not waited for"


@pytest.mark.usefixtures("collected")
def test_a_context_of_one_session_is_gone_when_it_is_closed(vulkan: object) -> None:
    """Not soon after: the validation layers of many systems may crash where another thread destroys a device meanwhile."""
    before = lifetime.live()
    for _ in range(20):
        with InferenceSession(ADD_RELU) as session:
            session.run(None, FEEDS)
            assert lifetime.live() > before
        assert lifetime.live() == before
        with pytest.raises(InvalidModelError):
            InferenceSession(b"no model")
        assert lifetime.live() == before


def test_close_does_not_wait_for_long(vulkan: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller may hold a lock that the finalizer of another object needs."""
    may_end, ended = threading.Event(), list[bool]()
    monkeypatch.setattr(steady, "PATIENCE", 0.01)
    session = InferenceSession(ADD_RELU)

    class Owner:
        """Anything with a finalizer."""

    owner = Owner()
    on_end(owner, lambda: ended.append(may_end.wait(LONG_S)))
    del owner
    session.close()
    assert ended == []
    may_end.set()
    settle()
    assert ended == [True]


def test_caches_keep_no_sizes_of_a_session(vulkan: object) -> None:
    def traces() -> int:
        gc.collect()
        return sum(isinstance(thing, Trace) for thing in gc.get_objects())

    before = traces()
    with InferenceSession(DYNAMIC, save_plans=False) as session:
        for rows in (2, 3, 5):
            x = np.ones((rows, 3), np.float32)
            assert np.array_equal(session.run(None, {"x": x, "b": B})[0], -x * B)
    assert traces() <= before


@pytest.mark.parametrize(
    "proto", [ADD_RELU, DYNAMIC, CPU_MIDDLE, DEFERRED], ids=["static", "dynamic", "cpu", "deferred"]
)
def test_dropped_without_close(vulkan: object, no_leak: Alive, proto: Any) -> None:
    session = InferenceSession(proto, token="dropped")
    feeds = {"x": np.array([1, 0, 2], np.float32)} if proto is DEFERRED else FEEDS
    session.run(None, {"x": np.ones((2, 3, 3), np.float32)} if proto is CPU_MIDDLE else feeds)
    watch = weakref.ref(session)
    del session
    assert watch() is None, "a session is no part of a reference cycle"
    assert no_leak() == {}


def test_dropped_in_a_cycle(vulkan: object, no_leak: Alive) -> None:
    session = InferenceSession(ADD_RELU, token="cycle")
    tensor = session.device_tensor(X)
    session.run(None, {"x": tensor, "b": B})
    vars(session)["cycle"] = (session, tensor)
    del session, tensor
    gc.collect()
    # a thread ends what the collector found: it may have interrupted code that holds locks
    assert comes_true(lambda: no_leak() == {}), no_leak()


def test_a_collection_inside_a_locked_section(own_context: SharedGpuContext) -> None:
    """The collector may find a session or a tensor while its own thread holds the arena's and the store's locks."""
    with InferenceSession(ADD_RELU, context=own_context) as session:
        garbage = InferenceSession(ADD_RELU, context=own_context)
        garbage.run(None, FEEDS)
        cycle: list[Any] = [garbage, garbage.device_tensor(X)]
        cycle.append(cycle)
        watch = weakref.ref(garbage)
        delegate, users = session._parts.delegate, own_context.users
        with delegate.arena._bfc._lock, delegate.constants._lock:
            del garbage, cycle
            gc.collect()
            assert watch() is None
        assert len(own_context.users) < len(users)
        np.testing.assert_array_equal(session.run(None, FEEDS)[0], np.maximum(X + B, 0))


def test_a_bound_result_outlives_binding_and_session(vulkan: object, no_leak: Alive) -> None:
    session = InferenceSession(ADD_RELU, token="outlives")
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_cpu_input("b", B)
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    [result] = binding.get_outputs()
    session.close()
    del binding, session
    assert no_leak()["device"] == 1
    del result
    assert no_leak() == {}


def test_an_error_in_a_run_leaves_the_session_usable(own_context: SharedGpuContext, monkeypatch: Any) -> None:
    from vkep.device.recorded import RecordedPlan

    with InferenceSession(ADD_RELU, context=own_context, concurrency=1) as session:
        real = RecordedPlan.stage
        monkeypatch.setattr(RecordedPlan, "stage", lambda *a: (_ for _ in ()).throw(RuntimeError("in the run")))
        for _ in range(3):
            with pytest.raises(RuntimeError, match="in the run"):
                session.run(None, FEEDS)
        monkeypatch.setattr(RecordedPlan, "stage", real)
        np.testing.assert_array_equal(session.run(None, FEEDS)[0], np.maximum(X + B, 0))


def test_an_error_while_opening_leaves_nothing(vulkan: object, no_leak: Alive, monkeypatch: Any) -> None:
    from vkep.device.constants import ConstantStore

    def fail(*args: Any) -> None:
        raise RuntimeError("no upload")

    monkeypatch.setattr(ConstantStore, "_upload", fail)
    proto = model("g (float[2] x) => (float[2] y) { c = Constant<value_floats=[1.0, 2.0]>() y = Add(x, c) }")
    with pytest.raises(RuntimeError, match="no upload"):
        InferenceSession(proto, token="opening")
    gc.collect()
    assert no_leak() == {}


def test_many_sessions_leave_no_trace(vulkan: object) -> None:
    """In a process of its own: the memory of a test worker changes by what its earlier tests left to other threads."""
    if not Path("/proc/self/status").exists():
        pytest.skip("no /proc/self/status")
    done = python(
        """
        import gc
        import numpy as np
        import gpu_shared
        from tests.growth import growth
        from tests.session.models import ADD_RELU, TWO_OUTPUTS
        from vkep import InferenceSession
        add = {"x": np.ones((2, 3), np.float32), "b": np.ones(3, np.float32)}
        work = [(ADD_RELU, add), (TWO_OUTPUTS, {"x": np.ones(4, np.float32)})]
        def turn(count):
            for i in range(count):
                proto, feeds = work[i % 2]
                with InferenceSession(proto, context=first.context) as session:
                    session.run(None, feeds)
        with InferenceSession(ADD_RELU) as first, InferenceSession(TWO_OUTPUTS, context=first.context):
            turn(2)
            gc.collect()
            before = gpu_shared.live_counts()
            print(growth(lambda: turn(30)))
            gc.collect()
            assert gpu_shared.live_counts() == before != {}
        assert gpu_shared.live_counts() == {}
        """
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 0.3  # MB for 30 sessions


# ---- memory


def test_out_of_memory_is_clear_and_leaves_all_usable(vulkan: object, no_leak: Alive) -> None:
    big = model("g (float[n] x) => (float[m] y) { a = Exp(x) b = Concat<axis=0>(a, x) y = Concat<axis=0>(b, b, b, a) }")
    with InferenceSession(ADD_RELU, context_mode="disabled", arena={"arena.max_mem": 32 << 20}) as small:
        context = small.context
        with InferenceSession(big, context=context) as session:
            for _ in range(2):
                with pytest.raises(ArenaOutOfMemory, match=r"(?s)arena\.max_mem|max_mem"):
                    session.run(None, {"x": np.zeros(8 << 20, np.float32)})
            np.testing.assert_array_equal(
                session.run(None, {"x": np.zeros(3, np.float32)})[0], [1, 1, 1, 0, 0, 0] * 3 + [1] * 3
            )
            np.testing.assert_array_equal(small.run(None, FEEDS)[0], np.maximum(X + B, 0))
            with pytest.raises(ArenaOutOfMemory):
                small.empty_device_tensor((64 << 20,))
        np.testing.assert_array_equal(small.run(None, FEEDS)[0], np.maximum(X + B, 0))
        del context
    assert no_leak() == {}


def test_a_model_larger_than_memory(vulkan: object, no_leak: Alive, rng: np.random.Generator) -> None:
    from onnx import numpy_helper

    proto = model("g (float[2048] x) => (float[2048] y) { y = MatMul(x, w) }")
    proto.graph.initializer.append(numpy_helper.from_array(rng.standard_normal((2048, 2048), np.float32), "w"))
    with InferenceSession(ADD_RELU, context_mode="disabled", arena={"arena.max_mem": 8 << 20}) as small:
        with pytest.raises(ArenaOutOfMemory, match="16"):
            InferenceSession(proto, context=small.context)
        np.testing.assert_array_equal(small.run(None, FEEDS)[0], np.maximum(X + B, 0))
    assert no_leak() == {}


# ---- processes


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="no fork here")
def test_a_forked_child_gets_an_error_at_once(vulkan: object) -> None:
    done = python(
        """
        import os, warnings
        import numpy as np
        import vkep
        from tests.session.models import ADD_RELU
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of any fork beside threads, and drivers have some
        feeds = {"x": np.ones((2, 3), np.float32), "b": np.ones(3, np.float32)}
        session = vkep.InferenceSession(ADD_RELU)
        tensor = session.device_tensor(feeds["x"])
        session.run(None, feeds)
        child = os.fork()
        if child == 0:
            uses = [lambda: session.run(None, feeds), lambda: session.run(None, {**feeds, "x": tensor}), tensor.numpy,
                    lambda: session.device_tensor(feeds["x"])]
            for use in uses:
                try:
                    use()
                except vkep.ForkedProcessError:
                    continue
                os._exit(1)
            session.close()
            tensor.close()
            del session, tensor
            os._exit(0)  # sys.exit would run the driver's own exit handlers
        _, status = os.waitpid(child, 0)
        assert status == 0, status
        assert session.run(None, feeds)[0].shape == (2, 3)
        session.close()
        print("parent done")
        """
    )
    assert done.returncode == 0 and done.stdout.strip() == "parent done" and not done.stderr, done.stderr


@pytest.fixture(scope="module")
def language(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("language")
    write_language(folder, "gpt2", context=96, layers=1)
    return str(folder)


@pytest.mark.parametrize(
    ("what", "end"),
    [
        pytest.param(what, end, id=f"{'-'.join(what)}-{end}", marks=[] if end == usual else pytest.mark.nightly)
        for what, usual in zip((WORK[:2], WORK[2:4], WORK[4:]), itertools.cycle(ENDS), strict=False)
        for end in ENDS
    ],
)
def test_the_interpreter_ends_while_threads_are_at_work(
    vulkan: object, request: pytest.FixtureRequest, language: str, what: tuple[str, ...], end: str
) -> None:
    if "opens" in what:
        request.getfixturevalue("no_layers")
    assert wrong_end([*what, *what], 0.3, end, language) == ""


def test_an_error_by_the_first_step_of_the_exit_is_not_shown() -> None:
    """Thread pools take no work then, and the main thread is alive."""
    done = python(
        """
        import threading, time
        from concurrent.futures import ThreadPoolExecutor
        from gpu_shared.steady import run_steady
        pool = ThreadPoolExecutor(1)
        pool.submit(time.sleep, 1)  # the first step waits for it
        def late():
            while True:
                time.sleep(0.01)
                if threading._SHUTTING_DOWN:
                    pool.submit(int)
        threading.Thread(target=run_steady, args=(late,), daemon=True).start()
        """
    )
    assert done.returncode == 0 and not done.stderr, done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_waits_for_pipelines_that_are_compiled() -> None:
    done = python(
        """
        import os, threading, time, warnings
        import vkep
        from gpu_shared import steady
        from tests.session.models import ADD_RELU
        from vkep.device.pipelines import PipelineStore
        warnings.simplefilter("ignore", DeprecationWarning)
        build, inside, steady._FORK_PATIENCE = PipelineStore._build, threading.Event(), 300
        def late(self, job):
            inside.set()
            while not steady._gate.locked():
                time.sleep(0.01)
            return build(self, job)
        PipelineStore._build = late
        thread = threading.Thread(target=vkep.InferenceSession, args=(ADD_RELU,))
        thread.start()
        inside.wait()
        began = time.monotonic()
        child = os.fork()
        if not child:
            os._exit(0)
        os.waitpid(child, 0)
        thread.join()
        assert time.monotonic() - began < 200
        """
    )
    assert done.returncode == 0 and not done.stderr, done.stderr


def test_the_interpreter_ends_with_everything_open(vulkan: object) -> None:
    done = python(
        """
        import numpy as np
        import vkep
        from tests.session.models import ADD_RELU, DYNAMIC
        feeds = {"x": np.ones((2, 3), np.float32), "b": np.ones(3, np.float32)}
        sessions = [vkep.InferenceSession(m) for m in (ADD_RELU, DYNAMIC)]
        tensors = [s.device_tensor(feeds["x"]) for s in sessions]
        binding = sessions[0].io_binding()
        binding.bind_cpu_input("x", feeds["x"])
        binding.bind_cpu_input("b", feeds["b"])
        binding.bind_output("y")
        for _ in range(10):
            sessions[0].run_with_iobinding(binding)
        sessions[1].run(None, feeds)
        """
    )
    assert done.returncode == 0 and not done.stderr, done.stderr


def test_the_interpreter_ends_while_a_thread_is_about_to_record(vulkan: object) -> None:
    """It has the plan in use, which the end waits for: it must come to its own end."""
    done = python(
        """
        import threading, time
        import numpy as np
        import vkep
        from gpu_shared import steady
        from tests.session.models import ADD_RELU
        from vkep.device.runner import PlanRunner
        record, inside = PlanRunner._record, threading.Event()
        def late(self, *arguments):
            inside.set()
            while not steady._exiting:
                time.sleep(0.01)
            return record(self, *arguments)
        PlanRunner._record = late
        session = vkep.InferenceSession(ADD_RELU)
        feeds = {"x": np.ones((2, 3), np.float32), "b": np.ones(3, np.float32)}
        threading.Thread(target=session.run, args=(None, feeds), daemon=True).start()
        inside.wait()
        """
    )
    assert done.returncode == 0 and not done.stderr, done.stderr
