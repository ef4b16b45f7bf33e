"""What a case is made of: an operator's name, its arguments, and where the expected results come from. Needs only numpy."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Const:
    """A constant tensor of the delegate."""

    array: Array


@dataclass(frozen=True)
class Sym:
    """An integer that the program computes while running."""

    value: int


@dataclass(frozen=True)
class Dtype:
    """An element type as PyTorch's operators take it; a blob has nothing in its place."""

    name: str


@dataclass(frozen=True)
class Case:
    """``expected`` computes the results in numpy from the arguments as arrays and numbers; None: they are PyTorch's,
    from ``data/expected.npz``.
    """

    name: str
    args: tuple[Any, ...]
    expected: Callable[..., Any] | None = None
    label: str = ""
    tolerance: float = 1e-5

    @property
    def id(self) -> str:
        return f"{self.name}-{self.label}" if self.label else self.name

    def plain(self) -> list[Any]:
        """The arguments without their wrappers."""
        return [_plain(a) for a in self.args]


def _plain(value: Any) -> Any:
    if isinstance(value, Const):
        return value.array
    if isinstance(value, Sym):
        return value.value
    if isinstance(value, Dtype):
        return None
    return [_plain(v) for v in value] if isinstance(value, list) else value


def wave(*shape: int, k: float = 0.0, scale: float = 2.0) -> Array:
    """float32 values between -scale and scale, the same everywhere."""
    steps = np.arange(math.prod(shape), dtype=np.float64)
    return (scale * np.sin(steps * 1.7 + k)).astype(np.float32).reshape(shape)


def positive(*shape: int, k: float = 0.0) -> Array:
    return np.abs(wave(*shape, k=k)) + np.float32(0.25)


def whole(*shape: int, low: int = -4, high: int = 5, k: int = 0, dtype: Any = np.int32) -> Array:
    """Integers from ``low`` to ``high - 1``."""
    steps = np.arange(math.prod(shape), dtype=np.int64)
    return ((steps * 7 + steps // 3 + k) % (high - low) + low).astype(dtype).reshape(shape)


def truth(*shape: int, k: int = 0) -> Array:
    return whole(*shape, low=0, high=2, k=k).astype(np.bool_)
