"""The plugin library: a small cffi extension, compiled once into the user's cache folder.

ONNX Runtime wants a shared object that exports ``CreateEpFactories`` and ``ReleaseEpFactory``. Those two functions and a
few helpers of the hot path are C (``shim.c``); everything else is Python behind cffi's ``extern "Python"``. The wheel of
vkep is pure Python, so the shim is compiled at the first `load`: that takes a C compiler and Python's headers, about two
seconds, and happens once for each version of the sources, of Python and of cffi. ``python -m vkep.ort.library`` does it
ahead of time, for an image whose users have no compiler; ``VKEP_ORT_LIBRARY`` names a library compiled elsewhere.
"""

from __future__ import annotations

import argparse
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
from collections.abc import Sequence
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from types import ModuleType

import cffi

from vkep.cache import cache_root
from vkep.errors import VkepError

#: the interface's level that ``abi_tables.h`` declares
API_LEVEL = 29
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
    "OrtExternalResourceImporterImpl": "importer",
    "OrtExternalMemoryHandle": "memory",
    "OrtExternalSemaphoreHandle": "semaphore",
}
_ENTRY_POINTS = """
OrtStatus *vkep_CreateEpFactories(const char *, const OrtApiBase *, const OrtLogger *, OrtEpFactory **, size_t, size_t *);
OrtStatus *vkep_ReleaseEpFactory(OrtEpFactory *);
OrtStatus *vkep_create_kernel(void *, const OrtKernelInfo *, OrtKernelImpl **);
"""
_STRUCT = re.compile(r"struct (\w+) \{(.*?)\n\};", re.DOTALL)
_MEMBER = re.compile(r"([\w ]+?[ *]+)\(\*(\w+)\)\((.*?)\);", re.DOTALL)

_EMBEDDED = b"library.adopt("  # in the start code of `vkep.ort.embedding`

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

    Raises `LibraryError` where no C compiler (``CC``, else cc, gcc or clang) or no Python header is found, where the
    compiler fails, or where the folder cannot be written to.
    """
    declarations, source = sources()
    suffix = sysconfig.get_config_var("EXT_SUFFIX") or ".so"
    key = f"{sys.version}|{suffix}|{cffi.__version__}|{declarations}|{source}"
    digest = hashlib.blake2b(key.encode(), digest_size=8).hexdigest()
    target = (Path(folder) if folder is not None else cache_root() / "ort" / digest) / f"{MODULE}{suffix}"
    if os.path.isfile(target) and folder is None:
        return target
    compile_to(target, declarations, source)
    return target


def compile_to(
    target: Path, declarations: str, source: str, *, startup: str | None = None, flags: Sequence[str] = ()
) -> None:
    """Compile an extension; with ``startup``, Python code, one that starts the interpreter itself (cffi's embedding).

    ``flags`` are for the linker. Raises `LibraryError`.
    """
    compiler = _compiler()
    include = sysconfig.get_paths()["include"]
    if not (Path(include) / "Python.h").is_file():
        raise LibraryError(
            f"vkep's ONNX Runtime plugin is compiled at its first use, and Python.h is not in {include}: install "
            f"Python's development headers (python3-dev), or set {LIBRARY_VARIABLE} to a library compiled elsewhere"
        )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            c_file, made = Path(scratch) / f"{MODULE}.c", Path(scratch) / target.name
            _emit(declarations, source, c_file, startup)
            command = [*compiler, "-shared", "-fPIC", "-O2", "-w", f"-I{include}", str(c_file), "-o", str(made), *flags]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise LibraryError(
                    f"compiling the ONNX Runtime plugin failed: {' '.join(command)}\n{done.stderr[-2000:]}"
                )
            os.replace(made, target)  # atomic: another process may be doing the same
    except OSError as error:
        raise LibraryError(
            f"vkep's ONNX Runtime plugin is compiled at its first use, and cannot be put into {target.parent} ({error}): set "
            f"VKEP_CACHE_DIR to a folder that can be written to, or compile it ahead of time with python -m "
            f"vkep.ort.library <folder> and set {LIBRARY_VARIABLE} to the file"
        ) from error


def adopt(module: ModuleType) -> None:
    """Use the extension of an embedding library, which has started this interpreter. Raises `LibraryError` where the process
    has loaded another: a Python program registers `vkep.ort.get_library_path`.
    """
    global _module
    with _lock:
        if _module is not None:
            raise LibraryError(
                f"this process uses {_module.__file__} already: register that (vkep.ort.get_library_path())"
            )
        _module = module


def sources(head: str = "") -> tuple[str, str]:
    """(declarations for cffi, C source); ``head`` is C that comes before the exported functions."""
    structures = _text("abi_structs.h")
    shared = _text("abi_types.h") + _text("abi_tables.h") + structures
    declarations = f'{shared}\nextern "Python" {{\n{_callbacks(structures)}{_ENTRY_POINTS}}}\n'
    prototypes = "".join(f"static {line}\n" for line in _ENTRY_POINTS.strip().splitlines())
    headers = ("sched", "stdint", "stdlib", "string")
    includes = f"#define VKEP_API_LEVEL {API_LEVEL}\n" + "".join(f"#include <{name}.h>\n" for name in headers)
    source = f"{includes}{shared}\n{prototypes}\n{head}\n{_text('shim.c')}"
    return declarations, source


def _callbacks(structures: str) -> str:
    """A function declaration for each function member of the structures that vkep implements."""
    lines = []
    for name, body in _STRUCT.findall(structures):
        if name in PREFIXES:
            for result, member, arguments in _MEMBER.findall(body):
                lines.append(f"{result.strip()} vkep_{PREFIXES[name]}_{member}({' '.join(arguments.split())});")
    return "\n".join(lines)


def _emit(declarations: str, source: str, c_file: Path, startup: str | None) -> None:
    builder = cffi.FFI()
    builder.cdef(declarations)
    builder.set_source(MODULE, source)
    if startup is not None:
        builder.embedding_api("")
        builder.embedding_init_code(startup)
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
    if not os.path.isfile(path):
        raise LibraryError(f"{LIBRARY_VARIABLE}: there is no file {path}")
    if _EMBEDDED in path.read_bytes():
        raise LibraryError(
            f"{LIBRARY_VARIABLE}: {path} was made with --embed, for programs that are not Python; name one made with "
            "python -m vkep.ort.library <folder>"
        )
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


def main(arguments: Sequence[str]) -> Path:
    """``[--embed] [FOLDER]``: compile ahead of time; with ``--embed`` the library for programs that are not Python."""
    parser = argparse.ArgumentParser("python -m vkep.ort.library", description=main.__doc__)
    parser.add_argument("--embed", action="store_true")
    parser.add_argument("folder", nargs="?", metavar="FOLDER")
    chosen = parser.parse_args(arguments)
    if not chosen.embed:
        return build(chosen.folder)
    if chosen.folder is None:
        parser.error("--embed takes the FOLDER for the library")
    from vkep.ort.embedding import build_embedded

    return build_embedded(chosen.folder)


if __name__ == "__main__":
    try:
        print(main(sys.argv[1:]))
    except VkepError as refused:  # (`vkep.ort.embedding` raises the `LibraryError` of another copy of this module)
        sys.exit(str(refused))
