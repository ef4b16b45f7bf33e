"""Common to problems over the middle axis of a tensor viewed as [outer, axis, inner]; a column is one (outer, inner)
pair."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vkep.kernels.fastdiv import magic_params
from vkep.kernels.kernel import KernelCall
from vkep.kernels.launch import ceil_div
from vkep.kernels.problem import Need, Problem


@dataclass(frozen=True)
class ColumnProblem(Problem):
    """``x`` is [outer, axis, inner] of ``dtype``, and so is ``y`` unless a problem documents another shape."""

    outer: int
    axis: int
    inner: int
    dtype: str
    flops_each: ClassVar[int] = 1  #: arithmetic operations for each element

    @property
    def columns(self) -> int:
        """Number of columns, each along the middle axis."""
        return self.outer * self.inner

    @property
    def elements(self) -> int:
        """Number of elements."""
        return self.columns * self.axis

    @property
    def flops(self) -> int:
        return self.flops_each * self.elements

    @property
    def params(self) -> dict[str, int]:
        """The arguments that locate columns."""
        return {"columns": self.columns, "axis": self.axis, **magic_params("inner", self.inner)}

    def needs(self) -> tuple[Need, ...]:
        return (Need("x", self.dtype, (self.outer, self.axis, self.inner), flat=True),)

    def makes(self) -> tuple[Need, ...]:
        return (Need("y", self.dtype, (self.outer, self.axis, self.inner), flat=True),)


def column_blocks(call: KernelCall) -> int:
    """Elements, or units of them, of all outer positions at one place of the axis: the reach of whole columns."""
    return ceil_div(call["columns"], call["inner"]) * call["inner"]
