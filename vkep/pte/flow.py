"""Determines the write that each read of a method observes, from its memory plan, once when the method is loaded.

The plan assigns bytes of arenas to values; views are elided and outputs alias by sharing memory, so a value's content
is what was last written to its bytes, through whichever value. Kernels use the arenas directly. A delegate's result can
stay on the device where every read of it covers exactly the bytes that it wrote; everything else goes through the
arenas.
"""

from __future__ import annotations

import bisect
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field, replace

from vkep.errors import InvalidPteError
from vkep.pte.steps import VIEW_NAMES, DelegateStep, JumpStep, KernelStep, MoveStep, Step
from vkep.pte.values import ListValue, Place, TensorValue, Value

#: the writer: (number of a delegate step, index among its outputs), or (`INPUT`, number of the method's input)
Writer = tuple[int, int]
INPUT = -1


@dataclass
class Write:
    """One tensor that a delegate call or the caller writes, and its readers."""

    value: int
    on_device: bool = False  #: another delegate on the same context reads it
    to_arena: bool = False  #: some step reads its bytes in an arena
    outputs: int = 0  #: number of the method's outputs that it is


@dataclass
class Flow:
    """``sources``: for each delegate step, by the step's number, the write that each input observes, None for the
    arenas."""

    linear: bool  #: True without jumps and moves: then reads are known in advance
    writes: dict[Writer, Write] = field(default_factory=dict)
    sources: dict[int, tuple[Writer | None, ...]] = field(default_factory=dict)
    outputs: tuple[Writer | None, ...] = ()  #: the write that each output of the method observes


#: a range of an arena and its writer; None: another write to the arena
_Part = tuple[int, int, Writer | None]


class _Arenas:
    """The latest write to each range of an arena."""

    def __init__(self) -> None:
        self._parts: dict[int, list[_Part]] = {}

    def write(self, place: Place, who: Writer | None) -> None:
        if not place.nbytes:
            return
        parts = self._parts.setdefault(place.arena, [])
        first, last = self._range(parts, place)
        kept: list[_Part] = []
        for start, end, old in parts[first:last]:
            if start < place.offset:
                kept.append((start, place.offset, old))
            if end > place.end:
                kept.append((place.end, end, old))
        kept.append((place.offset, place.end, who))
        parts[first:last] = sorted(kept, key=lambda p: p[0])

    def read(self, place: Place) -> list[_Part]:
        """The overlapping ranges; a range that was not written is missing."""
        parts = self._parts.get(place.arena, [])
        first, last = self._range(parts, place)
        return parts[first:last]

    @staticmethod
    def _range(parts: list[_Part], place: Place) -> tuple[int, int]:
        first = bisect.bisect_right(parts, place.offset, key=lambda p: p[0]) - 1
        if first < 0 or parts[first][1] <= place.offset:
            first += 1
        last = bisect.bisect_left(parts, place.end, key=lambda p: p[0])
        return first, max(first, last)


def resolve_views(values: Sequence[Value], steps: Sequence[Step], where: str) -> list[Value]:
    """Values with the storage of the values that they are run-time views of. Raises `InvalidPteError` for a view of
    something else than a tensor."""
    resolved = list(values)
    for step in steps:
        if isinstance(step, KernelStep) and step.name in VIEW_NAMES:
            base = resolved[step.arguments[0]] if step.arguments else None
            view = resolved[step.writes[0]]
            if not isinstance(base, TensorValue) or not isinstance(view, TensorValue):
                raise InvalidPteError(f"{where}: {step.name} of a value that is no tensor")
            if not view.is_planned:
                place = replace(base.place, nbytes=view.nbytes) if base.place else None
                resolved[step.writes[0]] = replace(view, place=place, constant=base.constant)
    return resolved


def analyse(
    values: Sequence[Value],
    inputs: Sequence[int],
    outputs: Sequence[int],
    steps: Sequence[Step],
    contexts: Sequence[Hashable],
    where: str,
    as_stored: Collection[int] = (),
) -> Flow:
    """``contexts`` has the context of each delegate: a tensor can stay on the device only within one. ``as_stored`` are
    the delegates whose tensors have the byte order of the arenas; a tensor whose storage order differs from its
    dimensions' goes to and from these through the arenas.

    Raises `InvalidPteError` for a step that writes a constant.
    """
    for number, step in enumerate(steps):
        for index in _written(step):
            value = values[index]
            if isinstance(value, TensorValue) and value.constant is not None and not _is_view(step):
                raise InvalidPteError(f"{where}, instruction {number} writes value {index}, which is a constant")
    flow = Flow(linear=not any(isinstance(s, (JumpStep, MoveStep)) for s in steps))
    for number, step in enumerate(steps):
        if isinstance(step, DelegateStep):
            for position, index in enumerate(step.outputs):
                flow.writes[number, position] = Write(index, to_arena=not flow.linear)
            flow.sources[number] = (None,) * len(step.inputs)
    for number, index in enumerate(inputs):
        if isinstance(values[index], TensorValue):
            flow.writes[INPUT, number] = Write(index, to_arena=not flow.linear)
    flow.outputs = (None,) * len(outputs)
    if flow.linear:
        _Walk(values, steps, contexts, flow, as_stored).fill(inputs, outputs)
    return flow


class _Walk:
    """One pass over the steps in order."""

    def __init__(
        self,
        values: Sequence[Value],
        steps: Sequence[Step],
        contexts: Sequence[Hashable],
        flow: Flow,
        as_stored: Collection[int],
    ) -> None:
        self.values, self.steps, self.contexts, self.flow, self.as_stored = values, steps, contexts, flow, as_stored
        self.arenas = _Arenas()
        self.given: dict[int, int] = {}  #: maps a value to the numbers of the method's inputs that it is
        self.before: list[Place] = []  #: read before any write: the content left by the previous run

    def fill(self, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """Fill the flow: what each delegate's input and each output observes, and which writes some step reads in an arena."""
        for number, index in enumerate(inputs):
            self._put(index, (INPUT, number))
        self.given = {index: number for number, index in enumerate(inputs)}
        for number, step in enumerate(self.steps):
            if isinstance(step, DelegateStep):
                self.flow.sources[number] = tuple(self._for_delegate(index, step.delegate) for index in step.inputs)
                for position, index in enumerate(step.outputs):
                    self._put(index, (number, position))
            elif isinstance(step, KernelStep) and not _is_view(step):
                for index in self._tensors(step.arguments):
                    self._on_host(index)
                for index in self._tensors(step.writes):
                    self._put(index, None)
        found = []
        for index in outputs:
            who = self._exact(index)
            if who is None or (who[0] == INPUT and self.flow.writes[who].to_arena):
                self._on_host(index)
                who = None
            else:
                self.flow.writes[who].outputs += 1
            found.append(who)
        self.flow.outputs = tuple(found)
        for place in self.before:  # the next run reads the present content
            self._need(self.arenas.read(place))

    def _tensors(self, indices: Sequence[int]) -> list[int]:
        found: list[int] = []
        for index in indices:
            value = self.values[index] if index >= 0 else None
            if isinstance(value, ListValue) and value.tensors:
                found += self._tensors(value.items)
            elif isinstance(value, TensorValue):
                found.append(index)
        return found

    def _put(self, index: int, who: Writer | None) -> None:
        value = self.values[index]
        if isinstance(value, TensorValue) and value.place is not None:
            self.arenas.write(value.place, who)
            if index in self.given:  # the caller's array must not be written
                self.flow.writes[INPUT, self.given[index]].to_arena = True

    def _for_delegate(self, index: int, reader: int) -> Writer | None:
        who = self._exact(index)
        if who is not None and who[0] == INPUT:
            return who
        if who is not None:
            step = self.steps[who[0]]
            assert isinstance(step, DelegateStep)
            if self.contexts[step.delegate] == self.contexts[reader] and self._same_order(index, step.delegate, reader):
                self.flow.writes[who].on_device = True
                return who
        self._on_host(index)
        return None

    def _same_order(self, index: int, *delegates: int) -> bool:
        """Whether the value's elements have the same order in all of the delegates."""
        value = self.values[index]
        assert isinstance(value, TensorValue)
        return value.is_contiguous or not any(delegate in self.as_stored for delegate in delegates)

    def _exact(self, index: int) -> Writer | None:
        """The write of a delegate or the caller that this value equals as a whole."""
        value = self.values[index]
        if not isinstance(value, TensorValue) or value.place is None:
            return None
        parts = self.arenas.read(value.place)
        if len(parts) != 1 or parts[0][2] is None or parts[0][:2] != (value.place.offset, value.place.end):
            return None
        who = parts[0][2]
        written = self.values[self.flow.writes[who].value]
        assert isinstance(written, TensorValue)
        if written.index == value.index:
            return who
        same = written.place == value.place and written.dtype == value.dtype
        plain = written.is_contiguous and value.is_contiguous and written.is_static and value.is_static
        return who if same and plain else None

    def _on_host(self, index: int) -> None:
        value = self.values[index]
        if not isinstance(value, TensorValue) or value.place is None:
            return
        who = self._exact(index)
        if who is not None and who[0] == INPUT and self.flow.writes[who].value == index:
            return  # the caller's array itself
        if index in self.given:  # overwritten meanwhile, through another value
            self.flow.writes[INPUT, self.given[index]].to_arena = True
        parts = self.arenas.read(value.place)
        self._need(parts)
        if sum(min(e, value.place.end) - max(s, value.place.offset) for s, e, _ in parts) < value.place.nbytes:
            self.before.append(value.place)

    def _need(self, parts: Sequence[_Part]) -> None:
        for _, _, who in parts:
            if who is not None:
                self.flow.writes[who].to_arena = True


def _is_view(step: Step) -> bool:
    return isinstance(step, KernelStep) and step.name in VIEW_NAMES


def _written(step: Step) -> Sequence[int]:
    if isinstance(step, KernelStep):
        return step.writes
    return step.outputs if isinstance(step, DelegateStep) else ()
