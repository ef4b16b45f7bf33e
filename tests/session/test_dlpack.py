"""Device tensors in the hands of other libraries: numpy's and DLPack's protocols, shared bytes, memory for others to import."""

from __future__ import annotations

import gc
import importlib.util
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gpu_shared.external import can_export_memory, can_import_memory
from tests.session.models import ADD_RELU, model
from vkep import ClosedError, DeviceTensor, InferenceSession, InvalidInputError, OrtValue

pytestmark = pytest.mark.gpu
Open = Callable[..., InferenceSession]
X = np.array([[1, -2, 3], [4, 5, -6]], np.float32)
B = np.array([1, 1, 1], np.float32)
TORCH = importlib.util.find_spec("torch") is not None


@pytest.fixture
def session(open_session: Open) -> InferenceSession:
    return open_session(ADD_RELU)


@pytest.fixture
def seen(session: InferenceSession) -> InferenceSession:
    with session.device_tensor(X) as x:
        if x.block.mapped is None:
            pytest.skip("the host does not see this device's memory")
    return session


def test_a_device_tensor_as_an_array(session: InferenceSession) -> None:
    with session.device_tensor(X) as x:
        assert (x.shape, x.dtype.name, x.nbytes) == ((2, 3), "float32", 24)
        for made in (
            np.asarray(x),
            np.array(x),
            np.from_dlpack(x, device="cpu"),
            np.from_dlpack(x, device="cpu", copy=True),
        ):
            np.testing.assert_array_equal(made, X)
            assert made.dtype == np.float32
        assert np.asarray(x, np.float64).dtype == np.float64
        np.testing.assert_array_equal(np.add(x, 1), X + 1)
    with pytest.raises(ClosedError):
        np.asarray(x)


def test_dlpack_names_vulkan_and_gives_no_address_to_others(session: InferenceSession) -> None:
    with session.device_tensor(X) as x:
        assert x.__dlpack_device__() == (7, session.context.capabilities.index)
        for device in (None, (2, 0), (7, 0), (13, 0)):
            with pytest.raises(BufferError, match="Vulkan memory has no address that other libraries could use"):
                x.__dlpack__(dl_device=device)
        with pytest.raises((BufferError, RuntimeError)):
            np.from_dlpack(x)
        if TORCH:
            import torch

            with pytest.raises((BufferError, RuntimeError, ValueError)):
                torch.from_dlpack(x)


def test_an_ortvalue_is_given_as_what_holds_its_content(session: InferenceSession) -> None:
    host = OrtValue.ortvalue_from_numpy(X.copy())
    np.from_dlpack(host)[0, 0] = 7
    assert host.numpy()[0, 0] == 7 and host.__dlpack_device__() == (1, 0)
    taken = OrtValue.ortvalue_from_numpy(X, "gpu")
    np.testing.assert_array_equal(np.from_dlpack(taken), X)
    session.run_with_ort_values(None, {"x": taken, "b": OrtValue.ortvalue_from_numpy(B)})
    assert taken.__dlpack_device__() == (7, session.context.capabilities.index)
    np.testing.assert_array_equal(np.from_dlpack(taken, device="cpu"), X)
    with pytest.raises(BufferError, match="no address that other libraries could use"):
        taken.__dlpack__()


def test_numpy_shares_its_bytes_where_the_host_sees_them(seen: InferenceSession) -> None:
    with seen.device_tensor(X) as x, seen.empty_device_tensor((2, 3)) as y:
        into, out = x.host_view(), y.host_view()
        binding = seen.io_binding()
        binding.bind_input("x", x)
        binding.bind_cpu_input("b", B)
        binding.bind_output("y", y)
        for factor in (1, 2):
            into[:] = factor * X  # what the host writes is what the run reads
            seen.run_with_iobinding(binding)
            binding.synchronize_outputs()
            np.testing.assert_array_equal(out, np.maximum(factor * X + B, 0))
        same = np.from_dlpack(x, device="cpu", copy=False)
        assert np.shares_memory(same, into) and np.shares_memory(np.array(x, copy=False), into)
        assert not np.shares_memory(np.from_dlpack(x, device="cpu", copy=True), into)
        with pytest.raises(ValueError, match="that takes a copy"):
            x.__array__(np.float64, copy=False)


@pytest.mark.skipif(not TORCH, reason="needs torch")
def test_torch_shares_its_bytes_on_the_host(seen: InferenceSession) -> None:
    import torch

    with seen.device_tensor(X) as x:
        shared: Any = torch.from_numpy(x.host_view())
        shared.mul_(3)
        np.testing.assert_array_equal(x.numpy(), 3 * X)
        np.testing.assert_array_equal(seen.run(None, {"x": x, "b": B})[0], np.maximum(3 * X + B, 0))
    with seen.device_tensor(torch.from_numpy(X)) as y:
        np.testing.assert_array_equal(y.numpy(), X)


def test_a_view_keeps_its_tensor(seen: InferenceSession) -> None:
    def view() -> np.ndarray[Any, Any]:
        return seen.device_tensor(X).host_view()

    made = view()
    gc.collect()
    others = [seen.device_tensor(X + k) for k in range(20)]
    np.testing.assert_array_equal(made, X)
    assert len(others) == 20
    with seen.empty_device_tensor((0, 3)) as empty:
        assert empty.host_view().shape == (0, 3) and np.asarray(empty).shape == (0, 3)


def test_a_tensor_of_a_failed_run_is_not_exported(open_session: Open) -> None:
    session = open_session(model("g (float[4] x, int64[2] i) => (float[2] y) { y = Gather(x, i) }"))
    binding = session.io_binding()
    binding.bind_cpu_input("x", np.ones(4, np.float32))
    binding.bind_cpu_input("i", np.array([0, 9]))
    with session.empty_device_tensor((2,)) as y:
        binding.bind_output("y", y)
        session.run_with_iobinding(binding)
        for ask in (np.asarray, lambda t: np.from_dlpack(t, device="cpu"), DeviceTensor.numpy):
            with pytest.raises(InvalidInputError, match="Gather"):
                ask(y)


# ---- memory that others import


@pytest.fixture
def sharing(session: InferenceSession) -> InferenceSession:
    device = session.context.device
    if not (can_export_memory(device) and can_import_memory(device)):
        pytest.skip("this driver shares no memory by file descriptor")
    return session


def test_another_device_imports_what_a_session_exports(sharing: InferenceSession) -> None:
    with (
        sharing.export_memory(4096) as memory,
        InferenceSession(ADD_RELU, context_mode="disabled") as other,
        memory.tensor((2, 3)) as x,
    ):
        descriptor = memory.descriptor()
        try:
            imported = other.import_memory(descriptor, memory.allocation_size, dedicated=True)
        finally:
            os.close(descriptor)
        with imported, imported.tensor((2, 3)) as y:
            x.write(X)
            sharing.context.timeline.wait()
            np.testing.assert_array_equal(y.numpy(), X)
            np.testing.assert_array_equal(other.run(None, {"x": y, "b": B})[0], np.maximum(X + B, 0))
            y.write(-X)
            other.context.timeline.wait()
            np.testing.assert_array_equal(x.numpy(), -X)
    with pytest.raises(ClosedError):
        memory.descriptor()
