"""Offsets for a plan's temporary buffers: lifetimes to offsets in one slab."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpu_shared.errors import OutOfDeviceMemoryError

#: Offsets are multiples of this: it is a multiple of the alignment of vector loads and of every device's storage-offset
#: alignment.
ALIGNMENT = 256
#: Number of further rounds of `pack`, fewer for plans of many buffers (the time of a round is quadratic).
_ROUNDS, _WORK = 40, 4_000_000
#: bytes that an arena may add to a block that occupies a whole buffer
_MARGIN = 1 << 16


@dataclass(frozen=True, slots=True)
class Lifetime:
    """``nbytes`` needed from step ``first`` through step ``last``."""

    nbytes: int
    first: int
    last: int


def align(nbytes: int, alignment: int = ALIGNMENT) -> int:
    """``nbytes`` rounded up to a multiple of ``alignment``."""
    return -(-nbytes // alignment) * alignment


def piece_of(max_buffer_size: int) -> int:
    """The bytes of a slab that fit one buffer of a device: a larger slab is split into several buffers."""
    return max((max_buffer_size - _MARGIN) // ALIGNMENT, 1) * ALIGNMENT


def too_large(label: str, nbytes: int, piece: int) -> OutOfDeviceMemoryError:
    """The error for a temporary buffer that is larger than a piece; ``label`` names the operation that fills it."""
    hint = (
        f"{nbytes} bytes in one temporary buffer; a buffer of this device holds at most {piece} (maxBufferSize): use a smaller "
        "batch or shorter inputs"
    )
    return OutOfDeviceMemoryError("planning", label=label, hint=hint, asked=nbytes, budget=piece)


def check_bytes(most: int, weights: int, temporary: int, ports: int, option: str = "max_run_bytes") -> None:
    """Raise `OutOfDeviceMemoryError` where a plan and one run of it take more than ``most`` bytes, before they are taken.
    ``option``: the name of that bound."""
    total = weights + temporary + ports
    if total > most:
        hint = (
            f"a run takes {total} bytes of device memory ({weights} of weights, {temporary} of temporary buffers, {ports} of "
            f"inputs and outputs), and {option} is {most}: use a smaller batch or shorter inputs, or raise that option"
        )
        raise OutOfDeviceMemoryError("planning", hint=hint, asked=total, budget=most)


def pack(lifetimes: Sequence[Lifetime], piece: int | None = None) -> tuple[list[int], int]:
    """Offsets that never overlap while alive, and the slab's size. Where the slab is larger than ``piece`` bytes (a
    multiple of `ALIGNMENT`), no buffer crosses a multiple of it, unless it is larger itself.

    Greedy by size: the largest first, each in the tightest gap among the placed buffers that live at the same time
    (Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020, "greedy by size"). Where the
    result is above the bound of `live_peak`, the buffers that reach the slab's end are placed first and the others
    again, for some rounds, and then the same from the order of first use; the smallest slab is used.
    """
    sizes = [align(life.nbytes) for life in lifetimes]
    by_size = sorted(range(len(lifetimes)), key=lambda i: (-lifetimes[i].nbytes, lifetimes[i].first))
    by_time = sorted(range(len(lifetimes)), key=lambda i: lifetimes[i].first)
    bound = live_peak(lifetimes)
    beside = _alive_together(lifetimes)
    rounds = min(_ROUNDS, _WORK // max(len(lifetimes), 1) ** 2)
    offsets, total = _best_fit(sizes, beside, by_size, bound, rounds)
    if total > bound and rounds:
        other, slab = _best_fit(sizes, beside, by_time, bound, rounds)
        if slab < total:
            offsets, total = other, slab
    if piece is not None and total > piece:
        return _fit(sizes, beside, sorted(by_size, key=lambda i: -sizes[i]), piece)
    return offsets, total


def _best_fit(
    sizes: Sequence[int], beside: Sequence[Sequence[int]], order: Sequence[int], bound: int, rounds: int
) -> tuple[list[int], int]:
    """The smallest slab of the rounds of `pack` that begin with an order."""
    order = list(order)
    offsets, total = tried, slab = _fit(sizes, beside, order)
    seen = {tuple(order)}
    for _ in range(rounds):
        if total <= bound:
            break
        top = {i for i in order if tried[i] + sizes[i] == slab}
        order.sort(key=lambda i: i not in top)  # stable: the others keep their order
        if tuple(order) in seen:  # from here on the rounds repeat
            break
        seen.add(tuple(order))
        tried, slab = _fit(sizes, beside, order)
        if slab < total:
            offsets, total = tried, slab
    return offsets, total


def _alive_together(lifetimes: Sequence[Lifetime]) -> list[list[int]]:
    """For each buffer the others that are live at a step at which it is."""
    beside: list[list[int]] = [[] for _ in lifetimes]
    alive: list[int] = []
    for i in sorted(range(len(lifetimes)), key=lambda i: lifetimes[i].first):
        first = lifetimes[i].first
        alive = [j for j in alive if lifetimes[j].last >= first]
        for j in alive:
            beside[i].append(j)
            beside[j].append(i)
        alive.append(i)
    return beside


def _fit(
    sizes: Sequence[int], beside: Sequence[Sequence[int]], order: Sequence[int], piece: int | None = None
) -> tuple[list[int], int]:
    """Place the buffers one by one in the order given; ``sizes`` are aligned."""
    places: list[tuple[int, int] | None] = [None] * len(sizes)
    total = 0
    for i in order:
        size = sizes[i]
        if size == 0:
            continue
        best, best_gap, end = -1, -1, 0
        for start, stop in sorted([taken for j in beside[i] if (taken := places[j]) is not None]):
            if piece is not None and end // piece != (end + size - 1) // piece:
                end = align(end, piece)
            gap = start - end
            if gap >= size and (best < 0 or gap < best_gap):
                best, best_gap = end, gap
            if stop > end:
                end = stop
        if piece is not None and end // piece != (end + size - 1) // piece:
            end = align(end, piece)
        offset = end if best < 0 else best
        places[i] = (offset, offset + size)
        total = max(total, offset + size)
    return [0 if taken is None else taken[0] for taken in places], total


def live_peak(lifetimes: Sequence[Lifetime]) -> int:
    """The largest sum of sizes alive at one step: no placement can be smaller."""
    events: dict[int, int] = {}
    for life in lifetimes:
        events[life.first] = events.get(life.first, 0) + align(life.nbytes)
        events[life.last + 1] = events.get(life.last + 1, 0) - align(life.nbytes)
    live = peak = 0
    for step in sorted(events):
        live += events[step]
        peak = max(peak, live)
    return peak
