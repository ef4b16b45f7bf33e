"""One model on several devices of one machine: `Replicas`; and a session that survives the loss of its device."""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

from gpu_shared.errors import ClosedError, DeviceLostError, DeviceNotFoundError
from gpu_shared.steady import closing
from gpu_shared.uncopied import Uncopied
from vkep.session.options import SessionOptions, merged_options
from vkep.session.session import InferenceSession, NodeArg
from vkep.threads import Threads

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from gpu_shared.capabilities import DeviceInfo
    from vkep.graph.load import ModelSource
    from vkep.session.options import SessionFields
    from vkep.session.run_options import RunOptions
    from vkep.session.session_state import Array, Output

logger = logging.getLogger("vkep.session")


class RenewedSession:
    """A session that is opened again, at most once per run, where its device was lost: a lost context stays lost, and a
    new session creates a new one. Inputs are numpy arrays: device tensors are lost with their context. Thread-safe."""

    def __init__(self, open_session: Callable[[], InferenceSession]) -> None:
        """Raises as ``open_session``."""
        self._open = open_session
        self._lock = threading.Lock()
        self._closed = False
        self.renewals = 0  #: number of times that the session was opened again
        self.gone = False  #: it could not be opened again: the device no longer exists
        self.session = open_session()

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Array], run_options: RunOptions | None = None
    ) -> list[Output]:
        """As `InferenceSession.run`. Raises `DeviceLostError` where the new device was lost as well, or is not
        available."""
        session = self.session
        try:
            return session.run(output_names, input_feed, run_options)
        except DeviceLostError as lost:
            return self._renewed(session, lost).run(output_names, input_feed, run_options)
        except ClosedError:
            # another thread, whose run was lost too, has closed the session between the two lines above
            if self._closed or session is self.session:
                raise
            return self.session.run(output_names, input_feed, run_options)

    def _renewed(self, lost: InferenceSession, error: DeviceLostError) -> InferenceSession:
        with self._lock:
            if self._closed:
                raise ClosedError(repr(lost))
            if self.session is lost:  # else another thread was first
                logger.warning("the device of %s was lost (%s): the session is opened again", repr(lost), str(error))
                try:
                    session = self._open()
                except Exception as reason:
                    self.gone = True
                    raise DeviceLostError("opening a session again", hint=f"{error}; then: {reason}") from reason
                self.session, self.gone = session, False
                self.renewals += 1
                lost.close()
            return self.session

    @closing
    def close(self) -> None:
        """Idempotent."""
        with self._lock:
            self._closed = True
            self.session.close()


class Replicas(Uncopied):
    """A model with a session on each of several devices: each run goes to the one with the fewest runs in progress.

    Args:
        model: as `InferenceSession` takes it.
        options: as `InferenceSession` takes them, without ``device`` and ``token``: each device has a token of its own.
        **overrides: options by name.
        devices: indices, UUIDs or parts of names; "all": all usable GPUs, or the CPU driver where there is none. A
            device that is named twice gets two contexts.

    Safe to use from several threads; one thread alone keeps all devices busy through `map`. A run whose device is lost
    is tried again on a new context, then on the other devices, and fails where none of them is left. Close it, or use
    ``with``.

    Raises as `InferenceSession`; ``ValueError`` where options name a device or a token, `DeviceNotFoundError` where a
    device does not exist.
    """

    _instead = "make another one of the same model, in each process"

    def __init__(
        self,
        model: ModelSource,
        devices: Sequence[int | str] | str = "all",
        options: SessionOptions | None = None,
        **overrides: Unpack[SessionFields],
    ) -> None:
        given = merged_options(options, overrides)
        for name in ("device", "token"):
            if getattr(given, name) is not None:
                raise ValueError(
                    f"{name} is {getattr(given, name)!r}: devices says where Replicas run, each with a token"
                )
        chosen = chosen_devices(devices)
        self._concurrency = given.concurrency
        workers = len(chosen) * (self._concurrency + 1)
        self._pool = Threads(workers, thread_name_prefix="vkep-replicas")  # no thread before `map`
        self._lock = threading.Lock()
        self._running = [0] * len(chosen)
        self._sessions: list[RenewedSession] = []
        seen: Counter[str] = Counter()
        try:
            for device in chosen:
                uuid = device.capabilities.uuid or str(device.index)
                key = {"device": uuid, "token": f"replica:{uuid}", "group_id": seen[uuid]}
                mine = merged_options(given, key)
                seen[uuid] += 1
                # one after another: the first fills the disk caches for the others
                self._sessions.append(RenewedSession(lambda mine=mine: InferenceSession(model, mine)))  # type: ignore[misc]
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def sessions(self) -> list[InferenceSession]:
        """The sessions by device."""
        return [one.session for one in self._sessions]

    def get_inputs(self) -> list[NodeArg]:
        """The model's inputs in order."""
        return self.sessions[0].get_inputs()

    def get_outputs(self) -> list[NodeArg]:
        """The model's outputs in order."""
        return self.sessions[0].get_outputs()

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Array], run_options: RunOptions | None = None
    ) -> list[Output]:
        """`InferenceSession.run` on the device with the fewest runs in progress: the same arguments, results and
        errors. Raises `DeviceLostError` where no device is left."""
        failed: dict[int, DeviceLostError] = {}
        while True:
            index = self._begin(failed)
            try:
                return self._sessions[index].run(output_names, input_feed, run_options)
            except DeviceLostError as lost:
                failed[index] = lost
                if len(failed) == len(self._sessions):
                    raise
                logger.warning("device %d of %d is lost: the run goes to another", index, len(self._sessions))
            finally:
                with self._lock:
                    self._running[index] -= 1

    def _begin(self, failed: Mapping[int, DeviceLostError]) -> int:
        with self._lock:
            index = min((i for i in range(len(self._sessions)) if i not in failed), key=self._running.__getitem__)
            self._running[index] += 1
            return index

    def map(
        self, batches: Iterable[Mapping[str, Array]], output_names: Sequence[str] | None = None
    ) -> Iterator[list[Output]]:
        """The results of `run` for each feed (input name: array), in order. At most ``concurrency`` + 1 feeds per
        device are taken in advance. Raises as `run`, at the feed that failed."""
        ahead = len(self) * (self._concurrency + 1)
        pending: deque[Future[list[Output]]] = deque()
        try:
            for feeds in batches:
                pending.append(self._pool.submit(self.run, output_names, feeds))
                if len(pending) > ahead:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()

    @closing
    def close(self) -> None:
        """Wait for the runs in progress and close all sessions; idempotent."""
        self._pool.shutdown()
        for one in self._sessions:
            one.close()

    def __enter__(self) -> Replicas:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def chosen_devices(devices: Sequence[int | str] | str) -> list[DeviceInfo]:
    """The devices that `Replicas` run on. Raises `DeviceNotFoundError`, ``ValueError``, ``TypeError``."""
    from gpu_shared.instance import list_devices, select_device

    there = list_devices()
    if isinstance(devices, str):
        if devices != "all":
            raise ValueError(f"devices is {devices!r}, expected 'all' or a list of indices, UUIDs or names")
        usable = [device for device in there if not device.problems]
        chosen = [device for device in usable if device.capabilities.device_type != "cpu"] or usable[:1]
        if not chosen:
            select_device(there)  # reports the devices and why none is usable
        return chosen
    chosen = [select_device(there, device) for device in devices]
    if not chosen:
        raise DeviceNotFoundError("choosing devices", hint="devices is empty: name at least one, or say 'all'")
    return chosen
