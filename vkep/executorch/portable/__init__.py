"""Portable kernels: the operators that a program leaves outside its delegates, in numpy.

Each is declared once under the name that programs use. Results are those of torch's operators; float16 and bfloat16 are
computed in float32.
"""

from vkep.executorch.portable import (  # noqa: F401  # declare the kernels
    backward,
    indexing,
    matrix,
    movement,
    normalization,
    pointwise,
    pooling,
    prim,
    quantized,
    reduction,
    sampling,
    spectral,
)
from vkep.executorch.portable.registry import KERNELS, PortableKernel

__all__ = ["KERNELS", "PortableKernel"]
