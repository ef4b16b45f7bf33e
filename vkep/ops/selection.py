"""Operators whose result length depends on data (see `vkep.placement.data_dependent`): NonZero, Compress, NonMaxSuppression,
and of domain com.microsoft DynamicTimeWarping and BifurcationDetector.

Semantics: ONNX; the schemas in ONNX Runtime (docs/ContribOperators.md), and its CPU provider's kernels.
"""

from __future__ import annotations

import math

import numpy as np

from vkep.dtypes import BOOL, DTYPES, INT32, INT64
from vkep.ir import algebra as fn
from vkep.ir.builder import Builder
from vkep.ir.expr import Expr
from vkep.ir.tensor import Tensor
from vkep.kernels.cumsum import ScanProblem
from vkep.kernels.selection import CompactProblem, NonMaxSuppressionProblem
from vkep.kernels.token_paths import BifurcationProblem, WarpProblem
from vkep.ops.allowed import ARITHMETIC
from vkep.ops.gather import gathered
from vkep.ops.generators import positions
from vkep.ops.reduction import scan
from vkep.ops.registry import SIZED, operator
from vkep.sizes import largest, serves_others, smallest, whole


def positions_of(b: Builder, mask: Tensor) -> list[Tensor]:
    """The flat positions (int64, filled from the front) where ``mask`` (bool) is true, and their number (int64 [1])."""
    total = mask.size
    ones = b.pointwise("cast", mask, dtype=INT32)
    found, count = b.empty(INT64, [total]), b.empty(INT64, [1])
    place = scan(b, b.reshape(ones, [total]), ScanProblem(1, total, 1, "int32"))
    b.compute(CompactProblem(total), [place], [found, count])
    return [found, count]


@operator("NonZeroFill", domain=SIZED, types={"x": (*ARITHMETIC, "bool")})
def non_zero_fill(b: Builder, x: Tensor) -> list[Tensor]:
    return positions_of(b, b.cast(x, BOOL)) if x.size else _nothing(b)


@operator("NonZeroTake", domain=SIZED, types={})
def non_zero_take(b: Builder, found: Tensor, count: Tensor, x: Tensor) -> Tensor:
    many = whole(b.value(count, "the number of elements that are not zero").reshape(-1)[0])
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
    return positions_of(b, condition.slice(0, 0, smallest(condition.size, extent))) if condition.size else _nothing(b)


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
    picks, counts = b.empty(INT64, [problem.pairs, most, 3]), b.empty(INT64, [problem.pairs])
    b.compute(problem, [b.contiguous(boxes), b.contiguous(scores)], [picks, counts])
    if not picks.size:
        return [b.constant(np.zeros((0, 3), np.int64)), b.constant(np.zeros(1, np.int64))]
    taken = b.pointwise("lt", positions(b, most, np.int64), b.reshape(counts, [problem.pairs, 1]), dtype=BOOL)
    found, count = positions_of(b, taken)
    places = b.reshape(positions(b, taken.size, np.int64), found.shape)
    used = b.pointwise(lambda at, place, n: fn.where(place < n, at, 0), found, places, count)
    return [gathered(b, b.reshape(picks, [taken.size, 3]), used), count]


@operator("NonMaxSuppressionTake", domain=SIZED, types={})
def non_max_suppression_take(
    b: Builder,
    picks: Tensor,
    count: Tensor,
    boxes: Tensor,
    scores: Tensor,
    max_output_boxes_per_class: Tensor | None = None,
    iou_threshold: Tensor | None = None,
    score_threshold: Tensor | None = None,
    *,
    center_point_box: int = 0,
) -> Tensor:
    return picks.slice(0, 0, whole(b.number(count, "the number of selected boxes")))


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
    cells = whole(b.value(count, "the number of the path's cells").reshape(-1)[0])
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
        b.invalid(f"tokens and a place of shape {shapes}, n-grams of {min_ngram_size} to {max_ngram_size}")
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
