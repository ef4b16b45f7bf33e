"""The problem of a convolution, and what its kernels share."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpu_shared.capabilities import DeviceCapabilities
from vkep.kernels.fastdiv import LIMIT
from vkep.kernels.kernel import KernelCall
from vkep.kernels.matmul.tiles import EXACT_DIVISION_LIMIT, STORAGE
from vkep.kernels.problem import Need, Product, alignment_of
from vkep.kernels.reference import windows
from vkep.kernels.select import When
from vkep.sizes import cached, matches, serves_others

#: layout of images: x and y as [n, c, h, w], both as [n, h, w, c], or y alone
NCHW, NHWC, TO_NHWC = "nchw", "nhwc", "nchw to nhwc"


@dataclass(frozen=True)
class ConvProblem(Product):
    """A convolution of x [n, c, h, w] with weights [oc, c / groups, kh, kw] to y [n, oc, oh, ow] (ONNX Conv).

    ``pads`` are (top, left, bottom, right). One dimension is h = kh = 1. ``dtype`` is float32 or float16 (sums are
    float32), or int8 (sums are int32, and converted to float32), of an x that is less by ``zero``, its elements outside the
    image. ``layout`` is the memory layout of x and y ("": not decided yet, its operands are [n, c, h, w]; see
    `vkep.passes.layout`), ``x_last`` whether x has its channels last already, ``w_constant`` that the weights may be repacked,
    ``exact`` that elements are whole numbers whose sums a kernel must not round, ``to`` y's type where it is not that of x and w.
    ``y_batch_stride`` (elements) is larger than an image's result when y is a slice along the channels of a larger tensor.
    ``alignment`` (bytes) divides the addresses of x and y, and of w where it is not repacked.

    An epilogue sees ``row``, the output channel, ``col``, the pixel in the image, and ``o``, the flat index in a contiguous y;
    with channels last ``row`` is the pixel among those of all images, and ``col`` the output channel. Raises `ValueError` for
    sizes that do not fit together.
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
    alignment: int = 1
    w_constant: bool = False
    exact: bool = False
    to: str = ""
    zero: int = 0
    x_last: bool = False
    layout: str = ""

    def __post_init__(self) -> None:
        if self.groups < 1 or self.c % self.groups or self.oc % self.groups:
            raise ValueError(f"conv: {self.groups} groups do not divide {self.c} input and {self.oc} output channels")
        if min(self.kh, self.kw, *self.stride, *self.dilation) < 1:
            raise ValueError(f"conv: kernel, strides and dilations must be at least 1, got {self}")
        if any(n < 0 for n in (*self.pads, self.n, self.c, self.h, self.w, self.oc)):
            raise ValueError(f"conv: sizes and pads must not be negative, got {self}")
        if self.oh < 0 or self.ow < 0:
            raise ValueError(f"conv: the window is larger than the padded input, got {self}")

    def needs(self) -> tuple[Need, ...]:
        last = self.layout == NHWC
        x = (self.n, self.h, self.w, self.c) if last else (self.n, self.c, self.h, self.w)
        w = (self.oc, self.c // self.groups, self.kh, self.kw)
        return Need("x", self.dtype, x, flat=not last), Need("w", self.dtype, w, flat=True)

    def makes(self) -> tuple[Need, ...]:
        if self.lies_last:
            return (Need("y", self.results, (self.n * self.oh * self.ow, self.oc)),)
        y = (self.n, self.oc, self.oh * self.ow)
        if self.y_batch_stride is None:
            return (Need("y", self.results, y, flat=True),)
        return (Need("y", self.results, y, (self.y_batch_stride, y[2], 1)),)

    def placed(self, operands: Mapping[str, Any]) -> ConvProblem:
        names = {NHWC: ("x", "y"), TO_NHWC: ("y",)}.get(self.layout, ("x", "w", "y"))
        return _placed(self, alignment_of(*(operands[name] for name in names)), self.y_batch_stride)

    def restrided(self, name: str, strides: tuple[int, ...]) -> ConvProblem | None:
        if name != "y" or self.lies_last:
            return None
        [_, channels, pixels], [batch, channel, pixel] = self.makes()[0].shape, strides
        if not ((matches(channels, 1) or matches(channel, pixels)) and (matches(pixels, 1) or matches(pixel, 1))):
            return None
        return _placed(self, self.alignment, None if matches(self.n, 1) else batch)

    def can_load(self, name: str, alignment: int) -> bool:
        return self.layout != NHWC or name != "x" or alignment == 16

    @property
    def matrices(self) -> tuple[int, int, int]:
        if self.lies_last:
            return 1, self.n * self.pixels, self.oc
        return self.n, self.oc, self.pixels

    @property
    def lies_last(self) -> bool:
        """Whether the result has channels last."""
        return self.layout in (NHWC, TO_NHWC)

    @property
    def key(self) -> tuple[int, ...]:
        return self.n, self.c, self.oc, self.oh, self.ow

    @functools.cached_property
    def oh(self) -> int:
        """Height of the output, in pixels."""
        return (self.h + self.pads[0] + self.pads[2] - self.dilation[0] * (self.kh - 1) - 1) // self.stride[0] + 1

    @functools.cached_property
    def ow(self) -> int:
        """Width of the output, in pixels."""
        return (self.w + self.pads[1] + self.pads[3] - self.dilation[1] * (self.kw - 1) - 1) // self.stride[1] + 1

    @functools.cached_property
    def unaddressable(self) -> str:
        """Why no kernel can count its window's steps; "" where one can."""
        longest = max(*self.pads, *self.stride, *self.dilation)
        return f"pads, strides and dilations of {longest}, expected less than {LIMIT}" if longest >= LIMIT else ""

    @property
    def pixels(self) -> int:
        """Pixels of a result's plane."""
        return self.oh * self.ow

    @property
    def taps(self) -> int:
        """Taps of a plane's window."""
        return self.kh * self.kw

    @property
    def pointwise(self) -> bool:
        """Whether it is a product of pixels and weights, both read in place."""
        return self.taps == self.groups == 1 and self.stride == (1, 1) and max(self.pads) == 0

    @property
    def y_batch(self) -> int:
        """Elements from one image's result to the next."""
        return self.y_batch_stride if self.y_batch_stride is not None else self.oc * self.pixels

    @functools.cached_property
    def flops(self) -> int:
        return 2 * self.n * self.oc * self.pixels * (self.c // self.groups) * self.taps

    def reference(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        x = x.astype(np.float64) - self.zero  # int8 would wrap around
        if self.layout == NHWC:
            x = x.transpose(0, 3, 1, 2)
        out, kernel = (self.oh, self.ow), (self.kh, self.kw)
        parts = windows(
            x.reshape(self.n, self.groups, self.c // self.groups, self.h, self.w),
            kernel,
            self.stride,
            self.dilation,
            self.pads[:2],
            out,
        )
        weights = w.reshape(self.groups, self.oc // self.groups, self.c // self.groups, *kernel)
        y = np.zeros((self.n, self.groups, self.oc // self.groups, math.prod(out)))
        for tap in np.ndindex(*kernel):
            pixels = parts[(..., *tap)].reshape(self.n, self.groups, self.c // self.groups, math.prod(out))
            y += weights[(..., *tap)] @ pixels
        images = y.reshape(self.n, self.oc, math.prod(out))
        return images.transpose(0, 2, 1).reshape(-1, self.oc) if self.lies_last else images


# Layers recur, and so do plans for other sizes: derived values are cached.
@cached
def _placed(problem: ConvProblem, alignment: int, y_batch_stride: int | None = None) -> ConvProblem:
    return replace(problem, alignment=alignment, y_batch_stride=y_batch_stride)


@cached
def lying_as(problem: ConvProblem, x_last: bool, layout: str) -> ConvProblem:
    """The same problem for operands in this layout."""
    return replace(problem, x_last=x_last, layout=layout)


def is_depthwise(problem: ConvProblem) -> bool:
    """Whether it has one input channel per group, and a window small enough to unroll."""
    if serves_others(problem.taps):
        return False
    return problem.c == problem.groups > 1 and problem.taps <= _MAX_DEPTHWISE_TAPS


#: the largest number of taps of a window that is unrolled
_MAX_DEPTHWISE_TAPS = 49
#: output channels per group below which a matrix tile would be mostly empty
_MIN_TILE_CHANNELS = 8


def lying(layout: str, when: When) -> When:
    """The condition of a candidate for one layout: the requirements of every kernel, then ``when``, then the layout of
    the images."""

    types = (*STORAGE, "int8") if layout == NHWC else tuple(STORAGE)

    def reason(problem: ConvProblem, caps: DeviceCapabilities) -> str:
        if problem.dtype not in types:
            return f"no matrix kernel for dtype {problem.dtype!r}; expected one of {sorted(types)}"
        found = problem.unaddressable or when(problem, caps)
        return found or ("" if problem.layout in ("", layout) else f"its images lie as {problem.layout}")

    return reason


def no_tiles(problem: ConvProblem, caps: DeviceCapabilities) -> str:
    """Why a convolution cannot be computed as a matrix product by tiles; "" where it can."""
    if 0 in (problem.c, problem.h, problem.w):
        return "an input without elements"
    if problem.pixels >= EXACT_DIVISION_LIMIT:
        return f"{problem.pixels} pixels, more than the kernels count"
    if problem.oc // problem.groups < _MIN_TILE_CHANNELS:
        return f"fewer than {_MIN_TILE_CHANNELS} output channels a group leave a tile mostly empty"
    return ""


@cached
def plane_params(problem: ConvProblem) -> Mapping[str, int]:
    """The kernel arguments that restate the problem; channels are those of one group."""
    return {
        "channels": problem.c // problem.groups,
        "height": problem.h,
        "width": problem.w,
        "out_channels": problem.oc // problem.groups,
        "out_height": problem.oh,
        "out_width": problem.ow,
        "groups": problem.groups,
        **window_params(problem),
        "y_batch": problem.y_batch,
    }


def window_params(problem: ConvProblem) -> dict[str, int]:
    """The kernel arguments for the window's steps over a plane."""
    return {
        "stride_h": problem.stride[0],
        "stride_w": problem.stride[1],
        "dilation_h": problem.dilation[0],
        "dilation_w": problem.dilation[1],
        "pad_top": problem.pads[0],
        "pad_left": problem.pads[1],
    }


def plane_reach(call: KernelCall, images: int) -> dict[str, int]:
    """Elements of x and y that a kernel with `plane_params` may touch, for a number of images."""
    pixels, groups = call["out_height"] * call["out_width"], call["groups"]
    y = (images - 1) * call["y_batch"] + groups * call["out_channels"] * pixels
    return {"x": images * groups * call["channels"] * call["height"] * call["width"], "y": y}
