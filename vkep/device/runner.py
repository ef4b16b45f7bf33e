"""A plan on a device: compiled and uploaded once, recorded as often as runs overlap."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from vkep.device.arguments import Places, RunNumbers
from vkep.device.recorded import RecordedPlan
from vkep.device.tensor import DeviceTensor
from vkep.dtypes import DTYPES
from vkep.graph.weights import Weight
from vkep.plan.layout import Layout, laid_out
from vkep.plan.records import Plan, Port
from vkep.plan.sized import PlanSizes

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
        sizes: PlanSizes | None = None,
        concurrency: int = 2,
        progress: Progress | None = None,
    ) -> None:
        """``sizes``: what a run's sizes change in the plan (`at`)."""
        self.plan = plan
        self._delegate = delegate
        self._places = Places(plan, sizes)
        self._layout: Layout | None = None
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

    def at(self, sizes: Sequence[int]) -> SizedRunner:
        """A runner of the same recordings for runs of these sizes, in the order of the plan's symbols."""
        return SizedRunner(self, self._places.numbers(sizes))

    @contextlib.contextmanager
    def recording(self, numbers: RunNumbers | None = None) -> Iterator[RecordedPlan]:
        """A recording for one run, of these sizes; waits where ``concurrency`` runs hold one each."""
        recorded = self._take(numbers)
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

    def _take(self, numbers: RunNumbers | None) -> RecordedPlan:
        self._room.acquire()
        try:
            layout = None if numbers is None else self._layout_for(numbers)
            recorded = self._idle_with(layout)
            if recorded is None:
                with self._delegate.lock:
                    recorded = RecordedPlan(
                        self._delegate, self._places, self._pipelines, self._constants.addresses, layout
                    )
            if numbers is not None:
                try:
                    recorded.set_sizes(numbers)
                except BaseException:
                    recorded.close()
                    raise
            return recorded
        except BaseException:
            self._room.release()
            raise

    def _idle_with(self, layout: Layout | None) -> RecordedPlan | None:
        """An idle recording; those whose buffers lie elsewhere are closed."""
        while True:
            try:
                recorded = self._idle.pop()
            except IndexError:
                return None
            if recorded.layout is layout:
                return recorded
            recorded.close()

    def _layout_for(self, numbers: RunNumbers) -> Layout:
        """Where the buffers lie: as before, unless these sizes need more room."""
        sizes, layout = self._places.sizes, self._layout
        assert sizes is not None
        if layout is None or not layout.fits([numbers.values[b.nbytes] for b in sizes.buffers]):
            with self._delegate.lock:
                layout = self._layout = laid_out(sizes, numbers.values, self._layout)
        return layout

    def _give(self, recorded: RecordedPlan) -> None:
        if self._closed or recorded.layout is not self._layout:
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


class SizedRunner(PlanRunner):
    """A `PlanRunner`'s recordings for runs of certain sizes. It owns nothing: the runner that made it stays open."""

    def __init__(self, runner: PlanRunner, numbers: RunNumbers) -> None:
        self.plan = replace(runner.plan, ports=numbers.ports)
        self._runner, self._numbers, self._delegate = runner, numbers, runner._delegate

    def recording(self, numbers: RunNumbers | None = None) -> contextlib.AbstractContextManager[RecordedPlan]:  # type: ignore[override]
        """See `PlanRunner.recording`."""
        return self._runner.recording(self._numbers)

    def close(self) -> None:
        """Nothing: the runner closes what it has."""
