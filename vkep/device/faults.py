"""Faults: data that break an operator's specification, as kernels note them and as runs raise them.

A recording whose plan has faults (`vkep.plan.records.Plan.faults`) has one word that its kernels write a code to. The word lies
where the host sees it, so that a run without a fault costs a look at it. A run that the host waits for is checked then. One
that it does not wait for leaves a `RunCheck` with the device tensors that it wrote: whoever brings their content to the host,
or computes from it, asks that check first. Of a run that writes no device tensor only its own thread asks: it needs no
`RunCheck`.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import TYPE_CHECKING

from vkep.errors import InvalidInputError
from vkep.memory.device_arena import DeviceBlock

if TYPE_CHECKING:
    from gpu_shared.lease import DelegateLease

FAULT_BYTES = 4


class FaultWord:
    """The fault word of one recording, which has one run in flight at most. ``block`` stays the caller's."""

    def __init__(self, block: DeviceBlock, faults: Sequence[tuple[int, str]], lease: DelegateLease) -> None:
        assert block.mapped is not None, "unified memory and staging are mapped"
        self.address = block.address
        self._word = block.mapped[:FAULT_BYTES].cast("I")
        self._incoherent = None if block.buffer.coherent else block.buffer
        self._lease = lease
        self.reasons = dict(faults)  #: by code; those of the run in flight
        self._lock = Lock()
        self._latest: RunCheck | None = None
        self.unread = False  #: a run was submitted, and nobody has looked at what it met
        self._clear()

    def submitted(self, value: int) -> RunCheck:
        """The check of a run that is done at a timeline value."""
        self._latest, self.unread = RunCheck(self, value), True
        return self._latest

    def verify(self) -> None:
        """Look at what the run met that has just ended and has no `RunCheck`. Raises `InvalidInputError` as that."""
        code = self._taken()
        if code:
            raise InvalidInputError(self.reasons[code])

    def settle(self, check: RunCheck | None = None, *, ended: bool = False) -> None:
        """Wait for the run of ``check`` (None: the latest one) unless it has ``ended``, and write down what it met. Raises
        `DeviceLostError`.
        """
        check = check or self._latest
        if check is None:
            if self.unread:  # what nobody asked, as an exception came first
                self._taken()
            return
        if not ended:
            self._lease.wait(check.value)
        with self._lock:
            if check is not self._latest:
                return  # another thread was faster
            code = self._met()
            if code:
                check.reason = self.reasons[
                    code
                ]  # before the word is clear: an interrupt may come between any two of these
            self._taken()
            check.word = self._latest = None

    def _taken(self) -> int:
        """The code of the run that ended; the word is clear then."""
        code = self._met()
        if code:
            self._clear()
        self.unread = False
        return code

    def _met(self) -> int:
        if self._incoherent is not None:
            self._incoherent.invalidate()
        return self._word[0]

    def _clear(self) -> None:
        self._word[0] = 0
        if self._incoherent is not None:
            self._incoherent.flush()


class RunCheck:
    """Whether one run met data that break an operator's specification; known once it has ended."""

    __slots__ = ("reason", "value", "word")

    def __init__(self, word: FaultWord, value: int) -> None:
        self.value = value
        self.word: FaultWord | None = word  #: None once it is known; its memory is the recording's
        self.reason = ""  #: what was met

    def verify(self, *, ended: bool = False) -> None:
        """Wait for the run, unless it has ``ended``. Raises `InvalidInputError` with the node and the reason,
        `DeviceLostError`.
        """
        word = self.word
        if word is not None:
            word.settle(self, ended=ended)
        if self.reason:
            raise InvalidInputError(self.reason)
