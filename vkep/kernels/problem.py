"""The description of an operation's computation as a record, with its requirements on each operand.

A problem is a frozen dataclass of plain numbers and names: it can be printed, compared and hashed. `needs` and `makes`
give, for each operand in order, its element type, its shape, and its layout. `check` compares them with the operands
once, when the operation is created. Laying out a plan then proves that the kernels access only these operands
(`vkep.kernels.kernel.Kernel.reach`).
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np

from vkep.dtypes import DType
from vkep.errors import InvalidNode
from vkep.sizes import cached, power_of_two_in


class View(Protocol):
    """The attributes of an operand that a check reads (`vkep.ir.tensor.Tensor`)."""

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

    ``shape`` is the operand's own, its elements dense in row-major order. With ``flat`` only the number of elements
    counts: the kernels use a shape of their own. With ``strides`` (elements, not negative; 0 broadcasts) it is any view
    that contains all elements which these sizes and strides reach from its first one.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None
    flat: bool = False

    @property
    def extent(self) -> int:
        """Elements from the operand's first one to the last one that may be accessed, both included."""
        return math.prod(self.shape) if self.strides is None else extent(self.shape, self.strides)


def extent(sizes: Sequence[int], strides: Sequence[int]) -> int:
    """Elements from the first to the last one that sizes and strides (not negative) reach, both included."""
    return _extent(tuple(sizes), tuple(strides))


@cached
def _extent(sizes: tuple[int, ...], strides: tuple[int, ...]) -> int:
    if any(size <= 0 for size in sizes):
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(sizes, strides, strict=True))


P = TypeVar("P", bound="Problem")
N = TypeVar("N", bound="Narrowing")


class NoReference(ValueError):
    """A computation has no numpy reference. The text names it."""


class Problem(ABC):
    """Base of all problems: frozen dataclasses that implement `needs`, `makes` and `reference`."""

    #: equal problems recur, and decisions for one are cached
    recurs: ClassVar[bool] = True

    @abstractmethod
    def needs(self) -> tuple[Need, ...]:
        """The inputs, in order, without absent ones."""

    def in_place(self, pairs: Mapping[str, str]) -> Problem | None:
        """The problem whose outputs overwrite inputs (``pairs``: names of outputs and of their inputs, which are then
        not operands); None where kernels cannot compute it in place."""
        return None

    @abstractmethod
    def makes(self) -> tuple[Need, ...]:
        """The outputs, in order."""

    @abstractmethod
    def reference(self, *args: Any, **operands: Any) -> np.ndarray | tuple[np.ndarray, ...]:
        """The problem computed by numpy, for `tools.passes.interpreter`: what the kernels are checked against, not what runs.

        Operands are passed by the names of `needs`, in these shapes, and with those of `updates`: floats as float64, integers
        and bools as they are (those of 2 and 4 bits as 8-bit ones), 8-bit floats as their codes. Results have the order of
        `makes`, as many elements in the order of memory, and any type: they are converted. Elements that a numpy masked array
        masks are not written. Raises `NoReference` where numpy has no equivalent.
        """

    @property
    def updates(self) -> tuple[str, ...]:
        """The outputs whose content before counts: the problem changes a part of it."""
        return ()

    def finished(self, results: tuple[np.ndarray, ...], operands: Mapping[str, np.ndarray]) -> tuple[np.ndarray, ...]:
        """The outputs, from the `reference` results after an epilogue has changed the first one."""
        return results

    @functools.cached_property
    def operands(self) -> tuple[tuple[Need, ...], tuple[Need, ...]]:
        """`needs` and `makes`, cached."""
        return self.needs(), self.makes()

    @property
    def matrices(self) -> tuple[int, int, int] | None:
        """(matrices, rows, columns) of the first output's elements in row-major order, as an epilogue's ``row`` and ``col`` count
        them; None where a candidate supports no epilogue."""
        return None

    @property
    def flops(self) -> int:
        """Arithmetic operations, for reports and for the expected cost of a candidate."""
        return 0

    @property
    def fault(self) -> str:
        """The error's message where a run's data break the operator's specification; "" where they cannot, or the
        kernels do not check them."""
        return ""

    @property
    def key(self) -> tuple[int, ...]:
        """Sizes that distinguish problems where `vkep tune` measures whole candidates
        (`vkep.kernels.select.Candidate.worth`)."""
        return ()

    def placed(self: P, operands: Mapping[str, Any]) -> P:
        """The problem with the alignment of its operands' memory."""
        return self

    def restrided(self: P, name: str, strides: tuple[int, ...]) -> P | None:
        """The problem with other strides (none negative) in the need of an operand, for the axes of its shape; None where the
        kernels require the present ones."""
        return None

    def stored_in(self: P, view: Any) -> P | None:
        """The problem with its first output in a view of as many elements; None where the kernels cannot store it there. A pass
        asks before it chooses a view, and emission takes the kernels' arguments from the answer."""
        make = self.operands[1][0]
        place = view.reshape(make.shape)
        if place is None or any(stride < 0 for stride in place.strides):
            return None
        return self if make.strides is None and place.is_contiguous else self.restrided(make.name, place.strides)

    #: of problems whose kernels read images with channels last too: whether the first output is such an image then
    gives_image: ClassVar[bool | None] = None

    def lying_last(self, shape: tuple[int, ...]) -> Problem | None:
        """The problem whose first input, an image [n, c, ...] of this shape, lies as [n, ..., c]; None where the kernels do not
        read it so."""
        return None

    def stores(self, dtype: str) -> bool:
        """Whether an epilogue of the kernels may give this element type: `stored_in` takes a view of it then."""
        return bool(self.operands[1][0].dtype == dtype)

    def can_load(self, name: str, alignment: int) -> bool:
        """Whether the kernels read an input from an address that is a multiple of ``alignment`` bytes, and as fast as from one of
        16 bytes."""
        return True


#: types that epilogues of float32 sums are stored in
_NARROW = ("float16", "int8", "uint8")


class Narrowing(Problem):
    """Base of problems with fields ``dtype``, and ``to``, the element type of the first output where it is another one: an
    epilogue of float32 results may give a narrower type, which is then stored."""

    dtype: str
    to: str

    @property
    def results(self) -> str:
        """The element type of the results."""
        return self.to or self.dtype

    def stores(self, dtype: str) -> bool:
        return self.results == "float32" and dtype in _NARROW

    def stored_in(self: N, view: Any) -> N | None:
        kind = view.dtype.name
        made = replace(self, to="" if kind == self.dtype else kind) if kind != self.results else self  # type: ignore[type-var]
        return super(Narrowing, made).stored_in(view)


class Product(Narrowing):
    """Base of products and convolutions, whose results are float32 where operands are float16 or int8 (``to``)."""

    @property
    def wide(self) -> bool:
        """Whether the results are the float32 sums of narrower operands."""
        return self.to == "float32"

    def stores(self, dtype: str) -> bool:
        return dtype in (self.results, self.dtype) or (self.wide and dtype in _NARROW)


def check(problem: Problem, inputs: Sequence[View], outputs: Sequence[View]) -> None:
    """Compare a problem's needs with its operands. Raises `InvalidNode` that names the operand and the difference."""
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
            if 0 < need.extent > view.elements_left:  # a part of an empty tensor may begin behind its end
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
