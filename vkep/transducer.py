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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from gpu_shared.steady import closing
from gpu_shared.uncopied import Uncopied
from vkep.errors import InvalidInputError, InvalidModelError
from vkep.fbank import OnlineFbank
from vkep.files import file_inside, read_file
from vkep.graph.load import load_model
from vkep.graph.model import Graph, Model, ValueInfo
from vkep.graph.weights import Weight
from vkep.session import SessionOptions
from vkep.streaming import StreamingSession

__all__ = ["Recognizer", "search_model"]

Array = np.ndarray[Any, Any]
TOKENS = "tokens.txt"
_PARTS = ("encoder", "decoder", "joiner")
#: seconds from one frame of features to the next
_FRAME = 0.01
#: the token that adds nothing; it is also the last one before a sound
BLANK = 0
#: limits of what a folder's files may say
_MOST_CONTEXT, _MOST_FRAMES = 64, 4096


@dataclass
class _Stream:
    """A sound: the features that no chunk has had, and what was said."""

    fbank: OnlineFbank
    waiting: Array
    tokens: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    read: int = 0  #: frames of the encoder's result that were searched
    finished: bool = False


class Recognizer(Uncopied):
    """A streaming transducer with greedy search, for one sound or several at the same time.

    Args:
        folder: with ``encoder*.onnx``, ``decoder*.onnx`` and ``joiner*.onnx`` (of several, those without ``int8`` in their
            names), and ``tokens.txt`` for texts.
        streams: sounds that are read at the same time, numbered from 0.
        options: of `vkep.InferenceSession`.

    All states stay on the device; a chunk of all sounds that have one is two submits, and its tokens are copied to the host.
    For one thread; close it, or use ``with``.

    Raises ``FileNotFoundError``, `InvalidModelError` for files of another form, and as `vkep.StreamingSession`.
    """

    _instead = "open the folder again"

    def __init__(self, folder: str | Path, *, streams: int = 1, **options: Any) -> None:
        root = Path(folder)
        models = {part: _loaded(root, part) for part in _PARTS}
        metadata = {part: model.metadata.custom_metadata_map for part, model in models.items()}
        #: frames of features that a chunk has, and by which the next one begins later
        self.chunk = _number(metadata["encoder"], "T", models["encoder"].source, _MOST_FRAMES)
        self.step = _number(metadata["encoder"], "decode_chunk_len", models["encoder"].source, _MOST_FRAMES)
        context = _number(metadata["decoder"], "context_size", models["decoder"].source, _MOST_CONTEXT)
        self._symbols = _symbols(root)
        ignored = [i for i, text in self._symbols.items() if text == "<unk>"]
        x = models["encoder"].graph.inputs[0]
        bands = (x.shape or (None,))[-1]
        if len(x.shape or ()) != 3 or not isinstance(bands, int):
            raise InvalidModelError(f"{models['encoder'].source}: expected features [N, T, bands] first, found {x}")
        self._name, self._bands = x.name, bands
        self._streams = [self._new() for _ in range(streams)]
        self.encoder = StreamingSession(models["encoder"], streams=streams, **options)  #: the session of the encoder
        try:
            frames = self._frames(streams)
            search = search_model(models["joiner"], models["decoder"], frames, context, ignored)
            before = np.array([-1] * (context - 1) + [BLANK])
            #: the session of the greedy search
            self.search = StreamingSession(
                search,
                {"new_context": "context"},
                streams=streams,
                initial={"context": before},
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
        return _Stream(OnlineFbank(self._bands), np.zeros((0, self._bands), np.float32))

    def _frames(self, streams: int) -> int:
        """How many frames the encoder makes of a chunk; it runs once where the model does not say it."""
        self._made = next(o.name for o in self.encoder.session.get_outputs() if o.name not in self.encoder.states)
        shape = next(o.shape for o in self.encoder.session.get_outputs() if o.name == self._made)
        if shape is not None and len(shape) == 3 and isinstance(shape[1], int):
            return shape[1]
        [made] = self.encoder.run([self._made], {self._name: np.zeros((streams, self.chunk, self._bands), np.float32)})
        self.encoder.reset()
        return int(made.shape[1])

    # ---- sounds

    def accept(self, stream: int, samples: Array) -> None:
        """Add samples at 16 kHz float32 [count], of -1 to 1, to a sound. Raises `InvalidInputError` for others, and after
        `finish`."""
        one, array = self._stream(stream), np.asarray(samples)
        if array.ndim != 1 or array.dtype != np.float32:
            raise InvalidInputError(f"the samples are {array.dtype} {array.shape}; expected float32 [count] at 16 kHz")
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
        Raises as `StreamingSession.run`."""
        changed = set[int]()
        while going := self.ready():
            x = np.zeros((len(self._streams), self.chunk, self._bands), np.float32)
            for k in going:
                x[k] = self._streams[k].waiting[: self.chunk]
            [made] = self.encoder.run([self._made], {self._name: x}, device="gpu", streams=going)
            [tokens] = self.search.run(["tokens"], {"encoder_out": made}, streams=going)
            seconds = self.step * _FRAME / tokens.shape[1]
            for k in going:
                one = self._streams[k]
                places = np.flatnonzero(tokens[k] != BLANK)
                one.tokens += [int(token) for token in tokens[k, places]]
                one.times += [float((one.read + place) * seconds) for place in places]
                one.read += tokens.shape[1]
                one.waiting = one.waiting[self.step :]
                if places.size:
                    changed.add(k)
        return sorted(changed)

    def tokens(self, stream: int) -> list[int]:
        """The tokens of a sound so far."""
        return list(self._stream(stream).tokens)

    def times(self, stream: int) -> list[float]:
        """The seconds from a sound's begin at which its tokens were found."""
        return list(self._stream(stream).times)

    def text(self, stream: int) -> str:
        """The text of a sound so far. Raises `InvalidModelError` where the folder has no ``tokens.txt``."""
        if not self._symbols:
            raise InvalidModelError(f"the folder has no {TOKENS}: tokens() has the numbers")
        return (
            "".join(self._symbols.get(token, "") for token in self._stream(stream).tokens)
            .replace("\u2581", " ")
            .strip()
        )

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
    wrong = [pair for pair in pairs if not pair[-1].isdigit()]
    if wrong:
        raise InvalidModelError(f"{folder / TOKENS}: {' '.join(wrong[0])!r} does not end with a token's number")
    return {int(pair[-1]): pair[0] if len(pair) == 2 else " " for pair in pairs}


# ---- the greedy search


def search_model(joiner: Model, decoder: Model, frames: int, context: int, ignored: Sequence[int] = ()) -> Model:
    """A model that searches the tokens of a chunk: ``encoder_out`` [N, frames, width] and the last tokens ``context`` int64 [N,
    context] to ``tokens`` int32 [N, frames] (0: none in this frame) and ``new_context``.

    In each frame the joiner reads it and what the decoder makes of the context; the most probable token follows the context,
    unless it is 0 or ``ignored`` (arXiv:1211.3711, with one token for a frame). Raises `InvalidModelError` for models of another
    form.
    """
    ports = [(len(m.graph.inputs), len(m.graph.outputs)) for m in (joiner, decoder)]
    if ports != [(2, 1), (1, 1)] or any(node.bodies for m in (joiner, decoder) for node in m.graph.nodes):
        raise InvalidModelError(
            f"{joiner.source} and {decoder.source} have (inputs, outputs) {ports}, expected [(2, 1), (1, 1)] and no branches"
        )
    parts: list[Graph] = []
    weights: dict[str, Weight] = {}

    def add(graph: Graph, kind: str, at: str, names: Mapping[str, str]) -> str:
        """Add a graph; its inputs have ``names``. Returns the name of its first output."""
        parts.append(_copied(graph, names, at, kind))
        weights.update(parts[-1].weights)
        return f"{at}.{graph.outputs[0].name}"

    choice = load_model(_choice(context, ignored)).graph
    [words], [encoded_as, said_as] = decoder.graph.inputs, joiner.graph.inputs
    last, found = "context", list[str]()
    for frame in range(frames):
        at = f"frame_{frame}"
        said = add(decoder.graph, "decoder", f"{at}.decoder", {words.name: last})
        encoded = add(load_model(_frame(frame)).graph, at, at, {"encoder_out": "encoder_out"})
        logit = add(joiner.graph, "joiner", f"{at}.joiner", {encoded_as.name: encoded, said_as.name: said})
        found.append(add(choice, "choice", f"{at}.choice", {"logit": logit, "context": last}))
        last = f"{at}.choice.new_context"
    ends = {**{f"token_{k}": name for k, name in enumerate(found)}, "last": last}
    end = _copied(
        load_model(_end(frames)).graph, {**ends, "tokens": "tokens", "new_context": "new_context"}, "end", "end"
    )
    nodes = tuple(replace(n, index=k) for k, n in enumerate(n for part in (*parts, end) for n in part.nodes))
    x = joiner.graph.inputs[0]
    inputs = (
        ValueInfo("encoder_out", x.elem_type, ("N", frames, (x.shape or (None,))[-1])),
        ValueInfo("context", TensorProto.INT64, ("N", context)),
    )
    outputs = (
        ValueInfo("tokens", TensorProto.INT32, ("N", frames)),
        ValueInfo("new_context", TensorProto.INT64, ("N", context)),
    )
    opsets = {**decoder.opsets, **joiner.opsets}
    return Model(
        Graph("search", nodes, inputs, outputs, weights), opsets, joiner.ir_version, f"the search of {joiner.source}"
    )


def _copied(graph: Graph, names: Mapping[str, str], at: str, kind: str) -> Graph:
    """A graph whose values have ``names``, or else ``at`` before their own; weights are those of all graphs of their ``kind``."""

    def named(values: Sequence[str]) -> tuple[str, ...]:
        return tuple(names.get(v) or f"{kind if v in graph.weights else at}.{v}" if v else "" for v in values)

    nodes = [replace(n, name=f"{at}.{n.name}", inputs=named(n.inputs), outputs=named(n.outputs)) for n in graph.nodes]
    return Graph(at, tuple(nodes), (), (), {f"{kind}.{name}": weight for name, weight in graph.weights.items()})


def _frame(number: int) -> onnx.ModelProto:
    return onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["" : 18]>
        frame (float[N, frames, width] encoder_out) => (float[N, width] one)
        <int64 number = {{ {number} }}>
        {{ one = Gather <axis = 1> (encoder_out, number) }}
    """)


def _choice(context: int, ignored: Sequence[int]) -> onnx.ModelProto:
    """The most probable ``token`` int64 [N, 1], or 0 where nothing is said, and the context after it."""
    none = [BLANK, *ignored]
    both = "tail = Slice (context, one, end, one) both = Concat <axis = 1> (tail, best)"
    return onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["" : 18]>
        choice (float[N, vocabulary] logit, int64[N, {context}] context)
            => (int64[N, 1] token, int64[N, {context}] new_context)
        <int64[{len(none)}] none = {{ {", ".join(map(str, none))} }}, int64 blank = {{ {BLANK} }}, int64[1] one = {{ 1 }},
         int64[1] end = {{ {context} }}>
        {{
            best = ArgMax <axis = 1, keepdims = 1> (logit)
            equal = Equal (best, none)
            count = Cast <to = {TensorProto.INT32}> (equal)
            any = ReduceMax <keepdims = 1> (count, one)
            nothing = Cast <to = {TensorProto.BOOL}> (any)
            token = Where (nothing, blank, best)
            {both if context > 1 else "both = Identity (best)"}
            new_context = Where (nothing, context, both)
        }}
    """)


def _end(frames: int) -> onnx.ModelProto:
    names = [f"token_{k}" for k in range(frames)]
    return onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["" : 18]>
        end ({", ".join(f"int64[N, 1] {name}" for name in names)}, int64[N, size] last)
            => (int32[N, {frames}] tokens, int64[N, size] new_context)
        {{
            wide = Concat <axis = 1> ({", ".join(names)})
            tokens = Cast <to = {TensorProto.INT32}> (wide)
            new_context = Identity (last)
        }}
    """)
