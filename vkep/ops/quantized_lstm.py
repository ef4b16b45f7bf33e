"""ONNX Runtime's own LSTMs (domain com.microsoft): DynamicQuantizeLSTM, AttnLSTM.

Semantics: the operators' schemas in ONNX Runtime (docs/ContribOperators.md), and its CPU provider's kernels.
"""

from __future__ import annotations

from vkep.dtypes import DTYPES
from vkep.graph.attributes import RecurrentAttributes
from vkep.ir import algebra as fn
from vkep.ir.algebra import where
from vkep.ir.builder import Builder
from vkep.ir.tensor import Tensor
from vkep.ops.contraction import matrix_product
from vkep.ops.generators import positions
from vkep.ops.microsoft import MICROSOFT
from vkep.ops.quantized.elementwise import dynamic_quantize_matmul
from vkep.ops.recurrent import lstm_step, step_rows
from vkep.ops.recurrent_layer import (
    Layer,
    activations_of,
    bias_sum,
    initial_state,
    layer_of,
    recurrence,
    results,
    rows_of,
)
from vkep.ops.reduction import reduce_axes
from vkep.ops.registry import operator

_FLOAT32 = DTYPES["float32"]
_REAL = ("float32",)
_BYTES = ("int8", "uint8")


@operator(
    "DynamicQuantizeLSTM",
    domain=MICROSOFT,
    types={
        "x bias initial_h initial_c p w_scale r_scale": _REAL,
        "w r w_zero_point r_zero_point": _BYTES,
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
                  f"{list(memory_weights.shape)} and {list(v.shape)}")  # fmt: skip
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
        attended = b.full((batch, state), 0, _FLOAT32)
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
        lambda key, asked, by: by * fn.tanh(key + asked), keys, query, v, dtype=_FLOAT32, shape=keys.shape
    )
    scores = reduce_axes(b, "sum", near, [2], keepdims=False)
    raised = b.expr("exp", scores)
    if lengths is not None:
        place, end = b.reads(positions(b, places), b.reshape(lengths, (batch, 1)))
        raised = where(place < end, raised, 0.0)
    shares = b.store(raised, _FLOAT32, shape=scores.shape)
    total = reduce_axes(b, "sum", shares, [1], keepdims=True)
    weights = b.pointwise("div", shares, total)
    return b.reshape(matrix_product(b, b.reshape(weights, (batch, 1, places)), memory), (batch, memory.shape[2]))
