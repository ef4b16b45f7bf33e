"""Convolutions in float16 whose input channels are few, or not a multiple of eight, as convolutions with channels last.

The input is copied once, neighbouring pixels of a row side by side as the channels of one wide pixel (a space-to-depth along the
width), zeros where channels and columns are missing: every tap is then whole vectors of eight. An image's three channels
become four, and with a stride of two, two pixels become eight channels and seven columns of taps four.

A wide pixel may contain a pixel outside the window, whose weights are zero: where that pixel is an infinity or NaN, so
is the result (as in Winograd's sums).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from gpu_shared.capabilities import DeviceCapabilities
from vkep.kernels.conv.nhwc import conv_last, no_channels_last, no_wide_product, product_last
from vkep.kernels.conv.problem import NHWC, ConvProblem
from vkep.kernels.fastdiv import LIMIT, magic_params
from vkep.kernels.kernel import Kernel, KernelCall
from vkep.kernels.launch import ceil_div
from vkep.kernels.matmul.cooperative_tiles import VECTOR
from vkep.kernels.matmul.tiles import flat_grid
from vkep.kernels.select import Emission


def _reach(call: KernelCall) -> Mapping[str, int]:
    images = ceil_div(call["total"], call["UNITS"] * call["wide_width"] * call["height"])
    return {"x": 2 * images * call["CHANNELS"] * call["height"] * call["width"], "y": 16 * call["total"]}


WIDEN_PIXELS = Kernel("widen_pixels.comp", reach=_reach)
_LANES = 128


@dataclass(frozen=True)
class WidePixels:
    """``problem`` on wide pixels: each consists of ``pixels`` adjacent pixels of the image, with ``channels``
    channels."""

    problem: ConvProblem
    pixels: int
    channels: int

    @property
    def nbytes(self) -> int:
        """Bytes of the widened input."""
        p = self.problem
        return 2 * p.n * p.h * p.w * p.c


def wide_pixels(problem: ConvProblem) -> WidePixels:
    """The widening with the fewest multiplications: the number of adjacent pixels divides the stride and is at most
    eight.

    The columns' padding becomes part of the input. Expects a result that is not empty.
    """
    step = problem.stride[1]
    most = VECTOR if problem.dilation[1] == 1 else 1
    widths = [p for p in (1, 2, 4, VECTOR) if p <= most and step % p == 0]
    channels = {p: ceil_div(problem.c, VECTOR // p) * (VECTOR // p) for p in widths}
    # the fewest multiplications, then the fewest pixels outside the window, then the least memory
    pixels = min(widths, key=lambda p: (ceil_div(problem.kw, p) * p * channels[p], -problem.kw % p, channels[p]))
    columns, dilation = ceil_div(problem.kw, pixels), problem.dilation[1]
    wide = replace(
        problem,
        c=pixels * channels[pixels],
        w=(problem.ow - 1) * (step // pixels) + dilation * (columns - 1) + 1,
        kw=columns,
        stride=(problem.stride[0], step // pixels),
        pads=(problem.pads[0], 0, problem.pads[2], 0),
        layout=NHWC,
    )
    return WidePixels(wide, pixels, channels[pixels])


def no_few_channels(problem: ConvProblem, caps: DeviceCapabilities) -> str:
    """Why `conv_few` is not the kernel for a convolution; "" where `conv_last` would compute it if its channels were a
    multiple of eight."""
    if problem.c % VECTOR == 0 or problem.groups != 1:
        return f"whole groups of {VECTOR} channels, or groups"
    if 0 in (problem.n, problem.c, problem.h, problem.w, problem.oh, problem.ow):
        return "an input or a result without elements"
    wide = wide_pixels(problem)
    if wide.nbytes >= 2 * LIMIT:
        return f"{wide.nbytes // 2} elements of wide pixels, the kernels address fewer than {LIMIT}"
    return no_channels_last(wide.problem, caps)


def conv_few(problem: ConvProblem, e: Emission) -> list[KernelCall]:
    """The dispatches of a convolution of x [n, c, h, w] to y [n, oh, ow, oc], both dense: on wide pixels with channels last."""
    wide = wide_pixels(problem)
    shape = wide.problem
    total = shape.n * shape.h * shape.w * (shape.c // VECTOR)
    widened = e.target.scratch("float16", (shape.n, shape.h, shape.w, shape.c))
    widening = WIDEN_PIXELS.call(
        grid=flat_grid(total, _LANES, e.caps),
        operands={"x": e["x"], "y": widened},
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
    # the scratch's address is aligned, y's may not be
    first = lambda weights: widen_taps(weights, problem, wide)  # noqa: E731
    on_wide = Emission(e.target, {**e.operands, "x": widened}, e.epilogue)
    compute = product_last if shape.pointwise and not no_wide_product(shape, e.caps) else conv_last
    calls = compute(shape, on_wide, (first, f"-{wide.pixels}x{wide.channels}"))
    return [widening, *(replace(c, flops=problem.flops) if c.flops else c for c in calls)]


def widen_taps(weights: np.ndarray, problem: ConvProblem, wide: WidePixels) -> np.ndarray:
    """OIHW weights for wide pixels: [oc, pixels * channels, kh, columns], zero where channels or columns are missing."""
    weights = weights.reshape(problem.oc, problem.c, problem.kh, problem.kw)
    taps = np.zeros((problem.oc, wide.pixels, wide.channels, problem.kh, wide.problem.kw), weights.dtype)
    for pixel in range(min(wide.pixels, problem.kw)):
        columns = weights[..., pixel :: wide.pixels]
        taps[:, pixel, : problem.c, :, : columns.shape[-1]] = columns
    return taps.reshape(problem.oc, wide.problem.c, problem.kh, wide.problem.kw)
