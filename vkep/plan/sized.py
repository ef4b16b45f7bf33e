"""The numbers of a plan that depend on the sizes of a run, and the plan for given sizes.

A plan that was lowered with symbolic sizes (`vkep.sizes.Size`) is stored as a `Plan` for the current sizes, and a
`PlanSizes`: the places of numbers that depend on sizes, and their formulas. `instance` makes the plan for other sizes;
the device side writes the same numbers into its argument table.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vkep.plan.memory import Lifetime, live_peak, pack
from vkep.plan.records import Dispatch, Plan, Port, Relocation, Slot
from vkep.sizes import Formulas


@dataclass(frozen=True, slots=True)
class Buffer:
    """A temporary buffer of a plan: the index of the value that is its size in bytes, and the first and last group of
    dispatches that need it."""

    nbytes: int
    first: int
    last: int


@dataclass(frozen=True)
class PlanSizes:
    """Numbers of a plan by their place; each refers to one of ``values`` by its index.

    ``values`` computes them for the sizes of a run.
    """

    values: Formulas
    arguments: tuple[tuple[int, int, str, int], ...] = ()  #: dispatch, byte of its arguments, struct code, value
    grids: tuple[tuple[int, int, int], ...] = ()  #: dispatch, axis, value
    addends: tuple[tuple[int, int, int], ...] = ()  #: dispatch, relocation, value: the addend (of a buffer: within it)
    slots: tuple[tuple[int, int], ...] = ()  #: slot, value: its addend
    shapes: tuple[tuple[int, int, int], ...] = ()  #: port, axis, value
    #: fault (its index in `Plan.faults`), and the strings and values of its text
    faults: tuple[tuple[int, tuple[str | int, ...]], ...] = ()
    buffers: tuple[Buffer, ...] = ()
    places: tuple[
        tuple[int, int, int, int], ...
    ] = ()  #: dispatch, relocation, buffer, byte within it for the current sizes

    def lifetimes(self, values: Sequence[int]) -> list[Lifetime]:
        """The buffers' sizes and lifetimes."""
        return [Lifetime(values[b.nbytes], b.first, b.last) for b in self.buffers]


def instance(plan: Plan, sizes: PlanSizes, run: Sequence[int]) -> Plan:
    """The plan for the sizes of a run, in the order of the formulas' symbols. The ranges of dispatches, flops and bytes
    (for reports) are those of the current sizes."""
    values = sizes.values(run)
    lifetimes = sizes.lifetimes(values)
    offsets, slab = pack(lifetimes)
    arguments = [bytearray(d.arguments) for d in plan.dispatches]
    grids = [list(d.grid) for d in plan.dispatches]
    relocations = [list(d.relocations) for d in plan.dispatches]
    for k, byte, code, value in sizes.arguments:
        struct.pack_into("<" + code, arguments[k], byte, values[value])
    for k, axis, value in sizes.grids:
        grids[k][axis] = values[value]
    within = {(k, at): values[value] for k, at, value in sizes.addends}
    for (k, at), addend in within.items():
        relocations[k][at] = replace(relocations[k][at], addend=addend)
    for k, at, buffer, byte in sizes.places:
        relocations[k][at] = replace(relocations[k][at], addend=offsets[buffer] + within.get((k, at), byte))
    slots = list(plan.slots)
    for k, value in sizes.slots:
        slots[k] = Slot(slots[k].port, values[value])
    return replace(
        plan,
        ports=ports(plan, MovingPorts(plan, sizes).at(values)),
        faults=faults(plan, sizes, values),
        slots=tuple(slots),
        activation_bytes=slab,
        live_peak_bytes=live_peak(lifetimes),
        dispatches=tuple(
            [
                _dispatch(d, bytes(a), tuple(r), (g[0], g[1], g[2]))
                for d, a, r, g in zip(plan.dispatches, arguments, relocations, grids, strict=True)
            ]
        ),
    )


class MovingPorts:
    """The ports of a plan whose shapes depend on sizes; those of the caches of all layers do so in the same way."""

    def __init__(self, plan: Plan, sizes: PlanSizes) -> None:
        axes: dict[int, list[tuple[int, int]]] = {}
        for k, axis, value in sizes.shapes:
            axes.setdefault(k, []).append((axis, value))
        alike: dict[tuple[Any, ...], int] = {}
        self.plan = plan
        #: of each such port, the place of its kind among the kinds: shape for the current sizes; (axis, value) of axes; itemsize;
        #: dtype
        self.kind_of: dict[int, int] = {}
        for k, found in axes.items():
            port = plan.ports[k]
            key = (port.shape, tuple(found), port.nbytes // max(math.prod(port.shape), 1), port.dtype)
            self.kind_of[k] = alike.setdefault(key, len(alike))
        self._kinds = list(alike)
        self.dtypes = [dtype for *_, dtype in alike]  #: of each kind
        #: of the ports of each kind
        self.counts = list(Counter(self.kind_of.values()).values())

    def at(self, values: Sequence[int]) -> MovedPorts:
        """The ports for the values of `PlanSizes.values`."""
        found = []
        for shape, axes, itemsize, _ in self._kinds:
            dims = list(shape)
            for axis, value in axes:
                dims[axis] = values[value]
            found.append((tuple(dims), itemsize * math.prod(dims)))
        return MovedPorts(self, found)


class MovedPorts(Mapping[int, Port]):
    """The ports of a run whose shapes depend on sizes, by their places in `Plan.ports`. Each is made when it is asked for: most
    runs ask for none of a decoder's hundred."""

    __slots__ = ("_moving", "dtypes", "kinds")

    def __init__(self, moving: MovingPorts, kinds: Sequence[tuple[tuple[int, ...], int]]) -> None:
        self._moving, self.kinds = moving, kinds  #: shape and bytes of each kind
        self.dtypes = moving.dtypes  #: of each kind

    def __getitem__(self, k: int) -> Port:
        name, dtype, _, _, is_input = self._moving.plan.ports[k]
        shape, nbytes = self.kinds[self._moving.kind_of[k]]
        return Port(name, dtype, shape, nbytes, is_input)

    def __contains__(self, k: object) -> bool:
        return k in self._moving.kind_of

    def __iter__(self) -> Iterator[int]:
        return iter(self._moving.kind_of)

    def __len__(self) -> int:
        return len(self._moving.kind_of)

    @property
    def nbytes(self) -> int:
        """Of all of them."""
        return sum([count * nbytes for count, (_, nbytes) in zip(self._moving.counts, self.kinds, strict=True)])


def ports(plan: Plan, moved: Mapping[int, Port]) -> tuple[Port, ...]:
    """The plan's ports, of which some have moved."""
    return tuple([moved.get(k, port) for k, port in enumerate(plan.ports)])


def faults(plan: Plan, sizes: PlanSizes, values: Sequence[int]) -> tuple[tuple[int, str], ...]:
    """The plan's faults, with their texts for the values of `PlanSizes.values`."""
    found = list(plan.faults)
    for k, parts in sizes.faults:
        found[k] = (found[k][0], "".join([part if isinstance(part, str) else str(values[part]) for part in parts]))
    return tuple(found)


def _dispatch(
    dispatch: Dispatch, arguments: bytes, relocations: tuple[Relocation, ...], grid: tuple[int, int, int]
) -> Dispatch:
    return replace(dispatch, arguments=arguments, relocations=relocations, grid=grid)
