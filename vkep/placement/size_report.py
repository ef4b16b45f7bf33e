"""What each dimension that a model leaves open is for a plan with sizes: open, open under conditions, or fixed, where and why."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from gpu_shared.capabilities import DeviceCapabilities
from vkep import dtypes
from vkep.graph.model import Dim, Model, Node
from vkep.ir.infer import Known
from vkep.ir.program import ValueSpec, declared_value
from vkep.passes.emit import Emitter
from vkep.placement.partition import lower
from vkep.sizes import Size, SizeError, Trace, clear_caches
from vkep.sizes.trace import MOST, NONZERO

_VKEP = Path(dtypes.__file__).parent
_SIZES = str(_VKEP / "sizes")
#: frames of vkep that are kept of a condition, the innermost first
_FRAMES = 3
#: every plan with sizes is for values from here on, so that this bound is no condition
_LEAST = 2
#: see `Condition.near`
_FAR = 16


@dataclass(frozen=True)
class Origin:
    """Where a condition comes from: the title of the operator (of several, where they are fused), and the lines of code, the
    innermost first."""

    node: str
    code: tuple[str, ...]


@dataclass(frozen=True)
class Condition:
    """A formula of the sizes' names that must hold, where it comes from, and why (of a size that is fixed, where known).
    ``near``: some sizes `_FAR` times as large or as small do not meet it; others are limits of memory and of counters."""

    text: str
    place: Origin
    why: str = ""
    near: bool = True

    def __str__(self) -> str:
        where = ": ".join(filter(None, [self.place.node, self.place.code[0] if self.place.code else ""]))
        return f"{self.text} ({'; '.join(filter(None, [self.why, where]))})"


@dataclass
class SizeState:
    """One dimension: its value while the model was planned, the range that the plan serves (``most`` None: any), and its
    further conditions."""

    name: str
    value: int
    least: int = 1
    most: int | None = None
    conditions: list[Condition] = field(default_factory=list)

    @property
    def state(self) -> str:
        """One of open, conditional and fixed."""
        if self.least == self.most:
            return "fixed"
        return "conditional" if any(c.near for c in self.conditions) else "open"

    def to_dict(self) -> dict[str, Any]:
        """JSON's form."""
        conditions = [
            {"condition": c.text, "near": c.near, "why": c.why, "node": c.place.node, "code": list(c.place.code)}
            for c in self.conditions
        ]
        return {
            "name": self.name,
            "value": self.value,
            "state": self.state,
            "least": self.least,
            "most": self.most,
            "conditions": conditions,
        }


class LocatedTrace(Trace):
    """A trace that notes where each of its conditions was asked for."""

    def __init__(self, general: bool = False, seen: Sequence[Sequence[int]] = ()) -> None:
        super().__init__(general, seen)
        self.where: list[Origin] = []  #: in the order of the conditions

    def _condition(self, *condition: Any) -> None:
        before = len(self.conditions)
        super()._condition(*condition)
        if len(self.conditions) > before:
            self.where.append(_place(traceback.walk_stack(None)))

    def named_conditions(self, names: Sequence[str]) -> list[Condition]:
        """The conditions, with names for the sizes."""
        holds, reasons = self.holds(), self.conditions.values()
        changes: tuple[Callable[[int], int], ...] = (lambda n: n * _FAR, lambda n: n // _FAR, lambda n: n + 1)
        moved = [
            [max(_LEAST, changed(size)) if k in chosen else size for k, size in enumerate(self.values)]
            for changed in changes
            for chosen in (range(self.symbols), *[(k,) for k in range(self.symbols)])
        ]
        failed = {text for sizes in moved for text in holds.failed(sizes)}
        texts = [
            f"{holds.text(result)} {relation} 0" for result, relation in zip(holds.results, self.relations, strict=True)
        ]
        return [
            Condition(_named(text, names), place, why, text in failed)
            for text, place, why in zip(texts, self.where, reasons, strict=True)
        ]


def _named(text: str, names: Sequence[str]) -> str:
    return re.sub(r"\bs(\d+)\b", lambda found: names[int(found[1])], text)


def _place(frames: Any) -> Origin:
    node, code = "", list[str]()
    for frame, line in frames:
        file = frame.f_code.co_filename
        if file.startswith(_SIZES) or file == __file__:
            continue
        if file.startswith(str(_VKEP)) and len(code) < _FRAMES:
            code.append(f"{Path(file).relative_to(_VKEP).as_posix()}:{line}")
        node = node or _subject(frame)
    return Origin(node, tuple(code))


def _subject(frame: FrameType) -> str:
    """The operator that a function lowers, or that a kernel is chosen for."""
    for value in (frame.f_locals.get(name) for name in ("node", "emitter", "target")):
        if isinstance(value, Node):
            return value.title
        if isinstance(value, Emitter):
            return value.label
    return ""


def size_states(model: Model, caps: DeviceCapabilities, sizes: Mapping[str, int]) -> list[SizeState]:
    """What each open dimension is for a plan that is made for ``sizes`` (by name: `size_name`), which serves any other size
    where its conditions hold. Raises what planning raises, and `KeyError` for a missing size."""
    names: dict[str, None] = {}
    for info in model.graph.inputs:
        opened = [size_name(info.name, k, dim) for k, dim in enumerate(info.shape or ()) if not isinstance(dim, int)]
        names.update(dict.fromkeys(opened))
    plain: dict[str, Condition] = {}
    while True:
        trace = LocatedTrace()
        symbols = {name: trace.symbol(sizes[name]) if name not in plain else sizes[name] for name in names}
        opened = [name for name in names if name not in plain]
        try:
            lower(
                model.graph.nodes,
                _known(model, symbols),
                [value.name for value in model.graph.outputs],
                model.opsets,
                caps,
                may_postpone=True,
                trace=trace,
            )
        except SizeError as error:  # an operator's function from outside takes the size for a plain number
            place = _place(reversed(list(traceback.walk_tb(error.__traceback__))))
            for k in error.symbols:
                name = opened[k]
                plain[name] = Condition(f"{name} == {sizes[name]}", place, "its code takes a plain number")
            continue
        finally:
            clear_caches()
        states = {
            name: SizeState(name, sizes[name], sizes[name], sizes[name], [condition])
            for name, condition in plain.items()
        }
        conditions = trace.named_conditions(opened)
        states.update((name, _state(name, sizes[name], k, trace, conditions)) for k, name in enumerate(opened))
        return [states[name] for name in names]


def _known(model: Model, symbols: Mapping[str, Any]) -> dict[str, Known]:
    known: dict[str, Known] = dict(model.graph.weights)
    for info in model.graph.inputs:
        dtype = dtypes.from_onnx(info.elem_type)
        if info.shape is None or dtype is None:
            declared = declared_value(info)
            if declared is not None:
                known[info.name] = declared
            continue
        shape = [d if isinstance(d, int) else symbols[size_name(info.name, k, d)] for k, d in enumerate(info.shape)]
        known[info.name] = ValueSpec(dtype, tuple(shape))
    return known


def size_name(name: str, axis: int, dim: Dim) -> str:
    """The name of an input's dimension: the model's, or the input's with the axis."""
    return dim if isinstance(dim, str) and dim else f"{name}[{axis}]"


def _state(name: str, value: int, number: int, trace: Trace, conditions: Sequence[Condition]) -> SizeState:
    """The state of the size ``number`` of the trace, whose conditions are ``conditions``."""
    low, high = trace.range_of(number)
    state = SizeState(name, value, max(low, 1) if value else low, None if high == MOST else high)
    for (relation, terms, const), condition in zip(trace.conditions, conditions, strict=True):
        if number not in trace.symbols_of(Size(trace, terms, const, 0)):
            continue
        sign = trace.alone(number, terms)
        if not sign or relation == NONZERO:
            state.conditions.append(condition)
        elif state.state == "fixed" or (-const * sign == state.least > _LEAST if sign > 0 else const == state.most):
            state.conditions.append(condition)  # of the bounds, the tightest
    return state
