"""The settings of an answer, and its random numbers. This module imports little: see `vkep.generation.generator`."""

from __future__ import annotations

import random
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

from vkep.errors import InvalidInputError


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
