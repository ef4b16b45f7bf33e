"""ArgMax and ArgMin over the middle of a tensor viewed as [outer, axis, inner] (``shaders/argreduce.comp``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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


def _candidate_bytes(call: KernelCall) -> int:
    """Bytes of an element's key and its index."""
    return 16 if call.size_of("IN_T") == 8 else 8


def _reach(call: KernelCall) -> Mapping[str, int]:
    if "PARTED" not in call.defines:
        return {"x": column_blocks(call) * call["axis"] * call.size_of("IN_T"), "y": 8 * call["columns"]}
    first = call["STAGE"] == 1
    rows = call["columns"] // call["inner"] if first else 0
    parts = call["columns"] * (1 if first else call["axis"])
    return {
        "x": rows * call["axis"] * call.size_of("IN_T"),
        "y": 0 if first else 8 * call["columns"],
        "parts": parts * _candidate_bytes(call),
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
_PARTS, _LONG, _FEW = 64, 1 << 14, 64


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


def _arg_reduce_parts(problem: ArgReduceProblem, e: Emission) -> list[KernelCall]:
    outer, axis = problem.outer, problem.axis
    words = 4 if element_type(problem.dtype).itemsize == 8 else 2
    scratch = e.target.scratch("uint32", (outer * _PARTS * words,))
    operands = {**e.operands, "parts": scratch}
    defines = element_defines(problem.dtype) | key_defines(problem.dtype) | _PARTED
    calls = []
    for stage, columns, length, inner in ((1, outer * _PARTS, axis, _PARTS), (2, outer, _PARTS, 1)):
        share = share_columns(columns, ceil_div(length, inner), 1, e.caps, shuffles=False)
        calls.append(
            ARGREDUCE.call(
                **share.launch,
                operands={**operands, "y": None} if stage == 1 else {**operands, "x": None},
                params={"columns": columns, "axis": length, **magic_params("inner", inner)},
                spec={**share.spec, "MAXIMUM": int(problem.greatest), "LAST": int(problem.last), "STAGE": stage},
                defines=defines,
            )
        )
    return calls


implement(
    ArgReduceProblem,
    Candidate("parts", _arg_reduce_parts, when=_no_parts),
    Candidate("argreduce", _arg_reduce, when=_takes),
)
