"""Selects the constants of a graph that become arguments: weights that Vulkan's kernels already have on the device."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from vkep.dtypes import DTYPES, DType
from vkep.graph.weights import Weight
from vkep.tosa.graph import Op, Value

#: smaller ones stay constants: device memory is allocated in units of this many bytes
LEAST_BYTES = 256
#: types with the same bytes in ONNX, in TOSA and in kernels
_TYPES = ("float32", "float16", "int32", "int16", "int8")
#: operands that TOSA 1.0 (the operators' argument tables, "Compile Time Constant") requires to be constants; also the
#: weights and bias of convolutions, whose layout differs between TOSA and ONNX and which drivers rearrange
_CONSTANT = {
    "avg_pool2d": (1, 2),
    "conv2d": (1, 2, 3, 4),
    "conv3d": (1, 2, 3, 4),
    "depthwise_conv2d": (1, 2, 3, 4),
    "transpose_conv2d": (1, 2, 3, 4),
    "matmul": (2, 3),
    "mul": (2,),
    "negate": (1, 2),
    "pad": (1, 2),
    "reshape": (1,),
    "rescale": (1, 2, 3, 4),
    "resize": (1, 2, 3),
    "slice": (1, 2),
    "table": (1,),
    "tile": (1,),
}


@dataclass(frozen=True)
class TosaWeight:
    """A weight that is an argument of the graph; ``shape`` is the graph's shape for the same bytes."""

    weight: Weight
    dtype: DType
    shape: tuple[int, ...]


def shareable(
    ops: Sequence[Op], results: Collection[Value], weights: Iterable[tuple[Weight, np.ndarray]], keys: Collection[str]
) -> list[tuple[Value, TosaWeight]]:
    """The constants among the operands that equal weights in ``keys`` byte for byte, and that every operation that
    reads them accepts as a tensor. ``weights`` are those that the graph was built from, with their arrays.
    """
    if not keys:
        return []
    by_place: dict[tuple[int, int], Weight] = {}
    for weight, array in weights:
        if array.flags.c_contiguous and array.nbytes >= LEAST_BYTES:
            by_place[array.ctypes.data, array.nbytes] = weight
    found: dict[Value, TosaWeight] = {}
    barred: set[Value] = {value for value in results if value.array is not None}
    for op in ops:
        for index, value in enumerate(op.operands):
            content = value.array
            if content is None or value.is_shape or value.dtype not in _TYPES:
                continue
            if index in _CONSTANT.get(op.name, ()):
                barred.add(value)
            elif value not in found and content.flags.c_contiguous:  # a view in another shape has the same bytes
                known = by_place.get((content.ctypes.data, content.nbytes))
                if known is not None and known.key in keys:
                    found[value] = TosaWeight(known, DTYPES[value.dtype], value.shape)
    return [(value, weight) for value, weight in found.items() if value not in barred]
