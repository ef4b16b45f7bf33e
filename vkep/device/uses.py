"""Which submits use a tensor's memory."""

from __future__ import annotations

from collections.abc import Iterable


class Uses:
    """The submits that use a tensor's memory, as values of its context's timeline. All tensors in the memory share it.

    `begin` precedes a submit and `end` follows it. What lies between may be interrupted, and other threads submit
    meanwhile: until it has ended, the submit may be any of those that were made so far.
    """

    __slots__ = ("_begun", "_last", "written")

    def __init__(self) -> None:
        self._begun: list[None] = []  # one element for each submit between `begin` and `end`
        self._last = 0  # the latest one that reads or writes the memory
        self.written = 0  #: the latest one that writes it

    def begin(self) -> None:
        """A submit that uses the memory follows."""
        self._begun.append(None)

    def end(self, value: int, *, writes: bool) -> None:
        """It signals ``value``."""
        if value > self._last:
            self._last = value
        if writes and value > self.written:
            self.written = value
        if self._begun:
            self._begun.pop()

    def add(self, value: int, *, writes: bool) -> None:
        """The submit that signals ``value`` uses the memory."""
        self._last = max(self._last, value)
        if writes:
            self.written = max(self.written, value)

    def last(self, submitted: int) -> int:
        """The value after which nothing that was submitted uses the memory; ``submitted`` is the latest one."""
        return submitted if self._begun else self._last

    def last_write(self, submitted: int) -> int:
        """The value after which nothing that was submitted writes the memory."""
        return submitted if self._begun else self.written


class Operands:
    """Marks the tensors of a recorded submit as in use, from `begin` before it until `end` knows its timeline value."""

    __slots__ = ("_begun",)

    def __init__(self) -> None:
        self._begun: list[tuple[Uses, bool]] = []

    def begin(self, reads: Iterable[Uses], writes: Iterable[Uses]) -> None:
        """Mark each tensor as used by the submit that follows; `end` says its value, and which tensors it wrote."""
        for uses in reads:
            uses.begin()
            self._begun.append((uses, False))
        for uses in writes:
            uses.begin()
            self._begun.append((uses, True))

    def end(self, value: int) -> None:
        """It signals ``value``; where it failed or was interrupted, the latest value that was submitted. Does nothing where
        no submit has begun."""
        while self._begun:
            uses, written = self._begun.pop()
            uses.end(value, writes=written)
