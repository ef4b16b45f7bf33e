"""Complex numbers and Fourier transforms."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vkep.executorch.portable.registry import Array, kernel, kernels, wide


def _scale(normalization: int, count: int) -> float:
    """torch's modes: no scaling, by the square root of the number of points, by the number of points."""
    return (1.0, 1 / math.sqrt(count), 1 / count)[normalization] if count else 1.0


@kernel("_fft_r2c.out")
def fft_r2c(self: Array, dim: Sequence[int], normalization: int, onesided: bool) -> Array:
    axes = tuple(dim)
    x = wide(self)
    found = np.fft.rfftn(x, axes=axes) if onesided else np.fft.fftn(x, axes=axes)
    scale = _scale(normalization, math.prod(self.shape[a] for a in axes))
    return (found * scale).astype(np.complex128 if x.dtype == np.float64 else np.complex64)


@kernel(
    "_fft_c2r.out",
    elements=lambda self, dim, _, size: math.prod(
        n if k != dim[-1] % self.ndim else size for k, n in enumerate(self.shape)
    ),
)
def fft_c2r(self: Array, dim: Sequence[int], normalization: int, last_dim_size: int) -> Array:
    """The inverse transform of half of the frequencies along the last of ``dim``, which gets ``last_dim_size``
    elements."""
    axes = tuple(dim)
    sizes = [*(self.shape[a] for a in axes[:-1]), last_dim_size]
    scale = _scale(normalization, math.prod(sizes))
    found = np.fft.irfftn(self, s=sizes, axes=axes, norm="forward") * scale  # "forward": the inverse is not scaled
    return found.astype(np.float64 if self.dtype == np.complex128 else np.float32)


_EXPRESSIONS: dict[str, Callable[..., Any]] = {
    "_conj_physical.out": lambda x: np.conj(x),
}
kernels(_EXPRESSIONS)
kernels({"view_as_real_copy.out": lambda x: np.stack([x.real, x.imag], -1)}, elements=lambda x: 2 * x.size)
