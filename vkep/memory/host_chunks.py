"""The bytes of arrays and buffers, in chunks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import mmap

    from vkep.memory.staging_ring import Target

    HostData = np.ndarray[Any, Any] | bytes | bytearray | memoryview | mmap.mmap


def size_of(data: HostData) -> int:
    """Bytes of a buffer."""
    return data.nbytes if isinstance(data, np.ndarray) else memoryview(data).nbytes


def check_range(call: str, target: Target, offset: int, nbytes: int, label: str) -> None:
    """Raise ``ValueError`` unless the range (bytes) is inside the block, and ``TypeError`` for an offset that is no
    int."""
    if isinstance(offset, bool) or not isinstance(offset, int):
        raise TypeError(f"{call} of {label!r}: offset: expected an int, got {type(offset).__name__}")
    if offset < 0 or offset + nbytes > target.size:
        raise ValueError(
            f"{call} of {label!r}: {nbytes} bytes at {offset} are outside the block of {target.size} bytes"
        )


def as_bytes(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The bytes of a C-contiguous array as a uint8 array [nbytes] that shares its memory."""
    return array.reshape(-1).view(np.uint8)


def pieces_of(data: HostData, piece_bytes: int) -> Iterator[np.ndarray[Any, Any]]:
    """The bytes of ``data`` in C order as uint8 arrays [up to ``piece_bytes``]; no copy of contiguous data is made."""
    array = data if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
    if not array.nbytes:
        return
    if array.flags.c_contiguous:
        flat = as_bytes(array)
        for start in range(0, flat.size, piece_bytes):
            yield flat[start : start + piece_bytes]
        return
    # Strided data is gathered chunk by chunk. The iterator supports fewer types than arrays may have (ml_dtypes), and
    # only their size matters here.
    raw = array.view(f"u{array.itemsize}") if array.itemsize in (1, 2, 4, 8) else array
    elements = max(1, piece_bytes // array.itemsize)
    with np.nditer(raw, ["external_loop", "buffered"], order="C", buffersize=elements) as gathered:
        for piece in gathered:
            yield as_bytes(np.ascontiguousarray(piece))
