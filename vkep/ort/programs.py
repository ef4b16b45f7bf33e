"""Registers the provider for programs without editing them.

``python -m vkep.ort PROGRAM`` does so for one program. The environment variable ``VKEP_ORT`` does so for every program
of a Python in which ``vkep ort enable`` installed the file ``vkep_ort.pth``, which reads the variable when Python
starts.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import logging
import os
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

logger = logging.getLogger("vkep.ort")

VARIABLE = "VKEP_ORT"
FILE = "vkep_ort.pth"
#: one line that Python runs when it starts (see the standard library's ``site``)
LINE = (
    f"import os; os.environ.get('{VARIABLE}', '') not in ('', '0') and "
    "__import__('vkep.ort.programs').ort.programs.at_start()\n"
)


@dataclass(frozen=True)
class Request:
    """The user's request: sessions that name no provider, or name one of ``instead_of``, get Vulkan first."""

    default: bool = False
    instead_of: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Request:
        """Read ``VKEP_ORT``: ``1``, ``default``, or ``as:NAME``, several with commas between. Raises ``ValueError``."""
        default, names = False, []
        for part in filter(None, (p.strip() for p in text.split(","))):
            if part == "default":
                default = True
            elif part.startswith("as:") and len(part) > len("as:"):
                names.append(part.removeprefix("as:"))
            elif part != "1":
                raise ValueError(f"{VARIABLE} has {part!r}, expected 1, default or as:NAME")
        return cls(default, tuple(names))

    def __str__(self) -> str:
        return ",".join((["default"] if self.default else []) + [f"as:{name}" for name in self.instead_of]) or "1"

    def apply(self) -> None:
        """Register the provider and apply the request to later sessions. Raises as `vkep.ort.register`."""
        import vkep.ort
        from vkep.ort import python_sessions

        vkep.ort.register()
        python_sessions.replaced.update(self.instead_of, [""] if self.default else [])


# ---- when Python starts


def at_start() -> None:
    """Register the provider once the program imports onnxruntime. Errors do not end the program: they become
    warnings."""
    try:
        request = Request.parse(os.environ.get(VARIABLE, ""))
    except ValueError as error:
        _warn(error)
        return
    sys.meta_path.insert(0, _Finder(request))


def _warn(error: BaseException) -> None:
    warnings.warn(
        f"{VARIABLE} is set, and VulkanExecutionProvider is not there: {type(error).__name__}: {error}",
        RuntimeWarning,
        stacklevel=2,
    )


class _Finder(importlib.abc.MetaPathFinder):
    """Finds onnxruntime once, as Python would, with a loader that then registers the provider."""

    def __init__(self, request: Request) -> None:
        self._request = request

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != "onnxruntime":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._request)
        return spec


class _Loader(importlib.abc.Loader):
    """Loads onnxruntime with its own loader, which the module keeps, then registers the provider."""

    def __init__(self, loader: Any, request: Request) -> None:
        self._loader, self._request = loader, request

    def __getattr__(self, name: str) -> Any:  # the loader's other attributes: resources, the path ...
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        try:
            self._request.apply()
        except Exception as error:
            _warn(error)


def places() -> list[Path]:
    """The folders from which Python reads ``.pth`` files, the environment's own first."""
    import site
    import sysconfig

    folders = [sysconfig.get_path("purelib"), *site.getsitepackages()]
    if site.ENABLE_USER_SITE:
        folders.append(site.getusersitepackages())
    return [Path(folder) for folder in dict.fromkeys(folders)]


def enabled() -> list[Path]:
    """The files that are installed."""
    return [folder / FILE for folder in places() if (folder / FILE).is_file()]


def enable() -> Path:
    """Write the file into the first writable folder; returns its path. Raises `PermissionError` where there is
    none, ``OSError``."""
    for folder in places():
        if folder.is_dir() and os.access(folder, os.W_OK):
            (folder / FILE).write_text(LINE, encoding="utf-8")
            return folder / FILE
    raise PermissionError(f"none of {', '.join(map(str, places()))} may be written to: use a virtual environment")


def disable() -> list[Path]:
    """Remove the files; returns their paths. Raises ``OSError``."""
    removed = enabled()
    for path in removed:
        path.unlink()
    return removed


def devices() -> tuple[list[str], str]:
    """The names of the provider's devices in ONNX Runtime, and the reason where it has none."""
    import vkep.ort
    from vkep.ort.compile_library import LibraryError

    try:
        vkep.ort.register()
    except (ImportError, LibraryError) as error:
        return [], f"{type(error).__name__}: {error}"
    import onnxruntime

    mine = [d for d in onnxruntime.get_ep_devices() if d.ep_name == vkep.ort.EP_NAME]
    return [
        d.ep_metadata["vulkan_device_name"] for d in mine
    ], "" if mine else "the provider has no device: see `vkep devices`"


# ---- one program


def run_module(name: str, arguments: Sequence[str]) -> None:
    """Run a module as ``python -m NAME arguments`` would, in this process. Exceptions of the module propagate."""
    import runpy

    sys.argv = [name, *arguments]
    sys.path[0] = os.getcwd()
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def run_program(path: Path, arguments: Sequence[str]) -> None:
    """Run a file or folder as ``python PATH arguments`` would, in this process. Exceptions of the program propagate."""
    import runpy

    sys.argv = [str(path), *arguments]
    sys.path[0] = str(path.resolve().parent if path.is_file() else path)
    runpy.run_path(str(path), run_name="__main__")


def found(program: str) -> Path:
    """The file or folder, or the command of this name on PATH. Raises ``FileNotFoundError``, and ``ValueError`` for a
    command that is not written in Python."""
    import shutil

    path = Path(program)
    if path.exists():
        return path
    command = shutil.which(program) or shutil.which(program, path=str(Path(sys.executable).parent))
    if command is None or os.sep in program:
        raise FileNotFoundError(f"no program {program!r}: neither a file, nor a command on PATH")
    with open(command, "rb") as file:
        first = file.readline(200)
    if not (first.startswith(b"#!") and b"python" in first):
        raise ValueError(f"{command} is no Python program: set {VARIABLE} instead, after `vkep ort enable`")
    return Path(command)
