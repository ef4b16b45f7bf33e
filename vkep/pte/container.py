"""The files around the flatbuffers: .pte programs and .ptd data files, with their headers, segments and named data.

Nothing is copied: results are views of the file's bytes. A file is read, not mapped: truncating a mapped file would end
the process (SIGBUS).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

from vkep.errors import InvalidPteError, UnsupportedProgramError
from vkep.files import check_memory, open_file
from vkep.pte import schema

#: bytes in which the headers of both kinds of file begin
_HEAD = 64
#: types of a program or data file argument
Source = bytes | bytearray | memoryview | str | os.PathLike[str]


def open_source(source: Source, identifier: bytes) -> tuple[memoryview, str]:
    """The bytes of a file or of a buffer, and its name for messages. Of a file whose bytes 4 to 8 are not ``identifier`` only
    the first ones are read.

    Raises ``FileNotFoundError``, `InvalidPteError` for a file that is empty or larger than the machine's memory, ``TypeError``
    for anything else.
    """
    if isinstance(source, (bytes, bytearray, memoryview)):
        return memoryview(bytes(source) if isinstance(source, bytearray) else source).cast("B"), "the program's bytes"
    if not isinstance(source, (str, os.PathLike)):
        raise TypeError(f"got a {type(source).__name__}, expected a path or bytes")
    path = Path(source)
    with open_file(path, "program or data file") as file:
        try:
            data = file.read(_HEAD)
            if data[4:8] == identifier:
                check_memory(os.fstat(file.fileno()).st_size)
                file.seek(0)
                data = file.read()
        except (OSError, MemoryError) as error:
            raise InvalidPteError(f"{path} cannot be read: {error}") from error
    if not data:
        raise InvalidPteError(f"{path}: the file is empty")
    return memoryview(data), str(path)


class _Segments:
    """The segments after the flatbuffer, which both kinds of file have."""

    def __init__(self, data: memoryview, base: int, segments: Sequence[schema.DataSegment], what: str) -> None:
        self.views: list[memoryview] = []
        for index, segment in enumerate(segments):
            start = base + segment.offset
            if start + segment.size > len(data):
                raise InvalidPteError(
                    f"{what}: segment {index} is {segment.size} bytes at {start}, the file has {len(data)}: is it truncated?"
                )
            self.views.append(data[start : start + segment.size])

    def __len__(self) -> int:
        return len(self.views)

    def view(self, index: int, what: str) -> memoryview:
        if not 0 <= index < len(self.views):
            raise InvalidPteError(f"{what} names segment {index}; the file has {len(self.views)}")
        return self.views[index]


class PteFile:
    """A .pte file: its program flatbuffer, checked as far as access to the data requires.

    Layout: flatbuffer (identifier ``ET12``), inside it at byte 8 an extended header (``eh00``, its length, the size of
    the flatbuffer, where segments start, their size) where the file has segments.
    """

    def __init__(self, source: Source) -> None:
        """Raises `InvalidPteError`, `UnsupportedProgramError` for a version from the future, and as `open_source`."""
        data, self.name = open_source(source, schema.PROGRAM_IDENTIFIER)
        self.nbytes = len(data)
        found = bytes(data[4:8])
        if found != schema.PROGRAM_IDENTIFIER:
            if len(found) == 4 and found[:2] == b"ET" and found[2:].isdigit():
                raise UnsupportedProgramError(
                    f"{self.name}: a program of format {found.decode()}; vkep reads {schema.PROGRAM_IDENTIFIER.decode()}: "
                    "export it with ExecuTorch 1.x"
                )
            raise InvalidPteError(
                f"{self.name}: bytes 4 to 8 are {found!r}, expected {schema.PROGRAM_IDENTIFIER!r}: this is no .pte file"
            )
        size, base = _extended_header(data, self.name)
        self.program = schema.Program.read_root(data[:size], schema.PROGRAM_IDENTIFIER, self.name)
        if self.program.version != schema.VERSION:
            raise UnsupportedProgramError(
                f"{self.name}: schema version {self.program.version}; vkep reads version {schema.VERSION}: it was written by a "
                "newer ExecuTorch than vkep knows"
            )
        if not base and any(segment.size for segment in self.program.segments):
            raise InvalidPteError(f"{self.name}: it has segments, but no extended header that says where they start")
        self._segments = _Segments(data, base, self.program.segments, self.name)
        self.named_data: dict[str, memoryview] = {
            named.key: self._segments.view(named.segment_index, f"{self.name}: named data {named.key!r}")
            for named in self.program.named_data
        }
        names = [plan.name for plan in self.program.execution_plan]
        if not names or len(set(names)) != len(names):
            raise InvalidPteError(f"{self.name}: its methods are {names}, expected one or more different names")
        self.methods: Mapping[str, schema.ExecutionPlan] = dict(zip(names, self.program.execution_plan, strict=True))

    def constant(self, index: int, nbytes: int) -> memoryview:
        """The first ``nbytes`` bytes of constant ``index``: in the flatbuffer (old files) or in the constant
        segment. Raises `InvalidPteError` where there is none."""
        where = f"{self.name}: constant {index}"
        if self.program.constant_buffer:
            if not 0 <= index < len(self.program.constant_buffer):
                raise InvalidPteError(f"{where}: the program has {len(self.program.constant_buffer)}")
            return _first(self.program.constant_buffer[index].storage, nbytes, where)
        if self.program.constant_segment is None:
            raise InvalidPteError(f"{where}: the program has no constants")
        return self._part(self.program.constant_segment, index, nbytes, where)

    def initial(self, segments_index: int, index: int, nbytes: int) -> memoryview:
        """The initial bytes of a mutable tensor. Raises `InvalidPteError` where there are none."""
        where = f"{self.name}: initial state {index}"
        if not 0 <= segments_index < len(self.program.mutable_data_segments):
            raise InvalidPteError(f"{where}: the program has {len(self.program.mutable_data_segments)} such segments")
        return self._part(self.program.mutable_data_segments[segments_index], index, nbytes, where)

    def _part(self, offsets: schema.SubsegmentOffsets, index: int, nbytes: int, where: str) -> memoryview:
        if not 0 <= index < len(offsets.offsets):
            raise InvalidPteError(f"{where}: the program has {len(offsets.offsets)}")
        segment = self._segments.view(offsets.segment_index, where)
        offset = offsets.offsets[index]
        return _first(segment[offset:] if offset <= len(segment) else segment[:0], nbytes, where)

    def processed(self, delegate: schema.BackendDelegate) -> memoryview:
        """The data that a delegate's backend wrote at export. Raises `InvalidPteError` where there is none."""
        reference, where = delegate.processed, f"{self.name}: the data of delegate {delegate.id!r}"
        if reference.location is schema.DataLocation.SEGMENT:
            return self._segments.view(reference.index, where)
        if reference.index >= len(self.program.backend_delegate_data):
            raise InvalidPteError(f"{where} is number {reference.index} of {len(self.program.backend_delegate_data)}")
        return self.program.backend_delegate_data[reference.index].data


class PtdFile:
    """A .ptd file: tensors and blobs by key, outside the programs that use them.

    Layout: at byte 8 a header (``FH01``, its length, offset and size of the flatbuffer, offset and size of the
    segments); the flatbuffer's identifier ``FT01`` and root offset are the file's first 8 bytes.
    """

    def __init__(self, source: Source) -> None:
        """Raises as `PteFile`."""
        data, self.name = open_source(source, schema.DATA_IDENTIFIER)
        if bytes(data[4:8]) != schema.DATA_IDENTIFIER:
            raise InvalidPteError(
                f"{self.name}: bytes 4 to 8 are {bytes(data[4:8])!r}, expected {schema.DATA_IDENTIFIER!r}: no .ptd file"
            )
        if len(data) < 48 or bytes(data[8:12]) != b"FH01":
            raise InvalidPteError(f"{self.name}: it has no header (FH01) at byte 8")
        offset, size, base, segments_size = struct.unpack_from("<4Q", data, 16)
        if offset + size > len(data) or base + segments_size > len(data):
            raise InvalidPteError(
                f"{self.name}: flatbuffer to byte {offset + size}, segments to byte {base + segments_size}; the file has "
                f"{len(data)}: is it truncated?"
            )
        root = schema.FlatTensor.read_root(data[: offset + size], schema.DATA_IDENTIFIER, self.name)
        if root.version != schema.VERSION:
            raise UnsupportedProgramError(f"{self.name}: schema version {root.version}; vkep reads {schema.VERSION}")
        parts = _Segments(data, base, root.segments, self.name)
        self.named_data: dict[str, memoryview] = {}
        self.layouts: dict[str, schema.TensorLayout] = {}
        for named in root.named_data:
            self.named_data[named.key] = parts.view(named.segment_index, f"{self.name}: named data {named.key!r}")
            if named.tensor_layout is not None:
                self.layouts[named.key] = named.tensor_layout


def _extended_header(data: memoryview, name: str) -> tuple[int, int]:
    """(size of the flatbuffer, where segments start); (all, 0) for a file without the header."""
    if bytes(data[8:12]) != b"eh00":
        return len(data), 0
    if len(data) < 32:
        raise InvalidPteError(f"{name}: {len(data)} bytes are too few for the extended header: is it truncated?")
    length, size, base = struct.unpack_from("<IQQ", data, 12)
    segments = struct.unpack_from("<Q", data, 32)[0] if length >= 32 and len(data) >= 40 else 0
    if size > len(data) or base + segments > len(data) or (base and base < size):
        raise InvalidPteError(
            f"{name}: its header says {size} bytes of program and {segments} of segments from byte {base}; the file has "
            f"{len(data)}: is it truncated?"
        )
    return size, base


def _first(view: memoryview, nbytes: int, where: str) -> memoryview:
    if nbytes > len(view):
        raise InvalidPteError(f"{where} has {len(view)} bytes; its tensor takes {nbytes}")
    return view[:nbytes]
