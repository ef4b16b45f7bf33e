"""The plugin library for programs that are not written in Python: ``python -m vkep.ort.library --embed FOLDER``.

It has the same callbacks and the same two exported functions, in a shared object that contains the interpreter: the
first call starts the Python that built the library, with its packages (vkep, numpy, onnx, cffi), unless the program
already runs Python. It refers to that Python's executable, and works only on the machine or image on which it was
built.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

from vkep.ort.compile_library import MODULE, LibraryError, compile_to, sources

NAME = "libvkep_ort.so"
#: runs once in the interpreter at the first callback; cffi writes its errors to standard error
_START = f"""
import sys
from vkep.ort import library
library.adopt(sys.modules[{MODULE!r}])
import vkep.ort.factory
"""


def build_embedded(folder: str | os.PathLike[str]) -> Path:
    """Compile the library into ``folder``; returns its path.

    Raises `LibraryError` as `vkep.ort.library.build`, and where this Python has no shared library to embed.
    """
    flags = _link_flags()
    python = sys.executable.replace("\\", "\\\\").replace('"', '\\"')
    head = f'#define VKEP_PYTHON "{python}"\n' + (Path(__file__).parent / "embed.c").read_text(encoding="utf-8")
    return compile_to(Path(folder) / NAME, *sources(head), startup=_START, flags=flags)


def _link_flags() -> list[str]:
    """The flags for linking with this Python's shared library."""
    folder, name = sysconfig.get_config_var("LIBDIR"), sysconfig.get_config_var("LDLIBRARY")
    if not sysconfig.get_config_var("Py_ENABLE_SHARED") or not name or not (Path(folder) / name).exists():
        raise LibraryError(
            f"{sys.executable} has no shared library ({name} in {folder}), so it cannot be embedded: use a Python built with "
            "--enable-shared (Debian and Ubuntu: python3-dev)"
        )
    version = name.removeprefix("lib").removesuffix(".so")
    # never unloaded: the interpreter still refers to the library after it is unregistered
    return [f"-L{folder}", f"-l{version}", f"-Wl,-rpath,{folder}", "-Wl,-z,nodelete", "-ldl", "-lpthread"]
