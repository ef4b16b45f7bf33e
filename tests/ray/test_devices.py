"""Which Vulkan device is the GPU that Ray assigned; and models as what Ray ships."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from gpu_shared.errors import DeviceNotFoundError
from tests.session.models import model
from vkep.cuda import CudaError
from vkep.ray.devices import device_of
from vkep.ray.models import local, packed

A, B, C = ("a" * 32, "b" * 32, "c" * 32)


def device(index: int, uuid: str, kind: str = "discrete", problems: tuple[str, ...] = ()) -> Any:
    capabilities = SimpleNamespace(uuid=uuid, device_type=kind)
    return SimpleNamespace(index=index, name=f"gpu {index}", capabilities=capabilities, problems=problems)


DEVICES = [device(0, C, "cpu"), device(1, B), device(2, A)]


def no_cuda() -> list[str]:
    raise CudaError("no CUDA driver")


def test_cuda_says_which_it_is_whatever_the_order() -> None:
    assert device_of(["0"], lambda: [A], DEVICES) == A
    assert device_of(["1"], lambda: [B], DEVICES) == B
    assert device_of(["GPU-" + "-".join([B[:8], B[8:12], B[12:16], B[16:20], B[20:]])], no_cuda, DEVICES) == B


def test_without_cuda_the_index_counts_gpus() -> None:
    assert device_of(["0"], no_cuda, DEVICES) == B
    assert device_of(["1"], no_cuda, DEVICES) == A


@pytest.mark.parametrize(
    ("ids", "cuda", "says"),
    [
        (["0", "1"], [A], "ask for one"),
        (["0"], [A, B], "CUDA_VISIBLE_DEVICES must be left"),
        (["0"], ["d" * 32], "no usable device of Vulkan here; there are: 0: gpu 0"),
        (["2"], None, "Vulkan has 2 GPUs that can be used"),
        (["MIG-x"], None, "name the device"),
    ],
)
def test_what_cannot_be_found_is_said(ids: list[str], cuda: list[str] | None, says: str) -> None:
    with pytest.raises(DeviceNotFoundError, match=says):
        device_of(ids, no_cuda if cuda is None else lambda: cuda, DEVICES)


def test_a_model_is_packed_with_its_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proto = model("g (float[n,3] x) => (float[n,3] y) { y = Mul(x, w) }")
    proto.graph.initializer.append(numpy_helper.from_array(np.arange(3, dtype=np.float32), "w"))
    where = tmp_path / "there"
    where.mkdir()
    onnx.save(proto, where / "m.onnx", save_as_external_data=True, location="m.weights", size_threshold=0)
    shipped = packed(where / "m.onnx")
    assert list(shipped.files) == ["m.onnx", "m.weights"]
    monkeypatch.setenv("VKEP_CACHE_DIR", str(tmp_path / "cache"))
    path = local(shipped)
    assert isinstance(path, Path) and path.parent.name == shipped.digest
    again = onnx.load(path)
    np.testing.assert_array_equal(numpy_helper.to_array(again.graph.initializer[0]), [0, 1, 2])
    written = path.stat().st_mtime_ns
    assert local(shipped) == path and path.stat().st_mtime_ns == written  # a node's other processes find it there
    assert packed(again).digest == packed(again.SerializeToString()).digest != shipped.digest


def test_weights_outside_the_models_folder_are_not_shipped(tmp_path: Path) -> None:
    proto = model("g (float[n,3] x) => (float[n,3] y) { y = Mul(x, w) }")
    proto.graph.initializer.append(numpy_helper.from_array(np.arange(3, dtype=np.float32), "w"))
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="m.weights", size_threshold=0)
    proto = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    proto.graph.initializer[0].external_data[0].value = "../m.weights"
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    with pytest.raises(ValueError, match="below the model's folder"):
        packed(tmp_path / "m.onnx")


def test_importing_the_package_brings_no_ray() -> None:
    code = "import sys, vkep.ray; print(sorted({'ray', 'numpy', 'starlette'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
