"""Sampling an image at positions that other tensors give: GridSample, RoiAlign, MaxRoiPool, CropAndResize."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gpu_shared.capabilities import DeviceCapabilities
from vkep.errors import InvalidNode
from vkep.kernels.fastdiv import magic_params
from vkep.kernels.indices import FAULT_REACH, index_defines, noting, within
from vkep.kernels.kernel import Kernel, KernelCall
from vkep.kernels.launch import ceil_div, element_defines, element_type, flat_lanes, real_defines
from vkep.kernels.problem import Need, Problem
from vkep.kernels.reference import bilinear, corners
from vkep.kernels.select import Candidate, Emission, implement

METHODS = ("nearest", "linear", "cubic")
PADDINGS = ("zeros", "border", "reflection")
#: most samples along an axis of a bin for one lane
LARGEST_SAMPLING_RATIO = 1024


#: integers that float32 does not hold exactly, and float64 does
_WIDE = ("int32", "uint32")


def _grid_defines(dtype: str, grid_dtype: str) -> dict[str, str]:
    kind = element_type(grid_dtype)
    extra = {"GRID_BFLOAT16": "1"} if kind.name == "bfloat16" else {"GRID_T": kind.glsl}
    return element_defines(dtype) | extra | real_defines("float64" if dtype in _WIDE else dtype, grid_dtype)


def _grid_reach(call: KernelCall) -> Mapping[str, int]:
    planes, rank = ceil_div(call["total"], call["points"]), call["RANK"]
    defines = call.defines
    places = ceil_div(planes, call["channels"]) * call["points"] * rank
    return {
        "x": planes * math.prod(call[f"size{axis}"] for axis in range(rank)) * call.size_of("IN_T"),
        "grid": places * (2 if "GRID_BFLOAT16" in defines else call.size_of("GRID_T")),
        "y": call["total"] * call.size_of("OUT_T"),
    }


def _regions_reach(call: KernelCall, numbers: int) -> dict[str, int]:
    regions = ceil_div(call["total"], call["channels"] * call["out_height"] * call["out_width"])
    size = call.size_of("IN_T")
    return {
        "x": call["batches"] * call["channels"] * call["height"] * call["width"] * size,
        "rois": regions * numbers * size,
        "indices": regions * 4 * int(call.defines.get("INDEX_WORDS", "0")),
        "y": call["total"] * call.size_of("OUT_T"),
        **FAULT_REACH,
    }


_REGION_SIZES = ("total", "channels", "height", "width", "batches", "out_height", "out_width")
GRID_SAMPLE = Kernel(
    "grid_sample.comp",
    variants=(_grid_defines("float32", "float32"), _grid_defines("float16", "float16")),
    reach=_grid_reach,
)
ROI_ALIGN = Kernel(
    "roi_align.comp",
    variants=({**element_defines("float32"), "INDEX_WORDS": "2"},),
    reach=lambda call: _regions_reach(call, 4),
)
CROP = Kernel(
    "crop_and_resize.comp",
    variants=(element_defines("float32") | index_defines("int32"),),
    reach=lambda call: _regions_reach(call, 4),
)
MAX_ROI_POOL = Kernel(
    "max_roi_pool.comp", variants=(element_defines("float32"),), reach=lambda call: _regions_reach(call, 5)
)


@dataclass(frozen=True)
class GridSampleProblem(Problem):
    """ONNX GridSample: ``y`` [n, c, *points] from ``x`` of ``shape`` [n, c, *spatial] and ``grid`` [n, *points, rank]."""

    shape: tuple[int, ...]
    points: tuple[int, ...]
    method: str
    padding: str
    align_corners: bool
    dtype: str
    grid_dtype: str

    def __post_init__(self) -> None:
        if self.method not in METHODS or self.padding not in PADDINGS:
            raise InvalidNode(
                f"mode {self.method!r} and padding {self.padding!r}; expected one of {METHODS} and {PADDINGS}"
            )
        if self.rank < 1 or len(self.points) != self.rank:
            raise InvalidNode(
                f"the grid has {len(self.points)} axes of points for an image of shape {list(self.shape)}"
            )
        if self.makes()[0].extent and 0 in self.shape:
            raise InvalidNode(f"points of an image without elements, of shape {list(self.shape)}")

    @property
    def rank(self) -> int:
        """Number of spatial axes."""
        return len(self.shape) - 2

    def needs(self) -> tuple[Need, ...]:
        grid = (*self.shape[:1], *self.points, self.rank)
        return Need("x", self.dtype, self.shape), Need("grid", self.grid_dtype, grid)

    def makes(self) -> tuple[Need, ...]:
        return (Need("y", self.dtype, (*self.shape[:2], *self.points)),)

    def reference(self, x: np.ndarray, grid: np.ndarray) -> np.ndarray:
        n, channels = self.shape[:2]
        places, weights = [], []
        for axis, size in enumerate(self.shape[2:]):
            at = grid[..., self.rank - 1 - axis].reshape(n, -1)
            low, high = (0.0, size - 1.0) if self.align_corners else (-0.5, size - 0.5)
            at = (at + 1) / 2 * (size - 1) if self.align_corners else ((at + 1) * size - 1) / 2
            at = np.where(np.abs(at) <= 2.0**62, at, low)
            at = np.rint(at) if self.method == "nearest" else at
            at = _reflected(at, low, high) if self.padding == "reflection" else at
            at = np.clip(at, -1e6, 1e6 + size)
            first, taps = np.floor(at), {"nearest": [0], "linear": [0, 1], "cubic": [-1, 0, 1, 2]}[self.method]
            distance = np.abs(np.array(taps)[:, None, None] - (at - first))
            weight = np.ones_like(distance) if self.method == "nearest" else 1 - distance
            if self.method == "cubic":
                near = (1.25 * distance - 2.25) * distance**2 + 1
                far = ((-0.75 * distance + 3.75) * distance - 6) * distance + 3
                weight = np.where(distance <= 1, near, far)
            taken = np.array(taps)[:, None, None] + first
            if self.padding == "reflection":
                taken = np.trunc(_reflected(taken, low, high))
            weight = np.where((taken >= 0) & (taken < size), weight, 0.0) if self.padding == "zeros" else weight
            places.append(np.clip(taken, 0, size - 1).astype(np.int64))
            weights.append(weight)
        y = np.zeros((n, channels, math.prod(self.points)))
        image = np.arange(n)[:, None]
        for tap in np.ndindex(*map(len, places)):
            pixel = tuple(p[t] for p, t in zip(places, tap, strict=True))
            weight = math.prod(w[t] for w, t in zip(weights, tap, strict=True))
            y += np.moveaxis(np.moveaxis(x, 1, -1)[(image, *pixel)] * weight[..., None], -1, 1)
        return y.reshape(n, channels, *self.points)


def _takes_grid(problem: GridSampleProblem, caps: DeviceCapabilities) -> str:
    if problem.rank > 3:
        return f"{problem.rank} spatial axes; the kernel takes 1 to 3"
    if element_type(problem.dtype).kind != "float" and problem.method != "nearest":
        return f"{problem.method} samples of {problem.dtype}, whose rounding ONNX leaves open"
    if problem.dtype in _WIDE and not caps.has("float64"):
        return f"{problem.dtype} is computed in float64, which the device has not"
    return ""


def _grid_sample(problem: GridSampleProblem, e: Emission) -> KernelCall:
    count = math.prod(problem.points)
    total = problem.makes()[0].extent
    sizes = [*problem.shape[2:], 1, 1]
    return GRID_SAMPLE.call(
        **flat_lanes(e.caps, total),
        operands=e.operands,
        params={
            "total": total,
            **magic_params("channels", problem.shape[1]),
            **magic_params("points", count),
            "size0": sizes[0],
            "size1": sizes[1],
            "size2": sizes[2],
        },
        spec={
            "RANK": problem.rank,
            "METHOD": METHODS.index(problem.method),
            "PADDING": PADDINGS.index(problem.padding),
            "ALIGN": int(problem.align_corners),
        },
        defines=_grid_defines(problem.dtype, problem.grid_dtype),
    )


implement(GridSampleProblem, Candidate("grid sample", _grid_sample, when=_takes_grid))


@dataclass(frozen=True)
class _Regions(Problem):
    """``y`` [regions, c, *out_size] from ``x`` of ``shape`` [n, c, h, w] and ``rois``, the regions of its images."""

    shape: tuple[int, ...]
    regions: int
    out_size: tuple[int, int]
    dtype: str

    def __post_init__(self) -> None:
        if len(self.shape) != 4 or any(size < 1 for size in self.out_size):
            shapes = f"regions of {list(self.shape)} as {list(self.out_size)}"
            raise InvalidNode(f"{shapes}; expected images [N, C, H, W] and positive sizes")
        if self.makes()[0].extent and 0 in self.shape:
            raise InvalidNode(f"regions of images without elements, of shape {list(self.shape)}")

    @property
    def fault(self) -> str:
        """The error's message where a region's image does not exist."""
        return f"a region's batch index is outside [0, {self.shape[0] - 1}]"

    def makes(self) -> tuple[Need, ...]:
        return (Need("y", self.dtype, (self.regions, self.shape[1], *self.out_size)),)

    @property
    def sizes(self) -> dict[str, int]:
        """The arguments that both kernels have."""
        total, batches = self.makes()[0].extent, self.shape[0]
        return dict(zip(_REGION_SIZES, (total, *self.shape[1:], batches, *self.out_size), strict=True))


@dataclass(frozen=True)
class RoiAlignProblem(_Regions):
    """ONNX RoiAlign; ``rois`` [regions, 4] are corners, ``indices`` [regions] their images."""

    spatial_scale: float
    index_dtype: str
    sampling_ratio: int
    half_pixel: bool
    maximum: bool

    @property
    def fault(self) -> str:
        fault = super().fault
        return f"{fault}, or its bins have more than 65536 samples along an axis" if self.sampling_ratio <= 0 else fault

    def needs(self) -> tuple[Need, ...]:
        return (
            Need("x", self.dtype, self.shape),
            Need("rois", self.dtype, (self.regions, 4)),
            Need("indices", self.index_dtype, (self.regions,)),
        )

    def reference(self, x: np.ndarray, rois: np.ndarray, indices: np.ndarray) -> np.ndarray:
        y = np.zeros((self.regions, self.shape[1], *self.out_size))
        for region, (box, image) in enumerate(zip(rois, within(indices, self.shape[0], False), strict=True)):
            left, top, right, bottom = box * self.spatial_scale - (0.5 if self.half_pixel else 0.0)
            axes = []
            for low, high, count in ((top, bottom, self.out_size[0]), (left, right, self.out_size[1])):
                extent = high - low if self.half_pixel else max(high - low, 1.0)
                samples = self.sampling_ratio if self.sampling_ratio > 0 else max(math.ceil(extent / count), 0)
                axes.append(
                    low + (np.arange(count)[:, None] + (np.arange(samples) + 0.5) / max(samples, 1)) * extent / count
                )
            v, u = axes[0][:, :, None, None], axes[1]  # [rows, samples, columns, samples]
            weighted = corners(x[image], v, u)
            if self.maximum:
                y[region] = weighted.max(axis=0).max(axis=(2, 4), initial=-np.inf)
                y[region][np.isneginf(y[region])] = 0.0
            else:
                y[region] = weighted.sum(axis=(0, 3, 5)) / max(axes[0].shape[1] * axes[1].shape[1], 1)
        return y


def _takes_roi_align(problem: RoiAlignProblem, caps: DeviceCapabilities) -> str:
    if problem.sampling_ratio > LARGEST_SAMPLING_RATIO:
        return f"sampling_ratio is {problem.sampling_ratio}; the kernel takes up to {LARGEST_SAMPLING_RATIO}"
    return ""


def _roi_align(problem: RoiAlignProblem, e: Emission) -> KernelCall:
    fault, code = noting(e, problem.fault)
    return ROI_ALIGN.call(
        **flat_lanes(e.caps, problem.sizes["total"]),
        operands={**e.operands, "fault": fault},
        params={
            **problem.sizes,
            "sampling_ratio": problem.sampling_ratio,
            "spatial_scale": problem.spatial_scale,
            "offset": 0.5 if problem.half_pixel else 0.0,
            "fault_code": code,
        },
        spec={"MAXIMUM": int(problem.maximum)},
        defines=element_defines(problem.dtype) | index_defines(problem.index_dtype) | real_defines(problem.dtype),
    )


implement(RoiAlignProblem, Candidate("roi align", _roi_align, when=_takes_roi_align))


@dataclass(frozen=True)
class MaxRoiPoolProblem(_Regions):
    """ONNX MaxRoiPool; ``rois`` [regions, 5] are an image and corners."""

    spatial_scale: float

    def needs(self) -> tuple[Need, ...]:
        return Need("x", self.dtype, self.shape), Need("rois", self.dtype, (self.regions, 5))

    def reference(self, x: np.ndarray, rois: np.ndarray) -> np.ndarray:
        y = np.zeros((self.regions, self.shape[1], *self.out_size))
        for region, (image, *box) in enumerate(rois):
            corners = [float(np.float32(corner) * np.float32(self.spatial_scale)) for corner in box]
            left, top, right, bottom = (int(np.copysign(np.floor(abs(c) + 0.5), c)) for c in corners)
            of = x[min(max(int(image + 0.5), 0), self.shape[0] - 1)]
            for row, column in np.ndindex(*self.out_size):
                rows = _bin(top, bottom, row, self.out_size[0], self.shape[2])
                part = of[:, rows, _bin(left, right, column, self.out_size[1], self.shape[3])]
                y[region, :, row, column] = part.max(axis=(1, 2)) if part.size else 0.0
        return y


def _max_roi_pool(problem: MaxRoiPoolProblem, e: Emission) -> KernelCall:
    fault, code = noting(e, problem.fault)
    return MAX_ROI_POOL.call(
        **flat_lanes(e.caps, problem.sizes["total"]),
        operands={**e.operands, "fault": fault},
        params={**problem.sizes, "spatial_scale": problem.spatial_scale, "fault_code": code},
        defines=element_defines(problem.dtype),
    )


implement(MaxRoiPoolProblem, Candidate("max roi pool", _max_roi_pool))


@dataclass(frozen=True)
class CropProblem(_Regions):
    """Boxes of images, resized: ``rois`` [regions, 4] are top, left, bottom and right of each, as parts of its image's
    height and width; ``indices`` [regions] their images (int32). Points outside of the image have the value
    ``outside``.
    """

    outside: float
    nearest: bool

    def needs(self) -> tuple[Need, ...]:
        return (
            Need("x", self.dtype, self.shape),
            Need("rois", self.dtype, (self.regions, 4)),
            Need("indices", "int32", (self.regions,)),
        )

    def reference(self, x: np.ndarray, rois: np.ndarray, indices: np.ndarray) -> np.ndarray:
        y = np.empty((self.regions, self.shape[1], *self.out_size))
        for region, (box, image) in enumerate(zip(rois, within(indices, self.shape[0], False), strict=True)):
            axes = []
            for axis, count in enumerate(self.out_size):
                last = self.shape[2 + axis] - 1
                parts = np.linspace(0.0, 1.0, count) if count > 1 else np.array([0.5])
                axes.append((box[axis] + parts * (box[2 + axis] - box[axis])) * last)
            v, u = axes[0][:, None], axes[1][None, :]
            inside = (v >= 0) & (v <= self.shape[2] - 1) & (u >= 0) & (u <= self.shape[3] - 1)
            v, u = np.broadcast_arrays(np.where(inside, v, 0.0), np.where(inside, u, 0.0))
            if self.nearest:
                v, u = np.floor(v + 0.5), np.floor(u + 0.5)
            y[region] = np.where(inside, bilinear(x[image], v, u), self.outside)
        return y


def _crop(problem: CropProblem, e: Emission) -> KernelCall:
    fault, code = noting(e, problem.fault)
    return CROP.call(
        **flat_lanes(e.caps, problem.sizes["total"]),
        operands={**e.operands, "fault": fault},
        params={**problem.sizes, "outside": problem.outside, "fault_code": code},
        spec={"NEAREST": int(problem.nearest)},
        defines={**element_defines(problem.dtype), **index_defines("int32")},
    )


def _takes_crop(problem: CropProblem, caps: DeviceCapabilities) -> str:
    return "float64; the kernel computes in float32" if problem.dtype == "float64" else ""


implement(CropProblem, Candidate("crop", _crop, when=_takes_crop))


def _reflected(at: np.ndarray, low: float, high: float) -> np.ndarray:
    """Positions outside [low, high] reflected into it."""
    span = high - low
    if span <= 0:
        return np.where((at >= low) & (at <= high), at, low)
    phase = np.mod(at - low, 2 * span)
    return np.where((at >= low) & (at <= high), at, low + np.where(phase > span, 2 * span - phase, phase))


def _bin(low: int, high: int, at: int, bins: int, size: int) -> slice:
    """The pixels of one of a region's bins on an axis of ``size``."""
    extent = max(high - low + 1, 1)
    first, end = low + at * extent // bins, low - (-(at + 1) * extent // bins)
    return slice(min(max(first, 0), size), min(max(end, 0), size))
