"""A product of the RMS norm of one row: a decoder's step multiplies each norm by the weights that read it.

The norm is then no dispatch of its own, which would wait for the one before it and be waited for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from gpu_shared.capabilities import DeviceCapabilities
from vkep.errors import Decline
from vkep.kernels.kernel import KernelCall
from vkep.kernels.matmul_codes import matmul_codes
from vkep.kernels.matmul_nbits_problem import MatMulNBitsProblem
from vkep.kernels.matmul_problem import MatMulProblem
from vkep.kernels.matmul_rows import matmul_rows
from vkep.kernels.problem import Need, Problem
from vkep.kernels.select import Candidate, Emission, choose, implement


@dataclass(frozen=True)
class NormedProductProblem(Problem):
    """``product`` with ``a * gain / sqrt(mean(a**2) + epsilon)`` (RMS norm, arXiv:1910.07467) for its ``a`` [1, k].

    ``gain`` [k] follows ``a``; the other operands are the product's. The norm is not rounded to the element type.
    Raises ``ValueError`` for a product of several rows, or of a ``a`` or ``y`` that does not lie densely.
    """

    aligned: ClassVar[bool] = True

    product: MatMulNBitsProblem | MatMulProblem
    epsilon: float

    def __post_init__(self) -> None:
        reason = not_one_row(self.product)
        if reason:
            raise ValueError(f"normed product: {reason}")

    @property
    def row_axis(self) -> int | None:  # type: ignore[override]
        """As the product's."""
        return self.product.row_axis

    def needs(self) -> tuple[Need, ...]:
        product, dtype = self.product, self.product.dtype
        row, gain = (Need(name, dtype, (product.k,), flat=True) for name in ("a", "gain"))
        return row, gain, *product.needs()[1:]

    def makes(self) -> tuple[Need, ...]:
        return self.product.makes()

    def placed(self, operands: Mapping[str, Any]) -> NormedProductProblem:
        return replace(self, product=self.product.placed(operands))

    @property
    def flops(self) -> int:
        return self.product.flops


def not_one_row(product: MatMulNBitsProblem | MatMulProblem) -> str:
    """Why a product is not of one dense row; "" where it is."""
    if product.m != 1:
        return f"{product.m} rows, expected 1"
    if isinstance(product, MatMulProblem):
        dense = product.strides("a")[3] == 1 or product.k == 1
        if product.products != 1 or not dense:
            return "several matrices, or a row that does not lie densely"
    return ""


#: the candidates of a product that also compute it of a norm
_MAKES = {"codes": matmul_codes, "rows": matmul_rows}


def _why_not(problem: NormedProductProblem, caps: DeviceCapabilities) -> str:
    try:
        name = choose(problem.product, caps).candidate.name
    except Decline as declined:
        return str(declined)
    return "" if name in _MAKES else f"the product's candidate is {name!r}, expected one of {sorted(_MAKES)}"


def _normed(problem: NormedProductProblem, e: Emission) -> list[KernelCall]:
    product: Any = problem.product
    make: Any = _MAKES[choose(product, e.caps).candidate.name]
    calls: list[KernelCall] = make(product, e, problem.epsilon)
    return calls


implement(NormedProductProblem, Candidate("of a norm", _normed, when=_why_not))
