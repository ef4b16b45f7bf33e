"""The plugin library: a small cffi extension, compiled once into the user's cache folder.

ONNX Runtime loads a shared object that exports ``CreateEpFactories`` and ``ReleaseEpFactory``. Those two functions and
a few helpers of the hot path are C (``shim.c``); everything else is Python behind cffi's ``extern "Python"``. The wheel
of vkep is pure Python, so the shim is compiled at the first `load`: that takes a C compiler and Python's headers, about
two seconds, and happens once for each version of the sources, of Python and of cffi. ``python -m vkep.ort.library``
compiles it ahead of time, for an image without a compiler; ``VKEP_ORT_LIBRARY`` is the path of a library that was
compiled elsewhere.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.util
import os
import sys
import sysconfig
import threading
from collections.abc import Sequence
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from types import ModuleType

import cffi

from vkep.cache import code_folder, has_kept_digest, keep_digest
from vkep.errors import VkepError
from vkep.ort.compile_library import LIBRARY_VARIABLE, MODULE, LibraryError, compile_to, sources
from vkep.ort.embedding import build_embedded
from vkep.own_files import remove

_EMBEDDED = b"library.adopt("  # defined by the start code of `vkep.ort.embedding`

_lock = threading.Lock()
_module: ModuleType | None = None


def load() -> ModuleType:
    """Return the loaded extension (``ffi``, ``lib``, ``__file__``); it is compiled first if needed. Raises
    `LibraryError`."""
    global _module
    with _lock:
        if _module is None:
            given = os.environ.get(LIBRARY_VARIABLE)
            _module = _import(Path(given) if given else build())
        return _module


def build(folder: str | os.PathLike[str] | None = None) -> Path:
    """Compile the library unless it exists; returns its path. ``folder``: instead of the user's cache folder.

    Raises `LibraryError` where no C compiler (``CC``, else cc, gcc or clang) or no Python header is found, where the
    compiler fails, or where the folder cannot be written to.
    """
    declarations, source = sources()
    suffix = sysconfig.get_config_var("EXT_SUFFIX") or ".so"
    key = f"{sys.version}|{suffix}|{cffi.__version__}|{declarations}|{source}"
    digest = hashlib.blake2b(key.encode(), digest_size=8).hexdigest()
    if folder is not None:
        return compile_to(Path(folder) / f"{MODULE}{suffix}", declarations, source)
    target = code_folder("ort", digest) / f"{MODULE}{suffix}"
    if not has_kept_digest(target, key):
        if target.is_dir():  # a file is replaced in one step: another process may be loading it
            with contextlib.suppress(OSError):
                remove(target)
        compile_to(target, declarations, source)
        with contextlib.suppress(OSError):  # the next process compiles again
            keep_digest(target, key)
    return target


def adopt(module: ModuleType) -> None:
    """Use the extension of an embedding library, which has started this interpreter. Raises `LibraryError` where the
    process has loaded another one: a Python program registers `vkep.ort.get_library_path`."""
    global _module
    with _lock:
        if _module is not None:
            raise LibraryError(
                f"this process uses {_module.__file__} already: register that (vkep.ort.get_library_path())"
            )
        _module = module


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
    return build_embedded(chosen.folder)


if __name__ == "__main__":
    try:
        print(main(sys.argv[1:]))
    except VkepError as refused:
        sys.exit(str(refused))
