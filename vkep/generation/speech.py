"""Models of speech: the tokens of languages, tasks and times, and which token may follow in a transcription with times."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from vkep.errors import InvalidInputError

#: seconds between two tokens of times, and the frames of features between them
SECONDS, FRAMES = 0.02, 2
_LANGUAGE = re.compile(r"<\|([a-z]{2,3})\|>")
_TASKS = ("transcribe", "translate")
#: the text of the token after which an answer has no times
NO_TIMES = "<|notimestamps|>"
#: the text of the token that the text of earlier windows begins with
PREVIOUS = "<|startofprev|>"
#: the latest first time of an answer, where no file says it: one second (arXiv:2212.04356, section 4.5)
_LATEST = 50
#: the id that stands for a token that a model does not have, above all others
_NONE = 1 << 62


@dataclass(frozen=True)
class Speech:
    """The tokens of a model of speech in Whisper's form (arXiv:2212.04356, section 2.3).

    begin: what answers begin with. languages, tasks: token ids by name, such as "en" and "transcribe"; a model of one language
    has none. no_times: the token after which an answer has no times; those of the times follow it, one for each 0.02 s. end: what
    ends an answer. latest: the latest first time, in steps of 0.02 s. previous: what the text of earlier windows begins with, if
    the model has such a token.
    """

    begin: int
    no_times: int
    end: int
    languages: Mapping[str, int] = field(default_factory=dict)
    tasks: Mapping[str, int] = field(default_factory=dict)
    latest: int = _LATEST
    previous: int | None = None

    @classmethod
    def of_tokens(cls, ids: Mapping[str, int], begin: Sequence[int], end: Sequence[int]) -> Speech | None:
        """The tokens by their texts, as in a tokenizer; None where it has none of times."""
        if NO_TIMES not in ids or not begin or not end:
            return None
        languages = {found[1]: i for text, i in ids.items() if (found := _LANGUAGE.fullmatch(text))}
        tasks = {name: ids[f"<|{name}|>"] for name in _TASKS if f"<|{name}|>" in ids}
        return cls(begin[0], ids[NO_TIMES], min(end), languages, tasks, previous=ids.get(PREVIOUS))

    @classmethod
    def untimed(cls, begin: int, end: Sequence[int]) -> Speech:
        """The tokens of a model whose answers are text alone (Moonshine, arXiv:2410.15608)."""
        return cls(begin, _NONE, min(end, default=_NONE))

    @property
    def has_times(self) -> bool:
        """Whether the model has tokens of times, and one of no speech."""
        return self.no_times != _NONE

    @property
    def no_speech(self) -> int:
        """The token whose probability after the first one is that of no speech: the one before `no_times`."""
        return self.no_times - 1

    @property
    def first_time(self) -> int:
        """The token of 0 seconds."""
        return self.no_times + 1

    def start(self, language: str | None, task: str, times: bool) -> tuple[int, ...]:
        """The first tokens of an answer in a language and for a task, with times or without. A model of one language has no
        tokens for these.

        Raises `InvalidInputError` for a language or a task that the model has no token for.
        """
        if task not in _TASKS:
            raise InvalidInputError(f"task is {task!r}, expected one of {', '.join(_TASKS)}")
        if not self.languages and (language not in (None, "en") or task != "transcribe"):
            raise InvalidInputError(
                f"language is {language!r} and task {task!r}; the model has no tokens for them: expected None or 'en', and "
                "'transcribe'"
            )
        if self.languages and language is not None and language not in self.languages:
            raise InvalidInputError(
                f"language is {language!r}, expected None or one of {', '.join(sorted(self.languages))}"
            )
        named = [self.languages.get(language or "en"), self.tasks.get(task)] if self.languages else []
        return (self.begin, *(i for i in named if i is not None), *(() if times else (self.no_times,)))


@dataclass(frozen=True)
class Bounds:
    """Which tokens may follow: of those before the times the ones from ``text`` on, of the times ``first`` to ``last``. If
    ``weighed``, only times may follow where they are together more probable than each other token."""

    text: int
    first: int
    last: int
    weighed: bool = True

    @classmethod
    def none(cls, vocabulary: int) -> Bounds:
        """Any token may follow."""
        return cls(0, 0, vocabulary - 1, weighed=False)

    @property
    def numbers(self) -> tuple[int, int, int, int]:
        """What the choosing graph reads."""
        return self.text, self.first, self.last, int(self.weighed)


def bounds(speech: Speech, vocabulary: int, tokens: Sequence[int]) -> Bounds:
    """Which tokens may follow an answer's ``tokens``: an answer begins with a time, times come in pairs (the end of a segment,
    and the begin of the next) except at the end, and never decrease.

    The rules are those of OpenAI's decoder for arXiv:2212.04356.
    """
    first, last = speech.first_time, vocabulary - 1
    if not tokens:
        return Bounds(first, first, min(first + speech.latest, last))
    after_time = tokens[-1] >= first
    after_two = len(tokens) < 2 or tokens[-2] >= first
    if after_time and after_two:
        return Bounds(0, vocabulary, last)
    latest = next((t for t in reversed(tokens) if t >= first), first - 1)
    if after_time:
        return Bounds(speech.end, latest, last)
    return Bounds(0, latest + 1, last)


@dataclass(frozen=True)
class Segment:
    """A part of a transcription: ``start`` and ``end`` in seconds from the sound's first sample, and the ``tokens``, with those
    of times. ``text`` is "" where the folder has no ``tokenizer.json``."""

    start: float
    end: float
    tokens: list[int]
    text: str = ""


def segments_of(speech: Speech, tokens: Sequence[int], frames: int) -> tuple[list[tuple[int, int, list[int]]], int]:
    """The segments of a window of ``frames`` frames, from its ``tokens`` without the end token: steps of 0.02 s at which each
    starts and ends, and its tokens. And how many frames the next window begins after this one: after the last time that ends a
    segment, or ``frames`` where the speech after it is known to be none.

    As transformers' ``WhisperForConditionalGeneration`` cuts a window.
    """
    first = speech.first_time
    is_time = [token >= first for token in tokens]
    cuts = [k for k in range(1, len(tokens)) if is_time[k - 1] and is_time[k]]
    if not cuts:
        times = [token - first for token in tokens if token >= first]
        end = times[-1] if times and times[-1] else frames // FRAMES
        return [(0, end, list(tokens))], frames
    ends_alone = is_time[-2:] == [False, True]
    cuts = [*cuts, len(tokens)] if ends_alone else [*cuts[:-1], cuts[-1] + 1]
    found, before = [], 0
    for cut in cuts:
        part = list(tokens[before:cut])
        end = part[-1 if ends_alone or cut != cuts[-1] else -2]  # the last one has the next segment's begin, too
        found.append((part[0] - first, end - first, part))
        before = cut
    return found, frames if ends_alone else FRAMES * found[-1][1]
