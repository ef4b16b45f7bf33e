"""`SizedPlans`: the plans of a graph, of which a few serve every size of its inputs.

The first signature is planned with its numbers. Once a dimension of an input differs from before, it becomes a symbolic
size (`vkep.sizes.Size`): the next plan is valid for every value of it that meets the conditions under which it was
lowered. The same holds for integers that a plan depends on by content (lengths, the target of a Reshape).
"""

from __future__ import annotations

import itertools
import logging
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple, Protocol

import numpy as np

from gpu_shared.errors import GpuError
from vkep import dtypes
from vkep.errors import VkepError
from vkep.graph.weights import ArrayWeight
from vkep.ir.infer import Known, may_be_sizes, sizes_weight
from vkep.ir.program import DeferredStep, KpStep, Over, Program, ValueSpec, VgfStep, element_axis
from vkep.session.execution.executor import Executable
from vkep.sizes import Formulas, Size, SizeError, Trace, clear_caches

logger = logging.getLogger("vkep.session")
#: number of signatures that are remembered to find out which sizes differ
_SEEN = 8
#: a plan for sizes that differ from a run's by more than this factor was tuned for other sizes: another one is made
_FAR = 16


class Lowered(Protocol):
    """A program that is not on the device yet."""

    @property
    def program(self) -> Program:
        """What was lowered."""

    def prepare(self) -> Executable:
        """Compile and upload. The executable's program may be another one, where the driver refuses a part of it."""


class MakePlan(Protocol):
    """Lowers a graph from the known properties of every value: constants, and a specification of each input, whose shapes may
    hold sizes of ``trace``. ``over``: the outputs that runs write to an input's memory.
    """

    def __call__(self, known: Mapping[str, Known], *, trace: Trace | None = None, over: Over = ()) -> Lowered: ...


class Opened(NamedTuple):
    """Sizes of a graph that are known to differ between runs before a second signature shows it."""

    #: the name of a size by input and axis; `element_axis`: an element of the input
    names: Mapping[tuple[str, int], str] = MappingProxyType({})
    #: whether the first plan has them: else only where some nodes wait for counts, whose plans would be made for each size
    at_once: bool = False


#: nothing is known
UNKNOWN = Opened()


class _Part(NamedTuple):
    """What one input contributes to `_Numbers`. Integers below 0 are sizes too (where ranges start), of a kind with the sign."""

    kind: object
    values: tuple[int, ...] = ()
    growing: tuple[int, ...] = ()  #: places among its values


class _Series:
    """Signatures that follow one another: the places whose numbers were not the same in all of them."""

    __slots__ = ("moved",)

    def __init__(self) -> None:
        self.moved: set[int] = set()


class _Numbers(NamedTuple):
    """The inputs of a plan: properties that must be equal (``kinds``), and the numbers that may differ."""

    kinds: tuple[object, ...]
    values: Sequence[int]
    growing: frozenset[int]  #: places of sizes of memory that has room for more: larger memory follows
    series: _Series | None = None  #: the signatures that these are among

    @classmethod
    def of(cls, parts: Sequence[_Part], over: Over) -> _Numbers:
        """The numbers of all inputs."""
        values = itertools.chain.from_iterable([part.values for part in parts])
        starts = itertools.accumulate([len(part.values) for part in parts], initial=0)
        growing = [at + k for at, part in zip(starts, parts, strict=False) for k in part.growing]
        return cls((over, *[part.kind for part in parts]), tuple(values), frozenset(growing))


class Signatures:
    """The numbers of one signature after another. Of an input that has not changed nothing is read: where the processor
    slept during the last run, each object that is read is fetched from memory."""

    def __init__(self) -> None:
        self._inputs: object = None
        self._marks: tuple[object, ...] = ()
        self._parts: list[_Part] = []
        self._starts: list[int] = []  # of the inputs' numbers among all
        self._values: list[int] = []
        self._series = _Series()
        self._numbers = _Numbers((), self._values, frozenset())
        self._dense: tuple[Sequence[object], list[int]] | None = (
            None  # types and ranks, where all inputs are dense tensors
        )

    def numbers(
        self, marks: tuple[object, ...], names: Sequence[str], known: Callable[[str], Known], over: Over
    ) -> _Numbers:
        """The numbers of the inputs ``names``, valid until the next call. Inputs with equal marks have equal properties."""
        same, self._inputs = self._inputs == (names, over), None  # until all is set
        dense = set(map(type, marks)) == {tuple} and set(map(len, marks)) == {2}  # type: ignore[arg-type]
        kinds, shapes = zip(*marks, strict=True) if dense else ((), ())
        dense = dense and type not in map(type, kinds)  # a list's mark begins with its type
        before, self._dense = self._dense, (kinds, list(map(len, shapes))) if dense else None
        if same and dense and before == self._dense:  # a decoder's caches have grown: the numbers are all that differs
            now = list(itertools.chain.from_iterable(shapes))
            self._series.moved.update(itertools.compress(range(len(now)), map(operator.ne, now, self._values)))
            self._values[:] = now
            self._inputs = (names, over)
            return self._numbers
        same = same and not (dense or before)
        if same:
            read: dict[object, tuple[_Part, list[int]]] = {}  # the caches of all layers change alike
            for k in itertools.compress(range(len(marks)), map(operator.ne, marks, self._marks)):
                change, last = (marks[k], self._marks[k]), self._parts[k]
                part, differ = read.get(change, (last, []))
                if not differ:
                    part = _part_of(known(names[k]))
                    if (part.kind, part.growing) != (last.kind, last.growing):
                        same = False
                        break
                    pairs = zip(part.values, last.values, strict=True)
                    differ = [at for at, (now, before) in enumerate(pairs) if now != before]
                    read[change] = part, differ
                self._parts[k] = part
                for at in differ:
                    self._values[self._starts[k] + at] = part.values[at]
                    self._series.moved.add(self._starts[k] + at)
        if not same:
            self._parts = [_part_of(known(name)) for name in names]
            if self._dense is not None and [len(part.values) for part in self._parts] != self._dense[1]:
                self._dense = None  # an array of objects has no numbers
            self._starts = list(itertools.accumulate([len(part.values) for part in self._parts], initial=0))
            kinds, values, growing, _ = _Numbers.of(self._parts, over)
            self._values, self._series = list(values), _Series()
            self._numbers = _Numbers(kinds, self._values, growing, self._series)
        self._marks, self._inputs = marks, (names, over)
        return self._numbers


class _Sized:
    """A plan with sizes: the numbers that it depends on, and the conditions on them."""

    def __init__(
        self, numbers: _Numbers, symbols: Sequence[Sequence[int]], conditions: Formulas, executable: Executable
    ) -> None:
        """``symbols``: for each size the positions in ``numbers`` that have it."""
        self.places = {place for group in symbols for place in group}
        self._fixed = _picked([k for k in range(len(numbers.values)) if k not in self.places])
        self.kinds, self._others = numbers.kinds, self._fixed(numbers.values)
        self._series: _Series | None = None  # one in which the other numbers were the plan's
        self._first = _picked([group[0] for group in symbols])
        self._same = [_picked(group) for group in symbols if len(group) > 1]
        self._conditions, self.executable = conditions, executable
        self._hints = self._first(numbers.values)
        self._tuned = [k for k, group in enumerate(symbols) if not numbers.growing.issuperset(group)]

    def sizes(self, numbers: _Numbers) -> tuple[int, ...] | None:
        """The sizes of a run with these numbers; None where the plan does not apply."""
        values, series = numbers.values, numbers.series
        if series is None or series is not self._series or not self.places.issuperset(series.moved):
            if numbers.kinds != self.kinds or self._fixed(values) != self._others:
                return None
            self._series = series
        if any(len({*same(values)}) > 1 for same in self._same):
            return None
        sizes = self._first(values)
        return sizes if self._conditions.hold(sizes) else None

    def is_near(self, numbers: _Numbers) -> bool:
        """Whether the plan was made for numbers like these, with other sizes that are not far from them: where it does not serve
        them, its conditions are why.
        """
        values = numbers.values
        return (
            numbers.kinds == self.kinds
            and self._fixed(values) == self._others
            and self.distance(self._first(values)) < math.log(_FAR)
        )

    def distance(self, sizes: Sequence[int]) -> float:
        """By what factor the sizes differ from those that the plan was made for, at most. Nothing is tuned for memory that has
        room for more.
        """
        hints = self._hints
        return max([abs(math.log(max(sizes[k], 1) / max(hints[k], 1))) for k in self._tuned], default=0.0)


class SizedPlans:
    """The executables of one graph for new signatures. Not thread-safe: one signature is planned at a time."""

    def __init__(self, make: MakePlan, constants: Mapping[str, Known], limit: int, opened: Opened = UNKNOWN) -> None:
        """``limit``: maximum number of plans with sizes."""
        self._make, self._constants, self._limit, self._opened = make, constants, limit, opened
        self._plans: list[_Sized] = []
        self._signatures = Signatures()
        self._seen: dict[tuple[object, ...], list[tuple[int, ...]]] = {}
        self._rigid: set[tuple[tuple[object, ...], int]] = set()  # positions whose values a plan needs
        self._on_cpu: set[str] | None = None  # of the first plan for one signature: the nodes there

    def executable(self, inputs: Mapping[str, Known], over: Over = ()) -> Executable:
        """The executable for a signature that is new: a plan with sizes that holds for it, or a new plan. ``over``: the outputs
        that runs write to an input's memory. Raises what planning raises.
        """
        numbers = numbers_of(inputs, over)
        near = self._nearest(numbers)
        if near is not None and self._is_near(near[0]):
            return near[1].executable.at(near[2])
        names = self._names(inputs)
        sized = len(self._plans) < self._limit
        made = self._with_sizes(inputs, numbers, over, names, self._opened.at_once) if sized else None
        if made is None and near is not None:
            return near[1].executable.at(near[2])
        if made is None:
            lowered = self._make({**self._constants, **inputs}, over=over)
            if names and sized and not self._plans and not self._opened.at_once and _waits(lowered.program):
                made = self._with_sizes(inputs, numbers, over, names, True)  # else each signature would plan what waits
            if made is None:
                made = lowered.prepare()
                self._on_cpu = _on_cpu(made.program) if self._on_cpu is None else self._on_cpu
        self._note(numbers)
        return made

    def match(
        self, marks: tuple[object, ...], names: Sequence[str], known: Callable[[str], Known], over: Over = ()
    ) -> Executable | None:
        """The executable of a plan with sizes that is valid for the inputs ``names``; None where `executable` would make
        another plan. ``known`` gives an input's properties; those of inputs with equal ``marks`` are equal."""
        near = self._nearest(self._signatures.numbers(marks, names, known, over))
        return near[1].executable.at(near[2]) if near is not None and self._is_near(near[0]) else None

    @property
    def count(self) -> int:
        """Number of plans with sizes."""
        return len(self._plans)

    def forget(self) -> None:
        """Release everything that planning needs: no further signature is planned."""
        self._constants, self._seen = {}, {}

    def close(self) -> None:
        """Close the plans with sizes."""
        plans, self._plans = self._plans, []
        for plan in plans:
            plan.executable.close()

    def _nearest(self, numbers: _Numbers) -> tuple[float, _Sized, tuple[int, ...]] | None:
        found = [(plan.distance(s), plan, s) for plan in self._plans if (s := plan.sizes(numbers)) is not None]
        return min(found, key=lambda entry: entry[0], default=None)

    def _is_near(self, distance: float) -> bool:
        """Whether a plan at this distance is used, instead of making another one."""
        return distance < math.log(_FAR) or len(self._plans) >= self._limit // 2

    def _note(self, numbers: _Numbers) -> None:
        seen = self._seen.setdefault(numbers.kinds, [])
        seen.append(tuple(numbers.values))
        del seen[:-_SEEN]

    def _names(self, inputs: Mapping[str, Known]) -> dict[int, str]:
        """The names of the sizes in `Opened`, by their places."""
        names, place = {}, 0
        for name, known in inputs.items():
            part = _part_of(known)
            if isinstance(known, ValueSpec):
                axes: Sequence[int] = range(len(known.shape))
            else:
                axes = [element_axis(k, len(part.values)) for k in range(len(part.values))]
            names.update({place + k: self._opened.names.get((name, axis), "") for k, axis in enumerate(axes)})
            place += len(part.values)
        return {at: name for at, name in names.items() if name}

    def _symbols(self, numbers: _Numbers, names: Mapping[int, str], at_once: bool) -> list[list[int]]:
        """The places whose number differs from before, or will; those together that have been the same in every signature. Places
        in ``names`` are sizes once another one is, or ``at_once``: those together that have the same name too."""
        seen = [*self._seen.get(numbers.kinds, ()), tuple(numbers.values)]
        groups: dict[tuple[str, tuple[int, ...]], list[int]] = {}
        moved = at_once
        for place, column in enumerate(zip(*seen, strict=True)):
            differs, grows = len(set(column)) > 1, place in numbers.growing
            rigid = numbers.values[place] < 2 or (numbers.kinds, place) in self._rigid
            if (differs or grows or place in names) and not rigid:
                name = names.get(place, "") if at_once or not (differs or grows) else ""
                groups.setdefault((name, column), []).append(place)
                moved |= differs and not grows
        return list(groups.values()) if moved else []

    def _with_sizes(
        self, inputs: Mapping[str, Known], numbers: _Numbers, over: Over, names: Mapping[int, str], at_once: bool
    ) -> Executable | None:
        """A new plan with symbolic sizes, those in ``names`` among them; None where no number changes, or lowering needs their
        values. Where it needs one that has not changed yet, the plan keeps that one."""
        symbols = self._symbols(numbers, names, at_once)
        fewer = symbols if at_once else self._symbols(numbers, {}, False)
        made = self._planned(inputs, numbers, over, symbols, at_once, symbols == fewer)
        return made if made is not None or symbols == fewer else self._planned(inputs, numbers, over, fewer, False)

    def _planned(
        self,
        inputs: Mapping[str, Known],
        numbers: _Numbers,
        over: Over,
        symbols: Sequence[Sequence[int]],
        at_once: bool,
        final: bool = True,
    ) -> Executable | None:
        """A new plan with a size for each group of places; None where lowering needs values of them. ``final``: such places are
        not tried again."""
        if all(numbers.growing.issuperset(group) for group in symbols):
            return None
        seen = [[values[group[0]] for group in symbols] for values in self._seen.get(numbers.kinds, ())]
        trace = Trace(at_once or any(plan.is_near(numbers) for plan in self._plans), seen)
        sizes = {
            place: size for group in symbols for size in [trace.symbol(numbers.values[group[0]])] for place in group
        }
        try:
            lowered = self._make({**self._constants, **with_sizes(inputs, sizes)}, trace=trace, over=over)
        except (VkepError, GpuError):  # planning this signature alone reports its error
            return None
        except SizeError as error:  # an operator's function from outside takes the size for a plain number
            logger.info("one plan does not serve every size: %s", str(error), exc_info=True)
            others = [group for k, group in enumerate(symbols) if k not in error.symbols]
            return self._planned(inputs, numbers, over, others, at_once, final)
        except Exception:  # an operator that needs concrete numbers
            logger.debug("lowering with sizes failed; this signature is planned alone", exc_info=True)
            self._rigid.update((numbers.kinds, place) for place in sizes if final)
            return None
        finally:
            clear_caches()
        program = lowered.program
        fixed = trace.fixed_symbols()
        # a place that is a size of another plan is fixed for this value alone: a buffer that is full
        free = {place for plan in self._plans if plan.kinds == numbers.kinds for place in plan.places}
        # nor one that has not changed yet: what it is compared with may change as well (a past, and a total that follows it)
        free.update(
            place
            for place in sizes
            if {seen[place] for seen in self._seen.get(numbers.kinds, ())} <= {numbers.values[place]}
        )
        self._rigid.update((numbers.kinds, place) for k in fixed for place in symbols[k] if final and place not in free)
        more = _on_cpu(program) - (self._on_cpu or set())
        if program.conditions is None or len(fixed) == len(symbols) or more or not _takes_sizes(program):
            logger.debug(
                "a plan with sizes is not kept: sizes %s of %s are fixed, %s run on the CPU", fixed, symbols, more
            )
            # nodes on the CPU may be there for every size: only a plan for one signature tells
            rigid = final and ((more and self._on_cpu is not None) or not _takes_sizes(program))
            self._rigid.update((numbers.kinds, place) for place in sizes if rigid)
            return None
        try:
            parent = lowered.prepare()
        except (VkepError, GpuError):
            return None
        plan = _Sized(numbers, symbols, program.conditions, parent)
        self._plans.append(plan)
        return parent.at([numbers.values[group[0]] for group in symbols])


def numbers_of(inputs: Mapping[str, Known], over: Over = ()) -> _Numbers:
    """The numbers of all inputs, in order, and the rest of their signature."""
    return _Numbers.of([_part_of(known) for known in inputs.values()], over)


def _part_of(known: Known) -> _Part:
    if isinstance(known, ValueSpec):
        shape, capacity = known.shape, known.capacity
        growing = [len(shape) + k for k, (size, most) in enumerate(zip(shape, capacity, strict=False)) if size != most]
        return _Part((known.dtype.name, len(shape), len(capacity)), shape + capacity, tuple(growing))
    if isinstance(known, ArrayWeight):
        array = known.array()
        if _is_small(array):
            numbers = array.reshape(-1).tolist()
            return _Part((array.dtype, array.shape, tuple([n < 0 for n in numbers])), tuple(map(abs, numbers)))
        return _Part((array.dtype, array.shape, array.tobytes()))
    return _Part(known)


def _picked(places: Sequence[int]) -> Callable[[Sequence[int]], tuple[int, ...]]:
    """A function that takes the values at these places."""
    if len(places) > 1:
        return operator.itemgetter(*places)
    return (lambda values: (values[places[0]],)) if places else (lambda values: ())


def with_sizes(inputs: Mapping[str, Known], sizes: Mapping[int, int | Size]) -> dict[str, Known]:
    """The inputs with sizes at the positions (of `numbers_of`) that have one."""
    made: dict[str, Known] = {}
    place = 0
    for name, known in inputs.items():
        made[name] = known
        if isinstance(known, ValueSpec):
            dims = [sizes.get(place + axis, dim) for axis, dim in enumerate(known.shape + known.capacity)]
            rank = len(known.shape)
            made[name] = replace(known, shape=tuple(dims[:rank]), capacity=tuple(dims[rank:]))  # type: ignore[arg-type]
            place += len(dims)
        elif isinstance(known, ArrayWeight) and _is_small(known.array()):
            array = known.array()
            plain = enumerate(array.reshape(-1).tolist())
            numbers = [-sizes.get(place + k, -n) if n < 0 else sizes.get(place + k, n) for k, n in plain]
            elem_type = dtypes.from_numpy(array.dtype).onnx
            made[name] = sizes_weight(name, numbers if array.shape else numbers[0], array.shape, elem_type)
            place += len(numbers)
    return made


def _is_small(array: np.ndarray) -> bool:
    return may_be_sizes(dtypes.from_numpy(array.dtype), array.size)


def _on_cpu(program: Program) -> set[str]:
    """The nodes of a program that run there: a plan with sizes must not have more of them."""
    return {p.node.title for p in program.placements if p.where == "cpu"}


def _waits(program: Program) -> bool:
    return any(isinstance(step, DeferredStep) for step in program.steps)


def _takes_sizes(program: Program) -> bool:
    """Whether all steps run at any size: a data graph is compiled for fixed shapes."""
    return not any(isinstance(step, (VgfStep, KpStep)) for step in program.steps)
