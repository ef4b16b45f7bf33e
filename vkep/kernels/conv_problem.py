"""A convolution's shape, and the arguments that its kernels share."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from vkep.kernels.tiles import storage_type

#: elements of a tensor must be addressable with a signed 32-bit index
_MAX_ELEMENTS = 2**31


@dataclass(frozen=True)
class ConvProblem:
    """A convolution of x [n, c, h, w] with weights [oc, c / groups, kh, kw] to y [n, oc, oh, ow] (ONNX Conv).

    ``pads`` are (top, left, bottom, right). One dimension is h = kh = 1. Three dimensions: ``d``, ``kd``, ``stride_d``,
    ``dilation_d`` and ``pads_d`` (front, back), x then being [n, c, d, h, w]. ``dtype`` is float32 or float16 (sums are
    float32). ``y_batch_stride`` (elements) is larger than an image's result when y is a slice along the channels of a
    larger tensor. ``alignment`` (bytes) divides the addresses of x, w and y. Raises `ValueError` for
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
    d: int = 1
    kd: int = 1
    stride_d: int = 1
    dilation_d: int = 1
    pads_d: tuple[int, int] = (0, 0)
    alignment: int = 1

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

    @functools.cached_property
    def oh(self) -> int:
        return (self.h + self.pads[0] + self.pads[2] - self.dilation[0] * (self.kh - 1) - 1) // self.stride[0] + 1

    @functools.cached_property
    def ow(self) -> int:
        return (self.w + self.pads[1] + self.pads[3] - self.dilation[1] * (self.kw - 1) - 1) // self.stride[1] + 1

    @functools.cached_property
    def od(self) -> int:
        return (self.d + sum(self.pads_d) - self.dilation_d * (self.kd - 1) - 1) // self.stride_d + 1

    @property
    def y_batch(self) -> int:
        """Elements from one image's result to the next."""
        return self.y_batch_stride if self.y_batch_stride is not None else self.oc * self.od * self.oh * self.ow

    @functools.cached_property
    def flops(self) -> int:
        return (
            2 * self.n * self.oc * self.od * self.oh * self.ow * (self.c // self.groups) * self.kd * self.kh * self.kw
        )


@functools.lru_cache(1024)
def plane_params(problem: ConvProblem) -> Mapping[str, int]:
    """The kernel arguments that only restate the problem; channels are those of one group."""
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
    """How the window moves over a plane, as kernel arguments."""
    return {
        "stride_h": problem.stride[0],
        "stride_w": problem.stride[1],
        "dilation_h": problem.dilation[0],
        "dilation_w": problem.dilation[1],
        "pad_top": problem.pads[0],
        "pad_left": problem.pads[1],
    }
