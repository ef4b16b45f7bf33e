"""Functions on types that a device lacks (``shaders/words.comp``): `vkep.shaders.words` links them into kernels."""

from __future__ import annotations

from vkep.kernels.kernel import Kernel

#: no plan calls it
WORDS = Kernel("words.comp", reach=lambda call: {"a": 0, "b": 0, "y": 8})
