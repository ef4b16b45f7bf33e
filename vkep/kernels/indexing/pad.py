"""Pad of a contiguous tensor (``shaders/pad.comp``)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gpu_shared.capabilities import DeviceCapabilities
from vkep.errors import InvalidNode
from vkep.kernels.dims import beyond_rank, last_offset, magic_dims
from vkep.kernels.kernel import Kernel, KernelCall
from vkep.kernels.launch import UNITS, contiguous_strides, element_type, flat_lanes, numbered
from vkep.kernels.problem import Need, Problem
from vkep.kernels.select import Candidate, Emission, implement
from vkep.sizes import largest, matches, smallest


def unit_defines(itemsize: int) -> dict[str, str]:
    """Defines of kernels that also convert a value to a unit."""
    return {"UNIT_T": UNITS[itemsize], "UNIT_BYTES": str(itemsize)}


def _reach(call: KernelCall) -> Mapping[str, int]:
    extents = [call[f"extent{d}"] for d in range(call["RANK"])]
    read = 0 if 0 in extents else call["start"] + last_offset(call, [n - 1 for n in extents], "stride") + 1
    return {"x": read * call.size_of("UNIT_T"), "y": call["total"] * call.size_of("UNIT_T")}


PAD = Kernel("pad.comp", variants=tuple(map(unit_defines, (1, 2, 4, 8))), reach=_reach)
MODES = {"constant": 0, "edge": 1, "reflect": 2, "wrap": 3}


def value_words(value: int | float | bool, dtype: str) -> tuple[int, int]:
    """The bytes of ``value`` as an element of ``dtype``, as two 32-bit words, low first."""
    raw = np.array(value).astype(element_type(dtype).numpy).tobytes().ljust(8, b"\0")
    return int.from_bytes(raw[:4], "little"), int.from_bytes(raw[4:], "little")


@dataclass(frozen=True)
class PadProblem(Problem):
    """``y`` = ``x`` of ``shape`` padded by ``begins`` and ``ends`` an axis, as ONNX Pad; a negative pad crops, first.

    ``mode``: "constant" (``value``), "edge", "reflect" (without repeating the edge) or "wrap".
    """

    shape: tuple[int, ...]
    begins: tuple[int, ...]
    ends: tuple[int, ...]
    dtype: str
    mode: str = "constant"
    value: int | float | bool = 0

    def __post_init__(self) -> None:
        shapes = f"pads {list(self.begins)}, {list(self.ends)} of shape {list(self.shape)}"
        if self.mode not in MODES:
            raise InvalidNode(f"mode is {self.mode!r}, expected one of {list(MODES)}")
        if not len(self.shape) == len(self.begins) == len(self.ends):
            raise InvalidNode(f"{shapes}; expected two for each axis")
        if any(size < 0 for size in self.out_shape):
            raise InvalidNode(f"{shapes} crop more than it holds")
        over = any(size < 0 for size in self.kept) or (0 in self.kept and 0 not in self.out_shape)
        if self.mode != "constant" and over:
            raise InvalidNode(f"{shapes}: mode {self.mode!r} has no elements to repeat")

    @property
    def kept(self) -> tuple[int, ...]:
        """The sizes of x after cropping."""
        sizes = zip(self.shape, self.begins, self.ends, strict=True)
        return tuple([n + smallest(begin, 0) + smallest(end, 0) for n, begin, end in sizes])

    @property
    def out_shape(self) -> tuple[int, ...]:
        """Shape of the output."""
        return tuple([n + begin + end for n, begin, end in zip(self.shape, self.begins, self.ends, strict=True)])

    @property
    def axes(self) -> list[tuple[int, int, int, int]]:
        """(y's size, x's cropped size, x's stride, begin) of each axis, those without pads in a row merged into one."""
        axes: list[tuple[int, int, int, int]] = []
        strides = contiguous_strides(self.shape)
        for n, d, k, s, b in zip(self.shape, self.out_shape, self.kept, strides, self.begins, strict=True):
            dim, extent, step, begin = axes[-1] if axes else (0, 1, 0, 0)
            same = ((n, d), (k, n), (dim, extent), (begin, 0), (step, n * s))
            if all(matches(*pair) for pair in same):
                axes.pop()
                axes.append((dim * n, extent * n, s, 0))
            else:
                axes.append((d, k, s, largest(b, 0)))
        return [axis for axis in axes if not (matches(axis[0], 1) and matches(axis[1], 1))] or [(1, 1, 1, 0)]

    def needs(self) -> tuple[Need, ...]:
        return (Need("x", self.dtype, self.shape),)

    def makes(self) -> tuple[Need, ...]:
        return (Need("y", self.dtype, self.out_shape),)

    def reference(self, x: np.ndarray) -> np.ndarray:
        sides = list(zip(self.begins, self.ends, strict=True))
        kept = tuple(slice(-min(b, 0), n + min(e, 0)) for n, (b, e) in zip(self.shape, sides, strict=True))
        pads = [(max(b, 0), max(e, 0)) for b, e in sides]
        if self.mode == "constant":
            return np.pad(x[kept], pads, constant_values=self.value)
        return np.pad(x[kept], pads, self.mode)  # type: ignore[call-overload]


def _pad(problem: PadProblem, e: Emission) -> KernelCall:
    dims, extents, strides, begins = zip(*problem.axes, strict=True)
    crops = zip(problem.begins, contiguous_strides(problem.shape), strict=True)
    low, high = value_words(problem.value, problem.dtype)
    total = math.prod(problem.out_shape)
    return PAD.call(
        **flat_lanes(e.caps, total),
        operands={"x": None if 0 in problem.shape else e["x"], "y": e["y"]},
        params={
            "total": total,
            "start": sum(-smallest(begin, 0) * step for begin, step in crops),
            "value_low": low,
            "value_high": high,
            **magic_dims(dims),
            **numbered("extent", extents, 1),
            **numbered("stride", strides, 0),
            **numbered("begin", begins, 0),
        },
        spec={"RANK": len(dims), "MODE": MODES[problem.mode]},
        defines=unit_defines(element_type(problem.dtype).itemsize),
    )


def _takes(problem: PadProblem, caps: DeviceCapabilities) -> str:
    if any(size < 0 for size in problem.kept):
        return f"pads {list(problem.begins)}, {list(problem.ends)} crop what they add; the kernel crops first"
    return beyond_rank(len(problem.axes))


implement(PadProblem, Candidate("pad", _pad, when=_takes))
