"""N-grams: TfIdfVectorizer of integers (ONNX), NGramRepeatBlock (com.microsoft).

Semantics: ONNX's operator and its evaluator (op_tfidf_vectorizer.py); ONNX Runtime's schema.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vkep.dtypes import FLOAT32
from vkep.ir.algebra import equal, where
from vkep.ir.builder import Builder
from vkep.ir.expr import Expr
from vkep.ir.tensor import Tensor
from vkep.kernels.tokens.ngrams import NgramProblem
from vkep.ops.gather import scatter_elements_
from vkep.ops.microsoft import MICROSOFT
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
    counts = b.empty(FLOAT32, [rows.shape[0], len(grams)])
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


@operator("NGramRepeatBlock", domain=MICROSOFT, types={"ids": ("int64",), "scores": ("float32",)})
def ngram_repeat_block(b: Builder, ids: Tensor, scores: Tensor, *, ngram_size: int) -> Tensor:
    """Scores with minus infinity for each token that would end an n-gram which the ids have already."""
    if ids.rank != 2 or scores.rank != 2 or ids.shape[0] != scores.shape[0] or ngram_size < 1:
        b.invalid(f"ids {list(ids.shape)}, scores {list(scores.shape)} and n-grams of {ngram_size}")
    length, before = ids.shape[1], ngram_size - 1
    many = length - before  # n-grams that the ids have
    if many <= 0:
        return scores
    repeats: Expr | None = None
    for j in range(before):
        same = equal(*b.reads(ids.slice(1, j, many), ids.slice(1, length - before + j, 1)))
        repeats = same if repeats is None else repeats & same
    last = b.copy(ids.slice(1, before, many))
    if repeats is None:
        bans = b.full(last.shape, -np.inf, FLOAT32)
    else:
        bans = b.store(b.expr("where", repeats, -np.inf, np.inf, ctype="float"), FLOAT32, shape=last.shape)
    return scatter_elements_(b, scores, last, b.contiguous(bans), 1, "min", what="a token", from_end=False)
