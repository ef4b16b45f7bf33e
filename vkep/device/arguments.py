"""The memory that a recorded plan's dispatches read their arguments from: addresses of tensors, argument blocks, grids.

Three regions of one block: the slots (addresses of a run's tensors), the argument blocks of dispatches whose arguments are not
push constants, and the grids of dispatches that are sent indirectly. The host writes to it before a run: what a run binds, and
what its sizes change.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gpu_shared.commands import CommandBuffer
from vkep.device import fresh
from vkep.device.slab import Slab
from vkep.memory.device_arena import DeviceBlock
from vkep.memory.staging_ring import StagingArena
from vkep.plan.layout import Layout
from vkep.plan.memory import align
from vkep.plan.records import FRESH, Plan, Relocation, Space
from vkep.plan.sized import MovedPorts, MovingPorts, PlanSizes, faults

if TYPE_CHECKING:
    from vkep.device.delegate import VulkanDelegate

SLOT_BYTES = 8
_GRID_BYTES = 16
_WORD = (1 << 32) - 1
_NONE = np.empty(0, np.int64)


class Sent(NamedTuple):
    """What of the table is copied to the device before a run."""

    image: int  #: the staging memory that it is copied from
    whole: bool  #: or only the slots


@dataclass(eq=False, slots=True)
class RunNumbers:
    """The numbers of runs of certain sizes, which replace those of the plan."""

    values: tuple[Any, ...]  #: of `PlanSizes.values`
    ports: MovedPorts  #: those of `Plan.ports` whose shapes differ
    faults: Mapping[int, str]  #: as `Plan.faults`
    slots: Sequence[int]  #: the slots' addends
    words: np.ndarray[Any, Any]  #: arguments and numbers of grids, uint32, in the order of `Places.words`
    addends: np.ndarray[Any, Any]  #: of relocations, int64, in the order of `PlanSizes.addends`
    fit: Layout | None = None  #: the offsets of buffers that are known to leave room for these sizes


class Places:
    """The offsets of the plan's argument blocks and grids in the table, and the changes for other sizes. All recordings
    of a plan share it."""

    def __init__(self, plan: Plan, sizes: PlanSizes | None) -> None:
        self.plan, self.sizes = plan, sizes
        self.slots_bytes = align(SLOT_BYTES * max(len(plan.slots), 1))
        size = self.slots_bytes
        self.blocks: dict[int, int] = {}
        for k, dispatch in enumerate(plan.dispatches):
            if plan.pipelines[dispatch.pipeline].arguments_in_memory:
                self.blocks[k] = size
                size += align(len(dispatch.arguments), 16)
        self.grids: dict[int, int] = {}
        for k, _, _ in sizes.grids if sizes is not None else ():
            if k not in self.grids:
                self.grids[k] = size
                size += _GRID_BYTES
        self.nbytes = size
        first = len(plan.inputs)
        #: whether a dispatch reads one of the plan's outputs
        self.reads_outputs = any(r.space is Space.PORT and r.index >= first for d in plan.dispatches for r in d.reads)
        #: places among the inputs, and among the outputs, whose shapes depend on sizes, by the kind of their shape
        self.moving: tuple[dict[int, list[int]], dict[int, list[int]]] = ({}, {})
        if sizes is not None:
            self._read_sizes(sizes)

    def _read_sizes(self, sizes: PlanSizes) -> None:
        whole = [(self.blocks[k] + at, value) for k, at, code, value in sizes.arguments if code != "f"]
        whole += [(self.grids[k] + 4 * axis, value) for k, axis, value in sizes.grids]
        real = [(self.blocks[k] + at, value) for k, at, code, value in sizes.arguments if code == "f"]
        self._whole, self._real = (list(dict.fromkeys([v for _, v in found])) for found in (whole, real))
        order = [(v, False) for v in self._whole] + [(v, True) for v in self._real]
        number = {entry: k for k, entry in enumerate(order)}
        self.words = np.array([at // 4 for at, _ in (*whole, *real)], np.int64)
        self._words = struct.Struct(f"<{len(self._whole)}I")
        # which of the different words each of them is
        self._which = np.array([number[v, False] for _, v in whole] + [number[v, True] for _, v in real], np.int64)
        relocations = [self.plan.dispatches[k].relocations[at] for k, at, _ in sizes.addends]
        self.addresses = np.array(
            [(self.blocks[k] + r.offset) // 8 for (k, _, _), r in zip(sizes.addends, relocations, strict=True)],
            np.int64,
        )
        self.within = {(k, at): (buffer, byte) for k, at, buffer, byte in sizes.places}
        self._addends = [value for _, _, value in sizes.addends]
        self._slots = [slot.addend for slot in self.plan.slots]
        self._faults = dict(self.plan.faults)
        self._moving = MovingPorts(self.plan, sizes)
        moving = self._moving.kind_of
        first = len(self.plan.inputs)
        self.outputs = range(first, len(self.plan.ports))
        for k, kind in sorted(moving.items()):
            inner, place = self.moving[k >= first], k - first * (k >= first)
            inner.setdefault(kind, []).append(place)
        self._still_bytes = sum(port.nbytes for k, port in enumerate(self.plan.ports) if k not in moving)

    def numbers(self, run: Sequence[int]) -> RunNumbers:
        """The numbers for a run's sizes, in the order of the formulas' symbols."""
        sizes = self.sizes
        assert sizes is not None
        values = sizes.values(run)
        words = self._words.pack(*[values[k] & _WORD for k in self._whole])
        if self._real:
            words += np.array([values[k] for k in self._real], np.float32).tobytes()
        slots = self._slots
        if sizes.slots:
            slots = list(slots)
            for k, value in sizes.slots:
                slots[k] = values[value]
        addends = np.array([values[k] for k in self._addends], np.int64) if self._addends else _NONE
        return RunNumbers(
            values,
            self._moving.at(values),
            dict(faults(self.plan, sizes, values)) if sizes.faults else self._faults,
            slots,
            np.frombuffer(words, np.uint32)[self._which],
            addends,
        )

    def port_bytes(self, numbers: RunNumbers) -> int:
        """The bytes of all ports of a run."""
        return self._still_bytes + numbers.ports.nbytes


class _Image:
    """The table's bytes where the host writes them: those of the table itself, or of staging memory."""

    __slots__ = ("addends", "addresses", "bound", "bytes", "numbers", "words")

    def __init__(self, mapped: memoryview, addends: Sequence[int]) -> None:
        """``mapped``: the bytes of the slots, and of all else where the host writes that. ``addends``: of the slots."""
        raw, size = np.frombuffer(mapped, np.uint8), mapped.nbytes
        self.bytes = mapped
        self.words = raw[: size & ~3].view(np.uint32)
        self.addresses = raw[: size & ~7].view(np.int64)
        self.addends = addends
        self.bound: list[int] = []  #: the addresses that the slots have
        self.numbers: RunNumbers | None = None  #: those that are written


class ArgumentTable:
    """The table of one recording, for one run at a time. Where the host cannot map it and runs have sizes, there are two
    images of it: while the device works on a run, `prepare` writes the numbers of the next one."""

    def __init__(
        self,
        delegate: VulkanDelegate,
        places: Places,
        constants: Sequence[int],
        slab: Slab,
        fault: int,
        layout: Layout | None,
        staging: StagingArena | None,
    ) -> None:
        """``constants`` and ``fault`` are addresses; ``layout`` has the offsets of the buffers of a plan with sizes;
        ``staging`` is for devices whose memory the host cannot map."""
        self._plan, self._places, self._layout = places.plan, places, layout
        self._constants, self._slab, self._fault = constants, slab, fault
        self._unified = staging is None
        self._ports = [slot.port for slot in self._plan.slots]
        self._fresh = [k for k, port in enumerate(self._ports) if port == FRESH]  # slots with a random number
        self._slots = struct.Struct(f"<{len(self._ports)}Q")
        self._sent: list[int] = []  # addresses that the device's slots have
        self._unsent = False  # whether the device lacks more than slots
        self.block: DeviceBlock = delegate.arena.alloc(places.nbytes, delegate.lease)
        self._staging: list[DeviceBlock] = []
        self._images: list[_Image] = []
        self._current = 0  # the image of the next run
        try:
            if staging is not None:  # without sizes only the slots change
                sized = places.sizes is not None
                for _ in range(2 if sized else 1):
                    self._staging.append(staging.alloc(places.nbytes if sized else places.slots_bytes))
            self._write(delegate)
        except BaseException:
            self.close()
            raise

    def _write(self, delegate: VulkanDelegate) -> None:
        """Write everything as the plan has it."""
        places, image = self._places, bytearray(self._places.nbytes)
        for k, at in places.blocks.items():
            data = self._patched(k)
            image[at : at + len(data)] = data
        for k, at in places.grids.items():
            struct.pack_into("<3I", image, at, *self._plan.dispatches[k].grid)
        first, sized = places.slots_bytes, places.sizes is not None
        addends = [slot.addend for slot in self._plan.slots]
        for block in self._staging or [self.block]:
            assert block.mapped is not None, "unified memory and staging are mapped"
            mapped = block.mapped[: places.nbytes]
            if sized:
                mapped[first:] = image[first:]
            self._images.append(_Image(mapped, addends))
        if places.sizes is not None:
            pairs = [(k, at) for k, at, _ in places.sizes.addends]
            self._bases = np.array([self._base(k, at) for k, at in pairs], np.int64)
            self._unsent = True
        elif places.nbytes > first:
            delegate.uploader.upload(self.block, bytes(image[first:]), offset=first)
            delegate.uploader.finish()

    # ---- recording

    def push_data(self, k: int) -> bytes:
        """The push constants of a dispatch: its arguments, or the address of its block."""
        at = self._places.blocks.get(k)
        return self._patched(k) if at is None else struct.pack("<Q", self.block.address + at)

    def dispatch(self, commands: CommandBuffer, k: int) -> None:
        """Record a dispatch with its grid, or with the place of its grid in memory."""
        at = self._places.grids.get(k)
        if at is None:
            commands.dispatch(*self._plan.dispatches[k].grid)
        else:
            commands.dispatch_indirect(self.block.buffer, self.block.offset + at)

    def send(self, commands: CommandBuffer, what: Sent) -> None:
        """Record a copy to the device."""
        staging, size = self._staging[what.image], self._places.nbytes if what.whole else self._slots.size
        commands.copy_buffer(staging.buffer, self.block.buffer, size, staging.offset, self.block.offset)

    def _patched(self, k: int) -> bytes:
        """A dispatch's arguments with its addresses filled in."""
        dispatch = self._plan.dispatches[k]
        data = bytearray(dispatch.arguments)
        for at, r in enumerate(dispatch.relocations):
            struct.pack_into("<Q", data, r.offset, self._base(k, at) + self._addend(k, at, r))
        return bytes(data)

    def _addend(self, k: int, at: int, r: Relocation) -> int:
        within = self._places.within.get((k, at)) if self._layout is not None else None
        return r.addend if within is None else within[1]

    def _base(self, k: int, at: int) -> int:
        r = self._plan.dispatches[k].relocations[at]
        if r.space is Space.CONSTANT:
            return self._constants[r.index]
        if r.space is Space.FAULT:
            return self._fault
        if r.space is Space.PORT:
            return self.block.address + SLOT_BYTES * r.index
        if self._layout is None:
            return self._slab.address(r.addend) - r.addend
        return self._slab.address(self._layout.offsets[self._places.within[k, at][0]])

    # ---- running

    def set(self, numbers: RunNumbers) -> None:
        """Write the numbers of a run's sizes, unless `prepare` has, once the previous run has ended."""
        if numbers is self._images[self._current].numbers:
            return
        following = (self._current + 1) % len(self._images)
        self._fill(following, numbers)
        self._unsent = True  # first: an interrupt may come between both
        self._current = following

    def prepare(self, numbers: RunNumbers) -> None:
        """Write the numbers of the run that probably follows, where no run needs the memory for them. The run before the
        submitted one has ended."""
        if len(self._images) > 1 and numbers is not self._images[self._current].numbers:
            self._fill(1 - self._current, numbers)

    def _fill(self, which: int, numbers: RunNumbers) -> None:
        image, places = self._images[which], self._places
        if numbers is image.numbers:
            return
        image.numbers = None  # until all of them are written
        image.words[places.words] = numbers.words
        if places.addresses.size:
            image.addresses[places.addresses] = self._bases + numbers.addends
        if numbers.slots != image.addends:
            image.bound = []  # first: an interrupt may come between both
            image.addends = numbers.slots
        image.numbers = numbers

    def bind(self, addresses: list[int]) -> Sent | None:
        """Point the slots to ``addresses``, in port order; returns what must be copied to the device before the run."""
        image = self._images[self._current]
        if addresses != image.bound or self._fresh:
            image.bound = []  # until all of them are written
            slots = [addresses[port] + addend for port, addend in zip(self._ports, image.addends, strict=True)]
            for k in self._fresh:
                slots[k] = fresh.bits()
            self._slots.pack_into(image.bytes, 0, *slots)
            image.bound = addresses
        if self._unified:
            return None
        if self._unsent or ((addresses != self._sent or self._fresh) and self._ports):
            self._sent = []  # until they are copied, which may fail
            return Sent(self._current, self._unsent)
        return None

    def has(self, addresses: list[int]) -> bool:
        """Whether the device has these addresses already, and `bind` would write nothing."""
        if self._unsent or self._fresh or addresses != self._images[self._current].bound:
            return False
        return self._unified or addresses == self._sent or not self._ports

    def sent(self, addresses: list[int]) -> None:
        """A run with these addresses was submitted."""
        self._sent, self._unsent = addresses, False

    def close(self) -> None:
        """Free its memory; its runs must have ended."""
        self._images.clear()  # views of the memory
        for block in (*self._staging, self.block):
            block.free(stream=None)
