"""The measure of growth that other tests rely on sees a leak, and none where there is none. Each in a process of its own: the
memory of a test worker changes by what its earlier tests left to other threads."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.processes import python

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc/self/status")

_PAGES = """
    import mmap
    from tests.growth import growth
    kept = []
    def take(nbytes):  # memory of its own, all of it used: the heap may have freed memory to give out
        kept.append(mmap.mmap(-1, nbytes))
        kept[-1].write(b"x" * nbytes)
"""


def grown(work: str) -> float:
    done = python(f"{_PAGES}    print(growth(lambda: {work}))")
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


def test_a_leak_is_seen() -> None:
    assert 1.8 < grown("take(2 << 20)") < 2.2


def test_memory_that_is_taken_once_is_no_growth() -> None:
    assert abs(grown("len(kept) < 3 and take(8 << 20)")) < 0.3  # in the first rounds alone
