"""Convolutions: kernel declarations, and the choice of kernel and tiling for a shape and a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gpu_shared.capabilities import DeviceCapabilities
from vkep.kernels.epilogue import Epilogue, call_arguments
from vkep.kernels.fastdiv import magic_fields, magic_params
from vkep.kernels.kernel import Kernel, KernelCall, Operand
from vkep.kernels.matmul import MATMUL_REDUCE
from vkep.kernels import winograd
from vkep.kernels.tiles import (
    STORAGE,
    Prepack,
    Scratch,
    ceil_div,
    check_grid,
    flat_grid,
    rows_first,
    shared_tiling,
    storage_type,
    subgroup_tile,
    uses_subgroup_tiles,
)

_X_W_Y = (Operand("x"), Operand("w"), Operand("y", writes=True))
_VARIANTS = tuple({"T": t} for t in STORAGE.values())


def _uints(*names: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, "uint") for name in names)


_PLANES = ("channels", "height", "width", "out_channels", "out_height", "out_width", "groups")
_WINDOW = ("stride_h", "stride_w", "dilation_h", "dilation_w", "pad_top", "pad_left")

CONV_SUBGROUP = Kernel(
    "conv_subgroup.comp",
    operands=_X_W_Y,
    params=_uints(
        *_PLANES,
        "kernel_h",
        "kernel_w",
        *_WINDOW,
        "w_group",
        "w_panel",
        "w_column",
        "w_tap",
        "w_channel",
        "y_batch",
        "rows_first",
    ),
    spec={"ROWS": 16, "LANE_COLUMNS": 4, "UNROLL": 4, "TAPS_INNER": 0, "UNROLL_H": 1, "KERNEL_W": 1},
    variants=_VARIANTS,
)
CONV_TILED = Kernel(
    "conv_tiled.comp",
    operands=_X_W_Y,
    params=(*_uints(*_PLANES), *magic_fields("taps", "kernel_w"), *_uints(*_WINDOW, "splits", "split_k", "y_batch")),
    spec={
        "TILE_M": 64,
        "TILE_N": 64,
        "TILE_K": 16,
        "MICRO_M": 4,
        "MICRO_N": 4,
        "A_ALONG_K": 1,
        "B_ALONG_K": 0,
        "PARTIAL": 0,
    },
    variants=_VARIANTS,
)
CONV_DEPTHWISE = Kernel(
    "conv_depthwise.comp",
    operands=_X_W_Y,
    params=(
        *_uints("height", "width", "out_height", "multiplier", "total"),
        *magic_fields("out_width", "strips", "out_channels"),
        *_uints("stride_w", "dilation_w", "pad_top", "pad_left", "y_batch"),
    ),
    spec={"KERNEL_H": 3, "KERNEL_W": 3, "STRIDE_H": 1, "DILATION_H": 1, "STRIP": 4},
    variants=_VARIANTS,
)
CONV_DIRECT = Kernel(
    "conv_direct.comp",
    operands=_X_W_Y,
    params=_uints(
        *(
            "channels",
            "depth",
            "height",
            "width",
            "out_channels",
            "out_depth",
            "out_height",
            "out_width",
            "groups",
            "total",
        ),
        *(
            "kernel_d",
            "kernel_h",
            "kernel_w",
            "stride_d",
            "stride_h",
            "stride_w",
            "dilation_d",
            "dilation_h",
            "dilation_w",
        ),
        *("pad_front", "pad_top", "pad_left", "y_batch"),
    ),
    variants=_VARIANTS,
)

_MAX_ELEMENTS = 2**31
#: a window of more taps than this is not unrolled
_MAX_DEPTHWISE_TAPS = 49
#: below this many input channels a group, taps are the inner loop of the subgroup kernel
_FEW_CHANNELS = 8
#: taps that one iteration of the subgroup kernel may hold
_MAX_UNROLLED_TAPS = 9
#: output channels a group below which a matrix tile would be mostly empty
_MIN_TILE_CHANNELS = 8


@dataclass(frozen=True)
class ConvProblem:
    """A convolution of x [n, c, h, w] with weights [oc, c / groups, kh, kw] to y [n, oc, oh, ow] (ONNX Conv).

    ``pads`` are (top, left, bottom, right). One dimension is h = kh = 1. Three dimensions: ``d``, ``kd``, ``stride_d``,
    ``dilation_d`` and ``pads_d`` (front, back), x then being [n, c, d, h, w]. ``dtype`` is float32 or float16 (sums are
    float32). ``y_batch_stride`` (elements) is larger than an image's result when y is a slice along the channels of a
    larger tensor. Raises `ValueError` for sizes that do not fit together.
    """

    n: int
    c: int
    h: int
    w: int
    oc: int
    kh: int
    kw: int
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    groups: int = 1
    dtype: str = "float32"
    y_batch_stride: int | None = None
    d: int = 1
    kd: int = 1
    stride_d: int = 1
    dilation_d: int = 1
    pads_d: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        storage_type(self.dtype)
        if self.groups < 1 or self.c % self.groups or self.oc % self.groups:
            raise ValueError(f"conv: {self.groups} groups do not divide {self.c} input and {self.oc} output channels")
        if min(self.kh, self.kw, self.kd, *self.stride, *self.dilation, self.stride_d, self.dilation_d) < 1:
            raise ValueError(f"conv: kernel, strides and dilations must be at least 1, got {self}")
        if min(*self.pads, *self.pads_d, self.n, self.c, self.h, self.w, self.d, self.oc) < 0:
            raise ValueError(f"conv: sizes and pads must not be negative, got {self}")
        if min(self.oh, self.ow, self.od) < 0:
            raise ValueError(f"conv: the window is larger than the padded input, got {self}")
        for name, size in (("x", self.n * self.c * self.d * self.h * self.w), ("y", self.n * self.y_batch)):
            if size >= _MAX_ELEMENTS:
                raise ValueError(f"conv: {name} has {size} elements, the kernels address fewer than {_MAX_ELEMENTS}")

    @property
    def oh(self) -> int:
        return (self.h + self.pads[0] + self.pads[2] - self.dilation[0] * (self.kh - 1) - 1) // self.stride[0] + 1

    @property
    def ow(self) -> int:
        return (self.w + self.pads[1] + self.pads[3] - self.dilation[1] * (self.kw - 1) - 1) // self.stride[1] + 1

    @property
    def od(self) -> int:
        return (self.d + sum(self.pads_d) - self.dilation_d * (self.kd - 1) - 1) // self.stride_d + 1

    @property
    def y_batch(self) -> int:
        """Elements from one image's result to the next."""
        return self.y_batch_stride if self.y_batch_stride is not None else self.oc * self.od * self.oh * self.ow

    @property
    def flops(self) -> int:
        return (
            2 * self.n * self.oc * self.od * self.oh * self.ow * (self.c // self.groups) * self.kd * self.kh * self.kw
        )


def conv(
    problem: ConvProblem,
    caps: DeviceCapabilities,
    x: Any,
    w: Any,
    y: Any,
    epilogue: Epilogue | None = None,
    scratch: Scratch | None = None,
    prepack: Prepack | None = None,
) -> list[KernelCall]:
    """The dispatches that compute a convolution; none for an empty result.

    ``prepack`` is given when the weights are constant; its transformation gets them in OIHW order. The epilogue sees
    ``row``, the output channel, ``col``, the pixel in the image, and ``o``, the flat index in a contiguous y. Raises
    `ValueError` when the device cannot run such a grid.
    """
    if 0 in (problem.n, problem.oc, problem.od, problem.oh, problem.ow):
        return []
    channels, out_channels = problem.c // problem.groups, problem.oc // problem.groups
    flat = problem.d == problem.kd == problem.od == 1
    if flat and channels == 1 and problem.groups > 1 and problem.kh * problem.kw <= _MAX_DEPTHWISE_TAPS:
        return [_depthwise(problem, caps, x, w, y, epilogue)]
    if not flat or channels == 0 or out_channels < _MIN_TILE_CHANNELS:
        return [_direct(problem, caps, x, w, y, epilogue)]
    if uses_subgroup_tiles(caps):
        if scratch is not None and prepack is not None and winograd.fits(problem):
            return winograd.winograd(problem, caps, x, y, epilogue, scratch, prepack)
        return [_subgroup(problem, caps, x, w, y, epilogue, prepack)]
    return _tiled(problem, caps, x, w, y, epilogue, scratch)


def _plane_params(problem: ConvProblem) -> dict[str, int]:
    return {
        "channels": problem.c // problem.groups,
        "height": problem.h,
        "width": problem.w,
        "out_channels": problem.oc // problem.groups,
        "out_height": problem.oh,
        "out_width": problem.ow,
        "groups": problem.groups,
        "stride_h": problem.stride[0],
        "stride_w": problem.stride[1],
        "dilation_h": problem.dilation[0],
        "dilation_w": problem.dilation[1],
        "pad_top": problem.pads[0],
        "pad_left": problem.pads[1],
        "y_batch": problem.y_batch,
    }


def _subgroup(
    problem: ConvProblem,
    caps: DeviceCapabilities,
    x: Any,
    w: Any,
    y: Any,
    epilogue: Epilogue | None,
    prepack: Prepack | None,
) -> KernelCall:
    channels, out_channels, taps = problem.c // problem.groups, problem.oc // problem.groups, problem.kh * problem.kw
    pixels, batch = problem.oh * problem.ow, problem.n * problem.groups
    tile = subgroup_tile(pixels, out_channels, batch, caps)
    column_tiles, row_tiles = ceil_div(out_channels, tile.columns), ceil_div(pixels, tile.rows)
    taps_inner = channels < _FEW_CHANNELS and 1 < problem.kw <= _MAX_UNROLLED_TAPS
    spec = tile.spec
    if taps_inner:
        unroll_h = problem.kh if taps <= _MAX_UNROLLED_TAPS else 1
        spec.update(TAPS_INNER=1, KERNEL_W=problem.kw, UNROLL_H=unroll_h)
    if prepack is not None:
        w = prepack(
            lambda weights: pack_weights(weights, problem.groups, channels, taps, tile.columns, taps_inner),
            f"conv-{problem.groups}-{channels}-{taps}-{tile.columns}-{'taps' if taps_inner else 'channels'}",
        )
        panel = taps * channels * tile.columns
        strides = {"w_group": column_tiles * panel, "w_panel": panel, "w_column": 1}
        strides["w_tap"] = tile.columns * (1 if taps_inner else channels)
        strides["w_channel"] = tile.columns * (taps if taps_inner else 1)
    else:
        size = channels * taps
        strides = {
            "w_group": out_channels * size,
            "w_panel": tile.columns * size,
            "w_column": size,
            "w_tap": 1,
            "w_channel": taps,
        }
    walk_rows = rows_first(row_tiles, column_tiles, channels * problem.h * problem.w, out_channels * channels * taps)
    grid = (*((row_tiles, column_tiles) if walk_rows else (column_tiles, row_tiles)), batch)
    return CONV_SUBGROUP.call(
        grid=check_grid(grid, caps, "conv"),
        operands={"x": x, "w": w, "y": y},
        params={
            **_plane_params(problem),
            **strides,
            "kernel_h": problem.kh,
            "kernel_w": problem.kw,
            "rows_first": int(walk_rows),
        },
        spec=spec,
        local_size=(tile.lanes, 1, 1),
        subgroup_size=tile.required_subgroup_size,
        flops=problem.flops,
        **call_arguments(epilogue, {"T": storage_type(problem.dtype)}),
    )


def pack_weights(
    weights: np.ndarray, groups: int, channels: int, taps: int, columns: int, taps_inner: bool
) -> np.ndarray:
    """OIHW weights as [groups, panels, taps, channels, columns], or [.., channels, taps, ..] with ``taps_inner``.

    A panel holds ``columns`` output channels; the last one of a group is zero past its last output channel.
    """
    grouped = np.ascontiguousarray(weights).reshape(groups, -1, channels, taps)
    panels = ceil_div(grouped.shape[1], columns)
    padded = np.zeros((groups, panels * columns, channels, taps), grouped.dtype)
    padded[:, : grouped.shape[1]] = grouped
    order = (0, 1, 3, 4, 2) if taps_inner else (0, 1, 4, 3, 2)
    return np.ascontiguousarray(padded.reshape(groups, panels, columns, channels, taps).transpose(order))


def _depthwise(
    problem: ConvProblem, caps: DeviceCapabilities, x: Any, w: Any, y: Any, epilogue: Epilogue | None
) -> KernelCall:
    # Longer strips load less, shorter ones make more lanes for a GPU.
    strip = min(8 if uses_subgroup_tiles(caps) else 4, 1 << (problem.oh - 1).bit_length())
    strips = ceil_div(problem.oh, strip)
    total = problem.n * problem.oc * strips * problem.ow
    local = 128
    plane = _plane_params(problem)
    return CONV_DEPTHWISE.call(
        grid=flat_grid(total, local, caps, "conv"),
        operands={"x": x, "w": w, "y": y},
        params={
            **{name: plane[name] for name, _ in CONV_DEPTHWISE.params if name in plane},
            **magic_params("out_width", problem.ow),
            **magic_params("strips", strips),
            **magic_params("out_channels", problem.oc),
            "multiplier": problem.oc // problem.groups,
            "total": total,
        },
        spec={
            "KERNEL_H": problem.kh,
            "KERNEL_W": problem.kw,
            "STRIDE_H": problem.stride[0],
            "DILATION_H": problem.dilation[0],
            "STRIP": strip,
        },
        local_size=(local, 1, 1),
        flops=problem.flops,
        **call_arguments(epilogue, {"T": storage_type(problem.dtype)}),
    )


def _direct(
    problem: ConvProblem, caps: DeviceCapabilities, x: Any, w: Any, y: Any, epilogue: Epilogue | None
) -> KernelCall:
    total = problem.n * problem.oc * problem.od * problem.oh * problem.ow
    local = caps.subgroup_size if uses_subgroup_tiles(caps) else 64
    return CONV_DIRECT.call(
        grid=flat_grid(total, local, caps, "conv"),
        operands={"x": x, "w": w, "y": y},
        params={
            **_plane_params(problem),
            "depth": problem.d,
            "out_depth": problem.od,
            "kernel_d": problem.kd,
            "kernel_h": problem.kh,
            "kernel_w": problem.kw,
            "stride_d": problem.stride_d,
            "dilation_d": problem.dilation_d,
            "pad_front": problem.pads_d[0],
            "total": total,
        },
        local_size=(local, 1, 1),
        flops=problem.flops,
        **call_arguments(epilogue, {"T": storage_type(problem.dtype)}),
    )


def _tiled(
    problem: ConvProblem,
    caps: DeviceCapabilities,
    x: Any,
    w: Any,
    y: Any,
    epilogue: Epilogue | None,
    scratch: Scratch | None,
) -> list[KernelCall]:
    channels, out_channels, taps = problem.c // problem.groups, problem.oc // problem.groups, problem.kh * problem.kw
    pixels, batch = problem.oh * problem.ow, problem.n * problem.groups
    tiling = shared_tiling(out_channels, pixels, channels * taps, batch, caps, may_split=scratch is not None)
    total = problem.n * problem.oc * pixels
    partials = scratch(4 * tiling.splits * total) if scratch and tiling.splits > 1 else None
    defines = {"T": storage_type(problem.dtype)}
    grid = (ceil_div(pixels, tiling.tile.n), ceil_div(out_channels, tiling.tile.m), batch * tiling.splits)
    product = CONV_TILED.call(
        grid=check_grid(grid, caps, "conv"),
        operands={"x": x, "w": w, "y": y if partials is None else partials},
        params={
            **_plane_params(problem),
            **magic_params("taps", taps),
            **magic_params("kernel_w", problem.kw),
            "splits": tiling.splits,
            "split_k": tiling.split_k,
        },
        spec={**tiling.tile.spec, "PARTIAL": int(partials is not None)},
        local_size=(tiling.tile.lanes, 1, 1),
        flops=problem.flops,
        **(call_arguments(epilogue, defines) if partials is None else {"defines": defines}),
    )
    if partials is None:
        return [product]
    strides = {"y_row": pixels, "y_col": 1, "y_batch0": problem.y_batch, "y_batch1": 0}
    reduce = MATMUL_REDUCE.call(
        grid=flat_grid(total, 64, caps, "conv"),
        operands={"partials": partials, "y": y},
        params={
            "m": problem.oc,
            "n": pixels,
            "splits": tiling.splits,
            "total": total,
            "batch1": 1,
            **strides,
            "alpha": 1.0,
        },
        local_size=(64, 1, 1),
        flops=tiling.splits * total,
        **call_arguments(epilogue, defines),
    )
    return [product, reduce]
