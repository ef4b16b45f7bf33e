"""Choices that are valid for every size and only prefer one: they use the hints, with few conditions or none."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, TypeVar

from vkep.sizes.size import Size, hint, is_size

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


def serves_others(value: Any) -> bool:
    """Whether a choice for a number must also serve other sizes."""
    return is_size(value)


def room_for(count: Any) -> int:
    """The number of elements of a constant of which ``count`` are used: for a size more than its current value, to
    serve larger sizes."""
    return 1 << max(count.hint.bit_length() + 1, 12) if count.__class__ is Size else int(count)


def at_hand(choose: F) -> F:
    """Decorates a function whose result is valid for every size: it is called with the sizes' current values."""

    @functools.wraps(choose)
    def asked(*args: Any, **kwargs: Any) -> Any:
        if any(a.__class__ is Size for a in args):
            args = tuple([a.hint if a.__class__ is Size else a for a in args])
        return choose(*args, **{k: hint(v) for k, v in kwargs.items()} if kwargs else kwargs)

    return asked  # type: ignore[return-value]


def record_at_hand(record: T) -> T:
    """A dataclass with its sizes replaced by their current values; the same object where it has none."""
    changed = {}
    for field in dataclasses.fields(record):  # type: ignore[arg-type]
        value = getattr(record, field.name)
        found = _values_at_hand(value)
        if found is not value:
            changed[field.name] = found
    return dataclasses.replace(record, **changed) if changed else record  # type: ignore[type-var]


def _values_at_hand(value: Any) -> Any:
    if value.__class__ is tuple:
        found = tuple(map(_values_at_hand, value))
        return value if all(a is b for a, b in zip(found, value, strict=True)) else found
    return hint(value)


def divides(divisor: Any, value: Any) -> bool:
    """Whether a number divides another, for choices that are only faster in that case. A size whose current value, or that of a
    run before, is not divisible returns False without a condition, and in a trace with `Trace.general` also a size whose
    divisibility is specific to its current value."""
    rest = value % divisor
    if rest.__class__ is not Size:
        return bool(rest == 0)
    return rest.trace.vanishes(rest)


def matches(value: Any, other: Any) -> bool:
    """Whether two numbers are equal, for choices that are only simpler in that case. Symbolic sizes are handled as in
    `divides`."""
    rest = value - other
    if rest.__class__ is not Size:
        return bool(rest == 0)
    return rest.trace.vanishes(rest)


def stays_few(value: Any, most: int) -> bool:
    """Whether a number is at most ``most``, for choices that are right only then, and faster. A size that is computed (pixels, a
    product of sizes) is handled as in `divides`: a plan for more serves fewer too. A size of the run itself (tokens of a
    decoder's step, a batch) has a plan for few and one for more."""
    return bool(value.trace.stays_few(value, most)) if value.__class__ is Size else bool(value <= most)


def power_of_two_in(value: Any, most: int) -> int:
    """The largest power of two up to ``most`` (itself a power of two) that divides an integer; for a size, one that
    always does."""
    if value.__class__ is Size:
        return math.gcd(most, value.const, *[count for _, count in value.terms])
    return math.gcd(most, value)
