"""The memory that a recorded plan's dispatches read their arguments from: addresses of tensors, argument blocks, grids.

Three regions of one block: the slots (addresses of a run's tensors), the argument blocks of dispatches whose arguments are not
push constants, and the grids of dispatches that are sent indirectly. The host writes to it before a run: what a run binds, and
what its sizes change.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gpu_shared.commands import CommandBuffer
from vkep.device.slab import Slab
from vkep.memory.device_arena import DeviceBlock
from vkep.memory.staging_ring import StagingArena
from vkep.plan.layout import Layout
from vkep.plan.memory import align
from vkep.plan.records import FRESH, Plan, Port, Relocation, Space
from vkep.plan.sized import PlanSizes, faults, moved_ports, moving_ports

if TYPE_CHECKING:
    from vkep.device.delegate import VulkanDelegate

SLOT_BYTES = 8
_GRID_BYTES = 16
#: the parts of the table that must be copied to the device before a run
NOTHING, SLOTS, TABLE = "", "slots", "table"


class RunNumbers(NamedTuple):
    """The numbers of a run of certain sizes, which replace those of the plan."""

    values: tuple[Any, ...]  #: of `PlanSizes.values`
    ports: dict[int, Port]  #: those of `Plan.ports` whose shapes differ
    faults: tuple[tuple[int, str], ...]  #: as `Plan.faults`
    slots: Sequence[int]  #: the slots' addends
    words: np.ndarray[Any, Any]  #: the different arguments and numbers of grids, uint32 (`Places.which`)
    addends: np.ndarray[Any, Any]  #: of relocations, int64, in the order of `PlanSizes.addends`


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
        self.moving: tuple[Sequence[int], Sequence[int]] = ((), ())
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
        #: which of `RunNumbers.words` each of the table's ``words`` is
        self.which = np.array([number[v, False] for _, v in whole] + [number[v, True] for _, v in real], np.int64)
        relocations = [self.plan.dispatches[k].relocations[at] for k, at, _ in sizes.addends]
        self.addresses = np.array(
            [(self.blocks[k] + r.offset) // 8 for (k, _, _), r in zip(sizes.addends, relocations, strict=True)],
            np.int64,
        )
        self.within = {(k, at): (buffer, byte) for k, at, buffer, byte in sizes.places}
        self._addends = [value for _, _, value in sizes.addends]
        self._slots = [slot.addend for slot in self.plan.slots]
        self._moving = moving_ports(self.plan, sizes)
        moving = {k for group in self._moving for k in group.ports}
        inputs = [k for k, port in enumerate(self.plan.ports) if port.is_input]
        outputs = [k for k, port in enumerate(self.plan.ports) if not port.is_input]
        #: places among the inputs, and among the outputs, whose shapes depend on sizes
        self.moving = (
            [place for place, k in enumerate(inputs) if k in moving],
            [place for place, k in enumerate(outputs) if k in moving],
        )
        self._still_bytes = sum(port.nbytes for k, port in enumerate(self.plan.ports) if k not in moving)

    def numbers(self, run: Sequence[int]) -> RunNumbers:
        """The numbers for a run's sizes, in the order of the formulas' symbols."""
        sizes = self.sizes
        assert sizes is not None
        values = sizes.values(run)
        words = np.array([values[k] for k in self._whole], np.int64).astype(np.uint32)
        if self._real:
            real = np.array([values[k] for k in self._real], np.float32).view(np.uint32)
            words = np.concatenate((words, real))
        slots = self._slots
        if sizes.slots:
            slots = list(slots)
            for k, value in sizes.slots:
                slots[k] = values[value]
        addends = np.array([values[k] for k in self._addends], np.int64)
        return RunNumbers(
            values,
            moved_ports(self.plan, self._moving, values),
            faults(self.plan, sizes, values),
            slots,
            words,
            addends,
        )

    def port_bytes(self, numbers: RunNumbers) -> int:
        """The bytes of all ports of a run."""
        found = numbers.ports
        return self._still_bytes + sum([len(group.ports) * found[group.ports[0]].nbytes for group in self._moving])


class ArgumentTable:
    """The table of one recording, for one run at a time."""

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
        self._numbers: RunNumbers | None = None
        self._addends: Sequence[int] = [slot.addend for slot in self._plan.slots]
        self._fresh = any(slot.port == FRESH for slot in self._plan.slots)
        self._bound: list[int] = []  # addresses that the device's slots have
        self._unsent = NOTHING
        self.block: DeviceBlock = delegate.arena.alloc(places.nbytes, delegate.lease)
        self._staging: DeviceBlock | None = None
        try:
            if staging is not None:  # without sizes only the slots change
                wanted = places.nbytes if places.sizes is not None else places.slots_bytes
                self._staging = staging.alloc(wanted)
            self._write(delegate)
        except BaseException:
            self.close()
            raise

    def _write(self, delegate: VulkanDelegate) -> None:
        """Write everything as the plan has it."""
        mapped = (self._staging or self.block).mapped
        assert mapped is not None, "unified memory and staging are mapped"
        raw = np.frombuffer(mapped, np.uint8)
        self._slots = raw[: SLOT_BYTES * len(self._plan.slots)].view(np.uint64)
        places, image = self._places, bytearray(self._places.nbytes)
        for k, at in places.blocks.items():
            data = self._patched(k)
            image[at : at + len(data)] = data
        for k, at in places.grids.items():
            struct.pack_into("<3I", image, at, *self._plan.dispatches[k].grid)
        first = places.slots_bytes
        if places.sizes is not None:
            raw[first : places.nbytes] = np.frombuffer(image, np.uint8)[first:]
            self._words = raw[: places.nbytes & ~3].view(np.uint32)
            self._addresses = raw[: places.nbytes & ~7].view(np.int64)
            pairs = [(k, at) for k, at, _ in places.sizes.addends]
            self._bases = np.array([self._base(k, at) for k, at in pairs], np.int64)
            self._unsent = TABLE
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

    def send(self, commands: CommandBuffer, what: str) -> None:
        """Record the copy of the slots, or of the whole table, to the device."""
        assert self._staging is not None
        size = SLOT_BYTES * len(self._plan.slots) if what == SLOTS else self._places.nbytes
        commands.copy_buffer(self._staging.buffer, self.block.buffer, size, self._staging.offset, self.block.offset)

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
        """Write the numbers of a run's sizes, once the previous run has ended."""
        if numbers is self._numbers:
            return
        self._numbers = None  # until all of them are written
        places = self._places
        self._words[places.words] = numbers.words[places.which]
        if places.addresses.size:
            self._addresses[places.addresses] = self._bases + numbers.addends
        if numbers.slots != self._addends:
            self._addends, self._bound = numbers.slots, []
        self._numbers, self._unsent = numbers, TABLE

    def bind(self, addresses: list[int]) -> str:
        """Point the slots to ``addresses``, in port order; returns what must be copied to the device before the run."""
        changed = NOTHING
        if addresses != self._bound or self._fresh:
            self._bound = []  # until they are copied, which may fail
            for i, (slot, addend) in enumerate(zip(self._plan.slots, self._addends, strict=True)):
                self._slots[i] = addresses[slot.port] + addend if slot.port != FRESH else secrets.randbits(64)
            changed = SLOTS if self._plan.slots else NOTHING
        return NOTHING if self._unified else self._unsent or changed

    def sent(self, addresses: list[int]) -> None:
        """A run with these addresses was submitted."""
        self._bound, self._unsent = addresses, NOTHING

    def close(self) -> None:
        """Free its memory; its runs must have ended."""
        self._slots = self._words = self._addresses = np.empty(0, np.uint64)
        if self._staging is not None:
            self._staging.free()
        self.block.free()
