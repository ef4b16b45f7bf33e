"""Puts every tensor of a plan into separate memory that ends at inaccessible pages (software drivers only).

Where shaders run on the host's processor, device addresses are host addresses. So tensors can be in memory that the driver
did not allocate. A kernel that touches the pages around one ends the process with SIGSEGV; the bytes that
are left between a tensor and these pages hold a pattern, so that what is written there is found after the run, and what is
read there is no plausible number.

A plan with symbolic sizes gets new memory for each sizes that it is set to: its tensors have exactly the bytes of that run. The
argument table stays the same, so that numbers of an earlier run that were left in it are found. Only the plan's commands are
recorded again, since addresses may be push constants.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np

from vkep.device import run_commands
from vkep.device.arguments import ArgumentTable, RunNumbers
from vkep.device.recorded import RecordedPlan
from vkep.dtypes import DTYPES
from vkep.passes import emit
from vkep.plan.memory import Lifetime, align
from vkep.plan.records import Port, Space
from vkep.plan.sized import MovedPorts

#: inaccessible bytes on each side of a tensor
GUARD = 1 << 26
#: fills memory outside tensors, and tensors before they are written: -4.1e8 as float32, -60 as float16
PATTERN = 0xCD
#: alignment of tensors, which kernels may rely on
ALIGNMENT = 16
#: an activation's number, in bytes of its offset in the plan's slab
_APART = 1 << 40

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class GuardedMemory:
    """``nbytes`` that end at guard pages (up to ``alignment`` bytes before them). Raises ``MemoryError`` where the system
    has no memory."""

    def __init__(self, nbytes: int, alignment: int = ALIGNMENT) -> None:
        self.nbytes = nbytes
        body = align(max(nbytes, 1), alignment)
        self._open = align(body, mmap.PAGESIZE)
        self._size = self._open + 2 * GUARD
        kind = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE
        base = _libc.mmap(None, self._size, 0, kind, -1, 0)
        if base == ctypes.c_void_p(-1).value:
            raise MemoryError(f"no address space for {nbytes} guarded bytes: {os.strerror(ctypes.get_errno())}")
        self._base = base
        if _libc.mprotect(base + GUARD, self._open, mmap.PROT_READ | mmap.PROT_WRITE):
            error = os.strerror(ctypes.get_errno())
            _libc.munmap(base, self._size)
            raise MemoryError(f"no memory for {nbytes} guarded bytes: {error}")
        self.address = base + GUARD + self._open - body
        raw = (ctypes.c_uint8 * self._open).from_address(base + GUARD)
        self._all = np.frombuffer(memoryview(raw), np.uint8)
        self._all[:] = PATTERN
        self._first = self._open - body
        self.span = (base + GUARD, self._open)  #: address and bytes of the pages between the guard pages
        self.data = self._all[self._first : self._first + nbytes]

    @property
    def is_intact(self) -> bool:
        """Whether nothing was written around the tensor."""
        before, after = self._all[: self._first], self._all[self._first + self.nbytes :]
        return bool((before == PATTERN).all() and (after == PATTERN).all())

    def close(self) -> None:
        _libc.munmap(self._base, self._size)


@dataclass
class _Table:
    """The guarded tensors of one argument table."""

    constants: dict[int, GuardedMemory] = field(default_factory=dict)
    activations: dict[int, GuardedMemory] = field(default_factory=dict)  #: by number, or by `PlanSizes.buffers`
    numbers: RunNumbers | None = None  #: those that a plan with sizes is set to


class Guards:
    """The guarded memory of the plans made inside `guarded`."""

    def __init__(self) -> None:
        self.made: list[str] = []  #: all tensors that were guarded
        self.fitted = 0  #: how often a plan with sizes was set to sizes
        self.refitted = 0  #: how often its argument table had other sizes before
        self._open: dict[GuardedMemory, str] = {}
        self._broken: list[str] = []  # of memory that was closed
        self._nbytes: list[int] = []  # of activations, by number
        self._tables: dict[ArgumentTable, _Table] = {}

    def broken(self) -> list[str]:
        """The tensors around which something was written."""
        return self._broken + [what for memory, what in self._open.items() if not memory.is_intact]

    def new(self, nbytes: int, what: str) -> GuardedMemory:
        memory = GuardedMemory(nbytes)
        self._open[memory] = what
        self.made.append(what)
        return memory

    def retire(self, memory: GuardedMemory) -> None:
        """Close memory that no run uses any more."""
        what = self._open.pop(memory)
        if not memory.is_intact:
            self._broken.append(what)
        memory.close()

    def pack(self, lifetimes: Sequence[Lifetime], piece: int | None = None) -> tuple[list[int], int]:
        """In place of `vkep.plan.memory.pack`: no two activations share an address."""
        first = len(self._nbytes)
        self._nbytes += [life.nbytes for life in lifetimes]
        return [k * _APART for k in range(first, len(self._nbytes))], 1

    def base(self, table: ArgumentTable, k: int, at: int) -> int | None:
        """What an address of dispatch ``k`` counts from; None where its tensor is not guarded here. Before a plan with sizes is
        set to some, it is 0."""
        dispatch = table._plan.dispatches[k]
        r = dispatch.relocations[at]
        if r.space is Space.CONSTANT:
            return self._constant(table, r.index).address
        if r.space is not Space.ACTIVATION:
            return None
        made = self._tables.setdefault(table, _Table())
        if table._layout is None:
            number = r.addend // _APART
            nbytes, before = self._nbytes[number], number * _APART
        elif made.numbers is None:
            return 0
        else:
            sizes, number, before = table._places.sizes, table._places.within[k, at][0], 0
            assert sizes is not None
            nbytes = made.numbers.values[sizes.buffers[number].nbytes]
        if number not in made.activations:
            made.activations[number] = self.new(nbytes, f"activation {number} of {dispatch.label}")
        return made.activations[number].address - before

    def _constant(self, table: ArgumentTable, index: int) -> GuardedMemory:
        constants = self._tables.setdefault(table, _Table()).constants
        if index not in constants:
            ref, address = table._plan.constants[index], table._constants[index]
            memory = constants[index] = self.new(ref.nbytes, f"constant {ref.label!r}")
            ctypes.memmove(memory.address, address, ref.nbytes)
        return constants[index]

    def fit(self, table: ArgumentTable, numbers: RunNumbers) -> None:
        """Replace the activations of a plan with sizes, and their addresses in its table, before it is set to these sizes."""
        places, made = table._places, self._tables.setdefault(table, _Table())
        assert places.sizes is not None
        self.fitted += 1
        self.refitted += made.numbers is not None and made.numbers.values != numbers.values
        for memory in made.activations.values():
            self.retire(memory)
        made.activations, made.numbers = {}, numbers
        table._bases = np.array([table._base(k, at) for k, at, _ in places.sizes.addends], np.int64)
        for k, start in places.blocks.items():
            for at, r in enumerate(table._plan.dispatches[k].relocations):
                if r.space is Space.ACTIVATION:
                    address = table._base(k, at) + table._addend(k, at, r)
                    for image in table._images:
                        struct.pack_into("<Q", image.bytes, start + r.offset, address)

    def drop(self, table: ArgumentTable) -> None:
        """Close the memory of a table that is closed."""
        made = self._tables.pop(table, _Table())
        for memory in (*made.constants.values(), *made.activations.values()):
            self.retire(memory)

    def close(self) -> None:
        for memory in list(self._open):
            self.retire(memory)


def record_again(plan: RecordedPlan) -> None:
    """Record a plan's commands with the addresses that its table has now."""
    commands, held = plan._commands, plan._held
    with plan._delegate.lock:
        old = commands.main
        commands._drop_copies()
        commands.main = plan._record("main")
        held[held.index(old)] = held.pop()
        old.close()
        plan._traced = None


@contextlib.contextmanager
def guarded() -> Iterator[Guards]:
    """Plans that are made and run inside have guarded tensors: inputs and outputs on the host, constants and activations.

    Sessions opened inside must be closed before it ends. Raises `RuntimeError` on a device that has memory of its own.
    """
    guards = Guards()
    base, fill, end, set_sizes = (
        ArgumentTable._base, ArgumentTable.set, ArgumentTable.close, RecordedPlan.set_sizes,
    )  # fmt: skip

    class Ports:
        """In place of the recording's own: see `vkep.device.host_ports.HostPorts`."""

        size, block, staging, spans, used = 1, None, None, (), None

        def __init__(self, delegate: Any, ports: Sequence[Port], capacity: Sequence[int | None], staging: Any) -> None:
            self.capacity = [p.nbytes for p in ports]
            if staging is not None or "llvmpipe" not in delegate.capabilities.name:
                raise RuntimeError(f"{delegate.capabilities.name} does not run shaders on host addresses")
            self._memories = [guards.new(p.nbytes, f"{'input' if p.is_input else 'output'} {p.name!r}") for p in ports]
            self.addresses = [m.address for m in self._memories]
            self.views = [
                m.data.view(DTYPES[p.dtype].numpy).reshape(p.shape) for p, m in zip(ports, self._memories, strict=True)
            ]

        def fitting(self, moved: MovedPorts, places: Mapping[int, Sequence[int]]) -> list[Any] | None:
            """No memory is large enough for other ports: they get their own."""
            return None if places else []

        def fit(self, fitting: list[Any]) -> None:
            pass

        def arrived(self) -> None:
            pass

        def result(self, k: int) -> np.ndarray[Any, Any]:
            return self.views[k].copy()

        def use(self, which: Sequence[int]) -> None:
            pass

        def close(self) -> None:
            self.views = []
            while self._memories:
                guards.retire(self._memories.pop())

    def _base(table: ArgumentTable, k: int, at: int) -> int:
        found = guards.base(table, k, at)
        return base(table, k, at) if found is None else found

    def _set(table: ArgumentTable, numbers: RunNumbers) -> None:
        if numbers is not table._images[table._current].numbers:
            guards.fit(table, numbers)
        fill(table, numbers)

    def _close(table: ArgumentTable) -> None:
        end(table)
        guards.drop(table)

    def _set_sizes(plan: RecordedPlan, numbers: RunNumbers) -> None:
        before = plan._numbers
        set_sizes(plan, numbers)
        if numbers is not before:
            record_again(plan)

    try:
        with (
            mock.patch.object(emit, "pack", guards.pack),
            mock.patch.object(run_commands, "HostPorts", Ports),
            mock.patch.object(ArgumentTable, "_base", _base),
            mock.patch.object(ArgumentTable, "set", _set),
            mock.patch.object(ArgumentTable, "close", _close),
            mock.patch.object(RecordedPlan, "set_sizes", _set_sizes),
        ):
            yield guards
    finally:
        guards.close()
