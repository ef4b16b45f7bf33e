"""Outputs of classifiers and regressors of ai.onnx.ml from their scores: post-transforms, and the label with the
highest score.

Semantics: ONNX's ai.onnx.ml, and where its text leaves it open (one score for two classes) ONNX Runtime's CPU provider.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from vkep.dtypes import FLOAT32, INT64
from vkep.ir import algebra as fn
from vkep.ir import expr as ex
from vkep.ir.algebra import where
from vkep.ir.builder import Builder
from vkep.ir.tensor import Tensor
from vkep.ops.gather import gathered
from vkep.ops.movement import concat
from vkep.ops.normalization import softmax_over
from vkep.ops.reduction import arg_max, reduce_axes

ML = "ai.onnx.ml"
#: element types of features
FEATURES = ("float32", "float64", "int64", "int32")
TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
#: SOFTMAX_ZERO treats a score below this as 0
_ZERO = 1e-7


def rows_of(b: Builder, x: Tensor) -> Tensor:
    """Features as a dense float32 [rows, features]; an input with one axis is one row."""
    if x.rank not in (1, 2):
        b.decline(f"features of rank {x.rank}, expected 1 or 2")
    return b.contiguous(b.cast(b.reshape(x, [1, x.shape[0]]) if x.rank == 1 else x, FLOAT32))


def matrix_of(b: Builder, name: str, values: Sequence[float], rows: int, columns: int) -> Tensor:
    """An attribute's numbers as a constant [rows, columns]. Raises `InvalidNode` for another number of them."""
    if len(values) != rows * columns:
        b.invalid(f"{name} has {len(values)} values, expected {rows} x {columns}")
    return b.constant(np.array(values, np.float32).reshape(rows, columns))


def transformed(b: Builder, scores: Tensor, transform: str) -> Tensor:
    """Scores [rows, classes] after a post-transform."""
    if transform == "NONE":
        return scores
    if transform == "LOGISTIC":
        return b.pointwise(_logistic, scores)
    if transform == "SOFTMAX":
        return softmax_over(b, b.contiguous(scores), scores.shape[0], scores.shape[1], 1)
    if transform == "PROBIT":
        return _probit(b, scores)
    if transform != "SOFTMAX_ZERO":
        b.invalid(f"post_transform is {transform!r}, expected one of {TRANSFORMS}")
    most = reduce_axes(b, "max", scores, [1], keepdims=True)
    raised = b.pointwise(lambda v, level: where(abs(v) > _ZERO, fn.exp(v - level), v * fn.exp(-level)), scores, most)
    return b.store(b.divide(raised, reduce_axes(b, "sum", raised, [1], keepdims=True)), FLOAT32)


def _logistic(x: ex.Expr) -> ex.Expr:
    """Without overflow of the exponential."""
    size = fn.exp(-abs(x))
    return where(x < 0.0, size, 1.0) / (1.0 + size)


def _probit(b: Builder, scores: Tensor) -> Tensor:
    """sqrt(2) erfinv(2 p - 1), by ONNX Runtime's approximation (Winitzki, 2008, with a = 0.147)."""
    [score] = b.reads(scores)
    p = 2.0 * score - 1.0
    log = fn.log((1.0 - p) * (1.0 + p))
    half = 2 / (math.pi * 0.147) + 0.5 * log
    size = fn.sqrt(fn.sqrt(half * half - log * (1 / 0.147)) - half)
    return b.store(where(p < 0.0, -size, size) * math.sqrt(2), FLOAT32, shape=scores.shape)


def labels_at(b: Builder, labels: Sequence[int], scores: Tensor) -> Tensor:
    """The label (int64) of each row's highest score, the first of equal ones."""
    return gathered(b, b.constant(np.array(labels, np.int64)), arg_max(b, scores, axis=1, keepdims=0))


def one_of_two(b: Builder, holds: ex.Expr, labels: Sequence[int], rows: int) -> Tensor:
    """The second label (int64) where ``holds`` [rows, 1], else the first."""
    first, second = (b.constant(np.array(label, np.int64)) for label in labels)
    return b.reshape(b.store(b.expr("where", holds, second, first, ctype="int64_t"), INT64, shape=[rows, 1]), [rows])


def two_scores(b: Builder, score: Tensor, transform: str, complement: bool) -> Tensor:
    """[rows, 2] from the one score [rows, 1] of two classes: the score of the first class is 1 minus it, or its
    negative."""
    if transform == "PROBIT":
        b.decline("post_transform PROBIT of one score for two classes: ONNX Runtime gives the second class none")
    logistic = transform == "LOGISTIC"
    other = b.pointwise(lambda v: -v if logistic or not complement else 1.0 - v, score)
    both = concat(b, other, score, axis=1)
    return transformed(b, both, "LOGISTIC") if logistic else both
