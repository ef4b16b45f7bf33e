"""Streaming transducers: an encoder that reads a sound chunk by chunk, a predictor of tokens and a joiner, as icefall exports
them and sherpa-onnx reads them.

from vkep.transducer import Recognizer

with Recognizer("streaming-zipformer") as recognizer:
    for samples in microphone:  # float32 at 16 kHz, any number
        recognizer.accept(0, samples)
        recognizer.decode()
        print(recognizer.text(0))
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpu_shared.steady import closing
from gpu_shared.uncopied import Uncopied
from vkep.errors import InvalidInputError, InvalidModelError
from vkep.fbank import OnlineFbank
from vkep.files import file_inside, read_file
from vkep.generation.audio import sound_of
from vkep.graph.load import load_model
from vkep.graph.model import Model
from vkep.hotword_texts import splitter
from vkep.hotwords import MOST_SCORE, Hotwords
from vkep.session import SessionOptions
from vkep.streaming import StreamingSession
from vkep.transducer_search import BLANK, NONE, Search, search_model

__all__ = ["Hypothesis", "Recognizer", "search_model"]

Array = np.ndarray[Any, Any]
TOKENS = "tokens.txt"
_PARTS = ("encoder", "decoder", "joiner")
#: seconds from one frame of features to the next
_FRAME = 0.01
#: limits of what a folder's files may say, and of hypotheses
_MOST_CONTEXT, _MOST_FRAMES, _MOST_VOCABULARY, _MOST_BEAMS = 64, 4096, 1 << 20, 64


@dataclass(frozen=True)
class Hypothesis:
    """What may have been said: ``tokens``, the seconds ``times`` at which they were found, the ``text`` ("" without
    ``tokens.txt``), and the ``score``: the logarithm of the probability with what hotwords added, divided by the number of tokens
    with those that the decoder reads before the first one."""

    tokens: list[int]
    times: list[float]
    text: str
    score: float


@dataclass(frozen=True, eq=False)
class _Path:
    """A hypothesis's last token: the one before, the frame of the encoder's result that has it, and how many there are."""

    before: _Path | None
    token: int
    frame: int
    count: int

    @classmethod
    def after(cls, before: _Path | None, token: int, frame: int) -> _Path:
        """One token more."""
        return cls(before, token, frame, 1 + _length(before))


def _length(path: _Path | None) -> int:
    return path.count if path is not None else 0


@dataclass
class _Stream:
    """A sound: the features that no chunk has had, and what was said."""

    fbank: OnlineFbank
    waiting: Array
    paths: list[_Path | None]  #: of each hypothesis
    scores: Array  #: float32 [hypotheses]
    read: int = 0  #: frames of the encoder's result that were searched
    finished: bool = False
    best: _Path | None = None  #: of the best hypothesis


class Recognizer(Uncopied):
    """A streaming transducer with greedy or beam search, for one sound or several at the same time.

    Args:
        folder: with ``encoder*.onnx``, ``decoder*.onnx`` and ``joiner*.onnx`` (of several, those without ``int8`` in their
            names), and ``tokens.txt`` for texts.
        streams: sounds that are read at the same time, numbered from 0.
        beams: hypotheses that are followed (modified beam search: one token for a frame, and hypotheses of the same tokens
            become one); 1: greedy search.
        hotwords: phrases that beams prefer: token ids, or texts of tokens of ``tokens.txt`` with spaces between (``"\u2581HE LL
            O"``); or a mapping from these texts to scores of their own; or the ``Path`` of a file with a text in each line, and
            ``:2.0`` at its end where it has a score of its own.
        hotwords_score: what is added to a hypothesis's score for each token of a phrase, and taken away where the phrase is not
            completed.
        hotwords_unit: the kind of the model's tokens, by sherpa-onnx's names: texts of hotwords are then words, split by
            characters (``cjkchar``), by the pieces of ``bpe.vocab`` or ``bpe.model`` (``bpe``), or by both (``cjkchar+bpe``).
        blank_penalty: is subtracted from the logit of no token: more tokens are found. Up to 1e6, as scores of hotwords.
        options: of `vkep.InferenceSession`.

    All states stay on the device; a chunk of all sounds that have one is two submits, and its tokens are copied to the host.
    For one thread; close it, or use ``with``.

    Raises ``FileNotFoundError``, `InvalidModelError` for files of another form, `InvalidInputError` for ``beams`` below 1 or
    above 64 or the vocabulary and for hotwords that are no tokens or without beams, and as `vkep.StreamingSession` and
    `vkep.hotword_texts.splitter`.
    """

    _instead = "open the folder again"

    def __init__(
        self,
        folder: str | Path,
        *,
        streams: int = 1,
        beams: int = 1,
        hotwords: Sequence[str | Sequence[int]] | Mapping[str, float] | Path = (),
        hotwords_score: float = 1.5,
        hotwords_unit: str = "",
        blank_penalty: float = 0.0,
        **options: Any,
    ) -> None:
        root = Path(folder)
        models = {part: _loaded(root, part) for part in _PARTS}
        metadata = {part: model.metadata.custom_metadata_map for part, model in models.items()}
        #: frames of features that a chunk has, and by which the next one begins later
        self.chunk = _number(metadata["encoder"], "T", models["encoder"].source, _MOST_FRAMES)
        self.step = _number(metadata["encoder"], "decode_chunk_len", models["encoder"].source, _MOST_FRAMES)
        context = _number(metadata["decoder"], "context_size", models["decoder"].source, _MOST_CONTEXT)
        self._symbols = _symbols(root)
        words = (
            _number(metadata["decoder"], "vocab_size", models["decoder"].source, _MOST_VOCABULARY) if beams > 1 else 0
        )
        if not 1 <= beams <= min(_MOST_BEAMS, words or 1):
            raise InvalidInputError(f"beams is {beams}, expected 1 to {min(_MOST_BEAMS, words or _MOST_BEAMS)}")
        if (isinstance(hotwords, Path) or len(hotwords)) and beams == 1:
            raise InvalidInputError("hotwords belong to a search with beams: pass beams=4, for instance")
        if not abs(blank_penalty) <= MOST_SCORE:
            raise InvalidInputError(f"blank_penalty is {blank_penalty}, expected a number of at most {MOST_SCORE:.0e}")
        ignored = [i for i, text in self._symbols.items() if text == "<unk>"]
        x = models["encoder"].graph.inputs[0]
        bands = (x.shape or (None,))[-1]
        if len(x.shape or ()) != 3 or not isinstance(bands, int):
            raise InvalidModelError(f"{models['encoder'].source}: expected features [N, T, bands] first, found {x}")
        self._name, self._bands = x.name, bands
        split = splitter(hotwords_unit, root)
        found = Hotwords.read(hotwords, hotwords_score, self._symbols, words, split)
        self._search = Search(context, ignored, blank_penalty, beams, words, found)
        self._streams = [self._new() for _ in range(streams)]
        self.encoder = StreamingSession(models["encoder"], streams=streams, **options)  #: the session of the encoder
        try:
            frames = self._frames(streams)
            #: the session of the search
            self.search = StreamingSession(
                search_model(models["joiner"], models["decoder"], frames, self._search),
                {f"new_{name}": name for name in self._search.states},
                streams=streams,
                initial=self._search.initial,
                context=self._lease,
                **options,
            )
        except BaseException:
            self.encoder.close()
            raise

    @property
    def _lease(self) -> Any:
        return self.encoder.session.lease

    def _new(self) -> _Stream:
        beams = self._search.beams
        scores = self._search.initial.get("score", np.zeros(1, np.float32))
        return _Stream(OnlineFbank(self._bands), np.zeros((0, self._bands), np.float32), [None] * beams, scores)

    def _frames(self, streams: int) -> int:
        """How many frames the encoder makes of a chunk; it runs once where the model does not say it."""
        self._made = next(o.name for o in self.encoder.session.get_outputs() if o.name not in self.encoder.states)
        shape: Any = next(o.shape for o in self.encoder.session.get_outputs() if o.name == self._made)
        if shape is None or len(shape) != 3 or not isinstance(shape[1], int):
            x = np.zeros((streams, self.chunk, self._bands), np.float32)
            shape = self.encoder.run([self._made], {self._name: x})[0].shape
            self.encoder.reset()
        if len(shape) != 3 or not 0 < shape[1] <= _MOST_FRAMES:
            source = self.encoder.session.model.source
            raise InvalidModelError(
                f"{source}: {self._made} of a chunk is {list(shape)}, expected 3 sizes, of 1 to {_MOST_FRAMES} frames"
            )
        return int(shape[1])

    # ---- sounds

    def accept(self, stream: int, samples: Array) -> None:
        """Add samples at 16 kHz float32 [count], of -1 to 1, to a sound. Raises `InvalidInputError` for others, and after
        `finish`."""
        one = self._stream(stream)
        array = sound_of(samples, "part of the sound") if np.size(samples) else np.zeros(0, np.float32)
        if one.finished:
            raise InvalidInputError(f"stream {stream} is finished: reset() begins another sound")
        one.waiting = np.concatenate([one.waiting, one.fbank.accept(array)])

    def finish(self, stream: int) -> None:
        """Say that a sound has ended: its last chunk is filled with silence, so that `decode` reads it."""
        one = self._stream(stream)
        if one.finished:
            return
        silence = np.zeros(int(_FRAME * 16000) * self.chunk, np.float32)
        rest = len(one.waiting) % self.step
        more = [one.fbank.accept(silence), one.fbank.finish()]
        one.waiting = np.concatenate([one.waiting, *more])[: len(one.waiting) - rest + self.chunk]
        one.finished = True

    def _stream(self, stream: int) -> _Stream:
        if not 0 <= stream < len(self._streams):
            raise InvalidInputError(f"stream is {stream}, expected 0 to {len(self._streams) - 1}")
        return self._streams[stream]

    def ready(self) -> list[int]:
        """The streams that have a chunk to be read."""
        return [k for k, one in enumerate(self._streams) if len(one.waiting) >= self.chunk]

    def decode(self) -> list[int]:
        """Read all chunks that are there; returns the streams with new tokens. A run reads a chunk of each stream that has one.
        Raises as `StreamingSession.run`: after an error or an interrupt `reset` the streams, whose states may be of any chunk."""
        changed = set[int]()
        while going := self.ready():
            x = np.zeros((len(self._streams), self.chunk, self._bands), np.float32)
            for k in going:
                x[k] = self._streams[k].waiting[: self.chunk]
            [made] = self.encoder.run([self._made], {self._name: x}, device="gpu", streams=going)
            beams = self._search.beams
            names = ["tokens", "parents", "scores"] if beams > 1 else ["tokens"]
            tokens, *more = self.search.run(names, {"encoder_out": made}, streams=going)
            shape = (*tokens.shape[:2], beams)
            parents = more[0] if more else np.zeros(shape, np.int32)
            self._seconds = self.step * _FRAME / shape[1]
            for k in going:
                one = self._streams[k]
                _follow(one, tokens[k].reshape(shape[1:]), parents[k])
                one.scores = more[1][k] if more else one.scores
                one.waiting = one.waiting[self.step :]
                before, one.best = (
                    one.best,
                    one.paths[next(iter(self._ranked(one)), 0)],
                )  # none where the model makes NaN
                if not _same_tokens(before, one.best):
                    changed.add(k)
        return sorted(changed)

    def _ranked(self, one: _Stream) -> list[int]:
        """The places of a sound's hypotheses, the best one first."""
        places = [k for k, score in enumerate(one.scores) if score > NONE / 2]
        return sorted(places, key=lambda k: self._score(one, k), reverse=True)

    def _score(self, one: _Stream, place: int) -> float:
        return float(one.scores[place]) / (_length(one.paths[place]) + self._search.context)

    def hypotheses(self, stream: int) -> list[Hypothesis]:
        """What may have been said so far, the best first: up to as many as there are beams. Raises `InvalidInputError` for a
        greedy search, which has no scores."""
        one = self._stream(stream)
        if self._search.beams == 1:
            raise InvalidInputError("a greedy search has one hypothesis: pass beams=4, for instance")
        found = [(k, _spelled(one.paths[k])) for k in self._ranked(one)]
        return [
            Hypothesis([t for t, _ in said], self._times(said), self._text(said), self._score(one, k))
            for k, said in found
        ]

    def tokens(self, stream: int) -> list[int]:
        """The tokens of a sound so far; of several hypotheses the best one's, which may change."""
        return [token for token, _ in _spelled(self._stream(stream).best)]

    def times(self, stream: int) -> list[float]:
        """The seconds from a sound's begin at which its tokens were found."""
        return self._times(_spelled(self._stream(stream).best))

    def _times(self, said: Sequence[tuple[int, int]]) -> list[float]:
        return [frame * self._seconds for _, frame in said]

    def text(self, stream: int) -> str:
        """The text of a sound so far. Raises `InvalidModelError` where the folder has no ``tokens.txt``."""
        if not self._symbols:
            raise InvalidModelError(f"the folder has no {TOKENS}: tokens() has the numbers")
        return self._text(_spelled(self._stream(stream).best))

    def _text(self, said: Sequence[tuple[int, int]]) -> str:
        return "".join(self._symbols.get(token, "") for token, _ in said).replace("\u2581", " ").strip()

    def reset(self, stream: int) -> None:
        """Begin another sound in a stream."""
        self._stream(stream)
        self.encoder.reset([stream])
        self.search.reset([stream])
        self._streams[stream] = self._new()

    @closing
    def close(self) -> None:
        """Close the sessions; idempotent."""
        self.search.close()
        self.encoder.close()

    def __enter__(self) -> Recognizer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _follow(one: _Stream, tokens: Array, parents: Array) -> None:
    """Continue a sound's hypotheses by the ``tokens`` int32 [frames, hypotheses] that follow ``parents``."""
    for said, before in zip(tokens.tolist(), parents.tolist(), strict=True):
        one.paths = [
            _Path.after(one.paths[k], token, one.read) if token != BLANK else one.paths[k]
            for k, token in zip(before, said, strict=True)
        ]
        one.read += 1


def _spelled(path: _Path | None) -> list[tuple[int, int]]:
    """The tokens of a hypothesis, and their frames."""
    found = []
    while path is not None:
        found.append((path.token, path.frame))
        path = path.before
    return found[::-1]


def _same_tokens(one: _Path | None, other: _Path | None) -> bool:
    """Whether two hypotheses have the same tokens. Takes as long as what they do not share."""
    while one is not other:
        if one is None or other is None or one.token != other.token:
            return False
        one, other = one.before, other.before
    return True


def _loaded(folder: Path, part: str) -> Model:
    found = sorted(folder.glob(f"{part}*.onnx"), key=lambda path: ("int8" in path.name, path.name))
    if not found:
        raise FileNotFoundError(f"{folder} has no {part}*.onnx; expected {', '.join(f'{p}*.onnx' for p in _PARTS)}")
    return load_model(file_inside(folder, found[0].name, InvalidModelError), max_nodes=SessionOptions.max_nodes)


def _number(metadata: Mapping[str, str], name: str, source: str, most: int) -> int:
    text = metadata.get(name, "")
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= most):
        raise InvalidModelError(f"{source}: its metadata say {name} is {text!r}, expected a number of 1 to {most}")
    return int(text)


def _symbols(folder: Path) -> dict[int, str]:
    """The texts of tokens; {} without a file."""
    if not (folder / TOKENS).is_file():
        return {}
    content = read_file(file_inside(folder, TOKENS, InvalidModelError), error=InvalidModelError)
    lines = content.decode(errors="replace").split("\n")  # other separators of lines may be tokens
    pairs = [line.rsplit(maxsplit=1) for line in lines if line.strip()]
    wrong = [pair for pair in pairs if re.fullmatch("[0-9]{1,9}", pair[-1]) is None]
    if wrong:
        raise InvalidModelError(f"{folder / TOKENS}: {' '.join(wrong[0])!r} does not end with a token's number")
    return {int(pair[-1]): pair[0] if len(pair) == 2 else " " for pair in pairs}
