"""ONNX Resize: nearest, linear and cubic, at any rank.

The kernels (``shaders/resize_nearest.comp``, and ``shaders/resize_axis.comp`` axis by axis, since linear and cubic interpolation
are separable) read tables of positions and weights (`vkep.kernels.images.resize_tables`). Specification:
https://onnx.ai/onnx/operators/onnx__Resize.html.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from gpu_shared.capabilities import DeviceCapabilities
from vkep.errors import InvalidNode
from vkep.graph.resize import Scale
from vkep.kernels.dims import beyond_rank, last_coordinates, magic_dims
from vkep.kernels.fastdiv import LIMIT, magic_params
from vkep.kernels.images.resize_tables import Places, Sampling, offsets, weights
from vkep.kernels.indexing.pad import unit_defines, value_words
from vkep.kernels.kernel import Kernel, KernelCall
from vkep.kernels.launch import (
    ceil_div,
    contiguous_strides,
    element_defines,
    element_type,
    flat_lanes,
    numbered,
)
from vkep.kernels.problem import Need, Problem
from vkep.kernels.reference import wide
from vkep.kernels.select import Candidate, Emission, implement
from vkep.sizes import at_hand, largest, matches

T = TypeVar("T")


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


RESIZE_AXIS = Kernel("resize_axis.comp", variants=tuple(axis_defines(a, b) for a, b in _AHEAD), reach=_axis_reach)
RESIZE_NEAREST = Kernel("resize_nearest.comp", variants=tuple(map(unit_defines, (1, 2, 4, 8))), reach=_nearest_reach)
COORDINATES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_crop_and_resize",
    "tf_half_pixel_for_nn",
)
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


@dataclass(frozen=True)
class ResizeProblem(Problem):
    """``y`` of ``out_shape`` resampled from ``x`` of ``shape``; ``scales`` has the exact one of each axis.

    ``roi`` (starts then ends, of all axes) is for tf_crop_and_resize. Linear and cubic interpolation of integers
    truncates, as the reference implementation does.
    """

    shape: tuple[int, ...]
    out_shape: tuple[int, ...]
    scales: tuple[Scale, ...]
    mode: ResizeMode
    dtype: str
    roi: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        rank, shapes = len(self.shape), f"{list(self.shape)} to {list(self.out_shape)} by scales {list(self.scales)}"
        if not rank == len(self.out_shape) == len(self.scales):
            raise InvalidNode(f"{shapes}; they differ in rank")
        if any(size < 0 for size in self.out_shape):
            raise InvalidNode(f"{shapes}; sizes are not negative")
        if self.crops and (self.roi is None or len(self.roi) != 2 * rank or not all(map(math.isfinite, self.roi))):
            raise InvalidNode(f"tf_crop_and_resize needs a roi of {2 * rank} numbers; got {self.roi}")
        if 0 in self.shape and 0 not in self.out_shape:
            raise InvalidNode(f"{shapes}; the input is empty")

    @property
    def crops(self) -> bool:
        """Whether the input's region of interest counts (tf_crop_and_resize)."""
        return self.mode.coordinates == "tf_crop_and_resize"

    gives_image = True

    def lying_last(self, shape: tuple[int, ...]) -> ResizeProblem | None:
        if self.shape != shape:
            return None

        def last(of_axes: tuple[T, ...]) -> tuple[T, ...]:
            return (of_axes[0], *of_axes[2:], of_axes[1])

        rank = len(self.shape)
        roi = None if self.roi is None else (*last(self.roi[:rank]), *last(self.roi[rank:]))
        return replace(self, shape=last(self.shape), out_shape=last(self.out_shape), scales=last(self.scales), roi=roi)

    def span(self, axis: int) -> tuple[float, float]:
        """The part of an axis that is resized."""
        if not self.crops or self.roi is None:
            return (0.0, 1.0)
        return self.roi[axis], self.roi[len(self.shape) + axis]

    @property
    def changed(self) -> list[int]:
        """The axes that are resized; of a plan with sizes also those that some sizes leave as they are."""
        return [
            d
            for d in range(len(self.shape))
            if not matches(self.shape[d], self.out_shape[d])
            or not matches(*self.scales[d])
            or self.span(d) != (0.0, 1.0)
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

    def places(self, axis: int) -> Places:
        """Where the outputs of an axis are on the input's."""
        length, count = self.shape[axis], self.out_shape[axis]
        return Places.of(length, count, self.scales[axis], self.mode.coordinates, self.span(axis))

    def sampling(self, axis: int) -> Sampling:
        """How linear or cubic interpolation weighs the elements of an axis."""
        mode = self.mode
        cubic = mode.cubic_a if mode.mode == "cubic" else None
        return Sampling.of(
            self.scales[axis],
            cubic=cubic,
            antialias=mode.antialias,
            exclude_outside=mode.exclude_outside,
            crops=self.crops,
        )

    def reference(self, x: np.ndarray) -> np.ndarray:
        y, mode = wide(x), self.mode
        for axis in self.changed:
            places = self.places(axis).plain
            if mode.mode == "nearest":
                y = np.take(y, places.nearest(mode.nearest, self.scales[axis][0] < self.scales[axis][1]), axis)
            else:
                positions, weights = self.sampling(axis).plain.table(places)
                taken = np.take(y, np.maximum(positions, 0), axis)  # [.., outputs, taps, ..]
                y = np.sum(taken * weights.reshape(*weights.shape, *(1,) * (y.ndim - axis - 1)), axis=axis + 1)
            if self.crops:
                outside = places.outside.reshape(-1, *(1,) * (y.ndim - axis - 1))
                y = np.where(outside, mode.extrapolation, y)
        if x.dtype.kind == "f":
            return y
        limits = np.iinfo(x.dtype) if x.dtype.kind != "b" else np.iinfo(np.uint8)
        return np.trunc(np.clip(y, limits.min, limits.max))


def _takes_nearest(problem: ResizeProblem, caps: DeviceCapabilities) -> str:
    if problem.mode.mode != "nearest":
        return f"{problem.mode.mode} interpolation"
    return beyond_rank(len(problem.runs))


def _nearest(problem: ResizeProblem, e: Emission) -> list[KernelCall]:
    strides, changed = contiguous_strides(problem.shape), problem.changed
    axes = []
    for run in problem.runs:
        count = math.prod(problem.out_shape[d] for d in run)
        places = problem.places(run[0]) if run[0] in changed else Places(1, 0, 1, count, count)
        axes.append((places, strides[run[-1]]))
    mode = problem.mode.nearest
    shrinks = [mode == "outwards" and problem.scales[run[0]][0] < problem.scales[run[0]][1] for run in problem.runs]
    table, firsts, calls = offsets(e, axes, mode, shrinks, problem.crops)
    total = math.prod(problem.out_shape)
    low, high = value_words(problem.mode.extrapolation, problem.dtype)
    call = RESIZE_NEAREST.call(
        **flat_lanes(e.caps, total),
        operands={"x": e["x"], "offsets": table, "y": e["y"]},
        params={
            "total": total,
            "last": math.prod(problem.shape) - 1,
            "value_low": low,
            "value_high": high,
            **magic_dims([places.count for places, _ in axes]),
            **numbered("first", firsts, 0),
        },
        spec={"RANK": len(axes)},
        defines=unit_defines(element_type(problem.dtype).itemsize),
    )
    return [*calls, call]


def _shrunk_first(problem: ResizeProblem) -> list[tuple[int, tuple[int, ...]]]:
    """Each changed axis, with the shape after it is resized: shrinking axes come first, which leaves less work for the
    others."""
    shape, steps = list(problem.shape), []
    for d in sorted(problem.changed, key=lambda d: _factor(*problem.scales[d])):
        shape[d] = problem.out_shape[d]
        steps.append((d, tuple(shape)))
    return steps


@at_hand
def _factor(numerator: int, denominator: int) -> float:
    return numerator / denominator


def _takes_axes(problem: ResizeProblem, caps: DeviceCapabilities) -> str:
    kind = element_type(problem.dtype)
    if problem.mode.mode == "nearest":
        return "no interpolation"
    if kind.itemsize == 8 and kind.kind != "float":
        return f"{problem.mode.mode} interpolation of {problem.dtype!r} has no kernel (it computes in float32)"
    most = largest(*[math.prod(shape) for _, shape in _shrunk_first(problem)])
    return f"{most} elements between two axes; the kernels take fewer than 2**31" if most >= LIMIT else ""


def _axes(problem: ResizeProblem, e: Emission) -> list[KernelCall]:
    calls: list[KernelCall] = []
    source, source_type = e["x"], problem.dtype
    between = "float64" if problem.dtype == "float64" else "float32"
    steps = _shrunk_first(problem)
    for n, (d, shape) in enumerate(steps):
        positions, made, taps, before = weights(e, problem.places(d), problem.sampling(d))
        last = n == len(steps) - 1
        target_type = problem.dtype if last else between
        target = e["y"] if last else e.target.scratch(between, shape)
        total = math.prod(shape)
        calls += before
        call = RESIZE_AXIS.call(
            **flat_lanes(e.caps, total),
            operands={
                "x": source,
                "positions": positions,
                "weights": made,
                "y": target,
            },
            params={
                "total": total,
                "axis": problem.shape[d],
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
    Candidate("nearest", _nearest, when=_takes_nearest),
    Candidate("axis by axis", _axes, when=_takes_axes),
)
