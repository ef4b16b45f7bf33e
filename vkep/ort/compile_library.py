"""The sources of the plugin library and their compilation: C for two exported functions and the hot path, cffi for the
rest."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path

import cffi

from vkep.errors import VkepError

#: the version of the interface that ``abi_tables.h`` declares
API_LEVEL = 29
MODULE = "_vkep_ort"
LIBRARY_VARIABLE = "VKEP_ORT_LIBRARY"
#: maps a structure to the prefix of its members' callbacks: ``vkep_<prefix>_<member>``
PREFIXES = {
    "OrtEpFactory": "factory",
    "OrtEp": "ep",
    "OrtCustomOp": "custom",
    "OrtNodeComputeInfo": "compute",
    "OrtKernelImpl": "kernel",
    "OrtLoopKernelHelper": "loop",
    "OrtScanKernelHelper": "scan",
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
OrtStatus *vkep_RegisterCustomOps(OrtSessionOptions *, const OrtApiBase *);
OrtStatus *vkep_create_kernel(void *, const OrtKernelInfo *, OrtKernelImpl **);
"""
_STRUCT = re.compile(r"struct (\w+) \{(.*?)\n\};", re.DOTALL)
_MEMBER = re.compile(r"([\w ]+?[ *]+)\(\*(\w+)\)\((.*?)\);", re.DOTALL)


class LibraryError(VkepError, RuntimeError):
    """The plugin library cannot be built or loaded; the text says what is missing."""


def compile_to(
    target: Path, declarations: str, source: str, *, startup: str | None = None, flags: Sequence[str] = ()
) -> Path:
    """Compile an extension and return ``target``; with ``startup`` (Python code) one that starts the interpreter itself
    (cffi's embedding).

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
            made.chmod(0o755)  # whatever the umask: no other user may write it
            os.replace(made, target)  # atomic: another process may do the same
    except OSError as error:
        raise LibraryError(
            f"vkep's ONNX Runtime plugin is compiled at its first use, and cannot be put into {target.parent} ({error}): set "
            f"VKEP_CACHE_DIR to a folder that can be written to, or compile it ahead of time with python -m "
            f"vkep.ort.library <folder> and set {LIBRARY_VARIABLE} to the file"
        ) from error
    return target


def sources(head: str = "") -> tuple[str, str]:
    """(declarations for cffi, C source); ``head`` is C that comes before the exported functions."""
    structures = _text("abi_structs.h")
    shared = _text("abi_types.h") + _text("abi_tables.h") + structures
    declarations = f'{shared}\nextern "Python" {{\n{_callbacks(structures)}{_ENTRY_POINTS}}}\n'
    prototypes = "".join(f"static {line}\n" for line in _ENTRY_POINTS.strip().splitlines())
    headers = ("sched", "stdint", "stdlib", "string")
    includes = f"#define VKEP_API_LEVEL {API_LEVEL}\n" + "".join(f"#include <{name}.h>\n" for name in headers)
    hidden = "#pragma GCC visibility push(hidden)"  # all but the entry points
    source = f"{includes}{shared}\n{prototypes}\n{head}\n{hidden}\n{_text('shim.c')}\n#pragma GCC visibility pop\n"
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
    with contextlib.redirect_stdout(io.StringIO()):  # it prints each file
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


def _text(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")
