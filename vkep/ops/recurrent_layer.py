"""Common to LSTM, GRU and RNN: activations, directions, states, and the kernel that computes a whole sequence."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from vkep.dtypes import DType
from vkep.graph.attributes import RecurrentAttributes
from vkep.ir import algebra as fn
from vkep.ir import expr as ex
from vkep.ir.algebra import where
from vkep.ir.builder import Builder
from vkep.ir.code import generate
from vkep.ir.evaluate import evaluate
from vkep.ir.expr import Expr
from vkep.ir.tensor import Tensor
from vkep.kernels.indexing.pad import PadProblem
from vkep.kernels.recurrent import RecurrentProblem, carries
from vkep.ops.contraction import matrix_product
from vkep.sizes import active, hint, serves_others

#: a function of a value and parameters alpha and beta, and the parameters' defaults (None: has none)
_ACTIVATIONS: dict[str, tuple[Callable[..., Expr], float | None, float | None]] = {
    "relu": (lambda x, _, __: fn.relu(x), None, None),
    "tanh": (lambda x, _, __: fn.tanh(x), None, None),
    "sigmoid": (lambda x, _, __: fn.sigmoid(x), None, None),
    "affine": (lambda x, alpha, beta: alpha * x + beta, 1.0, 0.0),
    "leakyrelu": (lambda x, alpha, _: where(x < 0, alpha * x, x), 0.01, None),
    "thresholdedrelu": (lambda x, alpha, _: where(x > alpha, x, 0), 1.0, None),
    "scaledtanh": (lambda x, alpha, beta: alpha * fn.tanh(beta * x), 1.0, 1.0),
    "hardsigmoid": (lambda x, alpha, beta: fn.limited(alpha * x + beta, 0, 1), 0.2, 0.5),
    "elu": (lambda x, alpha, _: where(x < 0, alpha * fn.expm1(x), x), 1.0, None),
    "softsign": (lambda x, _, __: x / (1 + abs(x)), None, None),
    "softplus": (lambda x, _, __: fn.softplus(x), None, None),
}


@dataclass(frozen=True)
class Activation:
    """One activation function with its parameters, and the bound that its input is clipped to."""

    function: Callable[..., Expr]
    values: tuple[float, ...]
    clip: float | None

    def __call__(self, b: Builder, x: Expr) -> Expr:
        v, *values = b.reads(x, *self.values)
        if self.clip is not None:
            v, bound = b.reads(v, self.clip)
            v = fn.limited(v, -bound, bound)
        return self.function(v, *values)

    def of_array(self, x: np.ndarray) -> np.ndarray:
        """The function of a float64 array (which does not clip)."""
        return evaluate(self.function(ex.Leaf("float"), *self.values), lambda leaf: x, wide=True)

    def glsl(self, name: str) -> str:
        """A GLSL function (which does not clip)."""
        code = generate(self.function(ex.Leaf("float"), *self.values), lambda leaf: "x")
        return f"float {name}(float x) {{ {code.statements} return {code.result}; }}"


def activations_of(
    b: Builder, a: RecurrentAttributes, defaults: Sequence[str], directions: int
) -> list[list[Activation]]:
    """The activation functions of each direction; a gate's input is clipped first."""
    names = list(a.activations or list(defaults) * directions)
    if len(names) < len(defaults) * directions:
        b.invalid(f"{len(names)} activations {names}; expected {len(defaults)} for each of {directions} directions")
    left: tuple[Iterator[float], Iterator[float]] = iter(a.activation_alpha or ()), iter(a.activation_beta or ())
    made: list[Activation] = []
    for name in names:
        if name.lower() not in _ACTIVATIONS:
            b.invalid(f"activation {name!r} is none that ONNX lists")
        function, *parameters = _ACTIVATIONS[name.lower()]
        values = tuple(
            0.0 if default is None else next(source, default) for default, source in zip(parameters, left, strict=True)
        )
        if not all(map(math.isfinite, values)):
            b.decline(f"activation {name!r} with parameters {values}")
        # LSTM's third activation is for the cell, which ONNX Runtime does not clip
        made.append(Activation(function, values, a.clip if len(made) % len(defaults) < 2 else None))
    count = len(defaults)
    return [made[i * count : (i + 1) * count] for i in range(directions)]


#: least number of steps that a plan for any number of steps computes
_LEAST_ROOM = 16


def room_of(steps: int) -> int:
    """The number of steps that a plan computes: where theirs is a size, half as many again or more, to serve larger ones."""
    return max(_LEAST_ROOM, 1 << (hint(steps) * 3 // 2).bit_length()) if serves_others(steps) else steps


@dataclass
class Layer:
    """Common to the three operators: shapes, the order of steps, and the outputs.

    Steps have slots. Where their number is a size there are more slots (`room_of`): the first ones are the steps (the last
    ones, backwards), and the values of the others are not used.
    """

    b: Builder
    x: Tensor  #: [steps, batch, inputs]
    hidden: int
    directions: tuple[bool, ...]  #: True: the sequence is processed backwards
    lengths: Tensor | None
    y: Tensor  #: [steps, directions, batch, hidden]
    room: int  #: number of slots
    skips: bool = (
        True  #: whether runs skip the slots that no step has, where the batch is no size; else they compute them
    )
    #: [room, batch, hidden] of the hidden states ("h"), cells ("c") and results ("y") of a direction, where there are more slots
    slots: dict[tuple[int, str], Tensor] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        """Length of the sequences."""
        return self.x.shape[0]

    @property
    def batch(self) -> int:
        """Number of sequences."""
        return self.x.shape[1]

    def order(self, direction: int) -> Iterator[int]:
        """The slots in the order in which they are computed."""
        return iter(range(self.room - 1, -1, -1) if self.directions[direction] else range(self.room))

    def start(self, direction: int) -> int:
        """The slot of the first step."""
        return self.room - self.steps if self.directions[direction] and serves_others(self.steps) else 0

    def inputs_part(self, w: Tensor, bias: Tensor | None) -> Tensor:
        """``x @ w.T + bias`` for all steps: [steps, batch, gates * hidden]."""
        out = matrix_product(self.b, self.x, w.transpose((1, 0)))
        return out if bias is None else self.b.pointwise("add", out, bias)

    def in_slots(self, inputs: Tensor, direction: int) -> Tensor:
        """The inputs' part of all steps [steps, ...] as [room, ...]."""
        if not serves_others(self.steps):
            return inputs
        if self.steps >= self.room:
            raise AssertionError(f"{self.steps} steps in {self.room} slots")
        start = self.start(direction)
        return self._moved(inputs, start, self.room - self.steps - start)

    def _moved(self, t: Tensor, before: int, after: int) -> Tensor:
        """A tensor with more (or fewer) places before and after those of its first axis. It is read and written as a whole: which
        other accesses a part of it conflicts with would depend on sizes."""
        rest = (0,) * (t.rank - 1)
        problem = PadProblem(t.shape, (before, *rest), (after, *rest), t.dtype.name)
        return self.b.result(problem, t)

    def alive(self, step: int) -> Expr | None:
        """Whether each sequence of the batch reaches a step; None where all do."""
        if self.lengths is None:
            return None
        lengths = self.lengths.view((self.batch, 1), (self.lengths.strides[0], 0))
        return self.b.expr("gt", lengths, step, ctype="bool")

    def _place(self, slot: int, direction: int, kind: str, dtype: DType) -> Tensor | None:
        """Where a value of a slot is stored: a result in ``y`` if there is a slot for each step; None for a new tensor."""
        if serves_others(self.steps):
            if (direction, kind) not in self.slots:
                self.slots[direction, kind] = self.b.empty(dtype, (self.room, self.batch, self.hidden))
            row, step = _row(self.slots[direction, kind], slot), slot
            if self.directions[direction]:
                step = self.room - 1 - slot
            if serves_others(self.batch) or not self.skips:
                return row
            return row.view((active(self.steps - step, self.batch), self.hidden), row.strides)
        return _row(self.y.slice(1, direction, 1), slot, 2) if kind == "y" else None

    def keep(self, new: Expr, old: Tensor, slot: int, direction: int, kind: str) -> Tensor:
        """Store a state: the new one where the sequence continues, else the old one."""
        alive = self.alive(slot - self.start(direction))
        if alive is not None:
            new = self.b.expr("where", alive, new, old, ctype=new.ctype)
        out = self._place(slot, direction, kind, old.dtype)
        return self.b.store(new, old.dtype, shape=(self.batch, self.hidden), out=out)

    def emit(self, new: Expr, old: Tensor, slot: int, direction: int) -> Tensor:
        """Store a hidden state in ``y``, which is zero after a sequence's end; returns the state for the next step."""
        alive = self.alive(slot - self.start(direction))
        if alive is None:
            return self.keep(new, old, slot, direction, "y")
        state = self.keep(new, old, slot, direction, "h")
        out = self._place(slot, direction, "y", state.dtype)
        self.b.store(self.b.expr("where", alive, state, 0), state.dtype, out=out)
        return state

    def last(self, state: Tensor, direction: int) -> Tensor:
        """The state after the last step; ``state``: the one after the last slot."""
        found = [t for (d, _), t in self.slots.items() if d == direction and t.storage is state.storage]
        if not found:
            return state
        slot = self.start(direction) if self.directions[direction] else self.steps - 1
        return _row(self._moved(found[0], -slot, slot + 1 - self.room), 0)

    def finish(self) -> None:
        """Copy the results of the steps from their slots to ``y``."""
        for (direction, kind), made in self.slots.items():
            if kind == "y":
                out, start = self.y.slice(1, direction, 1), self.start(direction)
                out = out.view((out.shape[0], *out.shape[2:]), (out.strides[0], *out.strides[2:]))
                self.b.copy(self._moved(made, -start, start + self.steps - self.room), out=out)

    def finals(self, states: Sequence[Tensor]) -> Tensor:
        """Each direction's last state: [directions, batch, hidden]."""
        out = self.b.empty(self.x.dtype, (len(states), self.batch, self.hidden))
        for k, state in enumerate(states):
            target = out.slice(0, k, 1)
            source = ex.leaf(state)
            self.b.store(source, out.dtype, out=target.view(target.shape[1:], target.strides[1:]))
        return out


def _row(t: Tensor, index: int, axes: int = 1) -> Tensor:
    """An element of the first axis, without the first ``axes`` axes (of one element)."""
    row = t.slice(0, index, 1)
    return row.view(row.shape[axes:], row.strides[axes:])


def layer_of(
    b: Builder,
    gates: int,
    x: Tensor,
    r: Tensor,
    lengths: Tensor | None,
    others: Mapping[str, Tensor | None],
    a: RecurrentAttributes,
) -> Layer:
    """The layer over X, R, sequence_lens and ``others`` (by their names in ONNX). Raises `InvalidNode` where they disagree."""
    if a.direction not in ("forward", "reverse", "bidirectional"):
        b.invalid(f"direction {a.direction!r}")
    directions = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}[a.direction]
    if x.rank != 3 or r.rank != 3:
        b.invalid(f"X has shape {list(x.shape)} and R {list(r.shape)}; both have three axes")
    if a.layout:
        x = x.transpose((1, 0, 2))
    steps, batch, inputs = x.shape
    count, hidden = len(directions), a.hidden_size or r.shape[2]
    state = (batch, count, hidden) if a.layout else (count, batch, hidden)
    shapes = {
        "W": (count, gates * hidden, inputs),
        "R": (count, gates * hidden, hidden),
        "B": (count, 2 * gates * hidden),
        "sequence_lens": (batch,),
        "initial_h": state,
        "initial_c": state,
        "P": (count, 3 * hidden),
    }
    for name, tensor in {"R": r, "sequence_lens": lengths, **others}.items():
        b.expect(name, tensor, shapes[name])
    b.expect_range("sequence_lens", lengths, 0, steps)
    if a.layout:
        y = b.empty(x.dtype, (batch, steps, count, hidden)).transpose((1, 2, 0, 3))
    else:
        y = b.empty(x.dtype, (steps, count, batch, hidden))
    return Layer(b, x, hidden, directions, lengths, y, room_of(steps))


def rows_of(t: Tensor, index: int, start: int, length: int) -> Tensor:
    """Rows ``start`` to ``start + length`` of direction ``index``."""
    row = t.slice(0, index, 1).slice(1, start, length)
    return row.view(row.shape[1:], row.strides[1:])


def initial_state(layer: Layer, initial: Tensor | None, index: int, layout: int) -> Tensor:
    """A direction's initial state [batch, hidden]; 0 for a sequence without steps, whose last state ONNX Runtime leaves 0."""
    if initial is None or not layer.steps:
        return layer.b.full((layer.batch, layer.hidden), 0, layer.x.dtype)
    if layout:
        initial = initial.transpose((1, 0, 2))
    state = initial.slice(0, index, 1)
    state = state.view(state.shape[1:], state.strides[1:])
    alive = layer.alive(0)
    if alive is None:
        return state
    return layer.b.store(layer.b.expr("where", alive, state, 0), state.dtype, shape=state.shape)


def gate(gates: Tensor, index: int, hidden: int) -> Tensor:
    """One gate's part of the last axis."""
    return gates.slice(gates.rank - 1, index * hidden, hidden)


def results(layer: Layer, layout: int, *finals: Sequence[Tensor]) -> list[Tensor]:
    """The outputs Y, Y_h and Y_c of a layer."""
    layer.finish()
    states = [layer.finals(states) for states in finals]
    if not layout:
        return [layer.y, *states]
    return [layer.y.transpose((2, 0, 1, 3)), *(s.transpose((1, 0, 2)) for s in states)]


def bias_sum(b: Builder, bias: Tensor | None, d: int, gates: int, hidden: int) -> Tensor | None:
    """The input's and the recurrence's biases of a direction, added."""
    if bias is None:
        return None
    size = gates * hidden
    return b.pointwise("add", rows_of(bias, d, 0, size), rows_of(bias, d, size, size))


def _is_zero(state: Tensor) -> bool:
    return state.array is not None and not state.array.any()


def recurrence(b: Builder, state: Tensor, r: Tensor) -> Tensor | None:
    """``state @ r.T``; None for a state that is known to be zero."""
    return None if _is_zero(state) else matrix_product(b, state, r.transpose((1, 0)))


def sum_of(b: Builder, *parts: Tensor | Expr | None) -> Expr:
    """The sum of the parts that are not None; None without any."""
    given = [p for p in parts if p is not None]
    total = b.expr("same", given[0])
    for part in given[1:]:
        total = b.expr("add", total, part)
    return total


def carried(
    layer: Layer,
    cell: str,
    direction: int,
    functions: Sequence[Activation],
    inputs: Tensor,
    recurrent_weights: Tensor,
    *,
    h0: Tensor | None = None,
    c0: Tensor | None = None,
    bias: Tensor | None = None,
    peepholes: Tensor | None = None,
    input_forget: bool = False,
) -> Sequence[Tensor] | None:
    """All steps of a direction in one dispatch: the last hidden state and an LSTM's cells; None where the kernel is not
    suitable.

    ``inputs`` [steps, batch, gates * hidden] are the inputs' part; ``recurrent_weights`` [gates * hidden, hidden].
    """
    b, hidden = layer.b, layer.hidden
    optional = {"bias": bias, "peepholes": peepholes, "lengths": layer.lengths, "h0": h0, "c0": c0}
    given = {n: t for n, t in optional.items() if t is not None and (n == "lengths" or not _is_zero(t))}
    place = layer.y.slice(1, direction, 1)
    step, _, batch, unit = place.strides
    glsl = " ".join(f.glsl(f"act_{name}") for f, name in zip((*functions, *(functions[0],) * 2), "fgh", strict=False))
    problem = RecurrentProblem(
        cell,
        layer.steps,
        layer.batch,
        hidden,
        layer.x.dtype.name,
        glsl,
        (step, batch, unit),
        frozenset(given),
        layer.directions[direction],
        input_forget,
        math.inf if functions[0].clip is None else functions[0].clip,
        tuple(f.of_array for f in functions),
    )
    if not layer.steps or not carries(problem, b.caps):  # a dispatch of no steps would store no state
        return None
    weights = recurrent_weights.transpose((1, 0))
    states = [b.empty(layer.x.dtype, (layer.batch, hidden)) for _ in range(len(problem.makes()) - 1)]
    b.compute(problem, [b.contiguous(t) for t in (inputs, weights, *given.values())], [place, *states])
    return states
