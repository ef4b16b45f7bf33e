"""Normalizes parts of a model that the ONNX specification leaves open, or that models contain against it: the order of
nodes, the alias of the empty domain, sparse initializers, nodes without inputs and outputs."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator

import numpy as np
import onnx
from onnx import numpy_helper

from vkep import dtypes
from vkep.errors import InvalidModelError, UnsupportedModelError
from vkep.graph.weights import tensor_array, tensor_shape

_ALIAS = "ai.onnx"
#: bytes of a model's sparse tensors in dense form: this, and so many times their bytes in the model
MOST_DENSE_BYTES, MOST_DENSE_OF_STORED = 1 << 30, 64
#: bytes of an element of a type that vkep does not have
_WIDEST = 16


def normalize(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """Return the model with the nodes of each graph in topological order, the domain ``ai.onnx`` written as the empty
    one, dense initializers and constants, and no node without inputs and outputs. The result is ``model`` itself where nothing
    changes, else a copy.

    Nodes that are in order keep their places. Raises `InvalidModelError` where nodes form a cycle or a sparse
    initializer is invalid, `UnsupportedModelError` where the dense initializers would be too large.
    """
    if all(_is_normal(graph) for graph in graphs(model.graph)):
        return model
    _check_dense_bytes(model, name)
    copied = onnx.ModelProto()
    copied.CopyFrom(model)
    for graph in graphs(copied.graph):
        _densify(graph, name)
        _sort(graph, name)
        for k in reversed(range(len(graph.node))):  # `remove` would compare each with all nodes before it
            if _is_idle(graph.node[k]):
                del graph.node[k]
        for node in graph.node:
            if node.domain == _ALIAS:
                node.domain = ""
    return copied


def graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """The graph and the bodies of its nodes, the innermost first."""
    for node in graph.node:
        for body in bodies(node):
            yield from graphs(body)
    yield graph


def bodies(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """The graphs among a node's attributes."""
    return [g for a in node.attribute for g in ([a.g] if a.type == onnx.AttributeProto.GRAPH else a.graphs)]


def reads(node: onnx.NodeProto) -> list[str]:
    """The values that a node reads, itself and in its bodies."""
    return [n for n in node.input if n] + [n for body in bodies(node) for n in captured(body)]


def captured(body: onnx.GraphProto) -> list[str]:
    """Names that a body reads but does not define."""
    defined = {v.name for v in body.input} | {t.name for t in body.initializer}
    defined.update(t.values.name for t in body.sparse_initializer)
    defined.update(n for node in body.node for n in node.output)
    read = [n for node in body.node for n in reads(node)] + [o.name for o in body.output]
    return [n for n in read if n not in defined]


def _is_normal(graph: onnx.GraphProto) -> bool:
    if (
        graph.sparse_initializer
        or _sparse_values(graph)
        or any(node.domain == _ALIAS or _is_idle(node) for node in graph.node)
    ):
        return False
    return _is_sorted(graph)


def _is_idle(node: onnx.NodeProto) -> bool:
    """Whether a node has neither inputs nor outputs, and so no effect."""
    return not any(node.output) and not any(node.input)


def _made(graph: onnx.GraphProto) -> dict[str, int]:
    """The node that computes each name; inputs and initializers are left out."""
    given = {v.name for v in graph.input} | {t.name for t in graph.initializer} | {""}
    return {name: k for k, node in enumerate(graph.node) for name in node.output if name not in given}


def _is_sorted(graph: onnx.GraphProto) -> bool:
    later = set(_made(graph))
    for node in graph.node:
        if any(name in later for name in reads(node)):
            return False
        later.difference_update(node.output)
    return True


def _sort(graph: onnx.GraphProto, where: str) -> None:
    if _is_sorted(graph):
        return
    nodes, maker = list(graph.node), _made(graph)
    waits = [{maker[name] for name in reads(node) if name in maker} for node in nodes]
    users: list[list[int]] = [[] for _ in nodes]
    for k, makers in enumerate(waits):
        for other in makers:
            users[other].append(k)
    missing = [len(makers) for makers in waits]
    ready = [k for k, count in enumerate(missing) if not count]
    order: list[int] = []
    while ready:  # of those whose inputs are available, the first in the file
        k = heapq.heappop(ready)
        order.append(k)
        for user in users[k]:
            missing[user] -= 1
            if not missing[user]:
                heapq.heappush(ready, user)
    if len(order) < len(nodes):
        stuck = next(node for k, node in enumerate(nodes) if missing[k])
        raise InvalidModelError(
            f"{where}: {stuck.op_type} {stuck.name!r} waits for its own output: the graph has a circle"
        )
    copies = [onnx.NodeProto.FromString(nodes[k].SerializeToString()) for k in order]
    del graph.node[:]
    graph.node.extend(copies)


def _sparse_values(graph: onnx.GraphProto) -> list[onnx.AttributeProto]:
    """The attributes of the graph's Constants that are sparse tensors."""
    constants = (node for node in graph.node if node.op_type == "Constant" and node.domain in ("", _ALIAS))
    return [a for node in constants for a in node.attribute if a.type == onnx.AttributeProto.SPARSE_TENSOR]


def _densify(graph: onnx.GraphProto, where: str) -> None:
    """Convert sparse initializers and Constants to dense ones."""
    for sparse in graph.sparse_initializer:
        graph.initializer.append(_dense(sparse, f"{where}: sparse initializer {sparse.values.name!r}"))
    del graph.sparse_initializer[:]
    for attribute in _sparse_values(graph):
        value = onnx.AttributeProto(name="value", type=onnx.AttributeProto.TENSOR)
        value.t.CopyFrom(_dense(attribute.sparse_tensor, f"{where}: sparse_value of a Constant"))
        attribute.CopyFrom(value)


def _dense(sparse: onnx.SparseTensorProto, what: str) -> onnx.TensorProto:
    """A sparse tensor, with values at linear indices (n) or at coordinates (n, rank), as a dense one."""
    name, shape = sparse.values.name, tuple(sparse.dims)
    try:
        values = tensor_array(sparse.values, "values")
        indices = tensor_array(sparse.indices, "indices").astype(np.int64)
        if indices.ndim == 2:
            indices = np.ravel_multi_index(tuple(indices.T), shape)
        if indices.shape != values.shape or (
            indices.size and not 0 <= indices.min() <= indices.max() < math.prod(shape)
        ):
            raise ValueError(f"indices of shape {list(indices.shape)} for {values.size} values of shape {list(shape)}")
        dense = np.zeros(shape, values.dtype)
        dense.reshape(-1)[indices] = values
        return numpy_helper.from_array(dense, name)
    except (TypeError, ValueError) as error:
        raise InvalidModelError(f"{what}: {error}") from None


def _check_dense_bytes(model: onnx.ModelProto, where: str) -> None:
    """Check the shapes of sparse tensors, and bound the memory that all of them together take in dense form."""
    dense, stored = 0, 0
    for graph in graphs(model.graph):
        for sparse in (*graph.sparse_initializer, *(a.sparse_tensor for a in _sparse_values(graph))):
            dtype = dtypes.from_onnx(sparse.values.data_type)
            shape = tensor_shape(sparse.dims, f"{where}: sparse initializer {sparse.values.name!r}")
            dense += math.prod(shape) * (dtype.itemsize if dtype else _WIDEST)
            stored += sparse.ByteSize()
    most = MOST_DENSE_BYTES + MOST_DENSE_OF_STORED * stored
    if dense > most:
        raise UnsupportedModelError(
            f"{where}: its sparse initializers have {dense} bytes in dense form, expected at most {most}: "
            f"{MOST_DENSE_BYTES}, and {MOST_DENSE_OF_STORED} times their {stored} bytes in the model"
        )
