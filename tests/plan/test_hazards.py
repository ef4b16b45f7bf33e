"""Barriers stand between every two dispatches that touch the same bytes, one of them writing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from vkep.plan.hazards import HazardTracker
from vkep.plan.records import Range, Space

RANGES = st.lists(
    st.builds(
        lambda space, index, start, length: Range(
            space, index if space is not Space.ACTIVATION else 0, start, start + length
        ),
        st.sampled_from(Space),
        st.integers(0, 2),
        st.integers(0, 20),
        st.integers(0, 8),
    ),
    max_size=3,
)
DISPATCHES = st.lists(st.tuples(RANGES, RANGES), max_size=25)


def _conflict(a: tuple[list[Range], list[Range]], b: tuple[list[Range], list[Range]]) -> bool:
    """Byte by byte: read after write, write after write, write after read."""

    def touched(ranges: list[Range]) -> set[tuple[Space, int, int]]:
        return {
            (r.space, r.index, byte) for r in ranges if r.space is not Space.CONSTANT for byte in range(r.start, r.end)
        }

    reads, writes = touched(a[0]), touched(a[1])
    return bool(writes & touched(b[0]) or writes & touched(b[1]) or reads & touched(b[1]))


@given(DISPATCHES)
def test_every_hazard_has_a_barrier_and_every_barrier_a_hazard(
    dispatches: list[tuple[list[Range], list[Range]]],
) -> None:
    tracker = HazardTracker()
    barriers = [tracker.needs_barrier(reads, writes) for reads, writes in dispatches]
    for later, dispatch in enumerate(dispatches):
        since = max((i for i in range(later + 1) if barriers[i]), default=0)
        if barriers[later]:
            before = max((i for i in range(later) if barriers[i]), default=0)
            assert any(_conflict(dispatches[i], dispatch) for i in range(before, later)), "a barrier for nothing"
        else:
            assert not any(_conflict(dispatches[i], dispatch) for i in range(since, later)), "a hazard without barrier"


def test_constants_are_only_read() -> None:
    tracker = HazardTracker()
    weights = [Range(Space.CONSTANT, 0, 0, 100)]
    assert not tracker.needs_barrier(weights, [Range(Space.PORT, 1, 0, 4)])
    assert not tracker.needs_barrier(weights, [Range(Space.PORT, 2, 0, 4)])
    assert tracker.needs_barrier([Range(Space.PORT, 1, 3, 5)], [Range(Space.PORT, 3, 0, 4)])
