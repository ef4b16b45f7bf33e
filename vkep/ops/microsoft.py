"""Common to the operators of ONNX Runtime's own domain, com.microsoft: optional outputs, wide types, fused activations."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from vkep.dtypes import DTYPES, FLOAT32
from vkep.ir.builder import Builder
from vkep.ir.tensor import Tensor
from vkep.ops.registry import at_version

MICROSOFT = "com.microsoft"


def wants_output(b: Builder, index: int) -> bool:
    """Whether the node being lowered names its output ``index``."""
    return b.node is None or (len(b.node.outputs) > index and bool(b.node.outputs[index]))


def outputs(b: Builder, *made: Tensor | None) -> list[Tensor]:
    """The results in order up to the last that the node names; None means an output that the node must not name."""
    count = len(b.node.outputs) if b.node is not None else len(made)
    result = []
    for index, tensor in enumerate(made[:count]):
        if tensor is None and wants_output(b, index):
            b.decline(f"output {index} is not computed")
        result.append(tensor if tensor is not None else b.full((), 0, FLOAT32))
    return result


def in_float32(function: Callable[..., Any]) -> Callable[..., Any]:
    """An operator function that computes bfloat16 in float32, since no kernel of products stores it."""

    @functools.wraps(function)
    def lower(b: Builder, *inputs: Tensor | None, **attributes: Any) -> Any:
        narrow = DTYPES["bfloat16"]
        if all(t is None or t.dtype is not narrow for t in inputs):
            return function(b, *inputs, **attributes)
        wide = [b.cast(t, FLOAT32) if t is not None and t.dtype is narrow else t for t in inputs]
        made = function(b, *wide, **attributes)
        results = made if isinstance(made, list) else [made]
        results = [b.cast(t, narrow) if t.dtype is FLOAT32 else t for t in results]
        return results if isinstance(made, list) else results[0]

    return lower


#: ONNX's operators that fused ones name, and the opset by which they take numbers as attributes
_ACTIVATIONS = (
    *("Clip", "Elu", "HardSigmoid", "LeakyRelu", "Relu", "Selu", "Sigmoid", "Softplus", "Softsign", "Tanh"),
    "ThresholdedRelu",
)
_ACTIVATIONS_OPSET = 10


def activated(b: Builder, x: Tensor, activation: str, *values: float, **named: float | None) -> Tensor:
    """The activation that a fused operator names, with its attributes in the order of ONNX's (Clip: the lower bound first) or by
    name; those that are None, or that the activation does not have, are left out."""
    if not activation:
        return x
    if activation not in _ACTIVATIONS:
        b.decline(f"activation {activation!r}; the kernels take {', '.join(_ACTIVATIONS)}")
    definition = at_version("", activation, _ACTIVATIONS_OPSET)
    names = ("min", "max") if activation == "Clip" else tuple(definition.signature.attributes)
    given = {name: value for name, value in named.items() if name in names and value is not None}
    result: Tensor = definition.function(b, x, **dict(zip(names, values, strict=False)), **given)
    return result
