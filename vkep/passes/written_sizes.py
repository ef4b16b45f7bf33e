"""Constants that depend on sizes and are read as tensors: a dispatch writes them from its arguments."""

from __future__ import annotations

import numpy as np

from vkep.graph.weights import SizesWeight
from vkep.ir import expr as ex
from vkep.ir.algebra import stored_as, where
from vkep.ir.builder import Builder
from vkep.ir.expr import Expr
from vkep.ir.ops import reads
from vkep.ir.tensor import Tensor


def write_sizes(b: Builder) -> None:
    """Make each such constant a buffer that the first operations of ``b`` fill. The values of others, which only lowering reads,
    are arguments of kernels already."""
    read = {t.storage: t.dtype for op in b.ops for t in reads(op) if isinstance(t.storage.weight, SizesWeight)}
    others, b.ops = b.ops, []
    for storage, dtype in read.items():
        assert storage.weight is not None
        values = storage.weight.array().reshape(-1).tolist()
        storage.weight = None
        place = ex.leaf(b.constant(np.arange(len(values), dtype=np.int32)))
        numbers = [ex.Const(dtype.glsl_compute, value=value) for value in values]
        chosen: Expr = numbers.pop()
        while numbers:
            chosen = where(place < len(numbers), numbers.pop(), chosen)
        b.store(stored_as(chosen, dtype), dtype, out=Tensor.contiguous(dtype, (len(values),), storage))
    b.ops += others
