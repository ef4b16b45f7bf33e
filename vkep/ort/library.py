"""The plugin library: a small cffi extension, compiled once into the user's cache folder.

ONNX Runtime wants a shared object that exports ``CreateEpFactories`` and ``ReleaseEpFactory``. Those two functions and a
few helpers of the hot path are C (``shim.c``); everything else is Python behind cffi's ``extern "Python"``. The wheel of
vkep is pure Python, so the shim is compiled at the first `load`: that takes a C compiler and Python's headers, about two
seconds, and happens once for each version of the sources, of Python and of cffi. ``python -m vkep.ort.library`` does it
ahead of time, for an image whose users have no compiler; ``VKEP_ORT_LIBRARY`` names a library compiled elsewhere.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from types import ModuleType

import cffi

from vkep.errors import VkepError
from vkep.shaders.cache import cache_root

MODULE = "_vkep_ort"
LIBRARY_VARIABLE = "VKEP_ORT_LIBRARY"
#: structure -> what its members' callbacks are called: ``vkep_<prefix>_<member>``
PREFIXES = {
    "OrtEpFactory": "factory",
    "OrtEp": "ep",
    "OrtNodeComputeInfo": "compute",
    "OrtKernelImpl": "kernel",
    "OrtAllocator": "allocator",
    "OrtDataTransferImpl": "transfer",
    "OrtSyncStreamImpl": "stream",
    "OrtSyncNotificationImpl": "notification",
    "OrtEpProfilerImpl": "profiler",
}
_ENTRY_POINTS = """
OrtStatus *vkep_CreateEpFactories(const char *, const OrtApiBase *, const OrtLogger *, OrtEpFactory **, size_t, size_t *);
OrtStatus *vkep_ReleaseEpFactory(OrtEpFactory *);
OrtStatus *vkep_create_kernel(void *, const OrtKernelInfo *, OrtKernelImpl **);
"""
_STRUCT = re.compile(r"struct (\w+) \{(.*?)\n\};", re.DOTALL)
_MEMBER = re.compile(r"([\w ]+?[ *]+)\(\*(\w+)\)\((.*?)\);", re.DOTALL)

_lock = threading.Lock()
_module: ModuleType | None = None


class LibraryError(VkepError, RuntimeError):
    """The plugin library cannot be built or loaded; the text says what is missing."""


def load() -> ModuleType:
    """The loaded extension (``ffi``, ``lib``, ``__file__``), compiled first where need be. Raises `LibraryError`."""
    global _module
    with _lock:
        if _module is None:
            given = os.environ.get(LIBRARY_VARIABLE)
            _module = _import(Path(given) if given else build())
        return _module


def build(folder: str | os.PathLike[str] | None = None) -> Path:
    """Compile the library unless it is there; returns its path. ``folder``: instead of the user's cache folder.

    Raises `LibraryError` where no C compiler (``CC``, else cc, gcc or clang) or no Python header is found, or where the
    compiler fails.
    """
    declarations, source = _sources()
    suffix = sysconfig.get_config_var("EXT_SUFFIX") or ".so"
    key = f"{sys.version}|{suffix}|{cffi.__version__}|{declarations}|{source}"
    digest = hashlib.blake2b(key.encode(), digest_size=8).hexdigest()
    target = (Path(folder) if folder is not None else cache_root() / "ort" / digest) / f"{MODULE}{suffix}"
    if target.is_file() and folder is None:
        return target
    compiler = _compiler()
    include = sysconfig.get_paths()["include"]
    if not (Path(include) / "Python.h").is_file():
        raise LibraryError(
            f"vkep's ONNX Runtime plugin is compiled at its first use, and Python.h is not in {include}: install "
            f"Python's development headers (python3-dev), or set {LIBRARY_VARIABLE} to a library compiled elsewhere"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        c_file, made = Path(scratch) / f"{MODULE}.c", Path(scratch) / target.name
        _emit(declarations, source, c_file)
        command = [*compiler, "-shared", "-fPIC", "-O2", "-w", f"-I{include}", str(c_file), "-o", str(made)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise LibraryError(f"compiling the ONNX Runtime plugin failed: {' '.join(command)}\n{done.stderr[-2000:]}")
        os.replace(made, target)  # atomic: another process may be doing the same
    return target


def callback_names() -> set[str]:
    """Names of all callbacks that the library declares."""
    return set(re.findall(r"\b(vkep_\w+)\(", _callbacks(_text("abi_structs.h"))))


def _sources() -> tuple[str, str]:
    """(declarations for cffi, C source)"""
    structures = _text("abi_structs.h")
    shared = _text("abi_types.h") + _text("abi_tables.h") + structures
    declarations = f'{shared}\nextern "Python" {{\n{_callbacks(structures)}{_ENTRY_POINTS}}}\n'
    prototypes = "".join(f"static {line}\n" for line in _ENTRY_POINTS.strip().splitlines())
    source = f"#include <stdint.h>\n#include <string.h>\n{shared}\n{prototypes}\n{_text('shim.c')}"
    return declarations, source


def _callbacks(structures: str) -> str:
    """A function declaration for each function member of the structures that vkep implements."""
    lines = []
    for name, body in _STRUCT.findall(structures):
        if name in PREFIXES:
            for result, member, arguments in _MEMBER.findall(body):
                lines.append(f"{result.strip()} vkep_{PREFIXES[name]}_{member}({' '.join(arguments.split())});")
    return "\n".join(lines)


def _emit(declarations: str, source: str, c_file: Path) -> None:
    builder = cffi.FFI()
    builder.cdef(declarations)
    builder.set_source(MODULE, source)
    with contextlib.redirect_stdout(io.StringIO()):  # it announces each file
        builder.emit_c_code(str(c_file))


def _compiler() -> list[str]:
    chosen = os.environ.get("CC", "").split()
    for candidate in ([chosen] if chosen else []) + [["cc"], ["gcc"], ["clang"]]:
        if shutil.which(candidate[0]):
            return candidate
    raise LibraryError(
        "vkep's ONNX Runtime plugin is compiled at its first use, and no C compiler was found (CC, cc, gcc, clang): "
        f"install one (apt install gcc), or set {LIBRARY_VARIABLE} to a library compiled elsewhere with "
        "python -m vkep.ort.library <folder>"
    )


def _import(path: Path) -> ModuleType:
    if not path.is_file():
        raise LibraryError(f"{LIBRARY_VARIABLE}: there is no file {path}")
    loader = ExtensionFileLoader(MODULE, str(path))
    spec = importlib.util.spec_from_file_location(MODULE, path, loader=loader)
    assert spec is not None
    try:
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except ImportError as error:
        raise LibraryError(f"the plugin library {path} does not load: {error}") from error
    return module


def _text(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


if __name__ == "__main__":
    print(build(sys.argv[1] if len(sys.argv) > 1 else None))
