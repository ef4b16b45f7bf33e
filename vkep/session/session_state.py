"""The state of a session: its model, delegates and planned executables.

Importing this module imports numpy, onnx and most of vkep: `vkep.session.session` does so while the driver opens.
"""

from __future__ import annotations

import contextvars
import functools
import itertools
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from gpu_shared.context import SharedGpuContext
from gpu_shared.errors import ClosedError
from gpu_shared.lease import DelegateLease
from gpu_shared.steady import park_at_exit, run_steady
from vkep import dtypes
from vkep.device.delegate import VulkanDelegate
from vkep.device.tensor import DeviceTensor
from vkep.errors import InvalidInputError, InvalidModelError
from vkep.graph import load_model
from vkep.graph.initializers import with_initializers
from vkep.graph.load import ModelSource
from vkep.graph.model import Model, ValueInfo
from vkep.session.execution.executor import Targets, Watch, check_target, own_array, own_tensor
from vkep.session.execution.sequences import spread
from vkep.session.execution.vgf import session_policy, vgf_delegate
from vkep.session.inputs import array_of, check_inputs, map_of, no_dict, wrong_names
from vkep.session.options import SessionOptions, spirv_folder
from vkep.session.ort_interface.sparse import SparseTensor
from vkep.session.ort_interface.value import OrtValue
from vkep.session.planning.planned_graph import PlannedGraph, Repeat, Use, allowed, overwritten
from vkep.session.planning.planner import Planner
from vkep.session.planning.saved import made_by
from vkep.session.reports.profiling import SessionProfile
from vkep.session.run_options import RunOptions, checked_run_options, running
from vkep.shaders.library import ShaderLibrary

if TYPE_CHECKING:
    from vkep.session.ort_interface.adapters import AdapterFormat

Array = np.ndarray[Any, Any]
#: an input of a run: a tensor, as numpy takes it too; a list of them for a sequence, a dict for a map, None for an optional
#: without an element
Feed = npt.ArrayLike | DeviceTensor | OrtValue | SparseTensor | list[Any] | Mapping[Any, Any] | None
#: a result of a run: an array, for type checkers, which only the model can tell from a list, a dict or None
Output = np.ndarray[Any, Any] | Any


#: a tensor in a sequence, whose type is checked later
_TENSOR = ValueInfo("", 1, None)
#: the session whose `SessionState.later` is calling
_later_of: contextvars.ContextVar[SessionState | None] = contextvars.ContextVar("_later_of", default=None)


class SessionState:
    """The model, device objects and plans of a session, in an object that its finalizer can hold."""

    def __init__(
        self, source: ModelSource, options: SessionOptions, context: Callable[[], SharedGpuContext | DelegateLease]
    ) -> None:
        """``context`` is called after the work that needs no device. Raises as `InferenceSession`; then nothing is left
        open."""
        self.model = read_model(source, options)
        self.inputs = {v.name: v for v in self.model.graph.inputs}
        self._has_lists = not all(v.is_tensor for v in self.model.graph.inputs)
        self.outputs = [v.name for v in self.model.graph.outputs]
        self.output_names = dict.fromkeys(self.outputs)
        self._sparse = {v.name for v in self.model.graph.outputs if v.sparse}
        self.overridable = {v.name: v for v in self.model.graph.overridable}
        self.bindable = {**self.inputs, **self.overridable}
        self._gives_inputs = any(map(self._is_fed, self.outputs))
        self._overriding: dict[frozenset[str], PlannedGraph] = {}  # by the names of the weights that a run replaces
        self._adapters: WeakKeyDictionary[AdapterFormat, Mapping[str, DeviceTensor]] = WeakKeyDictionary()
        self._pool: ThreadPoolExecutor | None = None
        self._options = options
        self.watch: Watch | None = None  #: runs the steps of `execute` itself, to time them
        self.profile = SessionProfile(options.profile_file_prefix) if options.enable_profiling else None
        arena = options.arena_config()
        library = ShaderLibrary(cache_dir=spirv_folder(options))
        if options.save_plans and self.model.file_identity:
            made_by()  # kept, since the key of the saved plan needs it
        tuned = options.tuned
        self.delegate = VulkanDelegate(
            context(), library, arena, sync_mode=options.sync_mode, tuned=tuned, max_memory=options.max_memory
        )
        self.closed = False
        self._lock = threading.Lock()
        policy = session_policy(options, self.delegate.context)
        self.graphs = vgf_delegate(self.delegate, options.sync_mode) if policy.graphs else None
        self.planner = Planner(self.delegate, options, self.model, policy, self.graphs)
        check = functools.partial(check_inputs, self.inputs)
        self.graph = self.planner.model_graph(self.model, self.outputs, check)

    def close(self) -> None:
        """Close everything, once the runs of other threads have ended; idempotent. A forked child frees nothing."""
        if not self.closed:
            self.closed = True
            if self.delegate.forked:  # the device objects belong to the parent process
                return
            try:
                if self._pool is not None:  # a callback may close the session
                    self._pool.shutdown(wait=_later_of.get() is not self)
                for graph in (self.graph, *self._overriding.values()):
                    graph.close()
                for tensor in (tensor for made in self._adapters.values() for tensor in made.values()):
                    tensor.close()
            finally:
                if self.graphs is not None:
                    self.graphs.close()
                self.delegate.close()

    def check_open(self) -> None:
        """Raise `ClosedError` or `ForkedProcessError` where the session cannot be used."""
        if self.closed:
            park_at_exit()
            raise ClosedError(f"session of {self.model.source}")
        self.delegate.lease.context  # noqa: B018  # in a forked child it raises, before any lock is tried

    def check_tensor(self, tensor: DeviceTensor, what: str) -> None:
        """See `InferenceSession.check_tensor`."""
        if not isinstance(tensor, DeviceTensor):
            raise TypeError(f"{what}: expected a DeviceTensor, got {type(tensor).__name__}")
        if tensor.closed:
            raise InvalidInputError(f"{what}: the device tensor is closed")
        if tensor.context_key is not self.delegate.context:
            raise InvalidInputError(
                f"{what}: the device tensor lies on another context; make it with this session's device_tensor(), "
                "or give both sessions the same token and group"
            )

    # ---- planning

    def inputs_of(self, feeds: Mapping[str, Feed], options: RunOptions | None = None) -> dict[str, Any]:
        """A run's inputs in the model's order, with the tensors of its adapters. Raises as `InferenceSession.run`."""
        self.check_open()
        if not isinstance(feeds, (dict, Mapping)):  # dict first: isinstance with Mapping is slower
            raise no_dict("feeds", feeds, "arrays")
        if isinstance(options, RunOptions) and options.adapters:
            given: dict[str, Feed] = {}
            for adapter in options.adapters:
                given |= self._adapted(adapter.content)
            feeds = {**given, **feeds}
        values: dict[str, Any] = {}
        for name, info in self.inputs.items():
            value: Any = feeds.get(name)
            if value is None and not (info.is_optional and name in feeds):
                raise wrong_names(self.inputs, feeds)
            values[name] = value if isinstance(value, np.ndarray) else self._fed(name, value, info)
        if len(feeds) != len(values):
            more = [name for name in feeds if name not in values]
            if not self.overridable.keys() >= set(more):
                raise wrong_names(self.inputs, feeds)
            values |= {name: self._fed(name, feeds[name], self.overridable[name]) for name in more}
        if self._has_lists:
            spread(values)
        return values

    def _adapted(self, content: AdapterFormat) -> Mapping[str, DeviceTensor]:
        """An adapter's tensors on the session's device, where they stay until it is closed or the adapter has others."""
        found = self._adapters.get(content)
        if found is None:
            arrays = {name: value.numpy() for name, value in content.get_parameters().items()}
            made = {name: DeviceTensor.from_numpy(self.delegate, array) for name, array in arrays.items()}
            found = self._adapters.setdefault(content, made)  # another thread may have copied it too
        return found

    def _fed(self, name: str, value: Any, info: ValueInfo) -> Any:
        if not info.is_tensor and isinstance(value, (list, tuple)):
            element = _element(info)
            return [self._fed(f"{name}[{k}]", one, element) for k, one in enumerate(value)]
        if info.other is not None and info.other.HasField("map_type"):
            return map_of(name, value, info.other.map_type)
        if isinstance(value, SparseTensor) or (isinstance(value, OrtValue) and value.is_sparse_tensor()):
            if not info.sparse:
                raise InvalidInputError(f"input {name!r}: got a sparse tensor, expected a dense one")
            value = value.dense() if isinstance(value, SparseTensor) else value.numpy()
        if isinstance(value, OrtValue):
            value = value.on(self.delegate, f"input {name!r}")
        if isinstance(value, DeviceTensor):
            self.check_tensor(value, f"input {name!r}")
        elif not isinstance(value, np.ndarray) and info.elem_type:
            value = array_of(name, value, info)
        return value

    def graph_of(self, values: Mapping[str, Any]) -> PlannedGraph:
        """The graph for these inputs: the model, or the model with those weights as inputs that ``values`` replaces."""
        if len(values) == len(self.inputs) or not self.overridable:
            return self.graph
        names = frozenset(name for name in values if name in self.overridable)
        if not names:
            return self.graph
        with self._lock:
            graph = self._overriding.get(names)
            if graph is None:
                model = without_weights(self.model, names)
                check = functools.partial(check_inputs, {v.name: v for v in model.graph.inputs})
                graph = self._overriding[names] = self.planner.model_graph(model, self.outputs, check)
        return graph

    def execute(self, values: dict[str, Any], targets: Targets, run_options: RunOptions | None) -> None:
        """Run; the results are added to ``values``. Raises as `InferenceSession.run`."""
        graph = self.graph_of(values)
        if run_options is None and self.profile is None and self.watch is None:
            graph.run(values, targets)
            return
        run_steady(lambda: self._execute(graph, values, targets, checked_run_options(run_options)))

    def _execute(
        self, graph: PlannedGraph, values: dict[str, Any], targets: Targets, options: RunOptions | None
    ) -> None:
        with running(options):
            if self.profile is None:
                graph.run(values, targets, watch=self.watch)
                return
            used = graph.use(values)
            with used.hold:
                start = time.perf_counter_ns()
                # the run that times the dispatches reads the inputs once more: none is written
                over = dict(overwritten(values, targets))
                kept = {n: t for n, t in allowed(targets, (), used.executable).items() if n not in over}
                used.executable.run(values, kept)
                self.profile.add_run(used.executable, values, start, options.logid if options else "")

    def repeat(
        self, inputs: Mapping[str, Feed], targets: Mapping[str, DeviceTensor | None], results: Sequence[Any]
    ) -> Repeat | None:
        """What runs again on a binding's tensors, where each of its ``results`` is the target itself."""
        if self.profile is not None or len(results) != len(targets):
            return None
        if not all(r is t is not None for r, t in zip(results, targets.values(), strict=True)):
            return None
        values = self.inputs_of(inputs)
        on_device = all(isinstance(value, DeviceTensor) for value in values.values())
        return self.graph_of(values).repeat(values, targets) if on_device else None

    def later(self, work: Callable[[], None]) -> None:
        """Call something in a thread of the session. The interpreter's exit and `close` wait for it."""
        self.check_open()
        context = contextvars.copy_context()
        context.run(_later_of.set, self)
        run_steady(lambda: self._submit(functools.partial(context.run, work)))

    def _submit(self, work: Callable[[], None]) -> None:
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._options.concurrency, thread_name_prefix="vkep-run")
        try:
            self._pool.submit(work)
        except RuntimeError:
            raise ClosedError(f"session of {self.model.source}, since the interpreter ends") from None

    def plan_static(self) -> None:
        """Plan for the only signature, where no shape is dynamic. Raises `InvalidModelError` where a node breaks its
        operator's specification."""
        try:
            self.graph.plan_static(self.inputs.values())
        except InvalidInputError as error:
            raise InvalidModelError(f"{self.model.source}: {error}") from None

    def plan_shapes(self, shapes: Mapping[str, Sequence[int]]) -> Use:
        """The executable for input shapes, entered. Raises `InvalidInputError` where a dynamic input is not named."""
        if not isinstance(shapes, Mapping):
            raise no_dict("shapes", shapes, "shapes")
        feeds = {}
        for name, info in self.inputs.items():
            shape = shapes.get(name, info.static_shape)
            if shape is None:
                raise InvalidInputError(f"plan: no shape for the dynamic input {name!r}")
            dtype = dtypes.from_onnx(info.elem_type)
            feeds[name] = np.zeros(tuple(int(d) for d in shape), dtype.numpy if dtype else np.float32)
        values = self.inputs_of(feeds)
        return self.graph_of(values).use(values)

    # ---- results

    def targets(
        self, inputs: Mapping[str, Any], outputs: Mapping[str, DeviceTensor | Array | str]
    ) -> dict[str, DeviceTensor | None]:
        """The outputs that are written on the device, by name. Two outputs never share memory; an output may be in the
        memory of one input. Raises `InvalidInputError` where bindings break that."""
        targets: dict[str, DeviceTensor | None] = {}
        taken: dict[int, str] = {}
        for name, target in outputs.items():
            if isinstance(target, DeviceTensor):
                self.check_tensor(target, f"output {name!r}")
                other = taken.setdefault(target.address, name)
                if other != name and (target.nbytes or target.capacity):
                    raise InvalidInputError(f"output {name!r}: its device tensor is also bound to output {other!r}")
                targets[name] = target
            elif isinstance(target, str) and target == "gpu":
                targets[name] = None
        readers: dict[str, str] = {}
        for name, tensor in inputs.items() if taken else ():
            if not isinstance(tensor, DeviceTensor) or not (tensor.nbytes or tensor.capacity):
                continue
            output = taken.get(tensor.address)
            if output is not None and (readers.setdefault(output, name) != name or not _same(tensor, targets[output])):
                raise InvalidInputError(
                    f"output {output!r}: its memory is bound to {readers[output]!r} and {name!r}, or by two device tensors; an "
                    "output may take the very tensor of one input, or leading elements of the tensor that the input is of"
                )
        return targets

    def result(self, value: Any, name: str) -> Any:
        """A value of a run as an array that the caller owns, or a sparse tensor where the model declares one."""
        made = own_array(value, self._is_fed(name))
        return SparseTensor.of(made) if name in self._sparse else made

    def bound_results(self, values: Mapping[str, Any], outputs: Mapping[str, DeviceTensor | Array | str]) -> list[Any]:
        """The results at a binding's targets. An output that is an input is handled before that input's tensor is
        overwritten."""
        names = sorted(outputs, key=lambda n: not self._is_fed(n)) if self._gives_inputs else outputs
        made = {name: self.bound_result(values[name], name, outputs[name]) for name in names}
        return [made[name] for name in outputs]

    def bound_result(self, value: Any, name: str, target: DeviceTensor | Array | str) -> Any:
        """The result at the binding's target. Values that no island wrote there (constants, inputs, a CPU node's) are
        copied."""
        if isinstance(target, np.ndarray):
            value = self.result(value, name)
            check_target(name, dtypes.from_numpy(value.dtype), value.shape, target)
            np.copyto(target, value)
            return target
        bound = target if isinstance(target, DeviceTensor) else None
        if target == "cpu" or (bound is None and not isinstance(value, (np.ndarray, DeviceTensor))):
            return self.result(value, name)
        return own_tensor(self.delegate, name, value, bound, self._is_fed(name))

    def _is_fed(self, name: str) -> bool:
        """Whether an output may be an object that the caller passed: then it is copied."""
        return name in self.inputs or name in self.overridable


def _same(tensor: DeviceTensor, target: DeviceTensor | None) -> bool:
    """Whether an output may use an input's memory: the offsets of all elements must be equal."""
    return tensor is target or (target is not None and bool(tensor.capacity) and tensor.capacity == target.capacity)


def read_model(source: ModelSource, options: SessionOptions) -> Model:
    """The model with the initializers and sizes of the options. Raises as `load_model`, and ``ValueError`` for others than it
    has."""
    model = load_model(
        source,
        base_dir=options.base_dir,
        unknown_attributes=options.unknown_attributes,
        max_nodes=options.max_nodes,
        given=options.initializers,
        files=options.external_files,
    )
    if options.initializers:
        model = with_initializers(model, options.initializers)
    return with_sizes(model, options.free_dimensions)


def _element(info: ValueInfo) -> ValueInfo:
    """What is in a sequence: tensors, or maps."""
    kind = info.other
    while kind is not None and kind.HasField("optional_type"):
        kind = kind.optional_type.elem_type
    if kind is None or not kind.HasField("sequence_type") or not kind.sequence_type.elem_type.HasField("map_type"):
        return _TENSOR
    return ValueInfo("", 0, None, other=kind.sequence_type.elem_type)


def with_sizes(model: Model, sizes: Mapping[str, int]) -> Model:
    """The model with open dimensions of its inputs and outputs replaced, by name or denotation. Raises ``ValueError`` for one
    that it does not have."""
    if not sizes:
        return model
    graph = model.graph
    symbols = {d for v in graph.inputs for d in (*(v.shape or ()), *v.denotations) if isinstance(d, str) and d}
    unknown = [name for name in sizes if name not in symbols]
    if unknown:
        raise ValueError(
            f"free_dimensions: the inputs of {model.source} have no {unknown[0]!r}; they have {sorted(symbols)}"
        )

    def sized(info: ValueInfo) -> ValueInfo:
        axes = zip(info.shape or (), info.denotations or itertools.repeat(""), strict=False)
        shape = tuple(d if isinstance(d, int) else sizes.get(d or "", sizes.get(meaning, d)) for d, meaning in axes)
        return info if info.shape is None else replace(info, shape=shape)

    inputs, outputs = tuple(map(sized, graph.inputs)), tuple(map(sized, graph.outputs))
    return replace(model, graph=replace(graph, inputs=inputs, outputs=outputs))


def without_weights(model: Model, names: Collection[str]) -> Model:
    """The model with some of its overridable weights as inputs."""
    graph = model.graph
    inputs = (*graph.inputs, *(v for v in graph.overridable if v.name in names))
    weights = {name: weight for name, weight in graph.weights.items() if name not in names}
    return replace(model, graph=replace(graph, inputs=inputs, weights=weights), file_identity="")
