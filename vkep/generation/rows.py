"""Rows of caches: the tokens that each holds, and runs of a decoder that append to them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from vkep.device.tensor import DeviceTensor
from vkep.errors import InvalidInputError
from vkep.generation.caches import CAPACITY_STEP
from vkep.generation.decoder import Adapter, Decoder, Made
from vkep.generation.pace import CHUNK, LEAST_CHUNK


class Rows(ABC):
    """A row is one sequence's caches; ``held`` has the tokens whose keys and values it holds. A row keeps them after
    its sequence has ended, for a prompt with the same first tokens."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held: list[list[int]] = []
        self.adapters: dict[int, Adapter | None] = {}  #: those by which rows were computed

    def take(
        self, prompt: Sequence[int], busy: Collection[int], source: Any = None, adapter: Adapter | None = None
    ) -> int:
        """Take a row that is not ``busy`` for a new sequence: the one that already holds the longest prefix of the
        prompt, which is kept except for the prompt's last token. ``source``: the encoder's input, if any. ``adapter``: of
        `Decoder.load_adapter`. Raises `InvalidInputError` where all are busy, `ArenaOutOfMemory`."""
        free = [row for row in range(len(self.held)) if row not in busy]
        shared = {row: self._shared(row, prompt) if self.adapters.get(row) is adapter else 0 for row in free}
        row = max(free, key=lambda r: shared[r], default=-1)
        # leave another conversation's row alone while a new row may be added
        if row < 0 or (shared[row] * 2 < len(self.held[row]) and len(self.held) < self.limit):
            row = next((r for r in free if not self.held[r]), len(self.held))
        if row >= self.limit:
            raise InvalidInputError(
                f"{self.limit} sequences are in progress, as many as max_sequences allows; step until one ends, or cancel one"
            )
        self.reserve(row, len(prompt) + 1)
        if row == len(self.held):
            self.held.append([])
        self._trim(row, shared.get(row, 0))
        self.adapters[row] = adapter
        return row

    def _shared(self, row: int, prompt: Sequence[int]) -> int:
        held = self.held[row]
        most = min(len(held), len(prompt) - 1)
        same = 0
        while same < most and held[same : same + CHUNK] == list(prompt[same : same + CHUNK]):
            same += CHUNK
        return self._usable(row, next((k for k in range(same, most) if held[k] != prompt[k]), most))

    def share(self, row: int, tokens: Sequence[int]) -> None:
        """Copy what another row holds of a row's ``tokens``, on the device, where that saves `LEAST_CHUNK` tokens or more."""
        adapter = self.adapters.get(row)
        others = {r: self._shared(r, tokens) for r in range(len(self.held)) if self.adapters.get(r) is adapter}
        best = max(others, key=lambda r: others[r])
        if others[best] - len(self.held[row]) >= LEAST_CHUNK:
            self._copy(best, row)
            self.held[row] = list(self.held[best])
            self._trim(row, others[best])

    def rewind(self, row: int, count: int) -> None:
        """Keep only the first ``count`` tokens: a step that failed is repeated."""
        if len(self.held[row]) > count:
            self._trim(row, self._usable(row, count))

    @abstractmethod
    def _usable(self, row: int, count: int) -> int:
        """How many of the first ``count`` tokens of a row can be kept without the rest."""

    @abstractmethod
    def _trim(self, row: int, count: int) -> None:
        """Keep only the first tokens of a row, as many as `_usable` returned."""

    @abstractmethod
    def reserve(self, row: int, tokens: int) -> None:
        """Ensure capacity for this many tokens in a row, which may be a new one. Raises `ArenaOutOfMemory`."""

    @abstractmethod
    def feed(self, row: int, tokens: Sequence[int]) -> Made:
        """Run `Decoder.on_rows` on tokens that follow those in the row; returns its result."""

    @abstractmethod
    def step(
        self, tokens: Mapping[int, int], known: tuple[DeviceTensor, list[int]] | None
    ) -> Iterator[tuple[range, Made]]:
        """Run `Decoder.on_rows` on the next token of some rows of one adapter (row: token id); yields each result with its rows.
        ``known`` is a tensor of token ids on the device and the same ids on the host. The tensor is used where they are
        the tokens to run."""

    def ahead(self, rows: range, tokens: DeviceTensor) -> Made | None:
        """Run `Decoder.on_rows` on the next tokens of all ``rows`` before the host knows them: ``tokens`` int64 [rows, 1].
        `append` follows once it does; a `step` in its place repeats the run. None where it cannot be done."""
        return None

    def append(self, tokens: Mapping[int, int]) -> None:
        """Count the tokens of some rows as held."""
        for row, token in tokens.items():
            self.held[row] = [*self.held[row], token]

    def fork(self, row: int, into: int) -> None:
        """Copy the caches of a row, on the device, into another one, which may be the next new one. Raises
        `ArenaOutOfMemory`."""
        self.reserve(into, len(self.held[row]) + 1)
        self._copy(row, into)
        self.held += [[] for _ in range(into + 1 - len(self.held))]
        self.held[into] = list(self.held[row])
        self.adapters[into] = self.adapters.get(row)

    @abstractmethod
    def _copy(self, row: int, into: int) -> None:
        """Copy the caches of a row; there is memory for them."""

    @abstractmethod
    def close(self) -> None:
        """Free the memory."""


def fed(rows: Rows, row: int, tokens: Sequence[int]) -> Made:
    """The last run of some tokens, at most `CHUNK` in each. Raises as `Rows.feed`."""
    for at in range(0, len(tokens), CHUNK):
        made = rows.feed(row, tokens[at : at + CHUNK])
    return made


class BufferRows(Rows):
    """Rows of common buffers with capacity for more; one run makes a step of all."""

    def __init__(self, decoder: Decoder, limit: int) -> None:
        super().__init__(limit)
        self._decoder, self._caches = decoder, decoder.caches()
        self._ends: dict[int, int] = {}  # by row: the position after its tokens, where it is not their number

    def _usable(self, row: int, count: int) -> int:
        return count if not self._decoder.has_states or count == len(self.held[row]) else 0

    @contextmanager
    def _whole(self, rows: Iterable[int]) -> Iterator[None]:
        """A run of some rows. Where it fails, states may be of some later token: these rows begin again."""
        try:
            yield
        except BaseException:
            for row in rows if self._decoder.has_states else ():
                self._trim(row, 0)
            raise

    def _trim(self, row: int, count: int) -> None:
        if count < len(self.held[row]) and self._ends.pop(row, None) is not None:
            self._set_end(row, self._decoder.in_grid([], self.held[row][:count]))
        del self.held[row][count:]

    def _set_end(self, row: int, positions: np.ndarray[Any, Any] | None) -> None:
        """Keep the position after a row's last tokens, whose own are ``positions``."""
        if positions is not None:
            self._ends[row] = int(positions.max(initial=-1)) + 1

    def _next(self, rows: range) -> np.ndarray[Any, Any] | None:
        """Positions [3, rows, 1] of the next token of some rows; None where the model's have one dimension."""
        if not self._ends:
            return None
        places = [self._ends.get(row, len(self.held[row])) for row in rows]
        return np.broadcast_to(np.array(places, np.int64)[:, None], (3, len(rows), 1))

    def _positions(self, row: int, tokens: Sequence[int]) -> np.ndarray[Any, Any] | None:
        """Positions [3, 1, count] of tokens that follow those in a row; None where the model's have one dimension."""
        if len(tokens) == 1 and row in self._ends:
            return self._next(range(row, row + 1))
        return self._decoder.in_grid(self.held[row], tokens)

    def append(self, tokens: Mapping[int, int]) -> None:
        super().append(tokens)
        for row in tokens.keys() & self._ends.keys():
            self._ends[row] += 1

    def reserve(self, row: int, tokens: int) -> None:
        caches, most = self._caches, self._decoder.folder.context
        rows, capacity = caches.rows, caches.capacity
        if row >= rows:
            rows = min(max(row + 1, 2 * rows), self.limit)
        if tokens > capacity:
            capacity = max(-(-tokens // CAPACITY_STEP) * CAPACITY_STEP, 2 * capacity)
            capacity = max(min(capacity, -(-most // CAPACITY_STEP) * CAPACITY_STEP), tokens) if most else capacity
        caches.grow(rows, capacity)

    def feed(self, row: int, tokens: Sequence[int]) -> Made:
        held = self.held[row]
        self.reserve(row, len(held) + len(tokens))
        positions = self._positions(row, tokens)
        with self._whole([row]):
            self._begin(row)
            made = self._decoder.on_rows(
                self._decoder.ids(tokens), [len(held)], self._caches, row, positions, self.adapters.get(row)
            )
        self.held[row] = [*held, *tokens]
        self._set_end(row, positions)
        return made

    def _begin(self, row: int) -> None:
        """Before a run of a row: states before its first token are 0."""
        if self._decoder.has_states and not self.held[row]:
            self._caches.begin(row)

    def step(
        self, tokens: Mapping[int, int], known: tuple[DeviceTensor, list[int]] | None
    ) -> Iterator[tuple[range, Made]]:
        if not self._decoder.has_states:
            yield self._step(tokens, known)
            return
        found = sorted(tokens)  # a run would change the states of rows between them
        first = [row for row in found if row - 1 not in tokens]
        for at, end in zip(first, [*first[1:], found[-1] + 1], strict=True):
            part = {row: tokens[row] for row in found if at <= row < end}
            with self._whole(part):
                made = self._step(part, known if len(first) == 1 else None)
            yield made

    def _step(self, tokens: Mapping[int, int], known: tuple[DeviceTensor, list[int]] | None) -> tuple[range, Made]:
        rows = range(min(tokens), max(tokens) + 1)
        self.reserve(rows[-1], max(len(self.held[row]) for row in tokens) + 1)
        for row in rows:
            if row not in tokens and len(self.held[row]) >= self._caches.capacity:
                self._trim(row, self._caches.capacity - 1)  # the run also writes one position after the tokens
        on_device, on_host = known or (None, [])
        wanted = [tokens.get(row, on_host[k] if k < len(on_host) else 0) for k, row in enumerate(rows)]
        same = on_device is not None and on_host == wanted
        ids = on_device if same and on_device is not None else np.array(wanted, np.int64)[:, None]
        made = self._decoder.on_rows(
            ids,
            [len(self.held[row]) for row in rows],
            self._caches,
            rows[0],
            self._next(rows),
            self.adapters.get(rows[0]),
        )
        self.append(tokens)
        return rows, made

    def ahead(self, rows: range, tokens: DeviceTensor) -> Made | None:
        lengths = [len(self.held[row]) for row in rows]
        if self._decoder.has_states or max(lengths) >= self._caches.capacity:
            return None
        adapter = self.adapters.get(rows[0])
        return self._decoder.on_rows(tokens, lengths, self._caches, rows[0], self._next(rows), adapter)

    def _copy(self, row: int, into: int) -> None:
        self._caches.copy(row, into)
        if row in self._ends:
            self._ends[into] = self._ends[row]

    def close(self) -> None:
        self._caches.close()
        self.held = []


class GrownRows(BufferRows):
    """Rows of a model that knows no lengths: its caches grow by Concat, one row in a run."""

    def reserve(self, row: int, tokens: int) -> None:
        super().reserve(row, tokens + 1)  # a cache that fills its memory is dense: plans for other strides do not apply

    def feed(self, row: int, tokens: Sequence[int]) -> Made:
        return self._feed(row, self._decoder.ids(tokens), tokens)

    def _feed(self, row: int, ids: np.ndarray[Any, Any] | DeviceTensor, tokens: Sequence[int]) -> Made:
        held = self.held[row]
        self.reserve(row, len(held) + len(tokens))
        positions = self._positions(row, tokens)
        with self._whole([row]):
            self._begin(row)
            made = self._decoder.on_leading(ids, len(held), self._caches, row, positions, self.adapters.get(row))
        self.held[row] = [*held, *tokens]
        self._set_end(row, positions)
        return made

    def step(
        self, tokens: Mapping[int, int], known: tuple[DeviceTensor, list[int]] | None
    ) -> Iterator[tuple[range, Made]]:
        for row, token in tokens.items():
            # the tokens on the device are those of one run: the next row's run overwrites them
            same = known is not None and known[1] == [token] and len(tokens) == 1
            ids = known[0] if same and known is not None else np.array([[token]], np.int64)
            yield range(row, row + 1), self._feed(row, ids, [token])

    def ahead(self, rows: range, tokens: DeviceTensor) -> Made | None:
        length = len(self.held[rows[0]])
        if self._decoder.has_states or len(rows) > 1 or length + 1 >= self._caches.capacity:
            return None
        adapter = self.adapters.get(rows[0])
        return self._decoder.on_leading(tokens, length, self._caches, rows[0], self._next(rows), adapter)
