"""TfIdfVectorizer of integers. Semantics: ONNX's operator and its evaluator (op_tfidf_vectorizer.py)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vkep.dtypes import DTYPES
from vkep.ir.algebra import where
from vkep.ir.builder import Builder
from vkep.ir.tensor import Tensor
from vkep.kernels.ngrams import NgramProblem
from vkep.ops.registry import INDICES, operator


@operator("TfIdfVectorizer", types={"T": INDICES})
def tf_idf_vectorizer(
    b: Builder,
    x: Tensor,
    *,
    max_gram_length: int,
    max_skip_count: int,
    min_gram_length: int,
    mode: str,
    ngram_counts: Sequence[int],
    ngram_indexes: Sequence[int],
    pool_int64s: Sequence[int] = (),
    weights: Sequence[float] = (),
) -> Tensor:
    if mode not in ("TF", "IDF", "TFIDF") or x.rank not in (1, 2):
        b.invalid(f"mode is {mode!r}, the input's rank {x.rank}; expected TF, IDF or TFIDF, and 1 or 2")
    pool, columns = np.array(pool_int64s, np.int64), list(ngram_indexes)
    if not columns or min(columns) < 0 or len(set(columns)) < len(columns):
        b.decline("ngram_indexes is empty, has an index below 0, or one twice")
    grams = np.zeros((max(columns) + 1, 2), np.uint32)
    number = 0
    for length, (start, end) in enumerate(zip(ngram_counts, [*ngram_counts[1:], len(pool)], strict=True), 1):
        if not 0 <= start <= end <= len(pool) or (end - start) % length:
            b.invalid(f"ngram_counts is {list(ngram_counts)} for a pool of {len(pool)} items")
        for at in range(start, end, length):
            if number >= len(columns):
                b.invalid(f"ngram_indexes has {len(columns)} entries, and the pool more n-grams")
            fits = np.array_equal(pool[at : at + length].astype(x.dtype.numpy), pool[at : at + length])
            if min_gram_length <= length <= max_gram_length and fits:
                grams[columns[number]] = at, length
            number += 1
    rows = b.contiguous(b.reshape(x, [1, x.shape[0]]) if x.rank == 1 else x)
    counts = b.empty(DTYPES["float32"], [rows.shape[0], len(grams)])
    items = pool.astype(x.dtype.numpy)
    problem = NgramProblem(rows.shape[0], rows.shape[1], len(items), len(grams), max_skip_count + 1, x.dtype.name)
    b.compute(problem, [rows, b.constant(items), b.constant(grams)], [counts])
    result = counts
    if mode != "TF":
        if len(weights) not in (0, len(columns)):
            b.invalid(f"weights has {len(weights)} values, expected {len(columns)}")
        factors = np.ones(len(grams), np.float32)
        factors[columns[: len(weights)]] = weights
        by = b.constant(factors)
        once = mode == "IDF"
        result = b.pointwise(
            lambda count, factor: where(count > 0.0, factor, 0.0) if once else count * factor, counts, by
        )
    return b.reshape(result, [len(grams)]) if x.rank == 1 else result
