"""Reads parts of files on request. Files are not mapped: truncating a mapped file would end the process (SIGBUS)."""

from __future__ import annotations

import os
import weakref
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vkep.errors import InvalidModelError
from vkep.files import check_memory, open_file

LastWrite = tuple[int, ...]
#: bytes that `FileBytes` reads at once when single ones are requested
_WINDOW = 1 << 16
#: external data files that stay open in a process, whose limit of open files is often 1,024
MOST_OPEN = 256


def last_write(status: os.stat_result) -> LastWrite:
    """A value that changes when a file is written to or replaced."""
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def file_identity(path: Path, status: os.stat_result) -> str:
    """The identity of a file, in place of its content: its path, place on disk, size and last change."""
    times = f"{status.st_mtime_ns}:{status.st_ctime_ns}"
    return f"{path.absolute()}:{status.st_dev}:{status.st_ino}:{status.st_size}:{times}"


class FileReader:
    """Reads parts of an open file, which closes with its last reader. Safe to use from several threads, and from a
    forked process."""

    def __init__(self, path: Path, known: LastWrite | None = None) -> None:
        """``known``: the last write that was seen before. Raises ``FileNotFoundError`` where no file can be opened; with
        ``known`` `InvalidModelError`, also for a later write."""
        self._path = path
        if known is None:
            self._file = open_file(path, "model file")
        else:
            self._file = open_file(path, "external data file", InvalidModelError)
        self.status = os.fstat(self._file.fileno())
        self._last_write = last_write(self.status) if known is None else known
        if known is not None:
            self._check()

    def __del__(self) -> None:
        if "_file" in self.__dict__:
            self._file.close()

    def read_into(self, start: int, out: np.ndarray) -> None:
        """Fill ``out`` (uint8) from byte ``start`` on. Raises `InvalidModelError` where the file was written to since
        it was opened."""
        done = 0
        while done < out.nbytes:
            try:
                count = self._read_at(start + done, out.data[done:])
            except OSError as error:
                raise InvalidModelError(f"{self._path} cannot be read: {error}") from error
            if not count:
                break
            done += count
        self._check(whole=done == out.nbytes)

    def read(self, start: int, nbytes: int) -> np.ndarray:
        """``nbytes`` bytes (uint8) from byte ``start`` on. Raises `InvalidModelError` as `read_into`, and for more bytes than
        there is memory."""
        try:
            check_memory(nbytes)
            out = np.empty(nbytes, np.uint8)
        except MemoryError as error:
            raise InvalidModelError(f"{self._path}: the part that is read does not fit in memory: {error}") from error
        self.read_into(start, out)
        return out

    def _check(self, whole: bool = True) -> None:
        if not whole or last_write(os.fstat(self._file.fileno())) != self._last_write:
            raise InvalidModelError(f"{self._path} was changed after the model was opened: open the model again")

    def _read_at(self, start: int, into: memoryview) -> int:
        if hasattr(os, "preadv"):  # pread: threads and forked processes share the file's offset
            return os.preadv(self._file.fileno(), [into], start)
        self._file.seek(start)
        return self._file.readinto(into) or 0


class FileBytes:
    """A file's bytes for `vkep.graph.wire`: a few at a time, or a range."""

    def __init__(self, reader: FileReader) -> None:
        self._reader, self._size = reader, reader.status.st_size
        self._window, self._first = memoryview(b""), 0

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, at: int | slice) -> int | memoryview:
        if isinstance(at, slice):
            start, stop, _ = at.indices(self._size)
            return self._reader.read(start, max(stop - start, 0)).data
        within = at - self._first
        if not 0 <= within < len(self._window):
            window = self._reader.read(at, min(_WINDOW, self._size - at))
            self._window, self._first, within = window.data, at, 0
        return self._window[within]


@dataclass(frozen=True)
class FilePart:
    """Part of an open file, as `vkep.graph.weights.Content`."""

    reader: FileReader
    start: int
    end: int

    @property
    def nbytes(self) -> int:
        """Length in bytes."""
        return self.end - self.start

    def __call__(self) -> np.ndarray:
        return self.reader.read(self.start, self.nbytes)

    def read_into(self, out: np.ndarray, start: int = 0) -> None:
        """Read the part's bytes from ``start`` on into ``out`` (uint8). Raises `InvalidModelError` where the file changed."""
        self.reader.read_into(self.start + start, out)


@dataclass(frozen=True)
class ExternalPart:
    """Part of an external data file. The file stays open, so that a session needs it in its folder no longer; the ones
    beyond `MOST_OPEN` are opened for each read."""

    path: Path
    known: LastWrite
    start: int
    nbytes: int
    reader: FileReader | None

    @classmethod
    def of(cls, path: Path, status: os.stat_result, start: int, nbytes: int) -> ExternalPart:
        """The part of a file whose status was read before. Raises `InvalidModelError` where it cannot be opened or was
        written to since."""
        known = last_write(status)
        reader = _readers.get((path, known))
        if reader is None and len(_readers) < MOST_OPEN:
            reader = _readers[path, known] = FileReader(path, known)
        return cls(path, known, start, nbytes, reader)

    def __call__(self) -> np.ndarray:
        return (self.reader or FileReader(self.path, self.known)).read(self.start, self.nbytes)

    def read_into(self, out: np.ndarray, start: int = 0) -> None:
        """Read the part's bytes from ``start`` on into ``out`` (uint8). Raises `InvalidModelError` where the file changed."""
        (self.reader or FileReader(self.path, self.known)).read_into(self.start + start, out)


#: the open external data files of all models, by path and last write
_readers: weakref.WeakValueDictionary[tuple[Path, LastWrite], FileReader] = weakref.WeakValueDictionary()
