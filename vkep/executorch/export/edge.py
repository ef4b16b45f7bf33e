"""Nodes of an edge program in the form that the placement policy reads: their kind under ONNX's names, and their
cost."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

#: operators (without their overload) that the policy knows under ONNX's names
_KINDS = {
    "aten.convolution": "Conv",
    "aten.conv1d": "Conv",
    "aten.conv2d": "Conv",
    "aten.conv3d": "Conv",
    "aten.mm": "MatMul",
    "aten.bmm": "MatMul",
    "aten.matmul": "MatMul",
    "aten.addmm": "Gemm",
    "aten.linear": "Gemm",
    "aten.max_pool2d": "MaxPool",
    "aten.max_pool2d_with_indices": "MaxPool",
    "aten.avg_pool2d": "AveragePool",
    "aten._adaptive_avg_pool2d": "AveragePool",
    "aten.adaptive_avg_pool2d": "AveragePool",
}


@dataclass(frozen=True, eq=False)
class EdgeNode:
    """A node as `vkep.placement.policy.OfferedNode`."""

    fx: torch.fx.Node

    @property
    def name(self) -> str:
        """The name of the node in the exported graph."""
        return self.fx.name

    @property
    def outputs(self) -> tuple[str, ...]:
        """The node's one output."""
        return (self.fx.name,)

    @property
    def op_type(self) -> str:
        """The operator's name, with its overload."""
        name = operator_name(self.fx)
        if name.startswith(("quantized_decomposed.quantize_per", "torchao.quantize_affine")):
            return "QuantizeLinear"
        if is_dequantize(self.fx):
            return "DequantizeLinear"
        return _KINDS.get(name, name)


def target_name(node: torch.fx.Node) -> str:
    """The operator with its overload, as ``aten.add.Tensor``."""
    target = getattr(node.target, "_op", node.target)  # an edge operator names the one that it wraps
    return str(target) if isinstance(target, torch._ops.OpOverload) else getattr(target, "__name__", str(target))


def operator_name(node: torch.fx.Node) -> str:
    """The operator without its overload, as ``aten.add``."""
    parts = target_name(node).split(".")
    return ".".join(parts[:2])


def is_dequantize(node: torch.fx.Node) -> bool:
    """Whether the node dequantizes its input."""
    return operator_name(node).startswith(("quantized_decomposed.dequantize_per", "torchao.dequantize_affine"))


def is_getitem(node: torch.fx.Node) -> bool:
    """Whether the node only selects one of another node's results."""
    return node.op == "call_function" and node.target is operator.getitem


def graph_modules(module: torch.fx.GraphModule) -> list[torch.fx.GraphModule]:
    """The module and the modules of its control flow."""
    return [m for m in module.modules() if isinstance(m, torch.fx.GraphModule)]


def calls(module: torch.fx.GraphModule) -> Iterator[torch.fx.Node]:
    """The nodes that compute something, in topological order."""
    return (node for node in module.graph.nodes if node.op == "call_function")


def flops(node: torch.fx.Node) -> int:
    """Multiplications and additions of sums of products (torch's own formulas), and one operation for each element of
    any other node's results. Symbolic sizes count as their hints."""
    result = node.meta.get("val")
    results = [v for v in (result if isinstance(result, (tuple, list)) else [result]) if isinstance(v, torch.Tensor)]
    elements = sum(math.prod(map(_size, value.shape)) for value in results)
    if is_getitem(node):
        return 0
    if operator_name(node) == "aten.linear":
        return 2 * elements * _size(node.args[1].meta["val"].shape[-1])
    packet = getattr(getattr(node.target, "_op", node.target), "overloadpacket", None)
    formula = flop_registry.get(packet)
    if formula is None:
        return elements
    values = [torch.fx.node.map_arg(a, lambda n: _hinted(n.meta["val"])) for a in node.args]
    try:
        return int(formula(*values, **node.kwargs, out_val=_hinted(result)))
    except (TypeError, ValueError, AssertionError):  # arguments that the formula does not take
        return elements


def _hinted(value: Any) -> Any:
    """Replace symbolic sizes by their hints: converting a symbolic size to a number would fix that size in the whole
    program."""
    if isinstance(value, torch.Tensor):
        return torch.empty([_size(d) for d in value.shape], dtype=value.dtype, device="meta")
    if isinstance(value, (tuple, list)):
        return type(value)(map(_hinted, value))
    return _size(value) if isinstance(value, torch.SymInt) else value


def _size(dimension: Any) -> int:
    hint = getattr(getattr(dimension, "node", None), "hint", None)
    return int(dimension if isinstance(dimension, int) else hint if hint is not None else 1)
