"""Copies by indices: Gather, GatherElements, GatherND; and the plain copy.

Elements are moved as untyped units, so every element type is supported. Indices are int32 or int64; a negative one
counts from the end (`vkep.kernels.indices` defines the result of one out of range).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpu_shared.capabilities import DeviceCapabilities
from vkep.errors import InvalidNode
from vkep.kernels.dims import beyond_rank, last_coordinates, last_offset, magic_dims
from vkep.kernels.fastdiv import magic_params
from vkep.kernels.indices import FAULT_REACH, coordinates, index_defines, noting, within
from vkep.kernels.kernel import Kernel, KernelCall
from vkep.kernels.launch import (
    MAX_RANK,
    UNITS,
    ceil_div,
    contiguous_strides,
    element_type,
    flat_lanes,
    grid,
    is_cpu,
    lanes,
    numbered,
    unit_for,
)
from vkep.kernels.problem import Need, Problem, alignment_of
from vkep.kernels.select import Candidate, Emission, implement
from vkep.sizes import at_hand


def _defines(unit: int, index_dtype: str) -> dict[str, str]:
    return {"UNIT_T": UNITS[unit], **index_defines(index_dtype)}


def _ahead(*units: int) -> tuple[dict[str, str], ...]:
    """Variants to compile ahead of time."""
    return tuple(_defines(unit, words) for unit in units for words in ("int32", "int64"))


def _reach(call: KernelCall, x: int, indices: int) -> Mapping[str, int]:
    unit = call.size_of("UNIT_T")
    words = int(call.defines["INDEX_WORDS"])
    return {"x": x * unit, "indices": indices * 4 * words, "y": call["total"] * unit, **FAULT_REACH}


def _gather_reach(call: KernelCall) -> Mapping[str, int]:
    outer = ceil_div(call["total"], call["inner"] * call["count"])
    return _reach(call, outer * call["axis"] * call["inner"], call["count"])


def _gather_elements_reach(call: KernelCall) -> Mapping[str, int]:
    last = last_coordinates(call, call["RANK"])
    last[call["AXIS"]] = call["extent"] - 1
    return _reach(call, last_offset(call, last, "stride") + 1, call["total"])


def _gather_nd_reach(call: KernelCall) -> Mapping[str, int]:
    rows = ceil_div(call["total"], call["inner"])
    keys = [call[f"extent{d}"] - 1 for d in range(call["KEYS"])]
    batch = (ceil_div(rows, call["count"]) - 1) * call["batch_stride"]
    return _reach(call, batch + last_offset(call, keys, "stride") + call["inner"], rows * call["KEYS"])


GATHER = Kernel("gather.comp", variants=_ahead(*UNITS), reach=_gather_reach)
GATHER_ELEMENTS = Kernel("gather_elements.comp", variants=_ahead(1, 2, 4, 8), reach=_gather_elements_reach)
GATHER_ND = Kernel("gather_nd.comp", variants=_ahead(*UNITS), reach=_gather_nd_reach)
COPY = Kernel(
    "copy.comp",
    variants=tuple({"UNIT_T": unit} for unit in UNITS.values()),
    reach=lambda call: dict.fromkeys(("x", "y"), call["total"] * call.size_of("UNIT_T")),
)


def copy(nbytes: int, caps: DeviceCapabilities, x: Any, y: Any, *, alignment: int = 4) -> list[KernelCall]:
    """``y`` = ``nbytes`` bytes of ``x``; ``alignment`` in bytes divides both addresses."""
    if not nbytes:
        return []
    unit = unit_for(nbytes, alignment)
    total = nbytes // unit
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


@at_hand
def _units_per_lane(total: int, caps: DeviceCapabilities) -> int:
    """Units that a lane moves: enough to amortise starting a lane, few enough to keep the device busy."""
    return 8 if is_cpu(caps) and total >= 1024 else 1


@dataclass(frozen=True)
class GatherProblem(Problem):
    """``y`` [outer, count, inner] = ``x`` [outer, axis, inner] at ``indices`` [count] of its middle (ONNX Gather).

    ``alignment`` (bytes) divides the addresses of x and y: with 16, rows move 16 bytes at a time. ``fault``: see
    `vkep.kernels.indices`. Without ``from_end`` a negative index is out of range.
    """

    outer: int
    axis: int
    inner: int
    count: int
    dtype: str
    index_dtype: str
    alignment: int = 1
    fault: str = ""
    from_end: bool = True

    def __post_init__(self) -> None:
        if self.outer * self.inner * self.count and not self.axis:
            raise InvalidNode("indices into an empty axis")

    def needs(self) -> tuple[Need, ...]:
        return (
            Need("x", self.dtype, (self.outer, self.axis, self.inner), flat=True),
            Need("indices", self.index_dtype, (self.count,), flat=True),
        )

    def makes(self) -> tuple[Need, ...]:
        return (Need("y", self.dtype, (self.outer, self.count, self.inner), flat=True),)

    def placed(self, operands: Mapping[str, Any]) -> GatherProblem:
        return replace(self, alignment=alignment_of(operands["x"], operands["y"]))

    def reference(self, x: np.ndarray, indices: np.ndarray) -> np.ndarray:
        return x[:, within(indices, self.axis, self.from_end)]


def _gather(problem: GatherProblem, e: Emission) -> KernelCall:
    itemsize = element_type(problem.dtype).itemsize
    unit = unit_for(problem.inner * itemsize, max(problem.alignment, itemsize))
    units = problem.inner * itemsize // unit
    total = problem.outer * problem.count * units
    per_lane = _units_per_lane(total, e.caps)
    local = lanes(e.caps, total // per_lane)
    fault, code = noting(e, problem.fault)
    return GATHER.call(
        grid=grid(ceil_div(total, local * per_lane)),
        operands={**e.operands, "fault": fault},
        params={
            "total": total,
            "axis": problem.axis,
            **magic_params("inner", units),
            **magic_params("count", problem.count),
            "fault_code": code,
        },
        spec={"PER_LANE": per_lane, "FROM_END": int(problem.from_end)},
        defines=_defines(unit, problem.index_dtype),
        local_size=(local,),
    )


implement(GatherProblem, Candidate("gather", _gather))


@dataclass(frozen=True)
class GatherElementsProblem(Problem):
    """``y``[c] = ``x``[c with ``indices``[c] for c[axis]]; x of ``shape``, indices and y of ``indices_shape`` (ONNX
    GatherElements). ``fault``: see `vkep.kernels.indices`.
    """

    shape: tuple[int, ...]
    indices_shape: tuple[int, ...]
    axis: int
    dtype: str
    index_dtype: str
    fault: str = ""

    def __post_init__(self) -> None:
        check_along(self.shape, self.indices_shape, self.axis)

    def needs(self) -> tuple[Need, ...]:
        return Need("x", self.dtype, self.shape), Need("indices", self.index_dtype, self.indices_shape)

    def makes(self) -> tuple[Need, ...]:
        return (Need("y", self.dtype, self.indices_shape),)

    def reference(self, x: np.ndarray, indices: np.ndarray) -> np.ndarray:
        at = list(np.indices(self.indices_shape, sparse=True))
        at[self.axis] = within(indices, self.shape[self.axis])
        return x[tuple(at)]


def check_along(shape: tuple[int, ...], indices_shape: tuple[int, ...], axis: int) -> None:
    """Raise `InvalidNode` unless indices replace coordinates of a tensor along an axis."""
    shapes = f"data {list(shape)} with indices {list(indices_shape)} along axis {axis}"
    if len(indices_shape) != len(shape) or not 0 <= axis < len(shape):
        raise InvalidNode(f"{shapes}; expected equal ranks of at least 1")
    if any(n > m for d, (n, m) in enumerate(zip(indices_shape, shape, strict=True)) if d != axis):
        raise InvalidNode(f"{shapes}; the indices reach beyond the data on another axis")
    if math.prod(indices_shape) and not shape[axis]:
        raise InvalidNode(f"{shapes}: indices into an empty axis")


def _gather_elements(problem: GatherElementsProblem, e: Emission) -> KernelCall:
    total = math.prod(problem.indices_shape)
    fault, code = noting(e, problem.fault)
    return GATHER_ELEMENTS.call(
        **flat_lanes(e.caps, total),
        operands={**e.operands, "fault": fault},
        params={
            "total": total,
            "extent": problem.shape[problem.axis],
            **magic_dims(problem.indices_shape),
            **numbered("stride", contiguous_strides(problem.shape), 0),
            "fault_code": code,
        },
        spec={"RANK": len(problem.shape), "AXIS": problem.axis},
        defines=_defines(element_type(problem.dtype).itemsize, problem.index_dtype),
    )


implement(
    GatherElementsProblem,
    Candidate("gather elements", _gather_elements, when=lambda problem, caps: beyond_rank(len(problem.shape))),
)


@dataclass(frozen=True)
class GatherNDProblem(Problem):
    """``y`` = the slices of ``x`` [shape] at ``indices`` [indices_shape], whose last axis holds coordinates into x's axes
    after the first ``batch_dims`` (ONNX GatherND). ``alignment`` and ``fault`` as in `GatherProblem`.
    """

    shape: tuple[int, ...]
    indices_shape: tuple[int, ...]
    batch_dims: int
    dtype: str
    index_dtype: str
    alignment: int = 1
    fault: str = ""

    def __post_init__(self) -> None:
        batch, shapes = self.batch_dims, f"data {list(self.shape)}, indices {list(self.indices_shape)}"
        if not 0 <= batch < min(len(self.shape), len(self.indices_shape)):
            raise InvalidNode(f"{shapes}: batch_dims is {batch}, expected less than both ranks")
        if self.shape[:batch] != self.indices_shape[:batch]:
            raise InvalidNode(f"{shapes}: expected equal batch axes, the first {batch}")
        if not 0 <= self.keys <= len(self.shape) - batch:
            raise InvalidNode(f"{shapes}: {self.keys} coordinates for {len(self.shape) - batch} axes")
        if math.prod(self.out_shape) and 0 in self.indexed:
            raise InvalidNode(f"{shapes}: indices into an empty axis")

    @property
    def keys(self) -> int:
        """Number of coordinates of a slice."""
        return coordinates(self.indices_shape)

    @property
    def indexed(self) -> tuple[int, ...]:
        """The sizes of x's axes that are indexed."""
        return self.shape[self.batch_dims : self.batch_dims + self.keys]

    @property
    def out_shape(self) -> tuple[int, ...]:
        """Shape of the output."""
        return self.indices_shape[:-1] + self.shape[self.batch_dims + self.keys :]

    def needs(self) -> tuple[Need, ...]:
        return Need("x", self.dtype, self.shape), Need("indices", self.index_dtype, self.indices_shape)

    def makes(self) -> tuple[Need, ...]:
        return (Need("y", self.dtype, self.out_shape),)

    def placed(self, operands: Mapping[str, Any]) -> GatherNDProblem:
        return replace(self, alignment=alignment_of(operands["x"], operands["y"]))

    def reference(self, x: np.ndarray, indices: np.ndarray) -> np.ndarray:
        batch = np.indices(self.indices_shape[: self.batch_dims], sparse=True)
        lead = len(self.indices_shape) - 1 - self.batch_dims
        at = [within(indices[..., key], size) for key, size in enumerate(self.indexed)]
        return x[(*(b.reshape(b.shape + (1,) * lead) for b in batch), *at)].reshape(self.out_shape)


def _gather_nd(problem: GatherNDProblem, e: Emission) -> KernelCall:
    itemsize, extents = element_type(problem.dtype).itemsize, problem.indexed
    row_bytes = math.prod(problem.shape[problem.batch_dims + problem.keys :]) * itemsize
    unit = unit_for(row_bytes, max(problem.alignment, itemsize))
    inner, rows = row_bytes // unit, math.prod(problem.indices_shape[:-1])
    fault, code = noting(e, problem.fault)
    return GATHER_ND.call(
        **flat_lanes(e.caps, rows * inner),
        operands={**e.operands, "fault": fault},
        params={
            "total": rows * inner,
            **magic_params("inner", inner),
            **magic_params("count", rows // math.prod(problem.shape[: problem.batch_dims])),
            "batch_stride": math.prod(extents) * inner,
            **numbered("extent", extents, 1),
            **numbered("stride", [s * inner for s in contiguous_strides(extents)], 0),
            "fault_code": code,
        },
        spec={"KEYS": problem.keys},
        defines=_defines(unit, problem.index_dtype),
    )


def _takes_gather_nd(problem: GatherNDProblem, caps: DeviceCapabilities) -> str:
    return f"{problem.keys} coordinates; the kernel takes up to {MAX_RANK}" if problem.keys > MAX_RANK else ""


implement(GatherNDProblem, Candidate("gather nd", _gather_nd, when=_takes_gather_nd))
