"""Rows of answers of an encoder and a decoder that share runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from vkep import dtypes
from vkep.device.tensor import DeviceTensor
from vkep.errors import InvalidInputError
from vkep.generation.caches import CAPACITY_STEP, CacheSpec, element_of
from vkep.generation.decoder import Adapter, Made
from vkep.generation.encoder_decoder import LOGITS, STATES, Encoded, EncoderDecoder
from vkep.generation.own_sources import MASK
from vkep.generation.rewrite import IDS
from vkep.generation.rows import BufferRows
from vkep.graph.model import Dim


class JoinedRows(BufferRows):
    """Rows of answers, each with its own source and length; one run makes a step of all. Sources have one size, unless the
    decoder reads which states each row has."""

    def __init__(self, model: EncoderDecoder, limit: int) -> None:
        assert model.joined is not None
        super().__init__(model.joined, limit)
        self._model = model
        self._sources: dict[int, Encoded] = {}  # by row
        self._sizes: dict[str, tuple[int, ...]] = {}  # of what a row holds of its source, once they are known
        self._masked = MASK in model.joined.given
        self._states: dict[int, int] = {}  # of each row's source, where they differ

    def take(
        self, prompt: Sequence[int], busy: Collection[int], source: Any = None, adapter: Adapter | None = None
    ) -> int:
        given = self._model.source(source)
        for row in range(len(self.held)):
            if row not in busy:  # rows of other sources have nothing for this one
                self._trim(row, 0)
                self._sources.pop(row, None)
        row = super().take(prompt, busy, adapter=adapter)
        self._sources[row] = given
        return row

    def _shared(self, row: int, prompt: Sequence[int]) -> int:
        return 0

    def feed(self, row: int, tokens: Sequence[int]) -> Made:
        if self.held[row]:
            return super().feed(row, tokens)
        self.reserve(row, len(tokens))
        source = self._sources[row]
        states = self._model.encode(source)
        if not self._model.folder.cross:
            made = self._begin_answer(row, tokens, states)
        else:
            own = {self._model.becomes[name]: tensor for name, tensor in states.items()}
            self._know(row, {name: tensor.shape for name, tensor in own.items()})
            for name, tensor in own.items():
                self._caches.fill(row, name, tensor)
            made = super().feed(row, tokens)
        self._sources[row] = replace(source, made={})  # the row has it: the encoder's memory is free
        return made

    def _know(self, row: int, sizes: dict[str, tuple[int, ...]]) -> None:
        """Have room for what a row's source makes. Raises `InvalidInputError` for one of another size than before, where the
        decoder cannot read which states a row has."""
        if self._masked:
            count = next(iter(sizes.values()))[2]
            most = max(-(-count // CAPACITY_STEP) * CAPACITY_STEP, *(shape[2] for shape in self._sizes.values()), 0)
            self._hold({name: (1, heads, most, size) for name, (_, heads, _, size) in sizes.items()})
            if count < self._states.get(row, 0):
                self._caches.begin(row)  # a weight of 0 hides no NaN of the source before
            self._states[row] = count
            self._caches.write(row, MASK, _ones(count, most))
            return
        if not self._sizes:
            self._hold(sizes)
        if sizes != self._sizes:
            name = next(n for n in sizes if sizes[n] != self._sizes.get(n))
            raise InvalidInputError(
                f"the encoder makes {name!r} of {sizes[name]} of the source, and of earlier ones {self._sizes.get(name)}; "
                "sources of one size can be read"
            )

    def _hold(self, sizes: dict[str, tuple[int, ...]]) -> None:
        """Have caches of these sizes for sources."""
        if sizes == self._sizes:
            return
        kinds = {v.name: element_of(v) for v in self._decoder.session.model.graph.inputs if v.name in sizes}
        specs = [CacheSpec(n, "", 0, 0, str(dtypes.from_onnx(kinds[n])), shape[1:]) for n, shape in sizes.items()]
        most = specs[0].state[1]
        self._caches.add([*specs, *([CacheSpec(MASK, "", 0, 0, "int64", (most,))] if self._masked else [])])
        self._sizes = sizes
        for row, count in self._states.items():
            self._caches.write(row, MASK, _ones(count, most))

    def _begin_answer(self, row: int, tokens: Sequence[int], states: Mapping[str, DeviceTensor]) -> Made:
        """The first run of an answer, of the decoder that reads the encoder's states."""
        model, [hidden] = self._model, states.values()
        outputs = {o.name: o for o in model.first.get_outputs()}
        pasts = {name: model.becomes[name] for name in outputs if name in model.becomes}
        shapes = {v.name: v.shape or () for v in self._decoder.session.model.graph.inputs}
        of_source = [past for past in pasts.values() if model.is_of_source(past)]
        sizes = {past: _of_states(shapes[past], hidden.shape[1]) for past in of_source}
        self._know(row, sizes)
        caches, _ = self._caches.leading(row, len(tokens))
        binding = model.first.io_binding()
        binding.bind_cpu_input(IDS, np.array([tokens], np.int64))
        binding.bind_input(STATES, hidden)
        if any(i.name == MASK for i in model.first.get_inputs()):
            binding.bind_cpu_input(MASK, self._sources[row].feeds["attention_mask"])
        binding.bind_output(LOGITS)
        for name, past in pasts.items():
            whole = sizes.get(past, caches[past].shape) == caches[past].shape
            binding.bind_output(name, caches[past] if whole else caches[past].leading(sizes[past]))
        model.first.run_with_iobinding(binding)
        self.held[row] = list(tokens)
        return Made(binding.results[0])  # type: ignore[arg-type]

    def _copy(self, row: int, into: int) -> None:
        source = self._sources[row]
        self._caches.copy(row, into, all_of_them=self._sources.get(into) is not source)
        self._sources[into] = source
        if row in self._states:
            self._states[into] = self._states[row]

    def close(self) -> None:
        super().close()
        self._sources = {}


def _ones(count: int, most: int) -> np.ndarray[Any, Any]:
    """A mask int64 [1, most] of the first ``count`` states."""
    return (np.arange(most) < count).astype(np.int64)[None]


def _of_states(shape: Sequence[Dim], count: int) -> tuple[int, ...]:
    """The sizes of a row of a cache, of a source with so many states."""
    _, heads, _, size = shape
    assert isinstance(heads, int)
    assert isinstance(size, int)
    return 1, heads, count, size
