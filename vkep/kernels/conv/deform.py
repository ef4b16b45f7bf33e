"""Sampling the windows of a deformable convolution (ONNX DeformConv)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from vkep.errors import InvalidNode
from vkep.kernels.dims import last_coordinates, magic_dims
from vkep.kernels.kernel import Kernel, KernelCall
from vkep.kernels.launch import element_defines, flat_lanes, real_defines
from vkep.kernels.problem import Need, Problem
from vkep.kernels.reference import bilinear
from vkep.kernels.select import Candidate, Emission, implement


def _reach(call: KernelCall) -> Mapping[str, int]:
    images, channels = last_coordinates(call, 6)[0] + 1, call["dim1"]
    groups = (images - 1) * call["offset_groups"] + (channels - 1) // call["group_channels"] + 1
    samples = groups * math.prod(call[f"dim{d}"] for d in range(2, 6))
    size = call.size_of("IN_T")
    return {
        "x": images * channels * call["height"] * call["width"] * size,
        "offset": samples * 2 * size,
        "mask": samples * size if call["HAS_MASK"] else 0,
        "y": call["total"] * call.size_of("OUT_T"),
    }


DEFORM_COLUMNS = Kernel(
    "deform_columns.comp", variants=tuple(element_defines(t) for t in ("float32", "float16")), reach=_reach
)


@dataclass(frozen=True)
class DeformColumnsProblem(Problem):
    """``y`` [n, channels, *kernel, *out]: bilinear samples of ``x`` (``shape`` [n, channels, height, width]), 0 outside of it.

    ``offset`` is [n, offset_groups * taps * 2, *out] in pixels, ``mask``, if present, [n, offset_groups * taps, *out].
    """

    shape: tuple[int, ...]
    kernel: tuple[int, ...]
    out: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begins: tuple[int, ...]
    offset_groups: int
    masked: bool
    dtype: str

    def __post_init__(self) -> None:
        if self.offset_groups < 1 or self.shape[1] % self.offset_groups:
            raise InvalidNode(f"{self.shape[1]} channels do not divide into {self.offset_groups} offset groups")

    def needs(self) -> tuple[Need, ...]:
        samples = self.offset_groups * math.prod(self.kernel)
        mask = (Need("mask", self.dtype, (self.shape[0], samples, *self.out)),) if self.masked else ()
        return (
            Need("x", self.dtype, self.shape),
            Need("offset", self.dtype, (self.shape[0], samples * 2, *self.out)),
            *mask,
        )

    def makes(self) -> tuple[Need, ...]:
        return (Need("y", self.dtype, (*self.shape[:2], *self.kernel, *self.out), flat=True),)

    @property
    def flops(self) -> int:
        return 12 * self.makes()[0].extent

    def reference(self, x: np.ndarray, offset: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
        n, channels = self.shape[:2]
        shifts = offset.reshape(n, self.offset_groups, *self.kernel, 2, *self.out)
        at = []
        for axis in range(2):
            places = (
                np.arange(self.out[axis]) * self.strides[axis]
                + np.arange(self.kernel[axis])[:, None] * self.dilations[axis]
                - self.begins[axis]
            )  # [kernel, out] of the axis
            lead = [1, 1, 1, 1]
            lead[axis], lead[axis + 2] = places.shape
            at.append(places.reshape(lead) + shifts[:, :, :, :, axis])
        of = x.reshape(n, self.offset_groups, channels // self.offset_groups, *self.shape[2:])
        y = np.stack(
            [
                np.stack([bilinear(of[i, g], at[0][i, g], at[1][i, g]) for g in range(self.offset_groups)])
                for i in range(n)
            ]
        )
        if mask is not None:
            y = y * mask.reshape(n, self.offset_groups, 1, *self.kernel, *self.out)
        return y.reshape(n, channels, *self.kernel, *self.out)


def _columns(problem: DeformColumnsProblem, e: Emission) -> KernelCall:
    dims = (*problem.shape[:2], *problem.kernel, *problem.out)
    total = math.prod(dims)
    return DEFORM_COLUMNS.call(
        **flat_lanes(e.caps, total),
        operands={**e.operands, "mask": e.get("mask")},
        params={
            "total": total,
            "height": problem.shape[2],
            "width": problem.shape[3],
            "offset_groups": problem.offset_groups,
            "group_channels": problem.shape[1] // problem.offset_groups,
            "stride_h": problem.strides[0],
            "stride_w": problem.strides[1],
            "dilation_h": problem.dilations[0],
            "dilation_w": problem.dilations[1],
            "pad_top": problem.begins[0],
            "pad_left": problem.begins[1],
            **magic_dims(dims),
        },
        spec={"HAS_MASK": int(problem.masked)},
        defines=element_defines(problem.dtype) | real_defines(problem.dtype),
    )


implement(DeformColumnsProblem, Candidate("deformed columns", _columns))
