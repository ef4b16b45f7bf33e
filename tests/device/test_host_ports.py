"""What a run copies between the host and a device whose memory the host does not see."""

import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import onnx
import onnx.parser
import pytest

import vkep
from gpu_shared.memory import Buffer
from tests.calls import noted
from vkep.device import recorded, run_commands
from vkep.device.arguments import ArgumentTable
from vkep.device.delegate import VulkanDelegate
from vkep.device.host_ports import DIRECT_BYTES, HostPorts
from vkep.device.run_commands import Buffers
from vkep.memory.staging_ring import StagingArena

Array = np.ndarray[Any, Any]
MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
agraph (float[N] large, float[4] small) => (float[N] moved, float[4] doubled) {
    sum = ReduceSum <keepdims = 1> (large)
    moved = Add (large, large)
    doubled = Add (small, sum)
}
"""


@pytest.fixture
def session() -> Iterator[vkep.InferenceSession]:
    """A session that stages what the host binds."""
    with (
        mock.patch.object(VulkanDelegate, "unified", mock.PropertyMock(return_value=False)),
        vkep.InferenceSession(onnx.parser.parse_model(MODEL).SerializeToString(), fallback="error") as made,
    ):
        yield made


def copied(session: vkep.InferenceSession) -> list[int]:
    """The bytes that each prepared submit copies."""
    [recording] = [r for island in session.islands() for r in island.runner.recordings]
    return [sum(n for spans in (key.up, key.down) for _, n in spans) for key in recording._commands._submits]


def bound(session: vkep.InferenceSession, large: vkep.DeviceTensor, small: Array) -> Array:
    binding = session.io_binding()
    binding.bind_input("large", large)
    binding.bind_cpu_input("small", small)
    binding.bind_output("moved", session.empty_device_tensor(large.shape, "float32"))
    binding.bind_output("doubled", device="cpu")
    session.run_with_iobinding(binding)
    doubled = binding.results[1]
    assert isinstance(doubled, np.ndarray)
    return doubled


def test_tensors_on_the_device_are_not_copied(session: vkep.InferenceSession) -> None:
    large, small = np.ones(1 << 18, np.float32), np.arange(4, dtype=np.float32)
    there = session.device_tensor(large)
    for _ in range(2):
        np.testing.assert_array_equal(bound(session, there, small), small + (1 << 18))
    assert max(copied(session)) <= 64


def submitted(session: vkep.InferenceSession) -> list[Buffers]:
    """The command buffers of each prepared submit."""
    [recording] = [r for island in session.islands() for r in island.runner.recordings]
    return [key.run._replace(table=None) for key in recording._commands._submits]


@pytest.mark.parametrize("has_direct", [True, False])
def test_few_bytes_are_accessed_in_place(
    session: vkep.InferenceSession, monkeypatch: pytest.MonkeyPatch, has_direct: bool
) -> None:
    monkeypatch.setattr(recorded, "has_direct", lambda device: has_direct)
    small = np.arange(4, dtype=np.float32)
    for _ in range(2):
        for scale in (1, 2, 3):
            large = np.full(64, scale, np.float32)
            moved, doubled = session.run(None, {"large": large, "small": small})
            np.testing.assert_array_equal(moved, 2 * large)
            np.testing.assert_array_equal(doubled, small + 64 * scale)
    assert set(submitted(session)) == {Buffers(up=not has_direct, visible=True)}


def test_memory_that_the_host_may_write_is_exhausted(
    session: vkep.InferenceSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device's window for the host may be small: what does not fit is copied."""
    alloc = StagingArena.alloc

    def refuse(arena: StagingArena, nbytes: Any, *given: Any) -> Any:
        if arena.memory_kind == "direct":
            raise vkep.ArenaOutOfMemory(
                "it", asked=nbytes, in_use=0, allocated=0, limit=1, largest_free=0, reason="a test"
            )
        return alloc(arena, nbytes, *given)

    monkeypatch.setattr(recorded, "has_direct", lambda device: True)
    monkeypatch.setattr(StagingArena, "alloc", refuse)
    large, small = np.ones(4, np.float32), np.arange(4, dtype=np.float32)
    moved, doubled = session.run(None, {"large": large, "small": small})
    np.testing.assert_array_equal(moved, 2 * large)
    np.testing.assert_array_equal(doubled, small + 4)
    assert submitted(session) == [Buffers(up=True, visible=True)]


@pytest.mark.parametrize("count", [4, DIRECT_BYTES])
def test_memory_that_is_not_coherent(
    session: vkep.InferenceSession, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """It is made visible to the host after each run, before its results are read."""
    monkeypatch.setattr(Buffer, "coherent", property(lambda buffer: buffer.memory_kind != "download"))
    made = noted(monkeypatch, Buffer, "invalidate", lambda buffer: buffer.memory_kind)
    read = noted(monkeypatch, HostPorts, "result", lambda *_: len(made))
    for scale in (1, 2, 3):
        large, small = np.full(count, scale, np.float32), np.arange(4, dtype=np.float32)
        moved, doubled = session.run(None, {"large": large, "small": small})
        np.testing.assert_array_equal(moved, 2 * large)
        np.testing.assert_array_equal(doubled, small + scale * count)
    assert made == ["download"] * 3 and read == [1, 1, 2, 2, 3, 3]


def test_many_bytes_are_copied(session: vkep.InferenceSession) -> None:
    large, small = np.ones(DIRECT_BYTES // 4, np.float32), np.arange(4, dtype=np.float32)
    moved, doubled = session.run(None, {"large": large, "small": small})
    np.testing.assert_array_equal(moved, 2 * large)
    np.testing.assert_array_equal(doubled, small + large.size)
    assert submitted(session) == [Buffers(up=True, down=True)]


def test_results_that_the_plan_reads_are_copied(session: vkep.InferenceSession) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    agraph (float[8, 16] x, float[16, 4] a, float[4, 4] b) => (float[8, 4] y, float[8, 4] z) {
        y = MatMul (x, a)  z = MatMul (y, b)
    }
    """
    x, a, b = (np.full(shape, 0.5, np.float32) for shape in ((8, 16), (16, 4), (4, 4)))
    with vkep.InferenceSession(onnx.parser.parse_model(text).SerializeToString(), fallback="error") as made:
        y, z = made.run(None, {"x": x, "a": a, "b": b})
        np.testing.assert_array_equal(y, x @ a)
        np.testing.assert_array_equal(z, x @ a @ b)
        assert submitted(made) == [Buffers(down=True)]


def test_a_run_may_bind_more_to_the_host_than_the_one_before(session: vkep.InferenceSession) -> None:
    large, small = np.ones(1 << 18, np.float32), np.arange(4, dtype=np.float32)
    there = session.device_tensor(large)
    for _ in range(2):  # what the first pass makes serves the second
        np.testing.assert_array_equal(bound(session, there, small), small + (1 << 18))
        moved, doubled = session.run(None, {"large": 3 * large, "small": small})
        np.testing.assert_array_equal(moved, 6 * large)
        np.testing.assert_array_equal(doubled, small + 3 * (1 << 18))
    assert min(copied(session)) <= 64 < large.nbytes < max(copied(session))


def test_the_host_memory_of_a_size_that_grows(session: vkep.InferenceSession) -> None:
    small = np.arange(4, dtype=np.float32)
    for size in (1 << 10, 1 << 12, 1 << 15, 1 << 11):
        large = np.arange(size, dtype=np.float32)
        moved, doubled = session.run(None, {"large": large, "small": small})
        np.testing.assert_array_equal(moved, 2 * large)
        np.testing.assert_allclose(doubled, small + large.sum(), rtol=1e-5)
        there = session.device_tensor(large)
        np.testing.assert_allclose(bound(session, there, small), small + large.sum(), rtol=1e-5)


def test_ports_of_one_shape_and_several_types_are_read_as_their_own(session: vkep.InferenceSession) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    agraph (float[N] x, int32[N] n, float[M] z) => (float[N] y, int32[N] m, float[M] w) {
        y = Add (x, x)  m = Add (n, n)  w = Add (z, z)
    }
    """
    with vkep.InferenceSession(onnx.parser.parse_model(text).SerializeToString()) as made:
        for x, z in ((5, 9), (7, 9), (6, 4), (6, 3), (2, 3), (40, 3), (40, 90), (3, 90), (3, 2)):
            values = np.arange(x, dtype=np.float32) + 0.5, np.arange(x, dtype=np.int32), np.arange(z, dtype=np.float32)
            for result, value in zip(made.run(None, dict(zip("xnz", values, strict=True))), values, strict=True):
                np.testing.assert_array_equal(result, 2 * value)
                assert result.dtype == value.dtype


def test_copies_of_many_sizes_are_not_all_kept(session: vkep.InferenceSession) -> None:
    small = np.arange(4, dtype=np.float32)
    with mock.patch.object(run_commands, "_COPIES", 4):
        for power in (14, 10, 11, 12, 13, 10, 14):
            large = np.full(1 << power, power, np.float32)
            moved, doubled = session.run(None, {"large": large, "small": small})
            np.testing.assert_array_equal(moved, 2 * large)
            np.testing.assert_allclose(doubled, small + large.sum())
            kept = [len(r._commands._copies) for island in session.islands() for r in island.runner.recordings]
            assert max(kept) <= 4


def test_sizes_that_were_prepared_while_the_device_worked(session: vkep.InferenceSession) -> None:
    """Sizes that go on growing, those that were predicted and did not come, and those that come again."""
    small, prepared = np.arange(4, dtype=np.float32), 0
    sizes = [40, 50, 60, 70, 80, 90, 90, 110, 130, 150, 20, 170, 150, 130, 110, 90, 91, 92, 93, 94, 94, 95, 40]
    for size in sizes:
        tables = [r._table for island in session.islands() for r in island.runner.recordings]
        shapes = [[port.shape for port in i.numbers.ports.values()] for t in tables for i in t._images if i.numbers]
        prepared += [(size,), (size,)] in shapes
        large = np.arange(size, dtype=np.float32) + size
        moved, doubled = session.run(None, {"large": large, "small": small})
        np.testing.assert_array_equal(moved, 2 * large)
        np.testing.assert_allclose(doubled, small + large.sum())
    assert prepared >= 10


def test_a_result_in_memory_of_the_host_is_read_without_a_copy(session: vkep.InferenceSession) -> None:
    large, small = np.ones(1 << 10, np.float32), np.arange(4, dtype=np.float32)
    binding = session.io_binding()
    binding.bind_input("large", session.device_tensor(large))
    binding.bind_input("small", session.device_tensor(small))
    binding.bind_output("moved", session.empty_device_tensor(large.shape, "float32"))
    read = session.empty_device_tensor((4,), "float32", host_visible=True)
    binding.bind_output("doubled", read)
    for _ in range(3):
        session.run_with_iobinding(binding)
        np.testing.assert_array_equal(read.host_view(), small + (1 << 10))
    assert read.in_host_memory and max(copied(session)) == 0


def test_an_interrupt_between_two_steps_of_setting_sizes(vulkan: Any) -> None:
    """The run of the same sizes after it has them: in the table, in the addresses of slots, in the ranges of copies."""
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    agraph (float[N] x) => (float[N] y, float[4] end)
    <int64[1] from = {-4}, int64[1] to = {9223372036854775807}> { y = Add (x, x)  end = Slice (x, from, to) }
    """
    codes = {f.__code__ for f in (ArgumentTable.set, ArgumentTable._fill, HostPorts.fit)}

    def interrupted_at(step: int) -> bool:
        """Run with an interrupt at this bytecode of the functions; returns whether there are as many."""
        left = step

        def within(frame: Any, event: str, _: Any) -> Any:
            nonlocal left
            if frame.f_code not in codes:
                return None
            frame.f_trace_opcodes = True
            if event == "opcode":
                left -= 1
                if left < 0:
                    raise KeyboardInterrupt
            return within

        sys._getframe().f_trace_opcodes = (
            True  # before: CPython 3.12 has opcode events only where a frame asked for them
        )
        sys.settrace(within)
        try:
            session.run(None, {"x": large})
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(None)
        return False

    large, small = (np.arange(size, dtype=np.float32) for size in (1 << 13, 1 << 11))
    with (
        mock.patch.object(VulkanDelegate, "unified", mock.PropertyMock(return_value=False)),
        vkep.InferenceSession(onnx.parser.parse_model(text).SerializeToString(), fallback="error") as session,
    ):
        for x in (large[:16], large, small, large):  # the first size has a plan of its own
            session.run(None, {"x": x})
        step, more = 0, True
        while more:
            session.run(None, {"x": small})
            more = interrupted_at(step)
            step += 1
            large += 1  # what earlier runs copied is wrong
            y, end = session.run(None, {"x": large})
            np.testing.assert_array_equal(y, 2 * large, err_msg=f"at step {step}")
            np.testing.assert_array_equal(end, large[-4:], err_msg=f"at step {step}")
    assert step > 50
