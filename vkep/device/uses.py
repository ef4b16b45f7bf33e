"""Which submits use a tensor's memory."""

from __future__ import annotations


class Uses:
    """The latest submits that use a tensor's memory, as values of its context's timeline. All views of the memory share it."""

    __slots__ = ("last", "written")

    def __init__(self) -> None:
        self.last = 0  #: reads or writes it
        self.written = 0  #: writes it

    def expect(self, submitted: int) -> None:
        """A submit after the value ``submitted`` will use the memory: recorded before, since a signal handler may raise
        between a submit and `add`."""
        self.last = max(self.last, submitted + 1)

    def add(self, value: int, *, writes: bool) -> None:
        """The submit that signals ``value`` uses the memory."""
        self.last = max(self.last, value)
        if writes:
            self.written = max(self.written, value)
