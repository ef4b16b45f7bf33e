"""Finds attention that a model writes as separate operations: a product, scales, masks, a softmax, a product.

Matches lowered operations, in which views, constants, opset differences and identities (Dropout) are resolved. Where q, k or v
are only copied or scaled before their product, the attention reads what they are copies of.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from vkep.ir import expr as ex
from vkep.ir.ops import KernelOp, Op, Pointwise
from vkep.ir.pointwise_ops import storing_op
from vkep.ir.tensor import Tensor
from vkep.kernels.matmul.problem import MatMulProblem
from vkep.kernels.reductions.norm import SoftmaxProblem
from vkep.passes.layout import relaid
from vkep.passes.rewrite import Graph
from vkep.sizes import is_size, matches

#: maximum number of operations between the first product and the softmax; bounds the recursion of the search
MOST_STEPS = 16


@dataclass(frozen=True)
class Masked:
    """``Where``: ``score`` replaces the scores where ``condition`` equals ``when``."""

    condition: Tensor
    when: bool
    score: float


@dataclass(frozen=True)
class _Scaled:
    factor: float


@dataclass(frozen=True)
class Biased:
    """Scores with a bias added."""

    bias: Tensor


@dataclass(frozen=True)
class _Cast:
    """A conversion between types of float, or a copy."""


_Step = Masked | _Scaled | Biased | _Cast


@dataclass
class _Scores:
    """The operations from a product to a softmax's input, in order, each with its meaning."""

    product: KernelOp
    steps: list[tuple[Pointwise, _Step]] = field(default_factory=list)

    @property
    def is_ordered(self) -> bool:
        """Whether scales come first, then masks, then casts."""
        order = [{_Scaled: 0, Masked: 1, Biased: 1, _Cast: 2}[type(step)] for _, step in self.steps]
        return order == sorted(order)


@dataclass
class AttentionMatch:
    """An attention that was matched. q, k, v and out are [batch, heads, length, size]; masks broadcast to [batch,
    heads, queries, keys], in the order in which they are applied."""

    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor
    scale: float
    masks: list[Masked | Biased]
    has_nan_guard: bool  #: whether NaN among the probabilities (of rows that see no key) is replaced by 0
    ops: list[Op]  #: in order, the last product at the end
    #: the only user of the result, if it copies the result to [batch, length, heads, size]
    head_merge: Pointwise | None

    @property
    def replaced(self) -> list[Op]:
        """All operations that attention replaces."""
        return self.ops if self.head_merge is None else [*self.ops, self.head_merge]


def is_row_softmax(op: KernelOp) -> bool:
    """Whether an operation is the softmax of rows along the last axis."""
    problem = op.problem
    if not isinstance(problem, SoftmaxProblem) or problem.log or problem.zeros:
        return False
    return matches(problem.inner, 1) and op.outputs[0].shape[-1:] == (problem.axis,)


def match_attention(last: Op, graph: Graph) -> AttentionMatch | None:
    """The attention that this operation ends; None where it ends none."""
    if not isinstance(last, KernelOp) or not isinstance(last.problem, MatMulProblem):
        return None
    has_nan_guard = False
    after: list[Op] = [last]  # from the last product back to the softmax
    op = _producer(graph, last.inputs[0], last)
    while isinstance(op, Pointwise):
        cast, nan_guard = _cast(op), _nan_guard(op, graph)
        after.append(op)
        if cast is not None:
            op = _producer(graph, cast, op)
        elif nan_guard is not None:
            probabilities, test = nan_guard
            has_nan_guard = True
            after.append(test)
            op = _producer(graph, probabilities, op, test)
        else:
            return None
    if not isinstance(op, KernelOp) or not is_row_softmax(op):
        return None
    softmax, scores = op, _scores(op.inputs[0], op, graph)
    if scores is None or not scores.is_ordered:
        return None
    ops = [scores.product, *(step for step, _ in scores.steps), softmax, *reversed(after)]
    operands = [*((x, scores.product) for x in scores.product.inputs), (last.inputs[1], last)]
    # scores take factors of q and k; the values keep theirs
    read = [_read_of(x, user, graph, scales=user is not last) for x, user in operands]
    as_they_are = [_Read(x, 1.0, []) for x, _ in operands]
    row = softmax.outputs[0].shape[-1]  # operations before and after the softmax may use other shapes of the scores
    shapes = [*(op.out.shape for op, _ in scores.steps), softmax.outputs[0].shape]
    fits = (
        _match_of_shape(shape, scores, given, last, has_nan_guard, ops)
        for given in (read, as_they_are)
        for shape in dict.fromkeys(shapes)
        if shape[-1:] == (row,)
    )
    match = next((match for match in fits if match is not None), None)
    return None if match is None else replace(match, head_merge=_head_merge(match.out, graph))


@dataclass(frozen=True)
class _Read:
    """An operand of a product as ``factor`` times ``tensor``, by operations that only copy and scale."""

    tensor: Tensor
    factor: float
    ops: list[Op]  #: in order


def _read_of(tensor: Tensor, user: Op, graph: Graph, scales: bool) -> _Read:
    """The tensor that an operand of ``user`` is computed from by copies alone, with ``scales`` by copies and factors alone."""
    factor, ops = 1.0, list[Op]()
    while isinstance(op := graph.producer(tensor.storage, user), Pointwise):
        source, number = _copied(op, scales)
        found = relaid(tensor, op.out, source) if source is not None and source.dtype is op.out.dtype else None
        if found is None:
            break
        tensor, user, factor = found, op, factor * number
        ops.insert(0, op)
    return _Read(tensor, factor, ops)


def _copied(op: Pointwise, scales: bool) -> tuple[Tensor | None, float]:
    """The tensor, and the factor, that an operation copies, or with ``scales`` multiplies; None where it does more."""
    for tensor, step in _meanings(op):
        if isinstance(step, _Cast):
            return tensor, 1.0
        if scales and isinstance(step, _Scaled):
            return tensor, step.factor
    return None, 1.0


def _producer(graph: Graph, tensor: Tensor, *users: Op) -> Op | None:
    """As `Graph.producer`, of a tensor that covers its storage."""
    return graph.producer(tensor.storage, *users) if tensor.is_whole else None


def _nan_guard(op: Pointwise, graph: Graph) -> tuple[Tensor, Op] | None:
    """For ``Where(IsNaN(p), 0, p)``: p, and the operation IsNaN."""
    if op.expr.op != "where":
        return None
    test, kept = _tensor(op.expr.args[0]), _tensor(op.expr.args[2])
    if test is None or kept is None or _number(op.expr.args[1]) != 0.0:
        return None
    is_nan = _producer(graph, test, op)
    if not isinstance(is_nan, Pointwise) or is_nan.expr.op != "isnan":
        return None
    tested = _tensor(is_nan.expr.args[0])
    same = tested is not None and tested.storage is kept.storage and tested.is_whole
    return (kept, is_nan) if same else None


def _head_merge(out: Tensor, graph: Graph) -> Pointwise | None:
    """The only user of an attention's result, where it copies the result to [batch, length, heads, size]."""
    users = graph.users(out.storage)
    transposed, op = out.transpose((0, 2, 1, 3)), users[0] if len(users) == 1 else None
    if out.storage in graph.results or not isinstance(op, Pointwise) or not isinstance(op.expr, ex.Leaf):
        return None
    read = op.expr.tensor
    if (
        read is None
        or read.shape != transposed.shape
        or read.offset != transposed.offset
        or op.out.dtype is not out.dtype
    ):
        return None
    strides = zip(read.shape, read.strides, transposed.strides, strict=True)
    return op if all(matches(dim, 1) or matches(one, other) for dim, one, other in strides) else None


def _scores(tensor: Tensor, user: Op, graph: Graph, left: int = MOST_STEPS) -> _Scores | None:
    """The operations from a product to ``tensor``, the input of a softmax, at most ``left`` of them."""
    op = _producer(graph, tensor, user)
    if isinstance(op, KernelOp):
        return _Scores(op) if isinstance(op.problem, MatMulProblem) else None
    if op is not None and left:
        for before, step in _meanings(op):
            scores = _scores(before, op, graph, left - 1)
            if scores is not None:
                scores.steps.append((op, step))
                return scores
    return None


def _meanings(op: Pointwise) -> Iterator[tuple[Tensor, _Step]]:
    """Yield each meaning of an operation between product and softmax: the scores that it reads, and the step."""
    cast = _cast(op)
    if cast is not None:
        yield cast, _Cast()
    name, args = op.expr.op, op.expr.args
    if name in ("add", "mul", "exact_div"):
        for scores, other in ((args[0], args[1]), (args[1], args[0])):
            of, bias, number = _tensor(scores), _tensor(other), _number(other)
            if of is None:
                continue
            if name == "mul" and number is not None:
                yield of, _Scaled(number)
            elif name == "exact_div" and number and scores is args[0]:
                yield of, _Scaled(1.0 / number)
            elif name == "add" and bias is not None and bias.storage is not of.storage:
                yield of, Biased(bias)
    elif name == "where" and (condition := _tensor(args[0])) is not None:
        for scores, other, when in ((args[1], args[2], False), (args[2], args[1], True)):
            of, number = _tensor(scores), _number(other)
            if of is not None and number is not None:
                yield of, Masked(condition, when, number)


def _cast(op: Pointwise) -> Tensor | None:
    """The operand of an operation that only converts between floating-point types, or copies; None for others."""
    inner = op.expr
    if inner.op == storing_op(op.out.dtype) and len(inner.args) == 1:
        inner = inner.args[0]
    if not isinstance(inner, ex.Leaf) or inner.tensor is None:
        return None
    floats = ("float16", "float32")
    return inner.tensor if inner.tensor.dtype.name in floats and op.out.dtype.name in floats else None


def _tensor(arg: ex.Expr) -> Tensor | None:
    return arg.tensor if isinstance(arg, ex.Leaf) else None


def _number(arg: ex.Expr) -> float | None:
    """The value of a constant, or of a constant tensor that is one element broadcast; None for others. A value
    that follows from sizes stays one."""
    if isinstance(arg, ex.Const):
        return arg.value if is_size(arg.value) else float(arg.value)
    tensor = _tensor(arg)
    if tensor is None or any(tensor.strides):
        return None
    array = tensor.view((), ()).array
    return None if array is None else float(array)


def _match_of_shape(
    shape: tuple[int, ...], scores: _Scores, read: list[_Read], last: KernelOp, has_nan_guard: bool, ops: list[Op]
) -> AttentionMatch | None:
    """The attention of ``read`` (q and the transposed k of the first product, v of the second), if ``shape`` is the shape of its
    scores; None where these have no views of that shape."""
    # q [.., queries, size], k [.., size, keys], v [.., keys, size]
    left, right, values = (operand.tensor for operand in read)
    probabilities = last.inputs[0]
    if len(shape) < 2 or math.prod(shape) != scores.product.outputs[0].size or left.dtype is not values.dtype:
        return None
    *lead, queries, keys = shape
    if right.shape[-1] != keys or probabilities.shape[-1] != keys:
        return None
    outer = (math.prod(lead[:-1]), lead[-1]) if lead else (1, 1)
    full = (*outer, queries, keys)
    q, k = left.reshape((*outer, queries, left.shape[-1])), _matrices(right, outer, left.shape[-2] == queries)
    v = _matrices(values, outer, probabilities.shape[-2] == queries)
    out = last.outputs[0].reshape((*outer, queries, values.shape[-1]))
    if q is None or k is None or v is None or out is None:
        return None
    scale = math.prod(operand.factor for operand in read)
    masks: list[Masked | Biased] = []
    for op, step in scores.steps:
        if op.out.size != math.prod(full):
            return None
        if isinstance(step, _Scaled):
            scale *= step.factor
        elif isinstance(step, (Masked, Biased)):
            view = _unbroadcast(step.condition if isinstance(step, Masked) else step.bias, full)
            if view is None:
                return None
            masks.append(replace(step, condition=view) if isinstance(step, Masked) else Biased(view))
    ops = [*(op for operand in read for op in operand.ops), *ops]
    return AttentionMatch(q, k.transpose((0, 1, 3, 2)), v, out, scale, masks, has_nan_guard, ops, None)


def _matrices(y: Tensor, outer: tuple[int, int], rows_of_one: bool) -> Tensor | None:
    """A product's right operand as a matrix for each [batch, heads]; None where no view expresses it.

    ``rows_of_one``: the left operand's rows are the queries of one head. Rows of all heads are possible only where all heads
    share one matrix.
    """
    matrix = y.shape[-2:]
    if matches(math.prod(y.shape[:-2]), 1):
        return y.view(matrix, y.strides[-2:]).expand((*outer, *matrix))
    return y.reshape((*outer, *matrix)) if rows_of_one and math.prod(y.shape[:-2]) == math.prod(outer) else None


def _unbroadcast(view: Tensor, full: tuple[int, ...]) -> Tensor | None:
    """A mask that was broadcast to the scores' shape, with the axes of stride 0 as axes of size 1."""
    mask = view.reshape(full)
    if mask is None:
        return None
    return mask.view([dim if stride else 1 for dim, stride in zip(mask.shape, mask.strides, strict=True)], mask.strides)
