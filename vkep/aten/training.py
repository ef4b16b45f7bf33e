"""Operators of on-device training: the loss with its gradient, an optimizer's step, gradients and codes of weights."""

from __future__ import annotations

from vkep.aten.builder import BOOL, FLOAT, INT64, UINT8, GraphBuilder, Val
from vkep.aten.int8 import cut
from vkep.aten.reduction import reduced
from vkep.aten.registry import aten


@aten("et_vk.fused_ce.default")
def fused_ce(b: GraphBuilder, logits: Val, labels: Val, n_valid: float) -> list[Val]:
    """Cross entropy of rows [rows, classes], summed and divided by ``n_valid``, and its gradient. A label below 0 is
    ignored."""
    labels = b.cast(labels, INT64)
    counts = b.op("GreaterOrEqual", labels, b.number(0, INT64))
    safe = b.unsqueeze(b.op("Max", labels, b.number(0, INT64)), [1])
    log = b.op("LogSoftmax", logits, axis=1)
    share = b.op("Div", b.cast(counts, logits.elem), b.number(n_valid, logits.elem))
    picked = b.squeeze(b.op("GatherElements", log, safe, axis=1, dims=safe.dims), [1])
    loss = reduced(b, "ReduceSum", b.op("Mul", b.op("Neg", picked), share), None, False)
    hot = b.op("Equal", b.range(b.size(logits, 1)), safe)
    gradient = b.op("Sub", b.op("Softmax", logits, axis=1), b.cast(b.retyped(hot, BOOL), logits.elem))
    return [loss, b.op("Mul", gradient, b.unsqueeze(share, [1]))]


@aten("et_vk.adamw_step.default", mutates=("param", "m", "v"))
def adamw_step(
    b: GraphBuilder,
    param: Val,
    m: Val,
    v: Val,
    grad: Val,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    bias_correction1: float,
    bias_correction2: float,
) -> list[Val]:
    def times(x: Val, factor: float) -> Val:
        return b.op("Mul", x, b.number(factor, x.elem))

    first = b.op("Add", times(m, beta1), times(grad, 1.0 - beta1))
    second = b.op("Add", times(v, beta2), times(b.op("Mul", grad, grad), 1.0 - beta2))
    root = b.op("Sqrt", times(second, 1.0 / bias_correction2))
    step = b.op("Div", times(first, lr / bias_correction1), b.op("Add", root, b.number(eps, root.elem)))
    made = b.op("Sub", times(param, 1.0 - lr * weight_decay), step)
    return [made, first, second, made, first, second]


@aten("et_vk.linear_dW.default")
def linear_dw(b: GraphBuilder, d_out: Val, x: Val) -> Val:
    """The gradient of a linear layer for its weight: ``d_out.T @ x`` over all rows."""
    rows = [t if t.rank == 2 else b.reshape(t, [-1, b.size(t, t.rank - 1)]) for t in (d_out, b.cast(x, d_out.elem))]
    return b.op("MatMul", b.transpose(rows[0], (1, 0)), rows[1])


@aten("et_vk.q4gsw_requant.default")
def q4gsw_requant(b: GraphBuilder, latent: Val, scales: Val, group_size: int) -> Val:
    """Codes of weights [rows, width] under scales [groups, rows], two in a byte (the first in the low half)."""
    rows, width = latent.shape
    groups = -(-width // group_size)
    each = b.transpose(cut(b, cut(b, b.cast(scales, FLOAT), 1, rows), 0, groups), (1, 0))
    wide = b.op("Expand", b.unsqueeze(each, [2]), b.ints([rows, groups, group_size]), dims=(rows, groups, group_size))
    scale = cut(b, b.reshape(wide, [rows, groups * group_size]), 1, width)
    zero = b.number(0.0, FLOAT)
    none = b.op("Equal", scale, zero)
    safe = b.op("Where", none, b.number(1.0, FLOAT), scale, elem=FLOAT)
    code = b.op("Where", none, zero, b.op("Round", b.op("Div", b.cast(latent, FLOAT), safe)), elem=FLOAT)
    code = b.op("Clip", code, b.number(-8.0, FLOAT), b.number(7.0, FLOAT))
    code = b.op("Add", code, b.number(8.0, FLOAT))
    if width % 2:  # the last high half is unused
        code = b.op("Pad", code, b.ints([0, 1]), zero, b.ints([1]), dims=(rows, width + 1))
    pairs = b.reshape(code, [rows, -(-width // 2), 2])
    low, high = (b.squeeze(b.slice(pairs, 2, k, k + 1), [2]) for k in range(2))
    return b.cast(b.op("Add", low, b.op("Mul", high, b.number(16.0, FLOAT))), UINT8)
