"""ONNX Runtime's recurrences over sequences (domain com.microsoft): LinearAttention.

Semantics: ONNX Runtime, docs/ContribOperators.md.
"""

from __future__ import annotations

from vkep.dtypes import DTYPES
from vkep.ir.builder import Builder
from vkep.ir.tensor import Tensor
from vkep.kernels.linear_attention import MANY, NONE, PER_HEAD, LinearAttentionProblem
from vkep.ops.allowed import SINGLE
from vkep.ops.contrib import MICROSOFT, outputs
from vkep.ops.registry import operator
from vkep.ops.sdpa import default_scale

_FLOAT32 = DTYPES["float32"]
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
        told = {name: list(t.shape) for name, t in parts.items()}
        b.invalid(f"inputs of shape {told} with {q_num_heads} heads of queries and {kv_num_heads} of values")
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
            b.invalid(f"update_rule {update_rule!r} without {name}")
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
    first = b.full(made[1].shape, 0, _FLOAT32) if past_state is None else b.cast(past_state, _FLOAT32)
    given = [*parts.values(), first, *gates]
    if not query.shape[1]:
        b.decline("a sequence of no steps")
    b.compute(problem, [b.contiguous(t) for t in given], made)
    return outputs(b, made[0], b.cast(made[1], query.dtype if past_state is None else past_state.dtype))
