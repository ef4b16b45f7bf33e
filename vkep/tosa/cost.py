"""What a TOSA graph costs, roughly."""

from __future__ import annotations

import math
from collections.abc import Iterable

from vkep.tosa.graph import Op


def flops(ops: Iterable[Op]) -> int:
    """Multiplications and additions of the sums of products; one for each element of everything else's result."""
    return sum(_of(op) for op in ops)


def _of(op: Op) -> int:
    size = math.prod(op.result.shape)
    if op.name in ("conv2d", "conv3d"):
        return 2 * size * math.prod(op.operands[1].shape[1:])
    if op.name == "depthwise_conv2d":
        return 2 * size * math.prod(op.operands[1].shape[:2])
    if op.name == "transpose_conv2d":
        return 2 * math.prod(op.operands[0].shape) * math.prod(op.operands[1].shape[:3])
    if op.name == "matmul":
        return 2 * size * op.operands[0].shape[2]
    return size
