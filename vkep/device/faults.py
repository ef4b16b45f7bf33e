"""Faults: data that break an operator's specification, as kernels report them and runs raise them.

A recording whose plan has faults (`vkep.plan.records.Plan.faults`) has one word that its kernels write a code to. The
host can read the word, so that a run without a fault costs one read. A run that the host waits for is checked at its
end. A run that the host does not wait for leaves a `RunCheck` with the device tensors that it wrote: code that brings
their content to the host, or computes from it, calls that check first. A run that writes no device tensor needs no
`RunCheck`: only its own thread checks it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING

from vkep.errors import InvalidInputError
from vkep.memory.device_arena import DeviceBlock

if TYPE_CHECKING:
    from gpu_shared.lease import DelegateLease

FAULT_BYTES = 4


class FaultWord:
    """The fault word of one recording, which has at most one run in flight. The caller owns ``block``."""

    def __init__(self, block: DeviceBlock, faults: Sequence[tuple[int, str]], lease: DelegateLease) -> None:
        assert block.mapped is not None, "unified memory and staging are mapped"
        self.address = block.address
        self._word = block.mapped[:FAULT_BYTES].cast("I")
        self._incoherent = None if block.buffer.coherent else block.buffer
        self._lease = lease
        self.reasons: Mapping[int, str] = dict(faults)  #: error messages by code, of the run in flight
        self._lock = Lock()
        self._latest: RunCheck | None = None
        self.unread = False  #: a run was submitted, and its word has not been read
        self._clear()

    def submitted(self, value: int) -> RunCheck:
        """Return the check of a run that ends at a timeline value."""
        self._latest, self.unread = RunCheck(self, value), True
        return self._latest

    def verify(self) -> None:
        """Check the run that has just ended and has no `RunCheck`. Raises `InvalidInputError` as `RunCheck.verify`."""
        code = self._taken()
        if code:
            raise InvalidInputError(self.reasons[code])

    def settle(self, check: RunCheck | None = None, *, ended: bool = False) -> None:
        """Wait for the run of ``check`` (None: the latest one) unless it has ``ended``, and store its result. Raises
        `DeviceLostError`."""
        check = check or self._latest
        if check is None:
            if self.unread:  # a run that nothing checked, because of an exception
                self._taken()
            return
        if not ended:
            self._lease.wait(check.value)
        with self._lock:
            if check is not self._latest:
                return  # another thread has done it
            code = self._met()
            if code:
                check.reason = self.reasons[
                    code
                ]  # before the word is cleared: an interrupt may come between any two of these lines
            self._taken()
            check.word = self._latest = None

    def _taken(self) -> int:
        """Read and clear the code of the run that ended."""
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
    """Whether one run found data that break an operator's specification; known once the run has ended."""

    __slots__ = ("reason", "value", "word")

    def __init__(self, word: FaultWord, value: int) -> None:
        self.value = value
        self.word: FaultWord | None = word  #: None once the result is known; its memory belongs to the recording
        self.reason = ""  #: the fault that was found

    def verify(self, *, ended: bool = False) -> None:
        """Wait for the run, unless it has ``ended``. Raises `InvalidInputError` with the node and the reason,
        `DeviceLostError`.
        """
        word = self.word
        if word is not None:
            word.settle(self, ended=ended)
        if self.reason:
            raise InvalidInputError(self.reason)
