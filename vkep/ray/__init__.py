"""vkep on Ray: batch jobs (`Predictor` for Ray Data) and services (`deployment` for Ray Serve). ``pip install vkep[ray]``.

Importing this package imports no Ray; the names do. See docs/scaling.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_shared.lazy import lazy

if TYPE_CHECKING:
    from vkep.ray.devices import assigned_device
    from vkep.ray.models import Shipped, ship
    from vkep.ray.predictor import Predictor
    from vkep.ray.service import deployment, generation
    from vkep.serving.options import ServiceOptions

__all__ = ["Predictor", "ServiceOptions", "Shipped", "assigned_device", "deployment", "generation", "ship"]

__getattr__ = lazy(
    __name__,
    {
        "vkep.ray.devices": "assigned_device",
        "vkep.ray.models": "Shipped ship",
        "vkep.ray.predictor": "Predictor",
        "vkep.ray.service": "ServiceOptions deployment generation",
    },
)
