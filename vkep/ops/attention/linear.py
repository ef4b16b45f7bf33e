"""ONNX Runtime's recurrences over sequences (domain com.microsoft): LinearAttention, GatedDeltaNet.

Semantics: ONNX Runtime, docs/ContribOperators.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from vkep.dtypes import DTYPES, FLOAT32
from vkep.ir import algebra as fn
from vkep.ir.algebra import where
from vkep.ir.builder import Builder
from vkep.ir.tensor import Tensor
from vkep.kernels.attention.linear import MANY, NONE, PER_HEAD, LinearAttentionProblem
from vkep.ops.allowed import SINGLE
from vkep.ops.attention.sdpa import default_scale
from vkep.ops.gather import gathered
from vkep.ops.generators import positions
from vkep.ops.microsoft import MICROSOFT, outputs
from vkep.ops.packed import Packed
from vkep.ops.reduction import reduce_axes
from vkep.ops.registry import operator

#: which of decay and beta each rule has
_RULES = {"linear": (False, False), "gated": (True, False), "delta": (False, True), "gated_delta": (True, True)}


@operator(
    "LinearAttention",
    domain=MICROSOFT,
    types={"query key value decay beta": SINGLE, "past_state": SINGLE},
    fixed={"state_window": 0},
)
def linear_attention(
    b: Builder,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    past_state: Tensor | None = None,
    decay: Tensor | None = None,
    beta: Tensor | None = None,
    *,
    chunk_size: int = 64,
    kv_num_heads: int,
    q_num_heads: int,
    scale: float = 0.0,
    update_rule: str = "gated_delta",
) -> list[Tensor]:
    if update_rule not in _RULES:
        b.invalid(f"update_rule is {update_rule!r}, expected one of {', '.join(_RULES)}")
    parts = {"query": query, "key": key, "value": value}
    if any(t.rank != 3 or t.shape[:2] != query.shape[:2] for t in parts.values()) or min(q_num_heads, kv_num_heads) < 1:
        shapes = {name: list(t.shape) for name, t in parts.items()}
        b.invalid(
            f"inputs of shape {shapes} with {q_num_heads} heads of queries and {kv_num_heads} of values; "
            "expected [batch, length, features]"
        )
    size = query.shape[2] // q_num_heads
    if not size or query.shape[2] % q_num_heads or value.shape[2] % kv_num_heads or key.shape[2] % size:
        b.invalid(f"features {query.shape[2]}, {key.shape[2]} and {value.shape[2]} do not divide into heads")
    kinds, gates = [], []
    for name, wanted, tensor, many in zip(
        ("decay", "beta"), _RULES[update_rule], (decay, beta), (kv_num_heads * size, 1), strict=True
    ):
        if not wanted:
            kinds.append(NONE)
            continue
        if tensor is None:
            b.invalid(f"{name} is missing, which update_rule {update_rule!r} needs")
        b.expect(name, tensor, (*query.shape[:2], kv_num_heads), (*query.shape[:2], many))
        kinds.append(PER_HEAD if tensor.shape[2] == kv_num_heads else MANY)
        gates.append(tensor)
    problem = LinearAttentionProblem(
        query.shape[0],
        query.shape[1],
        q_num_heads,
        key.shape[2] // size,
        kv_num_heads,
        size,
        value.shape[2] // kv_num_heads,
        query.dtype.name,
        scale or default_scale(size),
        *kinds,
    )
    made = [b.empty(DTYPES[need.dtype], need.shape) for need in problem.makes()]
    b.expect("past_state", past_state, made[1].shape)
    first = b.full(made[1].shape, 0, FLOAT32) if past_state is None else b.cast(past_state, FLOAT32)
    given = [*parts.values(), first, *gates]
    if not query.shape[1]:
        b.decline("a sequence of no steps")
    b.compute(problem, [b.contiguous(t) for t in given], made)
    return outputs(b, made[0], b.cast(made[1], query.dtype if past_state is None else past_state.dtype))


@dataclass(frozen=True, kw_only=True)
class GatedDeltaAttributes:
    """Of GatedDeltaNet."""

    beta_activation: str = "none"
    chunk_size: int = 64
    gate_activation: str = "none"
    gate_lower_bound: float = -5.0
    qk_l2_norm: int = 0
    scale: float = 0.0
    state_update_capacity: int = 0
    update_rule: str = "gated_delta"


@operator(
    "GatedDeltaNet",
    domain=MICROSOFT,
    types={
        "query key value": SINGLE,
        "decay beta": SINGLE,
        "first a_log dt_bias": ("float32",),
        "starts capture_count active": ("int32",),
    },
)
def gated_delta_net(
    b: Builder,
    query: Tensor,
    key: Tensor | None = None,
    value: Tensor | None = None,
    starts: Tensor | None = None,
    decay: Tensor | None = None,
    beta: Tensor | None = None,
    first: Tensor | None = None,
    a_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    capture_count: Tensor | None = None,
    active: Tensor | None = None,
    *,
    a: GatedDeltaAttributes,
) -> list[Tensor]:
    """`linear_attention` with its gates' activations, of sequences [tokens, heads, size] of one length, or of those between
    ``starts``. It computes in float32; states [batch, heads, value size, key size].
    """
    if a.update_rule not in _RULES:
        b.invalid(f"update_rule is {a.update_rule!r}, expected one of {', '.join(_RULES)}")
    if a.state_update_capacity:
        b.decline("compact updates of the state")
    lead, q, k, v = _token_heads(b, query, key, value, first)
    tokens, heads, size = math.prod(lead), v.shape[1], q.shape[2]
    batch = (
        starts.size - 1
        if starts is not None
        else lead[0]
        if len(lead) == 2
        else first.shape[0]
        if first is not None
        else 0
    )
    if batch < 1 or not tokens or (starts is None and tokens % batch) or (starts is not None and len(lead) == 2):
        b.invalid(f"{tokens} tokens in {batch} sequences; running sums, a state or two leading axes say how many")
    b.expect("initial_state", first, (batch, heads, v.shape[2], size))
    if a.qk_l2_norm:
        q, k = (_unit_rows(b, t) for t in (q, k))
    wants_decay, wants_beta = _RULES[a.update_rule]
    gates = []
    if wants_decay:
        if decay is None:
            b.invalid(f"decay is missing, which update_rule {a.update_rule!r} needs")
        gates.append(_decay(b, a, decay, a_log, dt_bias, lead, heads, size))
    if wants_beta:
        if beta is None:
            b.invalid(f"beta is missing, which update_rule {a.update_rule!r} needs")
        b.expect("beta", beta, (*lead, heads))
        rate = b.cast(b.reshape(beta, (tokens, heads)), FLOAT32)
        gates.append(b.pointwise("sigmoid", rate) if a.beta_activation == "sigmoid" else rate)
    given = [b.reshape(t, (tokens, t.size // tokens)) for t in (q, k, v, *gates)]
    packed = None if starts is None else Packed.of(b, starts, tokens)
    if packed is None:
        steps = tokens // batch
        padded = [b.reshape(t, (batch, steps, t.shape[1])) for t in given]
    else:  # tokens beyond a sequence's end change nothing
        steps = tokens
        padded = [_padded(b, packed, t) for t in given]
    kinds = [NONE, NONE]
    if wants_decay:
        kinds[0] = PER_HEAD if gates[0].size == tokens * heads else MANY
    if wants_beta:
        kinds[1] = PER_HEAD
    problem = LinearAttentionProblem(
        *(batch, steps, q.shape[1], k.shape[1], heads, size, v.shape[2], "float32", a.scale or default_scale(size)),
        *kinds,
    )
    made = [b.empty(DTYPES[need.dtype], need.shape) for need in problem.makes()]
    state = b.full(made[1].shape, 0, FLOAT32) if first is None else first.transpose((0, 1, 3, 2))
    b.compute(problem, [b.contiguous(t) for t in (*padded[:3], state, *padded[3:])], made)
    y = b.reshape(made[0], (batch * steps, made[0].shape[2]))
    if packed is not None:
        at = b.pointwise(lambda owner, place, each: owner * each + place, packed.owner, packed.place, steps)
        y = gathered(b, y, at)
    out = b.cast(b.reshape(y, (*lead, max(q.shape[1], heads), v.shape[2])), query.dtype)
    return outputs(b, out, made[1].transpose((0, 1, 3, 2)))


def _token_heads(
    b: Builder, query: Tensor, key: Tensor | None, value: Tensor | None, first: Tensor | None
) -> tuple[tuple[int, ...], Tensor, Tensor, Tensor]:
    """The leading axes (tokens, or batch and length), and float32 queries, keys and values [tokens, heads, size]."""
    if key is None or value is None:
        if key is not None or value is not None or first is None or first.rank != 4 or query.rank not in (2, 3):
            b.invalid(f"queries of shape {list(query.shape)}; packed with keys and values they want an initial state")
        lead, (_, heads, wide, size) = query.shape[:-1], first.shape
        keys = query.shape[-1] - heads * wide
        if not size or keys < 2 * size or keys % (2 * size):
            b.invalid(f"{query.shape[-1]} features do not divide into heads of {size}, and {heads} of {wide}")
        flat = b.cast(b.reshape(query, (math.prod(lead), query.shape[-1])), FLOAT32)
        half = keys // 2
        parts = [(0, half, size), (half, half, size), (keys, heads * wide, wide)]
        q, k, v = (
            b.reshape(flat.slice(1, at, count), (flat.shape[0], count // each, each)) for at, count, each in parts
        )
        return lead, q, k, v
    if query.rank not in (3, 4) or any(t.rank != query.rank or t.shape[:-2] != query.shape[:-2] for t in (key, value)):
        b.invalid(
            f"queries of shape {list(query.shape)}, keys of {list(key.shape)}, values of {list(value.shape)}; "
            "expected 3 or 4 axes that differ in the last two alone"
        )
    lead = query.shape[:-2]
    q, k, v = (b.cast(b.reshape(t, (math.prod(lead), *t.shape[-2:])), FLOAT32) for t in (query, key, value))
    b.expect("key", k, q.shape)
    return lead, q, k, v


def _unit_rows(b: Builder, x: Tensor) -> Tensor:
    total = reduce_axes(b, "sumsq", x, [2], keepdims=True)
    return b.pointwise(lambda v, squares: v * fn.inversesqrt(squares + 1e-6), x, total)


def _decay(
    b: Builder,
    a: GatedDeltaAttributes,
    decay: Tensor,
    a_log: Tensor | None,
    dt_bias: Tensor | None,
    lead: tuple[int, ...],
    heads: int,
    size: int,
) -> Tensor:
    """Logarithms of the decay, [tokens, heads] or [tokens, heads, size]."""
    b.expect("decay", decay, (*lead, heads), (*lead, heads, size))
    shape = (math.prod(lead), *decay.shape[len(lead) :])
    raw = b.cast(b.reshape(decay, shape), FLOAT32)
    if a.gate_activation == "none":
        return raw
    if a.gate_activation not in ("softplus", "qwen", "sigmoid", "kda") or a_log is None:
        b.invalid(f"gate_activation is {a.gate_activation!r}, {'without' if a_log is None else 'with'} a_log; "
                  "expected none, or softplus, qwen, sigmoid or kda with a_log")  # fmt: skip
    b.expect("a_log", a_log, (heads,))
    b.expect("dt_bias", dt_bias, (heads,), (heads, size), (heads * size,))
    wide = (heads, 1) if len(shape) == 3 else (heads,)
    total, rate, least = b.reads(raw, b.reshape(a_log, wide), a.gate_lower_bound)
    if dt_bias is not None:
        total = total + b.reads(b.reshape(dt_bias, wide if dt_bias.size == heads else (heads, size)))[0]
    if a.gate_activation in ("softplus", "qwen"):
        made = -fn.exp(rate) * fn.softplus(total)
    else:
        made = least * fn.sigmoid(fn.exp(rate) * total)
    return b.store(made, FLOAT32, shape=shape)


def _padded(b: Builder, packed: Packed, x: Tensor) -> Tensor:
    """[tokens, width] as [batch, tokens, width], with zeros behind a sequence's end."""
    shape = (packed.batch, packed.tokens)
    each, step = b.reshape(positions(b, packed.batch), (packed.batch, 1)), positions(b, packed.tokens)
    length = b.reshape(packed.lengths, (packed.batch, 1))
    inside = b.expr("min", step, length)
    rows = packed.rows(b, x, each, inside, 0, shape)
    wide, ends = b.reshape(step, (packed.tokens, 1)), b.reshape(length, (packed.batch, 1, 1))
    return b.pointwise(lambda v, at, end: where(at < end, v, 0.0), rows, wide, ends, dtype=FLOAT32, shape=rows.shape)
