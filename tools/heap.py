"""The memory of this process, as the C library counts it and as the system does."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from pathlib import Path

#: number of arenas of glibc's malloc; read when a process starts
_ARENAS = "MALLOC_ARENA_MAX"
_NAMES = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")


class _Counts(ctypes.Structure):
    """glibc's ``struct mallinfo2``."""

    _fields_ = [(name, ctypes.c_size_t) for name in _NAMES]


def restart_with_two_arenas(module: str) -> None:
    """Start this process again as ``python -m module``, with two arenas of glibc's malloc. By default threads have up to eight
    arenas for each core, and each keeps a megabyte that is free: memory would seem to grow until all have been used."""
    if sys.platform == "linux" and _ARENAS not in os.environ:
        os.environ[_ARENAS] = "2"
        os.execv(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]])


def resident_mb() -> float:
    """Resident memory in MB, without what the C library keeps for later (glibc's ``malloc_trim``)."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmRSS"))
    return int(line.split()[1]) * 1024 / 1e6


def allocated_mb() -> float:
    """MB that are allocated by malloc; 0 without glibc's ``mallinfo2`` (2.33)."""
    read = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if read is None:
        return 0.0
    read.restype = _Counts
    counts = read()
    return float(counts.uordblks + counts.hblkhd) / 1e6
