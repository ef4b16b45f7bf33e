"""Reductions over the middle of a tensor viewed as [outer, axis, inner] (``shaders/reduce.comp``).

Semantics: ONNX ReduceSum, ReduceMean, ReduceMax, ReduceMin, ReduceProd, ReduceSumSquare, ReduceL1, ReduceL2,
ReduceLogSum, ReduceLogSumExp (https://onnx.ai/onnx/operators), and logical all and any.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpu_shared.capabilities import DeviceCapabilities
from vkep.dtypes import DTYPES
from vkep.kernels.fastdiv import magic_params
from vkep.kernels.kernel import Kernel, KernelCall
from vkep.kernels.launch import (
    BUSY_GROUPS,
    MAX_GRID_AXIS,
    ColumnShare,
    ceil_div,
    element_defines,
    element_type,
    gathers_pairs,
    grid,
    is_cpu,
    limit,
    share_columns,
    with_shuffles,
)
from vkep.kernels.problem import Need, NoReference, alignment_of
from vkep.kernels.reductions.columns import ColumnProblem, column_blocks
from vkep.kernels.reference import wide
from vkep.kernels.select import Candidate, Emission, implement
from vkep.sizes import at_hand, divides, matches


@dataclass(frozen=True)
class ReduceOp:
    """One reduction: a map of each element, the combination, and a map of the total (names in the GLSL)."""

    map: str = "map_identity"
    combine: str = "combine_sum"
    finish: str = ""  #: FINISH_* define
    identity: str = "0"  #: "0", "1", "lowest" or "highest"
    log_sum_exp: bool = False  #: the variant with separate state; then the fields above are unused
    first: ReduceOp | None = None  #: map of the first of two passes, where it differs
    last: ReduceOp | None = None  #: map of the pass over partial results, where it differs


_SUM = ReduceOp()
_SUM_OF_SQUARES = ReduceOp(map="map_square", last=_SUM)
_ROOT_OF_SUM = ReduceOp(finish="FINISH_SQRT")

REDUCE_OPS: dict[str, ReduceOp] = {
    "sum": _SUM,
    "mean": ReduceOp(finish="FINISH_MEAN", first=_SUM),
    "max": ReduceOp(combine="combine_max", identity="lowest"),
    "min": ReduceOp(combine="combine_min", identity="highest"),
    "prod": ReduceOp(combine="combine_prod", identity="1"),
    "sumsq": _SUM_OF_SQUARES,
    "l1": ReduceOp(map="map_abs", last=_SUM),
    "l2": ReduceOp(map="map_square", finish="FINISH_SQRT", first=_SUM_OF_SQUARES, last=_ROOT_OF_SUM),
    "logsum": ReduceOp(finish="FINISH_LOG", first=_SUM),
    "logsumexp": ReduceOp(log_sum_exp=True),
    "all": ReduceOp(map="map_truth", combine="combine_min", identity="1"),
    "any": ReduceOp(map="map_truth", combine="combine_max", identity="0"),
}


#: bytes of a unit: a lane loads this many at once of elements narrower than a word, on a CPU driver also of words
_UNIT_BYTES = 16
#: elements in flight per lane where elements are loaded in units
_UNIT_ELEMENTS_IN_FLIGHT = 32
#: four results, which a lane with a unit of columns stores
_VECTORS = {
    name: DTYPES[name].glsl_vector
    for name in ("float32", "float16", "bfloat16", "int8", "int16", "uint8", "uint16", "bool", "int32", "uint32")
}


def reduce_defines(
    what: ReduceOp, dtype: str, out: str, unit: int = 1, columns: bool = False, pairs: bool = False
) -> dict[str, str]:
    """The variant of one pass from elements of ``dtype`` to elements of ``out``; a lane loads ``unit`` at a time, along the
    axis or of neighbouring ``columns``, in ``pairs`` of words."""
    kind = element_type(dtype)
    defines = element_defines(dtype, out)
    if unit > 1:
        defines["UNIT_ELEMENTS"] = f"{unit}u"
        if kind.kind == "float":
            defines["UNIT_FLOATS"] = str(8 * kind.itemsize)
        if pairs:
            defines["UNIT_PAIRS"] = "1"
        if columns:
            defines |= {"UNIT_COLUMNS": "1", "VECTOR_OUT_T": _VECTORS[out]}
    if what.log_sum_exp:
        return {**defines, "LOG_SUM_EXP": "1"}
    compute = defines["COMPUTE_T"]
    identity = (
        limit(dtype, what.identity == "lowest") if what.identity.endswith("est") else f"{compute}({what.identity})"
    )
    defines |= {"MAP": what.map, "COMBINE": what.combine, "IDENTITY": identity}
    if kind.kind == "float":
        defines["PROPAGATE_NAN"] = "1"
    if what.finish:
        defines[what.finish] = "1"
    if what.finish == "FINISH_SQRT":
        defines["FINISH_T"] = "double" if kind.name == "float64" else "float"
    return defines


def _ahead() -> tuple[dict[str, str], ...]:
    """Variants to compile ahead of time: floats with every operation, integers and bool with those that models use."""
    arithmetic = [op for op in REDUCE_OPS if op not in ("all", "any")]
    floats = [reduce_defines(REDUCE_OPS[op], t, t) for op in arithmetic for t in ("float32", "float16")]
    rows, columns = (
        [reduce_defines(REDUCE_OPS[op], "float16", "float16", _UNIT_BYTES // 2, across) for op in arithmetic]
        for across in (False, True)
    )
    integers = [
        reduce_defines(REDUCE_OPS[op], t, t) for op in ("sum", "mean", "max", "min", "prod") for t in ("int32", "int64")
    ]
    pairs = [  # of CPU drivers
        reduce_defines(REDUCE_OPS[op], t, t, unit, across, pairs=True)
        for op in arithmetic
        for t, unit in (("float32", 4), ("float16", 8))
        for across in (False, True)
    ]
    return with_shuffles(*floats, *rows) + (
        *columns,
        *pairs,
        *integers,
        *(reduce_defines(REDUCE_OPS[op], "bool", "bool") for op in ("all", "any")),
    )


def _reach(call: KernelCall) -> Mapping[str, int]:
    defines, blocks = call.defines, column_blocks(call)
    results = int(defines["UNIT_ELEMENTS"].rstrip("u")) if "UNIT_COLUMNS" in defines else 1
    return {
        "x": blocks * call["axis"] * (_UNIT_BYTES if "UNIT_ELEMENTS" in defines else call.size_of("IN_T")),
        "y": blocks * call.grid[2] * results * call.size_of("OUT_T"),
    }


REDUCE = Kernel("reduce.comp", variants=_ahead(), reach=_reach)


@dataclass(frozen=True)
class ReduceProblem(ColumnProblem):
    """``y`` [outer, inner] = ``op`` (a key of `REDUCE_OPS`) over the middle of ``x`` [outer, axis, inner].

    float16 and bfloat16 accumulate in float32. max and min propagate NaN. An empty axis gives the identity (mean: NaN).
    ``alignment`` (bytes) divides both addresses: with 16, a lane loads several elements narrower than a word at once,
    where the innermost length is a multiple of that number.
    """

    op: str = "sum"
    alignment: int = 1

    def makes(self) -> tuple[Need, ...]:
        return (Need("y", self.dtype, (self.outer, self.inner), flat=True),)

    gives_image = False

    def lying_last(self, shape: tuple[int, ...]) -> ReduceProblem | None:
        """[n, ..., c]: the spatial axes are in the middle. All elements are reduced in any order."""
        if self.outer == self.inner == 1 and matches(self.axis, math.prod(shape)):
            return self
        if self.inner != 1 or self.axis != math.prod(shape[2:]):
            return None
        return replace(self, outer=shape[0], inner=shape[1])

    def placed(self, operands: Mapping[str, Any]) -> ReduceProblem:
        return replace(self, alignment=alignment_of(operands["x"], operands["y"]))

    def reference(self, x: np.ndarray) -> np.ndarray:
        x = wide(x)
        real = x.dtype.kind == "f"
        match self.op:
            case "sum":
                return x.sum(axis=1)
            case "mean":
                total = x.sum(axis=1)
                return total / np.float64(self.axis) if real else np.sign(total) * (np.abs(total) // max(self.axis, 1))
            case "max":
                least = -np.inf if real else _range(self.dtype)[0]
                return x.max(axis=1, initial=least)
            case "min":
                return x.min(axis=1, initial=np.inf if real else _range(self.dtype)[1])
            case "prod":
                return x.prod(axis=1)
            case "sumsq":
                return (x * x).sum(axis=1)
            case "l1":
                return np.abs(x).sum(axis=1)
            case "l2":
                return np.trunc(np.sqrt((x * x).sum(axis=1))) if not real else np.sqrt((x * x).sum(axis=1))
            case "logsum":
                made = np.log(x.sum(axis=1).astype(np.float64))
                return made if real else np.trunc(made)
            case "logsumexp":
                made = np.logaddexp.reduce(x.astype(np.float64), axis=1)
                return made if real else np.trunc(made)
            case "all":
                return (x != 0).all(axis=1)
            case "any":
                return (x != 0).any(axis=1)
        raise NoReference(f"reduction {self.op!r}")


def _takes(problem: ReduceProblem, caps: DeviceCapabilities) -> str:
    if problem.dtype == "float64" and problem.op in ("logsum", "logsumexp"):
        return f"{problem.op} has no float64 kernel (GLSL has no double logarithm)"
    return ""


def _takes_two(problem: ReduceProblem, caps: DeviceCapabilities) -> str:
    return _takes(problem, caps) or ("one pass keeps the device busy" if _Pass(problem, caps).parts() == 1 else "")


def _one_pass(problem: ReduceProblem, e: Emission) -> KernelCall:
    return _Pass(problem, e.caps).call(REDUCE_OPS[problem.op], problem.dtype, problem.axis, e["x"], e["y"])


def _two_passes(problem: ReduceProblem, e: Emission) -> list[KernelCall]:
    """The first one reduces parts of the axis into scratch memory."""
    first, what = _Pass(problem, e.caps), REDUCE_OPS[problem.op]
    part_length = ceil_div(first.axis, first.parts())
    parts = ceil_div(first.axis, part_length)
    partial_type = "float32" if element_type(problem.dtype).glsl_compute == "float" else problem.dtype
    partial = e.target.scratch(partial_type, (problem.outer, parts, problem.inner))
    rest = _Pass(replace(problem, axis=parts, dtype=partial_type, alignment=1), e.caps)
    return [
        first.call(what.first or what, partial_type, problem.axis, e["x"], partial, part_length),
        rest.call(what.last or what, problem.dtype, problem.axis, partial, e["y"]),
    ]


class _Pass:
    """One pass over a problem's [outer, axis, inner]; its innermost axis longer than 1 counts units of elements."""

    def __init__(self, problem: ReduceProblem, caps: DeviceCapabilities) -> None:
        self.problem, self.caps = problem, caps
        self.axis, self.inner = problem.axis, problem.inner
        itemsize = element_type(problem.dtype).itemsize
        unit = _UNIT_BYTES // itemsize
        aligned = problem.dtype in _VECTORS and problem.alignment % _UNIT_BYTES == 0
        self.pairs = gathers_pairs(caps)
        short = itemsize < (8 if self.pairs else 4)
        fits = short and aligned and divides(unit, self.axis if matches(self.inner, 1) else self.inner)
        self.unit = unit if fits else 1
        self.over_columns = self.unit > 1 and not matches(self.inner, 1)  #: a unit extends along inner
        if self.over_columns:
            self.inner //= self.unit
        else:
            self.axis //= self.unit

    def share(self, axis: int) -> ColumnShare:
        """The division of the columns, or units of columns, of ``axis`` elements or units among lanes."""
        inner = max(self.inner, 2) if self.over_columns else self.inner  # one unit of columns is not a row
        wide = element_type(self.problem.dtype).itemsize == 8  # shuffles of these types are an optional feature
        load_bytes = _UNIT_BYTES if self.unit > 1 else 4
        return share_columns(self.problem.outer * self.inner, axis, inner, self.caps, not wide, load_bytes)

    def parts(self) -> int:
        """The number of parts that a first pass divides the axis into (1: no first pass), so that the device is
        busy."""
        share = self.share(self.axis)
        wanted, least = (16, 8192 // self.unit) if is_cpu(self.caps) else (BUSY_GROUPS, 8 * share.split)
        if _few(share.groups, wanted) and self.axis < 2 * least:
            return 1  # a condition: one part of a far longer axis would take long, and lose digits
        return _parts(share.groups, self.axis, wanted, least)

    def loads(self) -> int:
        """Number of loads that a lane has in flight (a power of two)."""
        if is_cpu(self.caps):
            return 4 if self.unit == 1 else 1  # more would not fit its registers
        if self.unit > 1:
            return _UNIT_ELEMENTS_IN_FLIGHT // self.unit
        return 8 if element_type(self.problem.dtype).itemsize > 2 else 16

    def call(self, what: ReduceOp, out: str, count: int, x: Any, y: Any, part_length: int | None = None) -> KernelCall:
        """A dispatch that reduces ``count`` elements to a total; with ``part_length`` of the axis, y is [outer, parts,
        inner]."""
        length = part_length or self.axis
        share = self.share(length)
        return REDUCE.call(
            **share.launch | {"grid": grid(share.groups, ceil_div(self.axis, length) if length else 1)},
            operands={"x": x, "y": y},
            params={
                "columns": self.problem.outer * self.inner,
                "axis": self.axis,
                **magic_params("inner", self.inner),
                "part_length": length,
                "count": count,
            },
            spec={**share.lane_spec, "LOADS": self.loads()},
            defines=reduce_defines(what, self.problem.dtype, out, self.unit, self.over_columns, self.pairs)
            | share.defines,
            flops=self.problem.flops,
        )


implement(
    ReduceProblem,
    Candidate("two passes", _two_passes, when=_takes_two),
    Candidate("one pass", _one_pass, when=_takes),
)


@at_hand
def _few(groups: int, wanted: int) -> bool:
    return groups < wanted


@at_hand
def _parts(groups: int, axis: int, wanted: int, least: int) -> int:
    return max(1, min(ceil_div(wanted, groups), axis // least, MAX_GRID_AXIS))


def _range(dtype: str) -> tuple[int, int]:
    if dtype == "bool":
        return 0, 1
    info = np.iinfo(element_type(dtype).numpy)
    return int(info.min), int(info.max)
