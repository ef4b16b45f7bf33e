"""Products by weights of few bits that share an input, which is normalized before (domain com.microsoft: MatMulNBitsMlp,
MatMulNBitsQkv). ONNX Runtime's WebGPU optimizer writes them.

Semantics: the operators' schemas in ONNX Runtime (docs/ContribOperators.md).
"""

from __future__ import annotations

from vkep.graph.attributes import LayerNormAttributes
from vkep.ir import algebra as fn
from vkep.ir.builder import Builder
from vkep.ir.tensor import Tensor
from vkep.ops.microsoft import (
    MICROSOFT,
    outputs,
    simplified_layer_normalization,
    with_skip,
)
from vkep.ops.normalization import row_norm
from vkep.ops.quantized.elementwise import matmul_nbits_
from vkep.ops.registry import FLOATS, operator


def _normalized(
    b: Builder, x: Tensor, skip: Tensor | None, scale: Tensor | None, epsilon: float
) -> tuple[Tensor, Tensor | None]:
    """The input after its norm, where there is a scale for it, and its sum with ``skip``."""
    if scale is None:
        if skip is not None:
            b.invalid("a skip input without norm_scale")
        return x, None
    if skip is None:
        return simplified_layer_normalization(b, x, scale, a=LayerNormAttributes(epsilon=epsilon))[0], None
    total = with_skip(b, x, skip, None, epsilon, gamma=scale)
    return row_norm(b, total, scale, epsilon=epsilon, rms=True)[0], total


@operator(
    "MatMulNBitsMlp",
    domain=MICROSOFT,
    types={"x skip norm_scale gate_scales gate_bias up_scales up_bias": FLOATS, "gate up": ("uint8",)},
)
def matmul_nbits_mlp(
    b: Builder,
    x: Tensor,
    skip: Tensor | None,
    norm_scale: Tensor | None,
    gate: Tensor,
    gate_scales: Tensor,
    gate_bias: Tensor | None,
    up: Tensor,
    up_scales: Tensor,
    up_bias: Tensor | None = None,
    *,
    K: int,
    N: int,
    accuracy_level: int = 0,
    activation: str,
    bits: int = 4,
    block_size: int,
    epsilon: float = 1e-5,
) -> list[Tensor]:
    if activation != "silu":
        b.decline(f"activation {activation!r}; the kernels take silu")
    rows, summed = _normalized(b, x, skip, norm_scale, epsilon)
    gated, raised = (
        matmul_nbits_(b, rows, codes, scales, None, None, bias, K=K, N=N, bits=bits, block_size=block_size)
        for codes, scales, bias in ((gate, gate_scales, gate_bias), (up, up_scales, up_bias))
    )
    return outputs(b, b.pointwise(lambda gate, up: fn.swish(gate) * up, gated, raised, dtype=x.dtype), summed)


@operator(
    "MatMulNBitsQkv",
    domain=MICROSOFT,
    types={
        "x skip norm_scale q_scales q_bias k_scales k_bias v_scales v_bias": FLOATS,
        "q k v": ("uint8",),
    },
)
def matmul_nbits_qkv(
    b: Builder,
    x: Tensor,
    skip: Tensor | None,
    norm_scale: Tensor,
    q: Tensor,
    q_scales: Tensor,
    q_bias: Tensor | None,
    k: Tensor,
    k_scales: Tensor,
    k_bias: Tensor | None,
    v: Tensor,
    v_scales: Tensor,
    v_bias: Tensor | None = None,
    *,
    K: int,
    Nkv: int,
    Nq: int,
    accuracy_level: int = 0,
    bits: int = 4,
    block_size: int,
    epsilon: float = 1e-6,
) -> list[Tensor]:
    rows, summed = _normalized(b, x, skip, norm_scale, epsilon)
    made = (
        matmul_nbits_(b, rows, codes, scales, None, None, bias, K=K, N=count, bits=bits, block_size=block_size)
        for codes, scales, bias, count in (
            (q, q_scales, q_bias, Nq),
            (k, k_scales, k_bias, Nkv),
            (v, v_scales, v_bias, Nkv),
        )
    )
    return outputs(b, *made, summed)
