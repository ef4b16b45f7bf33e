"""Encoder-decoder models (T5, Whisper): the encoder reads the source once, the decoder generates the answer."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from vkep import dtypes
from vkep.device.tensor import DeviceTensor
from vkep.errors import InvalidInputError, InvalidModelError, UnsupportedModelError
from vkep.generation import vision
from vkep.generation.audio import Features, log_mel, sound_of
from vkep.generation.caches import CAPACITY_STEP, Moves, element_of
from vkep.generation.decoder import Adapter, Decoder, Made
from vkep.generation.folder import FIRST, LATER, MERGED, ModelFolder
from vkep.generation.own_lengths import with_lengths
from vkep.generation.own_sources import MASK as _MASK
from vkep.generation.own_sources import with_sources
from vkep.generation.rewrite import FEATURES, IDS, for_generation, with_embeddings
from vkep.generation.rows import Rows
from vkep.generation.vision import Image, ids_of, images_of
from vkep.graph.load import load_model
from vkep.graph.model import Graph, Model
from vkep.session import InferenceSession, SessionOptions

Array = np.ndarray[Any, Any]
STATES, LOGITS = "encoder_hidden_states", "logits"
#: kinds of models whose sources have one size
_ONE_SIZE = ("whisper",)
_SAMPLES = "input_values"  #: the input of an encoder that reads samples (Moonshine)


class EncoderDecoder:
    """The sessions of an encoder and of a decoder. In optimum's form the decoder's first run reads the encoder's
    states, later ones the caches of the first. In onnxruntime-genai's form the encoder writes the caches of the source,
    and one decoder reads them. Where both read embeddings, in transformers.js' form, the source may have images (Florence-2,
    arXiv:2311.06242).

    Raises as `InferenceSession`, ``FileNotFoundError``, `InvalidModelError` for a decoder without logits, and
    `UnsupportedModelError` for inputs that generation does not know.
    """

    def __init__(self, folder: ModelFolder, options: Mapping[str, Any]) -> None:
        """``options`` are of `InferenceSession`, with the context that all sessions share."""
        assert folder.encoder is not None
        self.folder = folder
        models: Sequence[Model] = [_loaded(folder.decoder)] if folder.cross else _decoders(folder.decoder.parent)
        embeddings = _loaded(folder.embeddings) if folder.embeddings is not None else None
        if embeddings is not None:
            models = [with_embeddings(model, embeddings) for model in models]
        made = [for_generation(model, LOGITS) for model in models]
        first, later = made[0], made[-1]
        own = self._with_lengths(models[-1])
        logits = next((o for o in first.graph.outputs if o.name == LOGITS), None)
        if logits is None or not logits.shape or not isinstance(logits.shape[-1], int):
            raise InvalidModelError(f"{folder.decoder}: no output named logits with the vocabulary as its last size")
        self.element, self.vocabulary = element_of(logits), logits.shape[-1]
        self._opened: list[InferenceSession] = []
        #: the later decoder with rows of own lengths, which share runs; None where its form is not known
        self.joined: Decoder | None = None
        #: as of `Decoder`
        self.vision, self.no_images = vision.opened(folder.vision, options)
        try:
            reader: Model | str = str(folder.encoder)
            if embeddings is not None:
                joined = self.vision.joined if self.vision is not None else with_embeddings
                reader = joined(_loaded(folder.encoder), embeddings)
            self.encoder = InferenceSession(reader, **options)
            self._opened.append(self.encoder)
            self._read_encoder()
            for model in made if own is None else made[:-1]:
                self._opened.append(InferenceSession(model, **options))
            if own is not None:
                given = [v.name for v in own.graph.inputs if self.is_of_source(v.name) or v.name == _MASK]
                self.joined = Decoder(folder, options, model=own, given=given)
                self._opened.append(self.joined.session)
            self.first, self.session = self._opened[1], self._opened[-1]
            #: outputs of all sessions that the decoder reads later, by name
            self.becomes = self._pairs()
            self.empty = self._empty(later.graph)
            for session in self._opened[1 : None if own is None else -1]:
                known = {STATES, _MASK, "input_ids", *self.becomes.values()}
                unknown = [i.name for i in session.get_inputs() if i.name not in known]
                if unknown:
                    raise UnsupportedModelError(
                        f"{folder.decoder} has inputs {unknown}, which generation does not know"
                    )
        except BaseException:
            self.close()
            raise

    def _with_lengths(self, later: Model) -> Model | None:
        """The decoder of later runs with rows of own lengths, and where these differ of own sources; None for another form."""
        if self.folder.embeddings is not None:
            return None
        of_source = {v.name: v.shape or () for v in later.graph.inputs if self.is_of_source(v.name)}
        if not of_source or any(
            len(shape) != 4 or not isinstance(shape[1], int) or not isinstance(shape[3], int)
            for shape in of_source.values()
        ):
            return None
        outputs = [o.name for o in later.graph.outputs]
        own = {n.replace("present.", "past_key_values."): n for n in outputs if n.startswith("present.")}
        pairs = self.folder.caches or {past: n for past, n in own.items() if not self.is_of_source(past)}
        found = with_lengths(later, pairs, LOGITS)
        return found if found is None or self.folder.kind in _ONE_SIZE else with_sources(found, [*of_source])

    def is_of_source(self, past: str) -> bool:
        """Whether an input of the decoder has keys or values of the source."""
        return past in self.folder.cross.values() or ".encoder." in past

    def _read_encoder(self) -> None:
        inputs = {i.name: i for i in self.encoder.get_inputs()}
        self._audio = next((name for name in (self.folder.audio, _SAMPLES) if name in inputs), "")
        if not set(inputs) <= {self._audio or IDS, FEATURES, "attention_mask"}:
            raise UnsupportedModelError(
                f"{self.folder.encoder} has inputs {list(inputs)}; generation knows input_ids, {self.folder.audio} and {_SAMPLES}"
            )

    @property
    def reads_sounds(self) -> bool:
        """Whether a source is a sound, and not ids."""
        return bool(self._audio)

    @property
    def reads_samples(self) -> bool:
        """Whether the encoder reads samples of a sound, and not features."""
        return self._audio == _SAMPLES

    def _pairs(self) -> dict[str, str]:
        if self.folder.cross:
            own = {present: past for past, present in self.folder.caches.items()}
            return {**self.folder.cross, **own}
        outputs = [o.name for session in self._opened[1:] for o in session.get_outputs()]
        return {n: n.replace("present.", "past_key_values.") for n in outputs if n.startswith("present.")}

    def _empty(self, graph: Graph) -> dict[str, tuple[tuple[int, ...], str]]:
        """Shapes and types of the caches that the decoder's first run reads, empty, by its inputs' names."""
        if not self.folder.cross:
            return {}
        sizes = (self.folder.heads, 0, self.folder.head_size)
        known = {v.name: v for v in graph.inputs}
        missing = sorted({*self.folder.caches, *self.folder.cross.values()} - set(known))
        if missing or 0 in (self.folder.heads, self.folder.head_size):
            raise InvalidModelError(f"{self.folder.decoder}: caches {missing} or their sizes {sizes} are missing")
        return {n: ((1, *sizes), str(dtypes.from_onnx(element_of(known[n])))) for n in self.folder.caches}

    def grows(self, past: str) -> bool:
        """Whether a cache grows by Concat: in optimum's form those of the tokens, not those of the source."""
        return not self.folder.cross and not self.is_of_source(past)

    def source(self, given: Any) -> Encoded:
        """The encoder's inputs, from token ids, or for audio from samples at 16 kHz float32 [count] or features [mels,
        frames]; or what it returned before, which the encoder does not read again.

        Raises `InvalidInputError` for a source that the encoder does not accept.
        """
        return given if isinstance(given, Encoded) else Encoded(self._feeds(given), images_of(given))

    def encode(self, source: Encoded) -> dict[str, DeviceTensor]:
        """What the encoder makes of a source, by its outputs' names. Raises as `InferenceSession.run`: `InvalidInputError` for a
        sound that is shorter than what the encoder's first convolutions read."""
        if not source.made:
            binding = self.encoder.io_binding()
            for argument in self.encoder.get_inputs():
                if argument.name in source.feeds:
                    binding.bind_cpu_input(argument.name, source.feeds[argument.name])
            if self.vision is not None:
                binding.bind_input(FEATURES, self.vision.features)
            names = [o.name for o in self.encoder.get_outputs()]
            names = [n for n in names if n in self.becomes or (n == names[0] and not self.folder.cross)]
            for name in names:
                binding.bind_output(name)
            try:
                self.encoder.run_with_iobinding(binding)
            except InvalidInputError as error:
                if not self.reads_samples:
                    raise
                raise InvalidInputError(
                    f"the sound has {source.feeds[_SAMPLES].size} samples, which the encoder does not read: {error}"
                ) from None
            source.made = dict(zip(names, binding.results, strict=True))  # type: ignore[arg-type]
        return source.made

    def _feeds(self, given: Any) -> dict[str, Array]:
        if not self._audio:
            tokens = ids_of(given, what="source")  # the encoder's own vocabulary is not known: its run refuses others
            ids = self.vision.places(tokens) if self.vision is not None else np.array(tokens, np.int64)
            return self._masked(IDS, ids[None])
        if self.reads_samples:
            return self._masked(_SAMPLES, sound_of(given, "source")[None])
        port = next(v for v in self.encoder.model.graph.inputs if v.name == self._audio)
        features = sound_of(given, "source", bands=Features.read(self.folder.path).bands)
        if features.ndim == 1:
            features = log_mel(features, self.folder.path)
        frames = next(iter((port.shape or ())[2:]), None)
        if isinstance(frames, int) and features.shape[1] != frames:
            raise InvalidInputError(f"the source has features of {features.shape[1]} frames; the model reads {frames}")
        dtype = dtypes.from_onnx(element_of(port))
        return {self._audio: features[None].astype(dtype.numpy if dtype else np.float32)}

    def _masked(self, name: str, given: Array) -> dict[str, Array]:
        """An input [1, count] with a mask of ones, which the encoder or the decoder may read."""
        return {name: given, "attention_mask": np.ones(given.shape, np.int64)}

    @property
    def sessions(self) -> list[InferenceSession]:
        """The sessions of the model: the encoder, and the decoder without caches and with them."""
        return list(dict.fromkeys(self._opened))

    def close(self) -> None:
        """Close the sessions."""
        if self.joined is not None:
            self.joined.close()
        for session in self._opened:
            session.close()
        if self.vision is not None:
            self.vision.close()


@dataclass(eq=False)
class Encoded:
    """A source: the encoder's inputs ``feeds``, and what it made of them once an answer needed it, which answers share. Its
    memory is free when nothing refers to it."""

    feeds: dict[str, Array]
    images: Sequence[Image] = ()  #: whose features it reads
    made: dict[str, DeviceTensor] = field(default_factory=dict)  #: by the encoder's outputs


@dataclass
class _State:
    """One answer's source and caches."""

    source: Encoded
    caches: dict[str, DeviceTensor] | None = None  #: by the names of the later decoder's inputs

    def clear(self, shared: Collection[str] = ()) -> None:
        """Drop the computed caches, except those in ``shared``, which are the source's."""
        old = [tensor for name, tensor in (self.caches or {}).items() if name not in shared]
        self.caches = None
        for tensor in old:
            tensor.close()


def _with_room(session: InferenceSession, cache: DeviceTensor, count: int) -> DeviceTensor:
    """The cache [1, heads, length, size] in memory that has room for more than ``count`` further tokens."""
    batch, heads, length, size = cache.shape
    if cache.capacity and cache.capacity[2] > length + count:
        return cache
    capacity = CAPACITY_STEP * -(-2 * (length + count) // CAPACITY_STEP)
    moved = session.empty_device_tensor((batch, heads, capacity, size), cache.dtype.name).leading(cache.shape)
    moved.write(cache.numpy())
    cache.close()
    return moved


class SourceRows(Rows):
    """Rows of answers, each with its own source."""

    def __init__(self, model: EncoderDecoder, limit: int) -> None:
        super().__init__(limit)
        self._model = model
        self._states: list[_State] = []
        self._copies: dict[str, Moves] = {}  # by the type of caches

    def take(
        self, prompt: Sequence[int], busy: Collection[int], source: Any = None, adapter: Adapter | None = None
    ) -> int:
        given = self._model.source(source)
        row = super().take(prompt, busy, adapter=adapter)
        self._clear(row)
        self._states[row] = _State(given)
        return row

    def _clear(self, row: int) -> None:
        self._states[row].clear(self._model.folder.cross.values())

    def _usable(self, row: int, count: int) -> int:
        return 0

    def _trim(self, row: int, count: int) -> None:
        self.held[row] = []
        self._clear(row)

    def reserve(self, row: int, tokens: int) -> None:
        if row == len(self._states):
            self._states.append(_State(Encoded({})))

    def feed(self, row: int, tokens: Sequence[int]) -> Made:
        return self._feed(row, np.array([tokens], np.int64), tokens)

    def step(
        self, tokens: Mapping[int, int], known: tuple[DeviceTensor, list[int]] | None
    ) -> Iterator[tuple[range, Made]]:
        for row, token in tokens.items():
            yield range(row, row + 1), self._feed(row, np.array([[token]], np.int64), [token])

    def _feed(self, row: int, ids: Array, tokens: Sequence[int]) -> Made:
        model, state = self._model, self._states[row]
        states = model.encode(state.source)
        if model.folder.cross and state.caches is None:
            empty = {n: model.session.empty_device_tensor(*of) for n, of in model.empty.items()}
            state.caches = {**{model.becomes[n]: t for n, t in states.items()}, **empty}
        session = model.first if state.caches is None else model.session
        outputs = [o.name for o in session.get_outputs() if o.name == LOGITS or o.name in model.becomes]
        caches = state.caches if state.caches is not None else {}
        for past in [model.becomes[name] for name in outputs if name != LOGITS]:
            if past in caches and model.grows(past):
                caches[past] = _with_room(session, caches[past], len(tokens))
        binding = session.io_binding()
        for argument in session.get_inputs():
            name = argument.name
            if name == "input_ids":
                binding.bind_cpu_input(name, ids)
            elif name == STATES:
                binding.bind_input(name, next(iter(states.values())))
            elif name == _MASK:
                binding.bind_cpu_input(name, state.source.feeds["attention_mask"])
            else:
                binding.bind_input(name, caches[name])
        for name in outputs:
            place = caches.get(model.becomes.get(name, ""))
            binding.bind_output(name, place if place is not None and place.capacity else None)
        session.run_with_iobinding(binding)
        made: dict[str, Any] = {model.becomes.get(n, n): t for n, t in zip(outputs, binding.results, strict=True)}
        logits: DeviceTensor = made.pop(LOGITS)
        state.caches = {**caches, **made}
        self.held[row] = [*self.held[row], *tokens]
        for name in made.keys() & caches.keys():
            caches[name].close()
        return Made(logits)

    def _copy(self, row: int, into: int) -> None:
        source, old = self._states[row], self._states[into]
        caches = {}
        for name, tensor in (source.caches or {}).items():
            caches[name] = tensor
            if not self._model.is_of_source(name):  # what the source made is shared
                caches[name] = self._model.session.empty_device_tensor(tensor.whole.shape, tensor.dtype.name)
                self._moves(tensor.dtype.name).copy(tensor.whole, caches[name])
                if tensor.capacity:
                    caches[name] = caches[name].leading(tensor.shape)
        for name, tensor in (old.caches or {}).items():
            if not self._model.is_of_source(name):
                tensor.close()
        self._states[into] = replace(source, caches=caches)

    def _moves(self, dtype: str) -> Moves:
        if dtype not in self._copies:
            self._copies[dtype] = Moves(self._model.session, dtype)
        return self._copies[dtype]

    def close(self) -> None:
        for moves in self._copies.values():
            moves.close()
        for row in range(len(self._states)):
            self._clear(row)
        self._states, self.held = [], []


def _loaded(path: Path) -> Model:
    return load_model(path, max_nodes=SessionOptions.max_nodes)


def _decoders(folder: Path) -> tuple[Model, Model]:
    """The decoder of the first run, and that of later ones. Raises ``FileNotFoundError``."""
    if (folder / FIRST).is_file() and (folder / LATER).is_file():
        first, later = (_loaded(folder / name) for name in (FIRST, LATER))
        return first, later
    if not (folder / MERGED).is_file():
        raise FileNotFoundError(f"{folder} has neither {FIRST} and {LATER} nor {MERGED}")
    merged = _loaded(folder / MERGED)
    return branch(merged, "else_branch"), branch(merged, "then_branch")


def branch(merged: Model, name: str) -> Model:
    """The branch of a merged decoder that runs for one value of ``use_cache_branch``, as a model. Raises
    `InvalidModelError`."""
    outer = merged.graph
    if len(outer.nodes) != 1 or outer.nodes[0].op_type != "If":
        raise InvalidModelError(f"{merged.source}: expected one If, as optimum merges decoders")
    body = outer.nodes[0].bodies[name]
    read = {value for node in body.nodes for value in node.reads}
    inputs = tuple(i for i in outer.inputs if i.name in read)
    names = dict(zip((o.name for o in body.outputs), (o.name for o in outer.outputs), strict=True))
    taken = set(names.values()) - set(names)
    if taken & {value for node in body.nodes for value in (*node.outputs, *node.inputs)}:
        raise InvalidModelError(f"{merged.source}: values of its branches are named as its outputs {sorted(taken)}")

    def named(values: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(names.get(v, v) for v in values)

    nodes = tuple(replace(n, inputs=named(n.inputs), outputs=named(n.outputs)) for n in body.nodes)
    made = {value for node in nodes for value in node.outputs}
    outputs = tuple(replace(i, name=names[i.name]) for i in body.outputs if names[i.name] in made)
    weights = {**{n: w for n, w in outer.weights.items() if n in read}, **body.weights}
    graph = Graph(body.name, nodes, inputs, outputs, weights)
    identity = merged.file_identity and f"{merged.file_identity} {name}"
    return replace(merged, graph=graph, file_identity=identity)
