"""Functions on types that a device lacks (``shaders/words.comp``): `vkep.shaders.words` links them into kernels."""

from __future__ import annotations

from vkep.kernels.kernel import Kernel, Operand

#: no plan calls it
WORDS = Kernel(
    "words.comp",
    operands=(Operand("a"), Operand("b"), Operand("y", writes=True)),
    reach=lambda call: {"a": 0, "b": 0, "y": 8},
)
