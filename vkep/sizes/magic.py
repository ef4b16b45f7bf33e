"""Magic numbers of a division by a divisor known on the host (``shaders/fastdiv.glsl``)."""

from __future__ import annotations

import functools

#: numerators and divisors are below this
LIMIT = 1 << 31


@functools.lru_cache(maxsize=4096)
def magic(divisor: int) -> tuple[int, int]:
    """``(multiplier, shift)``, both 32 bits, such that ``(n * multiplier) >> (31 + shift) == n // divisor``.

    Exact for every ``0 <= n < 2**31``. Raises `ValueError` unless ``1 <= divisor < 2**31``.
    """
    if not 1 <= divisor < LIMIT:
        raise ValueError(f"fastdiv: divisor is {divisor}, expected 1 <= divisor < 2**31")
    shift = (divisor - 1).bit_length()  # ceil(log2(divisor))
    return -(-(1 << (31 + shift)) // divisor), shift
