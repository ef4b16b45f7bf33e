"""Every operator that vkep runs on Vulkan; importing this package declares them."""

from vkep.ops import (  # noqa: F401  # declare the operators
    arithmetic,
    attention,
    casts,
    contraction,
    contrib,
    contrib_attention,
    contrib_convolution,
    contrib_experts,
    contrib_fused,
    contrib_positions,
    contrib_quantized,
    contrib_standard,
    convolution,
    einsum,
    elementwise,
    gather,
    generators,
    ml,
    movement,
    normalization,
    pooling,
    qlinear,
    quantization,
    random,
    recurrent,
    reduction,
    resize,
    selection,
    signal,
    trees,
    unique,
)
from vkep.ops.registry import declared, find, operator

__all__ = ["declared", "find", "operator"]
