"""Reductions over the middle of a tensor viewed as [outer, axis, inner] (``shaders/reduce.comp``).

Semantics: ONNX ReduceSum, ReduceMean, ReduceMax, ReduceMin, ReduceProd, ReduceSumSquare, ReduceL1, ReduceL2,
ReduceLogSum, ReduceLogSumExp (https://onnx.ai/onnx/operators), and logical all and any.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpu_shared.capabilities import DeviceCapabilities
from vkep.kernels.fastdiv import magic_fields, magic_params
from vkep.kernels.kernel import Kernel, KernelCall, Operand
from vkep.kernels.launch import (
    BUSY_GROUPS,
    MAX_GRID_AXIS,
    Workspace,
    ceil_div,
    element_count,
    element_defines,
    element_type,
    grid,
    is_cpu,
    limit,
    required_subgroup_size,
    share_columns,
    with_shuffles,
)


@dataclass(frozen=True)
class ReduceOp:
    """One reduction: a map of each element, the combination, and what is done with the total (names in the GLSL)."""

    map: str = "map_identity"
    combine: str = "combine_sum"
    finish: str = ""  #: FINISH_* define
    identity: str = "0"  #: "0", "1", "lowest" or "highest"
    log_sum_exp: bool = False  #: the variant with a state of its own; the fields above do not count
    first: ReduceOp | None = None  #: what the first of two passes does, where it is not the same
    last: ReduceOp | None = None  #: what the pass over partial results does, where it is not the same


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


def reduce_defines(what: ReduceOp, dtype: str, out: str) -> dict[str, str]:
    """The variant of one pass from elements of ``dtype`` to elements of ``out``."""
    kind = element_type(dtype)
    defines = element_defines(dtype, out)
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
    """Variants to build ahead: floats with every operation, integers and bool with those that models use."""
    arithmetic = [op for op in REDUCE_OPS if op not in ("all", "any")]
    floats = [reduce_defines(REDUCE_OPS[op], t, t) for op in arithmetic for t in ("float32", "float16")]
    integers = [
        reduce_defines(REDUCE_OPS[op], t, t) for op in ("sum", "mean", "max", "min", "prod") for t in ("int32", "int64")
    ]
    return with_shuffles(*floats) + (
        *integers,
        *(reduce_defines(REDUCE_OPS[op], "bool", "bool") for op in ("all", "any")),
    )


REDUCE = Kernel(
    "reduce.comp",
    operands=(Operand("x"), Operand("y", writes=True)),
    params=(("columns", "uint"), ("axis", "uint"), *magic_fields("inner"), ("part_length", "uint"), ("count", "uint")),
    spec={"SPLIT": 1, "ACROSS": 0, "LOADS": 4, "SUBGROUP_LANES": 32},
    variants=_ahead(),
)


def reduce(
    op: str,
    outer: int,
    axis: int,
    inner: int,
    dtype: str,
    caps: DeviceCapabilities,
    x: Any,
    y: Any,
    workspace: Workspace | None = None,
) -> list[KernelCall]:
    """``y`` [outer, inner] = ``op`` over the middle of ``x`` [outer, axis, inner], both of ``dtype``.

    ``op`` is a key of `REDUCE_OPS`. float16 and bfloat16 accumulate in float32. max and min propagate NaN.
    An empty axis gives the identity (mean: NaN). With a ``workspace``, few columns of many elements take two passes
    through scratch memory. Raises `ValueError` for an unknown ``op`` or element type.
    """
    what = REDUCE_OPS.get(op)
    if what is None:
        raise ValueError(f"reduce: operation is {op!r}, expected one of {sorted(REDUCE_OPS)}")
    kind = element_type(dtype)
    if kind.name == "float64" and op in ("logsum", "logsumexp"):
        raise ValueError(f"reduce: {op} has no float64 kernel (GLSL has no double logarithm)")
    element_count("reduce input", outer, axis, inner)
    if not outer * inner:
        return []
    parts = _parts(outer * inner, axis, inner, caps) if workspace is not None else 1
    if parts == 1 or workspace is None:
        return [_pass(what, outer, axis, inner, dtype, dtype, 1, axis, caps, x, y)]
    part_length = ceil_div(axis, parts)
    parts = ceil_div(axis, part_length)
    partial_type = "float32" if kind.glsl_compute == "float" else dtype
    partial = workspace.scratch(partial_type, (outer, parts, inner))
    return [
        _pass(what.first or what, outer, axis, inner, dtype, partial_type, parts, axis, caps, x, partial, part_length),
        _pass(what.last or what, outer, parts, inner, partial_type, dtype, 1, axis, caps, partial, y),
    ]


def _parts(columns: int, axis: int, inner: int, caps: DeviceCapabilities) -> int:
    """Into how many parts a first pass divides the axis (1: no first pass), so that the device is busy."""
    share = share_columns(columns, axis, inner, caps)
    wanted, least = (16, 8192) if is_cpu(caps) else (BUSY_GROUPS, 8 * share.split)
    return max(1, min(ceil_div(wanted, share.groups), axis // least, MAX_GRID_AXIS))


def _pass(
    what: ReduceOp,
    outer: int,
    axis: int,
    inner: int,
    dtype: str,
    out: str,
    parts: int,
    count: int,
    caps: DeviceCapabilities,
    x: Any,
    y: Any,
    part_length: int | None = None,
) -> KernelCall:
    share = share_columns(outer * inner, axis if part_length is None else part_length, inner, caps)
    wide = element_type(dtype).itemsize == 8
    if wide and share.shuffle:  # shuffles of 64-bit values are an optional feature: through shared memory instead
        share = share_columns(outer * inner, axis if part_length is None else part_length, inner, caps, shuffles=False)
    return REDUCE.call(
        grid=grid(share.groups, parts),
        operands={"x": x, "y": y},
        params={
            "columns": outer * inner,
            "axis": axis,
            **magic_params("inner", inner),
            "part_length": axis if part_length is None else part_length,
            "count": count,
        },
        spec={**share.lane_spec, "LOADS": 4 if is_cpu(caps) else 8 if element_type(dtype).itemsize > 2 else 16},
        defines=reduce_defines(what, dtype, out) | share.defines,
        local_size=(share.local,),
        subgroup_size=required_subgroup_size(share, caps),
        flops=outer * axis * inner,
    )
