"""Answers that are generated together, and that join and leave at any step (continuous batching)."""

from __future__ import annotations

import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from gpu_shared.steady import check_wanted, closing, on_end, settle, steady
from gpu_shared.uncopied import Uncopied
from vkep.device.tensor import DeviceTensor
from vkep.errors import InvalidInputError, VkepError
from vkep.generation.biases import Bias
from vkep.generation.choices import Choice
from vkep.generation.choosing import Chooser
from vkep.generation.decoder import Adapter, Decoder, Made
from vkep.generation.draft import Draft
from vkep.generation.encoder_decoder import EncoderDecoder, SourceRows
from vkep.generation.joined_rows import JoinedRows
from vkep.generation.pace import Pace
from vkep.generation.rewrite import FIRST_FEATURE
from vkep.generation.rows import BufferRows, GrownRows, Rows
from vkep.generation.sampling import Chances, Sampling
from vkep.generation.speculation import Speculation
from vkep.generation.speech import bounds
from vkep.generation.text import TextStream
from vkep.generation.vision import Image, ids_of, images_of
from vkep.text import shown

if TYPE_CHECKING:
    from vkep.generation.grammar import Grammar

logger = logging.getLogger("vkep.generation")
_GREEDY = Sampling()
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Logprob:
    """The natural logarithm of the model's probability of a chosen token, and those of the most probable ones by token."""

    token: int
    value: float
    top: Mapping[int, float]


@dataclass(eq=False)
class Answer:
    """One answer, up to the latest step.

    ``reason`` says why it ended: "stop" (an end token or a stop text), "length" (``max_tokens``), "context" (the
    model's longest sequence is reached), "memory" (no memory for longer caches), "cancelled", "error" (the model refuses its
    prompt, or the tokenizer failed for its tokens: ``error`` says why); it is "" while the answer continues.
    """

    prompt: list[int]
    sampling: Sampling = field(repr=False)
    tokens: list[int] = field(default_factory=list)  #: without the end token
    text: str = ""
    reason: str = ""
    error: VkepError | None = field(default=None, repr=False)
    logprobs: list[Logprob] = field(default_factory=list, repr=False)  #: of ``tokens``, where the settings ask for them
    end_logprob: Logprob | None = field(default=None, repr=False)  #: the same of the end token
    _row: int = field(default=-1, repr=False)
    _turn: int = field(default=0, repr=False)  #: of its prompt among those of other answers
    _chances: Chances = field(default_factory=Chances, repr=False)
    _stream: TextStream | None = field(default=None, repr=False)
    _bias: Bias | None = field(default=None, repr=False)
    _adapter: Adapter | None = field(default=None, repr=False)
    _images: Sequence[Image] = field(default=(), repr=False)  #: of its prompt: their features are kept as long

    @property
    def ended(self) -> bool:
        """Whether the answer has ended."""
        return bool(self.reason)


@dataclass(frozen=True)
class _Ahead:
    """A step of all ``answers``, in ``rows``, that was submitted before the host had read the ``tokens`` that it runs."""

    answers: Sequence[Answer]
    tokens: list[int]
    rows: range
    held: list[int]  #: tokens that the caches of each row held before
    made: Made


@dataclass(frozen=True)
class Event:
    """The result of a step for one answer: a token (None: an end without one), the new text, and the reason if it
    ended."""

    answer: Answer
    token: int | None
    text: str
    reason: str
    logprob: Logprob | None = None


class Reader:
    """The one reader of an answer: the answer is cancelled when nothing refers to the reader."""

    __slots__ = ("__weakref__", "answer")

    def __init__(self, answer: Answer) -> None:
        self.answer = answer


class Batch(Uncopied):
    """Answers in progress, for one thread. `Generator.batch` makes one.

    `add` an answer at any time; each `step` processes the next part of a new prompt, and generates one token for every
    other answer.

    A call that is interrupted (Ctrl-C) is completed, or has no effect. The answers hold what an interrupted `step` added, and
    `in_progress` has the answer of an interrupted `add`.
    """

    _instead = "make another one by generator.batch()"

    def __init__(
        self,
        decoder: Decoder | EncoderDecoder,
        encode: Callable[[str], list[int]],
        stream: Callable[[Sampling], TextStream | None],
        begin: Callable[[str], Grammar],
        limit: int,
        lookup: int = 0,
        draft: Draft | None = None,
    ) -> None:
        self._decoder, self._encode, self._stream, self._begin = decoder, encode, stream, begin
        self._rows = rows_of(decoder, limit)
        self._chooser = Chooser(decoder)
        self._pace, self._turns = Pace(), 0
        # states of recurrent layers do not go back after a wrong guess
        guesses = isinstance(decoder, Decoder) and not decoder.has_states
        self._lookup, self._draft = lookup if guesses else 0, draft
        self._sampled = Speculation(decoder, draft) if isinstance(decoder, Decoder) and draft is not None else None
        self._in_progress: list[Answer] = []
        self._unread: deque[Answer] = deque()  # whose readers are deleted
        self._lock = threading.RLock()  # a call holds it; one may still run after its caller was interrupted
        #: whether a step is submitted before the host has read the tokens of the one before
        self.runs_ahead = not lookup and draft is None
        self._ahead: _Ahead | None = None
        # the tokens chosen last, on the device and on the host
        self._known: tuple[DeviceTensor, list[int]] | None = None
        self._known_from: Made | None = None  # the run that chose them, if it was the decoder's

    @property
    def decoder(self) -> Decoder | EncoderDecoder:
        """The model."""
        return self._decoder

    @property
    def in_progress(self) -> list[Answer]:
        """The answers that have not ended, in the order of `add`."""
        return [answer for answer in self._in_progress if answer not in self._unread]

    @steady
    def add(
        self, prompt: str | Sequence[int] | Array, sampling: Sampling | None = None, *, start: Sequence[int] = ()
    ) -> Answer:
        """Begin an answer to a text, or to token ids. Nothing runs yet.

        Of an encoder and a decoder: the encoder reads the prompt, which may be audio (`EncoderDecoder.source`), and the answer
        begins with the tokens ``start`` (none: as the folder says).

        Raises `InvalidInputError` for a prompt that is empty, too long for the model, or has tokens that it does not know, and
        where ``max_sequences`` answers are in progress; `ArenaOutOfMemory` where no memory is left for one more.
        """
        settle()
        with self._lock:
            check_wanted()
            self._cancel_unread()
            return self._add(prompt, sampling or self._decoder.folder.defaults, start)

    @steady
    def read(self, prompt: str | Sequence[int] | Array, sampling: Sampling, *, start: Sequence[int] = ()) -> Reader:
        """As `add`, of an answer that is cancelled where its reader is deleted."""
        reader = Reader(self.add(prompt, sampling, start=start))
        on_end(reader, self._unread.append, reader.answer, at_exit=False)
        return reader

    def _add(self, prompt: str | Sequence[int] | Array, sampling: Sampling, start: Sequence[int]) -> Answer:
        speech = self._decoder.folder.speech
        if sampling.timestamps and speech is None:
            raise InvalidInputError(f"timestamps is True; no file of {self._decoder.folder.path} has tokens of times")
        if sampling.timestamps and speech is not None and not len(start):
            start = speech.start(None, "transcribe", times=True)
        tokens, source = self.tokens_of(prompt, start)
        grammar = self._begin(sampling.grammar) if sampling.grammar else None
        known = self._decoder.adapters if isinstance(self._decoder, Decoder) else {}
        if sampling.adapter and sampling.adapter not in known:
            raise InvalidInputError(f"adapter is {shown(sampling.adapter)}; loaded are {sorted(known) or 'none'}")
        adapter = known.get(sampling.adapter)
        if adapter is None and isinstance(self._decoder, Decoder):
            adapter = self._decoder.adapter_for(images_of(prompt))
        row = self._rows.take(tokens, {a._row for a in self._in_progress}, source, adapter)
        chances = Chances() if sampling.seed is None else Chances(sampling.seed)
        bias = Bias(sampling, grammar) if sampling.biased else None
        answer = Answer(
            tokens,
            sampling,
            _row=row,
            _chances=chances,
            _stream=self._stream(sampling),
            _bias=bias,
            _adapter=adapter,
            _images=images_of(prompt),
        )
        self._wait_for_turn(answer)
        self._in_progress.append(answer)
        return answer

    def _wait_for_turn(self, answer: Answer) -> None:
        """Have an answer's prompt processed after those that wait now."""
        self._turns += 1
        answer._turn = self._turns

    def tokens_of(self, prompt: str | Sequence[int] | Array, start: Sequence[int]) -> tuple[list[int], Any]:
        """The tokens that an answer begins with; of a model with an encoder also its source. Raises `InvalidInputError` as
        `add`."""
        given = self._encode(prompt) if isinstance(prompt, str) else prompt
        if not isinstance(self._decoder, EncoderDecoder):
            if len(start):
                raise InvalidInputError("start belongs to models with an encoder: the prompt is where an answer begins")
            return self._checked(given), None
        start = start or self._decoder.folder.start_tokens
        if not len(start):
            raise InvalidInputError("no file of the folder has the tokens that an answer begins with: pass start")
        return self._checked(start), given

    def _checked(self, prompt: Sequence[int] | Array) -> list[int]:
        tokens, context = ids_of(prompt, self._decoder.vocabulary), self._decoder.folder.context
        if context and len(tokens) >= context:
            raise InvalidInputError(f"the prompt has {len(tokens)} tokens; the model takes {context} with the answer")
        return tokens

    @closing
    def cancel(self, answer: Answer) -> None:
        """Cancel an answer; does nothing where it has ended."""
        with self._lock:
            if answer in self._in_progress:
                self._end(answer, "cancelled")

    def leave(self, reader: Reader) -> None:
        """Cancel a reader's answer with the next call. Takes no lock: finalizers may call it."""
        self._unread.append(reader.answer)

    def _cancel_unread(self) -> None:
        while self._unread:
            self.cancel(self._unread.popleft())

    @steady
    def step(self) -> list[Event]:
        """Generate the next token of every answer in progress, and process the next part of one prompt.

        Raises as `InferenceSession.run`; then the answers are unchanged, and another step continues.
        """
        with self._lock:
            check_wanted()
            self._cancel_unread()
            for answer in self._in_progress:  # a step that failed is repeated
                self._rows.rewind(answer._row, len(answer.prompt) + len(answer.tokens) - 1)
            waiting = min(filter(self._is_behind, self._in_progress), key=lambda a: a._turn, default=None)
            ready = [a for a in self._in_progress if not self._is_behind(a)]
            if waiting is not None:
                self._rows.share(waiting._row, [*waiting.prompt, *waiting.tokens])
            part = self._rest(waiting)[: self._pace.most(len(ready))] if waiting is not None else []
            events = self._feed(waiting, part) if waiting is not None else []
            # Room for all before any of them: a run writes a position in each row between its first and its last.
            events += [event for a in ready if (event := self._without_memory(a)) is not None]
            ready = [a for a in ready if not a.ended]
            for adapter in dict.fromkeys(a._adapter for a in ready):  # weights are of a whole run
                events += self._decode([a for a in ready if a._adapter is adapter])
            self._pace.stepped(len(part), len(ready))
            return events

    def _rest(self, answer: Answer) -> list[int]:
        """The tokens of an answer and its prompt that the caches do not hold."""
        return [*answer.prompt, *answer.tokens][len(self._rows.held[answer._row]) :]

    def _is_behind(self, answer: Answer) -> bool:
        """Whether the caches lack more than the last token, or the last token is the prompt's."""
        return not answer.tokens or len(self._rows.held[answer._row]) < len(answer.prompt) + len(answer.tokens) - 1

    def _feed(self, answer: Answer, part: Sequence[int]) -> list[Event]:
        """Process a part of a prompt; with the last part, choose the first token. A prompt that the model refuses ends its answer
        alone: the others continue."""
        is_last = len(part) == len(self._rest(answer))
        choice = self._choice([answer])
        try:
            made = self._rows.feed(answer._row, part)
            if not is_last:
                self._wait_for_turn(answer)
                return []
            made = self._choose([answer], made, choice)
            [token] = self._read(made)
        except InvalidInputError as error:
            answer.error = error
            return [self._ended(answer, None, "", "error")]
        return [self._took(answer, token, *self._logprobs([answer], made))]

    def _decode(self, ready: Sequence[Answer]) -> list[Event]:
        by_row = {a._row: a for a in ready}
        choice = self._choice(ready)
        if len(self._in_progress) == 1 and choice.greedy and (guess := self._guess(ready[0])):
            return self._test(ready[0], guess)
        if len(self._in_progress) == 1 and self._sampled is not None and self._sampled.serves(choice):
            events = self._speculate(ready[0], self._sampled)
            if events:
                return events
        events = []
        for rows, made in self._steps(ready, choice):
            answers = [by_row.get(row) for row in rows]
            made = self._choose(answers, made, choice)
            ahead = self._go_ahead(ready, rows, made)
            chosen = dict(zip(rows, self._read(made), strict=True))
            logprobs = dict(zip(rows, self._logprobs(answers, made), strict=True))
            if ahead is not None:
                self._ahead = _Ahead(ready, [chosen[row] for row in rows], rows, self._held(rows), ahead)
            events += [self._took(by_row[row], chosen[row], logprobs[row]) for row in rows if row in by_row]
        return events

    def _speculate(self, answer: Answer, sampled: Speculation) -> list[Event]:
        """Run the last token and those that the draft model drew after it, of which as many are kept as give the answer the
        model's own distribution. No events where nothing was drawn."""
        known, at = [*answer.prompt, *answer.tokens], len(answer.tokens)
        assert self._draft is not None
        count = min([self._draft.most, *self._room(answer)])  # of a seed with any max_tokens: the tokens are the same
        shares: list[DeviceTensor] = []
        try:
            guess, shares = sampled.guess(known, count, answer.sampling, answer._chances, at)
            if not guess:
                return []
            self._rows.reserve(answer._row, len(self._rows.held[answer._row]) + 1 + len(guess))
        except MemoryError as error:
            self._without_draft(error)
            return []
        self._known = self._known_from = self._ahead = None
        made = self._rows.feed(answer._row, [answer.tokens[-1], *guess])
        accept = [answer._chances.at(at + k, "accept") for k in range(len(guess))]
        kept, token = sampled.kept(made.logits, guess, shares, answer.sampling, accept, answer._chances.at(at, "next"))
        events = []
        for one in (*guess[:kept], token):
            events.append(self._took(answer, one, None))
            if answer.ended:
                break
        return events

    def _without_draft(self, error: MemoryError) -> None:
        """Go on without a draft, whose caches cannot grow: no answer needs it."""
        self._draft = self._sampled = None
        logger.warning("from now on the draft guesses nothing: no memory for its caches (%s)", str(error))

    def _room(self, answer: Answer) -> list[int]:
        """How many tokens may be guessed by the model's context, if it is known: one more follows them."""
        context = self._decoder.folder.context
        return [context - len(answer.prompt) - len(answer.tokens) - 1] if context else []

    def _limits(self, answer: Answer) -> list[int]:
        """As `_room`, and by ``max_tokens``."""
        most = answer.sampling.max_tokens
        return self._room(answer) + ([most - len(answer.tokens) - 1] if most is not None else [])

    def _guess(self, answer: Answer) -> list[int]:
        """Tokens that may be an answer's next ones: what followed its last tokens before, else what the draft model says."""
        known, limits = [*answer.prompt, *answer.tokens], self._limits(answer)
        found = self._looked_up(known, min([self._lookup, *limits])) if self._lookup else []
        if not found and self._draft is not None:
            vocabulary = self._decoder.vocabulary or FIRST_FEATURE
            try:
                guess = self._draft.guess(known, min([self._draft.most, *limits]))
            except MemoryError as error:
                self._without_draft(error)
                guess = []
            found = list(itertools.takewhile(lambda token: token < vocabulary, guess))
        return found

    def _looked_up(self, tokens: Sequence[int], room: int) -> list[int]:
        """What followed the last three, or two, tokens where they occurred before (prompt lookup decoding)."""
        known = np.array(tokens)
        for size in (3, 2) if room > 0 else ():
            count = len(known) - size
            same = np.ones(max(count, 0), np.bool_)
            for k in range(size):
                same &= known[k : k + len(same)] == known[count + k]
            if same.any():
                at = int(np.flatnonzero(same)[-1]) + size
                return [int(token) for token in itertools.takewhile(lambda t: t < FIRST_FEATURE, known[at : at + room])]
        return []

    def _test(self, answer: Answer, guess: list[int]) -> list[Event]:
        """Run the last token and a guess of those after it: as many are right as the run chooses itself."""
        self._known = self._known_from = self._ahead = None
        try:
            self._rows.reserve(answer._row, len(self._rows.held[answer._row]) + 1 + len(guess))
        except MemoryError:
            guess = []  # there is room for the last token alone
        made = self._rows.feed(answer._row, [answer.tokens[-1], *guess])
        events = []
        for token, guessed in zip(self._chooser.greedy(made), [*guess, None], strict=True):
            events.append(self._took(answer, token, None))
            if answer.ended or token != guessed:
                break
        return events

    def _steps(self, ready: Sequence[Answer], choice: Choice) -> Iterable[tuple[range, Made]]:
        """The runs of the next token of some answers: the one that was submitted ahead, where it is the same."""
        ahead, self._ahead = self._ahead, None
        last = {a._row: a.tokens[-1] for a in ready}
        same = (
            ahead is not None
            and ahead.answers == ready
            and ahead.tokens == [last[row] for row in ahead.rows]
            and ahead.held == self._held(ahead.rows)  # not where a step that failed is repeated
        )
        if ahead is not None and same and self._keeps(ahead.made, logits=not choice.greedy):
            self._rows.append(last)
            return [(ahead.rows, ahead.made)]
        return self._rows.step(last, self._known if self._keeps(self._known_from) else None)

    def _held(self, rows: range) -> list[int]:
        return [len(self._rows.held[row]) for row in rows]

    def _keeps(self, made: Made | None, logits: bool = False) -> bool:
        decoder = self._decoder if isinstance(self._decoder, Decoder) else self._decoder.joined
        return made is None or (decoder is not None and decoder.keeps(made, logits))

    def _go_ahead(self, ready: Sequence[Answer], rows: range, made: Made) -> Made | None:
        """Submit the step after ``made``, whose tokens the host has not read, if all answers continue unless an end
        token was chosen."""
        if not self.runs_ahead or len(rows) != len(ready) or len(ready) != len(self._in_progress):
            return None
        context = self._decoder.folder.context
        for answer in ready:
            count, most = len(answer.tokens) + 1, answer.sampling.max_tokens
            if (most is not None and count >= most) or (context and len(answer.prompt) + count >= context):
                return None
        assert made.tokens is not None
        try:
            return self._rows.ahead(rows, made.tokens)
        except MemoryError as error:  # no room for a second run
            self.runs_ahead = False
            logger.warning(
                "from now on each step waits for the tokens of the one before: no memory for two runs (%s)", str(error)
            )
            return None

    def _without_memory(self, answer: Answer) -> Event | None:
        """End an answer whose caches cannot grow."""
        try:
            self._rows.reserve(answer._row, len(self._rows.held[answer._row]) + 1)
        except MemoryError:
            return self._ended(answer, None, "", "memory")
        return None

    def _choice(self, answers: Sequence[Answer]) -> Choice:
        """The options of token choice that the settings of some answers need."""
        folder = self._decoder.folder
        first = any(not a.tokens for a in answers)
        never = (*folder.never, *folder.never_first) if first else folder.never
        times = (folder.speech.no_times, self._decoder.vocabulary) if folder.speech is not None else ()
        return Choice.of([a.sampling for a in answers], never, times)

    def _choose(self, answers: Sequence[Answer | None], made: Made, choice: Choice) -> Made:
        """The run with the chosen tokens, which the host has not read: a decoder's own run has the most probable ones."""
        self._known = self._known_from = None  # their rows are overwritten
        if choice.greedy and made.tokens is not None:
            self._known_from = made
            return made
        each = [a.sampling if a is not None else _GREEDY for a in answers]
        chances = [a._chances.at(len(a.tokens)) if a is not None and a.sampling.temperature else 0.0 for a in answers]
        seen = [
            [t for t in dict.fromkeys([*a.prompt, *a.tokens]) if t < FIRST_FEATURE]
            if a is not None and a.sampling.repetition_penalty != 1
            else []
            for a in answers
        ]
        biases = [
            self._bias_of(a, made.logits.shape[2]) if a is not None and a._bias is not None else None for a in answers
        ]
        speech, vocabulary = self._decoder.folder.speech, self._decoder.vocabulary
        within = [
            bounds(speech, vocabulary, a.tokens) if a is not None and a.sampling.timestamps and speech else None
            for a in answers
        ]
        return self._chooser.submit(made, choice, each, chances, seen, biases, within)

    def _bias_of(self, answer: Answer, vocabulary: int) -> Array | None:
        """What is added to an answer's logits; where this fails the answer ends with its next token."""
        assert answer._bias is not None
        try:
            return answer._bias.row(vocabulary)
        except VkepError as error:
            answer.error = error
            return None

    def _logprobs(self, answers: Sequence[Answer | None], made: Made) -> list[Logprob | None]:
        """The logarithms of the tokens that `_read` returned."""
        if made.logprobs is None:
            return [None] * len(answers)
        values, tops, tokens = (tensor.host_view() for tensor in made.logprobs)
        assert self._known is not None
        found: list[Logprob | None] = []
        for row, answer in enumerate(answers):
            count = answer.sampling.logprobs if answer is not None else None
            if count is None:
                found.append(None)
                continue
            top = {int(t): float(v) for t, v in zip(tokens[row, :count], tops[row, :count], strict=True)}
            found.append(Logprob(self._known[1][row], float(values[row, 0]), top))
        return found

    def _read(self, made: Made) -> list[int]:
        """The tokens that `_choose` chose; waits for them."""
        assert made.tokens is not None
        self._known = made.tokens, made.on_host()
        return self._known[1]

    def _took(self, answer: Answer, token: int, logprob: Logprob | None) -> Event:
        settings, stream = answer.sampling, answer._stream
        ends = frozenset(settings.stop_tokens) | (
            frozenset() if settings.ignore_end and not settings.grammar else self._decoder.folder.end_tokens
        )
        if answer.error is not None:
            return self._ended(answer, None, "", "error")
        if token in ends:
            answer.end_logprob = logprob
            return self._ended(answer, token, "", "stop")
        answer.tokens.append(token)
        if logprob is not None:
            answer.logprobs.append(logprob)
        try:
            text = stream.add(token) if stream is not None else ""
            if answer._bias is not None:
                answer._bias.took(token)
        except VkepError as error:  # of this answer alone: the others continue
            answer.error, answer._stream = error, None
            return self._ended(answer, token, "", "error")
        follows = answer._bias is None or answer._bias.grammar is None or not answer._bias.grammar.ended
        if not follows or (stream is not None and stream.stopped):
            return self._ended(answer, token, text, "stop", logprob)
        if settings.max_tokens is not None and len(answer.tokens) >= settings.max_tokens:
            return self._ended(answer, token, text, "length", logprob)
        if self._decoder.folder.context and len(answer.prompt) + len(answer.tokens) >= self._decoder.folder.context:
            return self._ended(answer, token, text, "context", logprob)
        answer.text += text
        return Event(answer, token, text, "", logprob)

    def _ended(
        self, answer: Answer, token: int | None, text: str, reason: str, logprob: Logprob | None = None
    ) -> Event:
        try:
            text += answer._stream.end() if answer._stream is not None else ""
        except VkepError as error:
            answer.error, reason = error, "error"
        answer.text += text
        self._end(answer, reason)
        return Event(answer, token, text, reason, logprob)

    def _end(self, answer: Answer, reason: str) -> None:
        answer.reason = reason
        self._in_progress.remove(answer)

    @closing
    def close(self) -> None:
        """Cancel the answers in progress, and free the memory."""
        with self._lock:
            for answer in list(self._in_progress):
                self.cancel(answer)
            self._chooser.close()
            if self._sampled is not None:
                self._sampled.close()
            self._rows.close()


def rows_of(decoder: Decoder | EncoderDecoder, limit: int) -> Rows:
    """The rows that a model's caches support."""
    if isinstance(decoder, EncoderDecoder):
        return SourceRows(decoder, limit) if decoder.joined is None else JoinedRows(decoder, limit)
    return BufferRows(decoder, limit) if decoder.by_rows else GrownRows(decoder, limit)
