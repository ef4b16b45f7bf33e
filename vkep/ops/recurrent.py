"""LSTM, GRU and RNN: the inputs' part of every gate in one product, then a product and fused gates for each time step.

Semantics: ONNX LSTM, GRU and RNN; activations consume ``activation_alpha`` and ``activation_beta`` in order, as in ONNX
Runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from vkep.dtypes import DTYPES
from vkep.lowering import expr as ex
from vkep.lowering.builder import Builder
from vkep.lowering.expr import Expr
from vkep.lowering.tensor import Tensor
from vkep.ops.contraction import matrix_product
from vkep.ops.registry import FLOATS, operator

_FLOAT32 = DTYPES["float32"]
#: GLSL of {0} with parameters alpha {1} and beta {2}, and the parameters' defaults (None: has none)
_ACTIVATIONS: dict[str, tuple[str, float | None, float | None]] = {
    "relu": ("max({0}, 0.0)", None, None),
    "tanh": ("tanh(clamp({0}, -20.0, 20.0))", None, None),
    "sigmoid": ("(1.0 / (1.0 + exp(-{0})))", None, None),
    "affine": ("({1} * {0} + {2})", 1.0, 0.0),
    "leakyrelu": ("({0} < 0.0 ? {1} * {0} : {0})", 0.01, None),
    "thresholdedrelu": ("({0} > {1} ? {0} : 0.0)", 1.0, None),
    "scaledtanh": ("({1} * tanh(clamp({2} * {0}, -20.0, 20.0)))", 1.0, 1.0),
    "hardsigmoid": ("clamp({1} * {0} + {2}, 0.0, 1.0)", 0.2, 0.5),
    "elu": ("({0} < 0.0 ? {1} * (exp({0}) - 1.0) : {0})", 1.0, None),
    "softsign": ("({0} / (1.0 + abs({0})))", None, None),
    "softplus": ("({0} > 20.0 ? {0} : log(1.0 + exp({0})))", None, None),
}
Activation = Callable[[Expr], Expr]


def _activations(
    b: Builder,
    names: Sequence[str] | None,
    defaults: Sequence[str],
    directions: int,
    alphas: Sequence[float] | None,
    betas: Sequence[float] | None,
    clip: float | None,
) -> list[list[Activation]]:
    """The activation functions of each direction; the gates' input is clipped first."""
    names = list(names or list(defaults) * directions)
    if len(names) < len(defaults) * directions:
        b.decline(f"{len(names)} activations {names}; expected {len(defaults)} for each of {directions} directions")
    left: tuple[Iterator[float], Iterator[float]] = iter(alphas or ()), iter(betas or ())
    made: list[Activation] = []
    for name in names:
        if name.lower() not in _ACTIVATIONS:
            b.decline(f"activation {name!r} is none that ONNX lists")
        template, *parameters = _ACTIVATIONS[name.lower()]
        values = [0.0 if default is None else next(source, default) for default, source in zip(parameters, left, strict=True)]

        # LSTM's third activation is that of the cell, which ONNX Runtime does not clip
        bound = clip if len(made) % len(defaults) < 2 else None

        def apply(
            x: Expr, template: str = template, values: Sequence[float] = tuple(values), bound: float | None = bound
        ) -> Expr:
            clipped = x if bound is None else b.expr("clamp({0}, -{1}, {1})", x, bound)
            return b.expr(template, clipped, *values)

        made.append(apply)
    count = len(defaults)
    return [made[i * count : (i + 1) * count] for i in range(directions)]


@dataclass
class _Layer:
    """What the three operators share: shapes, the order of steps, and where results go."""

    b: Builder
    x: Tensor  #: [steps, batch, inputs]
    hidden: int
    directions: tuple[bool, ...]  #: True: backwards
    lengths: Tensor | None
    y: Tensor  #: [steps, directions, batch, hidden]

    @property
    def steps(self) -> int:
        return self.x.shape[0]

    @property
    def batch(self) -> int:
        return self.x.shape[1]

    def order(self, backwards: bool) -> Iterator[int]:
        return iter(range(self.steps - 1, -1, -1) if backwards else range(self.steps))

    def inputs_part(self, w: Tensor, bias: Tensor | None) -> Tensor:
        """``x @ w.T + bias`` for all steps: [steps, batch, gates * hidden]."""
        out = matrix_product(self.b, self.x, w.transpose((1, 0)))
        return out if bias is None else self.b.pointwise("({0} + {1})", out, bias)

    def alive(self, step: int) -> Expr | None:
        """Whether a sequence of the batch reaches a step; None where all do."""
        if self.lengths is None:
            return None
        lengths = self.lengths.view((self.batch, 1), (self.lengths.strides[0], 0))
        return self.b.expr("({0} > {1})", lengths, step, ctype="bool")

    def keep(self, new: Expr, old: Tensor, step: int, out: Tensor | None = None) -> Tensor:
        """Store a state: the new one where the sequence goes on, else the old one."""
        alive = self.alive(step)
        if alive is not None:
            new = self.b.expr("({0} ? {1} : {2})", alive, new, old, ctype="float")
        return self.b.store(new, old.dtype, shape=(self.batch, self.hidden), out=out)

    def emit(self, new: Expr, old: Tensor, step: int, direction: int) -> Tensor:
        """Store a hidden state in ``y``, which is zero after a sequence's end; the state to go on with."""
        place = self.y.slice(0, step, 1).slice(1, direction, 1)
        place = place.view(place.shape[2:], place.strides[2:])
        alive = self.alive(step)
        if alive is None:
            return self.keep(new, old, step, out=place)
        state = self.keep(new, old, step)
        self.b.store(self.b.expr("({0} ? {1} : 0.0)", alive, state, ctype="float"), state.dtype, out=place)
        return state

    def finals(self, states: Sequence[Tensor]) -> Tensor:
        """Each direction's last state: [directions, batch, hidden]."""
        out = self.b.empty(self.x.dtype, (len(states), self.batch, self.hidden))
        for k, state in enumerate(states):
            target = out.slice(0, k, 1)
            source = ex.leaf(state)
            self.b.store(source, out.dtype, out=target.view(target.shape[1:], target.strides[1:]))
        return out


def _layer(
    b: Builder, x: Tensor, r: Tensor, lengths: Tensor | None, hidden_size: int | None, direction: str, layout: int
) -> _Layer:
    if direction not in ("forward", "reverse", "bidirectional"):
        b.decline(f"direction {direction!r}")
    directions = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}[direction]
    hidden = r.shape[-1]
    if hidden_size not in (None, hidden) or r.shape[0] != len(directions):
        b.decline(f"hidden_size {hidden_size} and recurrent weights {r.shape} for {len(directions)} directions")
    if layout:
        x = x.transpose((1, 0, 2))
    steps, batch = x.shape[:2]
    if not steps or not batch:
        b.decline("an empty sequence or batch")
    if layout:
        y = b.empty(x.dtype, (batch, steps, len(directions), hidden)).transpose((1, 2, 0, 3))
    else:
        y = b.empty(x.dtype, (steps, len(directions), batch, hidden))
    return _Layer(b, x, hidden, directions, lengths, y)


def _part(t: Tensor, index: int, start: int, length: int) -> Tensor:
    """Rows ``start`` to ``start + length`` of direction ``index``."""
    row = t.slice(0, index, 1).slice(1, start, length)
    return row.view(row.shape[1:], row.strides[1:])


def _state(layer: _Layer, initial: Tensor | None, index: int, layout: int) -> Tensor:
    """A direction's initial state [batch, hidden]."""
    if initial is None:
        return layer.b.full((layer.batch, layer.hidden), 0, layer.x.dtype)
    if layout:
        initial = initial.transpose((1, 0, 2))
    state = initial.slice(0, index, 1)
    return state.view(state.shape[1:], state.strides[1:])


def _gate(gates: Tensor, index: int, hidden: int) -> Tensor:
    return gates.slice(gates.rank - 1, index * hidden, hidden)


def _results(layer: _Layer, layout: int, *finals: Sequence[Tensor]) -> list[Tensor]:
    states = [layer.finals(states) for states in finals]
    if not layout:
        return [layer.y, *states]
    return [layer.y.transpose((2, 0, 1, 3)), *(s.transpose((1, 0, 2)) for s in states)]


def _bias_sum(b: Builder, bias: Tensor | None, d: int, gates: int, hidden: int) -> Tensor | None:
    """The input's and the recurrence's biases of a direction, added."""
    if bias is None:
        return None
    size = gates * hidden
    return b.pointwise("({0} + {1})", _part(bias, d, 0, size), _part(bias, d, size, size))


def _is_zero(state: Tensor) -> bool:
    return state.array is not None and not state.array.any()


def _recurrent(b: Builder, state: Tensor, r: Tensor) -> Tensor | None:
    """``state @ r.T``; None for a state that is known to be zero."""
    return None if _is_zero(state) else matrix_product(b, state, r.transpose((1, 0)))


def _sum(b: Builder, *parts: Tensor | Expr | None) -> Expr:
    given = [p for p in parts if p is not None]
    total = b.expr("{0}", given[0])
    for part in given[1:]:
        total = b.expr("({0} + {1})", total, part)
    return total


@operator("RNN", since=7, types={"T": FLOATS, "T1": ("int32",)})
def rnn(
    b: Builder,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    bias: Tensor | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
    *,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    activations: Sequence[str] | None = ("Tanh", "Tanh"),
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
) -> list[Tensor]:
    layer = _layer(b, x, r, sequence_lens, hidden_size, direction, layout)
    count = len(layer.directions)
    functions = _activations(b, activations, ("Tanh",), count, activation_alpha, activation_beta, clip)
    finals = []
    for d, backwards in enumerate(layer.directions):
        [f] = functions[d]
        hidden = layer.hidden
        part = layer.inputs_part(_part(w, d, 0, hidden), _bias_sum(b, bias, d, 1, hidden))
        h = _state(layer, initial_h, d, layout)
        for t in layer.order(backwards):
            total = _sum(b, _part(part, t, 0, layer.batch), _recurrent(b, h, _part(r, d, 0, hidden)))
            h = layer.emit(f(total), h, t, d)
        finals.append(h)
    return _results(layer, layout, finals)


@operator("GRU", since=7, types={"T": FLOATS, "T1": ("int32",)})
def gru(
    b: Builder,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    bias: Tensor | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
    *,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    activations: Sequence[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    linear_before_reset: int = 0,
) -> list[Tensor]:
    layer = _layer(b, x, r, sequence_lens, hidden_size, direction, layout)
    count, hidden = len(layer.directions), layer.hidden
    functions = _activations(b, activations, ("Sigmoid", "Tanh"), count, activation_alpha, activation_beta, clip)
    finals = []
    for d, backwards in enumerate(layer.directions):
        f, g = functions[d]
        part = layer.inputs_part(_part(w, d, 0, 3 * hidden), None if bias is None else _part(bias, d, 0, 3 * hidden))
        inner = [None if bias is None else _part(bias, d, (3 + k) * hidden, hidden) for k in range(3)]
        h = _state(layer, initial_h, d, layout)
        for t in layer.order(backwards):
            xz, xr, xh = (_gate(_part(part, t, 0, layer.batch), k, hidden) for k in range(3))
            rows = 3 * hidden if linear_before_reset else 2 * hidden
            product = _recurrent(b, h, _part(r, d, 0, rows))
            hz, hr = (None if product is None else _gate(product, k, hidden) for k in range(2))
            z, reset = f(_sum(b, xz, hz, inner[0])), f(_sum(b, xr, hr, inner[1]))
            if linear_before_reset:
                candidate: Tensor | Expr | None = None if product is None else _gate(product, 2, hidden)
                if candidate is not None or inner[2] is not None:
                    candidate = b.expr("({0} * {1})", reset, _sum(b, candidate, inner[2]))
            elif product is None:
                candidate = inner[2]
            else:
                mixed = b.store(b.expr("({0} * {1})", reset, h), h.dtype, shape=h.shape)
                candidate = _sum(b, matrix_product(b, mixed, _part(r, d, 2 * hidden, hidden).transpose((1, 0))), inner[2])
            new = g(_sum(b, xh, candidate))
            h = layer.emit(b.expr("((1.0 - {0}) * {1} + {0} * {2})", z, new, h), h, t, d)
        finals.append(h)
    return _results(layer, layout, finals)


@operator("LSTM", since=7, types={"T": FLOATS, "T1": ("int32",)})
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
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    activations: Sequence[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: int = 0,
    layout: int = 0,
) -> list[Tensor]:
    layer = _layer(b, x, r, sequence_lens, hidden_size, direction, layout)
    count, hidden = len(layer.directions), layer.hidden
    defaults = ("Sigmoid", "Tanh", "Tanh")
    functions = _activations(b, activations, defaults, count, activation_alpha, activation_beta, clip)
    last_h, last_c = [], []
    for d, backwards in enumerate(layer.directions):
        f, g, h_of = functions[d]
        part = layer.inputs_part(_part(w, d, 0, 4 * hidden), _bias_sum(b, bias, d, 4, hidden))
        peep = [None if p is None else _part(p, d, k * hidden, hidden) for k in range(3)]  # i, o, f
        h, c = _state(layer, initial_h, d, layout), b.cast(_state(layer, initial_c, d, layout), _FLOAT32)

        def watching(cell: Tensor | Expr, weight: Tensor | None) -> Expr | None:
            return None if weight is None else b.expr("({0} * {1})", cell, weight)

        for t in layer.order(backwards):
            product = _recurrent(b, h, _part(r, d, 0, 4 * hidden))
            gates = [
                (_gate(_part(part, t, 0, layer.batch), k, hidden), None if product is None else _gate(product, k, hidden))
                for k in range(4)  # i, o, f, c
            ]
            i = f(_sum(b, *gates[0], watching(c, peep[0])))
            forget = b.expr("(1.0 - {0})", i) if input_forget else f(_sum(b, *gates[2], watching(c, peep[2])))
            cell = b.expr("({0} * {1} + {2} * {3})", forget, c, i, g(_sum(b, *gates[3])))
            new_c = layer.keep(cell, c, t)
            o = f(_sum(b, *gates[1], watching(new_c, peep[1])))
            h, c = layer.emit(b.expr("({0} * {1})", o, h_of(b.expr("{0}", new_c))), h, t, d), new_c
        last_h.append(h)
        last_c.append(c)
    return _results(layer, layout, last_h, last_c)
