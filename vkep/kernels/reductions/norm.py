"""Normalisations: softmax, layer, RMS, instance and group norm, local response and Lp normalisation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from gpu_shared.capabilities import DeviceCapabilities
from vkep.errors import InvalidNode
from vkep.kernels.epilogue import call_arguments
from vkep.kernels.fastdiv import magic_params
from vkep.kernels.kernel import Kernel, KernelCall
from vkep.kernels.launch import (
    SHUFFLE,
    ceil_div,
    element_defines,
    element_type,
    flat_lanes,
    floor_power_of_two,
    grid,
    is_cpu,
    row_unit,
    row_variants,
    row_vectors,
    share_columns,
    shuffle_sizes,
    with_shuffles,
)
from vkep.kernels.matmul.cooperative_tiles import compute_units, float16_shape
from vkep.kernels.problem import Narrowing, Need, Problem, alignment_of
from vkep.kernels.reductions.columns import ColumnProblem, column_blocks
from vkep.kernels.select import Candidate, Emission, implement, takes_floats
from vkep.sizes import at_hand, matches, serves_others


def _norm_reach(call: KernelCall) -> Mapping[str, int]:
    rows, axis, element = call["rows"], call["axis"], call.size_of("IN_T")
    if call["BY_CHANNEL"]:
        factors = ((min(call["period"], rows) - 1) * call["channels"] + (axis - 1) // call["spatial"] + 1) * element
    else:
        factors = axis * row_unit(call)
    both = rows * axis * row_unit(call)
    y = rows * axis * row_unit(call, "OUT_T")
    return {"x": both, "y": y, "scale": factors, "bias": factors, "mean": 4 * rows, "inv_std": 4 * rows}


NORM = Kernel("norm.comp", variants=row_variants(), reach=_norm_reach)


def _lrn_reach(call: KernelCall) -> Mapping[str, int]:
    image, element = call["channels"] * call["inner"], call.size_of("IN_T")
    return {"x": ceil_div(call["total"], image) * image * element, "y": call["total"] * element}


LRN = Kernel("lrn.comp", variants=tuple(map(element_defines, ("float32", "float16"))), reach=_lrn_reach)


@dataclass(frozen=True)
class LayerNormProblem(Narrowing):
    """Layer norm of the rows of ``x`` [rows, axis] (Ba et al., arXiv:1607.06450), with ``rms`` RMS norm (arXiv:1910.07467).

    ``scale`` and ``bias`` [axis], ``mean`` and ``inv_std`` (outputs, float32 [rows]) are present where these fields are
    true. Floats only; statistics are computed in float32. ``alignment`` (bytes) divides the addresses of x, y, scale
    and bias: with 16, rows move four elements at a time.
    """

    rows: int
    axis: int
    dtype: str
    epsilon: float = 1e-5
    rms: bool = False
    scale: bool = True
    bias: bool = True
    mean: bool = False
    inv_std: bool = False
    alignment: int = 1
    to: str = ""

    @property
    def matrices(self) -> tuple[int, int, int]:
        return 1, self.rows, self.axis

    def needs(self) -> tuple[Need, ...]:
        factors = [name for name in ("scale", "bias") if getattr(self, name)]
        return (
            Need("x", self.dtype, (self.rows, self.axis), flat=True),
            *(Need(name, self.dtype, (self.axis,), flat=True) for name in factors),
        )

    def makes(self) -> tuple[Need, ...]:
        statistics = [name for name in ("mean", "inv_std") if getattr(self, name)]
        return (
            Need("y", self.results, (self.rows, self.axis), flat=True),
            *(Need(name, "float32", (self.rows,), flat=True) for name in statistics),
        )

    @property
    def flops(self) -> int:
        return 8 * self.rows * self.axis

    def placed(self, operands: Mapping[str, Any]) -> LayerNormProblem:
        moved = [operand for name, operand in operands.items() if name not in ("mean", "inv_std")]
        return replace(self, alignment=alignment_of(*moved))

    def reference(
        self, x: np.ndarray, scale: np.ndarray | None = None, bias: np.ndarray | None = None
    ) -> tuple[np.ndarray, ...]:
        mean = np.zeros((self.rows, 1)) if self.rms else x.mean(axis=1, keepdims=True)
        inv_std = 1 / np.sqrt(np.mean((x - mean) ** 2, axis=1, keepdims=True) + self.epsilon)
        y = (x - mean) * inv_std * (1.0 if scale is None else scale) + (0.0 if bias is None else bias)
        statistics = {"mean": mean, "inv_std": inv_std}
        return (y, *(value[:, 0] for name, value in statistics.items() if getattr(self, name)))


@dataclass(frozen=True)
class GroupNormProblem(ColumnProblem):
    """Group norm (arXiv:1803.08494) of ``x``, whose ``axis`` are the channels of each image, with ``scale`` and ``bias`` [axis].

    ``groups`` divides the channels; instance norm has a group for each channel. Otherwise as `LayerNormProblem`.
    """

    groups: int
    epsilon: float = 1e-5
    alignment: int = 1
    flops_each = 8

    def __post_init__(self) -> None:
        if self.groups < 1 or self.axis % self.groups:
            raise InvalidNode(f"{self.axis} channels do not divide into {self.groups} groups")

    def needs(self) -> tuple[Need, ...]:
        return (*super().needs(), *(Need(name, self.dtype, (self.axis,)) for name in ("scale", "bias")))

    def placed(self, operands: Mapping[str, Any]) -> GroupNormProblem:
        return replace(self, alignment=alignment_of(operands["x"], operands["y"]))

    def reference(self, x: np.ndarray, scale: np.ndarray, bias: np.ndarray) -> np.ndarray:
        grouped = x.reshape(self.outer, self.groups, -1)
        centred = grouped - grouped.mean(axis=2, keepdims=True)
        y = centred / np.sqrt(np.mean(centred**2, axis=2, keepdims=True) + self.epsilon)
        return y.reshape(x.shape) * scale[:, None] + bias[:, None]


def _layer_norm(problem: LayerNormProblem, e: Emission) -> KernelCall:
    vectors = row_vectors(problem.axis, problem.dtype, problem.alignment, problem.results)
    return _norm(problem, e, problem.rows, problem.axis, vectors, problem.results, center=not problem.rms)


def _group_norm(problem: GroupNormProblem, e: Emission) -> KernelCall:
    channels, spatial = problem.axis // problem.groups, problem.inner
    vectors = row_vectors(spatial, problem.dtype, problem.alignment)
    by_channel = (problem.groups, spatial, channels)
    rows = problem.outer * problem.groups
    return _norm(problem, e, rows, channels * spatial, vectors, problem.dtype, by_channel=by_channel)


def _norm(
    problem: LayerNormProblem | GroupNormProblem,
    e: Emission,
    rows: int,
    axis: int,
    vectors: dict[str, str],
    results: str,
    center: bool = True,
    by_channel: tuple[int, int, int] | None = None,
) -> KernelCall:
    period, spatial, channels = by_channel or (1, 1, axis)
    width = 4 if vectors else 1
    steps = axis // width
    share = share_columns(rows, steps, 1, e.caps)
    optional = ("scale", "bias", "mean", "inv_std")
    return NORM.call(
        **share.launch,
        operands={name: e.get(name) for name in ("x", "y", *optional)},
        params={
            "rows": rows,
            "axis": steps,
            "inv_axis": 1.0 / axis,
            "epsilon": problem.epsilon,
            **magic_params("period", period),
            **magic_params("spatial", max(spatial // width, 1)),
            "channels": channels,
        },
        spec={
            "SPLIT": share.split,
            "SUBGROUP_LANES": share.shuffle or 1,
            **register_spec(steps, share.split, e.caps),
            "CENTER": int(center),
            **{f"HAS_{name.upper()}": int(name in e.operands) for name in optional},
            "BY_CHANNEL": int(by_channel is not None),
        },
        **call_arguments(e.epilogue, element_defines(problem.dtype, results) | vectors | share.defines),
    )


def _part_reach(call: KernelCall) -> Mapping[str, int]:
    return {"x": call["rows"] * call["axis"] * row_unit(call), "y": 12 * call["rows"] * call["parts"]}


MOMENTS = Kernel("moments.comp", variants=row_variants(), reach=_part_reach)


def _joined_reach(call: KernelCall) -> Mapping[str, int]:
    rows = 4 * call["rows"]
    factors = call["groups"] * call["each"] * call.size_of("IN_T")
    results = {"mean": rows, "inv_std": rows, "factor": rows * call["each"], "shift": rows * call["each"]}
    return {"x": 3 * rows * call["parts"], "scale": factors, "bias": factors, **results}


JOIN_MOMENTS = Kernel(
    "moments_join.comp",
    variants=with_shuffles(*map(element_defines, ("float32", "float16"))),
    reach=_joined_reach,
)
#: lanes of a workgroup that reads a part of a row, units that one of them reads at a time, and workgroups that fill a core
_PART_LANES, _PART_UNITS, _PARTS_A_CORE = 256, 8, 8
#: elements from which on a row is worth dispatches for its statistics
_LONG_ROW = 1 << 15
#: the same beside convolutions with channels last
_SHORT_ROW = 1 << 10


@dataclass(frozen=True)
class MomentsProblem(Problem):
    """``mean`` and ``inv_std`` = 1 / sqrt(variance + epsilon), float32 [rows], of the rows of ``x`` [rows, axis]; with ``rms`` 0,
    and the squares around it. Floats only; ``alignment`` as in `LayerNormProblem`."""

    rows: int
    axis: int
    dtype: str
    epsilon: float
    rms: bool = False
    alignment: int = 1
    #: rows are no groups of channels
    groups: ClassVar[int] = 1
    each: ClassVar[int] = 1
    last: ClassVar[bool] = False

    def needs(self) -> tuple[Need, ...]:
        return (Need("x", self.dtype, (self.rows, self.axis), flat=True),)

    def makes(self) -> tuple[Need, ...]:
        return Need("mean", "float32", (self.rows,), flat=True), Need("inv_std", "float32", (self.rows,), flat=True)

    @property
    def flops(self) -> int:
        return 6 * self.rows * self.axis

    def placed(self, operands: Mapping[str, Any]) -> MomentsProblem:
        return replace(self, alignment=alignment_of(operands["x"]))

    def reference(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
        mean = np.zeros(self.rows) if self.rms else x.mean(axis=1)
        return mean, 1 / np.sqrt(np.mean((x - mean[:, None]) ** 2, axis=1) + self.epsilon)


@dataclass(frozen=True)
class ChannelFactorsProblem(Problem):
    """``factor`` and ``shift``, float32 [images, channels], by which x * factor + shift is the group norm of ``x``
    [images, channels, positions] with ``scale`` and ``bias`` [channels]. With ``last`` x lies as [images, positions, channels].
    Floats only; ``alignment`` as in `LayerNormProblem`."""

    images: int
    channels: int
    positions: int
    groups: int
    dtype: str
    epsilon: float
    last: bool = False
    alignment: int = 1

    def needs(self) -> tuple[Need, ...]:
        shape = (self.images, self.channels, self.positions)
        return (
            Need("x", self.dtype, (shape[0], shape[2], shape[1]) if self.last else shape, flat=True),
            *(Need(name, self.dtype, (self.channels,), flat=True) for name in ("scale", "bias")),
        )

    def makes(self) -> tuple[Need, ...]:
        return tuple(Need(name, "float32", (self.images, self.channels), flat=True) for name in ("factor", "shift"))

    @property
    def rows(self) -> int:
        """Groups of all images."""
        return self.images * self.groups

    @property
    def each(self) -> int:
        """Channels of a group."""
        return self.channels // self.groups

    @property
    def axis(self) -> int:
        """Elements of a group."""
        return self.each * self.positions

    @property
    def flops(self) -> int:
        return 6 * self.rows * self.axis

    gives_image = False

    def lying_last(self, shape: tuple[int, ...]) -> ChannelFactorsProblem | None:
        fits = (self.channels, self.positions) == (shape[1], math.prod(shape[2:]))
        return replace(self, last=True) if fits else None

    def placed(self, operands: Mapping[str, Any]) -> ChannelFactorsProblem:
        return replace(self, alignment=alignment_of(operands["x"]))

    def reference(self, x: np.ndarray, scale: np.ndarray, bias: np.ndarray) -> tuple[np.ndarray, ...]:
        first = x.transpose(0, 2, 1) if self.last else x
        rows = first.reshape(self.images, self.groups, -1)
        mean = rows.mean(axis=2)
        inv_std = 1 / np.sqrt(np.mean((rows - mean[..., None]) ** 2, axis=2) + self.epsilon)
        factor = np.repeat(inv_std, self.each, axis=1) * scale
        return factor, bias - np.repeat(mean, self.each, axis=1) * factor


#: bytes of a group's channels, which lie side by side with channels last, from which on reading them so is worth it
_SIDE_BY_SIDE = 8


def _takes_factors(problem: ChannelFactorsProblem, caps: DeviceCapabilities) -> str:
    if problem.last and problem.each * element_type(problem.dtype).itemsize < _SIDE_BY_SIDE:
        return f"groups of {problem.each} channels lie apart"
    return takes_floats(problem, caps)


@at_hand
def gains_by_moments(rows: int, axis: int, caps: DeviceCapabilities, least: int = _LONG_ROW) -> bool:
    """Whether a norm of rows of at least ``least`` elements is faster by their statistics first, since a workgroup for each row
    leaves a GPU idle."""
    return not is_cpu(caps) and rows < 4 * compute_units(caps) and axis >= least


def gains_by_factors(rows: int, axis: int, dtype: str, caps: DeviceCapabilities) -> bool:
    """As `gains_by_moments`, for groups of an image's channels: beside convolutions with channels last also where rows are short,
    since by factors the norm keeps that layout."""
    is_beside = dtype == "float16" and float16_shape(caps) is not None
    return gains_by_moments(rows, axis, caps, _SHORT_ROW if is_beside else _LONG_ROW)


def _moments(problem: MomentsProblem, e: Emission) -> list[KernelCall]:
    return _joined_parts(problem, e, ("mean", "inv_std"), {"RMS": int(problem.rms)})


def _channel_factors(problem: ChannelFactorsProblem, e: Emission) -> list[KernelCall]:
    return _joined_parts(problem, e, ("scale", "bias", "factor", "shift"), {"EACH_CHANNEL": 1})


def _joined_parts(
    problem: MomentsProblem | ChannelFactorsProblem, e: Emission, names: Sequence[str], spec: Mapping[str, int]
) -> list[KernelCall]:
    """The moments of parts of the rows, and what a second dispatch, of operands with these ``names``, makes of them."""
    rows, in_line = problem.rows, problem.each if problem.last else problem.axis
    vectors = row_vectors(in_line, problem.dtype, problem.alignment)
    width = 4 if vectors else 1
    steps = problem.axis // width
    lanes = floor_power_of_two(min(_PART_LANES, e.caps.max_workgroup_invocations))
    parts = _parts(rows, steps, lanes, e.caps)
    shuffle, required = shuffle_sizes(e.caps, lanes)
    lane_spec = {"SUBGROUP_LANES": shuffle or 1}
    defines = SHUFFLE if shuffle else {}
    found = e.target.scratch("float32", (rows, parts, 3))
    none = dict.fromkeys(("mean", "inv_std", "scale", "bias", "factor", "shift"))
    channels = {"groups": problem.groups, "each": problem.each}
    return [
        MOMENTS.call(
            grid=grid(rows * parts),
            operands={"x": e["x"], "y": found},
            params={
                "rows": rows,
                "axis": steps,
                "parts": parts,
                "part": ceil_div(steps, parts),
                "groups": problem.groups,
                **magic_params("each", in_line // width if problem.last else 1),
            },
            spec=lane_spec | {"LAST": int(problem.last)},
            defines=element_defines(problem.dtype) | vectors | defines,
            flops=problem.flops,
            local_size=(lanes,),
            subgroup_size=required,
        ),
        JOIN_MOMENTS.call(
            grid=grid(rows),
            operands={"x": found, **none, **{name: e[name] for name in names}},
            params={"rows": rows, "parts": parts, "epsilon": problem.epsilon, **channels},
            spec={**lane_spec, "RMS": 0, "EACH_CHANNEL": 0, **spec},
            defines=element_defines(problem.dtype) | defines,
            flops=rows * parts,
            local_size=(lanes,),
            subgroup_size=required,
        ),
    ]


@at_hand
def _parts(rows: int, steps: int, lanes: int, caps: DeviceCapabilities) -> int:
    """The number of workgroups for each row: as many as fill the device, none of them without a whole turn of its lanes."""
    return max(1, min(ceil_div(_PARTS_A_CORE * compute_units(caps), max(rows, 1)), steps // (lanes * _PART_UNITS)))


@dataclass(frozen=True)
class LocalResponseNormProblem(ColumnProblem):
    """ONNX LRN of ``x``, whose ``axis`` are the channels of each image: squares are summed over the channels
    [c - floor((size-1)/2), c + ceil((size-1)/2)]. Floats only.
    """

    size: int
    alpha: float = 1e-4
    beta: float = 0.75
    bias: float = 1.0

    def __post_init__(self) -> None:
        if self.size < 1:
            raise InvalidNode(f"size is {self.size}, expected at least 1")

    def reference(self, x: np.ndarray) -> np.ndarray:
        before, after = (self.size - 1) // 2, self.size // 2
        sums = np.stack(
            [np.sum(x[:, max(c - before, 0) : c + after + 1] ** 2, axis=1) for c in range(self.axis)], axis=1
        )
        return x * (self.bias + self.alpha / self.size * sums) ** -self.beta


def _local_response_norm(problem: LocalResponseNormProblem, e: Emission) -> KernelCall:
    total = problem.elements
    return LRN.call(
        **flat_lanes(e.caps, total),
        operands=e.operands,
        params={
            "total": total,
            **magic_params("inner", problem.inner),
            **magic_params("channels", problem.axis),
            "before": (problem.size - 1) // 2,
            "after": problem.size // 2,
            "alpha_over_size": problem.alpha / problem.size,
            "beta": problem.beta,
            "bias": problem.bias,
        },
        defines=element_defines(problem.dtype),
        flops=(2 * problem.size + 4) * total,
    )


implement(LayerNormProblem, Candidate("norm", _layer_norm, when=takes_floats))
implement(GroupNormProblem, Candidate("norm", _group_norm, when=takes_floats))
implement(MomentsProblem, Candidate("moments", _moments, when=takes_floats))
implement(ChannelFactorsProblem, Candidate("channel factors", _channel_factors, when=_takes_factors))
implement(LocalResponseNormProblem, Candidate("lrn", _local_response_norm, when=takes_floats))


def _reach(call: KernelCall) -> Mapping[str, int]:
    units = column_blocks(call) * call["axis"]
    return {"x": units * row_unit(call), "y": units * row_unit(call, "OUT_T")}


SOFTMAX = Kernel("softmax.comp", variants=row_variants(), reach=_reach)


@dataclass(frozen=True)
class SoftmaxProblem(ColumnProblem, Narrowing):
    """``y`` = softmax (with ``log``: its logarithm) of ``alpha * x`` over the middle of [outer, axis, inner]. A column of minus
    infinity alone gives NaN, with ``zeros`` zeros.

    Floats only, computed in float32; the maximum is subtracted first. ``alignment`` (bytes) divides the addresses of x and
    y: with 16, contiguous rows move four elements at a time.
    """

    log: bool = False
    alpha: float = 1.0
    alignment: int = 1
    to: str = ""
    zeros: bool = False
    flops_each = 4

    @property
    def matrices(self) -> tuple[int, int, int] | None:
        return (1, self.outer, self.axis) if matches(self.inner, 1) else None

    def makes(self) -> tuple[Need, ...]:
        return (Need("y", self.results, (self.outer, self.axis, self.inner), flat=True),)

    def placed(self, operands: Mapping[str, Any]) -> SoftmaxProblem:
        return replace(self, alignment=alignment_of(operands["x"], operands["y"]))

    def reference(self, x: np.ndarray) -> np.ndarray:
        scaled = self.alpha * x
        most = scaled.max(axis=1, keepdims=True)
        scaled = scaled - (np.where(np.isneginf(most), 0, most) if self.zeros else most)
        total = np.exp(scaled).sum(axis=1, keepdims=True)
        if self.zeros:
            total = np.where(total == 0, 1, total)
        return scaled - np.log(total) if self.log else np.exp(scaled) / total


def _softmax(problem: SoftmaxProblem, e: Emission) -> KernelCall:
    axis, inner, dtype, results = problem.axis, problem.inner, problem.dtype, problem.results
    vectors = row_vectors(axis, dtype, problem.alignment, results) if matches(inner, 1) else {}
    steps = axis // 4 if vectors else axis
    share = share_columns(problem.columns, steps, inner, e.caps)
    registers = register_spec(steps, share.split, e.caps)
    keep_powers = not problem.log and results == "float32" and registers["REST"]
    return SOFTMAX.call(
        **share.launch,
        operands=e.operands,
        params=problem.params | {"axis": steps, "alpha": problem.alpha},
        spec={
            **share.lane_spec,
            **registers,
            "LOG": int(problem.log),
            "KEEP_POWERS": int(keep_powers),
            "ZEROS": int(problem.zeros),
        },
        **call_arguments(e.epilogue, element_defines(dtype, results) | vectors | share.defines),
    )


implement(SoftmaxProblem, Candidate("softmax", _softmax, when=takes_floats))


def register_spec(axis: int, split: int, caps: DeviceCapabilities) -> dict[str, int]:
    """How many elements a lane keeps in registers, and whether it reads others from memory: those of axes that are longer than
    the one at hand too."""
    kept = _kept(axis, split, caps)
    return {"KEPT": kept, "REST": int(serves_others(axis) or kept * split < axis)}


@at_hand
def _kept(axis: int, split: int, caps: DeviceCapabilities) -> int:
    """Rounded, so that there are few pipelines; 0 where registers do not hold the axis.

    A CPU driver uses its cache instead, and spills long register arrays.
    """
    per_lane = ceil_div(axis, split)
    return 0 if is_cpu(caps) else next((n for n in (1, 2, 4, 6, 8, 12, 16) if n >= per_lane), 0)
