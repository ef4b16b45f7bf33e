"""Which Vulkan device is the GPU that Ray assigned; and models as what Ray ships."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from gpu_shared.errors import DeviceNotFoundError
from tests.session.models import model
from vkep.ray.devices import Nvidia, UnknownOrder, device_of, device_of_rank
from vkep.ray.models import local, packed

A, B, C = ("a" * 32, "b" * 32, "c" * 32)


def device(index: int, uuid: str, kind: str = "discrete", problems: tuple[str, ...] = ()) -> Any:
    capabilities = SimpleNamespace(uuid=uuid, device_type=kind)
    return SimpleNamespace(index=index, name=f"gpu {index}", capabilities=capabilities, problems=problems)


DEVICES = [device(0, C, "cpu"), device(1, B), device(2, A)]


DASHED = "-".join([B[:8], B[8:12], B[12:16], B[16:20], B[20:]])


class Fake(Nvidia):
    """A driver with CUDA's devices, and the machine's; without them no driver or no nvidia-smi."""

    _orders: tuple[list[str] | None, list[str] | None]

    def __init__(
        self, cuda: list[str] | None = None, machine: list[str] | None = None, visible: str | None = None
    ) -> None:
        super().__init__(visible)
        object.__setattr__(self, "_orders", (cuda, machine))

    def cuda(self) -> Sequence[str]:
        return self._order(0)

    def all(self) -> Sequence[str]:
        return self._order(1)

    def _order(self, which: int) -> list[str]:
        order = self._orders[which]
        if order is None:
            raise UnknownOrder
        return order


@pytest.mark.parametrize(
    ("given", "nvidia", "found"),
    [
        ("0", Fake([A]), A),  # as Ray does it: CUDA sees the assigned device alone
        ("1", Fake([B], visible="1"), B),
        ("1", Fake([A, B]), B),  # RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES: CUDA sees all
        ("3", Fake([A, B], visible="2, 3"), B),
        ("GPU-" + DASHED, Fake(), B),
        ("GPU-" + DASHED.upper()[:13], Fake(), B),
        ("0", Fake(machine=[A, B]), A),  # no CUDA: the driver's own count
        ("1", Fake(machine=[A, B], visible="1"), B),
        ("0", Fake(), B),  # no driver of NVIDIA's: Vulkan's GPUs in Vulkan's order
        ("1", Fake(), A),
    ],
)
def test_the_assigned_device(given: str, nvidia: Nvidia, found: str) -> None:
    assert device_of([given], DEVICES, nvidia) == found


@pytest.mark.parametrize(
    ("ids", "nvidia", "says"),
    [
        (["0", "1"], Fake([A]), "ask for one"),
        (["0"], Fake(["d" * 32]), "no usable device of Vulkan here; there are: 0: gpu 0"),
        (["GPU-" + "d" * 8], Fake(), "no usable device of Vulkan here"),
        (["2"], Fake([A, B]), "CUDA_VISIBLE_DEVICES is None, and NVIDIA's driver has 2 devices"),
        (["0"], Fake([A, B], visible="4,5"), "CUDA_VISIBLE_DEVICES is '4,5'"),
        (["7"], Fake(machine=[A, B]), "NVIDIA's driver has 2 devices"),
        (["2"], Fake(), "GPU 2 of 2 that can be used"),
        (["MIG-" + DASHED], Fake([A]), "a part of a GPU"),
        (["x"], Fake(), "name the device"),
    ],
)
def test_missing_models_are_reported(ids: list[str], nvidia: Nvidia, says: str) -> None:
    with pytest.raises(DeviceNotFoundError, match=says):
        device_of(ids, DEVICES, nvidia)


@pytest.mark.parametrize(
    ("devices", "found"),
    [
        (DEVICES, [B, A, B, A]),  # the CPU driver has no turn
        ([device(0, A, "integrated"), device(1, B)], [None] * 4),  # the default one alone is of its kind
        ([device(0, A, "cpu")], [None] * 4),
        ([device(0, A), device(1, B, problems=("old",)), device(2, C)], [A, C, A, C]),
    ],
)
def test_replicas_without_an_assigned_gpu_take_turns(
    devices: list[Any], found: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VKEP_DEVICE", raising=False)
    assert [device_of_rank(rank, devices) for rank in range(4)] == found
    monkeypatch.setenv("VKEP_DEVICE", "0")
    assert device_of_rank(1, devices) is None


def test_a_uuid_that_two_devices_begin_with_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    both = [device(0, "ab" * 16), device(1, "abcd" * 8)]
    with pytest.raises(DeviceNotFoundError):
        device_of(["GPU-ab"], both, Fake())
    assert device_of(["GPU-abcd"], both, Fake()) == "abcd" * 8


def test_the_machines_devices_are_nvidia_smis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnknownOrder, match="nvidia-smi -L"):
        Nvidia(None).all()
    tool = tmp_path / "nvidia-smi"
    listed = [
        f"GPU 0: NVIDIA H200 (UUID: GPU-{DASHED})",
        f"  MIG 1g.18gb     Device  0: (UUID: MIG-{DASHED})",
        f"GPU 1: NVIDIA (UUID: GPU-{A})",
    ]
    tool.write_text("\n".join(["#!/bin/sh", *(f"echo '{line}'" for line in listed), ""]))
    tool.chmod(0o755)
    assert Nvidia(None).all() == [B, A]
    tool.write_text("#!/bin/sh\nexit 9\n")
    with pytest.raises(UnknownOrder):
        Nvidia(None).all()


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
    (path.parent / "m.weights").unlink()
    (tmp_path / "others").write_bytes(bytes(shipped.files["m.weights"].nbytes))
    (path.parent / "m.weights").symlink_to(tmp_path / "others")
    assert local(shipped) == path and (path.parent / "m.weights").read_bytes() == shipped.files["m.weights"].tobytes()
    assert packed(again).digest == packed(again.SerializeToString()).digest != shipped.digest


def test_weights_outside_the_models_folder_are_not_shipped(tmp_path: Path) -> None:
    proto = model("g (float[n,3] x) => (float[n,3] y) { y = Mul(x, w) }")
    proto.graph.initializer.append(numpy_helper.from_array(np.arange(3, dtype=np.float32), "w"))
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="m.weights", size_threshold=0)
    proto = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    folder = tmp_path / "there"
    folder.mkdir()
    links = {"link": tmp_path / "m.weights", "sub": tmp_path, "circle": folder / "circle", "device": Path("/dev/zero")}
    if os.name != "nt":
        for name, target in links.items():
            (folder / name).symlink_to(target)
        os.mkfifo(folder / "fifo")
    outside = ["../m.weights", str(tmp_path / "m.weights"), "", "a\0b", "link", "sub/m.weights", "device"]
    for location in [*outside, "circle", "fifo", "nothing", "sub", "x" * 5000]:
        proto.graph.initializer[0].external_data[0].value = location
        (folder / "m.onnx").write_bytes(proto.SerializeToString())
        with pytest.raises(ValueError if location in outside else (ValueError, FileNotFoundError)):
            packed(folder / "m.onnx")


def test_importing_the_package_brings_no_ray() -> None:
    code = "import sys, vkep.ray; print(sorted({'ray', 'numpy', 'starlette'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
