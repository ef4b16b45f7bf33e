"""Max, average and Lp pooling in one to three dimensions, with channels second (``shaders/pool.comp``), or with channels last,
the layout after some convolutions (``shaders/pool_last.comp``, of float16, and the maxima of 8-bit integers): a lane moves 16
bytes of a pixel's channels at a time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpu_shared.capabilities import DeviceCapabilities
from vkep.errors import InvalidNode
from vkep.graph.windows import Window, check_window
from vkep.kernels.fastdiv import magic_params
from vkep.kernels.kernel import Kernel, KernelCall
from vkep.kernels.launch import ceil_div, element_defines, element_type, flat_lanes, limit
from vkep.kernels.problem import Need, Problem, alignment_of
from vkep.kernels.reference import windows
from vkep.kernels.select import Candidate, Emission, implement

#: bytes that a lane of ``pool_last.comp`` moves at a time
_UNIT_BYTES = 16
#: by element type, what it computes
_LAST_OPS = {"float16": ("max", "average"), "int8": ("max",), "uint8": ("max",)}
#: GLSL of the maximum of a window without elements, as ONNX Runtime defines it: the lowest finite float, which is infinite
#: in float16
_LOWEST = {"float32": "-3.402823466e38", "float64": "packDouble2x32(uvec2(0xffffffffu, 0xffefffffu))"}


def pool_defines(op: str, dtype: str, with_indices: bool = False) -> dict[str, str]:
    """The variant for an operation and an element type."""
    defines = element_defines(dtype) | {f"{op.upper()}_POOL": "1"}
    if op == "max":
        defines["LOWEST"] = _LOWEST.get(dtype) or limit(dtype, lowest=True)
        if element_type(dtype).kind == "float":
            defines["PROPAGATE_NAN"] = "1"
        if with_indices:
            defines["WITH_INDICES"] = "1"
    return defines


def _last_defines(op: str, dtype: str) -> dict[str, str]:
    """The variant of ``pool_last.comp``."""
    return pool_defines(op, dtype) | ({} if dtype == "float16" else {"BYTES": "1"})


def _reach(call: KernelCall) -> Mapping[str, int]:
    planes = ceil_div(call["total"], call["out_depth"] * call["out_height"] * call["out_width"])
    read, element = planes * call["depth"] * call["height"] * call["width"], call.size_of("IN_T")
    return {"x": read * element, "y": call["total"] * element, "indices": call["total"] * 8}


def _last_reach(call: KernelCall) -> Mapping[str, int]:
    images = ceil_div(call["total"], call["out_height"] * call["out_width"] * call["units"])
    return {"x": images * call["height"] * call["width"] * call["units"] * 16, "y": call["total"] * 16}


POOL = Kernel(
    "pool.comp",
    variants=(
        *(pool_defines(op, t) for op in ("max", "average", "lp") for t in ("float32", "float16")),
        *(pool_defines("max", t, with_indices=True) for t in ("float32", "float16")),
        *(pool_defines("max", t) for t in ("int8", "uint8")),
    ),
    reach=_reach,
)
POOL_LAST = Kernel(
    "pool_last.comp",
    variants=tuple(_last_defines(op, t) for t, ops in _LAST_OPS.items() for op in ops),
    reach=_last_reach,
)


@dataclass(frozen=True)
class PoolProblem(Problem):
    """Pool ``x`` [images, channels, *spatial] into ``y`` [images, channels, *window.out].

    ``op`` is "max", "average" or "lp" (of order ``p``). With ``indices`` (max only) there is a second output: int64
    positions in the flat input, with ``column_major`` as ONNX MaxPool's ``storage_order`` 1. A NaN in a window is its
    maximum. A window without elements, in the padding alone, has the lowest number as its maximum at -1, and the average
    0. With ``channels_last`` the layout of x and y is [images, *spatial, channels]; ``alignment`` (bytes) divides
    their addresses. Raises `Decline` for a window that is invalid for these axes.
    """

    op: str
    images: int
    channels: int
    spatial: tuple[int, ...]
    window: Window
    dtype: str
    count_include_pad: bool = False
    p: int = 2
    indices: bool = False
    column_major: bool = False
    channels_last: bool = False
    alignment: int = 1

    def __post_init__(self) -> None:
        window, rank = self.window, len(self.spatial)
        check_window(
            rank,
            window.pads,
            kernel_shape=window.kernel,
            strides=window.strides,
            dilations=window.dilations,
            out=window.out,
        )
        if min(window.pads, default=0) < 0:
            raise InvalidNode(f"pads {window.pads}; a pool's are not negative")

    gives_image = True

    def lying_last(self, shape: tuple[int, ...]) -> PoolProblem:
        return replace(self, channels_last=True)

    def _shape(self, spatial: tuple[int, ...]) -> tuple[int, ...]:
        if self.channels_last:
            return (self.images, *spatial, self.channels)
        return (self.images, self.channels, *spatial)

    def needs(self) -> tuple[Need, ...]:
        return (Need("x", self.dtype, self._shape(self.spatial)),)

    def makes(self) -> tuple[Need, ...]:
        shape = self._shape(self.window.out)
        return (Need("y", self.dtype, shape), *([Need("indices", "int64", shape)] if self.indices else []))

    @property
    def results(self) -> int:
        """Number of elements of the output."""
        return self.images * self.channels * math.prod(self.window.out)

    @property
    def flops(self) -> int:
        return self.results * math.prod(self.window.kernel)

    def placed(self, operands: Mapping[str, Any]) -> PoolProblem:
        return replace(self, alignment=alignment_of(operands["x"], operands["y"]))

    def reference(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
        window, rank = self.window, len(self.spatial)
        x = np.moveaxis(x, -1, 1) if self.channels_last else x
        begins, axes = window.pads[:rank], tuple(range(-rank, 0))

        def seen(of: np.ndarray, fill: float) -> np.ndarray:
            return windows(of, window.kernel, window.strides, window.dilations, begins, window.out, fill)

        made: tuple[np.ndarray, ...]
        if self.op == "max":
            of = seen(x, -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min)
            made = (of.max(axis=axes),)
            if self.indices:
                made = (*made, self._positions(of))
        elif self.op == "average":
            ends = window.pads[rank:] if self.count_include_pad else (0,) * rank
            inside = np.ones((1, 1, *self.spatial))
            if self.count_include_pad:  # a window of ceil_mode may go beyond the end's padding
                inside = np.ones((1, 1, *(b + n + e for b, n, e in zip(begins, self.spatial, ends, strict=True))))
                nothing = (0,) * rank
                counts = windows(inside, window.kernel, window.strides, window.dilations, nothing, window.out)
            else:
                counts = seen(inside, 0)
            made = (seen(x, 0).sum(axis=axes) / np.maximum(counts.sum(axis=axes), 1),)  # 0 of a window in the padding
        else:
            made = (np.sum(np.abs(seen(x, 0)) ** self.p, axis=axes) ** (1 / self.p),)
        return tuple(np.moveaxis(y, 1, -1) for y in made) if self.channels_last else made

    def _positions(self, of: np.ndarray) -> np.ndarray:
        """The positions of the maxima of windows in the flat input."""
        window, rank = self.window, len(self.spatial)
        best = np.unravel_index(of.reshape(*of.shape[:-rank], -1).argmax(axis=-1), window.kernel)
        out = np.indices(window.out, sparse=True)
        at = [
            o * s + tap * d - b
            for o, s, tap, d, b in zip(out, window.strides, best, window.dilations, window.pads, strict=False)
        ]
        axes = range(rank) if self.column_major else reversed(range(rank))
        position, step = 0, 1
        for axis in axes:
            position, step = position + at[axis] * step, step * self.spatial[axis]
        planes = np.arange(self.images * self.channels).reshape(self.images, self.channels)
        return position + step * planes.reshape(*planes.shape, *(1,) * rank)


def takes_channels_last(problem: PoolProblem, caps: DeviceCapabilities) -> str:
    """Why ``pool_last.comp`` does not compute a pool; "" where it does."""
    if not problem.channels_last:
        return "the channels lie second"
    fits = problem.op in _LAST_OPS.get(problem.dtype, ()) and len(problem.spatial) == 2 and not problem.indices
    if not fits or problem.channels % _unit(problem) or 0 in problem.spatial:
        return (
            f"with channels last there are only 'max' (also of bytes) and 'average' pools of float16 images of whole "
            f"{_UNIT_BYTES} bytes of channels"
        )
    return ""


def _unit(problem: PoolProblem) -> int:
    """Channels that a lane of ``pool_last.comp`` moves at a time."""
    return _UNIT_BYTES // element_type(problem.dtype).itemsize


def _takes(problem: PoolProblem, caps: DeviceCapabilities) -> str:
    rank, kind = len(problem.spatial), element_type(problem.dtype)
    if problem.channels_last:
        return "the channels lie last"
    if not 1 <= rank <= 3:
        return f"{rank} spatial axes, expected 1 to 3"
    if kind.name == "float64" and problem.op == "lp" and problem.p not in (1, 2):
        return f"an Lp pool of float64 with p {problem.p}, expected 1 or 2 (GLSL has no power of doubles)"
    if kind.kind != "float" and (problem.op != "max" or kind.itemsize == 8):
        return f"{problem.op} pooling of {problem.dtype!r} has no kernel; floats (max: also 8- to 32-bit integers) have"
    if problem.indices and problem.op != "max":
        return f"indices are an output of max pooling, not of {problem.op!r}"
    return ""


def _pool(problem: PoolProblem, e: Emission) -> KernelCall:
    window, rank = problem.window, len(problem.spatial)
    ones, zeros = (1,) * (3 - rank), (0,) * (3 - rank)
    taps, total = (*ones, *window.kernel), problem.results
    params: dict[str, int | float] = {"total": total, "p": float(problem.p)}
    params |= dict(zip(("depth", "height", "width"), (*ones, *problem.spatial), strict=True))
    for name, extent in zip(("out_depth", "out_height", "out_width"), (*ones, *window.out), strict=True):
        params |= magic_params(name, extent)
    for i, axis in enumerate("dhw"):
        params[f"stride_{axis}"] = (*ones, *window.strides)[i]
        params[f"dilation_{axis}"] = (*ones, *window.dilations)[i]
        params[f"pad_{axis}"] = (*zeros, *window.pads[:rank])[i]
        params[f"pad_end_{axis}"] = (*zeros, *window.pads[rank:])[i]
    return POOL.call(
        **flat_lanes(e.caps, total),
        operands={"x": e["x"], "y": e["y"], "indices": e.get("indices")},
        params=params,
        spec={
            **{f"KERNEL_{axis}": size for axis, size in zip("DHW", taps, strict=True)},
            "COUNT_INCLUDE_PAD": int(problem.count_include_pad),
            "COLUMN_MAJOR": int(problem.column_major),
        },
        defines=pool_defines(problem.op, problem.dtype, problem.indices),
    )


def _pool_last(problem: PoolProblem, e: Emission) -> KernelCall:
    window, (height, width), total = problem.window, problem.spatial, problem.results // _unit(problem)
    return POOL_LAST.call(
        **flat_lanes(e.caps, total),
        operands=e.operands,
        params={
            "total": total,
            "height": height,
            "width": width,
            **magic_params("units", problem.channels // _unit(problem)),
            **magic_params("out_width", window.out[1]),
            **magic_params("out_height", window.out[0]),
            **dict(zip(("stride_h", "stride_w"), window.strides, strict=True)),
            **dict(zip(("dilation_h", "dilation_w"), window.dilations, strict=True)),
            **dict(zip(("pad_h", "pad_w", "pad_end_h", "pad_end_w"), window.pads, strict=True)),
        },
        spec={
            "KERNEL_H": window.kernel[0],
            "KERNEL_W": window.kernel[1],
            "COUNT_INCLUDE_PAD": int(problem.count_include_pad),
            "ALIGNED": int(problem.alignment % _UNIT_BYTES == 0),
        },
        defines=_last_defines(problem.op, problem.dtype),
    )


implement(
    PoolProblem,
    Candidate("channels last", _pool_last, when=takes_channels_last, layout="nhwc"),
    Candidate("channels second", _pool, when=_takes),
)
