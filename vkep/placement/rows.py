"""Proves that the rows of a model are independent: row i of each output depends on row i of the inputs alone.

Rows lie along axis 0 of the inputs. The nodes are placed with the number of rows as a size; then where each value has its rows
follows from the rule of its operator (`vkep.placement.row_rules`). An operator without a rule proves nothing. Shapes that are
computed from sizes are formulas, so a Reshape shows whether rows stay whole, and what the placement decided by sizes is a
condition of the proof.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpu_shared.capabilities import DeviceCapabilities
from vkep.dtypes import from_onnx
from vkep.errors import VkepError
from vkep.graph.model import Dim, Model, Node
from vkep.graph.weights import SizesWeight, Weight
from vkep.ir.infer import Known
from vkep.ir.program import ValueSpec
from vkep.placement.partition import place
from vkep.placement.row_rules import RULES, Mixes, NodeView, RowAxis, Value, same
from vkep.placement.steps import Placed
from vkep.sizes import Formulas, Trace, clear_caches
from vkep.sizes.trace import AT_LEAST

#: the number of rows while a model is placed
_ROWS = 7
#: numbers of rows for which the placement must decide as for `_ROWS`
_OTHER_ROWS = (1, 2, 11)
#: sizes to try for the other dimensions that a model leaves open
SAMPLE_SIZES = (16, 64, 224)
#: the inputs that may hold the number of rows as a size of the result
_SIZES: Mapping[str, tuple[int, ...]] = {
    "ConstantOfShape": (0,),
    **dict.fromkeys(("Expand", "Reshape", "Tile"), (1,)),
    "Resize": (1, 2, 3),
    "Slice": (1, 2),
}
_RANDOM = ("Bernoulli", "Multinomial", "Random")


@dataclass(frozen=True)
class RowProof:
    """Whether rows are independent (``reason`` is empty), or the operator for which that is not known."""

    reason: str
    #: the sizes that `conditions` are about, the rows first; a dimension without a name is (input, axis)
    symbols: tuple[object, ...] = ()
    conditions: Formulas | None = field(default=None, repr=False)

    def covers(self, model: Model, shapes: Mapping[str, Sequence[int]], most: int) -> bool:
        """Whether up to ``most`` rows of inputs with these shapes, whose first axis does not count, are independent."""
        if self.reason or self.conditions is None:
            return False
        sizes: dict[object, int] = {}
        for info in model.graph.inputs:
            for axis, dim in enumerate(info.shape or ()):
                size = shapes[info.name][axis]
                if axis and not isinstance(dim, int) and sizes.setdefault(_symbol(info.name, axis, dim), size) != size:
                    return False
        others = [sizes[symbol] for symbol in self.symbols[1:]]
        return all(self.conditions.hold([rows, *others]) for rows in range(1, most + 1))


class _Decisions(Trace):
    """Without the comparisons that only choose kernels, or check that sizes do not exceed them."""

    def _condition(self, relation: str, terms: Any, const: int, why: str = "") -> None:
        if not (self.lowering and relation == AT_LEAST):
            super()._condition(relation, terms, const, why)


def prove(
    model: Model,
    caps: DeviceCapabilities,
    shapes: Mapping[str, Sequence[int]] | None = None,
    size: int = SAMPLE_SIZES[0],
) -> RowProof:
    """The proof for sizes like those of ``shapes`` (by input), or with ``size`` for every open dimension but the rows."""
    graph, trace = model.graph, _Decisions(general=True)
    firsts = {info.shape[0] if info.shape else None for info in graph.inputs}
    rows = firsts.pop() if len(firsts) == 1 else None
    if not isinstance(rows, str):
        return RowProof("the first axis of all inputs is to be the same symbol")
    symbols: dict[object, Any] = {rows: trace.symbol(_ROWS)}
    known: dict[str, Known] = dict(graph.weights)
    for info in graph.inputs:
        dtype, shape = from_onnx(info.elem_type), []
        if dtype is None:
            return RowProof(f"input {info.name!r} is no tensor of numbers")
        for axis, dim in enumerate(info.shape or ()):
            symbol = _symbol(info.name, axis, dim)
            if axis and symbol == rows:
                return RowProof(f"input {info.name!r} has the number of rows on axis {axis} too")
            if not isinstance(dim, int) and symbol not in symbols:
                symbols[symbol] = trace.symbol(shapes[info.name][axis] if shapes else size)
            shape.append(dim if isinstance(dim, int) else symbols[symbol])
        known[info.name] = ValueSpec(dtype, tuple(shape))
    try:
        placed = place(graph.nodes, known, [info.name for info in graph.outputs], model.opsets, caps, trace)
        reason = _Rows(placed, trace, symbols[rows]).reason([info.name for info in graph.inputs])
    except VkepError as error:
        reason = str(error)
    except Exception as error:  # an operator that needs plain numbers
        reason = f"{type(error).__name__}: {error}"
    finally:
        clear_caches()
    conditions = trace.holds()
    others = trace.values[1:]
    fixed = [text for rows in _OTHER_ROWS for text in conditions.failed([rows, *others])]
    if fixed and not reason:
        reason = f"a decision depends on the number of rows, which is s0: {fixed[0]}"
    return RowProof(reason, tuple(symbols), conditions)


def independent(model: Model, caps: DeviceCapabilities) -> RowProof:
    """The first proof for one of `SAMPLE_SIZES`, or else the first reason."""
    proofs = []
    for size in SAMPLE_SIZES:
        proofs.append(prove(model, caps, size=size))
        if not proofs[-1].reason or len(proofs[-1].symbols) < 2:
            return proofs[-1]
    return proofs[0]


def _symbol(name: str, axis: int, dim: Dim) -> object:
    return dim if isinstance(dim, str) else (name, axis)


class _Rows:
    """Where the values of a placed graph have their rows."""

    def __init__(self, placed: Placed, trace: Trace, count: Any) -> None:
        self._placed, self._trace, self._count = placed, trace, count
        (self._symbol,) = trace.symbols_of(count)
        self._later = {id(p.node) for p in placed.placements if p.where in ("deferred", "control")}
        self._rows: dict[str, RowAxis | None] = {}
        self._mixed: dict[str, str] = {}  #: the reason, by value

    def reason(self, inputs: Sequence[str]) -> str:
        """Why rows are not independent as far as is known; empty where they are."""
        self._rows.update(dict.fromkeys(inputs, RowAxis(0)))
        for node in self._placed.placed:
            outputs = [name for name in node.outputs if name]
            if all(isinstance(self._placed.known.get(name), Weight) for name in outputs):
                continue  # folded
            before = next((self._mixed[name] for name in node.reads if name in self._mixed), "")
            try:
                if before:
                    raise Mixes(before)
                self._rows.update(zip(outputs, self._of(node), strict=True))
            except Mixes as why:
                self._mixed.update(dict.fromkeys(outputs, before or f"{node.title}: {why}"))
        for name in self._placed.outputs:
            if name in self._mixed:
                return self._mixed[name]
            value = self._placed.known.get(name)
            if isinstance(value, Weight) or self._rows.get(name) != RowAxis(0):
                return f"output {name!r} does not have the inputs' rows on axis 0"
        return ""

    def _of(self, node: Node) -> list[RowAxis | None]:
        """The rows of each result. Raises `Mixes`."""
        if id(node) in self._later or node.captures:
            raise Mixes("it is planned during a run")
        inputs = [self._value(name) if name else None for name in node.inputs]
        known = [self._placed.known.get(name) for name in node.outputs if name]
        if not all(isinstance(value, ValueSpec) for value in known):
            raise Mixes("the shape of its result is not known")
        results = [value.shape for value in known if isinstance(value, ValueSpec)]
        sizes = _SIZES.get(node.op_type, ()) if not node.domain else ()
        if any(v is not None and self._counts(v) and k not in sizes for k, v in enumerate(inputs)):
            raise Mixes("the number of rows is among its data")
        if not any(v is not None and (v.rows is not None or self._counts(v)) for v in inputs):
            if node.op_type.startswith(_RANDOM):
                raise Mixes("it draws random numbers")
            return self._checked(results, [None] * len(results))
        rule = RULES.get((node.domain, node.op_type))
        if rule is None:
            raise Mixes("nothing is known of how it treats rows")
        rows = rule(NodeView(node, inputs, results, self._count, self._depends))
        each = [rows] * len(node.outputs) if isinstance(rows, RowAxis) else rows
        return self._checked(results, [one for name, one in zip(node.outputs, each, strict=False) if name])

    def _value(self, name: str) -> Value:
        value = self._placed.known.get(name)
        if isinstance(value, Weight):
            return Value(tuple(value.shape), None, value)
        if not isinstance(value, ValueSpec):
            raise Mixes(f"the shape of {name!r} is not known")
        return Value(value.shape, self._rows[name])

    def _counts(self, value: Value) -> bool:
        """Whether a known value depends on the number of rows."""
        weight = value.weight
        return isinstance(weight, SizesWeight) and any(map(self._depends, weight.array().reshape(-1).tolist()))

    def _depends(self, size: Any) -> bool:
        return self._symbol in self._trace.symbols_of(size)

    def _checked(self, shapes: Sequence[Sequence[Any]], rows: Sequence[RowAxis | None]) -> list[RowAxis | None]:
        """The rows of results, of whose sizes that of the rows alone may depend on their number. Raises `Mixes`."""
        for shape, one in zip(shapes, rows, strict=True):
            for axis, size in enumerate(shape):
                if one is not None and axis == one.axis:
                    if not same(size, one.before * self._count * one.each):
                        raise Mixes("its result has another number of rows")
                elif self._depends(size):
                    raise Mixes("a size depends on the number of rows")
            if one is not None and not 0 <= one.axis < len(shape):
                raise Mixes("its result has no rows")
        return list(rows)
