"""What other systems lack: code for Windows and macOS, as far as Linux can show it. None of it was run there."""

from __future__ import annotations

import ctypes.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpu_shared import DeviceInfo, external, instance, vk
from gpu_shared.errors import ContextIncompatibleError, DriverNotFoundError

#: imports, planning and the caches of a process whose ``os`` has nothing that Windows has not
_AS_ON_WINDOWS = """
import importlib.abc, os, sys, onnx, numpy, platformdirs, concurrent.futures, subprocess, tempfile, ctypes
for name in ("fork forkpty register_at_fork getuid geteuid getgid getegid preadv pread pwrite pwritev sched_getaffinity "
             "sched_setaffinity sched_yield posix_fadvise posix_fallocate posix_spawn fchmod fchown chown mkfifo mknod killpg "
             "getloadavg statvfs sysconf O_CLOEXEC O_DIRECTORY O_NOFOLLOW").split():
    if hasattr(os, name):
        delattr(os, name)
class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name in ("fcntl", "resource", "pwd", "grp", "termios", "posix"):
            raise ModuleNotFoundError(f"no module {name} on Windows")
sys.meta_path.insert(0, Missing())
for name in ("fcntl", "resource", "pwd", "grp"):
    sys.modules.pop(name, None)
sys.platform = "win32"
import vkep, vkep.session.session, vkep.session.planning.saved, vkep.device.runner, gpu_shared.context, gpu_shared.external
import vkep.ray.folders
from pathlib import Path
from gpu_shared.capabilities import DeviceCapabilities
from vkep import cache
from vkep.dtypes import DTYPES
from vkep.graph import load_model
from vkep.ir.program import ValueSpec
from vkep.placement.partition import lower
folder = Path(sys.argv[1])
kept = cache.CacheFolder.__new__(type("Kept", (cache.CacheFolder,), {"what": "tests", "suffix": ".t"}))
kept.__init__(folder, 1 << 20)
kept.store("ab" * 32, b"content")
assert bytes(kept.load("ab" * 32)) == b"content"
text = "<ir_version: 9, opset_import: ['' : 18]> g (float[4] x) => (float[4] y) { y = Exp(x) }".replace("'", '"')
path = folder / "model.onnx"
path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
loaded = load_model(path)
known = {"x": ValueSpec(DTYPES["float32"], (4,))}
program = lower(loaded.graph.nodes, known, ["y"], loaded.opsets, DeviceCapabilities.generic(name="a device"))
assert [placement.where for placement in program.placements] == ["vulkan"]
print("planned")
"""


def test_nothing_that_windows_lacks_is_needed_to_plan(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "registry")])}
    done = subprocess.run(
        [sys.executable, "-c", _AS_ON_WINDOWS, str(tmp_path)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "planned\n"), done.stderr


class _Libraries:
    """cffi's ``dlopen`` on a system that has these libraries."""

    def __init__(self, *there: str) -> None:
        self.there = there

    def dlopen(self, name: str) -> str:
        if name not in self.there:
            raise OSError(f"cannot load library '{name}'")
        return name


def test_the_loader_is_found_in_a_folder_of_windows_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """cffi looks for a name in the system's folders alone."""
    path = r"C:\Chrome\vulkan-1.dll"
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(ctypes.util, "find_library", {"vulkan-1.dll": path}.get)
    assert vk._Loaded(_Libraries(path)).lib == path


def test_the_loader_of_homebrew_on_apple_silicon_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    path = "/opt/homebrew/lib/libvulkan.dylib"
    with pytest.raises(DriverNotFoundError):
        vk._Loaded(_Libraries(path))
    monkeypatch.setattr(sys, "platform", "darwin")
    assert vk._Loaded(_Libraries(path)).lib == path


@pytest.mark.parametrize("name", ["libvulkan.so.1", "vulkan-1.dll", "libvulkan.dylib"])
def test_the_loader_of_each_system_is_found(name: str) -> None:
    assert vk._Loaded(_Libraries(name)).lib == name


def test_a_missing_loader_names_what_was_tried() -> None:
    with pytest.raises(DriverNotFoundError, match=r"libvulkan\.so\.1.*vulkan-1\.dll.*libvulkan\.dylib"):
        vk._Loaded(_Libraries())


def test_macos_lists_portable_drivers(vulkan: DeviceInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    """MoltenVK is listed for an instance that asks for portability enumeration alone, which the loader has here too."""
    asked: list[Any] = []
    real = vk.make

    def make(name: str, **fields: Any) -> Any:
        if name == "VkInstanceCreateInfo":
            asked.append(fields)
        return real(name, **fields)

    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(vk, "make", make)
    with instance.Instance() as made:
        assert vulkan.capabilities.name in [info.capabilities.name for info in made.devices()]
    assert asked[0]["flags"] == vk.VK_INSTANCE_CREATE_ENUMERATE_PORTABILITY_BIT_KHR
    assert "VK_KHR_portability_enumeration" in asked[0]["ppEnabledExtensionNames"]


def test_without_descriptors_no_memory_is_shared() -> None:
    """Windows shares memory by handles (VK_KHR_external_memory_win32), which vkep does not take: it says so beforehand."""

    class Windows:
        label = "a device on Windows"
        extensions = frozenset({"VK_KHR_external_memory_win32", "VK_KHR_external_semaphore_win32"})

    windows: Any = Windows()
    assert not external.can_import_semaphore(windows)
    assert not external.can_import_memory(windows) and not external.can_export_memory(windows)
    with pytest.raises(
        ContextIncompatibleError, match=r"VK_KHR_external_memory_fd.*exports no memory by file descriptors"
    ):
        external.exported_buffer(windows, 4096)
