"""ai.onnx.ml's support-vector machines. Semantics: ONNX's ai.onnx.ml operators, and ONNX Runtime's CPU provider where the text
leaves the coefficients' order and the scores of two classes open.
"""

from __future__ import annotations

import numpy as np

from vkep.dtypes import FLOAT32
from vkep.ir import algebra as fn
from vkep.ir.builder import Builder
from vkep.ir.expr import Expr
from vkep.ir.tensor import Tensor
from vkep.kernels.ml.coupling import CoupledProblem
from vkep.ops.contraction import matrix_product
from vkep.ops.ml_scores import (
    FEATURES,
    ML,
    labels_at,
    matrix_of,
    one_of_two,
    rows_of,
    transformed,
    two_scores,
)
from vkep.ops.reduction import reduce_axes
from vkep.ops.registry import operator
from vkep.ops.trees import Floats, Ints


@operator("SVMRegressor", domain=ML, types={"T": FEATURES})
def svm_regressor(
    b: Builder,
    x: Tensor,
    *,
    coefficients: Floats = (),
    kernel_params: Floats = (),
    kernel_type: str = "LINEAR",
    n_supports: int = 0,
    one_class: int = 0,
    post_transform: str = "NONE",
    rho: Floats = (),
    support_vectors: Floats = (),
) -> Tensor:
    if post_transform != "NONE":
        b.decline(f"post_transform {post_transform} of one target, which ONNX Runtime leaves out")
    if len(rho) != 1:
        b.invalid(f"rho has {len(rho)} values, expected 1")
    rows = rows_of(b, x)
    if n_supports:
        vectors = matrix_of(b, "support_vectors", support_vectors, n_supports, rows.shape[1])
        near = svm_kernel(b, rows, vectors, kernel_type, kernel_params)
        scores = matrix_product(b, near, matrix_of(b, "coefficients", coefficients, n_supports, 1))
    else:
        scores = matrix_product(b, rows, matrix_of(b, "coefficients", coefficients, rows.shape[1], 1))
    if one_class:
        score, offset = b.reads(scores, rho[0])
        return b.store(b.expr("where", score + offset > 0.0, 1.0, -1.0, ctype="float"), FLOAT32, shape=scores.shape)
    return b.pointwise("add", scores, rho[0])


def svm_kernel(b: Builder, rows: Tensor, vectors: Tensor, kernel_type: str, parameters: Floats) -> Tensor:
    """Kernel values [rows, vectors] of a support-vector machine."""
    if len(parameters) not in (0, 3):
        b.invalid(f"kernel_params has {len(parameters)} values, expected gamma, coef0 and degree")
    gamma, first, degree = parameters or (0.0, 0.0, 0.0)
    if kernel_type == "RBF":
        apart = b.expr("sub", b.reshape(rows, [rows.shape[0], 1, rows.shape[1]]), vectors)
        shape = [rows.shape[0], *vectors.shape]
        squares = reduce_axes(b, "sumsq", b.store(apart, FLOAT32, shape=shape), [2], keepdims=False)
        return b.pointwise(lambda v, by: fn.exp(v * by), squares, -gamma)
    product = matrix_product(b, rows, vectors.transpose((1, 0)))
    if kernel_type == "POLY":
        return b.pointwise(lambda v, by, add, power: fn.power(v * by + add, power), product, gamma, first, degree)
    if kernel_type == "SIGMOID":
        return b.pointwise(lambda v, by, add: fn.tanh(v * by + add), product, gamma, first)
    if kernel_type != "LINEAR":
        b.invalid(f"kernel_type is {kernel_type!r}, expected LINEAR, POLY, RBF or SIGMOID")
    return product


@operator("SVMClassifier", domain=ML, types={"T1": FEATURES})
def svm_classifier(
    b: Builder,
    x: Tensor,
    *,
    classlabels_ints: Ints = (),
    coefficients: Floats = (),
    kernel_params: Floats = (),
    kernel_type: str = "LINEAR",
    post_transform: str = "NONE",
    prob_a: Floats = (),
    prob_b: Floats = (),
    rho: Floats = (),
    support_vectors: Floats = (),
    vectors_per_class: Ints = (),
) -> list[Tensor]:
    labels, rows, counts = list(classlabels_ints), rows_of(b, x), list(vectors_per_class)
    if len(labels) < 2:
        b.decline(f"{len(labels)} class labels; the kernels take two or more integers")
    total = sum(counts)
    if min(counts, default=0) < 0 or (total and len(counts) != len(labels)):
        b.invalid(f"vectors_per_class is {counts} for {len(labels)} classes")
    if not total:
        return _liblinear(b, rows, labels, coefficients, rho, post_transform, bool(prob_a))
    pairs = len(labels) * (len(labels) - 1) // 2
    if len(coefficients) < (len(labels) - 1) * total or len(rho) < pairs:
        b.invalid(
            f"{len(coefficients)} coefficients and {len(rho)} values of rho for {len(labels)} classes of {total} vectors"
        )
    vectors = matrix_of(b, "support_vectors", support_vectors, total, rows.shape[1])
    near = svm_kernel(b, rows, vectors, kernel_type, kernel_params)
    weights, first, second = _pairs(counts, np.array(coefficients[: (len(labels) - 1) * total], np.float32))
    scores = b.pointwise(
        "add", matrix_product(b, near, b.constant(weights)), b.constant(np.array(rho[:pairs], np.float32))
    )
    wins = b.pointwise(lambda v: fn.cast(v > 0.0, "float"), scores)
    votes = b.pointwise("add", matrix_product(b, wins, b.constant(first - second)), b.constant(second.sum(0)))
    label = labels_at(b, labels, votes)
    if prob_a or prob_b:
        return [label, transformed(b, _probabilities(b, scores, len(labels), prob_a, prob_b), post_transform)]
    if pairs > 1:
        return [label, transformed(b, scores, post_transform)]
    return [label, two_scores(b, scores, post_transform, complement=post_transform != "NONE")]


def _probabilities(b: Builder, scores: Tensor, classes: int, prob_a: Floats, prob_b: Floats) -> Tensor:
    """[rows, classes] from the scores of pairs of classes, each with the parameters of its sigmoid (Platt)."""
    pairs = scores.shape[1]
    if len(prob_a) != len(prob_b) or len(prob_a) < pairs:
        b.invalid(f"{len(prob_a)} values of prob_a and {len(prob_b)} of prob_b for {pairs} pairs of classes")
    slope, offset = (b.constant(np.array(values[:pairs], np.float32)) for values in (prob_a, prob_b))

    def inside(v: Expr, by: Expr, add: Expr) -> Expr:
        return fn.limited(1.0 / (1.0 + fn.exp(v * by + add)), 1e-7, 1.0 - 1e-7)

    first = b.pointwise(inside, scores, slope, offset, shape=scores.shape)
    return b.result(CoupledProblem(scores.shape[0], classes), first)


def _pairs(counts: Ints, coefficients: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The coefficient of each vector in each pair of classes (i, j), [vectors, pairs], and the votes of a pair for its first and
    for its second class, [pairs, classes]. ``coefficients`` are [classes - 1, vectors]: those of a class's vectors against each
    other class in turn.
    """
    classes, total = len(counts), sum(counts)
    table = coefficients.reshape(classes - 1, total)
    of_class = np.repeat(np.arange(classes), counts)
    pairs = [(i, j) for i in range(classes) for j in range(i + 1, classes)]
    weights = [np.where(of_class == i, table[j - 1], np.where(of_class == j, table[i], 0)) for i, j in pairs]
    first, second = (np.eye(classes, dtype=np.float32)[[pair[k] for pair in pairs]] for k in (0, 1))
    return np.stack(weights, 1).astype(np.float32), first, second


def _liblinear(
    b: Builder, rows: Tensor, labels: Ints, coefficients: Floats, rho: Floats, post_transform: str, by_score: bool
) -> list[Tensor]:
    """A machine without support vectors: a row of coefficients for each class, and the first of rho for all. ``by_score``: the
    label of two, too, is that of the greater score.
    """
    if not rho or len(coefficients) // len(labels) != rows.shape[1]:
        b.invalid(
            f"{len(coefficients)} coefficients, {len(rho)} values of rho: {len(labels)} classes, {rows.shape[1]} features"
        )
    used = coefficients[: len(labels) * rows.shape[1]]
    matrix = matrix_of(b, "coefficients", used, len(labels), rows.shape[1])
    scores = b.pointwise("add", matrix_product(b, rows, matrix.transpose((1, 0))), float(rho[0]))
    label = labels_at(b, labels, scores)
    if len(labels) == 2 and not by_score:
        most = reduce_axes(b, "max", scores, [1], keepdims=True)
        positive = min(coefficients) >= 0
        greatest, first, second = b.reads(most, scores.slice(1, 0, 1), scores.slice(1, 1, 1))
        best = greatest >= 0.5 if positive else greatest > 0.0
        label = one_of_two(b, best | (first < second), labels, rows.shape[0])
    return [label, transformed(b, scores, post_transform)]
