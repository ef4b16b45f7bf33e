"""What an operation computes, as a record: a problem states what it needs of each operand.

A problem is a frozen dataclass of plain numbers and names: it can be printed, compared and hashed. `needs` and `makes` say of
each operand, in order, its element type, its shape, and how its elements lie. `check` compares them with the operands once,
where the operation is made. What its kernels then touch is proved to lie inside these operands when a plan is laid out
(`vkep.kernels.kernel.Kernel.reach`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

from vkep.dtypes import DType
from vkep.errors import InvalidNode
from vkep.sizes import power_of_two_in


class View(Protocol):
    """What a check asks of an operand (`vkep.ir.tensor.Tensor`)."""

    @property
    def dtype(self) -> DType:
        """Element type."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of its axes."""

    @property
    def offset(self) -> int:
        """First element, counted in elements of its storage."""

    @property
    def is_contiguous(self) -> bool:
        """Whether it is dense and in row-major order."""

    @property
    def elements_left(self) -> int:
        """Elements of its storage from the offset on."""


@dataclass(frozen=True, slots=True)
class Need:
    """One operand of a problem.

    ``shape`` is the operand's own, its elements dense in row-major order. With ``flat`` only the number of elements counts:
    the kernels see the operand as a shape of their own. With ``strides`` (elements, not negative; 0 broadcasts) it is any
    view that has all elements which these sizes and strides reach from its first one.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None
    flat: bool = False

    @property
    def extent(self) -> int:
        """Elements from the operand's first one to the last one that may be touched, both included."""
        return math.prod(self.shape) if self.strides is None else extent(self.shape, self.strides)


def extent(sizes: Sequence[int], strides: Sequence[int]) -> int:
    """Elements from the first to the last one that sizes and strides (not negative) reach, both included."""
    return _extent(tuple(sizes), tuple(strides))


@functools.lru_cache(4096)  # layers repeat
def _extent(sizes: tuple[int, ...], strides: tuple[int, ...]) -> int:
    if any(size <= 0 for size in sizes):
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(sizes, strides, strict=True))


P = TypeVar("P", bound="Problem")


class Problem:
    """Base of all problems: frozen dataclasses that implement `needs` and `makes`."""

    #: equal problems come again, and what was decided for one is kept
    recurs: ClassVar[bool] = True
    #: the output axis that is an epilogue's ``row`` (the axes after it, flattened, are its ``col``), where every candidate
    #: passes its result through one
    row_axis: ClassVar[int | None] = None
    #: the output may be a view whose stride before ``row_axis`` is not dense
    strided_output: ClassVar[bool] = False
    #: inputs that lie at multiples of 16 bytes must stay there
    aligned: ClassVar[bool] = False

    def needs(self) -> tuple[Need, ...]:
        """The inputs, in order; those that are absent have none."""
        raise NotImplementedError

    def in_place(self, pairs: Mapping[str, str]) -> Problem | None:
        """The problem whose outputs lie where inputs do (``pairs``: names of outputs and of their inputs, which are no operands
        of it); None where kernels cannot compute it so.
        """
        return None

    def makes(self) -> tuple[Need, ...]:
        """The outputs, in order."""
        raise NotImplementedError

    @functools.cached_property
    def operands(self) -> tuple[tuple[Need, ...], tuple[Need, ...]]:
        """`needs` and `makes`, made once."""
        return self.needs(), self.makes()

    @property
    def flops(self) -> int:
        """Arithmetic operations, for reports and for what a candidate is expected to cost."""
        return 0

    @property
    def key(self) -> tuple[int, ...]:
        """Sizes that tell problems apart where `vkep tune` tries whole candidates (`vkep.kernels.select.Candidate.worth`)."""
        return ()

    def placed(self: P, operands: Mapping[str, Any]) -> P:
        """The problem with what only its operands' places tell: their alignment, the strides of its output."""
        return self

    def restrided(self: P, name: str, strides: tuple[int, ...]) -> P | None:
        """The problem with other strides in the need of an input; None where the kernels want those that it has."""
        return None


def check(problem: Problem, inputs: Sequence[View], outputs: Sequence[View]) -> None:
    """Compare what a problem needs with its operands. Raises `InvalidNode`, saying which operand differs, and how."""
    needs, makes = problem.operands
    _check(needs, inputs, problem)
    _check(makes, outputs, problem)


def _check(needs: Sequence[Need], views: Sequence[View], problem: Problem) -> None:
    if len(needs) != len(views):
        names = ", ".join(need.name for need in needs)
        raise ValueError(f"{type(problem).__name__}: {len(views)} operands, expected {len(needs)} ({names})")
    for need, view in zip(needs, views, strict=True):
        if view.dtype.name != need.dtype:
            raise ValueError(f"{type(problem).__name__}: {need.name} is {view.dtype}, expected {need.dtype}")
        if need.strides is not None:
            if view.elements_left < need.extent:
                raise InvalidNode(
                    f"{need.name} has {view.elements_left} elements from its first one on, expected {need.extent} "
                    f"for {list(need.shape)}"
                )
        elif need.flat:
            if math.prod(view.shape) != need.extent:
                raise InvalidNode(f"{need.name} has shape {list(view.shape)}, expected {need.extent} elements")
        elif view.shape != need.shape:
            raise InvalidNode(f"{need.name} has shape {list(view.shape)}, expected {list(need.shape)}")
        if need.strides is None and need.extent and not view.is_contiguous:
            raise ValueError(f"{type(problem).__name__}: the elements of {need.name} do not lie densely")


def alignment_of(*operands: Any) -> int:
    """Bytes, a power of two up to 16, that divide each operand's address (storages are aligned to more)."""
    return min(power_of_two_in(t.offset * t.dtype.itemsize, 16) for t in operands)
