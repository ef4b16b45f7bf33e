"""ONNX Resize: nearest, linear and cubic, at any rank.

Coordinates and weights are tabulated here in float64, once a plan, so that ties fall as the specification says; the
kernels only follow the tables (``shaders/resize_nearest.comp``, and ``shaders/resize_axis.comp`` axis by axis, since
linear and cubic interpolation are separable). Specification: https://onnx.ai/onnx/operators/onnx__Resize.html.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpu_shared.capabilities import DeviceCapabilities
from vkep.kernels.fastdiv import magic_fields, magic_params
from vkep.kernels.gather import copy, magic_dims
from vkep.kernels.kernel import Kernel, KernelCall, Operand
from vkep.kernels.launch import (
    MAX_RANK,
    Workspace,
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
from vkep.kernels.pad import unit_defines, value_words


def axis_defines(dtype: str, out: str) -> dict[str, str]:
    """The variant from elements of ``dtype`` to elements of ``out``: floats between, clamped to the integers' range."""
    kind = element_type(out)
    defines = element_defines(dtype, out) | {"COMPUTE_T": "float", "CONVERT(v)": "v"}
    if kind.kind != "float":
        info = np.iinfo(np.uint8 if kind.kind == "bool" else kind.numpy)
        greatest = np.nextafter(np.float32(info.max), np.float32(0)) if info.max >= 2**24 else np.float32(info.max)
        defines["CONVERT(v)"] = f"clamp(v, {float(info.min)}, {float(greatest)})"
    return defines


_AHEAD = [
    ("float32", "float32"),
    *((a, b) for t in ("float16", "uint8") for a, b in ((t, t), (t, "float32"), ("float32", t))),
]

RESIZE_AXIS = Kernel(
    "resize_axis.comp",
    operands=(Operand("x"), Operand("positions"), Operand("weights"), Operand("y", writes=True)),
    params=(
        ("total", "uint"),
        ("axis", "uint"),
        *magic_fields("inner", "out_axis"),
        ("taps", "uint"),
        ("extrapolation", "float"),
    ),
    variants=tuple(axis_defines(a, b) for a, b in _AHEAD),
)
RESIZE_NEAREST = Kernel(
    "resize_nearest.comp",
    operands=(Operand("x"), Operand("offsets"), Operand("y", writes=True)),
    params=(
        ("total", "uint"),
        ("value_low", "uint"),
        ("value_high", "uint"),
        *fields8("dim", "mul", "shift", "first"),
    ),
    spec={"RANK": 1},
    variants=tuple(map(unit_defines, (1, 2, 4, 8))),
)
COORDINATES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_crop_and_resize",
)
NEAREST_MODES = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


@dataclass(frozen=True)
class ResizeMode:
    """The attributes of ONNX Resize, by their own names."""

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
                raise ValueError(f"resize: {what} is {got!r}, expected one of {list(expected)}")


def source_coordinates(
    length: int, out_length: int, scale: float, mode: str, roi: tuple[float, float] = (0.0, 1.0)
) -> np.ndarray:
    """float64 [out_length]: where each output position lies on the input axis of ``length`` elements."""
    position = np.arange(out_length, dtype=np.float64)
    resized = scale * length  # the length before it was rounded to out_length
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
    centred = (position + 0.5) / scale - 0.5
    if mode == "half_pixel_symmetric":
        return centred + length / 2 * (1 - out_length / resized)
    return centred


def nearest_positions(coordinates: np.ndarray, length: int, mode: str) -> np.ndarray:
    """int64: the nearest input position of each coordinate, within the axis."""
    shift = {"round_prefer_floor": -0.5, "round_prefer_ceil": 0.5}.get(mode, 0.0)
    up = mode in ("round_prefer_floor", "ceil")
    rounded = np.ceil(coordinates + shift) if up else np.floor(coordinates + shift)
    return np.clip(rounded, 0, length - 1).astype(np.int64)


def _kernel(distance: np.ndarray, attributes: ResizeMode) -> np.ndarray:
    """Weight of a sample at this distance: the triangle, or Keys' cubic convolution (IEEE TASSP 29(6), 1981)."""
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


def resize(
    shape: Sequence[int],
    out_shape: Sequence[int],
    scales: Sequence[float],
    attributes: ResizeMode,
    dtype: str,
    caps: DeviceCapabilities,
    x: Any,
    y: Any,
    workspace: Workspace,
    roi: Sequence[float] | None = None,
) -> list[KernelCall]:
    """``y`` of ``out_shape`` resampled from ``x`` of ``shape``; ``scales`` an axis (1 where an axis stays).

    ``roi`` (starts then ends, of all axes) is for tf_crop_and_resize. Linear and cubic interpolation of integers
    truncates, as the reference implementation does. Raises `ValueError` for ranks that differ, empty input axes or
    float64.
    """
    rank = len(shape)
    if not rank == len(out_shape) == len(scales) or (roi is not None and len(roi) != 2 * rank):
        raise ValueError(
            f"resize: shape {tuple(shape)}, output {tuple(out_shape)}, scales {tuple(scales)} differ in rank"
        )
    crop = attributes.coordinates == "tf_crop_and_resize"
    if crop and roi is None:
        raise ValueError("resize: tf_crop_and_resize needs a roi")
    element_count("resize input", *shape)
    if not element_count("resize output", *out_shape):
        return []
    if 0 in shape:
        raise ValueError(f"resize: input shape {tuple(shape)} is empty, output {tuple(out_shape)} is not")
    itemsize = element_type(dtype).itemsize
    spans = [(roi[d], roi[rank + d]) if crop and roi is not None else (0.0, 1.0) for d in range(rank)]
    changed = [d for d in range(rank) if shape[d] != out_shape[d] or scales[d] != 1 or spans[d] != (0.0, 1.0)]
    if not changed:
        return copy(math.prod(shape) * itemsize, caps, x, y, alignment=itemsize)
    coordinates = {
        d: source_coordinates(shape[d], out_shape[d], scales[d], attributes.coordinates, spans[d]) for d in changed
    }
    outside = {d: (c < 0) | (c > shape[d] - 1) if crop else np.zeros(len(c), bool) for d, c in coordinates.items()}
    if attributes.mode == "nearest":
        return [_nearest(shape, out_shape, coordinates, outside, attributes, dtype, caps, x, y, workspace)]
    if itemsize == 8:
        raise ValueError(f"resize: {attributes.mode} interpolation of {dtype!r} has no kernel (it computes in float32)")
    calls, current, source, source_type = [], list(shape), x, dtype
    order = sorted(changed, key=lambda d: scales[d])  # shrink first: less to do after
    for n, d in enumerate(order):
        positions, weights = interpolation_table(coordinates[d], shape[d], scales[d], attributes)
        positions[outside[d], 0] = -1
        before, current[d] = current[d], out_shape[d]
        last = n == len(order) - 1
        target_type = dtype if last else "float32"
        target = y if last else workspace.scratch("float32", tuple(current))
        outer, inner = math.prod(current[:d]), math.prod(current[d + 1 :])
        operands = {
            "x": source,
            "positions": workspace.constant(positions),
            "weights": workspace.constant(weights),
            "y": target,
        }
        sizes = (outer, before, inner, out_shape[d], positions.shape[1])
        calls.append(_axis(sizes, source_type, target_type, attributes.extrapolation, caps, operands))
        source, source_type = target, target_type
    return calls


def _axis(
    sizes: tuple[int, int, int, int, int],
    dtype: str,
    out: str,
    extrapolation: float,
    caps: DeviceCapabilities,
    operands: dict[str, Any],
) -> KernelCall:
    outer, axis, inner, out_axis, taps = sizes
    total = element_count("resize output", outer, out_axis, inner)
    local = lanes(caps, total)
    return RESIZE_AXIS.call(
        grid=grid(ceil_div(total, local)),
        operands=operands,
        params={
            "total": total,
            "axis": axis,
            **magic_params("inner", inner),
            **magic_params("out_axis", out_axis),
            "taps": taps,
            "extrapolation": extrapolation,
        },
        defines=axis_defines(dtype, out),
        local_size=(local,),
        flops=2 * taps * total,
    )


def _nearest(
    shape: Sequence[int],
    out_shape: Sequence[int],
    coordinates: dict[int, np.ndarray],
    outside: dict[int, np.ndarray],
    attributes: ResizeMode,
    dtype: str,
    caps: DeviceCapabilities,
    x: Any,
    y: Any,
    workspace: Workspace,
) -> KernelCall:
    strides = contiguous_strides(shape)
    dims: list[int] = []
    tables: list[np.ndarray] = []
    run: list[int] = []  # unchanged axes in a row are one axis to the kernel

    def close_run() -> None:
        if run:
            length = math.prod(shape[d] for d in run)
            dims.append(length)
            tables.append(np.arange(length, dtype=np.int64) * strides[run[-1]])
            run.clear()

    for d in range(len(shape)):
        if d not in coordinates:
            run.append(d)
            continue
        close_run()
        table = nearest_positions(coordinates[d], shape[d], attributes.nearest) * strides[d]
        table[outside[d]] = -1
        dims.append(out_shape[d])
        tables.append(table)
    close_run()
    if len(dims) > MAX_RANK:
        raise ValueError(f"resize: {len(dims)} axes after merging, expected at most {MAX_RANK}")
    firsts = np.cumsum([0, *map(len, tables)])[:-1]
    total = math.prod(out_shape)
    local = lanes(caps, total)
    low, high = value_words(attributes.extrapolation, dtype)
    return RESIZE_NEAREST.call(
        grid=grid(ceil_div(total, local)),
        operands={"x": x, "offsets": workspace.constant(np.concatenate(tables).astype(np.int32)), "y": y},
        params={
            "total": total,
            "value_low": low,
            "value_high": high,
            **magic_dims(dims),
            **numbered("first", [int(f) for f in firsts], 0),
        },
        spec={"RANK": len(dims)},
        defines=unit_defines(element_type(dtype).itemsize),
        local_size=(local,),
    )
