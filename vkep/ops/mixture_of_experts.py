"""Mixtures of experts (domain com.microsoft: MoE, QMoE, MoEGroupRouter).

Each token goes through the ``k`` experts that its router scores highest. Where few tokens choose (a step of decoding), only the
chosen experts' weights are read: a GPU gathers them, a CPU driver's product looks up those that are packed. Else tokens lie in
the order of their experts, in blocks of one expert.

Semantics: the operators' schemas in ONNX Runtime (docs/ContribOperators.md), and its CPU provider's kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from vkep.dtypes import DTYPES, FLOAT32, INT32, DType
from vkep.ir import algebra as fn
from vkep.ir.algebra import where
from vkep.ir.builder import Builder
from vkep.ir.expr import Expr
from vkep.ir.tensor import Tensor
from vkep.kernels.launch import is_cpu
from vkep.kernels.matmul.grouped import (
    GroupedCodesProblem,
    GroupedProductProblem,
    GroupRowsProblem,
    block_of,
    no_packed_product,
)
from vkep.ops.allowed import SINGLE
from vkep.ops.contraction import matrix_product
from vkep.ops.elementwise import gelu
from vkep.ops.gates import gated_parts
from vkep.ops.gather import elements_at, gather_, gathered, scatter_elements_
from vkep.ops.microsoft import MICROSOFT, outputs, wants_output
from vkep.ops.normalization import softmax_over
from vkep.ops.quantized.blocks import unpacked_codes
from vkep.ops.reduction import reduce_axes, top_k_of
from vkep.ops.registry import FLOATS, operator

_ACTIVATIONS = ("relu", "gelu", "silu", "identity", "relu2", "swiglu", "geglu")


@dataclass(frozen=True, kw_only=True)
class MoEAttributes:
    """The attributes that MoE and QMoE share."""

    activation_alpha: float = 1.0
    activation_beta: float = 0.0
    activation_type: str = "relu"
    k: int = 1
    normalize_routing_weights: int = 0
    swiglu_fusion: int = 0
    swiglu_limit: float | None = None
    swiglu_limit_after_activation: int = 0
    use_sparse_mixer: int = 0


@dataclass
class Matrices:
    """One matrix [n, k] for each expert: floats [experts, n, k], or codes of ``bits`` bits with scales and zero points by rows
    or by blocks of a row; and a bias [experts, n].
    """

    weights: Tensor
    bias: Tensor | None = None
    scales: Tensor | None = None
    zero_points: Tensor | None = None
    bits: int = 0

    @property
    def pack(self) -> int:
        """Codes in a byte."""
        return 8 // self.bits if self.bits else 1

    def laid(self, b: Builder, experts: int, n: int, k: int) -> Matrices:
        """The matrices for a shape of [experts, k, n] whose elements have the layout of [experts, n, k], as in earlier
        versions of ONNX Runtime."""
        shape = (experts, n, k // self.pack)
        if self.weights.shape in (shape, (experts, k, n // self.pack)):
            return replace(self, weights=b.reshape(self.weights, shape))
        return self

    def check(self, b: Builder, what: str, experts: int, n: int, k: int, block: int) -> None:
        """Raise `InvalidNode` unless the operands are those of [experts, n, k]."""
        b.expect(f"{what}_bias", self.bias, (experts, n))
        if not self.bits:
            b.expect(f"{what}_weights", self.weights, (experts, n, k))
            return
        if self.scales is None or (block and k % block) or k * self.bits % 8:
            b.invalid(f"{what}: rows of {k} in blocks of {block}, {'no' if self.scales is None else 'with'} scales")
        b.expect(f"{what}_weights", self.weights, (experts, n, k * self.bits // 8))
        blocks = k // block if block else 1
        b.expect(f"{what}_scales", self.scales, *([(experts, n)] if blocks == 1 else []), (experts, n, blocks))
        packed = (experts, n, -(-blocks * self.bits // 8)) if block else (experts, -(-n * self.bits // 8))
        b.expect(f"{what}_zero_points", self.zero_points, packed)

    def of(self, b: Builder, chosen: Tensor) -> Matrices:
        """Those of the experts ``chosen`` [rows]."""

        def some(t: Tensor | None) -> Tensor | None:
            return None if t is None else gather_(b, t, chosen)

        weights = gather_(b, self.weights, chosen)
        return Matrices(weights, some(self.bias), some(self.scales), some(self.zero_points), self.bits)

    def dense(self, b: Builder, dtype: DType) -> Tensor:
        """The matrices in ``dtype``."""
        if not self.bits:
            return self.weights
        assert self.scales is not None
        count, n = self.weights.shape[:2]
        codes = unpacked_codes(b, b.contiguous(self.weights), self.bits)
        scales = b.reshape(self.scales, (count, n, self.scales.size // (count * n), 1))
        blocks = scales.shape[2]
        zeros: Tensor | float = float(1 << (self.bits - 1))
        if self.zero_points is not None:
            unpacked = unpacked_codes(b, b.contiguous(self.zero_points), self.bits)
            by_rows = self.zero_points.rank == 2
            whole = unpacked.slice(1, 0, n) if by_rows else unpacked.slice(2, 0, blocks)
            zeros = b.reshape(whole, (count, n, blocks, 1))
        shape = (count, n, blocks, codes.shape[2] // blocks)
        scale, code, zero = b.reads(scales, b.reshape(codes, shape), zeros)
        value = (fn.cast(code, "float") - fn.cast(zero, "float")) * scale
        return b.reshape(b.store(value, dtype, shape=shape), codes.shape)


def _applied(b: Builder, x: Tensor, matrices: Matrices, owners: Tensor | None = None) -> Tensor:
    """Blocks ``x`` [blocks, rows, k] through a matrix each, of expert ``owners[i]`` where that is given: [blocks, rows, n]."""
    bias = matrices.bias
    if owners is None:
        y = matrix_product(b, x, matrices.dense(b, x.dtype).transpose((0, 2, 1)))
    else:
        (blocks, rows, k), (experts, n) = x.shape, matrices.weights.shape[:2]
        packed = _applied_packed(b, x, matrices, owners)
        if packed is None:
            dense = b.contiguous(matrices.dense(b, x.dtype))
            constant = dense.storage.may_be_packed
            packed = b.result(
                GroupedProductProblem(blocks, rows, n, k, experts, x.dtype.name, constant), x, dense, owners
            )
        y = packed
        if bias is not None:
            bias = gathered(b, bias, b.pointwise("min", owners, experts - 1))
    return y if bias is None else b.pointwise("add", y, b.reshape(bias, (bias.shape[0], 1, bias.shape[1])))


def _applied_packed(b: Builder, x: Tensor, matrices: Matrices, owners: Tensor) -> Tensor | None:
    """The product of packed weights; None where no kernel multiplies them packed, so that the caller unpacks them first."""
    if not matrices.bits or matrices.scales is None or matrices.weights.offset % 4:
        return None
    (blocks, rows, k), (experts, n) = x.shape, matrices.weights.shape[:2]
    zeros, block = matrices.zero_points, k // (matrices.scales.size // (experts * n))
    kind = "" if zeros is None else "rows" if zeros.rank == 2 else "blocks"
    problem = GroupedCodesProblem(blocks, rows, n, k, experts, matrices.bits, block, x.dtype.name, kind)
    if no_packed_product(problem):
        return None
    operands = (x, matrices.weights, owners, b.cast(matrices.scales, x.dtype), zeros)
    return b.result(problem, *(b.contiguous(t) for t in operands if t is not None))


def _activated(b: Builder, a: MoEAttributes, y: Tensor, third: Tensor | None) -> Tensor:
    """The activation of the first product [blocks, rows, n], gated by the third matrix's where there is one."""
    if a.activation_type in ("swiglu", "geglu"):
        if third is None:
            y, third = _halves(y, a.swiglu_fusion == 1)
        if a.activation_type == "geglu":
            return b.pointwise("mul", gelu(b, b.contiguous(y), approximate="tanh"), third)
        gate, up = gated_parts(b, y, third, a.activation_alpha, a.activation_beta, a.swiglu_limit)
        return b.store(b.expr("mul", gate, up), y.dtype, shape=y.shape)
    if a.activation_type == "gelu":
        made = gelu(b, y, approximate="tanh")
    else:
        functions: dict[str, Callable[[Expr], Expr]] = {
            "relu": fn.relu,
            "silu": fn.swish,
            "identity": lambda v: v,
            "relu2": lambda v: fn.relu(v) * fn.relu(v),
        }
        made = b.pointwise(functions[a.activation_type], y)
    return made if third is None else b.pointwise("mul", made, third)


def _halves(y: Tensor, interleaved: bool) -> tuple[Tensor, Tensor]:
    half, axis = y.shape[2] // 2, 2
    if interleaved:
        return y.slice(axis, 0, half, 2), y.slice(axis, 1, half, 2)
    return y.slice(axis, 0, half), y.slice(axis, half, half)


def _routed(b: Builder, a: MoEAttributes, router: Tensor, mixing: Tensor | None) -> tuple[Tensor, Tensor]:
    """Of each token the chosen experts (int64 [tokens, k]) and their factors (float32)."""
    tokens, experts = router.shape
    scores = b.cast(router, FLOAT32)
    if mixing is None:
        scores = softmax_over(b, b.contiguous(scores), tokens, experts, 1)
    factors, chosen = top_k_of(b, scores, a.k, 1, 1)
    if mixing is not None:
        factors = elements_at(b, b.cast(mixing, FLOAT32), chosen, 1, "an expert")
    if a.normalize_routing_weights:
        total = reduce_axes(b, "sum", factors, [1], True)
        factors = b.pointwise("div", factors, total)
    return chosen, factors


def mixture(
    b: Builder,
    a: MoEAttributes,
    x: Tensor,
    router: Tensor,
    fc1: Matrices,
    fc2: Matrices,
    fc3: Matrices | None = None,
    mixing: Tensor | None = None,
    block: int = 0,
) -> Tensor:
    """The experts' results, summed by the router's factors. Raises `InvalidNode`, `Decline`."""
    if a.use_sparse_mixer or a.swiglu_limit_after_activation:
        b.decline("a sparse mixer, or a limit after the activation")
    if a.activation_type not in _ACTIVATIONS:
        b.invalid(f"activation_type is {a.activation_type!r}, expected one of {', '.join(_ACTIVATIONS)}")
    if x.rank not in (2, 3) or router.rank != 2 or not x.shape[-1] or not 1 <= a.k <= router.shape[1]:
        b.invalid(f"an input of shape {list(x.shape)}, a router's of {list(router.shape)}, {a.k} experts a token")
    hidden, experts = x.shape[-1], router.shape[1]
    tokens = x.size // hidden
    b.expect("router_probs", router, (tokens, experts))
    b.expect("router_weights", mixing, (tokens, experts))
    fused = 2 if a.activation_type in ("swiglu", "geglu") and a.swiglu_fusion else 1
    if (fused == 2) == (fc3 is not None) and a.activation_type in ("swiglu", "geglu"):
        b.invalid(
            f"{a.activation_type} with swiglu_fusion {a.swiglu_fusion}, {'with' if fc3 else 'without'} a third matrix"
        )
    inner = fc2.weights.size * fc2.pack // (experts * hidden)
    fc1, fc2 = fc1.laid(b, experts, fused * inner, hidden), fc2.laid(b, experts, hidden, inner)
    fc3 = None if fc3 is None else fc3.laid(b, experts, inner, hidden)
    for what, part, n, k in (
        ("fc1", fc1, fused * inner, hidden),
        ("fc2", fc2, hidden, inner),
        ("fc3", fc3, inner, hidden),
    ):
        if part is not None:
            part.check(b, what, experts, n, k, block)
    chosen, factors = _routed(b, a, router, mixing)
    if tokens * a.k <= experts:
        rows = b.reshape(b.cast(chosen, INT32), (tokens * a.k,))
        wide = b.reshape(x, (tokens, 1, 1, hidden)).expand((tokens, a.k, 1, hidden))
        wide = b.reshape(wide, (tokens * a.k, 1, hidden))
        if fc1.bits and is_cpu(
            b.caps
        ):  # its product unpacks as it reads; on a GPU one row leaves most of a tile's lanes idle
            y = _through(b, a, wide, fc1, fc2, fc3, rows)
        else:
            first, second, third = (None if m is None else m.of(b, rows) for m in (fc1, fc2, fc3))
            y = _through(b, a, wide, first, second, third)
        each = b.reshape(y, (tokens, a.k, hidden))
    else:
        groups = GroupRowsProblem(tokens * a.k, experts, block_of(tokens * a.k, experts, b.caps))
        places, sources, owners = (b.empty(DTYPES[made.dtype], made.shape) for made in groups.makes())
        b.compute(groups, [b.contiguous(chosen)], [places, sources, owners])
        token = b.pointwise("div", sources, a.k)
        wide = gathered(b, b.reshape(x, (tokens, hidden)), token)
        y = _through(b, a, wide, fc1, fc2, fc3, owners)
        rows = gathered(b, b.reshape(y, (y.shape[0] * y.shape[1], hidden)), places)
        each = b.reshape(rows, (tokens, a.k, hidden))
    weights = b.reshape(factors, (tokens, a.k, 1))
    parts = b.pointwise(lambda by, v: where(fn.equal(by, 0.0), 0.0, by * v), weights, each, dtype=FLOAT32)
    return b.reshape(b.cast(reduce_axes(b, "sum", parts, [1], False), x.dtype), x.shape)


def _through(
    b: Builder,
    a: MoEAttributes,
    x: Tensor,
    fc1: Matrices | None,
    fc2: Matrices | None,
    fc3: Matrices | None,
    owners: Tensor | None = None,
) -> Tensor:
    assert fc1 is not None and fc2 is not None
    third = None if fc3 is None else _applied(b, x, fc3, owners)
    hidden = b.contiguous(_activated(b, a, _applied(b, x, fc1, owners), third))
    return _applied(b, hidden, fc2, owners)


@operator("MoE", domain=MICROSOFT, types={"x router fc1 fc1_bias fc2 fc2_bias fc3 fc3_bias": FLOATS})
def moe(
    b: Builder,
    x: Tensor,
    router: Tensor,
    fc1: Tensor,
    fc1_bias: Tensor | None,
    fc2: Tensor,
    fc2_bias: Tensor | None = None,
    fc3: Tensor | None = None,
    fc3_bias: Tensor | None = None,
    *,
    a: MoEAttributes,
) -> Tensor:
    third = None if fc3 is None else Matrices(fc3, fc3_bias)
    return mixture(b, a, x, router, Matrices(fc1, fc1_bias), Matrices(fc2, fc2_bias), third)


@dataclass(frozen=True, kw_only=True)
class QMoEAttributes(MoEAttributes):
    """Attributes of QMoE."""

    accuracy_level: int = 0
    block_size: int = 0
    expert_weight_bits: int = 4
    fc1_expert_weight_bits: int | None = None
    fc2_expert_weight_bits: int | None = None
    fc3_expert_weight_bits: int | None = None
    quant_type: str = "int"
    weights_prepacked: int = -1


@operator(
    "QMoE",
    domain=MICROSOFT,
    types={
        "x router fc1_bias fc2_bias fc3_bias router_weights": FLOATS,
        "fc1 fc2 fc3 fc1_zeros fc2_zeros fc3_zeros": ("uint8",),
        "fc1_scales fc2_scales fc3_scales": FLOATS,
    },
)
def qmoe(
    b: Builder,
    x: Tensor,
    router: Tensor,
    fc1: Tensor,
    fc1_scales: Tensor | None,
    fc1_bias: Tensor | None,
    fc2: Tensor,
    fc2_scales: Tensor | None = None,
    fc2_bias: Tensor | None = None,
    fc3: Tensor | None = None,
    fc3_scales: Tensor | None = None,
    fc3_bias: Tensor | None = None,
    fc1_zeros: Tensor | None = None,
    fc2_zeros: Tensor | None = None,
    fc3_zeros: Tensor | None = None,
    router_weights: Tensor | None = None,
    *,
    a: QMoEAttributes,
) -> Tensor:
    if a.quant_type != "int" or a.weights_prepacked == 1:
        b.decline(
            f"weights of quant_type {a.quant_type!r}, prepacked {a.weights_prepacked}; the kernels take plain integers"
        )
    own = (a.fc1_expert_weight_bits, a.fc2_expert_weight_bits, a.fc3_expert_weight_bits)
    widths = [bits or a.expert_weight_bits for bits in own]
    if not set(widths) <= {2, 4, 8}:
        b.decline(f"weights of {widths} bits; the kernels take 2, 4 or 8")
    third = None if fc3 is None else Matrices(fc3, fc3_bias, fc3_scales, fc3_zeros, widths[2])
    first = Matrices(fc1, fc1_bias, fc1_scales, fc1_zeros, widths[0])
    second = Matrices(fc2, fc2_bias, fc2_scales, fc2_zeros, widths[1])
    return mixture(b, a, x, router, first, second, third, router_weights, max(a.block_size, 0))


@operator(
    "MoEGroupRouter", domain=MICROSOFT, types={"logits": SINGLE, "expert_bias": ("float32",), "projection": SINGLE}
)
def moe_group_router(
    b: Builder,
    logits: Tensor,
    expert_bias: Tensor,
    projection: Tensor | None = None,
    *,
    group_topk: int = 2,
    n_group: int = 1,
    router_sentinel: float = -1e4,
    top_k: int,
    topk_group: int = 1,
) -> list[Tensor]:
    """Of each token the best experts of the best groups: the logarithms of their sigmoids, and a number where another is."""
    experts = expert_bias.size
    if projection is not None:
        b.expect("projection_weight", projection, (experts, logits.shape[-1]))
        wide, matrix = b.cast(logits, FLOAT32), b.cast(projection, FLOAT32)
        logits = matrix_product(b, wide, matrix.transpose((1, 0)))
    if not experts or not logits.rank or logits.shape[-1] != experts or n_group < 1 or experts % n_group:
        b.invalid(f"logits of shape {list(logits.shape)} for {experts} experts in {n_group} groups")
    if min(top_k, topk_group, group_topk) < 1 or topk_group > n_group or top_k > experts // n_group * topk_group:
        b.invalid(f"{top_k} experts of {topk_group} groups, of {experts} in {n_group} groups")
    tokens, dtype = logits.size // experts, logits.dtype
    scores = b.pointwise("sigmoid", b.cast(b.reshape(logits, (tokens, experts)), FLOAT32))
    biased = b.pointwise("add", scores, b.reshape(expert_bias, (experts,)))
    if not wants_output(b, 0):
        return outputs(b, None, biased, scores)
    ranked = biased
    if topk_group < n_group:
        each = experts // n_group
        best, _ = top_k_of(b, b.reshape(biased, (tokens, n_group, each)), min(group_topk, each), 2, 1)
        _, groups = top_k_of(b, reduce_axes(b, "sum", best, [2], False), topk_group, 1, 1)
        open_ = scatter_elements_(
            b, b.full((tokens, n_group), 0, FLOAT32), groups, b.full(groups.shape, 1, FLOAT32), 1, "none"
        )
        spread, grouped = b.reshape(open_, (tokens, n_group, 1)), b.reshape(biased, (tokens, n_group, each))
        ranked = b.pointwise(lambda v, is_open: where(fn.equal(is_open, 0.0), -math.inf, v), grouped, spread)
        ranked = b.reshape(ranked, (tokens, experts))
    _, chosen = top_k_of(b, ranked, top_k, 1, 1)
    logarithms = b.pointwise(lambda v: fn.log(fn.maximum(v, 1e-20)), elements_at(b, scores, chosen, 1, "an expert"))
    made = scatter_elements_(b, b.full((tokens, experts), router_sentinel, FLOAT32), chosen, logarithms, 1, "none")
    return outputs(b, b.cast(made, dtype), biased, scores)
