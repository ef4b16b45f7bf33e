"""A model whose initializers are replaced, or whose external data are in memory."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError

from vkep.dtypes import from_onnx
from vkep.errors import InvalidModelError
from vkep.graph.model import Model
from vkep.graph.normalize import bodies
from vkep.graph.weights import ArrayWeight, Weight


def with_initializers(model: Model, given: Mapping[str, np.ndarray]) -> Model:
    """Return ``model`` with the initializers that ``given`` names replaced by its arrays.

    Raises `ValueError` for a name that is not an initializer of the model's graph, and for an array of another type or
    shape.
    """
    weights: dict[str, Weight] = dict(model.graph.weights)
    for name, array in given.items():
        old = weights.get(name)
        if old is None:
            raise ValueError(f"initializers: {model.source} has no initializer named {name!r}")
        dtype = from_onnx(old.elem_type)
        if dtype is None or array.dtype != dtype.numpy or array.shape != tuple(old.shape):
            raise ValueError(
                f"initializers: {name!r} is given as {array.dtype} of shape {array.shape}, and the model's is {dtype} of shape "
                f"{tuple(old.shape)}"
            )
        weights[name] = ArrayWeight(name, np.array(array))
    graph = replace(model.graph, weights=weights)
    return replace(model, graph=graph, file_identity="")  # the file's plans do not apply to it


def without_files(proto: onnx.ModelProto, given: Collection[str], files: Mapping[str, bytes]) -> onnx.ModelProto:
    """Return ``proto`` without the external data that are not needed (initializers that ``given`` names, for `with_initializers`)
    or that ``files`` has by their location. ``proto`` is not changed; it is returned where both are empty.

    Raises `InvalidModelError` for data that end outside their file's bytes.
    """
    if not (given or files):
        return proto
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    for tensor in _tensors(made.graph):
        location = _location(tensor)
        if location in files:
            info = {e.key: e.value for e in tensor.external_data}
            content, start = files[location], int(info.get("offset") or 0)
            end = start + int(info.get("length") or len(content) - start)
            if not 0 <= start <= end <= len(content):
                raise InvalidModelError(
                    f"weight {tensor.name!r}: bytes {start} to {end} of {location!r}, which has {len(content)} bytes in memory"
                )
            tensor.raw_data = bytes(content[start:end])
        elif not location or tensor.name not in given:
            continue
        tensor.ClearField("external_data")
        tensor.ClearField("data_location")
    return made


def file_locations(path: Path) -> set[str]:
    """The external data files that a model's file names, relative to its folder. Raises `InvalidModelError`."""
    try:
        proto = onnx.load_model(path, load_external_data=False)
    except DecodeError as error:
        raise InvalidModelError(f"{path} is not an ONNX model: {error}") from error
    return {location for tensor in _tensors(proto.graph) if (location := _location(tensor))}


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        yield from (a.t for a in node.attribute if a.HasField("t"))
        for body in bodies(node):
            yield from _tensors(body)


def _location(tensor: onnx.TensorProto) -> str:
    if tensor.data_location != onnx.TensorProto.EXTERNAL:
        return ""
    return next((e.value for e in tensor.external_data if e.key == "location"), "")
