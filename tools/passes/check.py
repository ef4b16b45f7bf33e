"""Interprets the operations of each island before its first pass and after each one, on random inputs."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import numpy as np

from tools.passes.bound import bound
from tools.passes.host_memory import HostMemory, InvalidAccess
from tools.passes.interpreter import Interpreter
from tools.passes.order import checked_size, misordered
from vkep.errors import VkepError
from vkep.ir import expr as ex
from vkep.ir.ops import Op, Pointwise, reads
from vkep.ir.tensor import Storage, Tensor
from vkep.kernels.kernel import KernelCall
from vkep.kernels.problem import NoReference
from vkep.passes import emit, pipeline
from vkep.passes.emit import _accesses, _PlanLayout
from vkep.passes.pipeline import Pass
from vkep.passes.rewrite import Goal

#: the names of the state before the first pass, and of what follows the last one
LOWERING, EMISSION = "lowering", "emission"
#: relative to an element and to the greatest one: constants of problems may be rounded to float32
_CLOSE, _OF_GREATEST = 1e-5, 1e-6
#: where an expression rounds to a narrower type, which a fused operation may not do
_ROUNDED = {"as_float16": 2.0**-9, "as_bfloat16": 2.0**-6}
#: of expected results, which were computed in float32 or rounded
_EXPECTED, _AS_EXPECTED = 1e-3, {"float16": 2.0**-8, "bfloat16": 2.0**-5}

Inputs = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Difference:
    """A pass that changes a result, or makes an operation that breaks the rules of memory."""

    name: str
    what: str
    touched: tuple[str, ...]  #: the operations that the pass made

    def __str__(self) -> str:
        return "\n".join([f"{self.name}: {self.what}", *(f"    {op}" for op in self.touched)])


@dataclass
class Report:
    """The result of a check: what was interpreted, what could not be, and the differences."""

    islands: int = 0
    passes: int = 0  #: passes that changed operations
    refused: int = 0  #: islands whose data breaks a specification, of which only the faults are compared
    compared: int = 0  #: results that were compared with expected ones
    differences: list[Difference] = field(default_factory=list)
    not_interpreted: Counter[str] = field(default_factory=Counter)


@dataclass
class _State:
    """The results of interpreting an island's operations."""

    results: list[np.ndarray]
    faults: set[tuple[str, str]]


class _Watch:
    """Interprets one island after another, as its passes run."""

    def __init__(
        self, inputs: Inputs, seed: int, expected: Inputs | None = None, allowed: Inputs | None = None
    ) -> None:
        self.report = Report()
        self._inputs, self._seed, self._expected, self._allowed = inputs, seed, expected or {}, allowed or {}
        self._given: dict[int, tuple[Tensor, np.ndarray]] = {}
        self._constants: dict[Hashable, HostMemory] = {}
        self._storages: dict[Storage, Storage] = {}  #: those of the island with numbers in place of sizes
        self._before: _State | None = None
        self._texts: Counter[str] = Counter()
        self._rtol = _CLOSE  #: of the widest rounding in any expression of the island so far

    def begin(self, ops: list[Op], goal: Goal) -> list[Op]:
        """Interpret the operations of an island before its passes."""
        self._storages = {}
        given, (ops, goal) = ops, bound((ops, goal), None, self._storages)
        self.report.islands += 1
        self._constants, self._texts, self._rtol = {}, Counter(_described(ops)), _tolerance(ops)
        for integers in (None, 1, 0):  # those that no check refuses
            self._given = {}
            for view in (t for op in ops for t in reads(op)):
                if view.storage.port is not None and view.storage.port not in self._given:
                    self._given[view.storage.port] = self._input(view, integers)
            self._before = self._interpreted(LOWERING, ops, goal, shares=False, touched=())
            if self._before is None or not self._before.faults:
                break
        else:
            self.report.refused += 1
        if self._before is not None and self._inputs.keys() >= {t.storage.label for t, _ in self._given.values()}:
            self._compare_with_expected(ops, goal, self._before)
        return given

    def _compare_with_expected(self, ops: list[Op], goal: Goal, state: _State) -> None:
        for made, t in zip(state.results, goal.results, strict=True):
            expected = self._expected.get(t.storage.label)
            if expected is None or expected.size != made.size:
                continue
            self.report.compared += 1
            was = np.ma.array(_numbers(expected, t).reshape(made.shape), mask=np.ma.getmaskarray(made))
            now = np.ma.array(_numbers(np.ma.getdata(made), t), mask=np.ma.getmaskarray(made))
            rtol = max(self._rtol, _AS_EXPECTED.get(t.dtype.name, _EXPECTED))
            if t.dtype.kind in ("int", "uint") and "round" in _names(ops):  # a tie of float32 is none of float64
                near = np.abs(was - now) <= 1
                now[near] = was[near]
            if (error := self._allowed.get(t.storage.label)) is not None:
                near = np.abs(was - now) <= error.reshape(was.shape)
                now[near] = was[near]
            what = _difference(_State([was], set()), _State([now], set()), [t], rtol)
            if what:
                self._failed(LOWERING, what, _described(ops))
                return

    def after(self, step: Pass, ops: list[Op], goal: Goal) -> None:
        """Interpret the operations after a pass, and compare with those before it."""
        ops, goal = bound((ops, goal), None, self._storages)
        texts = Counter(_described(ops))
        touched, self._texts = tuple(texts - self._texts), texts
        if self._before is None or not (touched or step.shares):
            return
        self.report.passes += 1
        made = self._interpreted(step.name, ops, goal, step.shares, touched)
        if made is None:
            return
        self._rtol = max(self._rtol, _tolerance(ops))
        what = _difference(self._before, made, goal.results, self._rtol)
        if what:
            self._failed(step.name, what, touched)

    def refused(self, step: Pass, error: VkepError) -> None:
        """Note an error of a pass."""
        self._failed(step.name, f"raises {type(error).__name__}: {error}", ())

    def emitted(
        self, layout: _PlanLayout, calls: Sequence[tuple[KernelCall, str]], shared: Mapping[int, int], is_sized: bool
    ) -> None:
        """Check the order and the memory of an island's dispatches."""
        if is_sized or not checked_size(calls):
            self.report.not_interpreted["the order of a plan with sizes, or with large buffers"] += 1
            return
        groups = dict(zip([id(call) for call, _ in layout.calls], layout.groups, strict=True))
        accesses = [_accesses(call, shared) for call, _ in calls]
        what = misordered(
            [label for _, label in calls], accesses, [groups[id(call)] for call, _ in calls], layout.offsets
        )
        if what:
            self._failed(EMISSION, what, ())

    def _failed(self, name: str, what: str, touched: Sequence[str]) -> None:
        self.report.differences.append(Difference(name, what, tuple(touched)))
        self._before = None  # the first pass is the one at fault

    def _interpreted(self, name: str, ops: list[Op], goal: Goal, shares: bool, touched: Sequence[str]) -> _State | None:
        host = Interpreter(goal.shared if shares else {}, self._constants)
        try:
            for view, values in self._given.values():
                host.put(view, values)
            host.run(ops)
            return _State([host.read(t) for t in goal.results], host.faults)
        except InvalidAccess as error:
            self._failed(name, str(error), touched)
        except NoReference as reason:
            self.report.not_interpreted[str(reason)] += 1
            self._before = None
        return None

    def _input(self, view: Tensor, integers: int | None) -> tuple[Tensor, np.ndarray]:
        """The whole of an input that an operation reads as ``view``, and its values; ``integers``: the value of all integers."""
        storage = view.storage
        whole = Tensor.contiguous(view.dtype, (int(storage.nbytes) // view.dtype.itemsize,), storage)
        known = self._inputs.get(storage.label)
        if known is not None and known.size == whole.size:
            flat = np.ascontiguousarray(known).reshape(-1)
            return whole, flat.view(np.uint8) if view.dtype.kind == "bits" else flat
        if integers is not None and view.dtype.kind in ("int", "uint"):
            return whole, np.full(whole.shape, integers)
        seed = [self._seed, zlib.crc32(storage.label.encode())]
        return whole, random_values(np.random.default_rng(seed), whole)


def random_values(rng: np.random.Generator, like: Tensor) -> np.ndarray:
    """Values that most operations take: floats around 0, small integers, codes of finite floats."""
    kind = like.dtype.kind
    if kind == "float":
        return rng.standard_normal(like.shape).astype(np.float16)  # the values of each type
    if kind == "bool":
        return rng.integers(0, 2, like.shape).astype(bool)
    if kind == "bits":
        return rng.integers(0, 1 << min(like.dtype.bits - 1, 6), like.shape)
    high = min(1 << (like.dtype.bits - (kind == "int")), 4)
    return rng.integers(0, high, like.shape)


@contextmanager
def watched(
    inputs: Inputs | None = None, seed: int = 0, expected: Inputs | None = None, allowed: Inputs | None = None
) -> Iterator[Report]:
    """Check the passes of all islands that are lowered in the ``with`` block. ``inputs``: values by the names of ports; others
    are random. ``expected``: results, which those of the operations before the first pass are compared with; ``allowed``: the
    absolute errors of their elements that rounding explains, where they are known."""
    watch = _Watch(inputs or {}, seed, expected, allowed)

    def observed(step: Pass) -> Pass:
        def run(ops: list[Op], goal: Goal) -> list[Op]:
            try:
                made = step.run(ops, goal)
            except VkepError as error:  # no model is refused once its nodes were claimed
                watch.refused(step, error)
                raise
            watch.after(step, made, goal)
            return made

        return replace(step, run=run)

    class Layout(_PlanLayout):
        def __init__(self, calls: Any, ports: Any, faults: Any, trace: Any, piece: Any, shared: Any) -> None:
            super().__init__(calls, ports, faults, trace, piece, shared)
            watch.emitted(self, calls, shared, trace is not None)

    passes = (Pass(LOWERING, watch.begin), *map(observed, pipeline.PASSES))
    with mock.patch.object(pipeline, "PASSES", passes), mock.patch.object(emit, "_PlanLayout", Layout):
        yield watch.report


@contextmanager
def islands() -> Iterator[list[tuple[list[Op], Goal]]]:
    """The operations after the last pass, and the goal, of each island that is lowered in the ``with`` block."""
    found: list[tuple[list[Op], Goal]] = []

    def note(ops: list[Op], goal: Goal) -> list[Op]:
        found.append((ops, goal))
        return ops

    with mock.patch.object(pipeline, "PASSES", (*pipeline.PASSES, Pass("noted", note))):
        yield found


def differing(
    one: tuple[list[Op], Goal], other: tuple[list[Op], Goal], at: Sequence[int], inputs: Inputs | None = None
) -> str:
    """How the results of an island with sizes, at the sizes ``at``, differ from those of one that was lowered for these sizes
    alone; "" where they do not. ``inputs`` as for `watched`."""
    states, rtol = [], _CLOSE
    for ops, goal in (bound(one, at), other):
        watch = _Watch(inputs or {}, 0)
        watch.begin(ops, goal)
        if watch._before is None:
            return str(watch.report.differences or watch.report.not_interpreted)
        by_name = {t.storage.label: r for t, r in zip(goal.results, watch._before.results, strict=True)}
        states.append(_State([by_name[t.storage.label] for t in other[1].results], watch._before.faults))
        rtol = max(rtol, _tolerance(ops))
    return _difference(states[1], states[0], other[1].results, rtol)


def _numbers(values: np.ndarray, like: Tensor) -> np.ndarray:
    """Elements in 64 bits; 8-bit and 4-bit floats, of which zero has two codes, as floats."""
    kind = like.dtype.kind
    if kind == "bits":
        values = np.ascontiguousarray(values).view(like.dtype.numpy)
    return values.astype({"bool": np.bool_, "int": np.int64, "uint": np.int64}.get(kind, np.float64))


def _tolerance(ops: Iterable[Op]) -> float:
    names = _names(ops)
    return max([_CLOSE, *(rtol for name, rtol in _ROUNDED.items() if name in names)])


def _names(ops: Iterable[Op]) -> set[str]:
    """The names of all operations in expressions."""
    names: set[str] = set()
    for op in ops:
        expr = op.expr if isinstance(op, Pointwise) else op.epilogue
        if expr is not None:
            names.update(node.op for node in _nodes(expr))
    return names


def _nodes(expr: ex.Expr) -> Iterator[ex.Expr]:
    done: dict[int, bool] = {}
    for node in ex.remaining(expr, done):
        done[id(node)] = True
        yield node


def _difference(before: _State, after: _State, results: Sequence[Tensor], rtol: float) -> str:
    """How results differ; "" where they do not. A run that has a fault has no results."""
    compared = zip(before.results, after.results, results, strict=True) if not before.faults else ()
    for was, now, t in compared:
        where = np.ma.getmaskarray(was) != np.ma.getmaskarray(now)
        kept = ~np.ma.getmaskarray(was)
        was, now = np.ma.getdata(was), np.ma.getdata(now)
        if was.dtype.kind == "f":
            finite = np.abs(was[np.isfinite(was)])
            atol = rtol * _OF_GREATEST / _CLOSE * float(finite.max(initial=0.0))
            where = where | kept & ~np.isclose(was, now, rtol, atol, equal_nan=True)
        else:
            where = where | kept & (was != now)
        if where.any():
            at = tuple(int(places[0]) for places in np.nonzero(where))
            count = int(where.sum())
            return (
                f"{t.storage.label!r}: {count} of {where.size} elements differ, as {list(at)}: {was[at]} is {now[at]}"
            )
    if before.faults != after.faults:
        lost, new = sorted(before.faults - after.faults), sorted(after.faults - before.faults)
        return f"faults that are no longer reported: {lost}; new ones: {new}"
    return ""


def _described(ops: Sequence[Op]) -> list[str]:
    """Each operation as a line; storages are numbered in the order in which operations are first met."""
    numbers: dict[Storage, str] = {}

    def named(t: Tensor) -> str:
        storage = t.storage
        if storage not in numbers:
            kind = "weight" if storage.weight is not None else "port" if storage.port is not None else "buffer"
            numbers[storage] = f"{kind} {storage.label or id(storage) % 10**6}"
        dense = "" if t.is_contiguous else f" strides {list(map(int, t.strides))}"
        offset = f" +{int(t.offset)}" if t.offset else ""
        return f"{numbers[storage]} {t.dtype}{list(map(int, t.shape))}{dense}{offset}"

    lines = []
    for op in ops:
        outputs = ", ".join(map(named, op.outputs))
        label = " + ".join(dict.fromkeys(op.labels)) or "copy"
        if isinstance(op, Pointwise):
            lines.append(f"{label}: {outputs} = {written(op.expr, named)}")
        else:
            more = f"; epilogue {written(op.epilogue, named)}" if op.epilogue is not None else ""
            lines.append(f"{label}: {outputs} = {op.problem}({', '.join(map(named, op.inputs))}){more}")
    return lines


def written(expr: ex.Expr, named: Callable[[Tensor], str], longest: int = 400) -> str:
    """An expression in the notation of calls, cut where it is long."""
    texts: dict[int, str] = {}
    for node in ex.remaining(expr, texts):
        if isinstance(node, ex.Leaf):
            text = named(node.tensor) if node.tensor is not None else "?"
        elif isinstance(node, ex.Const):
            text = repr(node.value)
        else:
            text = f"{node.op or 'checked'}({', '.join(texts[id(a)] for a in node.args)})"
        texts[id(node)] = text if len(text) <= longest else f"{text[:longest]} ..."
    return texts[id(expr)]
