"""How the next token is chosen: the settings, and the graph that chooses on the device."""

from __future__ import annotations

import random
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from vkep.errors import InvalidInputError

Array = np.ndarray[Any, Any]

#: logits further below the best one than this (after the temperature) are never chosen: their probability is below e^-32
_RANGE = 32.0
#: each round of a search divides the interval that contains a threshold by `_LEVELS` + 1
_LEVELS, _ROUNDS = 15, 5
#: columns of the per-sequence settings that are an input of each run
_COLUMNS = ("temperature", "top_k", "top_p", "min_p", "penalty", "chance")
#: token ids that a penalty reads are padded to a multiple of this, so that few shapes occur
_PADDED = 64


@dataclass(frozen=True)
class Sampling:
    """How one answer is generated. Filters apply in the order of the fields, after ``repetition_penalty``.

    temperature: 0 always takes the most probable token. top_k: only the k most probable tokens; 0: all. top_p: only the
    most probable tokens that together have this share of what is left. min_p: only tokens of at least this share of the
    most probable one's probability. repetition_penalty: divides the logits (multiplies negative ones) of tokens that
    occurred, prompt included (arXiv:1909.05858). seed: the same seed gives the same tokens, whatever else is in the
    batch; None: a different one each time. max_tokens: of the answer; None: until the context is full. stop: texts that
    end the answer; they are not part of it. stop_tokens: ids that end it, besides the model's own. ignore_end: the
    model's own end tokens do not end the answer.

    Raises `InvalidInputError` for values out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    max_tokens: int | None = None
    stop: Sequence[str] = ()
    stop_tokens: Sequence[int] = ()
    ignore_end: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        wrong = [
            f"{name} is {getattr(self, name)!r}, expected {expected}"
            for name, expected, fits in (
                ("temperature", "0 or more", 0 <= self.temperature < float("inf")),
                ("top_k", "a whole number of 0 or more", isinstance(self.top_k, int) and self.top_k >= 0),
                ("top_p", "more than 0, up to 1", 0 < self.top_p <= 1),
                ("min_p", "0 to 1", 0 <= self.min_p <= 1),
                ("repetition_penalty", "more than 0", 0 < self.repetition_penalty < float("inf")),
                ("max_tokens", "1 or more, or None", self.max_tokens is None or self.max_tokens >= 1),
                ("stop", "texts that are not empty", all(isinstance(s, str) and s for s in self.stop)),
            )
            if not fits
        ]
        if wrong:
            raise InvalidInputError("; ".join(wrong))


@dataclass
class Chances:
    """The random numbers of a sequence: the n-th depends only on the seed and n, so that a step may be repeated."""

    seed: int = field(default_factory=lambda: secrets.randbits(63))

    def at(self, index: int) -> float:
        """The n-th number, in [0, 1), exact in float32."""
        return random.Random(f"{self.seed}:{index}").getrandbits(23) / 2**23


def settings_of(sampling: Sampling, chance: float) -> tuple[float, ...]:
    """A row of the settings that the graph reads."""
    s = sampling
    return (s.temperature, float(s.top_k), s.top_p, s.min_p, s.repetition_penalty, chance)


def padded(seen: Sequence[Sequence[int]]) -> Array:
    """Pad token ids that occurred to [batch, count] int64: shorter rows repeat their first one."""
    longest = max(map(len, seen))
    width = -(-longest // _PADDED) * _PADDED
    return np.array([[*row, *[row[0]] * (width - len(row))] for row in seen], np.int64)


@dataclass(frozen=True)
class Choice:
    """The options of the choosing graph that a batch's settings need."""

    sample: bool
    top_k: bool
    top_p: bool
    penalty: bool
    never: tuple[int, ...] = ()

    @classmethod
    def of(cls, each: Sequence[Sampling], never: tuple[int, ...] = ()) -> Choice:
        """The options that the settings of a batch need together; ``never`` are tokens that are not chosen."""
        hot = [s for s in each if s.temperature]
        penalty = any(s.repetition_penalty != 1 for s in each)
        return cls(bool(hot), any(s.top_k for s in hot), any(s.top_p < 1 for s in hot), penalty, never)

    @property
    def greedy(self) -> bool:
        """Whether every sequence takes its most probable token."""
        return not (self.sample or self.penalty or self.never)

    @property
    def reads_settings(self) -> bool:
        """Whether the graph has the input ``settings``."""
        return self.sample or self.penalty


def chooser(element: int, choice: Choice, vocabulary: int = 0) -> onnx.ModelProto:
    """The graph that chooses from the last logits of each sequence.

    Inputs: ``logits`` [batch, length, vocabulary] of the ONNX type ``element``; where ``choice`` asks for them
    ``settings`` float32 [batch, 6] and ``seen`` int64 [batch, count]. Outputs: ``tokens`` int64 [batch, 1], for the
    next step, and ``chosen`` int32 [batch], for the host. Where some tokens are never chosen, the size of the
    ``vocabulary`` is needed.

    Nothing is sorted: the thresholds of top-k and top-p are searched for by counting, several levels a round.
    """
    g = _Graph()
    g.input("logits", element, ["batch", "length", "vocabulary"])
    last = g.add("Slice", "logits", g.ints(-1), g.ints(2**31 - 1), g.ints(1))
    x = g.add("Cast", g.add("Squeeze", last, g.ints(1)), to=TensorProto.FLOAT)
    column: dict[str, str] = {}
    if choice.reads_settings:
        g.input("settings", TensorProto.FLOAT, ["batch", len(_COLUMNS)])
        for place, name in enumerate(_COLUMNS):
            column[name] = g.add("Slice", "settings", g.ints(place), g.ints(place + 1), g.ints(1))
    if choice.penalty:
        g.input("seen", TensorProto.INT64, ["batch", "count"])
        old = g.add("GatherElements", x, "seen", axis=1)
        weak, strong = g.add("Mul", old, column["penalty"]), g.add("Div", old, column["penalty"])
        new = g.add("Where", g.add("Less", old, g.number(0)), weak, strong)
        x = g.add("ScatterElements", x, "seen", new, axis=1)
    if choice.never:
        hidden = np.zeros((1, vocabulary), np.float32)
        hidden[0, list(choice.never)] = -np.inf
        x = g.add("Add", x, g.constant(hidden))
    token = g.add("ArgMax", x, axis=1, keepdims=1)
    if choice.sample:
        token = _sampled(g, x, token, column, choice)
    g.add("Identity", token, out="tokens")
    g.add("Cast", g.add("Squeeze", token, g.ints(1)), to=TensorProto.INT32, out="chosen")
    g.output("tokens", TensorProto.INT64, ["batch", 1])
    g.output("chosen", TensorProto.INT32, ["batch"])
    return g.model("chooser")


def _sampled(g: _Graph, x: str, best: str, column: dict[str, str], choice: Choice) -> str:
    """The first token at which the running sum of the remaining probabilities exceeds the random number."""
    greedy = g.add("Equal", column["temperature"], g.number(0))
    heat = g.add("Where", greedy, g.number(1), column["temperature"])
    z = g.add("Div", g.add("Sub", x, g.add("ReduceMax", x, g.ints(1), keepdims=1)), heat)
    p = g.add("Exp", z)
    lowest = g.add("Max", g.add("Log", column["min_p"]), g.number(-_RANGE))

    def left(level: str) -> str:
        return g.add("Where", g.add("GreaterOrEqual", z, level), p, g.number(0))

    if choice.top_k:
        every = g.add("Where", g.add("Equal", column["top_k"], g.number(0)), g.number(np.inf), column["top_k"])
        kept = _threshold(g, z, g.number(1), every)
        lowest = g.add("Max", lowest, kept)
    if choice.top_p:
        q = left(kept if choice.top_k else g.number(-_RANGE))
        wanted = g.add("Mul", column["top_p"], g.add("ReduceSum", q, g.ints(1), keepdims=1))
        wanted = g.add("Where", g.add("Equal", column["top_p"], g.number(1)), g.number(np.inf), wanted)
        lowest = g.add("Max", lowest, _threshold(g, z, g.add("Unsqueeze", q, g.ints(1)), wanted))
    sums = g.add("CumSum", left(g.add("Min", lowest, g.number(0))), g.ints(1, scalar=True))
    total = g.add("Slice", sums, g.ints(-1), g.ints(2**31 - 1), g.ints(1))
    wanted = g.add("Mul", column["chance"], total)
    place = g.add("ArgMax", g.add("Cast", g.add("Greater", sums, wanted), to=TensorProto.INT32), axis=1, keepdims=1)
    # the most probable one, where rounding keeps the sum below the random number
    none = g.add("GreaterOrEqual", wanted, total)
    return g.add("Where", g.add("Or", greedy, none), best, place)


def _threshold(g: _Graph, z: str, weights: str, wanted: str) -> str:
    """The highest level of ``z`` [batch, vocabulary], within the search's last step, such that ``weights`` (a number,
    or [batch, 1, vocabulary]) of the elements at or above it sum to ``wanted`` [batch, 1] or more; the lowest level
    where no such level exists."""
    high = g.add("Unsqueeze", z, g.ints(1))
    lowest, width = g.constant(np.full((1, 1), -_RANGE, np.float32)), _RANGE
    for _ in range(_ROUNDS):
        width /= _LEVELS + 1
        steps = g.constant(np.arange(1, _LEVELS + 1, dtype=np.float32)[None] * np.float32(width))
        levels = g.add("Unsqueeze", g.add("Add", lowest, steps), g.ints(2))
        above = g.add("Where", g.add("GreaterOrEqual", high, levels), weights, g.number(0))
        enough = g.add("GreaterOrEqual", g.add("ReduceSum", above, g.ints(2), keepdims=0), wanted)
        count = g.add("ReduceSum", g.add("Where", enough, g.number(width), g.number(0)), g.ints(1), keepdims=1)
        lowest = g.add("Add", lowest, count)
    return lowest


class _Graph:
    """Writes the nodes of a small graph."""

    def __init__(self) -> None:
        self._nodes: list[onnx.NodeProto] = []
        self._weights: dict[str, onnx.TensorProto] = {}
        self._ports: tuple[list[onnx.ValueInfoProto], list[onnx.ValueInfoProto]] = ([], [])

    def input(self, name: str, element: int, shape: Sequence[int | str]) -> None:
        self._ports[0].append(helper.make_tensor_value_info(name, element, shape))

    def output(self, name: str, element: int, shape: Sequence[int | str]) -> None:
        self._ports[1].append(helper.make_tensor_value_info(name, element, shape))

    def add(self, op: str, *inputs: str, out: str = "", **attributes: Any) -> str:
        name = out or f"v{len(self._nodes)}"
        self._nodes.append(helper.make_node(op, inputs, [name], **attributes))
        return name

    def constant(self, value: Array) -> str:
        name = f"c{len(self._weights)}"
        self._weights[name] = numpy_helper.from_array(value, name)
        return name

    def ints(self, value: int, scalar: bool = False) -> str:
        return self.constant(np.array(value if scalar else [value], np.int64))

    def number(self, value: float) -> str:
        return self.constant(np.array(value, np.float32))

    def model(self, name: str) -> onnx.ModelProto:
        graph = helper.make_graph(self._nodes, name, *self._ports, list(self._weights.values()))
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
