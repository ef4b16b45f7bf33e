"""Weakly referenced values by key."""

from __future__ import annotations

from gpu_shared.weak import WeakValues


class Thing:
    pass


def test_a_value_is_found_while_it_is_referenced() -> None:
    found: WeakValues[int, Thing] = WeakValues()
    one, two = Thing(), Thing()
    found[1], found[2] = one, two
    assert found.get(1) is one and found.values() == [one, two]
    del one
    assert found.get(1) is None and found.values() == [two]
    assert list(found._entries) == [2]


def test_a_key_is_used_again() -> None:
    """The first value's end does not remove the second one."""
    found: WeakValues[int, Thing] = WeakValues()
    first, second = Thing(), Thing()
    found[1] = first
    found[1] = second
    del first
    assert found.get(1) is second
