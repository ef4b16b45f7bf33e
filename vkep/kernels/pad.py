"""Pad of a contiguous tensor (``shaders/pad.comp``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpu_shared.capabilities import DeviceCapabilities
from vkep.kernels.gather import magic_dims
from vkep.kernels.kernel import Kernel, KernelCall, Operand
from vkep.kernels.launch import (
    MAX_RANK,
    UNITS,
    ceil_div,
    contiguous_strides,
    element_count,
    element_type,
    fields8,
    grid,
    lanes,
    numbered,
)


def unit_defines(itemsize: int) -> dict[str, str]:
    """Defines of kernels that also make a unit from a value."""
    return {"UNIT_T": UNITS[itemsize], "UNIT_BYTES": str(itemsize)}


PAD = Kernel(
    "pad.comp",
    operands=(Operand("x"), Operand("y", writes=True)),
    params=(
        ("total", "uint"),
        ("start", "uint"),
        ("value_low", "uint"),
        ("value_high", "uint"),
        *fields8("dim", "mul", "shift", "extent", "stride"),
        *fields8("begin", kind="int"),
    ),
    spec={"RANK": 1, "MODE": 0},
    variants=tuple(map(unit_defines, (1, 2, 4, 8))),
)
MODES = {"constant": 0, "edge": 1, "reflect": 2, "wrap": 3}


def value_words(value: int | float | bool, dtype: str) -> tuple[int, int]:
    """The bytes of ``value`` as an element of ``dtype``, as two 32-bit words, low first."""
    raw = np.array(value).astype(element_type(dtype).numpy).tobytes().ljust(8, b"\0")
    return int.from_bytes(raw[:4], "little"), int.from_bytes(raw[4:], "little")


def pad(
    shape: Sequence[int],
    begins: Sequence[int],
    ends: Sequence[int],
    mode: str,
    dtype: str,
    caps: DeviceCapabilities,
    x: Any,
    y: Any,
    value: int | float | bool = 0,
) -> list[KernelCall]:
    """``y`` = ``x`` of ``shape`` padded by ``begins`` and ``ends`` an axis, as ONNX Pad; a negative pad crops, first.

    ``mode``: "constant" (``value``), "edge", "reflect" (without repeating the edge) or "wrap". Rank at most 8 once axes
    without pads are merged. Raises `ValueError` for a crop beyond the tensor, or for taking elements of an empty axis.
    """
    if mode not in MODES:
        raise ValueError(f"pad: mode is {mode!r}, expected one of {list(MODES)}")
    if not len(shape) == len(begins) == len(ends):
        raise ValueError(f"pad: shape {tuple(shape)}, begins {tuple(begins)}, ends {tuple(ends)} differ in rank")
    kept = [n + min(b, 0) + min(e, 0) for n, b, e in zip(shape, begins, ends, strict=True)]
    if min(kept, default=0) < 0:
        raise ValueError(f"pad: pads {tuple(begins)}, {tuple(ends)} crop more than shape {tuple(shape)} holds")
    out_shape = [k + max(b, 0) + max(e, 0) for k, b, e in zip(kept, begins, ends, strict=True)]
    element_count("pad input", *shape)
    total = element_count("pad output", *out_shape)
    if not total:
        return []
    if mode != "constant" and 0 in kept:
        raise ValueError(f"pad: mode {mode!r} of empty shape {tuple(kept)} has no elements to repeat")
    strides = contiguous_strides(shape)
    start = sum(-min(b, 0) * s for b, s in zip(begins, strides, strict=True))
    axes: list[tuple[int, int, int, int]] = []  # out dim, kept extent, stride, begin
    for n, d, k, s, b in zip(shape, out_shape, kept, strides, begins, strict=True):
        untouched = n == d and k == n
        if axes and untouched and axes[-1][0] == axes[-1][1] and axes[-1][3] == 0 and axes[-1][2] == n * s:
            dim, extent, _, _ = axes.pop()
            axes.append((dim * n, extent * n, s, 0))
        else:
            axes.append((d, k, s, max(b, 0)))
    axes = [axis for axis in axes if axis[0] != 1 or axis[1] != 1] or [(1, 1, 1, 0)]
    if len(axes) > MAX_RANK:
        raise ValueError(f"pad: {len(axes)} axes after merging, expected at most {MAX_RANK}")
    low, high = value_words(value, dtype)
    local = lanes(caps, total)
    return [
        PAD.call(
            grid=grid(ceil_div(total, local)),
            operands={"x": x, "y": y},
            params={
                "total": total,
                "start": start,
                "value_low": low,
                "value_high": high,
                **magic_dims([a[0] for a in axes]),
                **numbered("extent", [a[1] for a in axes], 1),
                **numbered("stride", [a[2] for a in axes], 0),
                **numbered("begin", [a[3] for a in axes], 0),
            },
            spec={"RANK": len(axes), "MODE": MODES[mode]},
            defines=unit_defines(element_type(dtype).itemsize),
            local_size=(local,),
        )
    ]
