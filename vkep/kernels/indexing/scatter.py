"""ScatterElements and ScatterND: a copy of the data, then updates into it.

With a reduction, duplicate indices are valid and the result is deterministic: one lane applies, in order, all updates
that may have the same target. Without one, duplicate indices are undefined, as in ONNX.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from gpu_shared.capabilities import DeviceCapabilities
from vkep.errors import InvalidNode
from vkep.kernels.dims import beyond_rank, last_coordinates, last_offset, magic_dims
from vkep.kernels.fastdiv import magic_params
from vkep.kernels.indexing.gather import check_along, copy
from vkep.kernels.indices import FAULT_REACH, coordinates, index_defines, noting, within
from vkep.kernels.kernel import Kernel, KernelCall
from vkep.kernels.launch import (
    MAX_RANK,
    contiguous_strides,
    element_defines,
    element_type,
    flat_lanes,
    numbered,
)
from vkep.kernels.problem import Need, Problem
from vkep.kernels.select import Candidate, Emission, implement

#: GLSL of a reduction of the old value a and the update b
REDUCTIONS = {"none": "b", "add": "a + b", "mul": "a * b", "max": "max(a, b)", "min": "min(a, b)"}
_NAN_REDUCTIONS = {"max": "(b > a || isnan(b)) ? b : a", "min": "(b < a || isnan(b)) ? b : a"}


def _defines(reduction: str, dtype: str, index_dtype: str) -> dict[str, str]:
    code = REDUCTIONS[reduction]
    if element_type(dtype).kind == "float":
        code = _NAN_REDUCTIONS.get(reduction, code)
    defines = element_defines(dtype) | {"REDUCE": code, **index_defines(index_dtype)}
    return defines | ({"REPLACE": "1"} if reduction == "none" else {})


#: variants to compile ahead of time: models use int64 indices
_AHEAD = tuple(_defines(r, t, "int64") for r in REDUCTIONS for t in ("float32", "float16", "int64"))


def _reach(call: KernelCall, updates: int, indices: int, y: int) -> Mapping[str, int]:
    return {
        "updates": updates * call.size_of("IN_T"),
        "indices": indices * 4 * int(call.defines["INDEX_WORDS"]),
        "y": y * call.size_of("OUT_T"),
        **FAULT_REACH,
    }


def _elements_reach(call: KernelCall) -> Mapping[str, int]:
    axis, last = call["AXIS"], last_coordinates(call, call["RANK"])
    read = last_offset(call, last, "update_stride") + (call["count"] - 1) * call[f"update_stride{axis}"] + 1
    last[axis] = call["extent"] - 1
    return _reach(call, read, read, last_offset(call, last, "stride") + 1)


def _scatter_nd_reach(call: KernelCall) -> Mapping[str, int]:
    # up to the row of the last lane's last update
    rows, keys = (call["total"] - 1) // call["inner"] + call["count"], call["KEYS"]
    written = last_offset(call, [call[f"extent{d}"] - 1 for d in range(keys)], "stride") + call["inner"]
    return _reach(call, rows * call["inner"], rows * keys, written)


SCATTER_ELEMENTS = Kernel("scatter_elements.comp", variants=_AHEAD, reach=_elements_reach)
SCATTER_ND = Kernel("scatter_nd.comp", variants=_AHEAD, reach=_scatter_nd_reach)


@dataclass(frozen=True)
class _ScatterProblem(Problem):
    """``y`` = ``data``, both of ``shape``, with ``updates`` put, or reduced ("add", "mul", "max", "min"), where ``indices`` (of
    ``indices_shape``) say. ``fault``: see `vkep.kernels.indices`. ``over``: ``y`` already has the content of ``data``, which is
    not an operand.
    """

    shape: tuple[int, ...]
    indices_shape: tuple[int, ...]
    dtype: str
    index_dtype: str
    reduction: str = "none"
    fault: str = ""
    over: bool = False

    def __post_init__(self) -> None:
        if self.reduction not in REDUCTIONS:
            raise InvalidNode(f"reduction is {self.reduction!r}, expected one of {list(REDUCTIONS)}")

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


def _scatter(
    kernel: Kernel,
    problem: _ScatterProblem,
    e: Emission,
    total: int,
    params: Mapping[str, int],
    spec: Mapping[str, int],
) -> list[KernelCall]:
    itemsize = element_type(problem.dtype).itemsize
    nbytes = math.prod(problem.shape) * itemsize
    calls = [] if problem.over else copy(nbytes, e.caps, e["data"], e["y"], alignment=itemsize)
    if not total:
        return calls
    fault, code = noting(e, problem.fault)
    call = kernel.call(
        **flat_lanes(e.caps, total),
        operands={"updates": e["updates"], "indices": e["indices"], "y": e["y"], "fault": fault},
        params={"total": total, **params, "fault_code": code},
        spec=spec,
        defines=_defines(problem.reduction, problem.dtype, problem.index_dtype),
    )
    return [*calls, call]


def _scatter_elements(problem: ScatterElementsProblem, e: Emission) -> list[KernelCall]:
    dims, axis = list(problem.indices_shape), problem.axis
    walked = 1 if problem.reduction == "none" else dims[axis]
    if problem.reduction != "none":
        dims[axis] = min(walked, 1)
    params = {
        "extent": problem.shape[axis],
        "count": walked,
        **magic_dims(dims),
        **numbered("stride", contiguous_strides(problem.shape), 0),
        **numbered("update_stride", contiguous_strides(problem.indices_shape), 0),
    }
    spec = {"RANK": len(dims), "AXIS": axis, "FROM_END": int(problem.from_end)}
    return _scatter(SCATTER_ELEMENTS, problem, e, math.prod(dims), params, spec)


def _scatter_nd(problem: ScatterNDProblem, e: Emission) -> list[KernelCall]:
    rows, inner = math.prod(problem.indices_shape[:-1]), math.prod(problem.shape[problem.keys :])
    walked = 1 if problem.reduction == "none" else rows
    extents = problem.shape[: problem.keys]
    params = {
        **magic_params("inner", inner),
        "count": walked,
        **numbered("extent", extents, 1),
        **numbered("stride", [s * inner for s in contiguous_strides(extents)], 0),
    }
    total = rows * inner // max(walked, 1)
    return _scatter(SCATTER_ND, problem, e, total, params, {"KEYS": problem.keys})


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
