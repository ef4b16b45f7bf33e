"""`PlannedGraph`: nodes on one device, planned once for each signature of their inputs."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from threading import Lock, RLock
from typing import Any, NamedTuple

import numpy as np

from gpu_shared.errors import ClosedError
from gpu_shared.steady import check_wanted, in_run, park_at_exit, run_steady, steady
from gpu_shared.use_count import UseCount
from vkep import dtypes
from vkep.device.bound import Bound
from vkep.device.tensor import DeviceTensor, on_host
from vkep.errors import InvalidInputError
from vkep.graph.model import ValueInfo
from vkep.graph.weights import ArrayWeight
from vkep.ir.infer import Known
from vkep.ir.program import DeferredStep, HostValue, NoValue, Over, ValueSpec, declared_value
from vkep.session.execution.executor import Executable, IslandExecutor, StepExecutor, Targets, Values, Watch
from vkep.session.execution.sequences import known_list, spread
from vkep.session.planning.following import Following, Signature, known_of
from vkep.session.planning.sized_plans import UNKNOWN, MakePlan, Opened, SizedPlans
from vkep.session.run_options import stop_if_terminated

logger = logging.getLogger("vkep")

#: returns the destinations of an executable's outputs, once it and so their shapes are known
AskTargets = Callable[[Executable], Targets]

#: maximum number of signatures whose executables are kept, including those that share a plan
_SIGNATURES = 256


class PlannedGraph:
    """A graph's executables by input signature. Thread-safe. The most recently used ones are kept; one that is evicted
    during a run is closed after the run."""

    def __init__(
        self,
        make_plan: MakePlan,
        constants: Mapping[str, Known],
        capacity: int,
        *,
        name: str = "session",
        asked: Collection[str] = (),
        check: Callable[[Mapping[str, Any]], None] | None = None,
        opened: Opened = UNKNOWN,
    ) -> None:
        """
        Args:
            make_plan: see `vkep.session.planning.sized_plans.MakePlan`.
            constants: values that are known before any run.
            capacity: the number of plans to keep.
            name: of the graph, for errors.
            asked: the inputs whose content a plan depends on.
            check: raises where a run's inputs do not match the graph's declarations. Called for new signatures.
            opened: the sizes that are known to differ between runs.
        """
        self._plans: SizedPlans | None = SizedPlans(make_plan, constants, capacity, opened)
        self._capacity = capacity
        self._name = name
        self._asked = asked
        self._check = check
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()
        self._newest: _Entry | None = None  # the entry used last
        self._evicted: list[_Entry] = []
        self._lock = Lock()
        self._planning = RLock()  # a progress callback may close the session that is being planned
        self._following = Following()
        self._fixed = False
        self._closed = False
        self.latest: Executable | None = None  #: the executable planned last
        self.over: Over = ()  #: the outputs that the latest run wrote to an input's memory, whose targets `run` asked for

    # ---- running

    def run(
        self, values: Values, targets: Targets | AskTargets, signature: Hashable = None, watch: Watch | None = None
    ) -> None:
        """Run on the inputs in ``values``; results are added there. See `use` and `Executable.run`. A target that is an
        input's tensor is written in place, or left out where the plan cannot do that: then its result is a separate
        value.
        """
        signature = self.signature(values) if signature is None else signature
        over = self.over if callable(targets) else overwritten(values, targets) if targets else ()
        used = self.use(values, signature, over)
        with used.hold:
            executable = used.executable
            waiting = _waiting(executable, callable(targets)) if executable.island is None and watch is None else None
            if waiting is not None:
                if callable(targets) and len(executable.steps) > 1:
                    first = targets(executable)
                    run_steady(lambda: executable.run(values, first, functools.partial(_before, waiting)))
                waiting.run(values, targets)  # in this thread: it asks for targets
                return
            if callable(targets):
                targets, guess = targets(executable), over
                over = overwritten(values, targets)
                if over != guess:
                    self.over = () if self._fixed else over
                    self.run(values, targets, signature, watch)
                    return
            direct = executable.island is not None and watch is None
            if direct:
                with in_run():
                    self._run_directly(values, allowed(targets, over, executable), executable, signature, over)
        if not direct:  # values passed between its parts may be incomplete after an interrupt
            run_steady(lambda: self._run(values, targets, signature, over, watch))
        if self._evicted:
            self._close_evicted()

    def _run_directly(
        self, values: Values, targets: Targets, executable: Executable, signature: Hashable, over: Over
    ) -> None:
        if executable.sizes is None or self._asked or not isinstance(signature, tuple):
            executable.run(values, targets)
        else:
            inputs = dict(values)
            executable.run(values, targets, meanwhile=lambda: self._predict(signature, inputs, over))

    def _predict(self, signature: Signature, values: Mapping[str, Any], over: Over) -> IslandExecutor | None:
        """Enter the executable of the signature that follows this one, where sizes go on as they changed so far. Returns its
        island.

        A run that is in progress calls it, which other threads may wait for while they plan: it never waits for them.
        """
        found = self._following.after(signature)
        if found is None:
            return None
        following, changed = found
        key = self._key(following, over)
        entry = self._entries.get(key)
        if entry is not None:
            return entry.executable.island
        names = tuple(values)
        moved = {names[k]: mark for k, mark in changed.items()}

        def known(name: str) -> Known:
            return known_of(moved[name]) if name in moved else self._known_one(values, name)

        def enter() -> IslandExecutor | None:
            if not self._planning.acquire(blocking=False):
                return None
            try:
                used = self._match(key, following, names, known, over, predicted=True)
                if used is None:
                    return None
                used.hold.release()
                return used.executable.island
            except Exception:  # a run of that signature will report it
                logger.debug("%s: no executable for the predicted signature %s", self._name, following, exc_info=True)
                return None
            finally:
                self._planning.release()

        return run_steady(enter)  # where no exception comes between the lock and its release

    def _run(self, values: Values, targets: Targets, signature: Hashable, over: Over, watch: Watch | None) -> None:
        used = self.use(values, signature, over)
        with used.hold:
            used.executable.run(values, allowed(targets, over, used.executable), watch)

    def use(self, values: Mapping[str, Any], signature: Hashable = None, over: Over = ()) -> Use:
        """The executable for inputs like ``values``, planned where their signature is new; in use for as long as its ``hold`` is.

        ``values`` may be known properties alone. ``signature``: that of `signature`, or another key that the caller always
        gives, and that differs wherever that differs; ``over``: the outputs that a run writes to an input's memory. Raises
        `ClosedError`, and the errors of ``check`` and of planning.
        """
        signature = self.signature(values) if signature is None else signature
        key = self._key(signature, over)
        found = self._take(key)
        if found is not None:
            return found
        marks = signature if isinstance(signature, tuple) else self.signature(values)
        return self._match(key, marks, tuple(values), lambda name: self._known_one(values, name), over) or self._enter(
            key, lambda: self._plan_for(values, over)
        )

    def taken(self, signature: Hashable, over: Over = ()) -> Use | None:
        """As `use`; None where the signature is new."""
        return self._take(self._key(signature, over))

    def _key(self, signature: Hashable, over: Over) -> Hashable:
        return (signature, over) if over and not self._fixed else signature

    def repeat(self, inputs: Values, targets: Targets) -> Repeat | None:
        """What runs again on the ``inputs`` and ``targets`` of an earlier run, all on the device; None where a run is more than
        one submit, or does not write all results to the targets."""
        over = overwritten(inputs, targets)
        key = self._key(self.signature(inputs), over)
        entry = self._entries.get(key)
        if entry is None or entry.executable.island is None or entry.executable.constants:
            return None
        bound = entry.executable.island.bound(inputs, allowed(targets, over, entry.executable))
        if bound.up or bound.down or any(target not in bound.writes for target in targets.values()):
            return None
        return Repeat(self, key, entry, bound)

    # ---- planning

    def signature(self, values: Mapping[str, Any]) -> Signature:
        """The properties of each input that a plan depends on: dtype and shape, and the content of some."""
        if self._asked:
            return tuple([_kind(v, name in self._asked) for name, v in values.items()])
        return tuple([(v.dtype, v.shape) if isinstance(v, np.ndarray) else _kind(v) for v in values.values()])

    def plan(self, inputs: Mapping[str, Known], over: Over = ()) -> Executable:
        """A new executable for inputs with these known properties; ``over`` as for `use`. Raises `InvalidInputError`
        after `refuse_new_plans`.
        """
        if self._fixed or self._plans is None:
            raise InvalidInputError(f"{self._name}: got shapes other than those that the model declares")
        return self._plans.executable(inputs, over)

    def plan_static(
        self, infos: Iterable[ValueInfo], key: Hashable = None, made: Callable[[], Executable | None] = lambda: None
    ) -> Hashable:
        """Plan for the only signature, and return it; None where a declared shape is dynamic. ``key``: see `use`. ``made``
        returns the executable where it is planned already.
        """
        inputs: dict[str, Known] = {}
        signature: list[Hashable] = []
        for info in infos:
            known = declared_value(info)
            if not info.is_static or known is None:
                return None
            inputs[info.name] = known
            dtype = known.dtype.numpy if isinstance(known, ValueSpec) else np.dtype(object)
            signature.append((dtype, info.shape))
        key = tuple(signature) if key is None else key
        with self._enter(key, lambda: made() or self.plan(inputs)).hold:
            return key

    def refuse_new_plans(self) -> None:
        """Refuse further signatures from now on; everything that planning needs is released."""
        self._fixed = True
        if self._plans is not None:
            self._plans.forget()

    def _plan_for(self, values: Mapping[str, Any], over: Over) -> Executable:
        if self._check is not None:
            self._check(values)
        return self.plan(self._known(values), over)

    def _known(self, values: Mapping[str, Any]) -> dict[str, Known]:
        return {name: self._known_one(values, name) for name in values}

    def _known_one(self, values: Mapping[str, Any], name: str) -> Known:
        return known_value(values[name], name, name in self._asked)

    # ---- executables in use

    def _take(self, key: Hashable) -> Use | None:
        while True:
            entry = self._entries.get(key)
            if self._closed:
                park_at_exit()
                raise ClosedError(self._name)
            if entry is None:
                return None
            hold = entry.uses.hold()
            try:
                if not entry.evicted:  # else it may be closed
                    if entry.predicted:  # it was entered last
                        entry.predicted, self._newest, self.latest = False, entry, entry.executable
                    elif entry is not self._newest:  # to hash a key of many inputs takes long
                        self._move_to_end(key, entry)
                    return Use(entry.executable, hold)
            except BaseException:
                hold.release()  # a traceback may keep this frame alive
                raise
            hold.release()

    def _move_to_end(self, key: Hashable, entry: _Entry) -> None:
        with contextlib.suppress(KeyError):
            self._entries.move_to_end(key)
        self._newest = entry

    def _enter(self, key: Hashable, make: Callable[[], Executable]) -> Use:
        """The executable that was entered for this key, or else the one that ``make`` makes."""
        return self._take(key) or run_steady(lambda: self._add(key, make))

    def _add(self, key: Hashable, make: Callable[[], Executable]) -> Use:
        with self._planning:
            found = self._take(key)
            if found is not None:
                return found
            self._close_evicted()
            check_wanted()
            executable = make()
            if self._closed:
                executable.close()
                raise ClosedError(self._name)
            made = _Entry(executable)
            used = Use(executable, made.uses.hold())
            with self._lock:
                self._entries[key], self._newest, self.latest = made, made, executable
                while self._too_many():
                    self._evict()
            self._close_evicted()
            return used

    def _match(
        self,
        key: Hashable,
        signature: Signature,
        names: Sequence[str],
        known: Callable[[str], Known],
        over: Over,
        predicted: bool = False,
    ) -> Use | None:
        """Enter the executable for a new signature, where a plan with sizes is valid for it: nothing is created on the
        device. The graph's declared inputs are satisfied then, as for the signatures that the plan was made from."""
        if self._plans is None or not self._plans.count or self._closed:
            return None
        with self._planning:
            found = self._plans.match(signature, names, known, over)
            if found is None or self._closed:
                return None
            with self._lock:
                entry = self._entries.setdefault(key, _Entry(found))  # another thread may have entered one
                used = Use(entry.executable, entry.uses.hold())
                if predicted:
                    entry.predicted = True
                else:
                    self._newest, self.latest = entry, entry.executable
                if len(self._entries) > _SIGNATURES:
                    self._evict()
        return used

    def _evict(self) -> None:
        """Forget the executable that was used the longest time ago, and note it to be closed."""
        entry = self._entries.popitem(last=False)[1]
        entry.evicted = True
        if entry.executable.sizes is None or entry.uses.held:
            self._evicted.append(entry)

    @property
    def plan_count(self) -> int:
        """The number of plans that it keeps: those of one signature, and those with sizes."""
        return self._alone + (self._plans.count if self._plans is not None else 0)

    @property
    def _alone(self) -> int:
        return sum(entry.executable.sizes is None for entry in self._entries.values())

    def _too_many(self) -> bool:
        return self._alone > self._capacity or len(self._entries) > _SIGNATURES

    @steady
    def _close_evicted(self) -> None:
        """Close evicted executables that are no longer in use."""
        with self._lock:
            unused = [entry for entry in self._evicted if not entry.uses.held]
            self._evicted = [entry for entry in self._evicted if entry not in unused]
        for entry in unused:
            entry.executable.close()

    @steady
    def close(self) -> None:
        """Close every executable once the runs in other threads have ended; later calls raise `ClosedError`."""
        with self._planning:
            self._closed = True
            entries = [*self._entries.values(), *self._evicted]
            self._entries, self._evicted, self._newest, self.latest = OrderedDict(), [], None, None
            for entry in entries:
                entry.uses.wait()
        self.refuse_new_plans()
        for entry in entries:
            entry.executable.close()
        if self._plans is not None:
            self._plans.close()


class _Entry:
    """An executable with its number of users: an evicted one is closed by its last user."""

    __slots__ = ("evicted", "executable", "predicted", "uses")

    def __init__(self, executable: Executable) -> None:
        self.executable, self.uses = executable, UseCount()
        self.predicted = False  #: no run has used it
        self.evicted = False  #: it is in no table, and may be closed once no run uses it


class Repeat:
    """A run on the device tensors of an earlier one. Nothing is looked up or checked again but what may have been closed."""

    def __init__(self, graph: PlannedGraph, key: Hashable, entry: _Entry, bound: Bound) -> None:
        self._graph, self._key, self._entry, self._bound = graph, key, entry, bound
        self._tensors = tuple(dict.fromkeys([*bound.reads, *bound.writes]))
        assert entry.executable.island is not None
        self._run = entry.executable.island.runner.run

    def run(self) -> bool:
        """Run; False where that must be done in the usual way: a tensor was closed, or the executable evicted. Raises as
        `PlannedGraph.run`."""
        entry, graph = self._entry, self._graph
        with entry.uses.hold(), in_run():
            if entry.evicted or graph._closed:
                return False
            for tensor in self._tensors:
                if tensor.closed:
                    return False
            if entry is not graph._newest:
                graph._move_to_end(self._key, entry)
            stop_if_terminated()
            self._run(self._bound)
        return True


class Use(NamedTuple):
    """An executable in use: ``with used.hold: used.executable.run(...)``."""

    executable: Executable
    hold: memoryview


class SharedGraph:
    """The graph of a step that is planned during a run, for all programs that have the step."""

    def __init__(self, step: DeferredStep, graph: PlannedGraph, lock: Lock) -> None:
        """``lock`` protects the number of programs."""
        self.graph, self._step, self._lock, self._users = graph, step, lock, 0

    def serves(self, step: DeferredStep) -> bool:
        """Whether the graph is that of another step with the same names. The caller has the lock."""
        mine, theirs = self._step.constants, step.constants
        return (
            self._users > 0
            and self._step.nodes == step.nodes
            and mine.keys() == theirs.keys()
            and all(_equal(mine[name], theirs[name]) for name in mine)
        )

    def take(self) -> PlannedGraph:
        """The graph, for one more program. The caller has the lock."""
        self._users += 1
        return self.graph

    def give(self) -> None:
        """One program fewer: the last one closes the graph, once its runs have ended."""
        with self._lock:
            self._users -= 1
            last = not self._users
        if last:
            self.graph.close()


def _equal(a: object, b: object) -> bool:
    if isinstance(a, ArrayWeight) and isinstance(b, ArrayWeight):
        x, y = a.array(), b.array()
        return x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()
    return a is b or (isinstance(a, HostValue) and a == b)


class DeferredExecutor:
    """Nodes that are planned once their inputs' shapes, and some values, are known."""

    def __init__(self, step: DeferredStep, shared: SharedGraph) -> None:
        self.step, self.graph = step, shared.take()
        self._held: list[SharedGraph] = [shared]  # until it is closed

    def run(self, values: Values, targets: Targets | AskTargets, watch: Watch | None = None) -> None:
        """Run on the step's inputs in ``values``; results are added there. ``watch``: see `Executable.run`."""
        here = self.inputs_of(values)
        self.graph.run(here, targets, watch=watch)
        # not only the step's outputs: profiling runs the islands inside again, on the values of this run
        for name, value in here.items():
            values.setdefault(name, value)

    def inputs_of(self, values: Values) -> Values:
        """The step's inputs, as its graph takes them."""
        asked = self.step.values
        here: Values = {n: on_host(values[n]) if n in asked else values[n] for n in self.step.inputs}
        spread(here)
        return here

    @property
    def latest(self) -> Executable | None:
        """The program used last."""
        newest = self.graph._newest
        return newest.executable if newest is not None else None

    def close(self) -> None:
        """Close its programs, if no other program has the step, once their runs have ended."""
        while self._held:
            self._held.pop().give()


def _waiting(executable: Executable, asking: bool) -> DeferredExecutor | None:
    """The only step, where the whole program is planned once a run's values are known. Where targets are asked for
    (``asking``), a last step that computes every output too: else they would be copied to their targets."""
    step = executable.steps[-1] if executable.steps else None
    if not isinstance(step, DeferredExecutor) or executable.constants or executable.program.lists:
        return None
    made = set(executable.program.outputs) <= set(step.step.outputs)
    if len(executable.steps) > 1 and not (asking and executable.is_apart and made):
        return None
    return step


def _before(last: DeferredExecutor, step: StepExecutor, values: Values, targets: Targets) -> None:
    if step is not last:
        step.run(values, targets)


def overwritten(values: Mapping[str, Any], targets: Targets) -> Over:
    """The outputs that are to be written to an input's memory, each with that input."""
    outputs = {
        (target.address, target.capacity): name
        for name, target in targets.items()
        if isinstance(target, DeviceTensor) and (target.nbytes or target.capacity)
    }
    if not outputs:
        return ()
    read = [
        (name, (t.address, t.capacity))
        for name, t in values.items()
        if isinstance(t, DeviceTensor) and (t.nbytes or t.capacity)
    ]
    return in_place(read, outputs)


def in_place(read: Iterable[tuple[str, Hashable]], outputs: Mapping[Any, str]) -> Over:
    """As `overwritten`: the inputs with their places in memory, and the outputs by theirs. Two places are equal where the
    addresses of all elements are."""
    return tuple([(outputs[place], name) for name, place in read if place in outputs])


def allowed(targets: Targets, over: Over, executable: Executable) -> Targets:
    """The targets without those that the program does not write: an input's memory, where it is not written in place, and the
    leading elements of larger tensors.
    """
    if not targets:
        return targets
    refused = {name for name, target in targets.items() if isinstance(target, DeviceTensor) and target.capacity}
    refused.update([output for output, _ in over])
    if refused:
        refused -= executable.program.in_place
    return {name: target for name, target in targets.items() if name not in refused} if refused else targets


def known_value(value: Any, name: str, asked: bool = False) -> Known:
    """The known properties of a run's value: dtype, shape and capacity, or its content if that is ``asked``."""
    if isinstance(value, (ValueSpec, HostValue)):
        return value
    if isinstance(value, DeviceTensor):
        return ValueSpec(value.dtype, value.shape, value.capacity)
    if isinstance(value, list):
        return known_list(value, name)
    if value is None:
        return NoValue()
    if not isinstance(value, np.ndarray):
        return HostValue(type(value).__name__)
    try:
        dtype = dtypes.from_numpy(value.dtype)
    except TypeError:
        return HostValue(str(value.dtype))
    if asked:
        return ArrayWeight(name, value.copy())
    return ValueSpec(dtype, value.shape)


def _kind(value: Any, asked: bool = False) -> object:
    if isinstance(value, (DeviceTensor, ValueSpec)):
        return (value.dtype.numpy, value.shape, value.capacity) if value.capacity else (value.dtype.numpy, value.shape)
    if isinstance(value, np.ndarray):
        return (value.dtype, value.shape, value.tobytes()) if asked else (value.dtype, value.shape)
    if isinstance(value, HostValue):
        return value
    return (list, len(value)) if isinstance(value, list) else type(value)
