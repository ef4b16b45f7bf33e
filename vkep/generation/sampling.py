"""The settings of an answer, and its random numbers. This module imports little: see `vkep.generation.generator`."""

from __future__ import annotations

import random
import secrets
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any

from vkep.errors import InvalidInputError
from vkep.text import shown

#: limits of one answer's settings: each token of every answer waits while its text is compared with them
MOST_STOPS, LONGEST_STOP, MOST_TOKENS = 16, 1024, 4096
#: the most probable tokens that an answer may have logarithms of
MOST_LOGPROBS = 20


@dataclass(frozen=True)
class Sampling:
    """How one answer is generated. Filters apply in the order of the fields, after ``repetition_penalty``.

    temperature: 0 always takes the most probable token. top_k: only the k most probable tokens; 0: all. top_p: only the
    most probable tokens that together have this share of what is left. min_p: only tokens of at least this share of the
    most probable one's probability. repetition_penalty: divides the logits (multiplies negative ones) of tokens that
    occurred, prompt included (arXiv:1909.05858). seed: the same seed gives the same tokens, whatever else is in the
    batch; None: a different one each time. max_tokens: of the answer; None: until the context is full. stop: texts that
    end the answer; they are not part of it. stop_tokens: ids that end it, besides the model's own. ignore_end: the
    model's own end tokens do not end the answer. frequency_penalty, presence_penalty: subtracted from the logits of the answer's
    own tokens, for each time that a token occurred, and once. logit_bias: added to the logits of tokens, by id. logprobs: the
    number of most probable tokens that `Answer.logprobs` has beside the chosen one; None: no logarithms. grammar: the answer
    follows it (`vkep.generation.grammar`); "": none. timestamps: the answer of a model of speech has tokens of times;
    it is in English unless ``start`` has another language.
    adapter: the name of `Generator.load_adapter`; "": the model as it is.

    Raises `InvalidInputError` for values out of range, or of other types; there are up to 16 stop texts of up to 1,024
    characters, and up to 4,096 stop tokens.
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
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    logprobs: int | None = None
    grammar: str = ""
    timestamps: bool = False
    adapter: str = ""

    def __post_init__(self) -> None:
        wrong = []
        for name, (kind, low, high, expected) in _NUMBERS.items():
            value: Any = getattr(self, name)
            if value is None and name in ("seed", "max_tokens", "logprobs"):
                continue
            number = _number(value, kind)
            if number is None or not (low <= number <= high or (number == 0 and name == "temperature")):
                wrong.append(f"{name} is {shown(value)}, expected {expected}")
            else:
                object.__setattr__(self, name, number)
        stop: Any = (self.stop,) if isinstance(self.stop, str) else self.stop
        if not _is_list(stop, str, MOST_STOPS) or not all(0 < len(text) <= LONGEST_STOP for text in stop):
            wrong.append(f"stop is {shown(stop)}, expected up to {MOST_STOPS} texts of 1 to {LONGEST_STOP} characters")
        tokens: Any = self.stop_tokens
        if not _is_list(tokens, Integral, MOST_TOKENS) or not all(0 <= token < 1 << 31 for token in tokens):
            wrong.append(f"stop_tokens is {shown(tokens)}, expected up to {MOST_TOKENS} token ids")
        for name in ("ignore_end", "timestamps"):
            switch: Any = getattr(self, name)
            if not isinstance(switch, bool):
                wrong.append(f"{name} is {shown(switch)}, expected True or False")
        bias: Any = self.logit_bias
        numbers = _biases(bias)
        if numbers is None:
            wrong.append(
                f"logit_bias is {shown(bias)}, expected up to {MOST_TOKENS} token ids with numbers of -100 to 100"
            )
        for name in ("grammar", "adapter"):
            text: Any = getattr(self, name)
            if not isinstance(text, str):
                wrong.append(f"{name} is {shown(text)}, expected a text")
        if wrong:
            raise InvalidInputError("; ".join(wrong))
        object.__setattr__(self, "stop", tuple(stop))
        object.__setattr__(self, "stop_tokens", tuple(map(int, tokens)))
        object.__setattr__(self, "logit_bias", numbers)

    @property
    def biased(self) -> bool:
        """Whether numbers are added to its logits."""
        return bool(self.frequency_penalty or self.presence_penalty or self.logit_bias or self.grammar)


#: the kind and the range of each number, and the range in words. A step computes in float32
_NUMBERS: Mapping[str, tuple[type, float, float, str]] = {
    "temperature": (Real, 2.0**-126, 2.0**127, "0, or a number that float32 holds"),
    "top_k": (Integral, 0, 2**31 - 1, "a whole number of 0 or more"),
    "top_p": (Real, 2.0**-126, 1, "more than 0, up to 1"),
    "min_p": (Real, 0, 1, "0 to 1"),
    "repetition_penalty": (Real, 2.0**-126, 2.0**127, "more than 0"),
    "seed": (Integral, -(2**63), 2**64 - 1, "a whole number of 64 bits, or None"),
    "max_tokens": (Integral, 1, 2**31 - 1, "a whole number of 1 or more, or None"),
    "frequency_penalty": (Real, -100, 100, "-100 to 100"),
    "presence_penalty": (Real, -100, 100, "-100 to 100"),
    "logprobs": (Integral, 0, MOST_LOGPROBS, f"a whole number of 0 to {MOST_LOGPROBS}, or None"),
}


def _number(value: Any, kind: Any) -> float | int | None:
    """The value as Python's own number; None where it is no number of this kind, or one that no float holds."""
    if not isinstance(value, kind) or isinstance(value, bool):
        return None
    try:
        return int(value) if kind is Integral else float(value)
    except (OverflowError, ValueError):
        return None


def _biases(values: object) -> dict[int, float] | None:
    """Numbers by token; None where they are something else."""
    if not isinstance(values, Mapping) or len(values) > MOST_TOKENS:
        return None
    found = {_number(token, Integral): _number(value, Real) for token, value in values.items()}
    fits = all(
        token is not None and 0 <= token < 1 << 31 and value is not None and -100 <= value <= 100
        for token, value in found.items()
    )
    return {int(token or 0): float(value or 0) for token, value in found.items()} if fits else None


def _is_list(values: object, kind: type, most: int) -> bool:
    """Whether it is a sequence, or a set, of up to ``most`` values of this kind."""
    return (
        isinstance(values, (Sequence, Set))
        and not isinstance(values, (str, bytes))
        and len(values) <= most
        and all(isinstance(value, kind) and not isinstance(value, bool) for value in values)
    )


@dataclass
class Chances:
    """The random numbers of a sequence: the n-th depends only on the seed and n, so that a step may be repeated."""

    seed: int = field(default_factory=lambda: secrets.randbits(63))

    def at(self, index: int, use: str = "") -> float:
        """The n-th number for a use, in [0, 1), exact in float32."""
        return random.Random(f"{self.seed}:{index}{use}").getrandbits(23) / 2**23
