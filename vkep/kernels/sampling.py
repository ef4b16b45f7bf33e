"""Sampling an image at positions that other tensors give: GridSample, RoiAlign, MaxRoiPool, CropAndResize."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from gpu_shared.capabilities import DeviceCapabilities
from vkep.errors import InvalidNode
from vkep.kernels.fastdiv import magic_fields, magic_params
from vkep.kernels.indices import FAULT, FAULT_CODE, FAULT_REACH, index_defines, noting
from vkep.kernels.kernel import Kernel, KernelCall, Operand, uints
from vkep.kernels.launch import ceil_div, element_defines, element_type, flat_lanes, real_defines
from vkep.kernels.problem import Need, Problem
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
    defines = dict(call.variant.defines)
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
        "indices": regions * 4 * int(dict(call.variant.defines).get("INDEX_WORDS", "0")),
        "y": call["total"] * call.size_of("OUT_T"),
        **FAULT_REACH,
    }


_REGION_SIZES = ("total", "channels", "height", "width", "batches", "out_height", "out_width")
GRID_SAMPLE = Kernel(
    "grid_sample.comp",
    operands=(Operand("x"), Operand("grid"), Operand("y", writes=True)),
    params=(
        ("total", "uint"),
        *magic_fields("channels", "points"),
        *uints("size0", "size1", "size2"),
    ),
    spec={"RANK": 2, "METHOD": 1, "PADDING": 0, "ALIGN": 0},
    variants=(_grid_defines("float32", "float32"), _grid_defines("float16", "float16")),
    reach=_grid_reach,
)
ROI_ALIGN = Kernel(
    "roi_align.comp",
    operands=(Operand("x"), Operand("rois"), Operand("indices"), Operand("y", writes=True), FAULT),
    params=(
        *((name, "uint") for name in _REGION_SIZES),
        ("sampling_ratio", "int"),
        ("spatial_scale", "float"),
        ("offset", "float"),
        FAULT_CODE,
    ),
    spec={"MAXIMUM": 0},
    variants=({**element_defines("float32"), "INDEX_WORDS": "2"},),
    reach=lambda call: _regions_reach(call, 4),
)
CROP = Kernel(
    "crop_and_resize.comp",
    operands=(Operand("x"), Operand("rois"), Operand("indices"), Operand("y", writes=True), FAULT),
    params=(*((name, "uint") for name in _REGION_SIZES), ("outside", "float"), FAULT_CODE),
    spec={"NEAREST": 0},
    variants=(element_defines("float32") | index_defines("int32"),),
    reach=lambda call: _regions_reach(call, 4),
)
MAX_ROI_POOL = Kernel(
    "max_roi_pool.comp",
    operands=(Operand("x"), Operand("rois"), Operand("y", writes=True), FAULT),
    params=(*((name, "uint") for name in _REGION_SIZES), ("spatial_scale", "float"), FAULT_CODE),
    variants=(element_defines("float32"),),
    reach=lambda call: _regions_reach(call, 5),
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
        if len(self.shape) != 4 or min(self.out_size) < 1:
            told = f"regions of {list(self.shape)} as {list(self.out_size)}"
            raise InvalidNode(f"{told}; expected images [N, C, H, W] and positive sizes")
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
        told = super().fault
        return f"{told}, or its bins have more than 65536 samples along an axis" if self.sampling_ratio <= 0 else told

    def needs(self) -> tuple[Need, ...]:
        return (
            Need("x", self.dtype, self.shape),
            Need("rois", self.dtype, (self.regions, 4)),
            Need("indices", self.index_dtype, (self.regions,)),
        )


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
