"""Running sums and products along the middle of a tensor viewed as [outer, axis, inner], and the places of a row's elements that
are not 0 (``shaders/scan.comp``).

A column that is too long for the lanes that it would have is divided into segments: one dispatch computes their totals, a second
one the results, each segment from the totals before it. Data is read twice and written once. The totals before a segment are
added by the segment's own lanes, so that no third dispatch is needed; for that the segments of a column are few.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpu_shared.capabilities import DeviceCapabilities
from vkep.kernels.fastdiv import magic_params
from vkep.kernels.kernel import Kernel, KernelCall
from vkep.kernels.launch import (
    BUSY_GROUPS,
    CPU_GROUPS,
    ColumnShare,
    ceil_div,
    ceil_power_of_two,
    element_defines,
    element_type,
    gathers_pairs,
    is_cpu,
    lanes,
    shuffle_sizes,
    with_shuffles,
)
from vkep.kernels.problem import Need, Problem, alignment_of
from vkep.kernels.reductions.columns import ColumnProblem
from vkep.kernels.reference import undefined, wide
from vkep.kernels.select import Candidate, Emission, implement
from vkep.sizes import at_hand, divides, largest, matches, smallest

#: element types of totals, and how many of them, by the GLSL types
_TOTALS = {
    "float": ("float32", 1),
    "double": ("float64", 1),
    "int": ("int32", 1),
    "uint": ("uint32", 1),
    "int64_t": ("int64", 1),
    "uint64_t": ("uint64", 1),
    "vec2": ("float32", 2),
    "ivec2": ("int32", 2),
    "uvec2": ("uint32", 2),
}


#: (sums, sums of two words, the words of sums) of PAIRS in ``shaders/scan.comp``, by the element type
_PAIRS = {
    "float32": ("vec2", "uintBitsToFloat", "floatBitsToUint"),
    "int32": ("ivec2", "ivec2", "uvec2"),
    "uint32": ("uvec2", "uvec2", "uvec2"),
}


def _sum_defines(dtype: str, pairs: bool = False) -> dict[str, str]:
    if pairs:
        names = ("IN_T", "OUT_T", "PAIRS", "SUM_T", "PAIR", "WORDS")
        return dict(zip(names, ("uint64_t", "uint64_t", "1", *_PAIRS[dtype]), strict=True))
    defines = element_defines(dtype)
    return {**defines, "SUM_T": defines["COMPUTE_T"]}


def _position_defines(dtype: str) -> dict[str, str]:
    return {**element_defines(dtype, "int64"), "SUM_T": "int", "POSITIONS": "1"}


def _reach(call: KernelCall) -> Mapping[str, int]:
    columns, positions = call["columns"], "POSITIONS" in call.defines
    elements, stage = columns * call["axis"], call["STAGE"]
    return {
        "x": elements * call.size_of("IN_T"),
        "totals": columns * call["segments"] * call.size_of("SUM_T") if stage else 0,
        "y": elements * call.size_of("OUT_T") if stage != 1 else 0,
        **({"count": 8 if stage != 1 else 0} if positions else {}),
    }


SCAN = Kernel(
    "scan.comp",
    variants=with_shuffles(
        *map(_sum_defines, ("float32", "float16", "int32")), *map(_position_defines, ("bool", "float32", "int64"))
    )
    + (_sum_defines("int64"), *(_sum_defines(t, pairs=True) for t in ("float32", "int32"))),
    reach=_reach,
)
#: the shortest segment of a lane on a CPU driver, and elements of a segment for each of its lanes on a GPU
_SHORTEST = 256, 4
#: loads of a GPU's lane in flight
_LOADS = 4


@dataclass(frozen=True)
class ScanProblem(ColumnProblem):
    """ONNX CumSum (``product``: CumProd) over the middle of [outer, axis, inner]; float16 accumulates in float32."""

    exclusive: bool = False
    reverse: bool = False
    product: bool = False
    alignment: int = 1  #: bytes that divide both addresses

    def placed(self, operands: Mapping[str, Any]) -> ScanProblem:
        return replace(self, alignment=alignment_of(operands["x"], operands["y"]))

    def reference(self, x: np.ndarray) -> np.ndarray:
        step = -1 if self.reverse else 1
        y = (np.cumprod if self.product else np.cumsum)(wide(x)[:, ::step], axis=1)
        if self.exclusive:
            y = np.concatenate([np.full_like(y[:, :1], 1 if self.product else 0), y[:, :-1]], axis=1)
        return y[:, ::step]


@dataclass(frozen=True)
class PositionsProblem(Problem):
    """``positions`` int64 [total] of the elements of ``x`` [total] that are not 0, in order. The first ``count`` int64 [1]
    of them are written."""

    total: int
    dtype: str

    @property
    def flops(self) -> int:
        return 2 * self.total

    def needs(self) -> tuple[Need, ...]:
        return (Need("x", self.dtype, (self.total,), flat=True),)

    def makes(self) -> tuple[Need, ...]:
        return Need("positions", "int64", (self.total,)), Need("count", "int64", (1,))

    def reference(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
        chosen = np.flatnonzero(x)
        positions = undefined(self.total)
        positions[: len(chosen)] = chosen
        return positions, np.array([len(chosen)])


def _shortest(inner: int, caps: DeviceCapabilities) -> int:
    """Elements of the shortest segment."""
    if is_cpu(caps):
        return _SHORTEST[0]
    return _SHORTEST[1] * (lanes(caps, BUSY_GROUPS) if matches(inner, 1) else 1)


@at_hand
def _segments(columns: int, axis: int, inner: int, shortest: int, caps: DeviceCapabilities) -> int:
    """Segments of a column, so that the device is busy."""
    if is_cpu(caps):
        wanted = min(CPU_GROUPS * caps.subgroup_size // columns, axis // shortest)
        # an odd number: lanes whose places are a power of two apart would share few sets of a cache
        return wanted - 1 | 1 if wanted > 1 else 1
    if inner == 1:  # a workgroup for each
        wanted = min(BUSY_GROUPS // columns, axis // shortest)
    else:  # a lane for each; with more segments it would read more totals than fewer elements save
        wanted = min(BUSY_GROUPS * lanes(caps, columns) // columns, 2 * math.isqrt(axis), axis // shortest)
    return max(wanted, 1)


@at_hand
def _shared_out(runs: int, length: int, rows: bool, wide: bool, caps: DeviceCapabilities) -> ColumnShare:
    local, split = lanes(caps, runs), 1
    if rows and not is_cpu(caps) and length > 8:
        split = min(32 if length <= 1024 and runs >= BUSY_GROUPS else local, local, ceil_power_of_two(length))
    shuffle, required = shuffle_sizes(caps, local) if split > 1 and not wide else (None, None)
    return ColumnShare(split, split > 1, local, 0, shuffle, required)


def _scan(
    e: Emission,
    columns: int,
    axis: int,
    inner: int,
    results: Mapping[str, Any],
    defines: Mapping[str, str],
    spec: Mapping[str, int],
) -> list[KernelCall]:
    shortest = _shortest(inner, e.caps)
    most = _segments(columns, axis, inner, shortest, e.caps)
    # a plan with sizes may have many more columns, of shorter axes
    segments = smallest(most, largest(axis // shortest, 1))
    runs, segment = columns * segments, ceil_div(axis, segments)
    total, each = _TOTALS[defines["SUM_T"]]
    # shuffles of 64-bit types are an optional feature
    share = _shared_out(runs, segment, matches(inner, 1), each * element_type(total).itemsize == 8, e.caps)
    share = replace(share, groups=ceil_div(runs, share.local // share.split))
    totals = e.target.scratch(total, (runs, each)) if most > 1 else None

    def stage(number: int) -> KernelCall:
        return SCAN.call(
            **share.launch,
            operands={"x": e["x"], "totals": totals, **(dict.fromkeys(results) if number == 1 else results)},
            params={
                "columns": columns,
                "axis": axis,
                **magic_params("inner", inner),
                **magic_params("segments", segments),
                "segment": segment,
            },
            spec={
                "SPLIT": share.split,
                "SUBGROUP_LANES": share.shuffle or 1,
                "STAGE": number,
                "LOADS": 1 if is_cpu(e.caps) else _LOADS,
                **spec,
            },
            defines={**defines, **share.defines},
            flops=columns * axis,
        )

    return [stage(number) for number in ((1, 2) if most > 1 else (0,))]


def _sums(problem: ScanProblem, e: Emission) -> list[KernelCall]:
    pairs = (
        gathers_pairs(e.caps) and problem.dtype in _PAIRS and problem.alignment % 8 == 0 and divides(2, problem.inner)
    )
    columns, inner = (n // 2 if pairs else n for n in (problem.columns, problem.inner))
    defines = _sum_defines(problem.dtype, pairs) | ({"PRODUCT": "1"} if problem.product else {})
    spec = {"EXCLUSIVE": int(problem.exclusive), "REVERSE": int(problem.reverse)}
    return _scan(e, columns, problem.axis, inner, {"y": e["y"]}, defines, spec)


def _positions(problem: PositionsProblem, e: Emission) -> list[KernelCall]:
    results = {"y": e["positions"], "count": e["count"]}
    return _scan(e, 1, problem.total, 1, results, _position_defines(problem.dtype), {})


implement(ScanProblem, Candidate("scan", _sums))
implement(PositionsProblem, Candidate("positions", _positions))
