"""vkep on Ray: batch jobs (`Predictor` for Ray Data) and services (`deployment` for Ray Serve). ``pip install vkep[ray]``.

Importing this package imports no Ray; the names do. See docs/scaling.md.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vkep.ray.devices import assigned_device
    from vkep.ray.models import Shipped, ship
    from vkep.ray.predictor import Predictor
    from vkep.ray.service import deployment, generation
    from vkep.serving.options import ServiceOptions

__all__ = ["Predictor", "ServiceOptions", "Shipped", "assigned_device", "deployment", "generation", "ship"]

_LAZY = {
    "Predictor": "predictor",
    "ServiceOptions": "service",
    "Shipped": "models",
    "assigned_device": "devices",
    "deployment": "service",
    "generation": "service",
    "ship": "models",
}


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value
