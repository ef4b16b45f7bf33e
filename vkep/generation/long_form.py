"""How the windows of a long sound follow each other: which text a window's answer continues, which answers are made again at a
higher temperature, and which windows have no speech.

The rules are those of OpenAI's decoder (arXiv:2212.04356, section 4.5) and of transformers'
``WhisperForConditionalGeneration``, whose names the settings have.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Real
from typing import TYPE_CHECKING, Any

from vkep.errors import InvalidInputError
from vkep.generation.speech import Segment, Speech
from vkep.text import shown

if TYPE_CHECKING:
    from vkep.generation.batch import Answer

#: the longest sequence of Whisper's models, where no file says it
_CONTEXT = 448
#: OpenAI's settings of answers that are made again
OPENAI: Mapping[str, Any] = {
    "temperature": (0.0, 0.2, 0.4, 0.6, 0.8, 1.0),
    "compression_ratio_threshold": 2.4,
    "logprob_threshold": -1.0,
    "no_speech_threshold": 0.6,
}
#: from this temperature on, the next window does not continue an answer's text
_HIGH = 0.5


@dataclass(frozen=True)
class LongForm:
    """The settings of a transcription of many windows.

    condition_on_prev_tokens: a window's answer continues the text of those before it. temperature: an answer that fails one of
    the next two tests is made again at the next of these; none: at that of `Sampling` alone. compression_ratio_threshold: it
    fails if zlib makes its tokens smaller by more than this factor, since it repeats itself. logprob_threshold: it fails if the
    mean of its tokens' logarithms of probabilities is less. no_speech_threshold: where that mean is less and the probability of
    no speech is more than this, the window has no speech. None: no test.

    Raises `InvalidInputError` for values out of range, or of other types.
    """

    condition_on_prev_tokens: bool = False
    temperature: Sequence[float] = ()
    compression_ratio_threshold: float | None = None
    logprob_threshold: float | None = None
    no_speech_threshold: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.condition_on_prev_tokens, bool):
            raise InvalidInputError(
                f"condition_on_prev_tokens is {shown(self.condition_on_prev_tokens)}, expected True or False"
            )
        if not all(_is_number(t) and t >= 0 for t in self.temperature):
            raise InvalidInputError(f"temperature is {shown(self.temperature)}, expected numbers of 0 or more")
        for name in ("compression_ratio_threshold", "logprob_threshold", "no_speech_threshold"):
            value = getattr(self, name)
            if value is not None and not _is_number(value):
                raise InvalidInputError(f"{name} is {shown(value)}, expected a number, or None")
        if self.no_speech_threshold is not None and self.logprob_threshold is None:
            raise InvalidInputError("no_speech_threshold is set and logprob_threshold is not: both decide together")

    @classmethod
    def taken(cls, settings: Mapping[str, Any]) -> tuple[LongForm, dict[str, Any]]:
        """Those among some settings, and the rest, which are of `Sampling`, as a single ``temperature``. Raises as the class."""
        own = {f.name: settings[f.name] for f in fields(cls) if f.name in settings}
        if isinstance(own.get("temperature"), (list, tuple)):
            own["temperature"] = tuple(own["temperature"])
        else:
            own.pop("temperature", None)
        return cls(**own), {name: value for name, value in settings.items() if name not in own}

    @property
    def weighs(self) -> bool:
        """Whether logarithms of probabilities are needed."""
        return self.logprob_threshold is not None

    def fails(self, answer: Answer, end: int, vocabulary: int) -> bool:
        """Whether an answer that has ended is to be made again."""
        tokens = [*answer.tokens, *([end] if answer.reason == "stop" else [])]
        most = self.compression_ratio_threshold
        repeats = most is not None and compression_ratio(tokens, vocabulary) > most
        return repeats or self.is_unlikely(answer)

    def is_unlikely(self, answer: Answer) -> bool:
        """Whether the mean of an answer's logarithms of probabilities is below the threshold."""
        return self.logprob_threshold is not None and mean_logprob(answer) < self.logprob_threshold

    def continues(self, temperature: float) -> bool:
        """Whether the next window continues the text of an answer at this temperature."""
        return self.condition_on_prev_tokens and temperature < _HIGH


def prompt_of(speech: Speech, segments: Sequence[Segment], context: int) -> tuple[int, ...]:
    """The first tokens of an answer that continues ``segments``: the token that says so, and the last tokens of these; () where
    there are none."""
    if not segments or speech.previous is None:
        return ()
    tokens = [token for segment in segments for token in _without_next(speech, segment.tokens)]
    return (speech.previous, *tokens[-((context or _CONTEXT) // 2 - 1) :])


def _without_next(speech: Speech, tokens: Sequence[int]) -> Sequence[int]:
    """A segment's tokens without the time at which the next one begins, which may follow its own end."""
    return tokens[:-1] if len(tokens) > 2 and tokens[-2] >= speech.first_time else tokens


def compression_ratio(tokens: Sequence[int], vocabulary: int) -> float:
    """By which factor zlib makes tokens smaller, as numbers of the bytes that the vocabulary needs."""
    size = int(math.log2(vocabulary) / 8) + 1
    content = b"".join(token.to_bytes(size, "little") for token in tokens)
    return len(content) / len(zlib.compress(content))


def mean_logprob(answer: Answer) -> float:
    """The mean of the logarithms of the probabilities of an answer's tokens, the end token among them."""
    found = [*answer.logprobs, *([answer.end_logprob] if answer.end_logprob is not None else [])]
    return sum(one.value for one in found) / max(len(found), 1)


def _is_number(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)
