"""Reductions over axes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from vkep.dtypes import BOOL, DTYPES, FLOAT32, INT64
from vkep.ir import algebra as fn
from vkep.ir.algebra import where
from vkep.ir.builder import Builder
from vkep.ir.expr import Expr
from vkep.ir.tensor import Tensor
from vkep.kernels.reductions.argreduce import ArgReduceProblem
from vkep.kernels.reductions.cumsum import ScanProblem
from vkep.kernels.reductions.reduce import ReduceProblem
from vkep.kernels.reductions.topk import TopKProblem
from vkep.ops.allowed import ARITHMETIC, FLOATING, every
from vkep.ops.generators import positions
from vkep.ops.microsoft import MICROSOFT
from vkep.ops.registry import INDICES, operator
from vkep.sizes import whole


def middle(b: Builder, x: Tensor, axes: Sequence[int]) -> tuple[Tensor, tuple[int, int, int]]:
    """``x`` as [outer, axis, inner] with ``axes`` in the middle: the dense tensor and the sizes."""
    axes = sorted(axes)
    if axes and axes != list(range(axes[0], axes[-1] + 1)):  # not adjacent: move them to the end
        kept = [i for i in range(x.rank) if i not in axes]
        x = x.transpose([*kept, *axes])
        axes = list(range(len(kept), x.rank))
    first, last = (axes[0], axes[-1]) if axes else (x.rank, x.rank - 1)
    outer, inner = math.prod(x.shape[:first]), math.prod(x.shape[last + 1 :])
    return b.contiguous(x), (outer, math.prod(x.shape[first : last + 1]), inner)


def reduce_axes(b: Builder, op: str, x: Tensor, axes: Sequence[int], keepdims: bool) -> Tensor:
    """Reduce ``axes`` (counted from the front)."""
    if op == "mean" and x.dtype.kind in ("int", "uint"):
        return _whole_mean(b, x, axes, keepdims)
    shape = [1 if i in axes else d for i, d in enumerate(x.shape)]
    dense, sizes = middle(b, x, axes)
    out = b.result(ReduceProblem(*sizes, x.dtype.name, op), dense, shape=shape)
    return out if keepdims else b.reshape(out, [d for i, d in enumerate(x.shape) if i not in axes])


def _whole_mean(b: Builder, x: Tensor, axes: Sequence[int], keepdims: bool) -> Tensor:
    """The mean of integers, truncated towards 0, whose sum may overflow 64 bits: each is divided by their number, and
    the remainders are summed separately. (This assumes that the square of the number of elements fits 64 bits.)"""
    kind = DTYPES["uint64" if x.dtype.name == "uint64" else "int64"]
    wide, count = b.cast(x, kind), math.prod(x.shape[a] for a in axes)
    whole = reduce_axes(b, "sum", b.pointwise("div", wide, count), axes, keepdims)
    left = reduce_axes(b, "sum", b.pointwise(_remainder, wide, count), axes, keepdims)
    return b.cast(b.pointwise(_whole_quotient, whole, left, count), x.dtype)


def _remainder(x: Expr, count: Expr) -> Expr:
    return x - x / count * count


def _whole_quotient(whole: Expr, left: Expr, count: Expr) -> Expr:
    """The mean, of the sums of the quotients and of the remainders by ``count``, which may have different signs."""
    mean = whole + left / count
    if whole.ctype == "uint64_t":
        return mean
    rest = _remainder(left, count)
    return where((mean > 0) & (rest < 0), mean - 1, where((mean < 0) & (rest > 0), mean + 1, mean))


def _double_log_sum(b: Builder, x: Tensor, axes: Sequence[int], keepdims: bool, of_exp: bool) -> Tensor:
    """The logarithm of a sum (of exponentials, relative to the maximum) of float64, in steps that GLSL supports."""
    if not of_exp:
        return b.pointwise("log", reduce_axes(b, "sum", x, axes, keepdims))
    most = reduce_axes(b, "max", x, axes, keepdims=True)
    level = b.pointwise(lambda v: where(fn.isinf(v), 0.0, v), most)
    total = reduce_axes(b, "sum", b.pointwise("exp", b.pointwise("sub", x, level)), axes, keepdims=True)
    made = b.pointwise("add", b.pointwise("log", total), level)
    return made if keepdims else b.reshape(made, [d for i, d in enumerate(x.shape) if i not in axes])


#: operations and element types; others use ONNX's function body, if there is one
_REDUCTIONS = {
    "ReduceSum": ("sum", ARITHMETIC),
    "ReduceMean": ("mean", ARITHMETIC),
    "ReduceMax": ("max", (*ARITHMETIC, "bool")),
    "ReduceMin": ("min", (*ARITHMETIC, "bool")),
    "ReduceProd": ("prod", ARITHMETIC),
    "ReduceSumSquare": ("sumsq", ARITHMETIC),
    "ReduceL1": ("l1", ARITHMETIC),
    "ReduceL2": ("l2", ARITHMETIC),
    "ReduceLogSum": ("logsum", ARITHMETIC),
    "ReduceLogSumExp": ("logsumexp", ARITHMETIC),
}
_OF_BOOL = {"max": "any", "min": "all"}


def _declare(op_type: str, op: str, types: tuple[str, ...]) -> None:
    first_with_input = 13 if op_type == "ReduceSum" else 18

    def reduced(b: Builder, data: Tensor, axes: list[int], keepdims: int) -> Tensor:
        if op == "mean" and not math.prod(data.shape[a] for a in axes):  # ONNX leaves it open; 0 as in ONNX Runtime
            shape = [1 if i in axes else d for i, d in enumerate(data.shape) if keepdims or i not in axes]
            return b.full(shape, 0, data.dtype)
        if data.dtype.kind in ("int", "uint") and op.startswith("logsum"):  # a cast from float, as ONNX's function body
            return b.cast(reduce_axes(b, op, b.cast(data, FLOAT32), axes, bool(keepdims)), data.dtype)
        if data.dtype.name == "float64" and op.startswith("logsum"):
            return _double_log_sum(b, data, axes, bool(keepdims), op == "logsumexp")
        return reduce_axes(b, _OF_BOOL[op] if data.dtype.kind == "bool" else op, data, axes, bool(keepdims))

    def with_attribute(b: Builder, data: Tensor, *, axes: Sequence[int] | None = None, keepdims: int = 1) -> Tensor:
        chosen = range(data.rank) if axes is None else sorted({b.axis(a, data.rank) for a in axes})
        return reduced(b, data, list(chosen), keepdims)

    def with_input(
        b: Builder, data: Tensor, axes: Tensor | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0
    ) -> Tensor:
        chosen = sorted({b.axis(a, data.rank) for a in b.ints(axes, "axes") or []})
        if not chosen and not noop_with_empty_axes:
            chosen = list(range(data.rank))
        # with no axis left, each element is its own total, after the operation's map (a square, for example)
        return reduced(b, data, chosen, keepdims)

    allowed = every(op_type, among=types)
    operator(op_type, until=first_with_input - 1, types={"T": allowed})(with_attribute)
    operator(op_type, since=first_with_input, types={"T": allowed})(with_input)


for _op_type, (_op, _types) in _REDUCTIONS.items():
    _declare(_op_type, _op, _types)


def _arg(b: Builder, greatest: bool, x: Tensor, axis: int, keepdims: int, last: int) -> Tensor:
    axis = b.axis(axis, x.rank)
    shape = [1 if i == axis else d for i, d in enumerate(x.shape)]
    if not x.shape[axis] and 0 not in shape:
        b.invalid(f"axis {axis} of shape {list(x.shape)} has no elements, expected one or more")
    dense, sizes = middle(b, x, [axis])
    out = b.result(ArgReduceProblem(*sizes, x.dtype.name, greatest, bool(last)), dense, shape=shape)
    return out if keepdims else b.reshape(out, [d for i, d in enumerate(x.shape) if i != axis])


@operator("ArgMax", types={"T": every("ArgMax", among=ARITHMETIC)})
def arg_max(b: Builder, data: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Tensor:
    return _arg(b, True, data, axis, keepdims, select_last_index)


@operator("ArgMin", types={"T": every("ArgMin", among=ARITHMETIC)})
def arg_min(b: Builder, data: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Tensor:
    return _arg(b, False, data, axis, keepdims, select_last_index)


@operator("Hardmax", until=12, types={"T": every("Hardmax", among=FLOATING)})
def hardmax_1(b: Builder, x: Tensor, *, axis: int = 1) -> Tensor:
    # before version 13 the input is treated as a matrix: all axes from `axis` on together
    first = b.axis(axis, x.rank)
    rows = b.reshape(x, [math.prod(x.shape[:first]), math.prod(x.shape[first:])])
    return b.reshape(_hardmax(b, rows, 1), x.shape)


@operator("Hardmax", since=13, types={"T": every("Hardmax", among=FLOATING)})
def hardmax(b: Builder, x: Tensor, *, axis: int = -1) -> Tensor:
    return _hardmax(b, x, b.axis(axis, x.rank))


def _hardmax(b: Builder, x: Tensor, axis: int) -> Tensor:
    if not x.shape[axis]:
        return b.empty(x.dtype, x.shape)
    top = _arg(b, True, x, axis, 1, 0)
    places = b.reshape(positions(b, x.shape[axis], np.int64), [x.shape[axis], *[1] * (x.rank - axis - 1)])
    kind = x.dtype.glsl_compute
    return b.pointwise(lambda best, at: fn.cast(fn.equal(best, at), kind), top, places, dtype=x.dtype, shape=x.shape)


def _running(b: Builder, x: Tensor, axis: Tensor, exclusive: int, reverse: int, product: bool) -> Tensor:
    if not x.rank:
        b.invalid("the input is a scalar, expected one axis or more")
    where = b.axis(int(b.number(axis, "axis")), x.rank)
    dense, sizes = middle(b, x, [where])
    return scan(b, dense, ScanProblem(*sizes, x.dtype.name, bool(exclusive), bool(reverse), product))


def scan(b: Builder, x: Tensor, problem: ScanProblem) -> Tensor:
    """Running sums or products of ``x``, which is dense."""
    return b.result(problem, x, shape=x.shape)


@operator("CumSum", types={"T": every("CumSum", among=ARITHMETIC), "T2": INDICES})
def cum_sum(b: Builder, x: Tensor, axis: Tensor, *, exclusive: int = 0, reverse: int = 0) -> Tensor:
    return _running(b, x, axis, exclusive, reverse, product=False)


@operator("CumProd", types={"T": every("CumProd", among=ARITHMETIC), "T2": INDICES})
def cum_prod(b: Builder, x: Tensor, axis: Tensor, *, exclusive: int = 0, reverse: int = 0) -> Tensor:
    return _running(b, x, axis, exclusive, reverse, product=True)


def _count(b: Builder, k: Tensor) -> int:
    b.expect("K", k, (1,))
    return whole(b.value(k, "k")[0])


def top_k_of(b: Builder, x: Tensor, count: int, axis: int, largest: int) -> list[Tensor]:
    """The ``count`` largest (or smallest) along an axis in order, and their indices (int64); of equal ones the first
    comes first."""
    axis = b.axis(axis, x.rank)
    dense, sizes = middle(b, x, [axis])
    problem = TopKProblem(*sizes, x.dtype.name, count, bool(largest))
    shape = [count if i == axis else d for i, d in enumerate(x.shape)]
    values, indices = b.empty(x.dtype, shape), b.empty(INT64, shape)
    b.compute(problem, [dense], [values, indices])
    return [values, indices]


@operator("TopK", since=1, until=9, types={"T": every("TopK", among=ARITHMETIC)})
def top_k_1(b: Builder, x: Tensor, *, k: int, axis: int = -1) -> list[Tensor]:
    if k < 1:
        b.invalid(f"k is {k}, expected at least 1")
    return top_k_of(b, x, k, axis, 1)


@operator("TopK", since=10, types={"T": every("TopK", among=ARITHMETIC)})
def top_k(b: Builder, x: Tensor, k: Tensor, *, axis: int = -1, largest: int = 1, sorted: int = 1) -> list[Tensor]:
    return top_k_of(b, x, _count(b, k), axis, largest)  # sorted even where the attribute does not require it


@operator("IsAllFinite", domain=MICROSOFT, types={})
def is_all_finite(b: Builder, *xs: Tensor, isinf_only: int = 0, isnan_only: int = 0) -> Tensor:
    if isinf_only and isnan_only:
        b.invalid("isinf_only and isnan_only are both set")

    def finite(x: Expr) -> Expr:
        return ~(fn.isinf(x) if isinf_only else fn.isnan(x) if isnan_only else fn.isinf(x) | fn.isnan(x))

    each = []
    for x in xs:
        if x.dtype.kind != "float":
            b.decline(f"an input of {x.dtype}; the kernels take floats")
        fine = b.pointwise(finite, x, dtype=BOOL)
        each.append(reduce_axes(b, "all", fine, range(x.rank), False) if x.rank else fine)
    whole = b.expr("same", each[0])
    for one in each[1:]:
        whole = b.expr("and", whole, one)
    return b.store(whole, BOOL, shape=())
