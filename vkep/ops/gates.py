"""Activations that gate another tensor, with their biases and scales (domain com.microsoft: BiasAdd, GatedAdd, SwiGLU, ...).

Semantics: the operators' schemas in ONNX Runtime (docs/ContribOperators.md), and its CPU provider's kernels where those
say no more.
"""

from __future__ import annotations

import math

from vkep.dtypes import FLOAT32
from vkep.ir import algebra as fn
from vkep.ir.algebra import where
from vkep.ir.builder import Builder
from vkep.ir.expr import Expr
from vkep.ir.tensor import Tensor
from vkep.ops.allowed import SINGLE
from vkep.ops.elementwise import gelu
from vkep.ops.microsoft import MICROSOFT, outputs
from vkep.ops.normalization import row_norm
from vkep.ops.reduction import reduce_axes
from vkep.ops.registry import FLOATS, operator


@operator("BiasAdd", domain=MICROSOFT, types={"x bias skip": FLOATS})
def bias_add(b: Builder, x: Tensor, bias: Tensor, skip: Tensor) -> Tensor:
    b.expect("bias", bias, x.shape[-1:])
    b.expect("skip", skip, x.shape)
    return b.store(b.expr("add", b.expr("add", x, bias), skip), x.dtype, shape=x.shape)


@operator("BiasSplitGelu", domain=MICROSOFT, types={"x bias": FLOATS})
def bias_split_gelu(b: Builder, x: Tensor, bias: Tensor) -> Tensor:
    """The first half of the last axis times the gelu of the second."""
    b.expect("bias", bias, x.shape[-1:])
    if not x.rank or x.shape[-1] % 2:
        b.invalid(f"the input has shape {list(x.shape)}, expected an even last axis")
    half = x.shape[-1] // 2
    left, right = (
        b.pointwise("add", x.slice(x.rank - 1, k * half, half), bias.slice(0, k * half, half)) for k in (0, 1)
    )
    return b.pointwise("mul", left, gelu(b, right))


@operator("ScaledSiLU", domain=MICROSOFT, types={"x": SINGLE, "scale": SINGLE})
def scaled_silu(b: Builder, x: Tensor, scale: Tensor | None = None, *, alpha: float = 1.0) -> Tensor:
    b.expect("scale", scale, (), (1,))
    scaled = b.pointwise("mul", x, alpha if scale is None else scale, shape=x.shape)
    return b.pointwise("mul", scaled, b.pointwise("sigmoid", scaled))


@operator("SwiGLU", domain=MICROSOFT, types={"gate up": SINGLE})
def swiglu(
    b: Builder,
    gate: Tensor,
    up: Tensor | None = None,
    *,
    activation_alpha: float = 1.0,
    activation_beta: float = 0.0,
    limit: float = 0.0,
    round_activation: int = 0,
) -> Tensor:
    if up is None:
        if not gate.rank or gate.shape[-1] % 2:
            b.invalid(f"the input has shape {list(gate.shape)}, expected an even last axis")
        half = gate.shape[-1] // 2
        gate, up = (gate.slice(gate.rank - 1, k * half, half) for k in (0, 1))
    b.expect("up", up, gate.shape)
    gated, raised = gated_parts(b, gate, up, activation_alpha, activation_beta, limit if limit > 0 else None)
    if round_activation:
        [gated] = b.reads(b.store(gated, gate.dtype, shape=gate.shape))
    return b.store(gated * raised, gate.dtype, shape=gate.shape)


def gated_parts(
    b: Builder, gate: Tensor, up: Tensor, alpha: float, beta: float, limit: float | None
) -> tuple[Expr, Expr]:
    """The factors of a SwiGLU: ``gate * sigmoid(alpha * gate)`` and ``up + beta``, both clamped at ``limit`` before."""
    g, u, steep, offset = b.reads(gate, up, alpha, beta)
    if limit is not None:
        most = b.reads(g, limit)[1]
        g, u = where(g > most, most, g), fn.limited(u, -most, most)
    return fn.swish(g, steep), u + offset


@operator("GatedAdd", domain=MICROSOFT, types={"x y gate": SINGLE})
def gated_add(b: Builder, x: Tensor, y: Tensor, gate: Tensor) -> Tensor:
    b.expect("Y", y, x.shape)
    b.expect("gate", gate, (*x.shape[:-1], 1))
    return b.pointwise("add", x, b.pointwise("mul", y, gate, shape=x.shape))


@operator("LinearAttentionGate", domain=MICROSOFT, types={"a y": SINGLE, "dt_bias decay_scale": ("float32",)})
def linear_attention_gate(
    b: Builder, a: Tensor, dt_bias: Tensor, decay_scale: Tensor, y: Tensor | None = None
) -> list[Tensor]:
    for what, tensor in {"dt_bias": dt_bias, "decay_scale": decay_scale}.items():
        b.expect(what, tensor, a.shape[-1:])
    b.expect("b", y, a.shape)
    value, bias, scale = b.reads(a, dt_bias, decay_scale)
    decay = b.store(fn.softplus(value + bias) * scale, a.dtype, shape=a.shape)
    return outputs(b, decay, None if y is None else b.pointwise("sigmoid", y))


@operator("EngramGate", domain=MICROSOFT, types={"key query value key_scale query_scale conv_scale": SINGLE})
def engram_gate(
    b: Builder,
    key: Tensor,
    query: Tensor,
    value: Tensor,
    key_scale: Tensor,
    query_scale: Tensor,
    conv_scale: Tensor | None = None,
    *,
    epsilon: float = 1e-5,
) -> list[Tensor]:
    """A value for all branches, by the gate that the branch's key and query give."""
    if key.rank != 4:
        b.invalid(f"keys of shape {list(key.shape)}, expected [batch, length, branches, features]")
    *lead, branches, width = key.shape
    b.expect("query", query, key.shape)
    b.expect("value", value, (*lead, width))
    for what, scale in (("key", key_scale), ("query", query_scale), ("conv", conv_scale)):
        b.expect(f"{what}_norm_scale", scale, (branches, width))

    def normed(x: Tensor, scale: Tensor) -> Tensor:
        return row_norm(b, b.cast(x, FLOAT32), b.cast(scale, FLOAT32), epsilon=epsilon, rms=True)[0]

    products = b.pointwise("mul", normed(key, key_scale), normed(query, query_scale))
    dot = b.expr("mul", reduce_axes(b, "sum", products, [3], True), 1.0 / math.sqrt(max(width, 1)))
    gate = fn.sigmoid(fn.sign(dot) * fn.sqrt(fn.maximum(abs(dot), 1e-6)))
    wide = b.store(b.expr("mul", gate, b.reshape(value, (*lead, 1, width))), FLOAT32, shape=key.shape)
    return outputs(
        b, b.cast(wide, key.dtype), None if conv_scale is None else b.cast(normed(wide, conv_scale), key.dtype)
    )
