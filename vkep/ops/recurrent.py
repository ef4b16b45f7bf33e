"""LSTM, GRU and RNN: the inputs' part of every gate in one product, then the recurrence.

A state that fits one workgroup is computed for all steps in one dispatch; a larger one needs a product and fused gates
for each step. Semantics: ONNX LSTM, GRU and RNN; activations consume ``activation_alpha`` and ``activation_beta`` in
order, as in ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vkep.dtypes import FLOAT32
from vkep.graph.attributes import RecurrentAttributes, RnnAttributes
from vkep.ir import algebra as fn
from vkep.ir.algebra import where
from vkep.ir.builder import Builder
from vkep.ir.expr import Expr
from vkep.ir.tensor import Tensor
from vkep.ops.allowed import BYTES, FLOATING
from vkep.ops.contraction import matrix_product
from vkep.ops.generators import positions
from vkep.ops.microsoft import MICROSOFT
from vkep.ops.quantized.products import dynamic_quantize_matmul
from vkep.ops.recurrent_layer import (
    Activation,
    Layer,
    activations_of,
    bias_sum,
    carried,
    gate,
    initial_state,
    layer_of,
    recurrence,
    results,
    rows_of,
    sum_of,
)
from vkep.ops.reduction import reduce_axes
from vkep.ops.registry import operator


def _widened(b: Builder, *tensors: Tensor | None) -> list[Any]:
    """bfloat16 tensors as float32, in which such a layer computes; others unchanged."""
    return [b.cast(t, FLOAT32) if t is not None and t.dtype.name == "bfloat16" else t for t in tensors]


def step_rows(inputs: Tensor, step: int) -> Tensor:
    """The inputs' part of one step: [batch, gates * hidden]."""
    return rows_of(inputs, step, 0, inputs.shape[1])


def _rnn_steps(layer: Layer, d: int, f: Activation, inputs: Tensor, r: Tensor, h: Tensor) -> Tensor:
    inputs = layer.in_slots(inputs, d)
    for t in layer.order(d):
        value = sum_of(layer.b, step_rows(inputs, t), recurrence(layer.b, h, r))
        h = layer.emit(f(layer.b, value), h, t, d)
    return layer.last(h, d)


@operator("RNN", since=7, types={"T": FLOATING, "T1": ("int32",)})
def rnn(
    b: Builder,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    bias: Tensor | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
    *,
    a: RnnAttributes,
) -> list[Tensor]:
    dtype = x.dtype
    x, w, r, bias, initial_h = _widened(b, x, w, r, bias, initial_h)
    others = {"W": w, "B": bias, "initial_h": initial_h}
    layer = layer_of(b, 1, x, r, sequence_lens, others, a)
    count, hidden = len(layer.directions), layer.hidden
    functions = activations_of(b, a, ("Tanh",), count)
    finals = []
    for d in range(count):
        inputs = layer.inputs_part(rows_of(w, d, 0, hidden), bias_sum(b, bias, d, 1, hidden))
        weights, h = rows_of(r, d, 0, hidden), initial_state(layer, initial_h, d, a.layout)
        last = carried(layer, "RNN", d, functions[d], inputs, weights, h0=h)
        finals.append(last[0] if last else _rnn_steps(layer, d, functions[d][0], inputs, weights, h))
    return [b.cast(t, dtype) for t in results(layer, a.layout, finals)]


def _gru_steps(
    layer: Layer,
    d: int,
    functions: Sequence[Activation],
    inputs: Tensor,
    r: Tensor,
    inner: Tensor | None,
    h: Tensor,
    linear: bool,
) -> Tensor:
    """``inner`` is the candidate's bias that the reset gate scales, where that is linear."""
    b, hidden = layer.b, layer.hidden
    f, g = functions
    gated, last = r if linear else r.slice(0, 0, 2 * hidden), r.slice(0, 2 * hidden, hidden)
    inputs = layer.in_slots(inputs, d)
    for t in layer.order(d):
        xz, xr, xh = (gate(step_rows(inputs, t), k, hidden) for k in range(3))
        product = recurrence(b, h, gated)
        hz, hr = (None if product is None else gate(product, k, hidden) for k in range(2))
        z, reset = f(b, sum_of(b, xz, hz)), f(b, sum_of(b, xr, hr))
        candidate: Tensor | Expr | None = None
        if linear:
            within = None if product is None else gate(product, 2, hidden)
            if within is not None or inner is not None:
                candidate = b.expr("mul", reset, sum_of(b, within, inner))
        elif product is not None:
            mixed = b.store(b.expr("mul", reset, h), h.dtype, shape=h.shape)
            candidate = matrix_product(b, mixed, last.transpose((1, 0)))
        new = g(b, sum_of(b, xh, candidate))
        h = layer.emit((1 - z) * new + z * b.reads(h)[0], h, t, d)
    return layer.last(h, d)


@operator("GRU", since=7, types={"T": FLOATING, "T1": ("int32",)})
def gru(
    b: Builder,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    bias: Tensor | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
    *,
    a: RecurrentAttributes,
    linear_before_reset: int = 0,
) -> list[Tensor]:
    dtype = x.dtype
    x, w, r, bias, initial_h = _widened(b, x, w, r, bias, initial_h)
    others = {"W": w, "B": bias, "initial_h": initial_h}
    layer = layer_of(b, 3, x, r, sequence_lens, others, a)
    count, hidden, linear = len(layer.directions), layer.hidden, bool(linear_before_reset)
    functions = activations_of(b, a, ("Sigmoid", "Tanh"), count)
    finals = []
    for d in range(count):
        added, inner = _gru_biases(b, bias, d, hidden, linear)
        inputs = layer.inputs_part(rows_of(w, d, 0, 3 * hidden), added)
        weights, h = rows_of(r, d, 0, 3 * hidden), initial_state(layer, initial_h, d, a.layout)
        cell = "GRU_LINEAR" if linear else "GRU"
        last = carried(layer, cell, d, functions[d], inputs, weights, h0=h, bias=inner)
        finals.append(last[0] if last else _gru_steps(layer, d, functions[d], inputs, weights, inner, h, linear))
    return [b.cast(t, dtype) for t in results(layer, a.layout, finals)]


def _gru_biases(
    b: Builder, bias: Tensor | None, d: int, hidden: int, linear: bool
) -> tuple[Tensor | None, Tensor | None]:
    """The bias of the inputs' part, and the candidate's bias that the reset gate scales (where it is linear)."""
    if not linear or bias is None:
        return bias_sum(b, bias, d, 3, hidden), None
    added = b.empty(bias.dtype, (3 * hidden,))
    gates = b.expr("add", rows_of(bias, d, 0, 2 * hidden), rows_of(bias, d, 3 * hidden, 2 * hidden))
    b.store(gates, bias.dtype, out=added.slice(0, 0, 2 * hidden))
    b.copy(rows_of(bias, d, 2 * hidden, hidden), out=added.slice(0, 2 * hidden, hidden))
    return added, rows_of(bias, d, 5 * hidden, hidden)


def lstm_step(
    layer: Layer,
    t: int,
    d: int,
    functions: Sequence[Activation],
    parts: Sequence[Tensor],
    peepholes: Tensor | None,
    h: Tensor,
    c: Tensor,
    input_forget: bool,
) -> tuple[Tensor, Tensor]:
    """The states after step ``t`` of direction ``d``, from the addends of its gates [batch, 4 * hidden]."""
    b, hidden = layer.b, layer.hidden
    f, g, h_of = functions

    def watched(cell: Tensor, index: int) -> Expr | None:
        if peepholes is None:
            return None
        return b.expr("mul", cell, peepholes.slice(0, index * hidden, hidden))

    i_, o_, f_, c_ = ([gate(part, k, hidden) for part in parts] for k in range(4))
    i = f(b, sum_of(b, *i_, watched(c, 0)))
    forget = 1 - i if input_forget else f(b, sum_of(b, *f_, watched(c, 2)))
    new_c = layer.keep(forget * b.reads(c)[0] + i * g(b, sum_of(b, *c_)), c, t, d, "c")
    o = f(b, sum_of(b, *o_, watched(new_c, 1)))
    return layer.emit(b.expr("mul", o, h_of(b, b.expr("same", new_c))), h, t, d), new_c


def _lstm_steps(
    layer: Layer,
    d: int,
    functions: Sequence[Activation],
    inputs: Tensor,
    r: Tensor,
    peepholes: Tensor | None,
    h: Tensor,
    c: Tensor,
    input_forget: bool,
) -> tuple[Tensor, Tensor]:
    inputs = layer.in_slots(inputs, d)
    for t in layer.order(d):
        parts = [part for part in (step_rows(inputs, t), recurrence(layer.b, h, r)) if part is not None]
        h, c = lstm_step(layer, t, d, functions, parts, peepholes, h, c, input_forget)
    return layer.last(h, d), layer.last(c, d)


@operator("LSTM", since=7, types={"T": FLOATING, "T1": ("int32",)})
def lstm(
    b: Builder,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    bias: Tensor | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
    initial_c: Tensor | None = None,
    p: Tensor | None = None,
    *,
    a: RecurrentAttributes,
    input_forget: int = 0,
) -> list[Tensor]:
    dtype = x.dtype
    x, w, r, bias, initial_h, initial_c, p = _widened(b, x, w, r, bias, initial_h, initial_c, p)
    others = {"W": w, "B": bias, "initial_h": initial_h, "initial_c": initial_c, "P": p}
    layer = layer_of(b, 4, x, r, sequence_lens, others, a)
    count, hidden = len(layer.directions), layer.hidden
    functions = activations_of(b, a, ("Sigmoid", "Tanh", "Tanh"), count)
    last_h, last_c = [], []
    for d in range(count):
        inputs = layer.inputs_part(rows_of(w, d, 0, 4 * hidden), bias_sum(b, bias, d, 4, hidden))
        weights = rows_of(r, d, 0, 4 * hidden)
        peepholes = None if p is None else rows_of(p, d, 0, 3 * hidden)
        h, c = initial_state(layer, initial_h, d, a.layout), initial_state(layer, initial_c, d, a.layout)
        forget = bool(input_forget)
        last = carried(
            layer, "LSTM", d, functions[d], inputs, weights, h0=h, c0=c, peepholes=peepholes, input_forget=forget
        )
        if last is None:
            wide = c if c.dtype.name == "float64" else b.cast(c, FLOAT32)
            last = _lstm_steps(layer, d, functions[d], inputs, weights, peepholes, h, wide, forget)
        last_h.append(last[0])
        last_c.append(last[1])
    return [b.cast(t, dtype) for t in results(layer, a.layout, last_h, last_c)]


_REAL = ("float32",)


# ---- domain com.microsoft: DynamicQuantizeLSTM, AttnLSTM


@operator(
    "DynamicQuantizeLSTM",
    domain=MICROSOFT,
    types={
        "x bias initial_h initial_c p w_scale r_scale": _REAL,
        "w r w_zero_point r_zero_point": BYTES,
        "sequence_lens": ("int32",),
    },
)
def dynamic_quantize_lstm(
    b: Builder,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    bias: Tensor | None,
    sequence_lens: Tensor | None,
    initial_h: Tensor | None,
    initial_c: Tensor | None,
    p: Tensor | None,
    w_scale: Tensor,
    w_zero_point: Tensor,
    r_scale: Tensor,
    r_zero_point: Tensor,
    *,
    a: RecurrentAttributes,
    input_forget: int = 0,
) -> list[Tensor]:
    """Weights are integers [directions, inputs, 4 * hidden]; so are the inputs, by their range, and in each step the states."""
    w, r = (t.transpose((0, 2, 1)) if t.rank == 3 else t for t in (w, r))
    others = {"W": w, "B": bias, "initial_h": initial_h, "initial_c": initial_c, "P": p}
    layer = layer_of(b, 4, x, r, sequence_lens, others, a)
    layer.skips = False
    count, hidden = len(layer.directions), layer.hidden
    for name, scale in (
        ("W_scale", w_scale),
        ("W_zero_point", w_zero_point),
        ("R_scale", r_scale),
        ("R_zero_point", r_zero_point),
    ):
        b.expect(name, scale, (count,), (count, 4 * hidden))
    functions = activations_of(b, a, ("Sigmoid", "Tanh", "Tanh"), count)
    finals: tuple[list[Tensor], list[Tensor]] = ([], [])
    for d in range(count):
        rows = b.reshape(layer.x, (layer.steps * layer.batch, layer.x.shape[2]))
        products = _quantized_product(b, rows, w, w_scale, w_zero_point, d)
        added = bias_sum(b, bias, d, 4, hidden)
        if added is not None:
            products = b.pointwise("add", products, added)
        inputs = b.reshape(products, (layer.steps, layer.batch, 4 * hidden))
        peepholes = None if p is None else rows_of(p, d, 0, 3 * hidden)
        h, c = initial_state(layer, initial_h, d, a.layout), initial_state(layer, initial_c, d, a.layout)
        inputs = layer.in_slots(inputs, d)
        for t in layer.order(d):
            parts = [step_rows(inputs, t), _quantized_product(b, h, r, r_scale, r_zero_point, d)]
            h, c = lstm_step(layer, t, d, functions[d], parts, peepholes, h, c, bool(input_forget))
        finals[0].append(layer.last(h, d))
        finals[1].append(layer.last(c, d))
    return results(layer, a.layout, *finals)


def _quantized_product(b: Builder, x: Tensor, weights: Tensor, scale: Tensor, zero_point: Tensor, d: int) -> Tensor:
    """``x`` [rows, k], quantized by its range, times direction ``d`` of weights [directions, n, k]."""
    matrix = rows_of(weights, d, 0, weights.shape[1]).transpose((1, 0))
    factor, zero = (_of_direction(t, d) for t in (scale, zero_point))
    return dynamic_quantize_matmul(b, b.contiguous(x), b.contiguous(matrix), factor, zero)


def _of_direction(t: Tensor, d: int) -> Tensor:
    part = t.slice(0, d, 1)
    return part.view(part.shape[1:], part.strides[1:])


@operator(
    "AttnLSTM",
    domain=MICROSOFT,
    types={
        "x w r bias initial_h initial_c p query_weights memory_weights v memory output_weights": _REAL,
        "sequence_lens memory_lens": ("int32",),
    },
)
def attn_lstm(
    b: Builder,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    bias: Tensor | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
    initial_c: Tensor | None = None,
    p: Tensor | None = None,
    query_weights: Tensor | None = None,
    memory_weights: Tensor | None = None,
    v: Tensor | None = None,
    memory: Tensor | None = None,
    memory_lens: Tensor | None = None,
    output_weights: Tensor | None = None,
    *,
    a: RecurrentAttributes,
    input_forget: int = 0,
) -> list[Tensor]:
    """An LSTM. The input of each step is joined with the attention of the last state to a memory [batch, places,
    depth]."""
    if query_weights is None or memory_weights is None or v is None or memory is None or w.rank != 3:
        b.invalid("the attention's weights or its memory are missing")
    if any(t.rank != n for t, n in ((query_weights, 3), (memory_weights, 3), (v, 2), (memory, 3))):
        b.invalid(f"a memory of shape {list(memory.shape)}, weights of {list(query_weights.shape)}, "
                  f"{list(memory_weights.shape)} and {list(v.shape)}; expected 3, 3, 3 and 2 axes")  # fmt: skip
    own = w.slice(2, 0, min(x.shape[-1], w.shape[2]))
    others = {"W": own, "B": bias, "initial_h": initial_h, "initial_c": initial_c, "P": p}
    layer = layer_of(b, 4, x, r, sequence_lens, others, a)
    layer.skips = False
    count, hidden, (batch, places, depth) = len(layer.directions), layer.hidden, memory.shape
    width = v.shape[1]
    b.expect("M", memory, (layer.batch, places, depth))
    b.expect("QW", query_weights, (count, hidden, width))
    b.expect("MW", memory_weights, (count, depth, width))
    b.expect("attention_v", v, (count, width))
    b.expect("memory_seq_lens", memory_lens, (batch,))
    b.expect_range("memory_seq_lens", memory_lens, 1, places)
    state = depth if output_weights is None else output_weights.shape[-1]
    b.expect("AW", output_weights, (count, depth + hidden, state))
    b.expect("W", w, (count, 4 * hidden, x.shape[2] + state))
    functions = activations_of(b, a, ("Sigmoid", "Tanh", "Tanh"), count)
    finals: tuple[list[Tensor], list[Tensor]] = ([], [])
    for d in range(count):
        weights = rows_of(w, d, 0, 4 * hidden)
        inputs = layer.inputs_part(weights.slice(1, 0, x.shape[2]), bias_sum(b, bias, d, 4, hidden))
        beside, recurrent = weights.slice(1, x.shape[2], state), rows_of(r, d, 0, 4 * hidden)
        keys = matrix_product(b, memory, rows_of(memory_weights, d, 0, depth))
        peepholes = None if p is None else rows_of(p, d, 0, 3 * hidden)
        h, c = initial_state(layer, initial_h, d, 0), initial_state(layer, initial_c, d, 0)
        attended = b.full((batch, state), 0, FLOAT32)
        inputs = layer.in_slots(inputs, d)
        for t in layer.order(d):
            parts = [step_rows(inputs, t), recurrence(b, attended, beside), recurrence(b, h, recurrent)]
            given = [part for part in parts if part is not None]
            h, c = lstm_step(layer, t, d, functions[d], given, peepholes, h, c, bool(input_forget))
            new = _attended(b, h, rows_of(query_weights, d, 0, hidden), keys, _of_direction(v, d), memory, memory_lens)
            if output_weights is not None:
                both = rows_of(output_weights, d, 0, hidden + depth)
                own_part = matrix_product(b, h, both.slice(0, 0, hidden))
                new = b.pointwise("add", own_part, matrix_product(b, new, both.slice(0, hidden, depth)))
            attended = _kept(layer, new, attended, t - layer.start(d))
        finals[0].append(layer.last(h, d))
        finals[1].append(layer.last(c, d))
    return results(layer, 0, *finals)


def _kept(layer: Layer, new: Tensor, old: Tensor, step: int) -> Tensor:
    alive = layer.alive(step)
    if alive is None:
        return new
    return layer.b.store(layer.b.expr("where", alive, new, old, ctype="float"), new.dtype, shape=new.shape)


def _attended(
    b: Builder, h: Tensor, query_weights: Tensor, keys: Tensor, v: Tensor, memory: Tensor, lengths: Tensor | None
) -> Tensor:
    """[batch, depth]: the memory's places, weighted by the softmax of ``v . tanh(key + query)`` (Bahdanau)."""
    batch, places, width = keys.shape
    query = b.reshape(matrix_product(b, h, query_weights), (batch, 1, width))
    near = b.pointwise(
        lambda key, asked, by: by * fn.tanh(key + asked), keys, query, v, dtype=FLOAT32, shape=keys.shape
    )
    scores = reduce_axes(b, "sum", near, [2], keepdims=False)
    raised = b.expr("exp", scores)
    if lengths is not None:
        place, end = b.reads(positions(b, places), b.reshape(lengths, (batch, 1)))
        raised = where(place < end, raised, 0.0)
    shares = b.store(raised, FLOAT32, shape=scores.shape)
    total = reduce_axes(b, "sum", shares, [1], keepdims=True)
    weights = b.pointwise("div", shares, total)
    return b.reshape(matrix_product(b, b.reshape(weights, (batch, 1, places)), memory), (batch, memory.shape[2]))
