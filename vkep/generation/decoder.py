"""A decoder on the device: reads tokens, computes logits, and keeps its caches between runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from onnx import TensorProto

from vkep import dtypes
from vkep.device.tensor import DeviceTensor
from vkep.errors import InvalidInputError, InvalidModelError, UnsupportedModelError
from vkep.generation import vision
from vkep.generation.caches import CacheSpec, RowCaches, element_of
from vkep.generation.folder import ModelFolder
from vkep.generation.rewrite import CHOSEN, FEATURES, IDS, TOKENS, for_generation, with_embeddings
from vkep.generation.vision import Image
from vkep.graph.load import load_model
from vkep.graph.model import Graph, Model, ValueInfo
from vkep.session import InferenceSession, IOBinding, SessionOptions
from vkep.session.ort_interface.adapters import AdapterFormat

Array = np.ndarray[Any, Any]

#: operators whose past may be in a buffer with capacity for more, where each sequence has its own length
_ROW_OPERATORS = {"GroupQueryAttention"}
#: types of the elements of quantized caches
_QUANTIZED = (TensorProto.INT8, TensorProto.UINT8, TensorProto.FLOAT8E4M3FN)
#: a mask's length is rounded up to a multiple of this, so that few shapes occur
_WINDOW = 64
#: runs that write their tokens to different memory: one that reads a run's tokens, and one more, may follow it
_PLACES = 3


class Made(NamedTuple):
    """The results of a run: ``logits`` [rows, n, vocabulary], of which the last of the second axis is for the next
    token, and of a `Decoder` the most probable ``tokens`` int64 [rows, 1], and the same where the host reads them, int32
    [rows]. The next run overwrites the logits; the tokens stay for some runs (`Decoder.keeps`)."""

    logits: DeviceTensor
    tokens: DeviceTensor | None = None
    chosen: DeviceTensor | None = None
    number: int = 0  #: of the decoder's runs
    #: logarithms of probabilities where they were requested: `vkep.generation.choices.LOGPROBS`
    logprobs: Sequence[DeviceTensor] | None = None

    def on_host(self) -> list[int]:
        """The most probable tokens; waits for the run. Raises `InvalidInputError` as `DeviceTensor.check`."""
        assert self.chosen is not None
        return [int(token) for token in self.chosen.host_view()]


#: by rows and the place of the tokens: the bound caches, and the binding
_Bound: TypeAlias = dict[tuple[int, str], tuple[Mapping[str, DeviceTensor], IOBinding]]


@dataclass(eq=False)
class Adapter:
    """Tensors on the device that runs read in place of a model's weights, by these weights' names. ``bound``: bindings of such
    runs, which end with it."""

    tensors: Mapping[str, DeviceTensor]
    bound: _Bound = field(default_factory=dict, repr=False)


class Decoder:
    """A session, with the roles of its inputs.

    Raises as `InferenceSession`, and `UnsupportedModelError` for a model with inputs that generation does not know.
    """

    reads_sounds = False  #: as a whole prompt

    def __init__(
        self,
        folder: ModelFolder,
        options: Mapping[str, Any],
        keep: int = 1,
        model: Model | None = None,
        given: Sequence[str] = (),
    ) -> None:
        """``keep``: of a run's last tokens so many have logits. ``model``: in place of the folder's, of a decoder that reads what
        an encoder made, with the names of these inputs, ``given``."""
        self.folder, self.given = folder, given
        #: the encoder of images, or why it has none
        self.vision, self.no_images = vision.opened(folder.vision, options) if model is None else (None, "")
        if model is None:
            model = load_model(folder.decoder, max_nodes=SessionOptions.max_nodes)
        try:
            self._open(model, options, keep)
        except BaseException:
            self._close_vision()
            raise

    def _open(self, model: Model, options: Mapping[str, Any], keep: int) -> None:
        if self.folder.embeddings is not None:
            embeddings = load_model(self.folder.embeddings, max_nodes=SessionOptions.max_nodes)
            joined = self.vision.joined if self.vision is not None else with_embeddings
            model = joined(model, embeddings)
        self._read(model.graph)
        # a step is submitted before the host has read the tokens of the one before
        options = {"run_ahead": True, **options}
        self.session = InferenceSession(for_generation(model, self.logits, choose=True, keep=keep), **options)
        self._runs = 0
        self._results: dict[tuple[str, int], DeviceTensor] = {}
        self._bound: _Bound = {}  # of runs without an adapter
        self.adapters: dict[str, Adapter] = {}  #: those of `load_adapter`, by name
        #: of prompts with images, or with sounds alone, that ask for no other: by whether they are of sounds
        self._of_prompts: dict[bool, Adapter] = {}
        self._shape = next(o.shape for o in self.session.get_outputs() if o.name == self.logits)
        self._dtype = str(dtypes.from_onnx(self.element))
        images = self.folder.vision if self.vision is not None else None
        try:
            for sounds, part in ((False, images), (True, images and images.sounds)):
                if part is not None and part.adapter is not None:
                    content = AdapterFormat.read_adapter(part.adapter)
                    self._of_prompts[sounds] = self._adapter(content, f"the adapter {part.adapter}")
        except BaseException:
            self.session.close()
            raise

    def adapter_for(self, images: Sequence[Image]) -> Adapter | None:
        """The folder's adapter of a prompt with these images and sounds."""
        return self._of_prompts.get(all(image.sound for image in images)) if images else None

    def _read(self, graph: Graph) -> None:
        folder, inputs = self.folder, {v.name: v for v in graph.inputs}
        outputs = {v.name: v for v in graph.outputs}
        pairs = dict(folder.caches) or {n: p for n in inputs if (p := _present(n, outputs)) and n not in self.given}
        if any(past in inputs and _state(inputs[past]) for past in pairs):
            # a layer has keys and values, or states, and the folder lists both for all
            pairs = {past: present for past, present in pairs.items() if past in inputs or present in outputs}
        missing = [n for n in (*pairs, *pairs.values()) if n not in inputs and n not in outputs]
        if missing or not pairs:
            raise InvalidModelError(f"{folder.decoder}: no cache of keys and values named {missing or 'past...'}")
        self.specs = [self._spec(inputs[past], present) for past, present in pairs.items()]
        #: whether recurrent layers have states: a row cannot go back to fewer tokens
        self.has_states = any(spec.state for spec in self.specs)
        plain = [o for o in outputs if o not in set(pairs.values())]
        self.logits = next((o for o in plain if o == "logits"), plain[0] if len(plain) == 1 else "")
        if not self.logits:
            raise InvalidModelError(f"{folder.decoder}: none of its outputs {plain} is named logits")
        self.element = element_of(outputs[self.logits])
        self.vocabulary = _size(outputs[self.logits].shape)
        self._kinds = {n: folder.inputs.get(n, n) for n in inputs if n not in pairs and n not in self.given}
        #: whether a token's position has three numbers
        self._has_grid = any(
            what == "position_ids" and len(inputs[n].shape or ()) == 3 for n, what in self._kinds.items()
        )
        if self.vision is not None:
            self.vision.in_grid = self._has_grid
        unknown = [n for n, what in self._kinds.items() if what not in (IDS, FEATURES, *_FEEDS)]
        if unknown or IDS not in self._kinds.values():
            known = sorted({IDS, *_FEEDS})
            raise UnsupportedModelError(
                f"{folder.decoder} has inputs {unknown or list(self._kinds)}; generation knows {known} and caches"
            )
        grown = {spec.past for spec in self.specs if not spec.state}
        readers = {(n.op_type, r) for n in graph.nodes for r in n.reads if r in grown}
        #: whether several sequences run at once, each in a row of the caches
        self.by_rows = all(op in _ROW_OPERATORS for op, _ in readers)

    def _spec(self, past: ValueInfo, present: str) -> CacheSpec:
        shape, folder = past.shape or (), self.folder
        if state := _state(past):
            return CacheSpec(past.name, present, 0, 0, str(dtypes.from_onnx(element_of(past, _QUANTIZED))), state)
        if len(shape) != 4:
            raise UnsupportedModelError(
                f"{folder.decoder}: cache {past.name!r} has shape {shape}, expected 4 dimensions"
            )
        heads = shape[1] if isinstance(shape[1], int) else folder.heads
        halves = 2 if past.elem_type == TensorProto.UINT8 else 1  # two numbers of 4 bits in an element
        size = shape[3] if isinstance(shape[3], int) else folder.head_size // halves
        if not heads or not size:
            raise InvalidModelError(
                f"{folder.decoder}: cache {past.name!r} has shape {shape}, and no file says its sizes"
            )
        element = element_of(past, _QUANTIZED)
        return CacheSpec(past.name, present, heads, size, str(dtypes.from_onnx(element)))

    def caches(self) -> RowCaches:
        """New caches for several sequences."""
        return RowCaches(self.session, self.specs)

    def load_adapter(self, content: AdapterFormat, name: str, where: str) -> None:
        """Copy an adapter's tensors to the device, where runs of this name read them in place of the model's weights.

        Raises `InvalidInputError` for tensors that the model does not take, with ``where`` they are from; `ArenaOutOfMemory`.
        """
        # answers in progress keep the adapter that they began with
        self.adapters[name] = self._adapter(content, where)

    def _adapter(self, content: AdapterFormat, where: str) -> Adapter:
        known = self.session._parts.overridable
        arrays = {key: value.numpy() for key, value in content.get_parameters().items()}
        for key, array in arrays.items():
            info = known.get(key)
            shape = info.shape if info is not None else None
            if (
                info is None
                or shape is None
                or len(shape) != array.ndim
                or any(isinstance(a, int) and a not in (0, b) for a, b in zip(shape, array.shape, strict=True))
            ):
                raise InvalidInputError(
                    f"{where}: its {key!r} has the shape {list(array.shape)}; of the inputs that adapters replace, the model has "
                    f"{'it with ' + str(list(shape)) if shape is not None else sorted(known)}"
                )
            element = dtypes.from_onnx(info.elem_type)
            if element is None or array.dtype != element.numpy:
                raise InvalidInputError(f"{where}: its {key!r} is {array.dtype}, expected {element}")
        return Adapter({key: self.session.device_tensor(array) for key, array in arrays.items()})

    def on_rows(
        self,
        ids: Array | DeviceTensor,
        lengths: Sequence[int],
        caches: RowCaches,
        first: int,
        positions: Array | None = None,
        adapter: Adapter | None = None,
    ) -> Made:
        """Run tokens ``ids`` int64 [rows, count] that follow ``lengths`` tokens in the rows from ``first``; the caches
        of these rows grow by them. ``positions``: of `in_grid`. ``adapter``: of `load_adapter`. Raises as
        `InferenceSession.run`."""
        count = ids.shape[1]
        most = max(lengths) + count
        # a prompt's mask ends with the prompt: GroupQueryAttention recognizes a prompt by this
        window = most if count > 1 else min(-(-most // _WINDOW) * _WINDOW, caches.capacity)
        return self._run(ids, lengths, window, *caches.bound(first, len(lengths)), positions, adapter)

    def on_leading(
        self,
        ids: Array | DeviceTensor,
        length: int,
        caches: RowCaches,
        row: int,
        positions: Array | None = None,
        adapter: Adapter | None = None,
    ) -> Made:
        """As `on_rows`, where the model is not `by_rows`: tokens ``ids`` int64 [1, count] follow ``length`` tokens in a row."""
        return self._run(ids, [length], length + ids.shape[1], *caches.leading(row, length), positions, adapter)

    def _run(
        self,
        ids: Array | DeviceTensor,
        lengths: Sequence[int],
        window: int,
        past: Mapping[str, DeviceTensor],
        present: Mapping[str, DeviceTensor],
        positions: Array | None,
        adapter: Adapter | None,
    ) -> Made:
        rows = len(lengths)
        self._runs += 1
        place = f"tokens {self._runs % _PLACES}"
        known = self._bound if adapter is None else adapter.bound
        before, binding = known.get((rows, place), (None, None))
        if binding is None or before is not past:
            binding = self._binding(rows, past, present, place)
            for name, tensor in adapter.tensors.items() if adapter is not None else ():
                binding.bind_input(name, tensor)
            known[rows, place] = past, binding
        given: dict[str, Array | DeviceTensor] = {IDS: ids}
        if self.vision is not None:
            given[FEATURES] = self.vision.features
        if positions is not None:
            given["position_ids"] = positions
        for name, what in self._kinds.items():
            value = given.get(what)
            if value is None:
                value = _FEEDS[what](np.array(lengths, np.int64), ids.shape[1], window)
            if isinstance(value, DeviceTensor):
                binding.bind_input(name, value)
            else:
                binding.bind_cpu_input(name, value)
        self.session.run_with_iobinding(binding)
        logits, tokens, chosen, *_ = binding.results
        assert isinstance(logits, DeviceTensor)
        assert isinstance(tokens, DeviceTensor)
        assert isinstance(chosen, DeviceTensor)
        return Made(logits, tokens, chosen, self._runs)

    def keeps(self, made: Made, logits: bool = False) -> bool:
        """Whether no later run has overwritten the tokens of a run (or its ``logits``), and the next one may read them."""
        return self._runs - made.number < (1 if logits else _PLACES - 1)

    def _binding(
        self,
        rows: int,
        past: Mapping[str, DeviceTensor],
        present: Mapping[str, DeviceTensor],
        place: str,
    ) -> IOBinding:
        """A binding of the caches and the results."""
        binding = self.session.io_binding()
        for name, tensor in past.items():
            binding.bind_input(name, tensor)
        last = self._shape is not None and len(self._shape) == 3 and self._shape[1] == 1 and self.vocabulary
        kept = self._kept("logits", (rows, 1, self.vocabulary), self._dtype) if last else None
        binding.bind_output(self.logits, kept)
        binding.bind_output(TOKENS, self._kept(place, (rows, 1), "int64"))
        binding.bind_output(CHOSEN, self._kept(f"{place} read", (rows,), "int32", host_visible=True))
        for name, target in present.items():
            binding.bind_output(name, target)
        return binding

    def _close_vision(self) -> None:
        if self.vision is not None:
            self.vision.close()

    def _kept(self, name: str, shape: tuple[int, ...], dtype: str, *, host_visible: bool = False) -> DeviceTensor:
        """The memory of a result: the same in each run with as many rows."""
        key = (name, shape[0])
        if key not in self._results:
            self._results[key] = self.session.empty_device_tensor(shape, dtype, host_visible=host_visible)
        return self._results[key]

    def ids(self, tokens: Sequence[int]) -> Array:
        """``input_ids`` [1, count] of tokens of a prompt, which may be features of images."""
        return np.array([tokens], np.int64) if self.vision is None else self.vision.places(tokens)[None]

    def in_grid(self, held: Sequence[int], tokens: Sequence[int]) -> Array | None:
        """Positions int64 [3, 1, count] of tokens that follow those in a row; None where the model's have one dimension."""
        if not self._has_grid:
            return None
        if self.vision is None:
            return np.broadcast_to(np.arange(len(held), len(held) + len(tokens)), (3, 1, len(tokens)))
        return self.vision.positions([*held, *tokens])[:, None, len(held) :]

    @property
    def sessions(self) -> list[InferenceSession]:
        """The sessions of the model."""
        return [self.session] if self.vision is None else [*self.vision.sessions, self.session]

    def close(self) -> None:
        """Close the sessions."""
        self._close_vision()
        self._bound.clear()
        for adapter in (*self.adapters.values(), *self._of_prompts.values()):
            adapter.bound.clear()
            for tensor in adapter.tensors.values():
                tensor.close()
        for tensor in self._results.values():
            tensor.close()
        self.session.close()


def _mask(lengths: Array, count: int, window: int) -> Array:
    return (np.arange(window) < (lengths + count)[:, None]).astype(np.int64)


#: computes a model's inputs other than tokens, features and caches, from the rows' lengths, the number of new tokens and the
#: mask's length
_FEEDS: dict[str, Any] = {
    "attention_mask": _mask,
    "position_ids": lambda lengths, count, window: lengths[:, None] + np.arange(count),
    "num_logits_to_keep": lambda lengths, count, window: np.array(1, np.int64),
    "use_cache_branch": lambda lengths, count, window: np.array([True]),
}


def _present(past: str, outputs: Mapping[str, Any]) -> str:
    """The output that becomes the input ``past``, by the naming schemes of known exporters; "" where there is none."""
    for old, new in (("past_key_values", "present"), ("past_key_values", "present_key_values"), ("past", "present")):
        if past.startswith(old) and (name := new + past[len(old) :]) in outputs:
            return name
    return ""


def _state(past: ValueInfo) -> tuple[int, ...]:
    """The sizes of a recurrent layer's state but the first, which is open; () for a cache, whose length is open too."""
    first, *sizes = past.shape or (0,)
    fixed = tuple(size for size in sizes if isinstance(size, int))
    return fixed if len(fixed) == len(sizes) and not isinstance(first, int) else ()


def _size(shape: Sequence[Any] | None) -> int:
    return shape[-1] if shape and isinstance(shape[-1], int) else 0
