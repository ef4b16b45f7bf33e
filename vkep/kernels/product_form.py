"""What a product of few rows computes beside itself in one dispatch: the RMS norm before it, a second product."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from vkep.kernels.kernel import Kernel, Operand

#: the defines of the kernels for a normed row, and for two products
_NORMED, _PAIRED = {"NORMED": "1"}, {"PAIRED": "1"}


@dataclass(frozen=True)
class Form:
    """``epsilon``: a is the RMS norm ``a * gain / sqrt(mean(a**2) + epsilon)`` of one row. ``paired``: two products of a, by
    the weights and by further operands whose names end with 2; the epilogue makes one result of both."""

    epsilon: float | None = None
    paired: bool = False

    def kernel(self, forms: Sequence[Kernel]) -> Kernel:
        """The kernel of this form, of those of `in_forms`."""
        return forms[(self.epsilon is not None) + 2 * self.paired]

    @property
    def params(self) -> dict[str, float]:
        """The kernel's further arguments."""
        return {} if self.epsilon is None else {"epsilon": self.epsilon}

    @property
    def defines(self) -> dict[str, str]:
        """The kernel's further definitions."""
        return _defines(self.epsilon is not None, self.paired)


def _defines(normed: bool, paired: bool) -> dict[str, str]:
    return {**(_NORMED if normed else {}), **(_PAIRED if paired else {})}


PLAIN = Form()


def in_forms(kernel: Kernel, weights: Sequence[str]) -> tuple[Kernel, Kernel, Kernel, Kernel]:
    """A product's kernel as it is, of a norm, of two products, and of two products of a norm. ``weights`` are the operands
    that each of two products has."""
    of_norm, of_two = (Operand("gain"),), tuple(Operand(f"{name}2") for name in weights)

    def form(normed: bool, paired: bool) -> Any:
        return replace(
            kernel,
            operands=(*kernel.operands, *(of_norm if normed else ()), *(of_two if paired else ())),
            params=(*kernel.params, *((("epsilon", "float"),) if normed else ())),
            variants=tuple({**v, **_defines(normed, paired)} for v in kernel.variants),
        )

    return kernel, form(True, False), form(False, True), form(True, True)
