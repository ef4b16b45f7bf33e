"""A plan on a device: compiled and uploaded once, recorded as often as runs overlap."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from vkep.device.recorded import RecordedPlan
from vkep.device.tensor import DeviceTensor
from vkep.dtypes import DTYPES
from vkep.graph.weights import Weight
from vkep.plan.records import Plan, Port

if TYPE_CHECKING:
    from gpu_shared.lease import DelegateLease
    from vkep.device.constants import ConstantSet
    from vkep.device.delegate import VulkanDelegate
    from vkep.device.faults import RunCheck

Array = np.ndarray[Any, Any]
#: ``progress(phase, done, total, what)``: phases "shaders" (count) and "weights" (bytes), from two threads
Progress = Callable[[str, int, int, str], None]


class PlanRunner:
    """Pipelines and constants of a plan, and the recordings that run it. Thread-safe.

    At most ``concurrency`` runs hold memory at once; further ones wait for a recording to come free.
    """

    def __init__(
        self,
        delegate: VulkanDelegate,
        plan: Plan,
        weights: Mapping[str, Weight],
        *,
        concurrency: int = 2,
        progress: Progress | None = None,
    ) -> None:
        self.plan = plan
        self._delegate = delegate
        self._idle: list[RecordedPlan] = []
        self._room = threading.Semaphore(concurrency)
        self._closed = False
        shaders = None if progress is None else functools.partial(progress, "shaders")
        bytes_ = None if progress is None else functools.partial(progress, "weights")

        def constants() -> ConstantSet:
            with delegate.lock:
                return delegate.constants.acquire(plan.constants, weights, delegate.arena, delegate.uploader, bytes_)

        held = delegate.pipelines.held(plan.pipelines)
        if held is not None:  # as for another size of a known model
            self._pipelines, self._constants = held, constants()
            return
        with ThreadPoolExecutor(1) as other:  # shaders compile while weights travel
            pipelines = other.submit(delegate.pipelines.get, plan.pipelines, shaders)
            self._constants = constants()
            try:
                self._pipelines = pipelines.result()
            except BaseException:
                self._constants.close()
                raise

    def run(
        self, inputs: Sequence[Array | DeviceTensor], outputs: Sequence[Array | DeviceTensor | None]
    ) -> list[Array | DeviceTensor]:
        """See `RecordedPlan.run`."""
        with self.recording() as recorded:
            return recorded.run(inputs, outputs)

    def run_at(self, addresses: list[int]) -> RunCheck | None:
        """See `RecordedPlan.run_at`."""
        with self.recording() as recorded:
            return recorded.run_at(addresses)

    def profile(self, inputs: Sequence[Array | DeviceTensor]) -> list[float]:
        """Nanoseconds of each dispatch in one run; see `RecordedPlan.profile`."""
        with self.recording() as recorded:
            return recorded.profile(inputs)

    @contextlib.contextmanager
    def recording(self) -> Iterator[RecordedPlan]:
        """A recording for one run; waits where ``concurrency`` runs hold one each."""
        recorded = self._take()
        try:
            yield recorded
        finally:
            self._give(recorded)

    @property
    def lease(self) -> DelegateLease:
        """The delegate's lease, which its recordings are submitted on."""
        return self._delegate.lease

    def tensor_for(self, port: Port) -> DeviceTensor:
        """A new device tensor that fits an output."""
        return DeviceTensor(self._delegate, DTYPES[port.dtype], port.shape)

    def _take(self) -> RecordedPlan:
        self._room.acquire()
        try:
            return self._idle.pop()
        except IndexError:
            pass
        try:
            with self._delegate.lock:
                return RecordedPlan(self._delegate, self.plan, self._pipelines, self._constants.addresses)
        except BaseException:
            self._room.release()
            raise

    def _give(self, recorded: RecordedPlan) -> None:
        if self._closed:
            recorded.close()
        else:
            self._idle.append(recorded)
        self._room.release()

    def close(self) -> None:
        """Give everything back once the GPU is done; idempotent. Runs in other threads must have ended."""
        if self._closed:
            return
        self._closed = True
        for recorded in self._idle:
            recorded.close()
        self._idle.clear()
        self._constants.close()
