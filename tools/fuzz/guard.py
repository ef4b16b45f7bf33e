"""Puts every tensor of a plan into separate memory that ends at inaccessible pages (software drivers only).

Where shaders run on the host's processor, device addresses are host addresses. So tensors can be in memory that the driver
did not allocate. A kernel that touches the pages around one ends the process with SIGSEGV; the bytes that
are left between a tensor and these pages hold a pattern, so that what is written there is found after the run, and what is
read there is no plausible number.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import struct
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import numpy as np

from vkep.device import arguments, run_commands
from vkep.dtypes import DTYPES
from vkep.passes import emit
from vkep.plan.memory import Lifetime, align
from vkep.plan.records import Dispatch, Port, Space

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
    """``nbytes`` that end at guard pages (up to `ALIGNMENT` bytes before them). Raises ``OSError`` where the system has
    no memory."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        body = align(max(nbytes, 1), ALIGNMENT)
        self._open = align(body, mmap.PAGESIZE)
        self._size = self._open + 2 * GUARD
        kind = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE
        base = _libc.mmap(None, self._size, 0, kind, -1, 0)
        if base == ctypes.c_void_p(-1).value:
            raise OSError(ctypes.get_errno(), f"no address space for {nbytes} guarded bytes")
        self._base = base
        if _libc.mprotect(base + GUARD, self._open, mmap.PROT_READ | mmap.PROT_WRITE):
            raise OSError(ctypes.get_errno(), f"no memory for {nbytes} guarded bytes")
        self.address = base + GUARD + self._open - body
        raw = (ctypes.c_uint8 * self._open).from_address(base + GUARD)
        self._all = np.frombuffer(memoryview(raw), np.uint8)
        self._all[:] = PATTERN
        self._first = self._open - body
        self.data = self._all[self._first : self._first + nbytes]

    @property
    def is_intact(self) -> bool:
        """Whether nothing was written around the tensor."""
        before, after = self._all[: self._first], self._all[self._first + self.nbytes :]
        return bool((before == PATTERN).all() and (after == PATTERN).all())

    def close(self) -> None:
        _libc.munmap(self._base, self._size)


class Guards:
    """The guarded memory of the plans made inside `guarded`."""

    def __init__(self) -> None:
        self.memories: list[tuple[str, GuardedMemory]] = []
        self._activations: list[int] = []  # bytes by the activation's number
        self._made: dict[tuple[int, int], GuardedMemory] = {}
        self._constants: dict[tuple[int, int], GuardedMemory] = {}

    def broken(self) -> list[str]:
        """The tensors around which something was written."""
        return [what for what, memory in self.memories if not memory.is_intact]

    def new(self, nbytes: int, what: str) -> GuardedMemory:
        memory = GuardedMemory(nbytes)
        self.memories.append((what, memory))
        return memory

    def place(self, lifetimes: Sequence[Lifetime], piece: int | None = None) -> tuple[list[int], int]:
        """In place of `vkep.plan.memory.place`: no two activations share an address."""
        first = len(self._activations)
        self._activations += [life.nbytes for life in lifetimes]
        return [k * _APART for k in range(first, len(self._activations))], 1

    def patched(self, plan: arguments.ArgumentTable, dispatch: Dispatch, data: bytes) -> bytes:
        """A dispatch's arguments with guarded copies of its constants, and guarded activations."""
        patched = bytearray(data)
        for r in dispatch.relocations:
            if r.space is Space.ACTIVATION:
                number, within = divmod(r.addend, _APART)
                memory = self._made.get((id(plan), number))
                if memory is None:
                    memory = self._made[id(plan), number] = self.new(
                        self._activations[number], f"activation {number} of {dispatch.label}"
                    )
            elif r.space is Space.CONSTANT:
                memory, within = self._constant(plan, r.index), r.addend
            else:
                continue
            struct.pack_into("<Q", patched, r.offset, memory.address + within)
        return bytes(patched)

    def _constant(self, plan: arguments.ArgumentTable, index: int) -> GuardedMemory:
        key = (id(plan), index)
        if key not in self._constants:
            ref, address = plan._plan.constants[index], plan._constants[index]
            memory = self._constants[key] = self.new(ref.nbytes, f"constant {ref.label!r}")
            ctypes.memmove(memory.address, address, ref.nbytes)
        return self._constants[key]

    def close(self) -> None:
        for _, memory in self.memories:
            memory.close()
        self.memories.clear()


@contextlib.contextmanager
def guarded() -> Iterator[Guards]:
    """Plans that are made and run inside have guarded tensors: inputs and outputs on the host, constants and activations.

    Sessions opened inside must be closed before it ends. Raises `RuntimeError` on a device that has memory of its own.
    """
    guards = Guards()
    patched = arguments.ArgumentTable._patched

    class Ports:
        """In place of the recording's own: see `vkep.device.host_ports.HostPorts`."""

        size, block, staging = 1, None, None

        def __init__(self, delegate: Any, ports: Sequence[Port], room: Sequence[int | None], staging: Any) -> None:
            self.room = [p.nbytes for p in ports]
            if staging is not None or "llvmpipe" not in delegate.capabilities.name:
                raise RuntimeError(f"{delegate.capabilities.name} does not run shaders on host addresses")
            memories = [guards.new(p.nbytes, f"{'input' if p.is_input else 'output'} {p.name!r}") for p in ports]
            self.addresses = [m.address for m in memories]
            self.views = [
                m.data.view(DTYPES[p.dtype].numpy).reshape(p.shape) for p, m in zip(ports, memories, strict=True)
            ]

        def result(self, k: int) -> np.ndarray[Any, Any]:
            return self.views[k].copy()

        def use(self, which: Sequence[int]) -> None:
            pass

        def close(self) -> None:
            self.views = []

    def _patched(self: arguments.ArgumentTable, k: int) -> bytes:
        return guards.patched(self, self._plan.dispatches[k], patched(self, k))

    try:
        with (
            mock.patch.object(emit, "place", guards.place),
            mock.patch.object(run_commands, "HostPorts", Ports),
            mock.patch.object(arguments.ArgumentTable, "_patched", _patched),
        ):
            yield guards
    finally:
        guards.close()
