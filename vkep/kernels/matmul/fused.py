"""Products of few rows with what a decoder's step computes around them: the RMS norm before, a second product beside.

Neither is then a dispatch of its own, which would wait for the one before it and be waited for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpu_shared.capabilities import DeviceCapabilities
from vkep.errors import Decline
from vkep.kernels.kernel import KernelCall
from vkep.kernels.matmul.codes import matmul_codes
from vkep.kernels.matmul.codes_fragments import codes_by_fragments
from vkep.kernels.matmul.form import Form
from vkep.kernels.matmul.nbits_problem import MatMulNBitsProblem
from vkep.kernels.matmul.problem import MatMulProblem
from vkep.kernels.matmul.rows import matmul_rows
from vkep.kernels.problem import Need, Problem
from vkep.kernels.select import Candidate, Emission, choose, implement
from vkep.sizes import matches


@dataclass(frozen=True)
class FusedProductProblem(Problem):
    """``product`` in a ``form``: with the RMS norm of its row (arXiv:1910.07467), and beside a second product of its a.

    The operands are a, the norm's ``gain`` [k], the product's weights, the second product's weights, alike, and those of the
    form's update behind its q, k and v, whose results are then the product's. Else ``y`` is the first product; an epilogue has
    the second one's element as ``w``. Neither the norm nor the products are rounded to the
    element type. Raises ``ValueError`` for a form that changes nothing, and for a norm of several rows or of an ``a`` that
    does not lie densely.
    """

    product: MatMulNBitsProblem | MatMulProblem
    form: Form

    def __post_init__(self) -> None:
        reason = "neither a norm nor two products" if self.form == Form() else ""
        if self.form.epsilon is not None:
            reason = not_one_row(self.product)
        update = self.form.update
        if update is not None:
            reason = not_one_row(self.product)
            width = (update.heads + 2 * update.kv_heads) * update.size
            if self.product.n != width or self.product.dtype != update.dtype:
                reason = f"{self.product.n} columns of {self.product.dtype}, the update takes {width} of {update.dtype}"
        if reason:
            raise ValueError(f"fused product: {reason}")

    @property
    def matrices(self) -> tuple[int, int, int]:
        return self.product.matrices

    def needs(self) -> tuple[Need, ...]:
        row, *weights = self.product.needs()
        before: tuple[Need, ...] = (row,)
        if self.form.epsilon is not None:
            k, dtype = self.product.k, self.product.dtype
            before = (Need("a", dtype, (k,), flat=True), Need("gain", dtype, (k,), flat=True))
        second = [replace(need, name=f"{need.name}2") for need in weights] if self.form.paired else []
        more = () if self.form.update is None else self.form.update.needs()[3:]
        return (*before, *weights, *second, *more)

    def makes(self) -> tuple[Need, ...]:
        return (self.product if self.form.update is None else self.form.update).makes()

    def restrided(self, name: str, strides: tuple[int, ...]) -> FusedProductProblem | None:
        make = self.makes()[0]
        alike = zip(make.shape, make.strides or (), strides, strict=True)
        return (
            self
            if name == make.name and all(matches(size, 1) or matches(own, other) for size, own, other in alike)
            else None
        )

    def placed(self, operands: Mapping[str, Any]) -> FusedProductProblem:
        if self.form.update is not None:  # the order of the product's own result does not matter
            operands = {**operands, "y": operands["turned"]}
        product: Any = self.product.placed(operands)
        if self.form.paired:  # the address that is less aligned counts
            second: Any = self.product.placed({**operands, "b": operands["b2"]})
            field = "at_b" if isinstance(product, MatMulNBitsProblem) else "alignment"
            product = min(product, second, key=lambda p: getattr(p, field))
        return replace(self, product=product)

    @property
    def flops(self) -> int:
        return self.product.flops * (2 if self.form.paired else 1)

    @property
    def updates(self) -> tuple[str, ...]:
        return () if self.form.update is None else self.form.update.updates

    def reference(self, a: np.ndarray, **operands: np.ndarray) -> tuple[np.ndarray, ...]:
        if self.form.epsilon is not None:
            a = a * operands["gain"] / np.sqrt(np.mean(a * a) + self.form.epsilon)
        row, *weights = self.product.needs()
        return tuple(
            self.product.reference(a.reshape(row.shape), **{need.name: operands[need.name + side] for need in weights})
            for side in (("", "2") if self.form.paired else ("",))
        )

    def finished(self, results: tuple[np.ndarray, ...], operands: Mapping[str, np.ndarray]) -> tuple[np.ndarray, ...]:
        update = self.form.update
        if update is None:
            return results[:1]
        heads = results[0].reshape(1, -1, 1, update.size)
        q, k, v = np.split(heads, [update.heads, update.heads + update.kv_heads], axis=1)
        names = {need.name for need in update.needs()[3:]} | set(update.updates)
        return update.reference(q=q, k=k, v=v, **{name: operands[name] for name in names})


def product_and_form(problem: Problem | None) -> tuple[MatMulNBitsProblem | MatMulProblem | None, Form]:
    """The product that a problem is, in which form; (None, the plain form) for other problems."""
    if isinstance(problem, FusedProductProblem):
        return problem.product, problem.form
    return problem if isinstance(problem, (MatMulNBitsProblem, MatMulProblem)) else None, Form()


def not_one_row(product: MatMulNBitsProblem | MatMulProblem) -> str:
    """Why a product is not of one dense row; "" where it is."""
    if not matches(product.m, 1):
        return f"{product.m} rows, expected 1"
    if isinstance(product, MatMulProblem):
        dense = product.strides("a")[3] == 1 or product.k == 1
        if product.products != 1 or not dense:
            return "several matrices, or a row that does not lie densely"
    return ""


#: the candidates of a product that compute it in every form
_MAKES = {"codes": matmul_codes, "fragments": codes_by_fragments, "rows": matmul_rows}


def _why_not(problem: FusedProductProblem, caps: DeviceCapabilities) -> str:
    try:
        name = choose(problem.product, caps).candidate.name
    except Decline as declined:
        return str(declined)
    return "" if name in _MAKES else f"the product's candidate is {name!r}, expected one of {sorted(_MAKES)}"


def _fused(problem: FusedProductProblem, e: Emission) -> list[KernelCall]:
    product: Any = problem.product
    make: Any = _MAKES[choose(product, e.caps).candidate.name]
    calls: list[KernelCall] = make(product, e, problem.form)
    return calls


implement(FusedProductProblem, Candidate("fused", _fused, when=_why_not))
