"""OrtValues in device memory: binding them, handing them on, copying them, and the allocators behind them."""

from __future__ import annotations

import gc
import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import pytest

from gpu_shared.lease import DelegateLease
from gpu_shared.steady import settle
from tests.calls import noted
from tests.ort.conftest import OpenSession, device_number, device_of, gpu_device, graph
from vkep.memory.upload import PIECE_BYTES
from vkep.ort.memory.transfers import Transfers

DOUBLE = graph("g (float[2,3] x) => (float[2,3] y) { y = Add(x, x) }")
SQUARE = graph("g (float[2,3] x) => (float[2,3] y) { y = Mul(x, x) }")
X = np.arange(6, dtype=np.float32).reshape(2, 3)
OnGpu = Callable[[np.ndarray[Any, Any]], Any]


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "uint8", "bool"])
def test_values_come_back_as_they_went(on_gpu: OnGpu, dtype: str) -> None:
    array = (np.arange(1000) % 2).astype(dtype).reshape(10, 100)
    value = on_gpu(array)
    assert value.device_name() != "cpu"
    np.testing.assert_array_equal(value.numpy(), array)
    value.update_inplace(array[::-1].copy())
    np.testing.assert_array_equal(value.numpy(), array[::-1])


def test_memory_stats_have_the_peak(registered: Any, on_gpu: OnGpu) -> None:
    held = on_gpu(X)  # keeps the arena
    before = registered.memory_stats()
    large = on_gpu(np.zeros(1 << 22, np.uint8))
    with_it = registered.memory_stats()
    assert with_it.bytes_in_use - before.bytes_in_use >= 1 << 22
    del large
    gc.collect()
    after = registered.memory_stats()
    assert after.max_bytes_in_use >= with_it.bytes_in_use and after.bytes_limit == 0 and held.numpy().any()


def test_an_empty_value(on_gpu: OnGpu) -> None:
    assert on_gpu(np.zeros((0, 4), np.float32)).numpy().shape == (0, 4)


def test_bound_inputs_and_outputs_are_not_copied(
    session: OpenSession, registered: Any, on_gpu: OnGpu, copies: list[str]
) -> None:
    made = session(DOUBLE)
    source, target = on_gpu(X), on_gpu(np.zeros_like(X))
    binding = made.io_binding()
    binding.bind_ortvalue_input("x", source)
    binding.bind_ortvalue_output("y", target)
    made.run_with_iobinding(binding)
    copies.clear()
    for _ in range(3):
        made.run_with_iobinding(binding)
    assert copies == []
    np.testing.assert_array_equal(target.numpy(), 2 * X)
    source.update_inplace(X * 10)
    made.run_with_iobinding(binding)
    np.testing.assert_array_equal(target.numpy(), 20 * X)


def test_copies_are_seen(session: OpenSession, copies: list[str]) -> None:
    session(DOUBLE).run(None, {"x": X})
    assert copies == ["upload", "download"]


@pytest.mark.usefixtures("staged")
def test_inputs_go_up_together_and_outputs_come_down_together(
    session: OpenSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three submits for a run with numpy feeds, however many there are, and the copies are not recorded again: blocks lie as
    they do from the second run on, whatever the arena looked like at the first.
    """
    count = 20
    inputs = ", ".join(f"float[{3 + n}] x{n}" for n in range(count))
    outputs = ", ".join(f"float[{3 + n}] y{n}" for n in range(count))
    made = session(graph(f"g ({inputs}) => ({outputs}) {{ {' '.join(f'y{n} = Exp(x{n})' for n in range(count))} }}"))
    submits = noted(monkeypatch, DelegateLease, "submit", lambda *_: 1)
    routes = noted(monkeypatch, Transfers, "_make", lambda route, *_: route.direction)
    gc.collect()
    settle()  # what an earlier test's session gives back between two runs would change where blocks lie
    for run in range(5):
        if run == 2:
            assert routes[:2] == ["upload", "download"]
            routes.clear()
        feeds = {f"x{n}": np.full(3 + n, n / count + run, np.float32) for n in range(count)}
        submits.clear()
        for n, y in enumerate(made.run(None, feeds)):
            np.testing.assert_allclose(y, np.exp(feeds[f"x{n}"]), rtol=1e-5)
        assert len(submits) == 3
    assert not routes


@pytest.mark.usefixtures("staged")
def test_more_than_a_piece_goes_up_and_comes_down(session: OpenSession) -> None:
    size = 3 * PIECE_BYTES // 8
    model = graph(
        f"g (float[{size}] a, float[{size}] b) => (float[{size}] y, float[{size}] z) {{ y = Neg(a) z = Abs(b) }}"
    )
    a = np.arange(size, dtype=np.float32)
    y, z = session(model).run(None, {"a": a, "b": -a})
    np.testing.assert_array_equal(y, -a)
    np.testing.assert_array_equal(z, a)


def test_an_output_that_onnxruntime_allocates(session: OpenSession, registered: Any, on_gpu: OnGpu) -> None:
    made = session(DOUBLE)
    binding = made.io_binding()
    binding.bind_ortvalue_input("x", on_gpu(X))
    binding._iobinding.bind_output("y", gpu_device(registered))
    made.run_with_iobinding(binding)
    result = binding.get_outputs()[0]
    assert result.device_name() != "cpu"
    np.testing.assert_array_equal(result.numpy(), 2 * X)


def test_a_host_input_and_a_host_output_around_device_memory(session: OpenSession, on_gpu: OnGpu) -> None:
    made = session(DOUBLE)
    binding = made.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_output("y")
    binding.synchronize_inputs()
    made.run_with_iobinding(binding)
    binding.synchronize_outputs()
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], 2 * X)


def test_a_chain_of_sessions_hands_a_tensor_over(session: OpenSession, on_gpu: OnGpu, copies: list[str]) -> None:
    first, second = session(DOUBLE), session(SQUARE)
    source, between, end = on_gpu(X), on_gpu(np.zeros_like(X)), on_gpu(np.zeros_like(X))
    bindings = []
    for made, (a, b) in ((first, (source, between)), (second, (between, end))):
        binding = made.io_binding()
        binding.bind_ortvalue_input("x", a)
        binding.bind_ortvalue_output("y", b)
        bindings.append((made, binding))
    copies.clear()
    for _ in range(20):
        for made, binding in bindings:
            made.run_with_iobinding(binding)
    assert copies == []
    np.testing.assert_array_equal(end.numpy(), (2 * X) ** 2)


def test_a_tensor_of_another_context_is_refused(session: OpenSession, on_gpu: OnGpu) -> None:
    made = session(DOUBLE, token="elsewhere")
    binding = made.io_binding()
    binding.bind_ortvalue_input("x", on_gpu(X))
    binding.bind_output("y")
    with pytest.raises(RuntimeError, match="lies on the context default:0, and this session runs on elsewhere:0"):
        made.run_with_iobinding(binding)


def test_a_value_outlives_its_session(session: OpenSession, registered: Any, on_gpu: OnGpu) -> None:
    made = session(DOUBLE)
    binding = made.io_binding()
    binding.bind_ortvalue_input("x", on_gpu(X))
    binding._iobinding.bind_output("y", gpu_device(registered))
    made.run_with_iobinding(binding)
    result = binding.get_outputs()[0]
    del binding, made
    np.testing.assert_array_equal(result.numpy(), 2 * X)


def test_sessions_tell_where_their_inputs_and_outputs_lie(session: OpenSession, registered: Any) -> None:
    on_device, on_host = session(DOUBLE), session(DOUBLE, io="host")
    vendor = device_of(registered).device.vendor_id
    assert on_device.get_input_memory_infos()[0].device_vendor_id == vendor
    assert on_host.get_input_memory_infos()[0].name == "Cpu"


def test_a_run_may_shrink_the_arena(session: OpenSession, registered: Any) -> None:
    from vkep.ort.boundary import live

    made = session(graph("g (float[n] x) => (float[n] y) { y = Add(x, x) }"), token="shrinking")
    big = np.ones(3_000_000, np.float32)
    made.run(None, {"x": big})
    arena = next(ep for ep in live("OrtEp") if ep.runtime.context.label == "shrinking:0").runtime.domain.arena
    before = arena.stats
    options = onnxruntime.RunOptions()
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "gpu:0")
    made.run(None, {"x": np.ones(4, np.float32)}, options)
    after = arena.stats
    assert after.num_arena_shrinkages > before.num_arena_shrinkages
    assert after.total_allocated_bytes < before.total_allocated_bytes


def test_the_domain_finds_and_counts_its_blocks(registered: Any, on_gpu: OnGpu) -> None:
    from vkep.ort.memory.domain import domain_of

    value = on_gpu(X)
    domain = domain_of(value.data_ptr())
    block, offset = domain.find(value.data_ptr() + 8)
    assert (offset, block.size >= X.nbytes) == (8, True)
    with pytest.raises(ValueError, match="no block starts at"):
        domain.free(value.data_ptr() + 8)
    live = domain.live_blocks
    del value
    assert domain.live_blocks == live - 1
    with pytest.raises(ValueError, match="is no pointer of vkep's"):
        domain_of(0x7FFF << 48)


# ---- without private names


def test_to_device_and_bind(session: OpenSession, registered: Any, copies: list[str]) -> None:
    made = session(DOUBLE)
    x, y = registered.to_device(X), registered.to_device(np.zeros_like(X), device_number(registered))
    binding = registered.bind(made, {"x": x}, {"y": y})
    copies.clear()
    made.run_with_iobinding(binding)
    assert copies == []
    np.testing.assert_array_equal(y.numpy(), 2 * X)
    for outputs in (None, ["y"], {"y": None}):
        binding = registered.bind(made, {"x": X}, outputs)
        made.run_with_iobinding(binding)
        assert binding.get_outputs()[0].device_name() != "cpu"
        np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], 2 * X)
    binding = registered.bind(made, {"x": x}, {"y": "cpu"})
    made.run_with_iobinding(binding)
    assert binding.get_outputs()[0].device_name() == "cpu"


def test_arguments_that_bind_refuses(session: OpenSession, registered: Any) -> None:
    import vkep

    made = session(DOUBLE)
    with pytest.raises(ValueError, match=r"the model has no input named 'z'; it has \['x'\]"):
        registered.bind(made, {"z": X})
    with pytest.raises(ValueError, match=r"the model has no output named 'z'; it has \['y'\]"):
        registered.bind(made, {"x": X}, ["z"])
    with pytest.raises(ValueError, match="output 'y': got 'gpu', expected an OrtValue, None or 'cpu'"):
        registered.bind(made, {"x": X}, {"y": "gpu"})
    with pytest.raises(vkep.DeviceNotFoundError):
        registered.to_device(X, 77)
    with pytest.raises(AttributeError, match="no attribute 'no_such_name'"):
        registered.no_such_name  # noqa: B018


def test_dlpack_of_a_value_says_vulkan(session: OpenSession, registered: Any) -> None:
    value, host = registered.to_device(X), onnxruntime.OrtValue.ortvalue_from_numpy(X)
    assert value.__dlpack_device__() == (7, device_number(registered)) and host.__dlpack_device__() == (1, 0)
    for device in (None, (2, 0)):
        with pytest.raises(BufferError, match="its memory has no address that other libraries could use"):
            value.__dlpack__(dl_device=device)
    np.testing.assert_array_equal(np.from_dlpack(value, device="cpu"), X)
    np.testing.assert_array_equal(np.from_dlpack(host), X)
    if importlib.util.find_spec("torch"):
        import torch

        with pytest.raises((BufferError, RuntimeError, ValueError)):
            torch.from_dlpack(value)
        np.testing.assert_array_equal(torch.from_dlpack(host).numpy(), X)


# ---- host-accessible (pinned) memory


def pinned(registered: Any, array: np.ndarray[Any, Any]) -> Any:
    """An OrtValue in the provider's host-accessible memory."""
    info = device_of(registered).memory_info(onnxruntime.OrtDeviceMemoryType.HOST_ACCESSIBLE)
    value = onnxruntime.OrtValue.ortvalue_from_shape_and_type(list(array.shape), array.dtype.type, memory_info=info)
    onnxruntime.copy_tensors([onnxruntime.OrtValue.ortvalue_from_numpy(array)], [value])
    return value


def pinned_bytes() -> int:
    from vkep.ort.boundary import live
    from vkep.ort.memory.allocator import PinnedAllocator

    return sum(b.size for a in live("OrtAllocator") if isinstance(a, PinnedAllocator) for b, _ in a._blocks.values())


@pytest.mark.usefixtures("collected")
def test_pinned_memory_is_the_hosts_and_a_run_takes_it(session: OpenSession, registered: Any, on_gpu: OnGpu) -> None:
    before = pinned_bytes()
    made, x, y = session(DOUBLE), pinned(registered, X), pinned(registered, np.zeros_like(X))
    assert pinned_bytes() - before >= 2 * X.nbytes
    assert x.__dlpack_device__() == (1, 0), "a consumer on the host may have it as it is"
    seen = np.from_dlpack(y)
    binding = made.io_binding()
    binding.bind_ortvalue_input("x", x)
    binding.bind_ortvalue_output("y", y)
    for factor in (1, 3):
        np.copyto(np.from_dlpack(x, copy=False), factor * X)
        made.run_with_iobinding(binding)
        binding.synchronize_outputs()
        np.testing.assert_array_equal(seen, 2 * factor * X)
    device = on_gpu(np.zeros_like(X))
    onnxruntime.copy_tensors([x], [device])
    np.testing.assert_array_equal(device.numpy(), 3 * X)
    onnxruntime.copy_tensors([device], [y])
    np.testing.assert_array_equal(seen, 3 * X)
    del binding, x, y
    assert pinned_bytes() > before, "the array keeps the value"
    del seen
    gc.collect()
    assert pinned_bytes() == before


@pytest.mark.usefixtures("collected")
def test_pinned_memory_has_an_arena_without_streams(registered: Any) -> None:
    from vkep.ort.boundary import NULL, ffi, live
    from vkep.ort.memory.allocator import PinnedAllocator

    values = [pinned(registered, np.ones(1000, np.float32)) for _ in range(8)]
    (used,) = [a for a in live("OrtAllocator") if isinstance(a, PinnedAllocator) and a._blocks]
    pointer = used.pointer
    assert pointer.AllocOnStream == NULL
    out = ffi.new("OrtKeyValuePairs **")
    used._ort.check(pointer.GetStats(pointer, out))
    stats = used._ort.pairs(out[0])
    used._ort.api.ReleaseKeyValuePairs(out[0])
    assert int(stats["InUse"]) >= 8 * 4000 and int(stats["NumArenaExtensions"]) < 8
    taken = pointer.Alloc(pointer, 4096)
    assert used.holds(int(ffi.cast("uintptr_t", taken)) + 4095)
    ffi.buffer(taken, 4096)[:] = b"x" * 4096
    pointer.Free(pointer, taken)
    assert not used.holds(int(ffi.cast("uintptr_t", taken)))
    assert pointer.Alloc(pointer, 0) == NULL
    assert len(values) == 8
