"""The problem of a matrix product, and what its kernels share."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpu_shared.capabilities import DeviceCapabilities
from vkep.dtypes import DTYPES
from vkep.kernels.fastdiv import LIMIT
from vkep.kernels.kernel import KernelCall
from vkep.kernels.matmul.tiles import STORAGE
from vkep.kernels.problem import Need, Product, alignment_of, extent
from vkep.sizes import cached, divides, matches

_AXES = ("batch0", "batch1", "row", "col")
#: arguments of kernels that restate the problem
PRODUCT_SIZES = ("m", "n", "k", "batch1")
PRODUCT_STRIDES = tuple(f"{name}_{axis}" for name in "aby" for axis in _AXES)


@dataclass(frozen=True)
class MatMulProblem(Product):
    """``y[batch] = alpha * a[batch] @ b[batch]``: a is m by k, b is k by n, y is m by n.

    ``batch`` is one size or two (outer, inner). Strides are in elements, (batch, row, column), or (outer batch, inner
    batch, row, column) with two batch sizes; 0 broadcasts. ``y_strides`` defaults to a contiguous result. ``dtype`` is
    float32 or float16 (sums are float32), or int8 (sums are int32, and converted to float32), of an a that is less by ``zero``.
    ``to`` is y's type where it is not that of a and b. ``b_constant`` says that b holds weights, which may be repacked.
    ``alignment`` (bytes) divides the addresses of a, b and y. An epilogue sees ``row``, ``col`` and ``o``, the flat index in a
    contiguous [batch, m, n]. Raises `ValueError` for sizes and strides below 0.
    """

    m: int
    n: int
    k: int
    a_strides: tuple[int, ...]
    b_strides: tuple[int, ...]
    y_strides: tuple[int, ...] | None = None
    batch: int | tuple[int, int] = 1
    dtype: str = "float32"
    b_constant: bool = False
    alpha: float = 1.0
    to: str = ""
    zero: int = 0
    alignment: int = 1

    def __post_init__(self) -> None:
        if any(size < 0 for size in (self.m, self.n, self.k, *self.batches)):
            raise ValueError(
                f"matmul: sizes must not be negative, got batch {self.batch}, m {self.m}, n {self.n}, k {self.k}"
            )
        for name in "aby":
            strides = self.strides(name)
            if any(stride < 0 for stride in strides):
                raise ValueError(f"matmul: {name}_strides must not be negative, got {strides}")

    def needs(self) -> tuple[Need, ...]:
        return self._operand("a"), self._operand("b")

    def makes(self) -> tuple[Need, ...]:
        dense = Need("y", self.results, self.shape("y"), flat=True)
        return (dense if self.y_strides is None else self._operand("y", self.results),)

    def _operand(self, name: str, dtype: str = "") -> Need:
        return Need(name, dtype or self.dtype, self.shape(name), self.strides(name))

    def placed(self, operands: Mapping[str, Any]) -> MatMulProblem:
        return _placed(self, alignment_of(*(operands[name] for name in "aby")))

    def restrided(self, name: str, strides: tuple[int, ...]) -> MatMulProblem:
        return replace(self, **{f"{name}_strides": strides if isinstance(self.batch, tuple) else strides[1:]})  # type: ignore[arg-type]

    @property
    def matrices(self) -> tuple[int, int, int]:
        return self.products, self.m, self.n

    @property
    def batches(self) -> tuple[int, int]:
        """(outer, inner) batch sizes."""
        return self.batch if isinstance(self.batch, tuple) else (1, self.batch)

    @property
    def products(self) -> int:
        """Number of matrices of y."""
        return self.batches[0] * self.batches[1]

    def shape(self, operand: str) -> tuple[int, int, int, int]:
        """(outer batch, inner batch, rows, columns) of ``"a"``, ``"b"`` or ``"y"``."""
        rows, columns = {"a": (self.m, self.k), "b": (self.k, self.n), "y": (self.m, self.n)}[operand]
        return (*self.batches, rows, columns)

    def strides(self, operand: str) -> tuple[int, int, int, int]:
        """(outer batch, inner batch, row, column) strides of ``"a"``, ``"b"`` or ``"y"``."""
        return self._strides[operand]

    @functools.cached_property
    def _strides(self) -> dict[str, tuple[int, int, int, int]]:
        return {operand: self._strides_of(operand) for operand in "aby"}

    def _strides_of(self, operand: str) -> tuple[int, int, int, int]:
        strides = {"a": self.a_strides, "b": self.b_strides, "y": self.y_strides}[operand]
        if strides is None:
            outer, inner = self.batches
            matrix = self.m * self.n
            return (0 if matches(outer, 1) else inner * matrix, 0 if matches(inner, 1) else matrix, self.n, 1)
        if len(strides) != (4 if isinstance(self.batch, tuple) else 3):
            raise ValueError(
                f"matmul: {operand}_strides is {strides}, expected batch strides, row stride, column stride"
            )
        return (0, *strides) if len(strides) == 3 else strides  # type: ignore[return-value]

    @functools.cached_property
    def flops(self) -> int:
        return 2 * self.products * self.m * self.n * self.k

    @functools.cached_property
    def packs(self) -> bool:
        """Whether b is one matrix of weights, which may be repacked."""
        return self.b_constant and self.strides("b")[:2] == (0, 0) and self.k > 0

    @functools.cached_property
    def b_along_k(self) -> bool:
        """Whether b is dense along k, and not along its columns."""
        return matches(self.strides("b")[2], 1) and not matches(self.strides("b")[3], 1)

    def in_groups(self, operand: str, axis: int, group: int) -> bool:
        """Whether an operand consists of aligned groups of this many elements along an axis (2: rows, 3: columns)."""
        strides = self.strides(operand)
        others = (s for i, s in enumerate(strides) if i != axis)
        dtype = self.results if operand == "y" else self.dtype
        aligned = self.alignment % min(16, group * DTYPES[dtype].itemsize) == 0
        return (
            aligned
            and matches(strides[axis], 1)
            and divides(group, self.shape(operand)[axis])
            and all(divides(group, s) for s in others)
        )

    @functools.cached_property
    def params(self) -> Mapping[str, int | float]:
        """`PRODUCT_SIZES`, `PRODUCT_STRIDES` and ``alpha``."""
        strides = [stride for name in "aby" for stride in self.strides(name)]
        sizes = dict(zip(PRODUCT_SIZES, (self.m, self.n, self.k, self.batches[1]), strict=True))
        return {**sizes, **dict(zip(PRODUCT_STRIDES, strides, strict=True)), "alpha": self.alpha}

    def reference(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return self.alpha * ((a.astype(np.float64) - self.zero) @ b)  # int8 would wrap around


# Layers recur, and so do plans for other sizes: derived values are cached.
@cached
def _placed(problem: MatMulProblem, alignment: int) -> MatMulProblem:
    return replace(problem, alignment=alignment)


def unaddressable(problem: MatMulProblem, caps: DeviceCapabilities) -> str:
    """Why no kernel for float32 and float16 can address the operands' elements; "" where one can."""
    if problem.dtype not in STORAGE:
        return f"no matrix kernel for dtype {problem.dtype!r}; expected one of {sorted(STORAGE)}"
    return far_strides(problem)


def far_strides(problem: MatMulProblem) -> str:
    """Why no kernel can count the steps between operands' elements; "" where one can."""
    strides = [problem.strides(name) for name in "aby"]
    if any(stride >= LIMIT for stride in itertools.chain(*strides)):
        return f"strides of {strides} elements, the kernels take less than {LIMIT}"
    return ""


def strided_matrix(flat: np.ndarray, k: int, n: int, row: int, column: int) -> np.ndarray:
    """A view of a k by n matrix with these strides (elements) in ``flat``."""
    flat = np.ascontiguousarray(flat).reshape(-1)
    steps = (row * flat.itemsize, column * flat.itemsize)
    return np.lib.stride_tricks.as_strided(flat, (k, n), steps, writeable=False)


def product_reach(call: KernelCall, operand: str, rows: int, columns: int, splits: int = 1) -> int:
    """Elements of ``"a"``, ``"b"`` or ``"y"`` that a kernel with `PRODUCT_STRIDES` may access, for this many rows and
    columns of each matrix. Workgroup z is (batch, split).
    """
    inner = call["batch1"]
    strides = [call[f"{operand}_{axis}"] for axis in _AXES]
    return extent((call.groups[2] // splits // inner, inner, rows, columns), strides)
