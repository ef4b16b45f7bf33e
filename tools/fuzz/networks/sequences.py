"""The structures of transformers and other networks of sequences, as exporters write them."""

from __future__ import annotations

import math

import numpy as np
from onnx import helper

from tools.fuzz.networks.blocks import convolution, dense, gelu, layer_norm
from tools.fuzz.networks.graph import VOCABULARY, Graph, Unfit, Value
from tools.fuzz.networks.steps import Step


def _sequence(g: Graph) -> Value:
    """A value [batch, length, size]."""
    return g.pick(lambda v: v.rank == 3 and v.is_fixed(2) and v.shape[2] % 2 == 0, "sequence")


def _heads(g: Graph, x: Value, source: Value, count: int, size: int) -> Value:
    """[batch, length, count * size] as [batch, count, length, size]."""
    y = g.reshape(x, (source, 0), (source, 1), count, size) if g.flag() else g.reshape(x, (source, 0), -1, count, size)
    return g.add("Transpose", y, perm=[0, 2, 1, 3])


def rotary(g: Graph, x: Value) -> Value:
    """Rotary positions on [batch, heads, length, size]: halves turned, tables as constants."""
    length, size, d = x.shape[2], x.shape[3], x.dtype
    if size % 2 or not x.is_fixed(2):
        return x
    angles = np.arange(length)[:, None] / 100.0 ** (np.arange(size // 2) / size)
    angles = np.concatenate([angles, angles], 1)
    cos, sin = g.constant(np.cos(angles), d), g.constant(np.sin(angles), d)
    if g.flag():
        first, second = g.split(x, [size // 2, size // 2], 3)
    else:
        first = g.add("Slice", x, g.ints(0), g.ints(size // 2), g.ints(3))
        second = g.add("Slice", x, g.ints(size // 2), g.ints(1 << 31), g.ints(-1))
    turned = g.add("Concat", g.add("Neg", second), first, axis=-1)
    return g.add("Add", g.add("Mul", x, cos), g.add("Mul", turned, sin))


def _masked(g: Graph, scores: Value, rank: int) -> Value:
    """Scores with a mask, in one of the forms that models have."""
    kind = g.one_of("none", "causal", "where", "bias", "padding", "computed")
    d, low = scores.dtype, -1e4 if scores.dtype == "float16" else g.one_of(-1e9, -1e4, float(np.finfo(np.float32).min))
    queries, keys = scores.shape[-2:]
    if kind == "none":
        return scores
    if not scores.is_fixed(-1, -2):
        if kind != "computed":
            return scores
        row, column = (g.size_of(scores, axis) for axis in (rank - 2, rank - 1))
        shape = g.add("Concat", row, column, dtype="int64", axis=0)
        ones = g.add("Expand", g.constant(np.array(1.0), "float32"), shape)
        lower = g.add("Cast", g.add("Trilu", ones, upper=0) if g.opset >= 14 else ones, dtype="bool", to=9)
        return g.add("Where", lower, scores, g.constant(-1e4, d))
    causal = np.tril(np.ones((queries, keys), bool), max(keys - queries, 0))
    seen = causal if kind == "causal" else (g.rng.random((queries, keys)) < 0.7) | np.eye(queries, keys, dtype=bool) | (
        np.arange(keys) == 0
    )  # fmt: skip
    lead = g.one_of((), (1, 1)) if rank == 4 else ()
    if kind == "where":
        mask = g.constant(seen.reshape(*lead, queries, keys), "bool")
        return g.add("Where", mask, scores, g.constant(low, d), limited=False)
    if kind == "computed":
        hidden = g.add("Not", g.constant(seen.reshape(*lead, queries, keys), "bool"), dtype="bool")
        return g.add("Where", hidden, g.constant(low, d), scores, limited=False)
    if kind == "bias":
        return g.add("Add", scores, g.weights(d, *lead, *g.one_of((queries, keys), (1, keys))))
    if kind == "padding":
        seen = np.broadcast_to(np.arange(keys) < max(1, keys - 1), (1, keys))
    bias = g.constant(np.where(seen, 0.0, low).reshape(*lead, *seen.shape), d)
    return g.add("Add", *((scores, bias) if g.flag() else (bias, scores)), limited=False)


def _attend(g: Graph, q: Value, k: Value, v: Value) -> Value:
    """Attention written out: a scale in one of several places, a mask, a softmax."""
    rank, size, d = q.rank, q.shape[-1], q.dtype
    where = g.one_of("after", "divided", "before", "both", "none")
    turn = [*range(rank - 2), rank - 1, rank - 2]

    def times(x: Value, factor: float) -> Value:
        return g.add("Mul", x, g.constant(factor, d))

    if where == "both":
        root = size**-0.25
        q, k = times(q, root), times(k, root)
    elif where == "before":
        q = times(q, size**-0.5)
    scores = g.add("MatMul", q, g.add("Transpose", k, perm=turn))
    if where == "after":
        scores = times(scores, size**-0.5)
    elif where == "divided":
        scores = g.add("Div", scores, g.constant(math.sqrt(size), d))
    scores = _masked(g, scores, rank)
    wide = d == "float16" and g.flag()
    weights = g.add("Softmax", g.cast(scores, "float32") if wide else scores, axis=-1 if g.flag() else rank - 1)
    weights = g.cast(weights, d)
    if g.flag() and g.flag():  # torch's guard of rows that see no key
        nan = g.add("IsNaN", weights, dtype="bool")
        weights = g.add("Where", nan, g.constant(0.0, d), weights)
    if g.flag() and g.flag():
        g.publish(weights)
    return g.add("MatMul", weights, v)


def attention(g: Graph) -> Value:
    """Attention of several heads, of a sequence with itself or with another one."""
    x = _sequence(g)
    d, total = x.dtype, x.shape[2]
    count = g.one_of(*(n for n in (2, 1, 4) if total % n == 0))
    size = total // count
    other = g.cast(_sequence(g), d) if g.flag() else x
    if other.shape[0] != x.shape[0] or not all(
        a.shape[0] == b.shape[0] for a, b in zip(x.runs, other.runs, strict=True)
    ):
        other = x
    y = layer_norm(g, x) if g.flag() else x
    source = y if other is x else other
    kind = g.one_of("apart", "packed", "five") if source is y else "apart"
    if kind == "five":
        packed = dense(g, y, 3 * total)
        packed = g.add("Transpose", g.reshape(packed, (x, 0), (x, 1), 3, count, size), perm=[2, 0, 3, 1, 4])
        if g.flag():
            q, k, v = (g.add("Gather", packed, g.constant(np.array(i), "int64"), axis=0) for i in range(3))
        else:
            parts = g.split(packed, [1, 1, 1], 0)
            q, k, v = (g.add("Squeeze", part, g.ints(0)) for part in parts)
    else:
        if kind == "packed":
            parts = g.split(dense(g, y, 3 * total), [total, total, total], -1)
        else:
            parts = [dense(g, t, total) for t in (y, source, source)]
        q, k, v = (_heads(g, part, s, count, size) for part, s in zip(parts, (x, other, other), strict=True))
    if g.flag():
        q, k = rotary(g, q), rotary(g, k)
    if g.flag() and g.flag():  # torch merges batch and heads
        q, k, v = (g.reshape(t, -1, (t, 2), size) for t in (q, k, v))
        made = g.reshape(_attend(g, q, k, v), (x, 0), count, (x, 1), size)
    else:
        made = _attend(g, q, k, v)
    merged = g.add("Transpose", made, perm=[0, 2, 1, 3])
    merged = g.reshape(merged, (x, 0), (x, 1), total) if g.flag() else g.add("Reshape", merged, g.ints(0, 0, -1))
    merged = dense(g, merged, total)
    return g.add("Add", x, merged)


def products_of_heads(g: Graph) -> Value:
    """Products of heads with what is broadcast over some of their axes, as it is or turned, and the results side by side."""
    x = _sequence(g)
    count = g.one_of(2, 1)
    q = _heads(g, x, x, count, x.shape[2] // count)
    y = g.add("MatMul", q, g.add("Transpose", q, perm=[0, 1, 3, 2]))
    for _ in range(g.number(1, 2)):
        part = g.reduced(g.one_of("ReduceMean", "ReduceMax"), y, list(g.one_of((1,), (0,), (1, 2), (0, 3), (2, 3))))
        kind = g.one_of("as it is", "turned", "weights")
        if kind != "as it is":
            weights = kind == "weights"
            part = g.weights(x.dtype, count, 1, 1) if weights else g.add("Transpose", part, perm=[0, 1, 3, 2])
        y = g.add(g.one_of("Add", "Sub", "Mul"), y, part)
    y = g.add("Transpose", g.add("MatMul", y, q), perm=g.one_of([0, 2, 1, 3], [0, 2, 3, 1]))
    return dense(g, g.add("Reshape", y, g.ints(0, 0, -1)), 8)


def grouped(g: Graph) -> Value:
    """Attention in which queries of several heads share keys (expanded, as torch writes it)."""
    x = _sequence(g)
    if not x.is_fixed(1):
        raise Unfit
    size, d = g.one_of(4, 8), x.dtype
    q = rotary(g, _heads(g, dense(g, x, 4 * size, False), x, 4, size))
    k = rotary(g, _heads(g, dense(g, x, 2 * size, False), x, 2, size))
    v = _heads(g, dense(g, x, 2 * size, False), x, 2, size)
    wide = []
    for t in (k, v):
        t = g.add("Unsqueeze", t, g.ints(2))
        t = g.add("Expand", t, g.ints(1, 1, 2, 1, 1))
        wide.append(g.reshape(t, (x, 0), 4, (x, 1), size))
    made = g.add("Transpose", _attend(g, q, *wide), perm=[0, 2, 1, 3])
    made = dense(g, g.reshape(made, (x, 0), (x, 1), 4 * size), x.shape[2], False)
    return g.add("Add", x, g.cast(made, d))


def feed_forward(g: Graph) -> Value:
    """A norm, products, an activation or a gate (GEGLU, SwiGLU), a sum."""
    x = _sequence(g)
    n, inner = x.shape[2], g.channels(8, 16, 6)
    y = layer_norm(g, x)
    kind = g.one_of("gelu", "swiglu", "geglu", "relu")
    if kind == "swiglu":
        gate = dense(g, y, inner, False)
        y = g.add("Mul", g.add("Mul", gate, g.add("Sigmoid", gate)), dense(g, y, inner, False))
    elif kind == "geglu":
        value, gate = g.split(dense(g, y, 2 * inner), [inner, inner], -1)
        y = g.add("Mul", value, gelu(g, gate))
    else:
        y = dense(g, y, inner)
        y = gelu(g, y) if kind == "gelu" else g.add("Relu", y)
    y = dense(g, y, n)
    return g.add("Add", *((x, y) if g.flag() else (y, x)))


def norm(g: Graph) -> Value:
    """A norm of the last axis of anything."""
    return layer_norm(g, g.pick(lambda v: v.rank >= 2 and v.is_fixed(-1) and v.shape[-1] > 1, "sequence"))


def patches(g: Graph) -> Value:
    """An image as a sequence of embedded patches, with positions."""
    x = g.pick(lambda v: v.rank == 4 and v.is_fixed(1) and min(v.least(2), v.least(3)) >= 2, "image")
    n = g.channels(8, 4, 16)
    w = g.weights(x.dtype, n, x.shape[1], 2, 2, terms=4 * x.shape[1])
    y = g.add("Conv", x, w, g.weights(x.dtype, n), strides=[2, 2])
    y = g.add("Transpose", g.reshape(y, (y, 0), n, -1), perm=[0, 2, 1])
    if y.is_fixed(0):
        token = g.add("Expand", g.weights(x.dtype, 1, 1, n), g.ints(y.shape[0], 1, 1))
        y = g.add("Concat", token, y, axis=1)
    return g.add("Add", y, g.weights(x.dtype, 1, y.shape[1], n)) if y.is_fixed(1) else y


def windows(g: Graph) -> Value:
    """Windows of an image as sequences and back (Swin), with a shift."""

    def fits(v: Value) -> bool:
        return v.rank == 4 and v.is_fixed(1, 2, 3) and v.shape[2] % 2 == 0 and v.shape[3] % 2 == 0

    x = g.pick(fits, "image")
    c, h, w = x.shape[1:]
    y = g.add("Transpose", x, perm=[0, 2, 3, 1])
    shifted = g.flag()

    def roll(t: Value, by: int) -> Value:
        for axis in (1, 2):
            back = g.add("Slice", t, g.ints(by), g.ints(1 << 31), g.ints(axis))
            front = g.add("Slice", t, g.ints(0), g.ints(by), g.ints(axis))
            t = g.add("Concat", back, front, axis=axis)
        return t

    if shifted:
        y = roll(y, 1)
    y = g.add("Transpose", g.reshape(y, (x, 0), h // 2, 2, w // 2, 2, c), perm=[0, 1, 3, 2, 4, 5])
    y = layer_norm(g, g.reshape(y, -1, 4, c))
    y = g.add("Add", y, _attend(g, dense(g, y, c), dense(g, y, c), y))
    y = g.add("Transpose", g.reshape(y, (x, 0), h // 2, w // 2, 2, 2, c), perm=[0, 1, 3, 2, 4, 5])
    y = g.reshape(y, (x, 0), h, w, c)
    if shifted:
        y = roll(y, -1)
    return g.add("Add", x, g.add("Transpose", y, perm=[0, 3, 1, 2]))


def spatial_attention(g: Graph) -> Value:
    """Attention over the pixels of an image, as diffusion models have it."""
    x = g.pick(lambda v: v.rank == 4 and v.is_fixed(1), "image")
    n = x.shape[1]
    q, k, v = (g.reshape(convolution(g, x, n, 1), (x, 0), n, -1) for _ in range(3))
    q, k, v = (g.add("Transpose", t, perm=[0, 2, 1]) for t in (q, k, v))
    y = g.add("Transpose", _attend(g, q, k, v), perm=[0, 2, 1])
    y = g.reshape(y, *((x, axis) for axis in range(4)))
    return g.add("Add", x, convolution(g, y, n, 1))


def signal(g: Graph) -> Value:
    """A gated convolution of a sequence (Conformer, WaveNet)."""
    x = g.pick(lambda v: v.rank == 3 and v.is_fixed(1), "signal")
    n = x.shape[1]
    y = convolution(g, x, 2 * n, 1)
    first, second = g.split(y, [n, n], 1)
    y = (
        g.add("Mul", g.add("Tanh", first), g.add("Sigmoid", second))
        if g.flag()
        else g.add("Mul", first, g.add("Sigmoid", second))
    )
    y = convolution(g, y, n, 3, n)
    return g.add("Add", x, y)


def recurrence(g: Graph) -> Value:
    """Two steps of a gated cell, written out."""
    x = g.pick(lambda v: v.rank == 3 and v.is_fixed(2) and v.least(1) >= 2, "sequence")
    n, d = g.channels(4, 8), x.dtype
    w, u = g.weights(d, x.shape[2], n, terms=x.shape[2]), g.weights(d, n, n, terms=n)
    state = None
    for step in range(2):
        row = g.add("Gather", x, g.constant(np.array(step), "int64"), axis=1)
        y = g.add("MatMul", row, w)
        if state is not None:
            y = g.add("Add", y, g.add("MatMul", state, u))
        new, gate = g.add("Tanh", y), g.add("Sigmoid", y)
        kept = g.add("Mul", gate, new)
        if state is not None:
            kept = g.add("Add", kept, g.add("Mul", g.add("Sub", g.constant(1.0, d), gate), state))
        state = kept
    assert state is not None
    return state


def embedding(g: Graph) -> Value:
    """Rows of a table by tokens, with positions that the model computes."""
    tokens = g.input("tokens")
    dtype, n = "float16" if g.kind == "float16" else "float32", g.one_of(8, 4, 16)
    x = g.add("Gather", g.weights(dtype, VOCABULARY, n), tokens, dtype=dtype, axis=0)
    if g.flag():
        length = g.add(
            "Gather", g.add("Shape", tokens, dtype="int64"), g.constant(np.array(1), "int64"), dtype="int64", axis=0
        )
        zero, one = (g.constant(np.array(k), "int64") for k in (0, 1))
        places = g.add("Range", zero, length, one, dtype="int64")
        rows = g.add("Gather", g.weights(dtype, 16, n), places, dtype=dtype, axis=0)
        x = g.add("Add", x, g.add("Unsqueeze", rows, g.ints(0)) if g.flag() else rows)
    if g.flag():  # a padding mask
        seen = g.add(
            "Cast",
            g.add("Equal", tokens, g.constant(np.array(0), "int64"), dtype="bool"),
            dtype=dtype,
            to=_number(dtype),
        )
        x = g.add("Mul", x, g.add("Sub", g.constant(1.0, dtype), g.add("Unsqueeze", seen, g.ints(2))))
    return x


def _number(dtype: str) -> int:
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def token(g: Graph) -> Value:
    """A decoder's layer for one token: norms of one row, products of it in pairs, sums."""
    x = g.pick(lambda v: v.rank >= 2 and v.is_fixed(), "vector")
    n, d, inner = x.shape[-1], x.dtype, g.one_of(8, 16, 32)
    row = g.reshape(x, -1, n)
    row = g.add("Slice", row, g.ints(0), g.ints(1), g.ints(0))
    x = g.reshape(row, 1, 1, n) if g.flag() else row

    def norm(t: Value) -> Value:
        if g.opset >= 23:
            return g.add("RMSNormalization", t, g.near_one(d, n), axis=-1, epsilon=1e-3)
        return layer_norm(g, t)

    for _ in range(g.number(1, 2)):
        y = norm(x)
        if g.flag():
            first, second = g.split(dense(g, y, 2 * inner, False), [inner, inner], -1)
        else:
            first, second = dense(g, y, inner, False), dense(g, y, inner, False)
        gate = g.add("Mul", first, g.add("Sigmoid", first)) if g.flag() else gelu(g, first)
        y = dense(g, g.add("Mul", gate, second), n, False)
        x = g.add("Add", x, norm(y) if g.flag() else y)
    return x


def cache(g: Graph) -> Value:
    """Rows that are added to a cache, or replace some of it, and read with it."""
    past = g.pick(lambda v: v.rank == 3 and v.is_fixed(2), "sequence")
    if g.flag() or not past.is_fixed():
        new = dense(g, past, past.shape[2])
        return g.add("Concat", past, new, axis=1)
    rows = g.number(1, past.shape[1])
    places = g.constant(
        g.rng.permutation(past.shape[1])[:rows].reshape(1, rows, 1).repeat(past.shape[0], 0).repeat(past.shape[2], 2),
        "int64",
    )
    present = g.add("ScatterElements", past, places, g.weights(past.dtype, past.shape[0], rows, past.shape[2]), axis=1)
    g.publish(g.add("Mul", present, past))
    return present


def long_rows(g: Graph) -> Value:
    """Products over long rows, of few rows or of many, with what fuses after them."""
    x = g.pick(lambda v: v.rank >= 2 and v.is_fixed(-1), "vector")
    rows = g.reshape(x, -1, x.shape[-1])
    k, n = g.one_of(64, 128, 320), g.one_of(32, 64, 5)
    if rows.runs[0].shape[0] * k > 8000 or rows.runs[-1].shape[0] * k > 8000:
        raise Unfit
    y = g.add("Tanh", dense(g, rows, k))
    y = dense(g, y, n)
    y = g.add("Relu", y) if g.flag() else gelu(g, y)
    return dense(g, y, x.shape[-1])


SEQUENCES: tuple[Step, ...] = (
    attention, products_of_heads, feed_forward, norm, patches, windows, grouped, spatial_attention, signal, recurrence,
    embedding, token, cache, long_rows,
)  # fmt: skip
