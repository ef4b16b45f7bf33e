"""The measure of growth that other tests rely on sees a leak, and none where there is none."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest

from tests.growth import growth

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc/self/status")


def pages(nbytes: int) -> mmap.mmap:
    """Memory of its own, all of it used: the heap may have freed memory to give out."""
    made = mmap.mmap(-1, nbytes)
    made.write(b"x" * nbytes)
    return made


def test_a_leak_is_seen() -> None:
    kept: list[mmap.mmap] = []
    assert 1.8 < growth(lambda: kept.append(pages(2 << 20))) < 2.2


def test_memory_that_is_taken_once_is_no_growth() -> None:
    kept: list[mmap.mmap] = []

    def work() -> None:
        if len(kept) < 3:  # in the first rounds alone
            kept.append(pages(8 << 20))

    assert abs(growth(work)) < 0.3
