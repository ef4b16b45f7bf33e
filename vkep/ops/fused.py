"""ONNX Runtime's operators that combine a few standard ones (domain com.microsoft): sums, gates, norms.

Semantics: the operators' schemas in ONNX Runtime (docs/ContribOperators.md), and its kernels where those say no more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from vkep.dtypes import DTYPES
from vkep.ir import algebra as fn
from vkep.ir.algebra import where
from vkep.ir.builder import Builder
from vkep.ir.expr import Expr
from vkep.ir.tensor import Tensor
from vkep.ops.allowed import FLOATING, SINGLE
from vkep.ops.contraction import matrix_product
from vkep.ops.elementwise import gelu
from vkep.ops.microsoft import MICROSOFT, fused_matmul, outputs
from vkep.ops.normalization import group_normalization, row_norm, softmax_over
from vkep.ops.random import dropped, training_rate
from vkep.ops.reduction import reduce_axes
from vkep.ops.registry import FLOATS, operator
from vkep.ops.signal import transformed

_FLOAT32, _BOOL, _UINT32 = (DTYPES[n] for n in ("float32", "bool", "uint32"))
_DOUBLES = (*FLOATS, "float64")


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
        b.invalid(f"the input has shape {list(x.shape)}; its last axis is no two halves")
    half = x.shape[-1] // 2
    left, right = (
        b.pointwise("add", x.slice(x.rank - 1, k * half, half), bias.slice(0, k * half, half)) for k in (0, 1)
    )
    return b.pointwise("mul", left, gelu(b, right))


@operator("BiasSoftmax", domain=MICROSOFT, types={"data bias": FLOATS})
def bias_softmax(b: Builder, data: Tensor, bias: Tensor, *, axis: int = 1, is_inner_broadcast: int) -> Tensor:
    """Rows are the axes from ``axis`` on; a row of the bias applies to adjacent rows, or to every n-th one."""
    first = b.axis(axis, data.rank)
    rows, width = math.prod(data.shape[:first]), math.prod(data.shape[first:])
    some = bias.size // max(width, 1)
    if not width or bias.size != some * width or not some or rows % some:
        b.invalid(f"a bias of shape {list(bias.shape)} for rows from axis {first} on of {list(data.shape)}")
    apart = (some, rows // some, width) if is_inner_broadcast else (rows // some, some, width)
    added = b.reshape(bias, (some, 1, width) if is_inner_broadcast else (1, some, width))
    total = b.pointwise("add", b.reshape(data, apart), added, shape=apart)
    return b.reshape(softmax_over(b, total, rows, width, 1), data.shape)


def _bitmask(b: Builder, mask: Tensor | None, size: int) -> Tensor:
    """uint32 words of a mask's bits, the first one lowest; all are set where there is none."""
    words = -(-size // 32)
    if mask is None:
        return b.full((words,), 0xFFFFFFFF, _UINT32)
    padded = b.empty(_BOOL, (32 * words,))
    b.copy(b.reshape(mask, (size,)), out=padded.slice(0, 0, size))
    b.copy(b.full((32 * words - size,), False, _BOOL), out=padded.slice(0, size, 32 * words - size))
    place = b.constant(np.arange(32, dtype=np.uint32))
    bits = b.pointwise(
        lambda kept, at: fn.cast(kept, "uint") << at, b.reshape(padded, (words, 32)), place, dtype=_UINT32
    )
    return reduce_axes(b, "sum", bits, [1], False)


@operator("BitmaskDropout", domain=MICROSOFT, types={"data": FLOATING})
def bitmask_dropout(
    b: Builder,
    data: Tensor,
    ratio: Tensor | None = None,
    training_mode: Tensor | None = None,
    *,
    seed: int | None = None,
) -> list[Tensor]:
    rate, mask = training_rate(b, ratio, training_mode), None
    if rate:
        data, mask = dropped(b, data, rate, seed)
    return outputs(b, data, _bitmask(b, mask, data.size))


@operator("BitmaskBiasDropout", domain=MICROSOFT, types={"data bias residual": FLOATING})
def bitmask_bias_dropout(
    b: Builder,
    data: Tensor,
    bias: Tensor,
    residual: Tensor | None = None,
    ratio: Tensor | None = None,
    training_mode: Tensor | None = None,
    *,
    seed: int | None = None,
) -> list[Tensor]:
    b.expect("bias", bias, data.shape[-1:], data.shape)
    b.expect("residual", residual, data.shape)
    rate, mask = training_rate(b, ratio, training_mode), None
    total = b.pointwise("add", data, bias, shape=data.shape)
    if rate:
        total, mask = dropped(b, total, rate, seed)
    if residual is not None:
        total = b.pointwise("add", total, residual)
    return outputs(b, total, _bitmask(b, mask, data.size))


operator("TransposeMatMul", domain=MICROSOFT, types={"x y": (*FLOATS, "bfloat16", "float64")})(fused_matmul)


def _declare_complex(op_type: str, conjugate: bool) -> None:
    def lower(b: Builder, x: Tensor, y: Tensor) -> Tensor:
        if not x.rank or not y.rank or x.shape[-1] != 2 or y.shape[-1] != 2:
            b.invalid(f"numbers of shape {list(x.shape)} and {list(y.shape)}; the last axis is two parts")
        out = b.empty(x.dtype, np.broadcast_shapes(x.shape, y.shape))
        xr, xi, yr, yi = b.reads(*[t.slice(t.rank - 1, k, 1) for t in (x, y) for k in (0, 1)])
        values = (xr * yr + xi * yi, xi * yr - xr * yi) if conjugate else (xr * yr - xi * yi, xr * yi + xi * yr)
        for k, value in enumerate(values):
            b.store(value, x.dtype, out=out.slice(out.rank - 1, k, 1))
        return out

    operator(op_type, domain=MICROSOFT, types={"x y": _DOUBLES})(lower)


_declare_complex("ComplexMul", conjugate=False)
_declare_complex("ComplexMulConj", conjugate=True)


# ---- gates


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
            b.invalid(f"the input has shape {list(gate.shape)}; its last axis is no two halves")
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


# ---- norms


def _grouped(
    b: Builder, x: Tensor, gamma: Tensor, beta: Tensor, groups: int, epsilon: float, activation: int
) -> Tensor:
    """Channels first."""
    if activation not in (0, 1):
        b.invalid(f"activation is {activation}, expected 0 or 1 (SiLU)")
    scale, bias = (b.cast(t, x.dtype) for t in (gamma, beta))
    made = group_normalization(b, x, scale, bias, num_groups=groups, epsilon=epsilon)
    return b.pointwise(fn.swish, made) if activation else made


def _norm_of_groups(
    b: Builder, x: Tensor, gamma: Tensor, beta: Tensor, groups: int, epsilon: float, activation: int, last: int
) -> Tensor:
    if x.rank != 4:
        b.invalid(f"the input has shape {list(x.shape)}, expected 4 axes")
    channels = x.shape[3 if last else 1]
    for what, tensor in {"gamma": gamma, "beta": beta}.items():
        b.expect(what, tensor, (channels,))
    first = x.transpose((0, 3, 1, 2)) if last else x
    made = _grouped(b, first, gamma, beta, groups, epsilon, activation)
    return made.transpose((0, 2, 3, 1)) if last else made


@operator("GroupNorm", domain=MICROSOFT, types={"x": FLOATS, "gamma beta": FLOATS})
def group_norm(
    b: Builder,
    x: Tensor,
    gamma: Tensor,
    beta: Tensor,
    *,
    activation: int,
    channels_last: int = 1,
    epsilon: float = 1e-5,
    groups: int,
) -> Tensor:
    return _norm_of_groups(b, x, gamma, beta, groups, epsilon, activation, channels_last)


@operator("SkipGroupNorm", domain=MICROSOFT, types={"x skip bias": FLOATS, "gamma beta": FLOATS})
def skip_group_norm(
    b: Builder,
    x: Tensor,
    gamma: Tensor,
    beta: Tensor,
    skip: Tensor,
    bias: Tensor | None = None,
    *,
    activation: int,
    channels_last: int = 1,
    epsilon: float = 1e-5,
    groups: int,
) -> list[Tensor]:
    if x.rank != 4:
        b.invalid(f"the input has shape {list(x.shape)}, expected 4 axes")
    channels = x.shape[3 if channels_last else 1]
    spread = (1, 1, channels) if channels_last else (channels, 1, 1)
    b.expect("skip", skip, x.shape, (x.shape[0], channels), (x.shape[0], *spread))
    b.expect("bias", bias, (channels,))
    total = b.expr("add", x, b.reshape(skip, (x.shape[0], *spread)) if skip.shape != x.shape else skip)
    if bias is not None:
        total = b.expr("add", total, b.reshape(bias, spread))
    summed = b.store(total, x.dtype, shape=x.shape)
    return outputs(b, _norm_of_groups(b, summed, gamma, beta, groups, epsilon, activation, channels_last), summed)


@operator("BranchwiseRMSNorm", domain=MICROSOFT, types={"x": SINGLE, "scale": SINGLE})
def branchwise_rms_norm(
    b: Builder, x: Tensor, scale: Tensor | None = None, *, epsilon: float = 1e-5, num_branches: int = 0
) -> Tensor:
    if x.rank < 1 + (not num_branches) or num_branches < 0 or (num_branches and x.shape[-1] % num_branches):
        b.invalid(f"{num_branches} branches of an input of shape {list(x.shape)}")
    grouped = (*x.shape[:-1], num_branches, x.shape[-1] // num_branches) if num_branches else x.shape
    branches, width = grouped[-2:]
    b.expect("scale", scale, (branches * width,), (branches, width), (width,))
    rows = b.reshape(x, grouped)
    wide = b.cast(rows, _FLOAT32)
    made, _, _ = row_norm(b, wide, b.full((width,), 1, _FLOAT32), epsilon=epsilon, rms=True)
    value = b.expr("same", made)
    if scale is not None:
        factor = b.reshape(scale, (branches, width)) if scale.size != width else b.reshape(scale, (width,))
        value = b.expr("mul", value, factor)
    return b.reshape(b.store(value, x.dtype, shape=grouped), x.shape)


@operator("GatedRMSNorm", domain=MICROSOFT, types={"x gate": SINGLE, "scale": SINGLE})
def gated_rms_norm(
    b: Builder, x: Tensor, scale: Tensor, gate: Tensor, *, activation: str = "silu", epsilon: float = 1e-5
) -> Tensor:
    gates = {"silu": fn.swish, "swish": fn.swish, "sigmoid": fn.sigmoid}
    if activation not in gates:
        b.invalid(f"activation is {activation!r}, expected one of {', '.join(gates)}")
    width = scale.size
    if scale.rank != 1 or not width or not x.rank or x.shape[-1] % width:
        b.invalid(f"a scale of shape {list(scale.shape)} for an input of shape {list(x.shape)}")
    b.expect("gate", gate, x.shape)
    rows = b.cast(b.reshape(x, (x.size // width, width)), _FLOAT32)
    made, _, _ = row_norm(b, rows, b.cast(scale, _FLOAT32), epsilon=epsilon, rms=True)
    value, opened = b.reads(made, b.reshape(gate, rows.shape))
    return b.reshape(b.store(value * gates[activation](opened), x.dtype, shape=rows.shape), x.shape)


# ---- hyper-connections: several parallel streams [..., branches, features]


def _streams(b: Builder, x: Tensor, num_branches: int) -> Tensor:
    """Float32 [..., branches, features] of grouped or flat streams."""
    if num_branches < 0 or x.rank < (1 if num_branches else 2) or (num_branches and x.shape[-1] % num_branches):
        b.invalid(f"{num_branches} branches of streams of shape {list(x.shape)}")
    if num_branches:
        x = b.reshape(x, (*x.shape[:-1], num_branches, x.shape[-1] // num_branches))
    return b.cast(x, _FLOAT32)


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
    parts = b.store(b.expr("mul", value, reduction_scale), _FLOAT32, shape=streams.shape)
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
        kept = matrix_product(b, b.cast(stream_mix, _FLOAT32).transpose(order), streams)
    gates = _mix(b, "post_mix", post_mix, streams.shape)
    stream, gate, added = b.reads(kept, gates, b.reshape(block, (*lead, 1, width)))
    return b.reshape(b.store(stream + gate * added, x.dtype, shape=streams.shape), x.shape)


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
        return row_norm(b, b.cast(x, _FLOAT32), b.cast(scale, _FLOAT32), epsilon=epsilon, rms=True)[0]

    products = b.pointwise("mul", normed(key, key_scale), normed(query, query_scale))
    dot = b.expr("mul", reduce_axes(b, "sum", products, [3], True), 1.0 / math.sqrt(max(width, 1)))
    gate = fn.sigmoid(fn.sign(dot) * fn.sqrt(fn.maximum(abs(dot), 1e-6)))
    wide = b.store(b.expr("mul", gate, b.reshape(value, (*lead, 1, width))), _FLOAT32, shape=key.shape)
    return outputs(
        b, b.cast(wide, key.dtype), None if conv_scale is None else b.cast(normed(wide, conv_scale), key.dtype)
    )


# ---- Fourier transforms


@operator("Rfft", domain=MICROSOFT, types={"x": FLOATS})
def rfft(b: Builder, x: Tensor, *, normalized: int = 0, onesided: int = 1, signal_ndim: int = 1) -> Tensor:
    axes = _signal_axes(b, x.rank, signal_ndim, normalized, onesided)
    y = transformed(b, b.reshape(x, (*x.shape, 1)), axes[-1], None, False, True)
    for axis in axes[:-1]:
        y = transformed(b, y, axis, None, False, False)
    return y


@operator("Irfft", domain=MICROSOFT, types={"x": FLOATS})
def irfft(b: Builder, x: Tensor, *, normalized: int = 0, onesided: int = 1, signal_ndim: int) -> Tensor:
    axes = _signal_axes(b, x.rank - 1, signal_ndim, normalized, onesided)
    for axis in axes[:-1]:
        x = transformed(b, x, axis, None, True, False)
    y = transformed(b, x, axes[-1], None, True, True)
    return b.reshape(y, y.shape[:-1])


def _signal_axes(b: Builder, rank: int, count: int, normalized: int, onesided: int) -> range:
    if normalized or not onesided or not 1 <= count <= min(rank, 3):
        b.invalid(
            f"signal_ndim {count} of {rank} axes, normalized {normalized}, onesided {onesided}; expected 1 to 3, 0 and 1"
        )
    return range(rank - count, rank)
