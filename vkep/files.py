"""Opens the files that a caller or a model names: regular files only. A FIFO would make the caller wait for another
process, and a device may have no end."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from vkep.errors import NoFileError
from vkep.text import shortened

#: bytes of this machine's memory; of its address space where the system does not tell
MEMORY_BYTES = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 1 << 47


def open_file(path: Path, what: str = "file", error: type[Exception] = NoFileError) -> io.FileIO:
    """Open a regular file for reading. Raises ``error`` where there is none, or where the system refuses to open it;
    ``what`` names it in the message."""
    with _reported(path, what, error):
        _check_regular(os.stat(path))  # opening a device may have an effect
        file = io.FileIO(path, opener=_without_waiting)
        try:
            _check_regular(os.fstat(file.fileno()))  # another file may have replaced it
        except BaseException:
            file.close()
            raise
    return file


def file_status(path: Path, what: str = "file", error: type[Exception] = NoFileError) -> os.stat_result:
    """The status of a regular file. Raises as `open_file`."""
    with _reported(path, what, error):
        status = os.stat(path)
        _check_regular(status)
    return status


def read_file(path: Path, what: str = "file", error: type[Exception] = NoFileError) -> bytes:
    """The bytes of a file that is opened by `open_file`. Raises ``error`` also for one that is larger than the
    machine's memory, or that cannot be read."""
    with open_file(path, what, error) as file:
        try:
            check_memory(os.fstat(file.fileno()).st_size)
            return file.read()
        except (OSError, MemoryError) as problem:
            raise error(f"{shortened(str(path))} cannot be read: {problem}") from problem


def file_inside(folder: Path, name: str, error: type[Exception]) -> Path:
    """The path of a file that another file of a folder names, with ``/`` between parts. Raises ``error`` where it leaves the
    folder, also by links. A link from a snapshot of Hugging Face's cache, or a folder in it, to a blob beside it stays inside."""
    pure = PurePosixPath(name)
    try:
        root, path = folder.resolve(), (folder / name).resolve()
    except (OSError, ValueError, RuntimeError) as problem:  # a NUL, too long, or (before Python 3.13) a circle of links
        raise error(f"{shortened(str(folder))}: {shortened(name)!r} is no path: {problem}") from problem
    snapshots = (above.parent for above in (root, *root.parents) if above.parent.name == "snapshots")
    inside = path.is_relative_to(root) or any(path.is_relative_to(each.parent / "blobs") for each in snapshots)
    if not name or pure.is_absolute() or ".." in pure.parts or "\\" in name or not inside:
        raise error(f"{shortened(name)!r} is not inside {shortened(str(folder))}")
    return folder / name


def check_memory(nbytes: int) -> None:
    """Raise ``MemoryError`` for more bytes than this machine has: the system may grant them, and end the process once
    they are used."""
    if nbytes > MEMORY_BYTES:
        raise MemoryError(f"{nbytes} bytes, and this machine has {MEMORY_BYTES} bytes of memory")


@contextlib.contextmanager
def _reported(path: Path, what: str, error: type[Exception]) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as problem:  # ValueError: the path has a NUL, or is no text of this system
        why = "" if isinstance(problem, FileNotFoundError) else f": {getattr(problem, 'strerror', None) or problem}"
        raise error(f"no {what} at {shortened(str(path))}{why}") from problem


def _check_regular(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = "a folder" if stat.S_ISDIR(status.st_mode) else "a device, FIFO or socket"
        raise OSError(errno.EINVAL, f"it is {kind}, expected a file")


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # Windows has no FIFOs at paths
