"""The ONNX operators of the benchmark models as PyTorch calls: enough to run their graphs with torch's kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onnx
import torch
import torch.nn.functional as F
from onnx import helper, numpy_helper

from tools.bench.peers.base import Unavailable

Tensor = Any  # torch is skipped by the type checker

TORCH_TYPES = {
    onnx.TensorProto.BOOL: torch.bool,
    onnx.TensorProto.FLOAT: torch.float32,
    onnx.TensorProto.FLOAT16: torch.float16,
    onnx.TensorProto.INT64: torch.int64,
}


class TorchGraph:
    """An ONNX graph with its weights on a torch device; calling it runs node by node."""

    def __init__(self, model: onnx.ModelProto, device: str) -> None:
        self.inputs = [value.name for value in model.graph.input]
        self.outputs = [value.name for value in model.graph.output]
        self._nodes = list(model.graph.node)
        unknown = sorted({node.op_type for node in self._nodes} - OPERATORS.keys())
        if unknown:
            raise Unavailable(f"no torch call is written for: {', '.join(unknown)}")
        self._weights: dict[str, Tensor] = {}
        # Shapes, axes and splits stay Python lists, since torch expects them on the host.
        self._lists: dict[str, list[int]] = {}
        for tensor in model.graph.initializer:
            array = numpy_helper.to_array(tensor)
            self._weights[tensor.name] = torch.from_numpy(array.copy()).to(device)
            if array.dtype.kind == "i" and array.ndim <= 1:
                self._lists[tensor.name] = array.reshape(-1).tolist()
        self._attributes = [{a.name: helper.get_attribute_value(a) for a in node.attribute} for node in self._nodes]

    def __call__(self, inputs: dict[str, Tensor]) -> list[Tensor]:
        """Outputs in the graph's order, for input tensors by name on the graph's device."""
        values = {**self._weights, **inputs}
        for node, attributes in zip(self._nodes, self._attributes, strict=True):
            arguments = [values[name] if name else None for name in node.input]
            lists = [self._lists.get(name) for name in node.input]
            result = OPERATORS[node.op_type](arguments, lists, attributes)
            results = result if isinstance(result, list | tuple) else [result]
            values.update(zip(node.output, results, strict=True))
        return [values[name] for name in self.outputs]


Arguments = Sequence[Any]


def _conv(x: Arguments, lists: Arguments, a: dict[str, Any]) -> Tensor:
    top, left, bottom, right = a.get("pads", [0, 0, 0, 0])
    data, padding = x[0], [top, left]
    if (top, left) != (bottom, right):
        data, padding = F.pad(data, [left, right, top, bottom]), [0, 0]
    bias = x[2] if len(x) > 2 else None
    return F.conv2d(data, x[1], bias, a.get("strides", 1), padding, a.get("dilations", 1), a.get("group", 1))


def _max_pool(x: Arguments, lists: Arguments, a: dict[str, Any]) -> Tensor:
    return F.max_pool2d(x[0], a["kernel_shape"], a.get("strides", 1), a.get("pads", [0, 0, 0, 0])[:2])


def _reshape(x: Arguments, lists: Arguments, a: dict[str, Any]) -> Tensor:
    copies = not a.get("allowzero", 0)
    return x[0].reshape([x[0].shape[i] if size == 0 and copies else size for i, size in enumerate(lists[1])])


def _gemm(x: Arguments, lists: Arguments, a: dict[str, Any]) -> Tensor:
    left = x[0].T if a.get("transA") else x[0]
    if a.get("alpha", 1.0) == a.get("beta", 1.0) == 1.0 and a.get("transB"):
        return F.linear(left, x[1], x[2] if len(x) > 2 else None)
    product = a.get("alpha", 1.0) * (left @ (x[1].T if a.get("transB") else x[1]))
    return product + a.get("beta", 1.0) * x[2] if len(x) > 2 else product


def _gather(x: Arguments, lists: Arguments, a: dict[str, Any]) -> Tensor:
    axis = a.get("axis", 0)
    if axis == 0 and x[0].ndim == 2:
        return F.embedding(x[1], x[0])
    picked = x[0].index_select(axis, x[1].reshape(-1))
    return picked.reshape(*x[0].shape[:axis], *x[1].shape, *x[0].shape[axis + 1 :])


def _slice(x: Arguments, lists: Arguments, a: dict[str, Any]) -> Tensor:
    where = [slice(None)] * x[0].ndim
    axes = lists[3] if len(lists) > 3 else range(x[0].ndim)
    for axis, start, end in zip(axes, lists[1], lists[2], strict=False):
        where[axis] = slice(start, end)
    return x[0][tuple(where)]


def _reduce(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda x, lists, a: function(x[0], dim=lists[1], keepdim=bool(a.get("keepdims", 1)))


OPERATORS: dict[str, Callable[[Arguments, Arguments, dict[str, Any]], Any]] = {
    "Add": lambda x, lists, a: x[0] + x[1],
    "And": lambda x, lists, a: x[0] & x[1],
    "Cast": lambda x, lists, a: x[0].to(TORCH_TYPES[a["to"]]),
    "Clip": lambda x, lists, a: torch.clamp(x[0], x[1], x[2]),
    "Concat": lambda x, lists, a: torch.cat(list(x), a["axis"]),
    "Conv": _conv,
    "Div": lambda x, lists, a: x[0] / x[1],
    "Erf": lambda x, lists, a: torch.erf(x[0]),
    "Gather": _gather,
    "GatherElements": lambda x, lists, a: torch.gather(x[0], a.get("axis", 0), x[1]),
    "GatherND": lambda x, lists, a: x[0][tuple(x[1].unbind(-1))],
    "Gemm": _gemm,
    "LayerNormalization": lambda x, lists, a: F.layer_norm(x[0], x[1].shape, x[1], x[2], a.get("epsilon", 1e-5)),
    "MatMul": lambda x, lists, a: x[0] @ x[1],
    "MaxPool": _max_pool,
    "Mul": lambda x, lists, a: x[0] * x[1],
    "ReduceMean": _reduce(torch.mean),
    "ReduceSum": _reduce(torch.sum),
    "Relu": lambda x, lists, a: F.relu(x[0]),
    "Reshape": _reshape,
    "Sigmoid": lambda x, lists, a: torch.sigmoid(x[0]),
    "Slice": _slice,
    "Softmax": lambda x, lists, a: torch.softmax(x[0], a.get("axis", -1)),
    "Split": lambda x, lists, a: torch.split(x[0], lists[1], a.get("axis", 0)),
    "Tanh": lambda x, lists, a: torch.tanh(x[0]),
    "Transpose": lambda x, lists, a: x[0].permute(a["perm"]),
    "Where": lambda x, lists, a: torch.where(x[0], x[1], x[2]),
}
