"""The kernels: one Python declaration per GLSL file, and what chooses among their variants.

The modules of this package are the list of kernels, so that a kernel is declared in one place.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil

from vkep.kernels.kernel import Kernel

__all__ = ["all_kernels"]


@functools.cache
def all_kernels() -> tuple[Kernel, ...]:
    """The `Kernel` objects at module level below ``vkep.kernels``, sorted by source.

    Raises `ValueError` if a GLSL file has two, or if one does not state which bytes it may touch.
    """
    found: dict[str, tuple[Kernel, str]] = {}
    for module_info in pkgutil.walk_packages(__path__, prefix=f"{__name__}."):
        module = importlib.import_module(module_info.name)
        for name, value in vars(module).items():
            if not isinstance(value, Kernel):
                continue
            known, where = found.setdefault(value.source, (value, f"{module_info.name}.{name}"))
            if known is not value:
                raise ValueError(f"{value.source} is declared twice: as {where} and as {module_info.name}.{name}")
            if value.reach is None:
                raise ValueError(f"{value.source}: {where} does not state its reach")
    return tuple(found[source][0] for source in sorted(found))
