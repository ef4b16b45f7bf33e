"""Convolutions in float16 whose input channels are few, or no multiple of eight, as ones with channels last.

The input is copied once, neighbouring pixels of a row side by side as the channels of one wide pixel (a space-to-depth along the
width), zeros where channels and columns are missing: every tap is then whole vectors of eight. An image's three channels
become four, and with a stride of two, two pixels become eight channels and seven columns of taps four.

A wide pixel may hold one beside the window, whose weights are zero: where that pixel is an infinity or NaN, so is the result
(as Winograd's sums spread what is not finite).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpu_shared.capabilities import DeviceCapabilities
from vkep.kernels.conv_nhwc import conv_last, takes_channels_last
from vkep.kernels.conv_problem import ConvProblem
from vkep.kernels.cooperative import uints
from vkep.kernels.cooperative_tiles import VECTOR
from vkep.kernels.epilogue import Epilogue
from vkep.kernels.fastdiv import magic_fields, magic_params
from vkep.kernels.kernel import Kernel, KernelCall, Operand
from vkep.kernels.tiles import Prepack, Scratch, ceil_div, flat_grid

WIDEN_PIXELS = Kernel(
    "widen_pixels.comp",
    operands=(Operand("x"), Operand("y", writes=True)),
    params=(*uints("total", "width", "pad_left"), *magic_fields("wide_width", "height")),
    spec={"CHANNELS": 3, "PADDED": 4, "UNITS": 1},
    variants=({},),
)
_LANES = 128


@dataclass(frozen=True)
class WidePixels:
    """``problem`` on wide pixels, each ``pixels`` of the image's side by side, of ``channels`` channels."""

    problem: ConvProblem
    pixels: int
    channels: int

    @property
    def nbytes(self) -> int:
        """Of the widened input."""
        p = self.problem
        return 2 * p.n * p.h * p.w * p.c


def wide_pixels(problem: ConvProblem) -> WidePixels:
    """The widening that multiplies least: as many pixels side by side as divide the stride, up to eight.

    The columns' padding becomes part of the input. Expects a result that is not empty.
    """
    step = problem.stride[1]
    most = VECTOR if problem.dilation[1] == 1 else 1
    widths = [p for p in (1, 2, 4, VECTOR) if p <= most and step % p == 0]
    channels = {p: ceil_div(problem.c, VECTOR // p) * (VECTOR // p) for p in widths}
    # the least work, then the fewest pixels beside the window, then the least memory
    pixels = min(widths, key=lambda p: (ceil_div(problem.kw, p) * p * channels[p], -problem.kw % p, channels[p]))
    columns, dilation = ceil_div(problem.kw, pixels), problem.dilation[1]
    wide = dataclasses.replace(
        problem,
        c=pixels * channels[pixels],
        w=(problem.ow - 1) * (step // pixels) + dilation * (columns - 1) + 1,
        kw=columns,
        stride=(problem.stride[0], step // pixels),
        pads=(problem.pads[0], 0, problem.pads[2], 0),
    )
    return WidePixels(wide, pixels, channels[pixels])


def takes_few_channels(problem: ConvProblem, caps: DeviceCapabilities) -> bool:
    """Whether `conv_few` is the kernel for it: `conv_last` would compute it, were its channels a multiple of eight."""
    if problem.c % VECTOR == 0 or problem.groups != 1 or 0 in (problem.n, problem.c, problem.oh, problem.ow):
        return False
    try:
        wide = wide_pixels(problem).problem
    except ValueError:  # more elements than can be addressed
        return False
    return takes_channels_last(wide, caps)


def channels_last_kernels(problem: ConvProblem, caps: DeviceCapabilities) -> Callable[..., list[KernelCall]] | None:
    """What computes a convolution with constant weights so that its result has its channels last: `conv_few`, `conv_last`,
    or None.
    """
    if takes_few_channels(problem, caps):
        return conv_few
    return conv_last if takes_channels_last(problem, caps) else None


def conv_few(
    problem: ConvProblem,
    caps: DeviceCapabilities,
    x: Any,
    w: Any,
    y: Any,
    epilogue: Epilogue | None,
    scratch: Scratch,
    prepack: Prepack,
) -> list[KernelCall]:
    """The dispatches of a convolution of x [n, c, h, w] to y [n, oh, ow, oc], both dense; `conv_last` for the rest.

    Raises `ValueError` where `takes_few_channels` says no.
    """
    if not takes_few_channels(problem, caps):
        raise ValueError(f"conv: no kernel for few channels for {problem} on {caps.name}")
    wide = wide_pixels(problem)
    shape = wide.problem
    total = shape.n * shape.h * shape.w * (shape.c // VECTOR)
    widened = scratch(wide.nbytes)
    widening = WIDEN_PIXELS.call(
        grid=flat_grid(total, _LANES, caps, "conv"),
        operands={"x": x, "y": widened},
        params={
            "total": total,
            "width": problem.w,
            "pad_left": problem.pads[1],
            **magic_params("wide_width", shape.w),
            **magic_params("height", shape.h),
        },
        spec={"CHANNELS": problem.c, "PADDED": wide.channels, "UNITS": shape.c // VECTOR},
        local_size=(_LANES, 1, 1),
    )

    def pack(transform: Any, tag: str) -> Any:
        return prepack(
            lambda weights: transform(widen_taps(weights, problem, wide)), f"{tag}-{wide.pixels}x{wide.channels}"
        )

    # the scratch's address is aligned, y's may not be
    calls = conv_last(shape, caps, widened, w, y, epilogue, scratch, pack)
    return [widening, *(dataclasses.replace(c, flops=problem.flops) if c.flops else c for c in calls)]


def widen_taps(weights: np.ndarray, problem: ConvProblem, wide: WidePixels) -> np.ndarray:
    """OIHW weights for wide pixels: [oc, pixels * channels, kh, columns], zero where channels or columns are missing."""
    weights = weights.reshape(problem.oc, problem.c, problem.kh, problem.kw)
    taps = np.zeros((problem.oc, wide.pixels, wide.channels, problem.kh, wide.problem.kw), weights.dtype)
    for pixel in range(min(wide.pixels, problem.kw)):
        columns = weights[..., pixel :: wide.pixels]
        taps[:, pixel, : problem.c, :, : columns.shape[-1]] = columns
    return taps.reshape(problem.oc, wide.problem.c, problem.kh, wide.problem.kw)
