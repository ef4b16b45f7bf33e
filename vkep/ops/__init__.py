"""Every operator that vkep runs on Vulkan; importing this package declares them."""

from vkep.ops import (
    contraction,
    elementwise,
    gather,
    movement,
    normalization,
    pooling,
    reduction,
)
from vkep.ops.registry import declared, find, operator

__all__ = [
    "contraction",
    "declared",
    "elementwise",
    "find",
    "gather",
    "movement",
    "normalization",
    "operator",
    "pooling",
    "reduction",
]
