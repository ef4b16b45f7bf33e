"""Operators whose result length depends on data (see `vkep.placement.data_dependent`): NonZero, Compress, NonMaxSuppression,
Unique, and of domain com.microsoft DynamicTimeWarping and BifurcationDetector.

Semantics: ONNX; the schemas in ONNX Runtime (docs/ContribOperators.md), and its CPU provider's kernels.
"""

from __future__ import annotations

import math

import numpy as np

from vkep.dtypes import BOOL, DTYPES, INT32, INT64, UINT8
from vkep.ir import algebra as fn
from vkep.ir.builder import Builder
from vkep.ir.expr import Expr
from vkep.ir.tensor import Tensor
from vkep.kernels.indexing.selection import NonMaxSuppressionProblem
from vkep.kernels.reductions.cumsum import PositionsProblem, ScanProblem
from vkep.kernels.tokens.token_paths import BifurcationProblem, WarpProblem
from vkep.ops.allowed import ARITHMETIC, FLOATING, SIGNED, UNSIGNED
from vkep.ops.gather import gathered, scatter_elements_
from vkep.ops.reduction import scan, top_k_1, top_k_of
from vkep.ops.registry import SIZED, operator
from vkep.sizes import largest, serves_others, smallest, whole


def positions_of(b: Builder, x: Tensor) -> list[Tensor]:
    """The flat positions (int64, filled from the front) where ``x`` is not 0 or false, and their number (int64 [1])."""
    total = x.size
    if not total:
        return _nothing(b)
    found, count = b.empty(INT64, [total]), b.empty(INT64, [1])
    b.compute(PositionsProblem(total, x.dtype.name), [b.contiguous(x)], [found, count])
    return [found, count]


@operator("NonZeroFill", domain=SIZED, types={"x": (*ARITHMETIC, "bool")})
def non_zero_fill(b: Builder, x: Tensor) -> list[Tensor]:
    return positions_of(b, x)


@operator("NonZeroTake", domain=SIZED, types={})
def non_zero_take(b: Builder, found: Tensor, count: Tensor, x: Tensor) -> Tensor:
    many = whole(b.number(count, "the number of elements that are not zero"))
    if not many or not x.rank:
        return b.constant(np.zeros((x.rank, many), np.int64))
    flat = found.slice(0, 0, many)
    steps = [math.prod(x.shape[d + 1 :]) for d in range(x.rank)]
    if any(map(serves_others, steps + list(x.shape))):
        indices = b.empty(INT64, [x.rank, many])
        for d in range(x.rank):
            b.pointwise(_index, flat, steps[d], x.shape[d], out=indices.slice(0, d, 1))
        return indices
    step, size = (b.constant(np.array(v, np.int64).reshape(-1, 1)) for v in (steps, x.shape))
    return b.pointwise(_index, flat, step, size, shape=[x.rank, many])


def _index(flat: Expr, step: Expr, size: Expr) -> Expr:
    """Along an axis of ``size``, of elements ``step`` apart."""
    return flat / step % size


@operator("CompressFill", domain=SIZED, types={})
def compress_fill(b: Builder, x: Tensor, condition: Tensor, *, axis: int | None = None) -> list[Tensor]:
    """The places where the condition holds, and their number."""
    extent = x.size if axis is None else x.shape[b.axis(axis, x.rank)]
    b.expect("condition", condition, [condition.size])
    if condition.array is not None:
        chosen = np.flatnonzero(condition.array).tolist()
        while chosen and chosen[-1] >= extent:  # ONNX Runtime reads no more of the condition
            chosen.pop()
        return [b.constant(np.array(chosen, np.int64)), b.constant(np.array([len(chosen)], np.int64))]
    return positions_of(b, condition.slice(0, 0, smallest(condition.size, extent)))


@operator("CompressTake", domain=SIZED, types={})
def compress_take(
    b: Builder, found: Tensor, count: Tensor, x: Tensor, condition: Tensor, *, axis: int | None = None
) -> Tensor:
    many = whole(b.number(count, "the number of slices where the condition holds"))
    flat, along = (x, axis) if axis is not None else (b.reshape(x, [x.size]), 0)
    return gathered(b, flat, found.slice(0, 0, many), along)


def _nothing(b: Builder) -> list[Tensor]:
    """No positions, and their number."""
    return [b.constant(np.zeros(0, np.int64)), b.constant(np.zeros(1, np.int64))]


@operator("NonMaxSuppressionFill", domain=SIZED, types={"boxes": ("float32",), "scores": ("float32",)})
def non_max_suppression_fill(
    b: Builder,
    boxes: Tensor,
    scores: Tensor,
    max_output_boxes_per_class: Tensor | None = None,
    iou_threshold: Tensor | None = None,
    score_threshold: Tensor | None = None,
    *,
    center_point_box: int = 0,
) -> list[Tensor]:
    def scalar(tensor: Tensor | None, what: str) -> float | None:
        return None if tensor is None or not tensor.size else b.value(tensor, what).reshape(-1)[:1].tolist()[0]

    if scores.rank != 3 or center_point_box not in (0, 1):
        b.invalid(f"scores {list(scores.shape)} and center_point_box {center_point_box}; expected 3 axes, and 0 or 1")
    batches, classes, box_count = scores.shape
    asked = whole(scalar(max_output_boxes_per_class, "max_output_boxes_per_class") or 0)
    most = smallest(largest(asked, 0), box_count)
    overlap, least = scalar(iou_threshold, "iou_threshold") or 0.0, scalar(score_threshold, "score_threshold")
    if not 0 <= overlap <= 1:
        b.invalid(f"iou_threshold is {overlap}, expected 0 to 1")
    problem = NonMaxSuppressionProblem(batches, classes, box_count, most, overlap, least, bool(center_point_box))
    rows, count = b.empty(INT64, [problem.pairs * most, 3]), b.empty(INT64, [1])
    if not rows.size:
        return [b.constant(np.zeros((0, 3), np.int64)), b.constant(np.zeros(1, np.int64))]
    b.compute(problem, [b.contiguous(boxes), b.contiguous(scores)], [rows, count])
    return [rows, count]


@operator("NonMaxSuppressionTake", domain=SIZED, types={})
def non_max_suppression_take(
    b: Builder,
    rows: Tensor,
    count: Tensor,
    boxes: Tensor,
    scores: Tensor,
    max_output_boxes_per_class: Tensor | None = None,
    iou_threshold: Tensor | None = None,
    score_threshold: Tensor | None = None,
    *,
    center_point_box: int = 0,
) -> Tensor:
    return rows.slice(0, 0, whole(b.number(count, "the number of selected boxes")))


@operator("com.microsoft.DynamicTimeWarpingFill", domain=SIZED, types={"x": ("float32",)})
def dynamic_time_warping_fill(b: Builder, x: Tensor) -> list[Tensor]:
    if x.rank not in (2, 3) or (x.rank == 3 and x.shape[0] != 1):
        b.invalid(f"the input has shape {list(x.shape)}, expected 2 axes, or 3 with 1 in front")
    if not x.size:
        return [b.constant(np.zeros((2, 0), np.int32)), b.constant(np.zeros(1, np.int64))]
    problem = WarpProblem(*x.shape[-2:])
    path, count = (b.empty(DTYPES[made.dtype], made.shape) for made in problem.makes())
    b.compute(problem, [b.contiguous(x)], [path, count])
    return [path, count]


@operator("com.microsoft.DynamicTimeWarpingTake", domain=SIZED, types={})
def dynamic_time_warping_take(b: Builder, path: Tensor, count: Tensor, x: Tensor) -> Tensor:
    cells = whole(b.number(count, "the number of the path's cells"))
    return path.slice(1, path.shape[1] - cells, cells)


@operator("com.microsoft.BifurcationDetectorFill", domain=SIZED, types={"source current start predicted": ("int64",)})
def bifurcation_detector_fill(
    b: Builder,
    source: Tensor,
    current: Tensor,
    start: Tensor,
    predicted: Tensor | None = None,
    *,
    max_ngram_size: int = 3,
    min_ngram_size: int = 1,
) -> list[Tensor]:
    given = [t for t in (source, current, predicted) if t is not None]
    if any(t.rank != 1 for t in given) or start.size != 1 or not 0 < min_ngram_size <= max_ngram_size:
        shapes = [list(t.shape) for t in (*given, start)]
        b.invalid(f"tokens and a place of shape {shapes}, n-grams of {min_ngram_size} to {max_ngram_size}; "
                  "expected one axis, one place, and 1 or more")  # fmt: skip
    if predicted is not None and not predicted.size:
        b.invalid("pred_tokens is empty, expected one token or more")
    predictions = 0 if predicted is None else predicted.size
    problem = BifurcationProblem(source.size, current.size, predictions, min_ngram_size, max_ngram_size)
    if not current.size + predictions or not source.size:
        b.decline("no tokens")
    tokens, found = (b.empty(INT64, made.shape) for made in problem.makes())
    parts = [source, current, b.reshape(start, (1,)), *([] if predicted is None else [predicted])]
    b.compute(problem, [b.contiguous(t) for t in parts], [tokens, found])
    return [tokens, found]


@operator("com.microsoft.BifurcationDetectorTake", domain=SIZED, types={})
def bifurcation_detector_take(
    b: Builder,
    tokens: Tensor,
    found: Tensor,
    source: Tensor,
    current: Tensor,
    start: Tensor,
    predicted: Tensor | None = None,
    *,
    max_ngram_size: int = 3,
    min_ngram_size: int = 1,
) -> list[Tensor]:
    count, _ = b.value(found, "the number of tokens").tolist()
    return [tokens.slice(0, 0, int(count)), b.reshape(found.slice(0, 1, 1), start.shape)]


# ---- Unique: sort, mark where each group of equal values begins, and take that many. Along an axis, whole slices are compared by
# their ranks: first a rank for each of a slice's elements, then pairs of ranks become one key with its rank, until one is left.


def _differ(x: Expr, y: Expr) -> Expr:
    different = fn.not_equal(x, y)
    return different & ~(fn.isnan(x) & fn.isnan(y)) if x.ctype in ("float", "double") else different


@operator("UniqueFill", domain=SIZED, types={})
def unique_fill(b: Builder, x: Tensor, *, axis: int | None = None, sorted: int = 1) -> list[Tensor]:
    """The first position of each distinct value (flat, in the order of the result), and their number."""
    if x.dtype.kind == "bits":
        b.decline(f"{x.dtype} has no sort key")
    if axis is not None:
        x = _slice_ranks(b, x, axis)
    if not x.size:
        return _nothing(b)
    if x.dtype.kind == "bool":
        x = b.cast(x, UINT8)
    # descending, equal ones by lower index first, so that a group begins at its value's first occurrence
    values, places = top_k_1(b, b.reshape(x, [x.size]), k=x.size)
    begins = b.empty(BOOL, [x.size])
    b.copy(b.full([1], True, BOOL), out=begins.slice(0, 0, 1))
    if x.size > 1:
        now, before = (values.slice(0, k, x.size - 1) for k in (1, 0))
        b.pointwise(_differ, now, before, out=begins.slice(0, 1, x.size - 1))
    if sorted:
        found, count = positions_of(b, b.copy(begins.slice(0, x.size - 1, x.size, -1)))
        back = b.pointwise(lambda at, last: last - at, found, x.size - 1)
        return [gathered(b, places, back), count]
    firsts = scatter_elements_(b, b.full([x.size], False, BOOL), places, begins, 0, "none")
    return positions_of(b, firsts)


def _slice_ranks(b: Builder, x: Tensor, axis: int) -> Tensor:
    """int32 [n]: the index of each slice along ``axis`` among the distinct slices, in lexicographic order."""
    axis = b.axis(axis, x.rank)
    count = x.shape[axis]
    others = [d for d in range(x.rank) if d != axis]
    if count >= 1 << 31 or (count and not x.size):
        b.decline(f"{count} slices of shape {[x.shape[d] for d in others]}")
    if x.dtype.kind == "bool":
        x = b.cast(x, UINT8)
    if not count:
        return b.constant(np.zeros(0, np.int32))
    keys = b.reshape(x.transpose([*others, axis]), (x.size // count, count))  # a row for each element of a slice
    ranks = _row_ranks(b, keys)
    while ranks.shape[0] > 1:
        rows = ranks.shape[0]
        pairs = rows // 2
        wide = b.cast(ranks, INT64) if count > 46340 else ranks  # count**2 in 31 bits
        firsts, seconds = (wide.slice(0, k, pairs, 2) for k in (0, 1))
        joined = _row_ranks(b, b.pointwise(lambda x, y, n: x * n + y, firsts, seconds, count))
        if rows % 2:
            odd = b.empty(INT32, (pairs + 1, count))
            b.copy(joined, out=odd.slice(0, 0, pairs))
            b.copy(ranks.slice(0, rows - 1, 1), out=odd.slice(0, pairs, 1))
            joined = odd
        ranks = joined
    return b.reshape(ranks, (count,))


def _row_ranks(b: Builder, keys: Tensor) -> Tensor:
    """int32 of the same shape: the number of distinct smaller values in each element's row."""
    rows, count = keys.shape
    values, places = top_k_of(b, keys, count, 1, largest=0)
    grows = b.empty(INT32, keys.shape)
    b.copy(b.full([rows, 1], 0, INT32), out=grows.slice(1, 0, 1))
    if count > 1:
        now, before = (values.slice(1, k, count - 1) for k in (1, 0))
        b.pointwise(lambda x, y: fn.cast(_differ(x, y), "int"), now, before, out=grows.slice(1, 1, count - 1))
    rank = scan(b, grows, ScanProblem(rows, count, 1, "int32"))
    return scatter_elements_(b, b.full(keys.shape, 0, INT32), places, rank, 1, "none")


@operator("UniqueTake", domain=SIZED, types={})
def unique_take(
    b: Builder, firsts: Tensor, count: Tensor, x: Tensor, *, axis: int | None = None, sorted: int = 1
) -> list[Tensor]:
    many = whole(b.number(count, "the number of distinct values"))
    flat = b.reshape(x, [x.size]) if axis is None else x
    indices = firsts.slice(0, 0, many)
    if not many:
        empty = b.constant(np.zeros(0, np.int64))
        return [flat, empty, empty, empty]
    made = gathered(b, flat, indices, axis or 0)
    wanted = list(b.node.outputs) if b.node is not None else []
    if not any(wanted[2:]):
        return [made, indices]
    return [made, indices, *_counted(b, flat if axis is None else _slice_ranks(b, x, axis), indices)]


def _counted(b: Builder, keys: Tensor, firsts: Tensor) -> list[Tensor]:
    """For each key its index among the distinct values, which first occur at ``firsts``, and the count of each value
    (int64)."""
    many = firsts.size
    if keys.dtype.kind == "bool":
        keys = b.cast(keys, UINT8)
    ranks = b.reshape(_row_ranks(b, b.reshape(keys, (1, keys.size))), (keys.size,))
    # the result's order may be another than that of the ranks
    of_rank = scatter_elements_(
        b, b.full([many], 0, INT64), gathered(b, ranks, firsts), b.constant(np.arange(many)), 0, "none"
    )
    inverse = gathered(b, of_rank, ranks)
    counts = scatter_elements_(b, b.full([many], 0, INT32), inverse, b.full([keys.size], 1, INT32), 0, "add")
    return [inverse, b.cast(counts, INT64)]


@operator("com.microsoft.UniqueFill", domain=SIZED, types={"x": (*FLOATING, *SIGNED, *UNSIGNED, "bool")})
def microsoft_unique_fill(b: Builder, x: Tensor) -> list[Tensor]:
    if x.rank != 1:
        b.invalid(f"the input has shape {list(x.shape)}, expected one axis")
    return unique_fill(b, x, sorted=0)


@operator("com.microsoft.UniqueTake", domain=SIZED, types={})
def microsoft_unique_take(b: Builder, firsts: Tensor, count: Tensor, x: Tensor) -> list[Tensor]:
    many = whole(b.number(count, "the number of distinct values"))
    if not many:
        empty = b.constant(np.zeros(0, np.int64))
        return [x, empty, empty]
    indices = firsts.slice(0, 0, many)
    return [gathered(b, x, indices), *_counted(b, x, indices)]
