"""Every declared kernel. The modules of this package are the list, so that a kernel is declared in one place."""

from __future__ import annotations

import functools
import importlib
import pkgutil
import sys

from vkep.kernels.kernel import Kernel


@functools.cache
def all_kernels() -> tuple[Kernel, ...]:
    """The `Kernel` objects at module level below ``vkep.kernels``, sorted by source.

    Raises `ValueError` if a GLSL file has two, or if one does not state which bytes it may touch.
    """
    found: dict[str, tuple[Kernel, str]] = {}
    for module_info in pkgutil.walk_packages(sys.modules[__package__].__path__, prefix=f"{__package__}."):
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
