"""ONNX Resize: nearest, linear and cubic, at any rank.

Coordinates and weights are tabulated here in float64, once per plan, so that ties are rounded as the specification
requires; the kernels only read the tables (``shaders/resize_nearest.comp``, and ``shaders/resize_axis.comp`` axis by
axis, since linear and cubic interpolation are separable). Specification:
https://onnx.ai/onnx/operators/onnx__Resize.html.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gpu_shared.capabilities import DeviceCapabilities
from vkep.errors import InvalidNode
from vkep.kernels.dims import beyond_rank, last_coordinates, magic_dims
from vkep.kernels.fastdiv import LIMIT, magic_fields, magic_params
from vkep.kernels.gather import copy
from vkep.kernels.kernel import Kernel, KernelCall, Operand, uints
from vkep.kernels.launch import (
    ceil_div,
    contiguous_strides,
    element_defines,
    element_type,
    fields8,
    flat_lanes,
    numbered,
)
from vkep.kernels.pad import unit_defines, value_words
from vkep.kernels.problem import Need, Problem
from vkep.kernels.select import Candidate, Emission, implement
from vkep.sizes import largest, room_for, serves_others


def axis_defines(dtype: str, out: str) -> dict[str, str]:
    """The variant from elements of ``dtype`` to elements of ``out``: computed in floats, clamped to the integers'
    range."""
    kind = element_type(out)
    compute = "double" if "float64" in (dtype, out) else "float"
    defines = element_defines(dtype, out) | {"COMPUTE_T": compute, "CONVERT(v)": "v"}
    if kind.kind != "float":
        info = np.iinfo(np.uint8 if kind.kind == "bool" else kind.numpy)
        greatest = np.nextafter(np.float32(info.max), np.float32(0)) if info.max >= 2**24 else np.float32(info.max)
        defines["CONVERT(v)"] = f"clamp(v, {float(info.min)}, {float(greatest)})"
    return defines


_AHEAD = [
    ("float32", "float32"),
    *((a, b) for t in ("float16", "uint8") for a, b in ((t, t), (t, "float32"), ("float32", t))),
]


def _axis_reach(call: KernelCall) -> Mapping[str, int]:
    outer, table = ceil_div(call["total"], call["inner"] * call["out_axis"]), call["out_axis"] * call["taps"] * 4
    return {
        "x": outer * call["axis"] * call["inner"] * call.size_of("IN_T"),
        "positions": table,
        "weights": table,
        "y": call["total"] * call.size_of("OUT_T"),
    }


def _nearest_reach(call: KernelCall) -> Mapping[str, int]:
    ends = [call[f"first{d}"] + last + 1 for d, last in enumerate(last_coordinates(call, call["RANK"]))]
    unit = call.size_of("UNIT_T")
    return {"x": (call["last"] + 1) * unit, "offsets": max(ends) * 4, "y": call["total"] * unit}


RESIZE_AXIS = Kernel(
    "resize_axis.comp",
    operands=(Operand("x"), Operand("positions"), Operand("weights"), Operand("y", writes=True)),
    params=(
        *uints("total", "axis"),
        *magic_fields("inner", "out_axis"),
        ("taps", "uint"),
        ("extrapolation", "float"),
    ),
    variants=tuple(axis_defines(a, b) for a, b in _AHEAD),
    reach=_axis_reach,
)
RESIZE_NEAREST = Kernel(
    "resize_nearest.comp",
    operands=(Operand("x"), Operand("offsets"), Operand("y", writes=True)),
    params=(
        *uints("total", "last", "value_low", "value_high"),
        *fields8("dim", "mul", "shift", "first"),
    ),
    spec={"RANK": 1},
    variants=tuple(map(unit_defines, (1, 2, 4, 8))),
    reach=_nearest_reach,
)
COORDINATES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_crop_and_resize",
    "tf_half_pixel_for_nn",
)
#: those in which an output's place follows from its number and the scale alone (two under a condition: `ResizeProblem.is_free`)
_FREE = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "asymmetric", "tf_half_pixel_for_nn")
#: ONNX's modes, and "outwards": up where the axis shrinks, else down, as in ONNX Runtime before Resize had the
#: attribute
NEAREST_MODES = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil", "outwards")


@dataclass(frozen=True)
class ResizeMode:
    """The attributes of ONNX Resize, under ONNX's names."""

    mode: str = "nearest"  #: "nearest", "linear" or "cubic"
    coordinates: str = "half_pixel"  #: coordinate_transformation_mode, one of `COORDINATES`
    nearest: str = "round_prefer_floor"  #: one of `NEAREST_MODES`
    cubic_a: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False
    extrapolation: float = 0.0

    def __post_init__(self) -> None:
        for what, got, expected in (
            ("mode", self.mode, ("nearest", "linear", "cubic")),
            ("coordinate mode", self.coordinates, COORDINATES),
            ("nearest mode", self.nearest, NEAREST_MODES),
        ):
            if got not in expected:
                raise InvalidNode(f"{what} is {got!r}, expected one of {list(expected)}")


def source_coordinates(
    length: int, out_length: int, scale: float, mode: str, roi: tuple[float, float] = (0.0, 1.0)
) -> np.ndarray:
    """float64 [out_length]: the position of each output element on the input axis of ``length`` elements."""
    position = np.arange(out_length, dtype=np.float64)
    resized = scale * length  # the exact length, which was rounded to out_length
    if mode == "align_corners":
        return np.zeros(out_length) if resized == 1 else position * (length - 1) / (resized - 1)
    if mode == "asymmetric":
        return position / scale
    if mode == "tf_crop_and_resize":
        start, end = roi
        if out_length == 1:
            return np.full(1, 0.5 * (start + end) * (length - 1))
        return start * (length - 1) + position * (end - start) * (length - 1) / (out_length - 1)
    if mode == "pytorch_half_pixel" and out_length == 1:
        return np.zeros(1)
    if mode == "tf_half_pixel_for_nn":
        return (position + 0.5) / scale
    centred = (position + 0.5) / scale - 0.5
    if mode == "half_pixel_symmetric":
        return centred + length / 2 * (1 - out_length / resized)
    return centred


def nearest_positions(coordinates: np.ndarray, length: int, mode: str, scale: float) -> np.ndarray:
    """The nearest input position (int64, within the axis of ``length``) of each source coordinate (float64 [outputs]),
    by ONNX's nearest_mode ``mode``."""
    shift = {"round_prefer_floor": -0.5, "round_prefer_ceil": 0.5}.get(mode, 0.0)
    up = mode in ("round_prefer_floor", "ceil") or (mode == "outwards" and scale < 1)
    rounded = np.ceil(coordinates + shift) if up else np.floor(coordinates + shift)
    return np.clip(rounded, 0, length - 1).astype(np.int64)


def _kernel(distance: np.ndarray, attributes: ResizeMode) -> np.ndarray:
    """Weight of a sample at a distance: the triangle, or Keys' cubic convolution (IEEE TASSP 29(6), 1981)."""
    d = np.abs(distance)
    if attributes.mode == "linear":
        return np.clip(1.0 - d, 0.0, 1.0)
    a = attributes.cubic_a
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def interpolation_table(
    coordinates: np.ndarray, length: int, scale: float, attributes: ResizeMode
) -> tuple[np.ndarray, np.ndarray]:
    """(positions int32, weights float32), both [out_length, taps]: each output's samples on an axis of ``length``.

    With antialias and ``scale`` < 1 the kernel is stretched by 1 / ``scale``. Positions beyond the ends repeat the
    edge, or weigh nothing with ``exclude_outside``.
    """
    radius = 1 if attributes.mode == "linear" else 2
    shrink = min(scale, 1.0) if attributes.antialias else 1.0
    reach = math.floor(radius / shrink - 1e-9) if shrink < 1 else radius - 1
    floor = np.floor(coordinates)
    positions = floor[:, None] + np.arange(-reach, reach + 2)[None, :]
    weights = _kernel((positions - coordinates[:, None]) * shrink, attributes)
    if shrink < 1:
        weights /= weights.sum(axis=1, keepdims=True)
    if attributes.exclude_outside:
        weights = np.where((positions < 0) | (positions > length - 1), 0.0, weights)
        total = weights.sum(axis=1, keepdims=True)
        weights /= np.where(total == 0, 1.0, total)
    used = np.any(weights != 0, axis=0)
    used[0] |= not used.any()
    return np.clip(positions[:, used], 0, length - 1).astype(np.int32), weights[:, used].astype(np.float32)


@dataclass(frozen=True)
class ResizeProblem(Problem):
    """``y`` of ``out_shape`` resampled from ``x`` of ``shape``; ``scales`` has one per axis (1: unchanged).

    ``roi`` (starts then ends, of all axes) is for tf_crop_and_resize. Linear and cubic interpolation of integers
    truncates, as the reference implementation does.
    """

    shape: tuple[int, ...]
    out_shape: tuple[int, ...]
    scales: tuple[float, ...]
    mode: ResizeMode
    dtype: str
    roi: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        rank, told = len(self.shape), f"{list(self.shape)} to {list(self.out_shape)} by scales {list(self.scales)}"
        if not rank == len(self.out_shape) == len(self.scales):
            raise InvalidNode(f"{told}; they differ in rank")
        if min(self.out_shape, default=0) < 0:
            raise InvalidNode(f"{told}; sizes are not negative")
        if self.crops and (self.roi is None or len(self.roi) != 2 * rank):
            raise InvalidNode(f"tf_crop_and_resize needs a roi of {2 * rank} numbers")
        if 0 in self.shape and 0 not in self.out_shape:
            raise InvalidNode(f"{told}; the input is empty")

    @property
    def crops(self) -> bool:
        """Whether the input's region of interest counts (tf_crop_and_resize)."""
        return self.mode.coordinates == "tf_crop_and_resize"

    def span(self, axis: int) -> tuple[float, float]:
        """The part of an axis that is resized."""
        if not self.crops or self.roi is None:
            return (0.0, 1.0)
        return self.roi[axis], self.roi[len(self.shape) + axis]

    @property
    def changed(self) -> list[int]:
        """The axes that are resized."""
        return [
            d
            for d in range(len(self.shape))
            if self.shape[d] != self.out_shape[d] or self.scales[d] != 1 or self.span(d) != (0.0, 1.0)
        ]

    @property
    def runs(self) -> list[list[int]]:
        """The axes as the nearest kernel takes them: each changed one, and the adjacent others merged."""
        runs: list[list[int]] = []
        changed = self.changed
        for d in range(len(self.shape)):
            if d not in changed and runs and runs[-1][-1] not in changed:
                runs[-1].append(d)
            else:
                runs.append([d])
        return runs

    def needs(self) -> tuple[Need, ...]:
        return (Need("x", self.dtype, self.shape),)

    def makes(self) -> tuple[Need, ...]:
        return (Need("y", self.dtype, self.out_shape),)

    def is_free(self, axis: int) -> bool:
        """Whether the axis is of any length, on which neither the coordinates of its outputs nor their weights depend."""
        coordinates, length, out_length = self.mode.coordinates, self.shape[axis], self.out_shape[axis]
        free = coordinates in _FREE and not self.mode.exclude_outside
        if coordinates == "pytorch_half_pixel":
            free = free and out_length > 1  # a single output is at 0
        if coordinates == "half_pixel_symmetric":  # it is half_pixel where the scaled length has no fraction
            numerator, denominator = self.scales[axis].as_integer_ratio()
            free = free and length * numerator == out_length * denominator
        return free and serves_others(length)

    def samples(self, axis: int) -> tuple[np.ndarray, np.ndarray]:
        """`interpolation_table` of a changed axis; the first position of an output that takes the extrapolation value is -1."""
        coordinates, outside = self.sampled(axis)
        length = LIMIT if self.is_free(axis) else int(self.shape[axis])  # the kernel stays within the axis
        scale = self.scales[axis]
        if self.mode.mode == "nearest":
            at = nearest_positions(coordinates, length, self.mode.nearest, scale).astype(np.int32)[:, None]
            return at, np.ones(at.shape, np.float32)
        positions, weights = interpolation_table(coordinates, length, scale, self.mode)
        positions[outside, 0] = -1
        return positions, weights

    def sampled(self, axis: int) -> tuple[np.ndarray, np.ndarray]:
        """For a changed axis: float64 source coordinates, and the outputs that take the extrapolation value instead of
        an element."""
        if self.is_free(axis):  # for more outputs than the current size has
            count = room_for(self.out_shape[axis])
            coordinates = self.mode.coordinates.removesuffix("_symmetric")
            at = source_coordinates(count, count, self.scales[axis], coordinates)
            return at, np.zeros(count, bool)
        length, out_length = int(self.shape[axis]), int(self.out_shape[axis])
        at = source_coordinates(length, out_length, self.scales[axis], self.mode.coordinates, self.span(axis))
        return at, (at < 0) | (at > length - 1) if self.crops else np.zeros(len(at), bool)


def _takes_copy(problem: ResizeProblem, caps: DeviceCapabilities) -> str:
    return f"axes {problem.changed} change" if problem.changed else ""


def _copy(problem: ResizeProblem, e: Emission) -> list[KernelCall]:
    itemsize = element_type(problem.dtype).itemsize
    return copy(math.prod(problem.shape) * itemsize, e.caps, e["x"], e["y"], alignment=itemsize)


def _takes_nearest(problem: ResizeProblem, caps: DeviceCapabilities) -> str:
    if problem.mode.mode != "nearest":
        return f"{problem.mode.mode} interpolation"
    if any(map(problem.is_free, problem.changed)):
        return "its table of offsets is one for each size"
    return beyond_rank(len(problem.runs))


def _nearest(problem: ResizeProblem, e: Emission) -> KernelCall:
    strides, changed = contiguous_strides(problem.shape), problem.changed
    tables: list[np.ndarray] = []
    lengths: list[int] = []
    for run in problem.runs:
        lengths.append(math.prod(problem.out_shape[d] for d in run))
        table = np.arange(room_for(lengths[-1]), dtype=np.int64) * int(strides[run[-1]])
        if run[0] in changed:
            coordinates, outside = problem.sampled(run[0])
            axis = run[0]
            at = nearest_positions(coordinates, int(problem.shape[axis]), problem.mode.nearest, problem.scales[axis])
            table = at * int(strides[axis])
            table[outside] = -1
        tables.append(table)
    firsts = np.cumsum([0, *map(len, tables)])[:-1]
    total = math.prod(problem.out_shape)
    low, high = value_words(problem.mode.extrapolation, problem.dtype)
    return RESIZE_NEAREST.call(
        **flat_lanes(e.caps, total),
        operands={"x": e["x"], "offsets": e.target.constant(np.concatenate(tables).astype(np.int32)), "y": e["y"]},
        params={
            "total": total,
            "last": math.prod(problem.shape) - 1,
            "value_low": low,
            "value_high": high,
            **magic_dims(lengths),
            **numbered("first", [int(f) for f in firsts], 0),
        },
        spec={"RANK": len(tables)},
        defines=unit_defines(element_type(problem.dtype).itemsize),
    )


def _shrunk_first(problem: ResizeProblem) -> list[tuple[int, tuple[int, ...]]]:
    """Each changed axis, with the shape after it is resized: shrinking axes come first, which leaves less work for the
    others."""
    shape, steps = list(problem.shape), []
    for d in sorted(problem.changed, key=lambda d: problem.scales[d]):
        shape[d] = problem.out_shape[d]
        steps.append((d, tuple(shape)))
    return steps


def _takes_axes(problem: ResizeProblem, caps: DeviceCapabilities) -> str:
    kind = element_type(problem.dtype)
    if problem.mode.mode == "nearest" and not any(map(problem.is_free, problem.changed)):
        return "no interpolation"
    if problem.mode.mode == "nearest" and kind.kind != "float" and kind.itemsize >= 4:
        return f"{problem.dtype!r} has numbers that float32 has not"
    if kind.itemsize == 8 and kind.kind != "float":
        return f"{problem.mode.mode} interpolation of {problem.dtype!r} has no kernel (it computes in float32)"
    most = largest(*[math.prod(shape) for _, shape in _shrunk_first(problem)])
    return f"{most} elements between two axes; the kernels take fewer than 2**31" if most >= LIMIT else ""


def _axes(problem: ResizeProblem, e: Emission) -> list[KernelCall]:
    calls, source, source_type = [], e["x"], problem.dtype
    between = "float64" if problem.dtype == "float64" else "float32"
    steps = _shrunk_first(problem)
    for n, (d, shape) in enumerate(steps):
        before, (positions, weights) = problem.shape[d], problem.samples(d)
        last = n == len(steps) - 1
        target_type = problem.dtype if last else between
        target = e["y"] if last else e.target.scratch(between, shape)
        total, taps = math.prod(shape), positions.shape[1]
        call = RESIZE_AXIS.call(
            **flat_lanes(e.caps, total),
            operands={
                "x": source,
                "positions": e.target.constant(positions),
                "weights": e.target.constant(weights),
                "y": target,
            },
            params={
                "total": total,
                "axis": before,
                **magic_params("inner", math.prod(shape[d + 1 :])),
                **magic_params("out_axis", shape[d]),
                "taps": taps,
                "extrapolation": problem.mode.extrapolation,
            },
            defines=axis_defines(source_type, target_type),
            flops=2 * taps * total,
        )
        calls.append(call)
        source, source_type = target, target_type
    return calls


implement(
    ResizeProblem,
    Candidate("copy", _copy, when=_takes_copy),
    Candidate("nearest", _nearest, when=_takes_nearest),
    Candidate("axis by axis", _axes, when=_takes_axes),
)
