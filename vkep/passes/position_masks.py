"""What a mask of attention says of positions: a mask that a model computes is traced to comparisons of positions, and to booleans
of which nothing is known. Its value for each combination of their answers says which of them a key that is seen must meet.

So no pattern of operators is looked for: masks by Where, And, sums and products of floats have one form here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vkep.ir import expr as ex
from vkep.ir.evaluate import evaluate
from vkep.ir.ops import Pointwise
from vkep.ir.pointwise_ops import storing_op
from vkep.ir.tensor import Tensor
from vkep.kernels.attention.problem import LARGEST_LENGTH
from vkep.kernels.problem import NoReference
from vkep.passes.layout import relaid
from vkep.passes.rewrite import Graph
from vkep.sizes import is_size, matches

#: most tensors that a mask is traced through, one after another and in all, and most booleans whose combinations are tried
_MOST_STEPS, _MOST_TENSORS, _MOST_ANSWERS = 24, 96, 8
_SIGNED = {"int": 1 << 30, "int64_t": 1 << 62}
_TURNED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq", "ne": "ne"}


@dataclass(frozen=True)
class Rule:
    """Of a bias that is ``score`` where it hides a key, else 0. Query i sees no key before ``i + first`` for each of ``firsts``
    or from ``i + end`` on for each of ``ends``, and none for which ``others`` (bool, [batch, heads, queries, keys]) do not all
    hold. ``is_all``: it sees all other keys."""

    score: float
    firsts: tuple[int, ...]
    ends: tuple[int, ...]
    others: tuple[ex.Expr, ...]
    is_all: bool

    @property
    def by_key(self) -> bool:
        """Whether ``others`` are the same for all queries."""
        read = [t for other in self.others for t in ex.tensors(other)]
        return all(matches(t.strides[2], 0) or matches(t.shape[2], 1) for t in read)


def rule_of(mask: ex.Expr, graph: Graph) -> Rule | None:
    """The rule of a bias whose leaves are [batch, heads, queries, keys] or have axes of size 1; None where it has more values."""
    traced = _Trace(graph).answers(_Inlined(graph).of(mask))
    if traced is None:
        return None
    questions = ex.leaves(traced[0])
    if len(questions) > _MOST_ANSWERS:
        return None
    combinations = np.indices((2,) * len(questions)) == 1
    answers = dict(zip(questions, combinations, strict=True))
    try:
        values = evaluate(traced[0], lambda leaf: answers[leaf])
    except NoReference:
        return None
    values = np.broadcast_to(values, combinations.shape[1:])
    seen, scores = values == 0, np.unique(values[values != 0])
    if len(scores) != 1 or not scores[0] < 0 or not seen.any():
        return None
    firsts, ends, others = list[int](), list[int](), list[ex.Expr]()
    required = 0
    for axis, question in enumerate(questions):
        meaning = traced[1][question]
        without, with_ = (bool(seen.take(answer, axis).any()) for answer in (0, 1))
        if without and with_:
            continue
        required += 1
        if isinstance(meaning, ex.Expr):
            others.append(meaning if with_ else ex.apply("not", meaning))
        elif with_:
            ends.append(meaning)
        else:
            firsts.append(meaning)
    is_all = int(seen.sum()) << required == seen.size
    return Rule(float(scores[0]), tuple(firsts), tuple(ends), tuple(others), is_all)


class _Inlined:
    """Expressions in which leaves are replaced by what pointwise operations compute them by."""

    def __init__(self, graph: Graph) -> None:
        self._graph, self._found = graph, dict[Tensor, ex.Expr]()

    def of(self, expr: ex.Expr, left: int = _MOST_STEPS) -> ex.Expr:
        return ex.substitute(expr, lambda leaf: self._leaf(leaf.tensor, left) if leaf.tensor is not None else None)

    def _leaf(self, view: Tensor, left: int) -> ex.Expr:
        if view not in self._found:
            computed = self._computed(view, left)
            self._found[view] = ex.leaf(view) if computed is None else computed
        return self._found[view]

    def _computed(self, view: Tensor, left: int) -> ex.Expr | None:
        if view.storage.weight is not None:
            return _number(view)
        producers = self._graph.producers(view.storage)
        if not left or len(self._found) > _MOST_TENSORS or view.storage.port is not None or len(producers) != 1:
            return None
        [op] = producers
        if not isinstance(op, Pointwise) or not op.out.is_whole or ex.is_checked(op.expr):
            return None
        moved = {x: relaid(view, op.out, x.tensor) for x in ex.leaves(op.expr) if x.tensor is not None}
        if any(x is None for x in moved.values()):
            return None
        inner = self.of(
            ex.substitute(op.expr, lambda x: ex.leaf(t) if (t := moved.get(x)) is not None else None), left - 1
        )
        kind, stored = op.out.dtype.glsl_compute, storing_op(op.out.dtype)
        inner = inner if inner.ctype == kind else ex.Expr(kind, "cast", (inner,))
        return inner if stored == "same" else ex.Expr(kind, stored, (inner,))


def _number(view: Tensor) -> ex.Expr | None:
    """One element of a constant that is broadcast, which may be a size; None for others."""
    if not all(matches(stride, 0) or matches(dim, 1) for dim, stride in zip(view.shape, view.strides, strict=True)):
        return None
    array = view.view((), ()).array
    if array is None or view.dtype.glsl_compute not in ("float", "bool", *_SIGNED):
        return None
    value = array.item()
    return (
        ex.Const(view.dtype.glsl_compute, value=value) if is_size(value) else ex.literal(value, view.dtype.glsl_compute)
    )


@dataclass(frozen=True)
class _Place:
    """``query * (its index) + key * (its index) + constant``; the constant may be a size."""

    query: int
    key: int
    constant: int

    def plus(self, other: _Place) -> _Place:
        return _Place(self.query + other.query, self.key + other.key, self.constant + other.constant)

    def times(self, factor: int) -> _Place:
        return _Place(factor * self.query, factor * self.key, factor * self.constant)


class _Trace:
    """Expressions as functions of answers: leaves without a tensor, each of which stands for a boolean (an expression), or for
    whether a key is less than so many places after a query (a number)."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._places: dict[int, _Place | None] = {}
        self._made: dict[int, ex.Expr | None] = {}
        self._nearer: dict[int, ex.Leaf] = {}  # by the number
        self._meanings: dict[ex.Leaf, int | ex.Expr] = {}

    def answers(self, expr: ex.Expr) -> tuple[ex.Expr, dict[ex.Leaf, int | ex.Expr]] | None:
        """A bias as such a function, and the meanings of its leaves; None where it depends on other numbers."""
        for node in ex.remaining(expr, self._made):
            self._places[id(node)] = self._place(node)
            self._made[id(node)] = self._answer(node)
        found = self._made[id(expr)]
        return None if found is None else (found, self._meanings)

    def _answer(self, node: ex.Expr) -> ex.Expr | None:
        if isinstance(node, ex.Const):
            return None if is_size(node.value) else node
        if isinstance(node, ex.Leaf):
            known = self._of_constant(node)
            return known if known is not None or node.ctype != "bool" else self._unknown(node)
        if node.op in _TURNED:
            left, right = (self._places[id(a)] for a in node.args)
            found = self._compared(node.op, left, right) if left is not None and right is not None else None
            if found is not None:
                return found
        made = [self._made[id(a)] for a in node.args]
        known_parts = [a for a in made if a is not None]
        if len(known_parts) == len(made):
            return ex.with_args(node, tuple(known_parts))
        return self._unknown(node) if node.ctype == "bool" else None

    def _unknown(self, node: ex.Expr) -> ex.Leaf:
        leaf = ex.Leaf("bool")
        self._meanings[leaf] = node
        return leaf

    def _is_nearer(self, end: int) -> ex.Leaf:
        if end not in self._nearer:
            self._nearer[end] = leaf = ex.Leaf("bool")
            self._meanings[leaf] = end if is_size(end) else max(-LARGEST_LENGTH, min(end, LARGEST_LENGTH))
        return self._nearer[end]

    def _of_constant(self, leaf: ex.Leaf) -> ex.Expr | None:
        """A constant mask of queries and keys that is a window; None for others."""
        array = None if leaf.tensor is None or 1 in leaf.tensor.shape[2:] else leaf.tensor.array
        if array is None or array.ndim != 4 or array.shape[:2] != (1, 1) or leaf.ctype not in ("bool", "float"):
            return None
        seen, other = array[0, 0], 0.0
        if leaf.ctype == "float":
            seen, other = seen == 0, float(seen.min())
            if not (seen | (array[0, 0] == other)).all():
                return None
        for shown in (seen, ~seen):
            if (window := _window(shown)) is not None:
                within = ex.apply("and", self._is_nearer(window[1]), ex.apply("not", self._is_nearer(window[0])))
                truth = within if shown is seen else ex.apply("not", within)
                return truth if leaf.ctype == "bool" else ex.apply("where", truth, 0.0, other, ctype="float")
        return None

    def _compared(self, op: str, left: _Place, right: _Place) -> ex.Expr | None:
        """A comparison of positions by the distance of key and query."""
        apart = left.plus(right.times(-1))
        if apart.key == -1:
            op, apart = _TURNED[op], apart.times(-1)
        if (apart.query, apart.key) != (-1, 1):
            return None
        less, at_most = self._is_nearer(-apart.constant), self._is_nearer(1 - apart.constant)
        not_less, more = ex.apply("not", less), ex.apply("not", at_most)
        both = ex.apply("and", at_most, not_less)
        return {"lt": less, "le": at_most, "gt": more, "ge": not_less, "eq": both, "ne": ex.apply("not", both)}[op]

    def _place(self, node: ex.Expr) -> _Place | None:
        found = self._place_of(node) if node.ctype in _SIGNED else None
        if found is None or is_size(found.query) or is_size(found.key):
            return None
        return found if is_size(found.constant) or abs(found.constant) < _SIGNED[node.ctype] else None

    def _place_of(self, node: ex.Expr) -> _Place | None:
        if isinstance(node, ex.Const):
            return _Place(0, 0, node.value)  # type: ignore[arg-type]  # an integer, by its type
        if isinstance(node, ex.Leaf):
            return _of_positions(node.tensor) if node.tensor is not None else None
        places = [self._places[id(a)] for a in node.args]
        known = [p for p in places if p is not None]
        if len(known) != len(places):
            return None
        match node.op, known:
            case "same" | "cast", [x]:
                return x
            case "neg", [x]:
                return x.times(-1)
            case "add", [x, y]:
                return x.plus(y)
            case "sub", [x, y]:
                return x.plus(y.times(-1))
            case "mul", [x, y]:
                return _times(x, y)
            case "mul_add", [x, y, z]:
                product = _times(x, y)
                return product.plus(z) if product is not None else None
        return None


def _times(x: _Place, y: _Place) -> _Place | None:
    for place, factor in ((x, y), (y, x)):
        if factor.query == factor.key == 0:
            return place.times(factor.constant)
    return None


def _of_positions(view: Tensor) -> _Place | None:
    """An element of a constant whose elements have one step (0, 1, 2, ...)."""
    if view.rank != 4 or view.storage.weight is None:
        return None
    if not all(matches(s, 0) or matches(d, 1) for d, s in zip(view.shape[:2], view.strides[:2], strict=True)):
        return None
    values = view.storage.weight.array().reshape(-1)
    if values.dtype.kind != "i" or not values.size:
        return None
    steps = np.unique(np.diff(values))
    if len(steps) > 1:
        return None
    step, first = int(steps[0]) if len(steps) else 0, int(values[0])
    query, key = (0 if matches(d, 1) else s for d, s in zip(view.shape[2:], view.strides[2:], strict=True))
    return _Place(step * query, step * key, first + step * view.offset)


def _window(seen: np.ndarray) -> tuple[int, int] | None:
    """``first`` and ``end`` of a mask [queries, keys], if each query sees those within these distances, at least one."""
    if not seen.any(1).all():
        return None
    (count, keys), starts, ends = seen.shape, seen.argmax(1), seen.shape[1] - seen[:, ::-1].argmax(1)
    queries = np.arange(count)
    first, end = int((starts - queries).min()), int((ends - queries).max())
    at_once = seen.sum(1) == ends - starts
    whole = at_once & (starts == (queries + first).clip(0)) & (ends == (queries + end).clip(None, keys))
    return (first, end) if whole.all() else None
