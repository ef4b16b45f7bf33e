"""Lowering for one signature with the choices of a lowering with sizes, so that their plans can be compared.

`Choices.recorded` notes what every function that only prefers (`vkep.sizes.at_hand` and its kind) was asked and answered,
`Choices.replayed` gives the same answers again, and fails where lowering asks something else.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from types import FunctionType
from typing import Any

import pytest

from gpu_shared.capabilities import DeviceCapabilities
from vkep import sizes
from vkep.passes import emit
from vkep.plan.records import Dispatch, Plan, Space
from vkep.plan.schedule import schedule
from vkep.sizes import Formulas, Real, Size, Trace, at_hand, is_size

_PREFER = (
    sizes.divides,
    sizes.matches,
    sizes.power_of_two_in,
    sizes.record_at_hand,
    sizes.room_for,
    sizes.serves_others,
    sizes.stays_few,
)
_AT_HAND = at_hand(lambda: None).__code__


@dataclasses.dataclass
class Choices:
    """Questions in their order: the function, its arguments, its answer. ``trace``: of the lowering with sizes."""

    trace: Trace
    asked: list[tuple[str, Any, Any]] = dataclasses.field(default_factory=list)

    @contextlib.contextmanager
    def recorded(self) -> Iterator[None]:
        """While a lowering with sizes runs."""
        within = 0

        def record(name: str, function: Callable[..., Any], args: Any) -> Any:
            nonlocal within
            within += 1
            try:
                answer = function(*args[0], **args[1])
            finally:
                within -= 1
            if not within:
                self.asked.append((name, () if name == "schedule" else args, answer))
            return answer

        with _intercepted(record):
            yield

    @functools.cached_property
    def _read(self) -> tuple[Formulas, list[tuple[str, Any, Any, bool]]]:
        """Formulas for the sizes that were asked about, and the questions as `_mapped` reads them, with whether they have one."""
        found: list[Size | Real] = []
        questions = []

        def note(size: Size | Real) -> Size | Real:
            found.append(size)
            return size

        for name, args, answer in self.asked:
            before = len(found)
            mapped = _mapped(args, note)
            questions.append((name, mapped, answer, len(found) > before))
        return self.trace.formulas(found), questions

    @contextlib.contextmanager
    def replayed(self, at: Sequence[int]) -> Iterator[None]:
        """While a lowering for these sizes runs."""
        formulas, questions = self._read
        values = iter(formulas(at))
        asked = iter(
            [
                (name, _mapped(args, lambda _: next(values)) if sized else args, answer)
                for name, args, answer, sized in questions
            ]
        )

        def replay(name: str, function: Callable[..., Any], args: Any) -> Any:
            expected, given, answer = next(asked, ("nothing", None, None))
            given_here = () if name == "schedule" else _mapped(args, lambda size: size)
            assert (name, given_here) == (expected, given), "lowering asks something else"
            return answer

        with _intercepted(replay):
            yield
        assert next(asked, None) is None, "lowering asks less"


@contextlib.contextmanager
def _intercepted(ask: Callable[[str, Callable[..., Any], Any], Any]) -> Iterator[None]:
    """Every function that prefers asks ``ask``; nothing is kept from one call to another, and threads are none."""
    keep, prefer = _places(len(sys.modules))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(emit, "Threads", _Serial)
        asking = [(module, name, value, _asking(value, ask)) for module, name, value in prefer]
        try:
            for module, name, _, other in (*keep, *asking):
                setattr(module, name, other)
            yield
        finally:
            for module, name, value, _ in (*keep, *asking):
                setattr(module, name, value)


@functools.cache
def _places(_modules: int) -> tuple[list[tuple[Any, str, Any, Any]], list[tuple[Any, str, Any]]]:
    """Where modules have functions that keep results, with functions that do not, and functions that prefer. As long as no module
    is imported they stay: looking for them takes 10 ms.
    """
    keep, prefer = [], [(emit, "schedule", schedule)]
    for module in [m for name, m in sys.modules.items() if name.startswith("vkep.") and m is not None]:
        if module.__name__.startswith("vkep.sizes"):
            continue
        for name, value in vars(module).items():
            if isinstance(value, functools._lru_cache_wrapper):
                keep.append((module, name, value, _plain(value.__wrapped__)))
            elif isinstance(value, FunctionType) and (value in _PREFER or value.__code__ is _AT_HAND):
                prefer.append((module, name, value))
    return keep, prefer


def _asking(function: Callable[..., Any], ask: Callable[..., Any]) -> Callable[..., Any]:
    name = function.__name__
    return lambda *args, **kwargs: ask(name, function, (args, kwargs))


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call


class _Serial:
    """Stands for a pool of threads."""

    def __init__(self, workers: int) -> None:
        pass

    def __enter__(self) -> _Serial:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def map(self, function: Callable[..., Any], *args: Any) -> Iterator[Any]:
        return map(function, *args)


_AS_IT_IS = frozenset({int, str, float, bool, bytes, type(None), frozenset, DeviceCapabilities})


def _mapped(value: Any, size: Callable[[Size | Real], Any]) -> Any:
    """A structure of arguments as tuples, with something in place of its sizes, and of functions their names."""
    if type(value) in _AS_IT_IS:
        return value
    if is_size(value):
        return size(value)
    if isinstance(value, (tuple, list)):
        return tuple([v if type(v) in _AS_IT_IS else _mapped(v, size) for v in value])
    if isinstance(value, dict):
        return {k: _mapped(v, size) for k, v in value.items()}
    read = _reader(value.__class__)
    if read is not None:
        return (type(value).__name__, *[v if type(v) in _AS_IT_IS else _mapped(v, size) for v in read(value)])
    return getattr(value, "__name__", value) if callable(value) else value


@functools.cache
def _reader(kind: Any) -> Callable[[Any], Iterable[Any]] | None:
    """A function that reads the fields of a dataclass; None of another class."""
    if not dataclasses.is_dataclass(kind):
        return None
    names = [f.name for f in dataclasses.fields(kind)]
    return attrgetter(*names) if len(names) > 1 else lambda value: [getattr(value, name) for name in names]


# ---- what plans have in common


def compared(plan: Plan) -> list[Any]:
    """A plan as it is compared: what an operand, an argument or a grid is, wherever it lies.

    Left out: whether arguments are push constants (a plan with sizes has those that move in memory), and the ranges, flops and
    bytes of reports.
    """
    told: list[Any] = [plan.ports, plan.activation_bytes, plan.live_peak_bytes, plan.faults]
    return [*told, *[_dispatch(plan, dispatch) for dispatch in plan.dispatches]]


def _dispatch(plan: Plan, dispatch: Dispatch) -> Any:
    pipeline = plan.pipelines[dispatch.pipeline]
    places = []
    for r in dispatch.relocations:
        where: Any = r.index
        if r.space is Space.CONSTANT:
            where = plan.constants[r.index].key
        elif r.space is Space.PORT:
            where = plan.slots[r.index]
        places.append((r.offset, r.space, where, r.addend))
    return (
        pipeline.shader,
        pipeline.spec,
        pipeline.subgroup_size,
        dispatch.arguments,
        places,
        dispatch.grid,
        dispatch.barrier,
        dispatch.label,
        dispatch.candidate,
    )
