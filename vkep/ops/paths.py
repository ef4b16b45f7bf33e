"""ONNX Runtime's operators that walk through tables and lists of tokens (domain com.microsoft: DynamicTimeWarping,
BifurcationDetector); how far is data (see `vkep.placement.data_dependent`).

Semantics: the operators' schemas in ONNX Runtime (docs/ContribOperators.md), and its CPU provider's kernels.
"""

from __future__ import annotations

import numpy as np

from vkep.dtypes import DTYPES
from vkep.ir.builder import Builder
from vkep.ir.tensor import Tensor
from vkep.kernels.token_paths import BifurcationProblem, WarpProblem
from vkep.ops.registry import SIZED, operator

_INT64 = DTYPES["int64"]


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
    cells = int(b.value(count, "the number of the path's cells").reshape(-1)[0])
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
    tokens, found = (b.empty(_INT64, made.shape) for made in problem.makes())
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
