"""OrtSyncStreamImpl and OrtSyncNotificationImpl: a stream is the context's timeline, a notification a value of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vkep.ort.boundary import CStruct, ffi, lib, owned, releases, status, value
from vkep.ort.memory.domain import MemoryDomain

if TYPE_CHECKING:
    from vkep.ort.api import Ort


class SyncStream(CStruct, struct="OrtSyncStreamImpl"):
    """A stream. All streams of one context are the same timeline semaphore, whose handle it returns."""

    def __init__(self, ort: Ort, domain: MemoryDomain) -> None:
        super().__init__()
        self.ort, self.domain = ort, domain

    @value(ffi.NULL)
    def GetHandle(self) -> Any:
        return ffi.cast("void *", self.domain.context.timeline.raw_int)

    @status
    def CreateNotification(self, out: Any) -> None:
        out[0] = SyncNotification(self).pointer

    @status
    def Flush(self) -> None:
        self.domain.wait()

    @status
    def OnSessionRunEnd(self) -> None:
        self.domain.run_ended()

    @releases
    def Release(self) -> None:
        self.release()

    def release(self) -> None:
        super().release()
        self.domain.release()


class SyncNotification(CStruct, struct="OrtSyncNotificationImpl"):
    """Everything that was submitted before it was activated."""

    def __init__(self, stream: SyncStream) -> None:
        super().__init__()
        self._ort, self._domain = stream.ort, stream.domain
        self._value = 0

    @status
    def Activate(self) -> None:
        self._value = self._domain.context.timeline.submitted

    @status
    def WaitOnDevice(self, consumer: Any) -> None:
        stream = owned(lib.vkep_working_stream(self._ort.ep_api.SyncStream_GetImpl(consumer)))
        if stream is None or stream.domain is not self._domain:
            self._domain.wait(self._value)  # another device cannot wait for this timeline; the host can
        # else: the consumer's submits follow on the same queue, and begin with a barrier

    @status
    def WaitOnHost(self) -> None:
        self._domain.wait(self._value)

    @releases
    def Release(self) -> None:
        self.release()
