"""Recorded cases in one file, for machines without ONNX Runtime, its sources and a compiler."""

from __future__ import annotations

import json
import lzma
import struct
from collections.abc import Iterable
from pathlib import Path

from tools.ort_suite.cases import Case
from tools.ort_suite.record import read_records

#: cases with more bytes of tensors stay out: a few reductions of random numbers are most of all bytes
_LARGEST = 1 << 18


def is_packed(path: Path) -> bool:
    """Whether ``path`` is a file of `write`."""
    return path.is_file() and path.suffix == ".xz"


def write(cases: Iterable[Case], path: Path) -> int:
    """Write the cases that need nothing but themselves to be judged; returns their number."""
    count = 0
    with lzma.open(path, "wb") as file:
        for case in cases:
            data = case.record["data"]
            if len(data) > _LARGEST or not (case.must_fail or case.record["verify"]):
                continue
            entry = {key: value for key, value in case.record.items() if key != "data"} | {"name": case.name}
            text = json.dumps(entry, separators=(",", ":")).encode()
            file.write(struct.pack("<I", len(text)) + text + struct.pack("<Q", len(data)) + data)
            count += 1
    return count


def read(path: Path) -> list[Case]:
    """The cases of a file of `write`."""
    return [Case(entry.pop("name"), entry) for entry in read_records(lzma.decompress(path.read_bytes()))]
