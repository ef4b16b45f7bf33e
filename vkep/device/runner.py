"""A plan on a device: compiled and uploaded once, and recorded once for each overlapping run."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from gpu_shared.errors import ClosedError, OutOfDeviceMemoryError
from gpu_shared.steady import Started, check_wanted, steady
from vkep.arena.records import ArenaOutOfMemory
from vkep.device.arguments import Places, RunNumbers
from vkep.device.bound import Bound
from vkep.device.recorded import RecordedPlan
from vkep.device.rooms import Room, Rooms
from vkep.device.tensor import DeviceTensor
from vkep.dtypes import DTYPES
from vkep.graph.weights import Weight
from vkep.memory.device_arena import Patience
from vkep.plan.layout import Layout, laid_out
from vkep.plan.memory import check_bytes, too_large
from vkep.plan.records import Plan, Port
from vkep.plan.sized import PlanSizes, ports

if TYPE_CHECKING:
    from gpu_shared.lease import DelegateLease
    from vkep.device.constants import ConstantSet
    from vkep.device.delegate import VulkanDelegate

Array = np.ndarray[Any, Any]
#: ``progress(phase, done, total, what)``: phases "shaders" (count) and "weights" (bytes), from two threads
Progress = Callable[[str, int, int, str], None]


class PlanRunner:
    """Pipelines and constants of a plan, and the recordings that run it. Thread-safe.

    At most as many runs hold memory at once as there are rooms; further ones wait for a free one. Under `max_memory`
    the first run uploads the weights; a runner gives them back while others need memory, and uploads them again (`evict`).
    """

    @steady
    def __init__(
        self,
        delegate: VulkanDelegate,
        plan: Plan,
        weights: Mapping[str, Weight],
        *,
        sizes: PlanSizes | None = None,
        rooms: Rooms | None = None,
        progress: Progress | None = None,
    ) -> None:
        """``sizes``: the numbers of the plan that depend on a run's sizes (`at`). ``rooms``: those of the session
        (None: two separate ones)."""
        self.plan = plan
        self._delegate = delegate
        self._places = Places(plan, sizes)
        self._layout: Layout | None = None
        self._rooms = rooms or Rooms(2)
        self._closed = False
        self._outputs = plan.outputs
        self._most_ports = 0  # bytes of the ports of a run that were checked
        self._weights_bytes = sum(constant.nbytes for constant in plan.constants)
        #: to upload them for a run, under `max_memory`; None: they are uploaded now, and stay on the device
        self._weights = weights if delegate.arena.max_memory is not None else None
        self._held = Lock()  # while recordings are made, or weights given back
        self._last_used = 0
        if sizes is None:
            self._check_bytes(sum(port.nbytes for port in plan.ports), plan.activation_bytes)
        else:
            self._check_bytes(0, 0)
        shaders = None if progress is None else functools.partial(progress, "shaders")
        self._arrived = None if progress is None else functools.partial(progress, "weights")

        def constants() -> ConstantSet | None:
            if self._weights is not None:
                return None
            with delegate.lock:
                return self._uploaded(weights)

        self._constants: ConstantSet | None = None
        held = delegate.pipelines.held(plan.pipelines)
        if held is not None:  # for example where another size of the same model has compiled them
            self._pipelines, self._constants = held, constants()
        else:
            pipelines = Started(lambda: delegate.pipelines.get(plan.pipelines, shaders))  # while weights are uploaded
            try:
                self._constants = constants()
            except BaseException:
                with contextlib.suppress(Exception):
                    pipelines.result()  # it is closed before the objects that it uses
                raise
            try:
                self._pipelines = pipelines.result()
            except BaseException:
                if self._constants is not None:
                    self._constants.close()
                raise
        delegate.arena.add(self)

    def run(
        self, bound: Bound, meanwhile: Callable[[], RunNumbers | None] | None = None
    ) -> Sequence[Array | DeviceTensor]:
        """See `RecordedPlan.run`. ``meanwhile`` returns the numbers of the run that probably follows."""
        room = self._rooms.free()
        with room.lock:
            patience: Patience | None = None
            while True:
                try:
                    recorded = self._recording_in(room, bound.numbers)
                    if meanwhile is None or not bound.down:  # nothing waits
                        return recorded.run(bound, meanwhile)
                    return recorded.run(bound, lambda: recorded.prepare(meanwhile()))  # noqa: B023
                except ArenaOutOfMemory:
                    patience = self._wait_for_memory(room, bound.numbers, patience)

    def recording(self, held: ExitStack, numbers: RunNumbers | None) -> RecordedPlan:
        """Return a recording for one run, with ``numbers`` as in `Bound`, locked until ``held`` closes. Waits while
        ``concurrency`` runs are in progress."""
        room = self._rooms.free()
        held.enter_context(room.lock)
        patience: Patience | None = None
        while True:
            try:
                return self._recording_in(room, numbers)
            except ArenaOutOfMemory:
                patience = self._wait_for_memory(room, numbers, patience)

    def _wait_for_memory(self, room: Room, numbers: RunNumbers | None, patience: Patience | None) -> Patience:
        """Return once there may be memory for a run, which the exception that is handled says was missing. Raises it where no
        other run will free any. Takes and returns how the run waits (None: from now on)."""
        patience = patience or Patience(self._delegate.arena, room)
        if not (self._lay_out_again(numbers) or patience.again()):
            raise  # it is called where the exception is handled
        return patience

    def numbers(self, sizes: Sequence[int]) -> RunNumbers:
        """The numbers of runs of these sizes, in the order of the plan's symbols. Raises as `check_bytes`."""
        numbers = self._places.numbers(sizes)
        ports = self._places.port_bytes(numbers)
        if ports > self._most_ports:
            self._check_bytes(ports, 0)  # temporary buffers come with the layout
            self._most_ports = ports
        layout = self._layout
        numbers.fit = layout if layout is not None and layout.fits(numbers.values) else None
        return numbers

    def plan_of(self, numbers: RunNumbers | None) -> Plan:
        """The plan with the ports of a run."""
        return self.plan if numbers is None else replace(self.plan, ports=ports(self.plan, numbers.ports))

    def outputs_of(self, numbers: RunNumbers | None) -> tuple[Port, ...]:
        """The output ports of a run, in order."""
        places = self._places
        if numbers is None or not places.moving[1]:
            return self._outputs
        return tuple([numbers.ports.get(k) or self.plan.ports[k] for k in places.outputs])

    def moving_axes(self, names: Sequence[str]) -> list[tuple[int, int]]:
        """The dimensions of the outputs ``names`` that depend on sizes: the place of each among all their dimensions, and that of
        its number in `RunNumbers.values`."""
        sizes = self._places.sizes
        if sizes is None:
            return []
        outputs = {port.name: (k, len(port.shape)) for k, port in enumerate(self.plan.ports) if not port.is_input}
        ranks = [outputs[name][1] for name in names]
        first = {outputs[name][0]: at for name, at in zip(names, itertools.accumulate(ranks, initial=0), strict=False)}
        return [(first[k] + axis, value) for k, axis, value in sizes.shapes if k in first]

    @property
    def recordings(self) -> list[RecordedPlan]:
        """The recordings made so far."""
        found = [room.recorded.get(id(self)) for room in self._rooms]
        return [recorded for recorded in found if recorded is not None]

    @property
    def lease(self) -> DelegateLease:
        """The delegate's lease, on which its recordings are submitted."""
        return self._delegate.lease

    def tensor_for(self, port: Port) -> DeviceTensor:
        """Allocate a device tensor for an output."""
        return DeviceTensor(self._delegate, DTYPES[port.dtype], port.shape)

    def _recording_in(self, room: Room, numbers: RunNumbers | None) -> RecordedPlan:
        """The room's recording, set to a run of these sizes. The room's lock is held."""
        layout = self._layout
        if numbers is not None and (layout is None or numbers.fit is not layout):
            layout = self._fit_layout(numbers)
        recorded = room.recorded.get(id(self))
        if recorded is None or recorded.layout is not layout:
            recorded = self._record(room, layout)
        if numbers is not None:
            recorded.set_sizes(numbers)
        return recorded

    @steady
    def _record(self, room: Room, layout: Layout | None) -> RecordedPlan:
        with self._delegate.lock, self._held:
            check_wanted()  # after an interrupt another run may occupy the room, or all may be closed
            if self._closed:
                raise ClosedError("the runner of a plan")
            recorded = room.recorded.get(id(self))
            if recorded is None or recorded.layout is not layout:
                if recorded is not None:
                    recorded.close()
                    del room.recorded[id(self)]
                try:
                    recorded = self._made(room, layout)
                except ArenaOutOfMemory:
                    room.close()  # this run has it: the session's other plans can give their weights back now
                    recorded = self._made(room, layout)
                room.recorded[id(self)] = recorded
            return recorded

    def _made(self, room: Room, layout: Layout | None) -> RecordedPlan:
        """A new recording, with the weights on the device. The caller holds the locks of `_record`."""
        delegate, plan = self._delegate, self.plan
        if self._constants is None:
            assert self._weights is not None, "only what can be uploaded again is given back"
            self._constants = self._uploaded(self._weights)
        slab = room.slab_of(plan.activation_bytes if layout is None else layout.nbytes, delegate)
        return RecordedPlan(delegate, self._places, self._pipelines, self._constants.addresses, slab, layout)

    def _uploaded(self, weights: Mapping[str, Weight]) -> ConstantSet:
        """The plan's constants on the device. The caller holds the delegate's lock."""
        delegate = self._delegate
        return delegate.constants.acquire(
            self.plan.constants, weights, delegate.arena, delegate.uploader, self._arrived
        )

    # ---- giving memory back

    @property
    def last_used(self) -> int:
        """The timeline value of the latest run."""
        return max([self._last_used, *(recorded.last for recorded in self.recordings)])

    def evict(self, weights: bool) -> bool:
        """Close the recordings that no run uses, or release the ``weights``, where all recordings are closed. Returns whether
        there were any. The next run makes them again. It never waits for a lock, but for the device."""
        if not self._held.acquire(blocking=False):
            return False
        try:
            closed = sum(self._drop_in(room) for room in self._rooms)
            if not weights or self._weights is None or self._constants is None or self.recordings:
                return closed > 0
            if not self._constants.close_at_once():
                return closed > 0
            self._constants = None
            return True
        finally:
            self._held.release()

    def busy(self, mine: object) -> bool:
        """Whether its recordings are made now, or a run uses one in another room than ``mine``."""
        others = [room for room in self._rooms if room is not mine and id(self) in room.recorded]
        return self._held.locked() or any(room.lock.locked() for room in others)

    def _drop_in(self, room: Room) -> bool:
        """Close the recording in a room, unless a run occupies it. Returns whether there was one."""
        if id(self) not in room.recorded or not room.lock.acquire(blocking=False):
            return False
        try:
            self._last_used = self.last_used
            found = id(self) in room.recorded
            room.drop(id(self))
            return found
        finally:
            room.lock.release()

    def _check_bytes(self, ports: int, temporary: int) -> None:
        """Raises as `check_bytes`."""
        most = self._rooms.most_bytes or self._delegate.capabilities.memory_bytes
        check_bytes(most, self._weights_bytes, temporary, ports)
        limit = self._delegate.arena.max_memory
        if limit is not None:  # ports may be elsewhere
            check_bytes(limit, self._weights_bytes, temporary, 0, "max_memory")

    def _fit_layout(self, numbers: RunNumbers) -> Layout:
        """The offsets of the buffers: unchanged, unless these sizes need more memory."""
        sizes, layout = self._places.sizes, self._layout
        assert sizes is not None
        if layout is None or not layout.fits(numbers.values):
            needed = [numbers.values[b.nbytes] for b in sizes.buffers]
            if max(needed, default=0) > self._delegate.piece:
                largest = needed.index(max(needed))
                dispatch = next(k for k, _, buffer, _ in sizes.places if buffer == largest)
                raise too_large(self.plan.dispatches[dispatch].label, needed[largest], self._delegate.piece)
            with self._delegate.lock:
                layout = laid_out(sizes, numbers.values, self._layout, self._delegate.piece)
                try:
                    self._check_bytes(self._places.port_bytes(numbers), layout.nbytes)
                except OutOfDeviceMemoryError:  # without room for the sizes of other runs
                    layout = laid_out(sizes, numbers.values, None, self._delegate.piece)
                    self._check_bytes(self._places.port_bytes(numbers), layout.nbytes)
                self._layout = layout
        numbers.fit = layout
        return layout

    def _lay_out_again(self, numbers: RunNumbers | None) -> bool:
        """Set offsets for these sizes alone, where those for the largest runs so far take more. Returns whether they do."""
        sizes = self._places.sizes
        if numbers is None or sizes is None:
            return False
        with self._delegate.lock:
            layout = laid_out(sizes, numbers.values, None, self._delegate.piece)
            if self._layout is None or layout.nbytes >= self._layout.nbytes:
                return False
            self._layout = layout
        return True

    def close(self) -> None:
        """Free everything, once the GPU has finished; idempotent. Runs in other threads must have ended."""
        with self._delegate.lock:
            if self._closed:
                return
            self._closed = True
        for room in self._rooms:
            with room.lock:  # runs of the session's other plans may occupy it
                room.drop(id(self))
        with self._held:
            if self._constants is not None:
                self._constants.close()
