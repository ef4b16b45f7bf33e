"""ExecuTorch's Vulkan delegates as models: every operator of its Vulkan backend, written in ONNX's operators."""

from vkep.aten import (  # noqa: F401  # declare the operators
    attention,
    blocks,
    convolution,
    int8,
    integers,
    movement,
    pointwise,
    quantization,
    reduction,
    resampling,
    training,
)
from vkep.aten.importer import Border, ImportedGraph, State, import_vk_graph, unsupported_operators
from vkep.aten.registry import AtenOperator, aten, declared, find

__all__ = [
    "AtenOperator",
    "Border",
    "ImportedGraph",
    "State",
    "aten",
    "declared",
    "find",
    "import_vk_graph",
    "unsupported_operators",
]
