"""The choice of the next token: the settings, and the graph that chooses on the device."""

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
from vkep.kernels.choose_token import SETTINGS
from vkep.ops.choose_token import GENERATION

Array = np.ndarray[Any, Any]

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
    penalty: bool
    never: tuple[int, ...] = ()

    @classmethod
    def of(cls, each: Sequence[Sampling], never: tuple[int, ...] = ()) -> Choice:
        """The options that the settings of a batch need together; ``never`` are tokens that are not chosen."""
        return cls(any(s.temperature for s in each), any(s.repetition_penalty != 1 for s in each), never)

    @property
    def greedy(self) -> bool:
        """Whether every sequence takes the most probable token."""
        return not (self.sample or self.penalty or self.never)


def chooser(element: int, choice: Choice) -> onnx.ModelProto:
    """Return the graph that chooses from the last logits of each sequence.

    Inputs: ``logits`` [batch, length, vocabulary] of the ONNX type ``element``; unless ``choice`` is greedy ``settings`` float32
    [batch, 6], and with its penalty ``seen`` int64 [batch, count]. Outputs: ``tokens`` int64 [batch, 1], the next step's input,
    and ``chosen`` int32 [batch], for the host.
    """
    inputs = [helper.make_tensor_value_info("logits", element, ["batch", "length", "vocabulary"])]
    weights: dict[str, Array] = {}
    if choice.greedy:
        weights = {name: np.array([value], np.int64) for name, value in (("from", -1), ("to", 2**31 - 1), ("axis", 1))}
        nodes = [
            helper.make_node("Slice", ["logits", "from", "to", "axis"], ["row"], name="row"),
            helper.make_node("ArgMax", ["row"], ["place"], name="place", axis=2, keepdims=0),
            helper.make_node("Identity", ["place"], ["tokens"], name="tokens"),
            helper.make_node("Squeeze", ["place", "axis"], ["flat"], name="flat"),
            helper.make_node("Cast", ["flat"], ["chosen"], name="chosen", to=TensorProto.INT32),
        ]
    else:
        inputs.append(helper.make_tensor_value_info("settings", TensorProto.FLOAT, ["batch", len(SETTINGS)]))
        if choice.penalty:
            inputs.append(helper.make_tensor_value_info("seen", TensorProto.INT64, ["batch", "count"]))
        if choice.never:
            weights["never"] = np.array(choice.never, np.int64)
        names = ["logits", "settings", "seen" if choice.penalty else "", "never" if choice.never else ""]
        nodes = [helper.make_node("ChooseToken", names, ["tokens", "chosen"], name="choose", domain=GENERATION)]
    outputs = [
        helper.make_tensor_value_info("tokens", TensorProto.INT64, ["batch", 1]),
        helper.make_tensor_value_info("chosen", TensorProto.INT32, ["batch"]),
    ]
    tensors = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "chooser", inputs, outputs, tensors)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(GENERATION, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)
