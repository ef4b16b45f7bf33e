"""The encoding of caches of keys and values whose elements are not floats of the kernels: ``shaders/kv_codes.glsl``."""

from __future__ import annotations

#: the type of a cache's elements: how many numbers one holds, and its type in GLSL
CODES = {
    "bfloat16": (1, "uint16_t"),
    "int8": (1, "uint8_t"),
    "float8_e4m3fn": (1, "uint8_t"),
    "uint8": (2, "uint8_t"),  # numbers of 4 bits plus 8, the first in the low ones
}
#: as shaders count them; 0: the floats that a kernel computes with
NUMBERS = {"": 0} | {name: number for number, name in enumerate(CODES, 1)}


def scales_of(code: int, channels: int, count: int) -> int:
    """Scales of keys or values: none for floats, else one, or ``count`` with ``channels``."""
    return 0 if code < NUMBERS["int8"] else count if channels else 1
