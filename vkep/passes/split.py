"""Splits expressions over more tensors than one kernel can read into several operations."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from vkep.dtypes import DTYPES
from vkep.ir import expr as ex
from vkep.ir.ops import Op, Pointwise
from vkep.ir.tensor import Tensor
from vkep.kernels.kernel import MOST_READ
from vkep.passes.rewrite import Changes, Graph

#: maximum number of tensors that a fused kernel reads (its argument block grows with them), and a part of an expression that
#: is split, so that its producers can be fused into it
MAX_OPERANDS = 12
#: the element type that stores a compute type without rounding, so that a split changes no result
_STORED = {
    "float": DTYPES["float32"],
    "double": DTYPES["float64"],
    "int": DTYPES["int32"],
    "uint": DTYPES["uint32"],
    "int64_t": DTYPES["int64"],
    "uint64_t": DTYPES["uint64"],
    "bool": DTYPES["bool"],
}


def split_wide(op: Op, graph: Graph) -> Changes | None:
    """An expression that reads too many tensors is several operations. Values are computed in the same order: of a sum, each part
    adds to the sum of the part before it."""
    if not isinstance(op, Pointwise) or len(ex.leaves(op.expr)) <= MOST_READ:
        return None
    split = _Split(op)
    return {op: [*split.parts, replace(op, expr=split.expr)]}


class _Split:
    """Splits one operation: ``parts`` are what ``expr``, which replaces its expression, needs before it."""

    def __init__(self, op: Pointwise) -> None:
        self.op = op
        self.parts: list[Op] = []
        #: by a node's id: what it became, and the leaves below that
        self.done: dict[int, tuple[ex.Expr, frozenset[ex.Leaf]]] = {}
        for node in ex.remaining(op.expr, self.done):
            self._fit(node.args)
            made = ex.with_args(node, tuple([self.done[id(a)][0] for a in node.args]))
            read = frozenset([node]) if isinstance(node, ex.Leaf) else self._leaves_of(node.args)
            self.done[id(node)] = made, read
        self.expr = self.done[id(op.expr)][0]

    def _leaves_of(self, args: Iterable[ex.Expr]) -> frozenset[ex.Leaf]:
        return frozenset().union(*[self.done[id(a)][1] for a in args])

    def _fit(self, args: tuple[ex.Expr, ...]) -> None:
        """Store arguments of a node, those that read most first, until they read few enough tensors."""
        while len(self._leaves_of(args)) > MAX_OPERANDS:
            of_parts = [a for a in args if len(self.done[id(a)][1]) > 1 and a.ctype in _STORED]
            if not of_parts:
                return  # a vector type or a single operation: `Kernel.call` refuses it where it is too wide
            widest = max(of_parts, key=lambda a: len(self.done[id(a)][1]))
            made = Tensor.contiguous(_STORED[widest.ctype], self.op.out.shape, label="part of an expression")
            self.parts.append(Pointwise(made, self.done[id(widest)][0], list(self.op.labels)))
            leaf = ex.leaf(made)
            self.done[id(widest)] = leaf, frozenset([leaf])
