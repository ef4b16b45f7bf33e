"""Plans on a device: what a runner holds, and what a recording does from run to run."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.numpy_helper
import pytest

from gpu_shared.errors import OutOfHostMemoryError
from tests.calls import noted
from tests.session.models import ADD_RELU, DYNAMIC, MATMUL, model
from tools.fuzz.guard import record_again
from vkep import InferenceSession, SharedGpuContext
from vkep.device.bound import Bound
from vkep.device.recorded import RecordedPlan
from vkep.kernels.attention import split as attention_split
from vkep.memory import upload

X = np.array([[1, -2, 3], [4, 5, -6]], np.float32)
B = np.array([1, 1, 1], np.float32)


@pytest.fixture
def session(own_context: SharedGpuContext) -> Any:
    with InferenceSession(ADD_RELU, context=own_context) as made:
        yield made


def test_a_run_is_recorded_once(session: InferenceSession, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = noted(monkeypatch, RecordedPlan, "_record", lambda plan, label, *more: label)
    for _ in range(5):
        session.run(None, {"x": X, "b": B})
    with session.device_tensor(X) as x:
        session.run(None, {"x": x, "b": B})
    assert recorded == ["main"], "new buffers need no new recording"


def test_memory_goes_back_to_the_arena(session: InferenceSession) -> None:
    session.run(None, {"x": X, "b": B})
    arena = session._parts.delegate.arena
    before = arena.stats.bytes_in_use
    with InferenceSession(DYNAMIC, context=session.context) as other:
        for rows in (2, 100, 5):
            other.run(None, {"x": np.ones((rows, 3), np.float32), "b": B})
        assert arena.stats.bytes_in_use > before
    assert arena.stats.bytes_in_use == before
    tensor = session.device_tensor(X)
    assert arena.stats.bytes_in_use > before
    tensor.close()
    assert arena.stats.bytes_in_use == before


def test_a_profile_has_a_time_for_each_dispatch(own_context: SharedGpuContext, rng: np.random.Generator) -> None:
    with InferenceSession(MATMUL, context=own_context) as session:
        feeds = {"x": rng.standard_normal((8, 16), np.float32), "w": rng.standard_normal((16, 4), np.float32)}
        [times] = session.profile(feeds)
        [island] = session.islands()
        assert len(times) == len(island.plan.dispatches) and all(t >= 0 for t in times)
        np.testing.assert_allclose(session.run(None, feeds)[0], feeds["x"] @ feeds["w"], rtol=1e-4, atol=1e-5)


def test_weights_are_shared_and_counted(own_context: SharedGpuContext) -> None:
    proto = model("g (float[4] x) => (float[4] y) { c = Constant<value = float[4] {1, 2, 3, 4}>() y = Add(x, c) }")
    with InferenceSession(proto, context=own_context) as one:
        store = one._parts.delegate.constants
        assert list(store.resident.values()) == [16]
        with InferenceSession(proto, context=own_context):
            assert list(store.resident.values()) == [16]
            [entry] = store._entries.values()
            assert entry.users == 2
        assert list(store.resident.values()) == [16]
        one._parts.graph.close()
        assert store.resident == {}


def test_a_folded_weight_is_uploaded_in_parts(
    own_context: SharedGpuContext, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload, "READ_BYTES", 4096)
    proto = model("g (float[2] x) => (float[3001, 2] y) { c = Add(a, b) y = Add(x, c) }")
    a, b = rng.standard_normal((2, 3001, 2), np.float32)
    proto.graph.initializer.extend([onnx.numpy_helper.from_array(a, "a"), onnx.numpy_helper.from_array(b, "b")])
    with InferenceSession(proto, context=own_context) as session:
        [island] = session.islands()
        assert len(island.plan.dispatches) == 1 and [c.nbytes for c in island.plan.constants] == [a.nbytes]
        np.testing.assert_array_equal(session.run(None, {"x": X[0, :2]})[0], X[0, :2] + (a + b))


def test_arguments_beyond_128_bytes_lie_in_memory(own_context: SharedGpuContext, rng: np.random.Generator) -> None:
    """Many operands of many strides: the block does not fit into push constants."""
    names = [f"x{i}" for i in range(8)]
    inputs = ", ".join(f"float[2,{3 if i % 2 else 1},4,{1 if i % 3 else 5}] {n}" for i, n in enumerate(names))
    adds = " ".join(f"s{i + 1} = Mul({'x0' if i == 0 else f's{i}'}, x{i + 1})" for i in range(7))
    proto = model(f"g ({inputs}) => (float[2,3,4,5] y) {{ {adds} y = Neg(s7) }}")
    with InferenceSession(proto, context=own_context) as session:
        [island] = session.islands()
        assert any(p.arguments_in_memory for p in island.plan.pipelines)
        for _ in range(2):
            feeds = {
                n: rng.standard_normal((2, 3 if i % 2 else 1, 4, 1 if i % 3 else 5), np.float32)
                for i, n in enumerate(names)
            }
            expected = -np.prod(np.broadcast_arrays(*feeds.values()), axis=0)
            np.testing.assert_allclose(session.run(None, feeds)[0], expected, rtol=1e-4, atol=1e-6)


def test_after_a_submit_that_failed_addresses_are_sent_again(
    session: InferenceSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device never got those of the run that failed, or no longer has those of the run before it."""
    [island] = session.islands()
    with session.device_tensor(X) as x, session.device_tensor(B) as b:
        outputs = [session.empty_device_tensor((2, 3)) for _ in range(2)]
        ports = {"x": x.address, "b": b.address}
        addresses = [[ports.get(p.name, y.address) for p in island.plan.ports] for y in outputs]
        island.runner.run(Bound(addresses[0]))
        with monkeypatch.context() as patch:
            patch.setattr(session._parts.delegate.lease, "submit", _no_memory)
            with pytest.raises(OutOfHostMemoryError):
                island.runner.run(Bound(addresses[1]))
        for y, where in zip(outputs, addresses, strict=True):
            y.write(np.zeros((2, 3), np.float32))
            island.runner.run(Bound(where))
            session._parts.delegate.lease.wait()  # the tensor does not know of a run that was given its address
            np.testing.assert_array_equal(y.numpy(), np.maximum(X + B, 0))
        for y in outputs:
            y.close()


def test_no_submit_outlives_its_command_buffers(session: InferenceSession) -> None:
    """A recording whose commands are replaced (the guard pages of `tools.fuzz` do that) submits the new ones."""
    [island] = session.islands()
    with session.device_tensor(X) as x, session.device_tensor(B) as b, session.empty_device_tensor((2, 3)) as y:
        addresses = [{"x": x.address, "b": b.address}.get(p.name, y.address) for p in island.plan.ports]

        def run() -> None:
            island.runner.run(Bound(addresses))
            session._parts.delegate.lease.wait()

        for _ in range(3):  # repeated, so that its submit is kept
            run()
        [recorded] = island.runner.recordings
        record_again(recorded)
        y.write(np.zeros((2, 3), np.float32))
        run()
        np.testing.assert_array_equal(y.numpy(), np.maximum(X + B, 0))


def _no_memory(*_: object) -> int:
    raise OutOfHostMemoryError("vkQueueSubmit")


def test_memory_of_a_lost_run_does_not_count(
    own_context: SharedGpuContext, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attention of few queries counts the workgroups that have arrived, from zero in each run."""
    monkeypatch.setattr(attention_split, "is_cpu", lambda caps: False)
    keys = "float[1,2,600,8]"
    proto = model(
        f"g (float[1,2,1,8] q, {keys} k, {keys} v) => (float[1,2,1,8] y) {{ y = Attention(q, k, v) }}", opset=24
    )
    with InferenceSession(proto, context=own_context) as session:
        feeds = {n: rng.standard_normal((1, 2, 1 if n == "q" else 600, 8), np.float32) for n in "qkv"}
        before = session.run(None, feeds)[0]
        session.run(None, {**feeds, "v": -feeds["v"]})  # so that the memory of the results differs
        [island] = session.islands()
        assert island.plan.dispatches[0].label == "counters"
        for block in [block for room in island.runner._rooms if room.slab for block in room.slab.blocks]:
            session._parts.delegate.uploader.upload(block, b"\xff" * block.size)
        np.testing.assert_array_equal(session.run(None, feeds)[0], before)
