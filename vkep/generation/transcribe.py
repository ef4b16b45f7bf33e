"""Sounds of any length as text, with times: a model of speech reads windows of 30 seconds one after the other.

A window begins where the last segment of the one before ended, as in OpenAI's decoder (arXiv:2212.04356, section 3.8) and in
transformers' ``WhisperForConditionalGeneration``. `vkep.generation.long_form` has what a window takes from those before it.
A model without tokens of times that reads samples (Moonshine) makes a segment of each window. A sound of more than 30 seconds is
then cut into about equal parts, each where it is quietest nearby.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from vkep.errors import InvalidInputError, VkepError
from vkep.generation.audio import Features, sound_of
from vkep.generation.batch import Answer, Batch, Reader, rows_of
from vkep.generation.encoder_decoder import EncoderDecoder
from vkep.generation.long_form import LongForm, prompt_of
from vkep.generation.rows import Rows, fed
from vkep.generation.sampling import Sampling
from vkep.generation.speech import FRAMES, PREVIOUS, SECONDS, Segment, Speech, segments_of
from vkep.memory import ArenaOutOfMemory

Array = np.ndarray[Any, Any]
#: frames: from an equal share's end to that of its part, and those that are quiet there
_NEAR, _QUIET = 200, 20


@dataclass(frozen=True)
class Transcript:
    """What was said in a sound. ``language`` is its code, such as "en" ("" where the model has no tokens for languages). ``text``
    and those of the segments are "" where the folder has no ``tokenizer.json``."""

    language: str
    segments: list[Segment]

    @property
    def text(self) -> str:
        """The texts of all segments."""
        return "".join(segment.text for segment in self.segments)

    @property
    def tokens(self) -> list[int]:
        """The tokens of all segments, with those of times."""
        return [token for segment in self.segments for token in segment.tokens]


@dataclass
class Sound:
    """A sound and how far it was read. ``given``: samples or features; ``features`` while it is read: float32 [bands, frames], or
    the samples for a model that reads them; ``total``: the frames that are read; ``start``: the first tokens of each window's
    answer, after the text that it continues."""

    given: Array
    features: Array | None = field(default=None, repr=False)
    total: int = 0
    language: str = ""
    start: tuple[int, ...] = ()
    seek: int = 0
    frames: int = 0  #: of the window, or of the last one
    window: Any = None  #: the encoder's input, as of `EncoderDecoder.source`
    prompt: tuple[int, ...] = ()  #: the first tokens of the window's answer
    segments: list[Segment] = field(default_factory=list, repr=False)  #: which the next window's answer may continue
    continues: bool = True  #: whether it does
    attempt: int = 0  #: of the window, each at another temperature
    reader: Reader | None = field(default=None, repr=False)

    @property
    def ended(self) -> bool:
        """Whether the last window was read, once one was."""
        return self.window is None and self.seek >= self.total

    def release(self) -> None:
        """Drop what only reading needs, the encoder's results on the device among them."""
        self.features = self.window = self.reader = None


class Transcriber:
    """Transcribes sounds with a batch of answers, in which each sound has one at a time.

    Raises `InvalidInputError` for a model that is none of speech, a language or a task that it has no token for, and for
    settings that answers with times do not take.
    """

    def __init__(
        self,
        decoder: Any,
        decode: Callable[[Sequence[int]], str],
        language: str | None,
        task: str,
        sampling: Sampling,
        long_form: LongForm,
    ) -> None:
        folder = decoder.folder
        if not isinstance(decoder, EncoderDecoder) or (folder.speech is None and not decoder.reads_samples):
            raise InvalidInputError(
                f"no file of {folder.path} has tokens of times, and no encoder reads samples: transcribe needs a model of speech"
            )
        if sampling.stop or sampling.grammar:
            raise InvalidInputError("stop and grammar do not belong to transcriptions")
        self._model, self._decode, self._form = decoder, decode, long_form
        if long_form.weighs and sampling.logprobs is None:
            sampling = replace(sampling, logprobs=0)
        self._speech: Speech = folder.speech or Speech.untimed(folder.start_tokens[0], sorted(folder.end_tokens))
        sampling = replace(sampling, timestamps=self._speech.has_times)
        #: of the attempts at a window
        self._samplings = [replace(sampling, temperature=t) for t in long_form.temperature] or [sampling]
        self._task, self._language = task, language
        self._speech.start(language, task, times=True)  # raises before anything runs
        if long_form.condition_on_prev_tokens and self._speech.previous is None:
            raise InvalidInputError(
                f"condition_on_prev_tokens is True, and no file of {folder.path} has the token {PREVIOUS} (prev_sot_token_id)"
            )
        self._sizes = Features.read(folder.path)
        self._apart: Rows = rows_of(decoder, 1)  #: for answers' first logits alone

    def sound(self, given: Any) -> Sound:
        """A sound from samples at the model's rate float32 [count], or features [bands, frames]. Raises `InvalidInputError`."""
        bands = 0 if self._model.reads_samples else self._sizes.bands
        return Sound(sound_of(given, rate=self._sizes.rate, bands=bands))

    @property
    def decoder(self) -> EncoderDecoder:
        """The model."""
        return self._model

    def prepare(self, sound: Sound) -> None:
        """Compute a sound's features, where they are not there yet: the first window's `begin` does it otherwise."""
        if sound.features is None:
            sound.features = self._features(sound.given)
            sound.total = -(-sound.features.shape[-1] // self._step)

    @property
    def _step(self) -> int:
        """Of a sound's features, those of a frame."""
        return max(round(self._sizes.rate * SECONDS / FRAMES), 1) if self._model.reads_samples else 1

    def _features(self, array: Array) -> Array:
        if array.ndim == 2 or self._model.reads_samples:
            return array
        most = self._sizes.frames * self._sizes.hop
        return self._sizes.of(np.pad(array, (0, max(most - array.size, 0))))

    def segments(self, batch: Batch, sounds: Sequence[Sound], limit: int) -> Iterator[tuple[int, Segment]]:
        """The segments as they are made, with the number of their sound; up to ``limit`` answers are in progress at the same
        time, those of others among them. Raises as `Batch.step`."""
        waiting, reading = deque(enumerate(sounds)), dict[int, Sound]()
        try:
            while waiting or reading:
                while waiting and len(batch.in_progress) < limit:
                    number, sound = waiting[0]
                    try:
                        self.begin(batch, sound)
                    except ArenaOutOfMemory:
                        if not batch.in_progress:
                            raise
                        break  # until the caches of another answer are free
                    reading[number] = sound
                    waiting.popleft()
                batch.step()
                for number, sound in list(reading.items()):
                    assert sound.reader is not None
                    if not sound.reader.answer.ended:
                        continue
                    for segment in self.finished(sound):
                        yield number, segment
                    del reading[number]
                    if sound.ended:
                        sound.release()
                    else:
                        waiting.appendleft((number, sound))
        finally:
            for sound in reading.values():
                if sound.reader is not None:
                    batch.leave(sound.reader)
            for sound in sounds:
                sound.release()
            self.close()

    def close(self) -> None:
        """Free the memory; idempotent."""
        self._apart.close()

    def begin(self, batch: Batch, sound: Sound) -> None:
        """Begin the answer to a sound's next window, or make that of the last one again."""
        if sound.window is None:
            self._next_window(sound)
        sound.reader = batch.read(sound.window, self._samplings[sound.attempt], start=sound.prompt)

    def _next_window(self, sound: Sound) -> None:
        size = self._sizes.frames
        self.prepare(sound)
        assert sound.features is not None
        if self._model.reads_samples:
            end = end_of_part(sound.features, self._step, round(self._sizes.seconds * FRAMES / SECONDS), sound.seek)
            sound.frames = end - sound.seek
            window = self._model.source(sound.features[sound.seek * self._step : end * self._step])
        else:
            sound.frames = min(sound.total - sound.seek, size)
            part = sound.features[:, sound.seek : sound.seek + sound.frames]
            window = self._model.source(np.pad(part, ((0, 0), (0, size - part.shape[1]))))
        if not sound.start:
            language = self._language
            if language is None and self._speech.languages:
                language = self._detected(window)
            sound.language = (language or "") if self._speech.languages else ""
            sound.start = self._speech.start(language, self._task, times=True)
        earlier = prompt_of(self._speech, sound.segments if sound.continues else (), self._model.folder.context)
        sound.prompt = (*earlier, *sound.start)
        sound.window = window  # last: where memory was missing, all of it is made again

    def _detected(self, window: Any) -> str:
        """The most probable language of a window, by the token after the first one."""
        logits = self._after(window, [self._speech.begin])
        return max(self._speech.languages, key=lambda name: float(logits[self._speech.languages[name]]))

    def _after(self, window: Any, tokens: Sequence[int]) -> Array:
        """The logits [vocabulary] of the token after some of an answer."""
        made = fed(self._apart, self._apart.take(tokens, (), window), tokens)
        logits: Array = made.logits.numpy()[0, -1].astype(np.float64)
        return logits

    def _has_no_speech(self, sound: Sound, answer: Answer) -> bool:
        most = self._form.no_speech_threshold
        if most is None or not self._speech.has_times or not self._form.is_unlikely(answer):
            return False
        first = len(answer.prompt) - len(sound.start)
        logits = self._after(sound.window, answer.prompt[: first + 1])
        return float(np.exp(logits[self._speech.no_speech] - np.logaddexp.reduce(logits))) > most

    def finished(self, sound: Sound) -> list[Segment]:
        """The segments of a window whose answer has ended; the sound continues after them. None where the window's answer is made
        again. Raises `VkepError` where the answer was not finished."""
        assert sound.reader is not None
        answer = sound.reader.answer
        if answer.error is not None:
            raise answer.error
        if answer.reason in ("memory", "cancelled"):
            raise VkepError(f"a window at {sound.seek * SECONDS / FRAMES:.2f} s was not finished: {answer.reason}")
        frames = sound.frames
        sound.continues = self._form.continues(answer.sampling.temperature)
        silent = self._has_no_speech(sound, answer)
        if not silent and self._form.fails(answer, self._speech.end, self._model.vocabulary):
            sound.attempt += 1
            if sound.attempt < len(self._samplings):
                return []
        sound.window, sound.attempt = None, 0
        if silent:
            sound.seek += frames
            return []
        found: Sequence[tuple[float, float, list[int]]] = [(0, frames / FRAMES, list(answer.tokens))]
        advance = frames
        if self._speech.has_times:
            found, advance = segments_of(self._speech, answer.tokens, frames)
        offset, text = sound.seek * SECONDS / FRAMES, self._following if sound.seek else self._text
        sound.seek += advance
        made = [
            Segment(offset + start * SECONDS, offset + end * SECONDS, tokens, text(tokens))
            for start, end, tokens in found
        ]
        sound.segments = (sound.segments + made) if self._form.condition_on_prev_tokens else []
        return made

    def _text(self, tokens: Sequence[int]) -> str:
        return self._decode([token for token in tokens if token < self._speech.no_times])

    def _following(self, tokens: Sequence[int]) -> str:
        """The text of tokens as it follows another one: a tokenizer of pieces leaves out the space before a text's first word."""
        for token in tokens:
            before = self._text([token])
            if before and "\N{REPLACEMENT CHARACTER}" not in before:  # a whole character
                return self._text([token, *tokens]).removeprefix(before)
        return self._text(tokens)


def end_of_part(samples: Array, step: int, most: int, begin: int) -> int:
    """The frame, of ``step`` samples, at which a part of a sound ends that begins at another; it has up to ``most`` frames. A
    longer sound has equal shares, each of whose ends moves by up to two seconds to where a fifth of a second has the least
    energy."""
    total = -(-samples.size // step)
    near = min(_NEAR, most // 10)
    parts = -(-total // (most - 2 * near)) if total > most else 1
    part = round(begin * parts / total) + 1
    if part == parts:
        return total
    first = part * total // parts - near
    energy = np.square(samples[first * step : (first + 2 * near) * step].astype(np.float64)).reshape(-1, step).sum(1)
    return first + int(np.convolve(energy, np.ones(_QUIET), "valid").argmin()) + _QUIET // 2
