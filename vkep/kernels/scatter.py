"""ScatterElements and ScatterND: a copy of the data, then updates into it.

With a reduction, duplicate indices are right and repeat exactly: one lane applies, in order, all updates that may meet.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gpu_shared.capabilities import DeviceCapabilities
from vkep.kernels.fastdiv import magic_fields, magic_params
from vkep.kernels.gather import copy, index_words, magic_dims
from vkep.kernels.kernel import Kernel, KernelCall, Operand
from vkep.kernels.launch import (
    MAX_RANK,
    ceil_div,
    contiguous_strides,
    element_count,
    element_defines,
    element_type,
    fields8,
    grid,
    lanes,
    numbered,
)

_OPERANDS = (Operand("updates"), Operand("indices"), Operand("y", writes=True))

#: GLSL of a reduction of the old value a and the update b
REDUCTIONS = {"none": "b", "add": "a + b", "mul": "a * b", "max": "max(a, b)", "min": "min(a, b)"}
_NAN_REDUCTIONS = {"max": "(b > a || isnan(b)) ? b : a", "min": "(b < a || isnan(b)) ? b : a"}


def _defines(what: str, reduction: str, dtype: str, index_dtype: str) -> dict[str, str]:
    if reduction not in REDUCTIONS:
        raise ValueError(f"{what}: reduction is {reduction!r}, expected one of {list(REDUCTIONS)}")
    code = REDUCTIONS[reduction]
    if element_type(dtype).kind == "float":
        code = _NAN_REDUCTIONS.get(reduction, code)
    defines = element_defines(dtype) | {"REDUCE": code, "INDEX_WORDS": index_words(index_dtype)}
    return defines | ({"REPLACE": "1"} if reduction == "none" else {})


def _ahead(what: str) -> tuple[dict[str, str], ...]:
    """Variants to build ahead: indices of models are int64."""
    return tuple(_defines(what, r, t, "int64") for r in REDUCTIONS for t in ("float32", "float16", "int64"))


SCATTER_ELEMENTS = Kernel(
    "scatter_elements.comp",
    operands=_OPERANDS,
    params=(
        ("total", "uint"),
        ("extent", "uint"),
        ("count", "uint"),
        *fields8("dim", "mul", "shift", "stride", "update_stride"),
    ),
    spec={"RANK": 1, "AXIS": 0},
    variants=_ahead("scatter elements"),
)
SCATTER_ND = Kernel(
    "scatter_nd.comp",
    operands=_OPERANDS,
    params=(("total", "uint"), *magic_fields("inner"), ("count", "uint"), *fields8("extent", "stride")),
    spec={"KEYS": 1},
    variants=_ahead("scatter nd"),
)


def _copy_data(nbytes: int, itemsize: int, caps: DeviceCapabilities, data: Any, y: Any) -> list[KernelCall]:
    return [] if data is None else copy(nbytes, caps, data, y, alignment=itemsize)


def scatter_elements(
    shape: Sequence[int],
    indices_shape: Sequence[int],
    axis: int,
    dtype: str,
    index_dtype: str,
    caps: DeviceCapabilities,
    data: Any,
    indices: Any,
    updates: Any,
    y: Any,
    reduction: str = "none",
) -> list[KernelCall]:
    """ONNX ScatterElements into ``y`` of ``shape``: a copy of ``data`` with ``updates`` (of ``indices_shape``) put, or
    reduced ("add", "mul", "max", "min"), at their own coordinates with ``axis`` replaced by the index.

    ``data`` None says that ``y`` already holds it. Without a reduction, duplicate indices are undefined, as in ONNX.
    Raises `ValueError` for shapes that do not fit, or an unknown reduction.
    """
    rank = len(shape)
    if not 1 <= rank <= MAX_RANK or len(indices_shape) != rank or not 0 <= axis < rank:
        raise ValueError(
            f"scatter elements: data {tuple(shape)}, indices {tuple(indices_shape)}, axis {axis}; "
            f"expected equal ranks of 1 to {MAX_RANK} and an axis within"
        )
    if any(n > m for d, (n, m) in enumerate(zip(indices_shape, shape, strict=True)) if d != axis):
        raise ValueError(
            f"scatter elements: indices {tuple(indices_shape)} reach beyond data {tuple(shape)} off axis {axis}"
        )
    defines = _defines("scatter elements", reduction, dtype, index_dtype)
    itemsize = element_type(dtype).itemsize
    calls = _copy_data(element_count("scatter data", *shape) * itemsize, itemsize, caps, data, y)
    count = element_count("scatter updates", *indices_shape)
    if not count:
        return calls
    if not shape[axis]:
        raise ValueError(
            f"scatter elements: axis {axis} of data {tuple(shape)} is empty, expected at least one element"
        )
    walked = 1 if reduction == "none" else indices_shape[axis]
    dims = [n if d != axis or walked == 1 else 1 for d, n in enumerate(indices_shape)]
    total = math.prod(dims)
    local = lanes(caps, total)
    call = SCATTER_ELEMENTS.call(
        grid=grid(ceil_div(total, local)),
        operands={"updates": updates, "indices": indices, "y": y},
        params={
            "total": total,
            "extent": shape[axis],
            "count": walked,
            **magic_dims(dims),
            **numbered("stride", contiguous_strides(shape), 0),
            **numbered("update_stride", contiguous_strides(indices_shape), 0),
        },
        spec={"RANK": rank, "AXIS": axis},
        defines=defines,
        local_size=(local,),
    )
    return [*calls, call]


def scatter_nd(
    shape: Sequence[int],
    indices_shape: Sequence[int],
    dtype: str,
    index_dtype: str,
    caps: DeviceCapabilities,
    data: Any,
    indices: Any,
    updates: Any,
    y: Any,
    reduction: str = "none",
) -> list[KernelCall]:
    """ONNX ScatterND into ``y`` of ``shape``: as `scatter_elements`, coordinates in the last axis of ``indices``."""
    keys = indices_shape[-1] if indices_shape else 0
    if not 1 <= keys <= min(len(shape), MAX_RANK):
        raise ValueError(
            f"scatter nd: data {tuple(shape)}, indices {tuple(indices_shape)}; expected 1 to {MAX_RANK} coordinates, "
            f"at most data's rank"
        )
    defines = _defines("scatter nd", reduction, dtype, index_dtype)
    itemsize = element_type(dtype).itemsize
    calls = _copy_data(element_count("scatter data", *shape) * itemsize, itemsize, caps, data, y)
    rows, extents = math.prod(indices_shape[:-1]), tuple(shape[:keys])
    inner = math.prod(shape[keys:])
    if not element_count("scatter updates", rows, inner):
        return calls
    if not math.prod(extents):
        raise ValueError(f"scatter nd: indices into empty axes {extents}, expected at least one element")
    walked = 1 if reduction == "none" else rows
    total = rows * inner // walked
    local = lanes(caps, total)
    call = SCATTER_ND.call(
        grid=grid(ceil_div(total, local)),
        operands={"updates": updates, "indices": indices, "y": y},
        params={
            "total": total,
            **magic_params("inner", inner),
            "count": walked,
            **numbered("extent", extents, 1),
            **numbered("stride", [s * inner for s in contiguous_strides(extents)], 0),
        },
        spec={"KEYS": keys},
        defines=defines,
        local_size=(local,),
    )
    return [*calls, call]
