"""Copies that follow indices: Gather, GatherElements, GatherND; and the plain copy.

Elements are moved as untyped units, so every element type is served. Indices are int32 or int64; a negative one counts
from the end, one out of range is clamped (ONNX leaves it undefined; nothing is read out of bounds).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpu_shared.capabilities import DeviceCapabilities
from vkep.kernels.fastdiv import magic, magic_fields, magic_params
from vkep.kernels.kernel import Kernel, KernelCall, Operand
from vkep.kernels.launch import (
    MAX_RANK,
    UNITS,
    ceil_div,
    contiguous_strides,
    element_count,
    element_type,
    fields8,
    grid,
    is_cpu,
    lanes,
    numbered,
    unit_for,
)
from vkep.kernels.problem import Need, Problem, alignment_of
from vkep.kernels.select import Candidate, Emission, implement

_DATA = (Operand("x"), Operand("indices"), Operand("y", writes=True))


def index_words(dtype: str) -> str:
    """The INDEX_WORDS define for an index type."""
    try:
        return {"int32": "1", "int64": "2"}[dtype]
    except KeyError:
        raise ValueError(f"kernels: index type is {dtype!r}, expected 'int32' or 'int64'") from None


def _gather_defines(unit: int, index_dtype: str) -> dict[str, str]:
    return {"UNIT_T": UNITS[unit], "INDEX_WORDS": index_words(index_dtype)}


def _ahead(*units: int) -> tuple[dict[str, str], ...]:
    """Variants to build ahead."""
    return tuple(_gather_defines(unit, words) for unit in units for words in ("int32", "int64"))


def _gather_reach(call: KernelCall) -> Mapping[str, int]:
    unit, row = call.size_of("UNIT_T"), call["inner"]
    return {
        "x": ceil_div(call["total"], row * call["count"]) * call["axis"] * row * unit,
        "indices": call["count"] * 4 * int(call.define("INDEX_WORDS")),
        "y": call["total"] * unit,
    }


GATHER = Kernel(
    "gather.comp",
    operands=_DATA,
    params=(("total", "uint"), ("axis", "uint"), *magic_fields("inner", "count")),
    spec={"PER_LANE": 1},
    variants=_ahead(*UNITS),
    reach=_gather_reach,
)
GATHER_ELEMENTS = Kernel(
    "gather_elements.comp",
    operands=_DATA,
    params=(("total", "uint"), ("extent", "uint"), *fields8("dim", "mul", "shift", "stride")),
    spec={"RANK": 1, "AXIS": 0},
    variants=_ahead(1, 2, 4, 8),
)
GATHER_ND = Kernel(
    "gather_nd.comp",
    operands=_DATA,
    params=(("total", "uint"), *magic_fields("inner", "count"), ("batch_stride", "uint"), *fields8("extent", "stride")),
    spec={"KEYS": 1},
    variants=_ahead(*UNITS),
)
COPY = Kernel(
    "copy.comp",
    operands=(Operand("x"), Operand("y", writes=True)),
    params=(("total", "uint"),),
    spec={"PER_LANE": 1},
    variants=tuple({"UNIT_T": unit} for unit in UNITS.values()),
)


def magic_dims(dims: Sequence[int]) -> dict[str, int]:
    """``dim*``, ``mul*`` and ``shift*`` of ``shaders/dims.glsl``."""
    numbers = [magic(max(d, 1)) for d in dims]
    return (
        numbered("dim", dims, 1)
        | numbered("mul", [m for m, _ in numbers], 1)
        | numbered("shift", [s for _, s in numbers], 0)
    )


def copy(nbytes: int, caps: DeviceCapabilities, x: Any, y: Any, *, alignment: int = 4) -> list[KernelCall]:
    """``y`` = ``nbytes`` bytes of ``x``; ``alignment`` in bytes divides both addresses."""
    if not nbytes:
        return []
    unit = unit_for(nbytes, alignment)
    total = element_count("copy", nbytes // unit)
    per_lane = _units_per_lane(total, caps)
    local = lanes(caps, total // per_lane)
    return [
        COPY.call(
            grid=grid(ceil_div(total, local * per_lane)),
            operands={"x": x, "y": y},
            params={"total": total},
            spec={"PER_LANE": per_lane},
            defines={"UNIT_T": UNITS[unit]},
            local_size=(local,),
        )
    ]


def _units_per_lane(total: int, caps: DeviceCapabilities) -> int:
    """How many units a lane moves: enough to amortise starting a lane, few enough to keep the device busy."""
    return 8 if is_cpu(caps) and total >= 1024 else 1


@dataclass(frozen=True)
class GatherProblem(Problem):
    """``y`` [outer, count, inner] = ``x`` [outer, axis, inner] at ``indices`` [count] of its middle (ONNX Gather).

    ``alignment`` (bytes) divides the addresses of x and y: with 16, rows move 16 bytes at a time.
    """

    outer: int
    axis: int
    inner: int
    count: int
    dtype: str
    index_dtype: str
    alignment: int = 1

    def needs(self) -> tuple[Need, ...]:
        return (
            Need("x", self.dtype, (self.outer, self.axis, self.inner), flat=True),
            Need("indices", self.index_dtype, (self.count,), flat=True),
        )

    def makes(self) -> tuple[Need, ...]:
        return (Need("y", self.dtype, (self.outer, self.count, self.inner), flat=True),)

    def placed(self, operands: Mapping[str, Any]) -> GatherProblem:
        return replace(self, alignment=alignment_of(operands["x"], operands["y"]))


def _takes_gather(problem: GatherProblem, caps: DeviceCapabilities) -> str:
    return "indices into an empty axis" if not problem.axis else ""


def _gather(problem: GatherProblem, e: Emission) -> list[KernelCall]:
    itemsize = element_type(problem.dtype).itemsize
    unit = unit_for(problem.inner * itemsize, max(problem.alignment, itemsize))
    units = problem.inner * itemsize // unit
    total = element_count("gather output", problem.outer, problem.count, units)
    per_lane = _units_per_lane(total, e.caps)
    local = lanes(e.caps, total // per_lane)
    return [
        GATHER.call(
            grid=grid(ceil_div(total, local * per_lane)),
            operands=e.operands,
            params={
                "total": total,
                "axis": problem.axis,
                **magic_params("inner", units),
                **magic_params("count", problem.count),
            },
            spec={"PER_LANE": per_lane},
            defines=_gather_defines(unit, problem.index_dtype),
            local_size=(local,),
        )
    ]


implement(GatherProblem, Candidate("gather", _gather, when=_takes_gather))


def gather_elements(
    shape: Sequence[int],
    indices_shape: Sequence[int],
    axis: int,
    itemsize: int,
    index_dtype: str,
    caps: DeviceCapabilities,
    x: Any,
    indices: Any,
    y: Any,
) -> list[KernelCall]:
    """ONNX GatherElements: ``y[c]`` = ``x[c with c[axis] = indices[c]]``; ``y`` has ``indices_shape``, rank at most 8.

    Raises `ValueError` where indices reach beyond ``x`` (rank ``shape``) outside of ``axis``.
    """
    rank = len(shape)
    if not 1 <= rank <= MAX_RANK or len(indices_shape) != rank or not 0 <= axis < rank:
        raise ValueError(
            f"gather elements: data {tuple(shape)}, indices {tuple(indices_shape)}, axis {axis}; "
            f"expected equal ranks of 1 to {MAX_RANK} and an axis within"
        )
    if any(n > m for d, (n, m) in enumerate(zip(indices_shape, shape, strict=True)) if d != axis):
        raise ValueError(
            f"gather elements: indices {tuple(indices_shape)} reach beyond data {tuple(shape)} off axis {axis}"
        )
    element_count("gather elements data", *shape)
    total = element_count("gather elements output", *indices_shape)
    if not total:
        return []
    if not shape[axis]:
        raise ValueError(f"gather elements: axis {axis} of data {tuple(shape)} is empty, expected at least one element")
    local = lanes(caps, total)
    return [
        GATHER_ELEMENTS.call(
            grid=grid(ceil_div(total, local)),
            operands={"x": x, "indices": indices, "y": y},
            params={
                "total": total,
                "extent": shape[axis],
                **magic_dims(indices_shape),
                **numbered("stride", contiguous_strides(shape), 0),
            },
            spec={"RANK": rank, "AXIS": axis},
            defines=_gather_defines(itemsize, index_dtype),
            local_size=(local,),
        )
    ]


def gather_nd(
    shape: Sequence[int],
    indices_shape: Sequence[int],
    batch_dims: int,
    itemsize: int,
    index_dtype: str,
    caps: DeviceCapabilities,
    x: Any,
    indices: Any,
    y: Any,
    *,
    alignment: int | None = None,
) -> list[KernelCall]:
    """ONNX GatherND: the last axis of ``indices`` holds coordinates into ``x``'s axes after the first ``batch_dims``.

    ``alignment`` as for `gather`. Raises `ValueError` for shapes that the operator does not allow.
    """
    keys = indices_shape[-1] if indices_shape else 0
    if not 1 <= keys <= min(len(shape) - batch_dims, MAX_RANK) or tuple(shape[:batch_dims]) != tuple(
        indices_shape[:batch_dims]
    ):
        raise ValueError(
            f"gather nd: data {tuple(shape)}, indices {tuple(indices_shape)}, batch_dims {batch_dims}; expected equal "
            f"batch axes and 1 to {MAX_RANK} coordinates that data's other axes can take"
        )
    element_count("gather nd data", *shape)
    extents = tuple(shape[batch_dims : batch_dims + keys])
    inner_elements = math.prod(shape[batch_dims + keys :])
    rows = element_count("gather nd indices", *indices_shape[:-1])
    if not element_count("gather nd output", rows, inner_elements):
        return []
    if not math.prod(extents):
        raise ValueError(f"gather nd: indices into empty axes {extents}, expected at least one element")
    unit = unit_for(inner_elements * itemsize, alignment or itemsize)
    inner = inner_elements * itemsize // unit
    total = element_count("gather nd output", rows, inner)
    local = lanes(caps, total)
    return [
        GATHER_ND.call(
            grid=grid(ceil_div(total, local)),
            operands={"x": x, "indices": indices, "y": y},
            params={
                "total": total,
                **magic_params("inner", inner),
                **magic_params("count", rows // math.prod(shape[:batch_dims])),
                "batch_stride": math.prod(extents) * inner,
                **numbered("extent", extents, 1),
                **numbered("stride", [s * inner for s in contiguous_strides(extents)], 0),
            },
            spec={"KEYS": keys},
            defines=_gather_defines(unit, index_dtype),
            local_size=(local,),
        )
    ]
