"""Bodies of requests with binary tensors. They stay in the pieces that arrived until a run copies the rows of all its requests.

That is one copy, in one call that does not hold the interpreter's lock. numpy takes the lock again after each array, and waits
for it while another thread reads requests. Only requests of several rows are copied once more, to lie one after the other.
Neither Ray nor Vulkan.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
_ALIGNMENT = 64


@dataclass(frozen=True)
class Layout:
    """Where a body of ``size`` bytes has its tensors: name, dtype, shape and first byte of each. ``head`` bytes of JSON come
    first. The tensors begin at multiples of their elements' sizes after that."""

    size: int
    head: int
    tensors: tuple[tuple[str, np.dtype[Any], tuple[int, ...], int], ...]

    @functools.cached_property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Of the tensors by name."""
        return {name: shape for name, _, shape, _ in self.tensors}

    def arrays(self, bodies: Sequence[Sequence[bytes]]) -> dict[str, Array]:
        """The tensors of bodies with this layout, one body's rows after the other's. They share memory, and are read-only."""
        before = bytes(-self.head % _ALIGNMENT)
        after = bytes(-(len(before) + self.size) % _ALIGNMENT)
        whole = b"".join([piece for body in bodies for piece in (before, *body, after)])
        step, found = len(before) + self.size + len(after), {}
        for name, dtype, shape, start in self.tensors:
            strides = np.ndarray(shape, dtype, whole, len(before) + start).strides
            every = np.ndarray((len(bodies), *shape), dtype, whole, len(before) + start, (step, *strides))
            found[name] = every[0] if len(bodies) == 1 else every.reshape(len(bodies) * shape[0], *shape[1:])
        return found


class BinaryFeeds(Mapping[str, Array]):
    """A request's inputs by name, copied from its body when the first one is read."""

    def __init__(self, layout: Layout, pieces: Sequence[bytes]) -> None:
        self.layout, self.pieces = layout, pieces

    @functools.cached_property
    def _arrays(self) -> Mapping[str, Array]:
        return self.layout.arrays([self.pieces])

    def __getitem__(self, name: str) -> Array:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.layout.shapes)

    def __len__(self) -> int:
        return len(self.layout.shapes)


def shapes_of(feeds: Mapping[str, Array]) -> Mapping[str, tuple[int, ...]]:
    """The shapes of a request's inputs by name."""
    return feeds.layout.shapes if isinstance(feeds, BinaryFeeds) else {name: a.shape for name, a in feeds.items()}


def joined(items: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """The inputs of requests as those of one run, one request's rows after the other's."""
    binary = [feeds for feeds in items if isinstance(feeds, BinaryFeeds)]
    if len(binary) == len(items) and all(feeds.layout == binary[0].layout for feeds in binary):
        return binary[0].layout.arrays([feeds.pieces for feeds in binary])
    return {name: np.concatenate([feeds[name] for feeds in items]) for name in items[0]}
