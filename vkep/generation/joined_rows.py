"""Rows of answers of an encoder and a decoder that share runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from vkep import dtypes
from vkep.device.tensor import DeviceTensor
from vkep.errors import InvalidInputError
from vkep.generation.caches import CacheSpec, element_of
from vkep.generation.decoder import Adapter, Made
from vkep.generation.encoder_decoder import LOGITS, STATES, Encoded, EncoderDecoder
from vkep.generation.rewrite import IDS
from vkep.generation.rows import BufferRows
from vkep.graph.model import Dim


class JoinedRows(BufferRows):
    """Rows of answers, each with its own source and length; one run makes a step of all. Sources have one size."""

    def __init__(self, model: EncoderDecoder, limit: int) -> None:
        assert model.joined is not None
        super().__init__(model.joined, limit)
        self._model = model
        self._sources: dict[int, Encoded] = {}  # by row
        self._sizes: dict[str, tuple[int, ...]] = {}  # of what a row holds of its source, once they are known

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
        states = self._model.encode(self._sources[row])
        if not self._model.folder.cross:
            return self._begin_answer(row, tokens, states)
        own = {self._model.becomes[name]: tensor for name, tensor in states.items()}
        self._know({name: tensor.shape for name, tensor in own.items()})
        for name, tensor in own.items():
            self._caches.fill(row, name, tensor)
        return super().feed(row, tokens)

    def _know(self, sizes: dict[str, tuple[int, ...]]) -> None:
        """Have room for what a source makes. Raises `InvalidInputError` for one of another size than before."""
        if not self._sizes:
            kinds = {v.name: element_of(v) for v in self._decoder.session.model.graph.inputs if v.name in sizes}
            dtypes_ = {name: str(dtypes.from_onnx(kind)) for name, kind in kinds.items()}
            self._caches.add([CacheSpec(n, "", 0, 0, dtypes_[n], shape[1:]) for n, shape in sizes.items()])
            self._sizes = sizes
        if sizes != self._sizes:
            name = next(n for n in sizes if sizes[n] != self._sizes.get(n))
            raise InvalidInputError(
                f"the encoder makes {name!r} of {sizes[name]} of the source, and of earlier ones {self._sizes.get(name)}; "
                "sources of one size can be read"
            )

    def _begin_answer(self, row: int, tokens: Sequence[int], states: Mapping[str, DeviceTensor]) -> Made:
        """The first run of an answer, of the decoder that reads the encoder's states."""
        model, [hidden] = self._model, states.values()
        outputs = {o.name: o for o in model.first.get_outputs()}
        pasts = {name: model.becomes[name] for name in outputs if name in model.becomes}
        shapes = {v.name: v.shape or () for v in self._decoder.session.model.graph.inputs}
        of_source = [past for past in pasts.values() if model.is_of_source(past)]
        self._know({past: (1, *_heads_and_size(shapes[past], hidden.shape[1])) for past in of_source})
        caches, _ = self._caches.leading(row, len(tokens))
        binding = model.first.io_binding()
        binding.bind_cpu_input(IDS, np.array([tokens], np.int64))
        binding.bind_input(STATES, hidden)
        binding.bind_output(LOGITS)
        for name, past in pasts.items():
            binding.bind_output(name, caches[past])
        model.first.run_with_iobinding(binding)
        self.held[row] = list(tokens)
        return Made(binding.results[0])  # type: ignore[arg-type]

    def _copy(self, row: int, into: int) -> None:
        source = self._sources[row]
        self._caches.copy(row, into, all_of_them=self._sources.get(into) is not source)
        self._sources[into] = source

    def close(self) -> None:
        super().close()
        self._sources = {}


def _heads_and_size(shape: Sequence[Dim], count: int) -> tuple[int, int, int]:
    """The sizes of a cache but the first, of a source with so many states."""
    _, heads, _, size = shape
    assert isinstance(heads, int)
    assert isinstance(size, int)
    return heads, count, size
