"""The names of ``executorch.runtime``, so that a program only needs another import."""

from __future__ import annotations

import functools
import os
from typing import Any, BinaryIO

from vkep.executorch.delegate_payloads import BACKENDS
from vkep.executorch.metadata import MethodMeta
from vkep.executorch.method import Method
from vkep.executorch.portable import KERNELS
from vkep.executorch.program import Program


class BackendRegistry:
    """The backends whose delegates vkep runs."""

    @property
    def registered_backend_names(self) -> list[str]:
        """Names of the backends whose delegates run."""
        return list(BACKENDS)

    def is_available(self, backend_name: str) -> bool:
        """Whether delegates of this backend run."""
        return backend_name in BACKENDS


class OperatorRegistry:
    """The operators outside delegates that vkep has portable kernels for."""

    @property
    def operator_names(self) -> set[str]:
        """Names of the operators that run outside delegates."""
        return set(KERNELS)


class Runtime:
    """Loads programs. ``Runtime.get()`` returns the process's only one."""

    def __init__(self) -> None:
        self.backend_registry = BackendRegistry()
        self.operator_registry = OperatorRegistry()

    @staticmethod
    @functools.lru_cache(maxsize=1)
    def get() -> Runtime:
        """Return the runtime, as ``executorch.runtime.Runtime.get`` does."""
        return Runtime()

    def load_program(
        self,
        data: bytes | bytearray | BinaryIO | str | os.PathLike[str],
        *,
        data_path: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> Program:
        """Load a program from a path, bytes or a file object; ``data_path`` is a .ptd file.

        ``options`` are those of `vkep.executorch.ProgramOptions`. Raises as `Program.load`.
        """
        source: Any = data if isinstance(data, (bytes, bytearray, str, os.PathLike)) else _read(data)
        return Program.load(source, [] if data_path is None else [data_path], **options)


def _read(file: Any) -> bytes:
    if not hasattr(file, "read"):
        raise TypeError(f"got a {type(file).__name__}, expected a path, bytes or a file object of a .pte file")
    data = file.read()
    if not isinstance(data, bytes):
        raise TypeError(f"the file object gives {type(data).__name__}, expected bytes: open it in binary mode")
    return data


__all__ = ["BackendRegistry", "Method", "MethodMeta", "OperatorRegistry", "Program", "Runtime"]
