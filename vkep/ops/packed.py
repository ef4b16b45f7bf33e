"""Concatenated sequences in one tensor, without padding: the position of each of a batch's tokens."""

from __future__ import annotations

from dataclasses import dataclass

from vkep.dtypes import INT32
from vkep.ir import algebra as fn
from vkep.ir.algebra import where
from vkep.ir.builder import Builder, Operand
from vkep.ir.tensor import Tensor
from vkep.ops.gather import gathered
from vkep.ops.generators import positions
from vkep.ops.movement import concat
from vkep.ops.reduction import reduce_axes


@dataclass(frozen=True)
class Packed:
    """``tokens`` tokens of ``batch`` sequences: sequence i has those from ``starts[i]`` to ``starts[i + 1]``.

    ``owner`` and ``place`` (int32 [tokens]) are each token's sequence, and its position in that; ``lengths`` int32 [batch].
    """

    tokens: int
    batch: int
    starts: Tensor
    owner: Tensor
    place: Tensor
    lengths: Tensor

    @classmethod
    def of(cls, b: Builder, starts: Tensor, tokens: int) -> Packed:
        """From running sums of lengths (int32 [batch + 1]). Raises `InvalidNode` for another shape, and a run with a sum that is
        out of range `InvalidInputError`.
        """
        if starts.rank != 1 or starts.size < 2 or starts.dtype is not INT32:
            b.invalid(f"running sums of lengths are {starts.dtype} {list(starts.shape)}, expected int32 [batch + 1]")
        b.expect_range("a sum of lengths", starts, 0, tokens)
        batch = starts.size - 1
        ends = starts.slice(0, 1, batch)
        token = b.reshape(positions(b, tokens), (tokens, 1))
        before = b.store(fn.cast(b.expr("ge", token, ends), "int"), INT32, shape=(tokens, batch))
        count = reduce_axes(b, "sum", before, [1], keepdims=False)
        owner = b.pointwise("min", count, batch - 1)
        place = b.pointwise("sub", positions(b, tokens), gathered(b, starts, owner))
        lengths = b.pointwise("sub", ends, starts.slice(0, 0, batch))
        return cls(tokens, batch, starts, owner, place, lengths)

    def rows(
        self, b: Builder, table: Tensor, owner: Operand, place: Operand, history: int, shape: tuple[int, ...]
    ) -> Tensor:
        """Of `with_history`'s table the rows of sequences ``owner`` at positions ``place``, in the broadcast ``shape`` of both;
        those below 0 are of the ``history`` tokens before the sequence.
        """
        start = gathered(b, self.starts, b.store(b.expr("same", owner), INT32, shape=shape))
        first, of, step = b.reads(start, owner, place)
        at = where(step < 0, self.tokens + (of + 1) * history + step, first + step)
        inside = b.expr("clamp", at, 0, max(table.shape[0] - 1, 0))
        return gathered(b, table, b.store(inside, INT32, shape=shape))


def with_history(b: Builder, rows: Tensor, history: Tensor) -> Tensor:
    """The tokens' rows [tokens, ...] and behind them each sequence's earlier ones [batch, history, ...], in one table."""
    if not history.size:
        return rows
    return concat(b, rows, b.reshape(history, (history.shape[0] * history.shape[1], *history.shape[2:])), axis=0)
