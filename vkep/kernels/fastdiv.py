"""Division by a divisor known on the host, as a multiplication and a shift (``shaders/fastdiv.glsl``).

GPUs have no integer divide and CPU drivers none for vectors: a kernel that turns a flat index into coordinates takes
the divisor's magic numbers as arguments. Method: Granlund and Montgomery, "Division by Invariant Integers using
Multiplication" (PLDI 1994), theorem 4.2 with 31-bit numerators.
"""

from __future__ import annotations

from vkep.sizes import called, is_size
from vkep.sizes.magic import LIMIT, magic

__all__ = ["LIMIT", "fast_div", "magic", "magic_params"]


def fast_div(n: int, multiplier: int, shift: int) -> int:
    """The result of the GLSL ``fast_div``, for tests and host-side checks."""
    return ((n << 1) * multiplier) >> 32 >> shift


def magic_params(name: str, divisor: int) -> dict[str, int]:
    """The three arguments by which a kernel divides by ``name``: ``name``, ``name_mul`` and ``name_shift``.

    A divisor of 0 (a dimension of an empty tensor, which no lane divides by) is passed as 1.
    """
    if is_size(divisor):
        multiplier, shift = called("magic_multiplier", divisor), called("magic_shift", divisor)
    else:
        multiplier, shift = magic(max(divisor, 1))
    return {name: max(divisor, 1), f"{name}_mul": multiplier, f"{name}_shift": shift}
