"""Hyper-connections: residual connections of several streams (domain com.microsoft: HyperConnectionPreMix,
HyperConnectionPostMix). Semantics: the operators' schemas in ONNX Runtime (docs/ContribOperators.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from vkep.dtypes import FLOAT32
from vkep.ir.builder import Builder
from vkep.ir.tensor import Tensor
from vkep.ops.allowed import SINGLE
from vkep.ops.contraction import matrix_product
from vkep.ops.microsoft import MICROSOFT
from vkep.ops.reduction import reduce_axes
from vkep.ops.registry import operator


def _streams(b: Builder, x: Tensor, num_branches: int) -> Tensor:
    """Float32 [..., branches, features] of grouped or flat streams."""
    if num_branches < 0 or x.rank < (1 if num_branches else 2) or (num_branches and x.shape[-1] % num_branches):
        b.invalid(
            f"{num_branches} branches of streams of shape {list(x.shape)}; "
            "expected an axis of branches, or a last axis that they divide"
        )
    if num_branches:
        x = b.reshape(x, (*x.shape[:-1], num_branches, x.shape[-1] // num_branches))
    return b.cast(x, FLOAT32)


def _mix(b: Builder, what: str, mix: Tensor, shape: Sequence[int]) -> Tensor:
    """Gates of streams of ``shape``: a number a branch, or one a feature."""
    *lead, branches, width = shape
    b.expect(what, mix, (*lead, branches), (*lead, branches, 1), (*lead, branches, width), (*lead, branches * width))
    return b.reshape(mix, (*lead, branches, mix.size // max(math.prod(lead) * branches, 1)))


@operator("HyperConnectionPreMix", domain=MICROSOFT, types={"x": SINGLE, "pre_mix": SINGLE})
def hyper_connection_pre_mix(
    b: Builder, x: Tensor, pre_mix: Tensor, *, num_branches: int = 0, reduction_scale: float = 1.0
) -> Tensor:
    streams = _streams(b, x, num_branches)
    value = b.expr("mul", streams, _mix(b, "pre_mix", pre_mix, streams.shape))
    parts = b.store(b.expr("mul", value, reduction_scale), FLOAT32, shape=streams.shape)
    return b.cast(reduce_axes(b, "sum", parts, [streams.rank - 2], False), x.dtype)


@operator("HyperConnectionPostMix", domain=MICROSOFT, types={"x block": SINGLE, "post_mix stream_mix": SINGLE})
def hyper_connection_post_mix(
    b: Builder, x: Tensor, block: Tensor, post_mix: Tensor, stream_mix: Tensor | None = None, *, num_branches: int = 0
) -> Tensor:
    streams = _streams(b, x, num_branches)
    *lead, branches, width = streams.shape
    b.expect("block_output", block, (*lead, width))
    b.expect("stream_mix", stream_mix, (*lead, branches, branches))
    kept = streams
    if stream_mix is not None:
        order = (*range(len(lead)), len(lead) + 1, len(lead))
        kept = matrix_product(b, b.cast(stream_mix, FLOAT32).transpose(order), streams)
    gates = _mix(b, "post_mix", post_mix, streams.shape)
    stream, gate, added = b.reads(kept, gates, b.reshape(block, (*lead, 1, width)))
    return b.reshape(b.store(stream + gate * added, x.dtype, shape=streams.shape), x.shape)
