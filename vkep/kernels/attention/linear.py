"""Attention without a softmax, as a recurrence (``shaders/linear_attention.comp``).

Source of the update rules: Yang et al., "Gated Delta Networks", 2024.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from vkep.errors import InvalidNode
from vkep.kernels.kernel import Kernel, KernelCall
from vkep.kernels.launch import element_defines, flat_lanes
from vkep.kernels.problem import Need, Problem
from vkep.kernels.select import Candidate, Emission, implement

#: numbers of a gate for each token
NONE, PER_HEAD, MANY = 0, 1, 2


def _reach(call: KernelCall) -> Mapping[str, int]:
    heads, rows, columns, size = call["heads"], call["key_size"], call["value_size"], call.size_of("IN_T")
    batch = -(-call["total"] // (heads * columns))
    tokens = batch * call["steps"]
    decay = {NONE: 0, PER_HEAD: heads, MANY: heads * rows}[call["DECAY"]]
    beta = {NONE: 0, PER_HEAD: heads, MANY: 1}[call["BETA"]]
    state = 4 * call["total"] * rows
    return {
        "q": tokens * call["q_heads"] * rows * size,
        "k": tokens * call["k_heads"] * rows * size,
        "v": tokens * heads * columns * size,
        "first": state,
        "decay": tokens * decay * size,
        "beta": tokens * beta * size,
        "y": tokens * max(call["q_heads"], heads) * columns * call.size_of("OUT_T"),
        "state": state,
    }


LINEAR_ATTENTION = Kernel(
    "linear_attention.comp", variants=(element_defines("float32"), element_defines("float16")), reach=_reach
)


@dataclass(frozen=True)
class LinearAttentionProblem(Problem):
    """``y`` [batch, steps, max(q_heads, heads) * value_size], and ``state`` (float32 [batch, heads, key_size, value_size]) after
    the last step, from ``q`` [batch, steps, q_heads * key_size], ``k`` [.., k_heads * key_size], ``v`` [.., heads * value_size]
    and the ``first`` state.

    ``decay`` and ``beta`` select the gates: `NONE`, `PER_HEAD`, or `MANY`, which is a number for each row of the state
    (decay) or one for all heads (beta).
    """

    batch: int
    steps: int
    q_heads: int
    k_heads: int
    heads: int
    key_size: int
    value_size: int
    dtype: str
    scale: float
    decay: int = NONE
    beta: int = NONE

    def __post_init__(self) -> None:
        few, many = sorted((self.q_heads, self.heads))
        if few < 1 or many % few or self.k_heads < 1 or self.heads % self.k_heads:
            raise InvalidNode(
                f"{self.q_heads} heads of queries, {self.k_heads} of keys, {self.heads} of values do not share"
            )

    def needs(self) -> tuple[Need, ...]:
        tokens = (self.batch, self.steps)
        decay = {PER_HEAD: self.heads, MANY: self.heads * self.key_size}.get(self.decay)
        beta = {PER_HEAD: self.heads, MANY: 1}.get(self.beta)
        return (
            Need("q", self.dtype, (*tokens, self.q_heads * self.key_size)),
            Need("k", self.dtype, (*tokens, self.k_heads * self.key_size)),
            Need("v", self.dtype, (*tokens, self.heads * self.value_size)),
            Need("first", "float32", self._state),
            *([] if decay is None else [Need("decay", self.dtype, (*tokens, decay))]),
            *([] if beta is None else [Need("beta", self.dtype, (*tokens, beta))]),
        )

    def makes(self) -> tuple[Need, ...]:
        width = max(self.q_heads, self.heads) * self.value_size
        return Need("y", self.dtype, (self.batch, self.steps, width)), Need("state", "float32", self._state)

    @property
    def _state(self) -> tuple[int, ...]:
        return (self.batch, self.heads, self.key_size, self.value_size)

    def reference(
        self,
        q: np.ndarray,
        k: np.ndarray,
        v: np.ndarray,
        first: np.ndarray,
        decay: np.ndarray | None = None,
        beta: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        tokens, heads = (self.batch, self.steps), max(self.q_heads, self.heads)
        q = np.repeat(q.reshape(*tokens, self.q_heads, self.key_size), heads // self.q_heads, axis=2)
        k = np.repeat(k.reshape(*tokens, self.k_heads, self.key_size), self.heads // self.k_heads, axis=2)
        v, state = v.reshape(*tokens, self.heads, self.value_size), first.copy()
        y = np.empty((*tokens, heads, self.value_size))
        for t in range(self.steps):
            if decay is not None:
                state *= np.exp(decay[:, t].reshape(self.batch, self.heads, -1, 1))
            taken = v[:, t]
            if beta is not None:
                known = np.einsum("bhk,bhkv->bhv", k[:, t], state)
                taken = beta[:, t].reshape(self.batch, -1, 1) * (taken - known)
            state += k[:, t, :, :, None] * taken[:, :, None]
            read = np.repeat(state, heads // self.heads, axis=1)
            y[:, t] = self.scale * np.einsum("bhk,bhkv->bhv", q[:, t], read)
        return y.reshape(*tokens, -1), state


def _lane_a_column(problem: LinearAttentionProblem, e: Emission) -> KernelCall:
    total = problem.batch * problem.heads * problem.value_size
    return LINEAR_ATTENTION.call(
        **flat_lanes(e.caps, total),
        operands={name: e.get(name) for name in ("q", "k", "v", "first", "decay", "beta", "y", "state")},
        params={
            "total": total,
            "steps": problem.steps,
            "q_heads": problem.q_heads,
            "k_heads": problem.k_heads,
            "heads": problem.heads,
            "key_size": problem.key_size,
            "value_size": problem.value_size,
            "scale": problem.scale,
        },
        spec={"DECAY": problem.decay, "BETA": problem.beta},
        defines=element_defines(problem.dtype),
        flops=6 * problem.batch * problem.steps * problem.heads * problem.key_size * problem.value_size,
    )


implement(LinearAttentionProblem, Candidate("a lane a column", _lane_a_column))
