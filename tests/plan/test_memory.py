"""Places for buffers: nothing that lives at the same time overlaps, and little more is taken than must be."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from vkep.plan.memory import ALIGNMENT, Lifetime, align, live_peak, pack

LIFETIMES = st.lists(
    st.builds(
        lambda nbytes, first, length: Lifetime(nbytes, first, first + length),
        st.one_of(st.integers(0, 5000), st.sampled_from([0, 1, 256, 1 << 20])),
        st.integers(0, 30),
        st.integers(0, 12),
    ),
    max_size=40,
)


@given(LIFETIMES)
def test_no_two_live_buffers_overlap(lifetimes: list[Lifetime]) -> None:
    offsets, total = pack(lifetimes)
    used: dict[int, list[tuple[int, int]]] = {}
    for life, offset in zip(lifetimes, offsets, strict=True):
        assert offset % ALIGNMENT == 0 and offset >= 0 and offset + life.nbytes <= total
        if life.nbytes:
            for step in range(life.first, life.last + 1):
                used.setdefault(step, []).append((offset, offset + life.nbytes))
    for spans in used.values():
        spans.sort()
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))


@given(LIFETIMES, st.sampled_from([1 << 13, 1 << 20, 3 << 19]))
def test_no_buffer_lies_across_two_pieces(lifetimes: list[Lifetime], piece: int) -> None:
    offsets, total = pack(lifetimes, piece)
    if pack(lifetimes)[1] <= piece:
        assert (offsets, total) == pack(lifetimes)
    alive = [(offset, life) for life, offset in zip(lifetimes, offsets, strict=True) if life.nbytes]
    for offset, life in alive:
        assert offset + life.nbytes <= total
        assert offset // piece == (offset + life.nbytes - 1) // piece or (life.nbytes > piece and offset % piece == 0)
    for (a, one), (b, other) in itertools.combinations(alive, 2):
        if one.first <= other.last and other.first <= one.last:
            assert a + one.nbytes <= b or b + other.nbytes <= a


@given(LIFETIMES)
def test_the_bound_is_what_lives_at_the_busiest_step(lifetimes: list[Lifetime]) -> None:
    peak = max((sum(align(x.nbytes) for x in lifetimes if x.first <= step <= x.last) for step in range(50)), default=0)
    assert live_peak(lifetimes) == peak <= pack(lifetimes)[1]


@given(LIFETIMES)
def test_placing_is_a_function_of_the_lifetimes(lifetimes: list[Lifetime]) -> None:
    assert pack(lifetimes) == pack(list(lifetimes))


def test_a_chain_takes_two_buffers() -> None:
    assert pack([Lifetime(1000, i, i + 1) for i in range(20)])[1] == 2 * align(1000)


def test_greedy_by_size_alone_would_waste_here() -> None:
    """The lifetimes of a residual network's blocks: placed largest first they take a quarter more than must be."""
    lifetimes = []
    for block in range(6):
        size, at = 1 << (20 - block), 4 * block
        lifetimes += [
            Lifetime(size, at, at + 4),
            Lifetime(size // 2, at + 1, at + 2),
            Lifetime(size // 2, at + 2, at + 3),
        ]
        lifetimes += [Lifetime(2 * size // 3, at + 3, at + 4)]
    assert pack(lifetimes)[1] <= 1.1 * live_peak(lifetimes)
