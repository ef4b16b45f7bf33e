"""ArgMax and ArgMin over the middle of a tensor viewed as [outer, axis, inner] (``shaders/argreduce.comp``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpu_shared.capabilities import DeviceCapabilities
from vkep.kernels.fastdiv import magic_params
from vkep.kernels.kernel import Kernel, KernelCall
from vkep.kernels.launch import ceil_div, element_defines, element_type, is_cpu, key_defines, share_columns
from vkep.kernels.problem import Need
from vkep.kernels.reductions.columns import ColumnProblem, column_blocks
from vkep.kernels.select import Candidate, Emission, implement
from vkep.sizes import matches

#: long rows in parts
_PARTED = {"PARTED": "1"}


def candidate_bytes(dtype: str) -> int:
    """Bytes of an element's key and its index (``Candidate`` in ``shaders/sortkey.glsl``)."""
    return 16 if element_type(dtype).itemsize == 8 else 8


def candidates_scratch(e: Emission, dtype: str, *sizes: int) -> Any:
    """Temporary memory for pairs of a sort key and an index (``Candidate`` in ``shaders/sortkey.glsl``): ``sizes`` of them, for
    elements of ``dtype``."""
    return e.target.scratch("uint32", (*sizes, candidate_bytes(dtype) // 4))


def candidate_of(call: KernelCall) -> int:
    """`candidate_bytes` of a call's elements."""
    return 16 if call.size_of("KEY_T") == 8 else 8


def _reach(call: KernelCall) -> Mapping[str, int]:
    element = call.size_of("IN_T")
    if "PARTED" not in call.defines:
        return {"x": column_blocks(call) * call["axis"] * element, "y": 8 * call["columns"]}
    first, candidate = call["STAGE"] == 1, candidate_of(call)
    return {
        "x": ceil_div(call["columns"], call["inner"]) * call["block"] * element if first else 0,
        "y": 0 if first else 8 * call["columns"],
        "parts": call["columns"] * (1 if first else call["axis"]) * candidate,
    }


ARGREDUCE = Kernel(
    "argreduce.comp",
    variants=tuple(
        element_defines(t) | key_defines(t) | parted
        for parted in ({}, _PARTED)
        for t in ("float32", "float16", "int32", "int64", "uint8")
    ),
    reach=_reach,
)
#: parts of a row, the shortest row that has them, and the most rows of which a workgroup each does not fill a GPU
_PARTS, _LONG, _FEW = 2048, 1 << 14, 64


@dataclass(frozen=True)
class ArgReduceProblem(ColumnProblem):
    """``y`` int64 [outer, inner] = index of the maximum (else the minimum) of the middle axis of ``x`` [outer, axis,
    inner].

    Among equals the first, or the last; a NaN wins over every number, as in numpy.
    """

    greatest: bool = True
    last: bool = False

    def makes(self) -> tuple[Need, ...]:
        return (Need("y", "int64", (self.outer, self.inner), flat=True),)

    def reference(self, x: np.ndarray) -> np.ndarray:
        find = np.argmax if self.greatest else np.argmin
        if not self.last:
            return find(x, axis=1)
        return self.axis - 1 - find(x[:, ::-1], axis=1)


def _takes(problem: ArgReduceProblem, caps: DeviceCapabilities) -> str:
    if not problem.axis:
        return f"the axis is empty (shape [{problem.outer}, 0, {problem.inner}]), expected at least one element"
    return ""


def _arg_reduce(problem: ArgReduceProblem, e: Emission) -> KernelCall:
    share = share_columns(problem.columns, problem.axis, problem.inner, e.caps, shuffles=False)
    return ARGREDUCE.call(
        **share.launch,
        operands=e.operands,
        params=problem.params,
        spec={**share.spec, "MAXIMUM": int(problem.greatest), "LAST": int(problem.last)},
        defines=element_defines(problem.dtype) | key_defines(problem.dtype),
    )


def _no_parts(problem: ArgReduceProblem, caps: DeviceCapabilities) -> str:
    if is_cpu(caps):
        return "a CPU has few cores"
    if not matches(problem.inner, 1) or problem.axis < _LONG:
        return f"rows of {problem.axis} elements, {problem.inner} apart; expected {_LONG} or more that lie densely"
    return f"{problem.outer} rows, expected up to {_FEW}" if problem.outer > _FEW else ""


def best_parts(problem: ColumnProblem, greatest: bool, parts: int, e: Emission, **spec: int) -> tuple[KernelCall, Any]:
    """A dispatch that divides the columns of ``x`` into parts of elements that lie ``parts`` apart, and the best element of
    each part that it finds: candidates [outer, parts, inner], with their index among an outer position's elements."""
    columns, steps, inner = problem.columns * parts, ceil_div(problem.axis, parts), problem.inner * parts
    share = share_columns(columns, steps, inner, e.caps, shuffles=False)
    best = candidates_scratch(e, problem.dtype, columns)
    call = ARGREDUCE.call(
        **share.launch,
        operands={"x": e["x"], "y": None, "parts": best},
        params={
            "columns": columns,
            "axis": steps,
            **magic_params("inner", inner),
            "block": problem.axis * problem.inner,
        },
        spec={**share.spec, "MAXIMUM": int(greatest), "STAGE": 1, **spec},
        defines=element_defines(problem.dtype) | key_defines(problem.dtype) | _PARTED,
        flops=problem.elements,
    )
    return call, best


def _arg_reduce_parts(problem: ArgReduceProblem, e: Emission) -> list[KernelCall]:
    first, best = best_parts(problem, problem.greatest, _PARTS, e, LAST=int(problem.last))
    share = share_columns(problem.outer, _PARTS, 1, e.caps, shuffles=False)
    second = ARGREDUCE.call(
        **share.launch,
        operands={"x": None, "y": e["y"], "parts": best},
        params={"columns": problem.outer, "axis": _PARTS, **magic_params("inner", 1), "block": _PARTS},
        spec={**share.spec, "MAXIMUM": int(problem.greatest), "LAST": int(problem.last), "STAGE": 2},
        defines=first.defines,
        flops=problem.outer * _PARTS,
    )
    return [first, second]


implement(
    ArgReduceProblem,
    Candidate("parts", _arg_reduce_parts, when=_no_parts),
    Candidate("argreduce", _arg_reduce, when=_takes),
)
