"""A model whose initializers are replaced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from vkep.dtypes import from_onnx
from vkep.graph.model import Model
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
