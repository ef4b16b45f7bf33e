"""Which submits use a tensor's memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Uses:
    """The submits that use a tensor's memory, as values of its context's timeline. All tensors in the memory share it.

    `Operands.begin` precedes a submit and `Operands.end` follows it. What lies between may be interrupted, and other threads
    submit meanwhile: until it has ended, the submit may be any of those that were made so far.
    """

    __slots__ = ("_last", "begun", "written")

    def __init__(self) -> None:
        self.begun: set[Operands] = set()  #: of the submits between `Operands.begin` and `Operands.end`
        self._last = 0  # the latest one that reads or writes the memory
        self.written = 0  #: the latest one that writes it

    def add(self, value: int, *, writes: bool) -> None:
        """The submit that signals ``value`` uses the memory."""
        if value > self._last:
            self._last = value
        if writes and value > self.written:
            self.written = value

    def last(self, submitted: int) -> int:
        """The value after which nothing that was submitted uses the memory; ``submitted`` is the latest one."""
        return submitted if self.begun else self._last

    def last_write(self, submitted: int) -> int:
        """The value after which nothing that was submitted writes the memory."""
        return submitted if self.begun else self.written


class Used(Protocol):
    """A tensor."""

    uses: Uses


class Operands:
    """Marks the tensors of a recorded submit as in use, from `begin` before it until `end` knows its timeline value."""

    __slots__ = ("_reads", "_writes")

    def __init__(self) -> None:
        self._reads: Sequence[Used] = ()
        self._writes: Sequence[Used] = ()

    def begin(self, reads: Sequence[Used], writes: Sequence[Used]) -> None:
        """Mark each tensor as used by the submit that follows; `end` says its value."""
        self._reads, self._writes = reads, writes  # first: an interrupt may come before all are marked
        for tensor in reads:
            tensor.uses.begun.add(self)
        for tensor in writes:
            tensor.uses.begun.add(self)

    def end(self, value: int) -> None:
        """It signals ``value``; where it failed or was interrupted, the latest value that was submitted. Does nothing where
        no submit has begun."""
        for tensor in self._reads:
            tensor.uses.add(value, writes=False)
            tensor.uses.begun.discard(self)
        for tensor in self._writes:
            tensor.uses.add(value, writes=True)
            tensor.uses.begun.discard(self)
        self._reads = self._writes = ()
