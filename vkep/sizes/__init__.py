"""Integers that are arguments of a plan's run: sizes of inputs, and values computed from them.

`Size` is such a number while a model is lowered, `Trace` records the conditions that lowering depends on, `Formulas` is
the form of both in a plan: plain data, computed for other sizes at once.
"""

from vkep.sizes.caches import cached, clear_caches
from vkep.sizes.formulas import REALS, Formulas
from vkep.sizes.preferences import (
    at_hand,
    divides,
    matches,
    power_of_two_in,
    record_at_hand,
    room_for,
    serves_others,
    stays_few,
)
from vkep.sizes.size import (
    Real,
    Size,
    SizeError,
    active,
    called,
    fixed,
    fixed_text,
    hint,
    is_size,
    largest,
    plain_text,
    smallest,
    text_parts,
    whole,
    wholes,
)
from vkep.sizes.trace import Trace

__all__ = [
    "REALS",
    "Formulas",
    "Real",
    "Size",
    "SizeError",
    "Trace",
    "active",
    "at_hand",
    "cached",
    "called",
    "clear_caches",
    "divides",
    "fixed",
    "fixed_text",
    "hint",
    "is_size",
    "largest",
    "matches",
    "plain_text",
    "power_of_two_in",
    "record_at_hand",
    "room_for",
    "serves_others",
    "smallest",
    "stays_few",
    "text_parts",
    "whole",
    "wholes",
]
