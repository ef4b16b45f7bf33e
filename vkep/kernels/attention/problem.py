"""The problem of attention, and what its kernels share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vkep.kernels.attention.kv_codes import CODES, decoded
from vkep.kernels.kernel import KernelCall
from vkep.kernels.launch import ceil_div, element_type
from vkep.kernels.problem import Need, Problem, alignment_of, extent
from vkep.kernels.reference import placed_as, weighted
from vkep.sizes import divides

#: so that sums of positions fit signed 32-bit integers
LARGEST_LENGTH = 1 << 29
LOG2_E = math.log2(math.e)
_TYPES = ("float32", "float16")


@dataclass(frozen=True)
class AttentionProblem(Problem):
    """``y = softmax(softcap(scale * q @ k.T) + bias) @ v`` for q [batch, heads, queries, size], k and v
    [batch, kv heads, keys, size and value size], all of ``dtype`` (float32 or float16, sums in float32).

    Attributes:
        q_strides, k_strides, v_strides: of batch, head and row, in elements; elements of a row are dense.
        y_strides: of head and row; the result is dense as a whole.
        softcap: 0 is none.
        bias_strides: by which the bias (``bias_dtype``: float32 or float16) broadcasts to [batch, heads, queries, keys],
            the last one 1 or 0; None without a bias.
        first, end: query i sees no key before ``i + first`` and none from ``i + end`` on (None: no bound). A row that sees
            no key is zero.
        origin: whether both are counted from a position of each batch, operand ``origin`` (int32 [batch]).
        sink: whether each head has a further score that counts in the softmax alone, operand ``sink`` ([heads]).
        alignment: bytes that divide the addresses of q, k, v and y.
        coding: the type of the keys' and values' elements where they hold codes (`attention.kv_codes`); strides count these.
            Integers and 8-bit floats are divided by the operands ``k_scale`` and ``v_scale`` (float32: one, or where
            ``k_channels`` and ``v_channels`` say so one for each head and feature).

    Raises `ValueError` for what no kernel can address.
    """

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    size: int
    value_size: int
    q_strides: tuple[int, int, int]
    k_strides: tuple[int, int, int]
    v_strides: tuple[int, int, int]
    y_strides: tuple[int, int]
    scale: float
    softcap: float = 0.0
    bias_strides: tuple[int, int, int, int] | None = None
    first: int | None = None
    end: int | None = None
    origin: bool = False
    sink: bool = False
    dtype: str = "float32"
    bias_dtype: str = "float32"
    alignment: int = 1
    coding: str = ""
    k_channels: bool = False
    v_channels: bool = False

    def needs(self) -> tuple[Need, ...]:
        keys = (self.batch, self.kv_heads, self.keys)
        q = Need("q", self.dtype, (self.batch, self.heads, self.queries, self.size), (*self.q_strides, 1))
        held = self.coding or self.dtype
        k = Need("k", held, (*keys, ceil_div(self.size, self.packs)), (*self.k_strides, 1))
        v = Need("v", held, (*keys, ceil_div(self.value_size, self.packs)), (*self.v_strides, 1))
        scores = (self.batch, self.heads, self.queries, self.keys)
        bias = [] if self.bias_strides is None else [Need("bias", self.bias_dtype, scores, self.bias_strides)]
        origin = [Need("origin", "int32", (self.batch,), flat=True)] if self.origin else []
        sink = [Need("sink", self.dtype, (self.heads,), flat=True)] if self.sink else []
        scales = [
            Need("k_scale", "float32", (self.kv_heads * self.size if self.k_channels else 1,)),
            Need("v_scale", "float32", (self.kv_heads * self.value_size if self.v_channels else 1,)),
        ]
        return (q, k, v, *bias, *origin, *sink, *(scales if self.scaled else ()))

    def makes(self) -> tuple[Need, ...]:
        return (Need("y", self.dtype, (self.batch, self.heads, self.queries, self.value_size), flat=True),)

    def placed(self, operands: Mapping[str, Any]) -> AttentionProblem:
        return replace(self, alignment=alignment_of(*(operands[name] for name in "qkvy")))

    @property
    def packs(self) -> int:
        """Numbers that an element of the keys or values holds."""
        return CODES[self.coding][0] if self.coding else 1

    @property
    def scaled(self) -> bool:
        """Whether keys and values are divided by scales."""
        return self.coding not in ("", "bfloat16")

    @property
    def flops(self) -> int:
        """Operations of both products, with every key."""
        return 2 * self.batch * self.heads * self.queries * self.keys * (self.size + self.value_size)

    def __post_init__(self) -> None:
        if self.dtype not in _TYPES or self.bias_dtype not in _TYPES:
            raise ValueError(
                f"attention: element types are {self.dtype!r} and {self.bias_dtype!r} (bias), "
                f"expected of {sorted(_TYPES)}"
            )
        sizes = (self.batch, self.heads, self.kv_heads, self.queries, self.keys, self.size, self.value_size)
        if any(size < 1 for size in sizes) or self.heads % self.kv_heads:
            raise ValueError(f"attention: {self}, expected sizes of 1 and more, and heads that divide into groups")
        too_long = self.queries > LARGEST_LENGTH or self.keys > LARGEST_LENGTH
        if too_long or any(stride < 0 for stride in self._strides):
            raise ValueError(f"attention: {self}, expected lengths up to {LARGEST_LENGTH}, and no negative stride")
        if self.coding and self.coding not in CODES:
            raise ValueError(f"attention: keys and values of {self.coding!r}, expected one of {sorted(CODES)}")
        if self.bias_strides is not None and self.bias_strides[3] > 1:
            raise ValueError(f"attention: a bias with strides {self.bias_strides}, expected dense columns, or one")

    @property
    def _strides(self) -> tuple[int, ...]:
        rows = (*self.q_strides, *self.k_strides, *self.v_strides, *self.y_strides)
        return (*rows, *(self.bias_strides or ()))

    def in_units(self, elements: int) -> bool:
        """Whether all rows consist of whole groups of ``elements`` elements, and are aligned to a group's bytes."""
        kv_strides = [step * self.packs for step in (*self.k_strides, *self.v_strides)]
        counts = (self.size, self.value_size, *self.q_strides, *kv_strides, *self.y_strides)
        unit_bytes = 16 if self.coding else elements * element_type(self.dtype).itemsize
        return self.alignment % unit_bytes == 0 and all(divides(elements, count) for count in counts)

    @property
    def bounds(self) -> tuple[int, int]:
        """``first`` and ``end``, with None replaced by a bound beyond all positions."""
        first = -LARGEST_LENGTH if self.first is None else max(self.first, -LARGEST_LENGTH)
        end = LARGEST_LENGTH if self.end is None else min(self.end, LARGEST_LENGTH)
        return min(first, LARGEST_LENGTH), max(end, -LARGEST_LENGTH)

    def flops_by(self, queries: int, keys: int) -> int:
        """`flops` without the key blocks that known bounds exclude, with ``queries`` and ``keys`` as the block's
        sizes."""
        first, end = (-LARGEST_LENGTH, LARGEST_LENGTH) if self.origin else self.bounds
        blocks = 0
        for start in range(0, self.queries, queries):
            last = min(start + queries, self.queries) - 1
            blocks += max(0, ceil_div(min(self.keys, last + end) - max(0, start + first), keys))
        seen = min(blocks * keys * queries, self.queries * self.keys)
        return 2 * self.batch * self.heads * seen * (self.size + self.value_size)

    def reference(
        self,
        q: np.ndarray,
        k: np.ndarray,
        v: np.ndarray,
        bias: np.ndarray | None = None,
        origin: np.ndarray | None = None,
        sink: np.ndarray | None = None,
        k_scale: np.ndarray | None = None,
        v_scale: np.ndarray | None = None,
    ) -> np.ndarray:
        k, v = decoded(k, self.coding, self.size, k_scale), decoded(v, self.coding, self.value_size, v_scale)
        k, v = (np.repeat(t, self.heads // self.kv_heads, axis=1) for t in (k, v))
        scores = self.scale * (q @ k.swapaxes(2, 3))
        if self.softcap:
            scores = self.softcap * np.tanh(scores / self.softcap)
        if bias is not None:
            # up to it, a bias absorbs the score or hides it
            lowest = -(2.0**15) if self.bias_dtype == "float16" else -2.3e38
            scores = np.where(bias <= lowest, np.where(np.isneginf(bias), -np.inf, lowest), scores + bias)
        distance = np.arange(self.keys) - np.arange(self.queries)[:, None]
        if origin is not None:
            distance = distance - origin.astype(np.int64)[:, None, None, None]
        first, end = self.bounds
        scores = np.where((distance >= first) & (distance < end), scores, -np.inf)
        most = scores.max(axis=3, keepdims=True)
        if sink is not None:
            most = np.maximum(most, sink[:, None, None])
        powers = np.exp(scores - np.where(np.isneginf(most), 0.0, most))
        total = powers.sum(axis=3, keepdims=True)
        if sink is not None:
            total = total + np.exp(sink[:, None, None] - most)
        y = weighted(powers, v) / np.where(total == 0.0, 1.0, total)  # a row without a visible key is zero
        return placed_as(y, (self.heads * self.queries * self.value_size, *self.y_strides, 1))


def attention_params(problem: AttentionProblem) -> dict[str, int | float]:
    """The arguments that restate a problem: strides in numbers. Scores are exponents of two: the factor of the products (or the
    cap of the scores) contains log2(e).
    """
    bias = problem.bias_strides
    kv = [[step * problem.packs for step in of] for of in (problem.k_strides, problem.v_strides)]
    strides = {"q": problem.q_strides, "k": kv[0], "v": kv[1]}
    first, end = problem.bounds
    scale, softcap = problem.scale * LOG2_E, 0.0
    if problem.softcap:
        scale, softcap = problem.scale / problem.softcap, problem.softcap * LOG2_E
    return {
        "queries": problem.queries,
        "keys": problem.keys,
        **{
            f"{name}_{axis}": stride
            for name, of in strides.items()
            for axis, stride in zip(("batch", "head", "row"), of, strict=True)
        },
        "y_head": problem.y_strides[0],
        "y_row": problem.y_strides[1],
        **{f"bias_{axis}": s for axis, s in zip(("batch", "head", "row"), (bias or (0,) * 4)[:3], strict=True)},
        "scale": scale,
        "softcap": softcap,
        "first": first,
        "end": end,
    }


def row_reach(call: KernelCall, name: str, counts: tuple[int, int, int], size: int) -> int:
    """Number of elements that an operand spans with this many batches, heads and rows, each of ``size`` dense elements;
    0 where that is 0."""
    return extent((*counts, size), [*(call[f"{name}_{axis}"] for axis in ("batch", "head", "row")), 1])
