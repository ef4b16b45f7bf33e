"""ArgMax and ArgMin over the middle of a tensor viewed as [outer, axis, inner] (``shaders/argreduce.comp``)."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_shared.capabilities import DeviceCapabilities
from vkep.kernels.columns import COLUMN_PARAMS, ColumnProblem, column_blocks
from vkep.kernels.kernel import Kernel, KernelCall, Operand
from vkep.kernels.launch import element_defines, key_defines, share_columns
from vkep.kernels.problem import Need
from vkep.kernels.select import Candidate, Emission, implement

ARGREDUCE = Kernel(
    "argreduce.comp",
    operands=(Operand("x"), Operand("y", writes=True)),
    params=COLUMN_PARAMS,
    spec={"SPLIT": 1, "ACROSS": 0, "MAXIMUM": 1, "LAST": 0},
    variants=tuple(element_defines(t) | key_defines(t) for t in ("float32", "float16", "int32", "int64", "uint8")),
    reach=lambda call: {"x": column_blocks(call) * call["axis"] * call.size_of("IN_T"), "y": 8 * call["columns"]},
)


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


implement(ArgReduceProblem, Candidate("argreduce", _arg_reduce, when=_takes))
