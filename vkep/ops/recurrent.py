"""LSTM, GRU and RNN: the inputs' part of every gate in one product, then the recurrence.

A state that fits one workgroup is computed for all steps in one dispatch; a larger one needs a product and fused gates
for each step. Semantics: ONNX LSTM, GRU and RNN; activations consume ``activation_alpha`` and ``activation_beta`` in
order, as in ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vkep.dtypes import DTYPES
from vkep.graph.attributes import RecurrentAttributes, RnnAttributes
from vkep.ir.builder import Builder
from vkep.ir.expr import Expr
from vkep.ir.tensor import Tensor
from vkep.ops.contraction import matrix_product
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
from vkep.ops.registry import FLOATS, operator

_FLOAT32 = DTYPES["float32"]
_TYPES = (*FLOATS, "bfloat16", "float64")


def _widened(b: Builder, *tensors: Tensor | None) -> list[Any]:
    """bfloat16 tensors as float32, in which such a layer computes; others unchanged."""
    return [b.cast(t, _FLOAT32) if t is not None and t.dtype.name == "bfloat16" else t for t in tensors]


def step_rows(inputs: Tensor, step: int) -> Tensor:
    """The inputs' part of one step: [batch, gates * hidden]."""
    return rows_of(inputs, step, 0, inputs.shape[1])


def _rnn_steps(layer: Layer, d: int, f: Activation, inputs: Tensor, r: Tensor, h: Tensor) -> Tensor:
    inputs = layer.in_slots(inputs, d)
    for t in layer.order(d):
        value = sum_of(layer.b, step_rows(inputs, t), recurrence(layer.b, h, r))
        h = layer.emit(f(layer.b, value), h, t, d)
    return layer.last(h, d)


@operator("RNN", since=7, types={"T": _TYPES, "T1": ("int32",)})
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


@operator("GRU", since=7, types={"T": _TYPES, "T1": ("int32",)})
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


@operator("LSTM", since=7, types={"T": _TYPES, "T1": ("int32",)})
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
            wide = c if c.dtype.name == "float64" else b.cast(c, _FLOAT32)
            last = _lstm_steps(layer, d, functions[d], inputs, weights, peepholes, h, wide, forget)
        last_h.append(last[0])
        last_c.append(last[1])
    return [b.cast(t, dtype) for t in results(layer, a.layout, last_h, last_c)]
