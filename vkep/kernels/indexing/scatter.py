"""ScatterElements and ScatterND: a copy of the data, then updates into it.

With a reduction, duplicate indices are valid and the result is deterministic: one lane applies, in order, all updates of an
element. The elements of a column that has many updates are divided among lanes. Without a reduction, duplicate indices are
undefined, as in ONNX.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gpu_shared.capabilities import DeviceCapabilities
from vkep.errors import InvalidNode
from vkep.kernels.dims import beyond_rank, last_coordinates, last_offset, magic_dims
from vkep.kernels.fastdiv import magic_params
from vkep.kernels.indexing.gather import check_along, copy
from vkep.kernels.indices import FAULT_REACH, coordinates, index_defines, noting, within
from vkep.kernels.kernel import Kernel, KernelCall
from vkep.kernels.launch import (
    BUSY_GROUPS,
    MAX_RANK,
    UNITS,
    ceil_div,
    ceil_power_of_two,
    contiguous_strides,
    element_defines,
    element_type,
    flat_lanes,
    floor_power_of_two,
    grid,
    is_cpu,
    lanes,
    numbered,
    unit_for,
)
from vkep.kernels.problem import Need, Problem, alignment_of
from vkep.kernels.select import Candidate, Emission, implement
from vkep.sizes import at_hand, power_of_two_in

#: GLSL of a reduction of the old value a and the update b
REDUCTIONS = {"add": "a + b", "mul": "a * b", "max": "max(a, b)", "min": "min(a, b)"}
_NAN_REDUCTIONS = {"max": "(b > a || isnan(b)) ? b : a", "min": "(b < a || isnan(b)) ? b : a"}


def _defines(reduction: str, dtype: str, index_dtype: str) -> dict[str, str]:
    code = REDUCTIONS[reduction]
    if element_type(dtype).kind == "float":
        code = _NAN_REDUCTIONS.get(reduction, code)
    return element_defines(dtype) | {"REDUCE": code, **index_defines(index_dtype)}


def _replace_defines(unit: int, index_dtype: str) -> dict[str, str]:
    return {"REPLACE": "1", "UNIT_T": UNITS[unit], **index_defines(index_dtype)}


#: variants to compile ahead of time: models use int64 indices
_REDUCED_AHEAD = tuple(_defines(r, t, "int64") for r in REDUCTIONS for t in ("float32", "float16", "int64"))
_REPLACED_AHEAD = tuple(_replace_defines(unit, "int64") for unit in UNITS)


def _reach(call: KernelCall, updates: int, indices: int, y: int) -> Mapping[str, int]:
    itemsize = call.size_of("UNIT_T" if "REPLACE" in call.defines else "IN_T")
    return {
        "updates": updates * itemsize,
        "indices": indices * 4 * int(call.defines["INDEX_WORDS"]),
        "y": y * itemsize,
        **FAULT_REACH,
    }


def _elements_reach(call: KernelCall) -> Mapping[str, int]:
    axis, last = call["AXIS"], last_coordinates(call, call["RANK"])
    read = last_offset(call, last, "update_stride") + (call["count"] - 1) * call[f"update_stride{axis}"] + 1
    last[axis] = call["extent"] - 1
    return _reach(call, read, read, last_offset(call, last, "stride") + 1)


def _scatter_nd_reach(call: KernelCall) -> Mapping[str, int]:
    # up to the row of the last lane's last update
    rows, keys, inner = (
        (call["total"] - 1) // call["inner"] + call["count"],
        call["KEYS"],
        call["inner"] * call["PER_LANE"],
    )
    places = last_offset(call, [call[f"extent{d}"] - 1 for d in range(keys)], "stride") + 1
    return _reach(call, rows * inner, rows * keys, places * inner)


SCATTER_ELEMENTS = Kernel(
    "scatter_elements.comp", variants=_REDUCED_AHEAD + _REPLACED_AHEAD[:-1], reach=_elements_reach
)
SCATTER_ND = Kernel("scatter_nd.comp", variants=_REDUCED_AHEAD + _REPLACED_AHEAD, reach=_scatter_nd_reach)
#: workgroups that divide the places of a column on a GPU: each reads all indices
_OWNERS = 64
#: fewer updates of a column are applied by one lane
_FEW_UPDATES = 64
#: indices that the lanes of a column read together at least, on a CPU driver and on a GPU
_TOGETHER = 256, 64


@dataclass(frozen=True)
class _ScatterProblem(Problem):
    """``y`` = ``data``, both of ``shape``, with ``updates`` put, or reduced ("add", "mul", "max", "min"), where ``indices`` (of
    ``indices_shape``) say. ``fault``: see `vkep.kernels.indices`. ``over``: ``y`` already has the content of ``data``, which is
    not an operand. ``alignment`` (bytes) divides the addresses of updates and y: with 16, rows move 16 bytes at a time.
    """

    shape: tuple[int, ...]
    indices_shape: tuple[int, ...]
    dtype: str
    index_dtype: str
    reduction: str = "none"
    fault: str = ""
    over: bool = False
    alignment: int = 1

    def __post_init__(self) -> None:
        if self.reduction not in ("none", *REDUCTIONS):
            raise InvalidNode(f"reduction is {self.reduction!r}, expected one of {['none', *REDUCTIONS]}")

    @property
    def updates_shape(self) -> tuple[int, ...]:
        """Shape of the updates."""
        return self.indices_shape

    def needs(self) -> tuple[Need, ...]:
        return (
            *([] if self.over else [Need("data", self.dtype, self.shape)]),
            Need("indices", self.index_dtype, self.indices_shape),
            Need("updates", self.dtype, self.updates_shape),
        )

    def makes(self) -> tuple[Need, ...]:
        return (Need("y", self.dtype, self.shape),)

    def placed(self, operands: Mapping[str, Any]) -> _ScatterProblem:
        return replace(self, alignment=alignment_of(operands["updates"], operands["y"]))

    def in_place(self, pairs: Mapping[str, str]) -> Problem | None:
        return replace(self, over=True) if pairs == {"y": "data"} else None

    @property
    def updates(self) -> tuple[str, ...]:
        return ("y",) if self.over else ()


@dataclass(frozen=True)
class ScatterElementsProblem(_ScatterProblem):
    """Each update has its own coordinates, with that along ``axis`` replaced by its index (ONNX ScatterElements). Without
    ``from_end`` a negative index is out of range.
    """

    axis: int = field(kw_only=True)
    from_end: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        check_along(self.shape, self.indices_shape, self.axis)
        super().__post_init__()

    def reference(
        self, indices: np.ndarray, updates: np.ndarray, data: np.ndarray | None = None, y: np.ndarray | None = None
    ) -> np.ndarray:
        at = list(np.indices(self.indices_shape, sparse=True))
        at[self.axis] = within(indices, self.shape[self.axis], self.from_end)
        return scattered(data if data is not None else y, tuple(at), updates, self.reduction)


@dataclass(frozen=True)
class ScatterNDProblem(_ScatterProblem):
    """Coordinates are in the last axis of ``indices``, each for a slice of ``updates`` (ONNX ScatterND)."""

    def __post_init__(self) -> None:
        shapes = f"data {list(self.shape)}, indices {list(self.indices_shape)}"
        if not self.indices_shape or not 1 <= self.keys <= len(self.shape):
            raise InvalidNode(f"{shapes}: expected 1 to {len(self.shape)} coordinates in the indices' last axis")
        if math.prod(self.updates_shape) and 0 in self.shape[: self.keys]:
            raise InvalidNode(f"{shapes}: indices into an empty axis")
        super().__post_init__()

    @property
    def keys(self) -> int:
        """Number of coordinates of a slice."""
        return coordinates(self.indices_shape)

    @property
    def updates_shape(self) -> tuple[int, ...]:
        """Shape of the updates."""
        return self.indices_shape[:-1] + self.shape[self.keys :]

    def reference(
        self, indices: np.ndarray, updates: np.ndarray, data: np.ndarray | None = None, y: np.ndarray | None = None
    ) -> np.ndarray:
        at = tuple(within(indices[..., key], self.shape[key]) for key in range(self.keys))
        return scattered(data if data is not None else y, at, updates, self.reduction)


def _scatter(kernel: Kernel, problem: _ScatterProblem, e: Emission, **how: Any) -> list[KernelCall]:
    """The copy of the data, and the updates by a call of ``kernel`` with these arguments; ``params`` has their ``total``."""
    itemsize = element_type(problem.dtype).itemsize
    nbytes = math.prod(problem.shape) * itemsize
    calls = [] if problem.over else copy(nbytes, e.caps, e["data"], e["y"], alignment=itemsize)
    if not how["params"]["total"]:
        return calls
    fault, code = noting(e, problem.fault)
    operands = {"updates": e["updates"], "indices": e["indices"], "y": e["y"], "fault": fault}
    return [*calls, kernel.call(operands=operands, **how | {"params": {**how["params"], "fault_code": code}})]


@at_hand
def _division(columns: int, count: int, caps: DeviceCapabilities) -> tuple[int, int, int]:
    """Lanes of a workgroup, how many of them share a column with ``count`` updates, and how many workgroups do."""
    local = lanes(caps, columns)
    if is_cpu(caps):
        split = floor_power_of_two(caps.subgroup_size) // ceil_power_of_two(columns)
        return (local, split, 1) if split > 1 and count >= _FEW_UPDATES else (local, 1, 1)
    if count < _FEW_UPDATES or columns >= BUSY_GROUPS * local // 4:
        return local, 1, 1
    width = min(ceil_power_of_two(columns), caps.subgroup_size, local)
    groups = floor_power_of_two(BUSY_GROUPS // 8 // max(ceil_div(columns, width), 1))
    return (local, local // width, min(groups, _OWNERS)) if local > width else (local, 1, 1)


def _reduced(
    problem: _ScatterProblem, e: Emission, columns: int, count: int, spec: Mapping[str, int]
) -> dict[str, Any]:
    """Arguments of `Kernel.call` for columns with ``count`` updates each, beside the kernel's own."""
    local, split, owners = _division(columns, count, e.caps)
    together = _TOGETHER[0 if is_cpu(e.caps) else 1]
    return {
        "grid": grid(ceil_div(columns, local // split), owners),
        "local_size": (local,),
        "spec": {**spec, "SPLIT": split, "EACH": max(together // split, 1) if split > 1 else 1},
        "defines": _defines(problem.reduction, problem.dtype, problem.index_dtype),
    }


def _scatter_elements(problem: ScatterElementsProblem, e: Emission) -> list[KernelCall]:
    dims, axis, replaces = list(problem.indices_shape), problem.axis, problem.reduction == "none"
    count = 1 if replaces else dims[axis]
    if not replaces:
        dims[axis] = min(count, 1)
    total = math.prod(dims)
    params = {
        "total": total,
        "extent": problem.shape[axis],
        "count": count,
        **magic_dims(dims),
        **numbered("stride", contiguous_strides(problem.shape), 0),
        **numbered("update_stride", contiguous_strides(problem.indices_shape), 0),
    }
    spec = {"RANK": len(dims), "AXIS": axis, "FROM_END": int(problem.from_end)}
    if not replaces:
        return _scatter(SCATTER_ELEMENTS, problem, e, params=params, **_reduced(problem, e, total, count, spec))
    defines = _replace_defines(element_type(problem.dtype).itemsize, problem.index_dtype)
    return _scatter(
        SCATTER_ELEMENTS, problem, e, params=params, spec=spec, defines=defines, **flat_lanes(e.caps, total)
    )


def _scatter_nd(problem: ScatterNDProblem, e: Emission) -> list[KernelCall]:
    rows, inner = math.prod(problem.indices_shape[:-1]), math.prod(problem.shape[problem.keys :])
    replaces, extents = problem.reduction == "none", problem.shape[: problem.keys]
    places = {**numbered("extent", extents, 1), **numbered("stride", contiguous_strides(extents), 0)}
    if not replaces:
        params = {"total": inner if rows else 0, **magic_params("inner", inner), "count": rows, **places}
        how = _reduced(problem, e, inner, rows, {"KEYS": problem.keys})
        return _scatter(SCATTER_ND, problem, e, params=params, **how)
    itemsize = element_type(problem.dtype).itemsize
    unit = unit_for(inner * itemsize, max(problem.alignment, itemsize))
    units = inner * itemsize // unit
    # an index is read once for as many units as a lane stores; a GPU's lanes store neighbouring ones
    per_lane = power_of_two_in(units, 4) if is_cpu(e.caps) else 1
    units //= per_lane
    params = {"total": rows * units, **magic_params("inner", units), "count": 1, **places}
    spec, defines = {"KEYS": problem.keys, "PER_LANE": per_lane}, _replace_defines(unit, problem.index_dtype)
    return _scatter(
        SCATTER_ND, problem, e, params=params, spec=spec, defines=defines, **flat_lanes(e.caps, rows * units)
    )


def _takes_nd(problem: ScatterNDProblem, caps: DeviceCapabilities) -> str:
    return f"{problem.keys} coordinates; the kernel takes up to {MAX_RANK}" if problem.keys > MAX_RANK else ""


implement(
    ScatterElementsProblem,
    Candidate("scatter elements", _scatter_elements, when=lambda problem, caps: beyond_rank(len(problem.shape))),
)
implement(ScatterNDProblem, Candidate("scatter nd", _scatter_nd, when=_takes_nd))


def scattered(data: np.ndarray | None, at: tuple[np.ndarray, ...], updates: np.ndarray, reduction: str) -> np.ndarray:
    """A copy of the data with updates put, or reduced, at the places ``at``."""
    assert data is not None
    y = data.copy()
    if reduction == "none":
        y[at] = updates
    else:
        ufunc = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}[reduction]
        ufunc.at(y, at, updates)
    return y
