"""Every declared kernel. The modules of this package are the list, so that a kernel is declared in one place."""

from __future__ import annotations

import functools
import importlib
import pkgutil
import sys
from collections.abc import Collection

from vkep.kernels.kernel import Kernel


@functools.cache
def all_kernels() -> tuple[Kernel, ...]:
    """The `Kernel` objects at module level below ``vkep.kernels``, sorted by source.

    A GLSL file may have several declarations, if definitions that all of a declaration's variants have distinguish them.
    Raises `ValueError` if two declarations of a file are not distinguished, or if one does not state which bytes it may touch.
    """
    found: dict[tuple[str, tuple[str, ...]], tuple[Kernel, str]] = {}
    for module_info in pkgutil.walk_packages(sys.modules[__package__].__path__, prefix=f"{__package__}."):
        module = importlib.import_module(module_info.name)
        for name, value in vars(module).items():
            if not isinstance(value, Kernel):
                continue
            key = (value.source, tuple(sorted(_common(value))))
            known, where = found.setdefault(key, (value, f"{module_info.name}.{name}"))
            if known is not value:
                raise ValueError(f"{value.source} is declared twice: as {where} and as {module_info.name}.{name}")
            if value.reach is None:
                raise ValueError(f"{value.source}: {where} does not state its reach")
    return tuple(kernel for _, (kernel, _) in sorted(found.items(), key=lambda item: item[0]))


@functools.cache
def _by_source() -> dict[str, list[tuple[set[str], Kernel]]]:
    found: dict[str, list[tuple[set[str], Kernel]]] = {}
    for kernel in all_kernels():
        found.setdefault(kernel.source, []).append((_common(kernel), kernel))
    return found


def find_kernel(source: str, defines: Collection[str]) -> Kernel | None:
    """The declaration of a variant, by its GLSL file and the names that it defines; None for a user's own kernel."""
    declared = _by_source().get(source, [])
    if len(declared) == 1:
        return declared[0][1]
    fitting = [(len(names), kernel) for names, kernel in declared if names <= set(defines)]
    return max(fitting, key=lambda found: found[0])[1] if fitting else None


def _common(kernel: Kernel) -> set[str]:
    """The names that every variant of a declaration defines."""
    return set.intersection(*map(set, kernel.variants)) if kernel.variants else set()
