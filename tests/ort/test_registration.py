"""Finding the provider, its devices, and its library."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import re
import subprocess
import sys
import sysconfig
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest

from tests.ort.conftest import ASSIGNMENT, OpenSession, device_of, graph, where

ADD = graph("g (float[2,3] x, float[3] b) => (float[2,3] y) { y = Add(x, b) }")


def feeds() -> dict[str, Any]:
    return {"x": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(3, np.float32)}


def test_each_vulkan_device_is_an_ep_device_with_its_uuid(registered: Any) -> None:
    import gpu_shared

    usable = [d.capabilities for d in gpu_shared.list_devices() if not d.problems]
    mine = [d for d in onnxruntime.get_ep_devices() if d.ep_name == registered.EP_NAME]
    assert [d.ep_metadata["vulkan_uuid"] for d in mine] == [c.uuid for c in usable]
    assert all(d.device.type == onnxruntime.OrtHardwareDeviceType.GPU for d in mine)
    assert [d.device.vendor_id for d in mine] == [c.vendor_id for c in usable]


def test_registering_twice_does_nothing(registered: Any) -> None:
    before = len(onnxruntime.get_ep_devices())
    registered.register()
    assert len(onnxruntime.get_ep_devices()) == before


def test_sessions_list_the_devices_once(registered: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each list opens a Vulkan instance, which takes a GPU's driver tens of milliseconds."""
    from gpu_shared.instance import list_devices
    from vkep.ort import devices, options
    from vkep.session import contexts

    listed = []

    def counted() -> Any:
        listed.append(1)
        return list_devices()

    for module in (devices, options, contexts):
        monkeypatch.setattr(module, "list_devices", counted)
    options._default_uuid.cache_clear()
    for _ in range(2):
        session = onnxruntime.InferenceSession(ADD, providers=[registered.EP_NAME])
        np.testing.assert_array_equal(session.run(None, feeds())[0], feeds()["x"] + 1)
    assert len(listed) == 1


def test_an_older_onnxruntime_is_refused(registered: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnxruntime, "__version__", "1.23.2")
    with pytest.raises(ImportError, match=r"needs onnxruntime 1.29 or later, but 1.23.2 is installed"):
        registered.register()


def test_a_host_without_the_interface_gets_an_error_status(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that is not Python registers the library with an older ONNX Runtime: the error needs its CreateStatus."""
    from vkep.ort import api
    from vkep.ort.boundary import OrtError, ffi

    old, used = object(), list[object]()
    monkeypatch.setattr(api, "use_tables", used.append)
    version = ffi.new("char[]", b"1.23.2")
    base = SimpleNamespace(GetVersionString=lambda: version, GetApi=lambda level: old if level <= 23 else ffi.NULL)
    with pytest.raises(OrtError, match=r"ONNX Runtime 1\.23\.2 has no C interface of level 29"):
        api.Ort(base)
    assert used == [old]


def test_names_and_path_follow_the_ecosystems_convention(registered: Any) -> None:
    assert registered.get_ep_name() == "VulkanExecutionProvider"
    assert registered.get_ep_names() == ["VulkanExecutionProvider"]
    assert device_of(registered).ep_metadata["library_path"] == registered.get_library_path()


def test_the_library_exports_its_entry_points_alone(registered: Any) -> None:
    from vkep.ort.compile_library import sources

    library = ctypes.CDLL(registered.get_library_path())
    defined = set(re.findall(r"^(?:EXPORTED )?[\w *]*?(\w+)\([^;]*\{", sources()[1], re.MULTILINE))
    assert {"vkep_gather", "vkep_alloc"} <= defined
    exported = {name for name in defined if hasattr(library, name)}
    assert exported == {"CreateEpFactories", "ReleaseEpFactory", "RegisterCustomOps"}


def test_by_name(session: OpenSession) -> None:
    np.testing.assert_array_equal(session(ADD).run(None, feeds())[0], feeds()["x"] + 1)


@pytest.mark.parametrize("policy", [None, "PREFER_GPU"])
def test_by_device_and_by_policy(registered: Any, policy: str | None) -> None:
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry(ASSIGNMENT, "1")
    if policy is None:
        options.add_provider_for_devices([device_of(registered)], {"min_partition_size": "1"})
    else:
        options.set_provider_selection_policy(getattr(onnxruntime.OrtExecutionProviderDevicePolicy, policy))
    made = onnxruntime.InferenceSession(ADD, options)
    assert set(where(made)) == {registered.EP_NAME}
    np.testing.assert_array_equal(made.run(None, feeds())[0], feeds()["x"] + 1)


def test_the_tables_places_are_those_of_the_interface(registered: Any) -> None:
    from vkep.ort.boundary import ffi

    def place(struct: str, name: str) -> Any:
        return ffi.offsetof(struct, name) // ffi.sizeof("void *")

    # the ends of the levels 22 and 23 of OrtApi, which ONNX Runtime itself asserts, and the last of OrtEpApi used
    assert place("OrtApi", "GetEpApi") == 317
    assert place("OrtApi", "GetTensorElementTypeAndShapeDataReference") == 414
    assert place("OrtEpApi", "ProfilingEventsContainer_AddEvents") == 72
    sizes = {"OrtEp": 208, "OrtEpFactory": 168, "OrtAllocator": 64, "OrtSyncStreamImpl": 48, "OrtEpProfilerImpl": 48}
    assert {name: ffi.sizeof(name) for name in sizes} == sizes


def test_a_wrong_table_is_refused_in_words(registered: Any) -> None:
    from vkep.ort.boundary import OrtError, behind

    ort = behind(_factory()).ort
    with pytest.raises(OrtError, match="not what vkep expects: colour gave 1, expected 2"):
        ort.expect("colour", 1, 2)


def _factory() -> Any:
    from vkep.ort.boundary import live

    return live("OrtEpFactory")[0].pointer


def test_without_a_compiler_the_error_says_what_to_install(
    registered: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    from vkep.ort import library
    from vkep.ort.compile_library import LibraryError

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(LibraryError, match="no C compiler was found"):
        library.build(tmp_path)


def test_a_broken_compiler_is_quoted(registered: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    from vkep.ort import library
    from vkep.ort.compile_library import LibraryError

    script = tmp_path / "failing-cc"
    script.write_text("#!/bin/sh\necho the compiler said no >&2\nexit 3\n")
    script.chmod(0o755)
    monkeypatch.setenv("CC", str(script))
    with pytest.raises(LibraryError, match="the compiler said no"):
        library.build(tmp_path)


def test_a_folder_that_cannot_be_written_to_is_named(
    registered: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    from vkep.ort import library
    from vkep.ort.compile_library import LibraryError

    (tmp_path / "file").touch()
    monkeypatch.setenv("VKEP_CACHE_DIR", str(tmp_path / "file"))
    message = (
        rf"cannot be put into {tmp_path}/file/ort/\w+ \(.*Not a directory.*\): set VKEP_CACHE_DIR .* VKEP_ORT_LIBRARY"
    )
    with pytest.raises(LibraryError, match=message):
        library.build()
    command = [sys.executable, "-m", "vkep.ort.library", "--embed", str(tmp_path / "file" / "x")]
    done = subprocess.run(
        command[:3] if not sysconfig.get_config_var("Py_ENABLE_SHARED") else command, capture_output=True
    )
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"cannot be put into" in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="umask")
def test_the_compiled_library_is_checked_before_it_is_used(
    registered: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """A truncated one ends the process where it is loaded."""
    from vkep.ort import library

    made: list[Any] = []

    def compile_to(target: Any, *rest: Any) -> Any:
        made.append(target)
        target.write_bytes(b"code" * 100)
        return target

    monkeypatch.setenv("VKEP_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(library, "compile_to", compile_to)
    path = library.build()
    assert library.build() == path and len(made) == 1
    os.truncate(path, 100)
    assert library.build() == path and len(made) == 2
    path.unlink()
    (path / "inside").mkdir(parents=True)
    assert library.build() == path and len(made) == 3
    path.with_name(f"{path.name}.sealed").write_bytes(b"")
    assert library.build() == path and len(made) == 4
    assert library.build() == path and len(made) == 4 and path.read_bytes() == b"code" * 100


@pytest.mark.skipif(sys.platform == "win32", reason="umask")
def test_no_other_user_may_write_the_compiled_library(
    registered: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    from vkep.ort.compile_library import compile_to

    script = tmp_path / "cc"
    script.write_text('#!/bin/sh\nfor last; do [ "$before" = -o ] && echo made > "$last"; before=$last; done; exit 0\n')
    script.chmod(0o755)
    monkeypatch.setenv("CC", str(script))
    before = os.umask(0)
    try:
        made = compile_to(tmp_path / "library.so", "int f(int);", "int f(int x) { return x; }")
    finally:
        os.umask(before)
    assert made.read_text() == "made\n" and made.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("problem", ["misses synchronization2", None])
def test_why_there_is_no_device_is_logged(
    registered: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, problem: str | None
) -> None:
    import gpu_shared
    from vkep.ort import devices
    from vkep.ort.boundary import behind

    refused = [dataclasses.replace(d, problems=(problem,)) for d in gpu_shared.list_devices()] if problem else []
    monkeypatch.setattr(devices, "list_devices", lambda: refused)
    with caplog.at_level("WARNING", "vkep.ort"):
        devices.EpDevices(behind(_factory()).ort, _factory())
    expected = [f"VulkanExecutionProvider does not take {d.name}: {problem}" for d in refused]
    assert caplog.messages == (expected or ["VulkanExecutionProvider has no device: the Vulkan drivers list none"])


def test_the_environment_names_a_library_that_was_built_before(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    from vkep.ort import library
    from vkep.ort.compile_library import LIBRARY_VARIABLE, LibraryError

    monkeypatch.setenv(LIBRARY_VARIABLE, str(tmp_path / "absent.so"))
    monkeypatch.setattr(library, "_module", None)
    with pytest.raises(LibraryError, match=r"there is no file .*absent\.so"):
        library.load()


def test_kernel_constraints_are_held_against_the_schema(registered: Any) -> None:
    from vkep.ort.boundary import OrtError, behind
    from vkep.ort.nodes.kernels import KernelEntry, check_against_schema

    ort = behind(_factory()).ort
    assert check_against_schema(ort, KernelEntry("Relu", 14, {"T": ("float32",)}))
    with pytest.raises(OrtError, match=r"kernel Relu: the schema has no type constraint named \['U'\]; it has \['T'\]"):
        check_against_schema(ort, KernelEntry("Relu", 14, {"T": ("float32",), "U": ("float32",)}))
    with pytest.raises(OrtError, match=r"kernel Relu \(version 14\): .* T does not allow \['bool'\]"):
        check_against_schema(ort, KernelEntry("Relu", 14, {"T": ("float32", "bool")}))
    assert not check_against_schema(ort, KernelEntry("Relu", 999, {"T": ("float32",)}))  # it knows no such version
    assert check_against_schema(ort, KernelEntry("NoSuchOperator", 1, {"U": ("bool",)}))  # nor this operator


def test_a_registration_imports_neither_operators_nor_sessions(registered: Any) -> None:
    code = (
        "import sys, onnxruntime, vkep.ort; vkep.ort.register()\n"
        "assert any(d.ep_name == vkep.ort.EP_NAME for d in onnxruntime.get_ep_devices())\n"
        "print(*sorted(name for name in sys.modules if name.startswith(('vkep.ops', 'vkep.kernels', 'vkep.ort.ep',"
        " 'vkep.placement.n', 'vkep.shaders'))))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
