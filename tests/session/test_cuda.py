"""Bytes that CUDA and Vulkan share. On a machine with an NVIDIA GPU: ``python -m pytest -q -n 0 -rs tests/session/test_cuda.py``;
torch and cupy take part where they are installed.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.session.models import ADD_RELU
from vkep import InferenceSession, cuda

pytestmark = pytest.mark.gpu
X = np.array([[1, -2, 3], [4, 5, -6]], np.float32)
B = np.array([1, 1, 1], np.float32)
Open = Callable[..., InferenceSession]


@pytest.fixture
def session(open_session: Open) -> InferenceSession:
    opened = open_session(ADD_RELU)
    try:
        cuda.empty(opened, (1,)).close()
    except cuda.CudaError as error:
        pytest.skip(str(error))
    return opened


class Plain:
    """CUDA memory by its interface alone, copied by the driver."""

    def __init__(self, shared: cuda.SharedTensor) -> None:
        self._shared = shared

    def write(self, array: np.ndarray[Any, Any]) -> None:
        with self._shared._driver as driver:
            pointer = ctypes.c_ulonglong(self._shared.data_ptr)
            driver.call("cuMemcpyHtoD_v2", pointer, ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes))

    def read(self, like: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        out = np.empty_like(like)
        with self._shared._driver as driver:
            pointer = ctypes.c_ulonglong(self._shared.data_ptr)
            driver.call("cuMemcpyDtoH_v2", ctypes.c_void_p(out.ctypes.data), pointer, ctypes.c_size_t(out.nbytes))
        return out


def test_both_ways_without_a_copy(session: InferenceSession) -> None:
    with cuda.empty(session, X.shape) as x, cuda.empty(session, X.shape) as y:
        binding = session.io_binding()
        binding.bind_input("x", x.tensor)
        binding.bind_cpu_input("b", B)
        binding.bind_output("y", y.tensor)
        for factor in (1, 7):
            Plain(x).write(factor * X)
            x.to_vulkan()
            session.run_with_iobinding(binding)
            y.to_cuda()
            np.testing.assert_array_equal(Plain(y).read(X), np.maximum(factor * X + B, 0))
            np.testing.assert_array_equal(y.tensor.numpy(), np.maximum(factor * X + B, 0))


def test_a_cuda_tensor_is_copied_on_the_device(session: InferenceSession) -> None:
    with cuda.empty(session, X.shape) as source:
        Plain(source).write(X)
        with cuda.from_cuda(session, source) as copy:
            np.testing.assert_array_equal(copy.tensor.numpy(), X)
            assert copy.data_ptr != source.data_ptr


@pytest.mark.parametrize("dtype", ["float16", "int64", "uint8", "bool"])
def test_other_types(session: InferenceSession, dtype: str) -> None:
    array = np.arange(1000).reshape(10, 100).astype(dtype)
    with cuda.empty(session, array.shape, dtype) as shared:
        Plain(shared).write(array)
        shared.to_vulkan()
        np.testing.assert_array_equal(shared.tensor.numpy(), array)
        assert np.dtype(shared.__cuda_array_interface__["typestr"]) == array.dtype


def test_many_come_and_go(session: InferenceSession) -> None:
    for _ in range(50):
        with cuda.empty(session, (1 << 20,)) as shared:
            shared.tensor.write(np.full(1 << 20, 3, np.float32))
            shared.to_cuda()
            assert Plain(shared).read(np.empty(4, np.float32)).tolist() == [3, 3, 3, 3]


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
def test_torch_has_the_same_bytes(session: InferenceSession) -> None:
    import torch

    if not torch.cuda.is_available():
        pytest.skip("torch has no CUDA")
    with cuda.empty(session, X.shape) as shared:
        device = torch.device("cuda", shared.device)
        tensor: Any = torch.as_tensor(shared, device=device)
        assert tensor.data_ptr() == shared.data_ptr
        tensor.copy_(torch.from_numpy(X).cuda())
        tensor.mul_(2)
        shared.to_vulkan()
        np.testing.assert_array_equal(session.run(None, {"x": shared.tensor, "b": B})[0], np.maximum(2 * X + B, 0))
        shared.tensor.write(-X)
        shared.to_cuda()
        assert torch.equal(tensor.cpu(), torch.from_numpy(-X))
        with cuda.from_cuda(session, torch.full((2, 3), 5.0, device=device)) as other:
            assert (other.tensor.numpy() == 5).all()
        del tensor


# ---- without CUDA


def test_the_structures_are_those_of_the_drivers_interface() -> None:
    handle, part = cuda.MemoryHandleDesc, cuda.MemoryBufferDesc
    assert (ctypes.sizeof(handle), handle.handle.offset, handle.size.offset, handle.flags.offset) == (104, 8, 24, 32)
    assert (ctypes.sizeof(part), part.size.offset, part.flags.offset) == (88, 8, 16)


def test_without_a_driver_the_error_says_so(open_session: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "_LIBRARIES", ("libno_cuda.so.1",))
    monkeypatch.setattr(cuda, "_drivers", {})
    with pytest.raises(cuda.CudaError, match=r"no CUDA driver: none of libno_cuda\.so\.1 could be loaded"):
        cuda.empty(open_session(ADD_RELU), (2, 3))


def test_objects_that_are_no_cuda_tensors_are_refused(open_session: Open) -> None:
    session = open_session(ADD_RELU)
    with pytest.raises(TypeError, match="with __cuda_array_interface__; got ndarray"):
        cuda.from_cuda(session, X)
    with pytest.raises(TypeError, match="dtype is 'float8_e4m3fn', expected a type of numbers"):
        cuda.empty(session, (2,), "float8_e4m3fn")

    class Strided:
        __cuda_array_interface__ = {"shape": (2, 3), "typestr": "<f4", "strides": (4, 8), "data": (1, False)}

    with pytest.raises(ValueError, match=r"strides \(4, 8\): make it contiguous first"):
        cuda.from_cuda(session, Strided())
