"""`InferenceSession`: a model on a device, in the shape that ONNX Runtime's users know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpu_shared.context import SharedGpuContext
from gpu_shared.errors import ClosedError
from vkep import dtypes
from vkep.device.datagraph import VgfDelegate
from vkep.device.delegate import VulkanDelegate
from vkep.device.external import ExternalMemory
from vkep.device.finalize import on_end
from vkep.device.tensor import DeviceTensor
from vkep.errors import InvalidInputError
from vkep.graph import load_model
from vkep.graph.load import ModelSource
from vkep.graph.model import Dim, Model, ValueInfo
from vkep.lowering.infer import Known
from vkep.lowering.program import HostValue, ValueSpec
from vkep.session.binding import IOBinding
from vkep.session.compile import Compiler
from vkep.session.contexts import resolve_context
from vkep.session.executor import Executable, ExecutableCache, IslandExecutor, check_target, known_value
from vkep.session.external import ExternalSemaphore, import_memory
from vkep.session.flat import flatten
from vkep.session.graphs import session_policy
from vkep.session.inputs import check_inputs, wrong_names
from vkep.session.options import SessionOptions, spirv_folder
from vkep.session.report import GraphReport, IslandReport, MemoryReport, Report, node_reports
from vkep.shaders.library import ShaderLibrary

Array = np.ndarray[Any, Any]
Feed = Array | DeviceTensor


@dataclass(frozen=True)
class NodeArg:
    """An input or output of the model: ``type`` as ONNX writes it (``tensor(float)``), symbolic dimensions by name."""

    name: str
    type: str
    shape: tuple[Dim, ...] | None


class _Parts:
    """What a session must give back, apart from the session itself so that a finaliser can hold it."""

    def __init__(self, delegate: VulkanDelegate, options: SessionOptions, model: Model) -> None:
        self.delegate = delegate
        policy = session_policy(options, delegate.context)
        self.graphs = VgfDelegate(delegate, sync_mode=options.sync_mode) if policy.graphs else None
        self.compile = Compiler(delegate, options, model, policy, self.graphs)
        self.cache = ExecutableCache(options.plan_cache_size)
        self.closed = False

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            if self.delegate.forked:  # all of it is the parent's
                return
            try:
                self.cache.close()
            finally:
                if self.graphs is not None:
                    self.graphs.close()
                self.delegate.close()


class InferenceSession:
    """A model ready to run on Vulkan.

    Args:
        model: a path, the model's bytes, or an ``onnx.ModelProto``.
        options: see `SessionOptions`; keyword arguments override its fields.
        context: a `SharedGpuContext` to use instead of the one that the options name.

    Static shapes are planned, compiled and uploaded at once; dynamic ones at the first run of each signature. Safe to
    use from several threads. Close it (or use ``with``) to give its memory back.

    Raises `InvalidModelError`, `UnsupportedModelError`, ``FileNotFoundError``, the context errors of `gpu_shared.errors`,
    `DriverNotFoundError`, `ArenaOutOfMemory`.
    """

    def __init__(
        self,
        model: ModelSource,
        options: SessionOptions | None = None,
        *,
        context: SharedGpuContext | None = None,
        **overrides: Any,
    ) -> None:
        merged = {**(vars(options) if options else {}), **overrides}
        self.options = SessionOptions(**merged)
        self.model: Model = load_model(model, base_dir=self.options.base_dir)
        arena = self.options.arena_config()
        context = context or resolve_context(self.options)
        library = ShaderLibrary(cache_dir=spirv_folder(self.options))
        tuned = self.options.tuned
        delegate = VulkanDelegate(context, library, arena, sync_mode=self.options.sync_mode, tuned=tuned)
        self._parts = _Parts(delegate, self.options, self.model)
        self._finalizer = on_end(self, self._parts.close)
        self._inputs = {v.name: v for v in self.model.graph.inputs}
        self._outputs = [v.name for v in self.model.graph.outputs]
        try:
            self._plan_static()
        except BaseException:
            self.close()
            raise

    # ---- what the model takes and gives

    def get_inputs(self) -> list[NodeArg]:
        return [_node_arg(v) for v in self.model.graph.inputs]

    def get_outputs(self) -> list[NodeArg]:
        return [_node_arg(v) for v in self.model.graph.outputs]

    @property
    def context(self) -> SharedGpuContext:
        """The shared context that the session runs on."""
        return self._delegate.context

    # ---- running

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Feed]) -> list[Array]:
        """Run the model; arrays of ``output_names`` (None: all) in order.

        Inputs are numpy arrays (any strides) or `DeviceTensor`. Raises `InvalidInputError` for a wrong name, rank, shape or
        dtype, `ClosedError`, `DeviceLostError`.
        """
        names = self._outputs if output_names is None else self._wanted(output_names)
        with self._executable(feeds) as (executable, values):
            executable.run(values, {})
        return [self._result(values[name], name) for name in names]

    def io_binding(self) -> IOBinding:
        """A new binding for `run_with_iobinding`."""
        return IOBinding(self)

    def run_with_iobinding(self, binding: IOBinding) -> None:
        """Run with bound inputs and outputs; results are in the binding."""
        targets = self._targets(binding)
        with self._executable(binding.inputs) as (executable, values):
            executable.run(values, targets)
        binding.results = [self._bound_result(values[n], n, target) for n, target in binding.outputs.items()]

    def device_tensor(self, array: Array) -> DeviceTensor:
        """Upload an array to the session's device."""
        self._check_open()
        return DeviceTensor.from_numpy(self._delegate, array)

    def empty_device_tensor(self, shape: Sequence[int], dtype: str = "float32") -> DeviceTensor:
        """Uninitialised device memory for an output; ``dtype`` is numpy's name."""
        self._check_open()
        if dtype not in dtypes.DTYPES:
            raise TypeError(f"dtype is {dtype!r}, expected one of {sorted(dtypes.DTYPES)}")
        return DeviceTensor(self._delegate, dtypes.DTYPES[dtype], shape)

    def import_memory(
        self, source: int | Array, size: int | None = None, *, memory_type: int | None = None, dedicated: bool = False
    ) -> ExternalMemory:
        """Memory of another owner, for tensors that runs read and write in place: an opaque file descriptor of ``size``
        bytes (duplicated; the rest as `gpu_shared.external.MemorySource`), or a host array whose address and size are
        multiples of `gpu_shared.external.host_alignment`. Raises as `gpu_shared.external.ImportedBuffer`.
        """
        self._check_open()
        return import_memory(self._delegate, source, size, memory_type, dedicated)

    def import_semaphore(self, descriptor: int) -> ExternalSemaphore:
        """A timeline semaphore of another device. Raises as `gpu_shared.external.ImportedSemaphore`."""
        self._check_open()
        return ExternalSemaphore(self._delegate, descriptor)

    def check_tensor(self, tensor: DeviceTensor, what: str) -> None:
        """Raise `InvalidInputError` unless the tensor is open and lies on this session's context."""
        if not isinstance(tensor, DeviceTensor):
            raise TypeError(f"{what}: expected a DeviceTensor, got {type(tensor).__name__}")
        if tensor.closed:
            raise InvalidInputError(f"{what}: the device tensor is closed")
        if tensor.context_key is not self._delegate.context:
            raise InvalidInputError(
                f"{what}: the device tensor lies on another context; make it with this session's device_tensor(), "
                "or give both sessions the same token and group"
            )

    # ---- looking inside

    def report(self) -> Report:
        """Where each node runs and why, for the signature planned last."""
        self._check_open()
        latest = self._parts.cache.latest
        caps = self._delegate.capabilities
        base = Report(model=self.model.source, device=caps.name, context=self._delegate.context.label)
        if latest is None:
            waiting = [v.name for v in self._inputs.values() if not v.is_static]
            note = f"not planned yet: the shapes of {waiting} are dynamic; run once, or call plan()"
            return Report(base.model, base.device, base.context, note=note)
        flat = flatten(latest)
        return Report(
            base.model,
            base.device,
            base.context,
            nodes=node_reports(flat.placements),
            islands=[IslandReport.of(i.plan, len(i.nodes)) for i in flat.islands],
            cpu_engine=flat.engines.pop() if flat.engines else "",
            graphs=[
                GraphReport(len(g.nodes), g.graph.operations, g.vgf_bytes, g.constant_bytes, g.shared_bytes)
                for g in flat.graphs
            ],
            graph_source=self._parts.compile.policy.graphs,
            why_no_graphs=self._parts.compile.policy.why_not,
            kompute=[region.report() for region in flat.kompute],
        )

    def plan(self, shapes: Mapping[str, Sequence[int]]) -> Report:
        """Plan for input shapes ahead of the first run (dynamic models); ``shapes`` names every dynamic input."""
        feeds = {}
        for name, info in self._inputs.items():
            shape = shapes.get(name, info.shape if info.is_static else None)
            if shape is None:
                raise InvalidInputError(f"plan: no shape for the dynamic input {name!r}")
            dtype = dtypes.from_onnx(info.elem_type)
            feeds[name] = np.zeros(tuple(int(d) for d in shape), dtype.numpy if dtype else np.float32)  # type: ignore[arg-type]
        with self._executable(feeds):
            return self.report()

    def islands(self) -> list[IslandExecutor]:
        """The islands of the signature planned last (for profiling and explaining)."""
        latest = self._parts.cache.latest
        return flatten(latest).islands if latest else []

    def profile(self, feeds: Mapping[str, Feed]) -> list[list[float]]:
        """Nanoseconds of each dispatch of each island in one run."""
        with self._executable(feeds) as (executable, values):
            executable.run(values, {})
            return [i.runner.profile([values[n] for n in i.inputs]) for i in flatten(executable).islands]

    def profile_regions(self, feeds: Mapping[str, Feed]) -> list[tuple[str, float]]:
        """The GPU's nanoseconds in each region of one run of a mixed model, by delegate and nodes; for the regions that are
        sent together, which the sync mode ``queue_wait_idle`` has none of. One thread at a time.
        """
        with self._executable(feeds) as (executable, values):
            return executable.profile(values, {})

    def memory(self) -> MemoryReport:
        """The device arena (shared by all sessions on the context), and the weights on the device."""
        self._check_open()
        latest = self._parts.cache.latest
        graphs = flatten(latest).graphs if latest else []
        return MemoryReport.of(
            self._delegate,
            shared_bytes=sum(g.shared_bytes for g in graphs),
            graph_constant_bytes=sum(g.constant_bytes for g in graphs),
        )

    def shrink_memory(self) -> int:
        """Give the arena's wholly free regions back to the device; returns their bytes."""
        self._check_open()
        return self._delegate.arena.shrink()

    # ---- closing

    def close(self) -> None:
        """Wait for the GPU and give everything back; idempotent."""
        self._finalizer()

    def __enter__(self) -> InferenceSession:
        self._check_open()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ---- inside

    @property
    def _delegate(self) -> VulkanDelegate:
        return self._parts.delegate

    def _check_open(self) -> None:
        if self._parts.closed:
            raise ClosedError(f"session of {self.model.source}")
        self._delegate.context  # noqa: B018  # in a forked child it raises, before any lock is tried

    def _wanted(self, names: Sequence[str]) -> Sequence[str]:
        for name in names:
            if name not in self._outputs:
                raise InvalidInputError(f"the model has no output named {name!r}; it has {self._outputs}")
        return names

    def _executable(self, feeds: Mapping[str, Feed]) -> _Running:
        self._check_open()
        values: dict[str, Any] = {}
        signature = []
        for name, info in self._inputs.items():
            value: Any = feeds.get(name)
            if value is None:
                raise wrong_names(self._inputs, feeds)
            if not isinstance(value, (np.ndarray, DeviceTensor)) and info.elem_type:
                value = np.asarray(value)  # a list or a scalar
            values[name] = value
            signature.append(_signature(value))
        if len(feeds) != len(values):
            raise wrong_names(self._inputs, feeds)
        key = tuple(signature)
        if key not in self._parts.cache:
            check_inputs(self._inputs, values)
        for name, value in values.items():
            if isinstance(value, DeviceTensor):
                self.check_tensor(value, f"input {name!r}")
        return _Running(self._parts.cache.use(key, lambda: self._make(values)), values)

    def _make(self, values: Mapping[str, Any]) -> Executable:
        known: dict[str, Known] = dict(self.model.graph.weights)
        known.update({name: known_value(value, name) for name, value in values.items()})
        return self._plan(known)

    def _plan_static(self) -> None:
        if not all(v.is_static for v in self._inputs.values()):
            return
        known: dict[str, Known] = dict(self.model.graph.weights)
        signature = []
        for info in self._inputs.values():
            dtype = dtypes.from_onnx(info.elem_type)
            shape = tuple(int(d) for d in info.shape or ())  # type: ignore[arg-type]
            known[info.name] = ValueSpec(dtype, shape) if dtype else HostValue(dtypes.onnx_name(info.elem_type))
            signature.append((dtype.numpy if dtype else np.dtype(object), shape))
        with self._parts.cache.use(tuple(signature), lambda: self._plan(known)):
            pass

    def _plan(self, known: Mapping[str, Known]) -> Executable:
        return self._parts.compile.plan_model(self.model, known, self._outputs)

    def _targets(self, binding: IOBinding) -> dict[str, DeviceTensor | None]:
        """The outputs that are to lie on the device. Two names never share memory that a run writes."""
        targets: dict[str, DeviceTensor | None] = {}
        taken = {id(t): f"input {n!r}" for n, t in binding.inputs.items() if isinstance(t, DeviceTensor)}
        for name, target in binding.outputs.items():
            if isinstance(target, DeviceTensor):
                self.check_tensor(target, f"output {name!r}")
                other = taken.setdefault(id(target), f"output {name!r}")
                if other != f"output {name!r}":
                    raise InvalidInputError(f"output {name!r}: its device tensor is also bound to {other}")
                targets[name] = target
            elif target == "gpu":
                targets[name] = None
        return targets

    def _result(self, value: Any, name: str) -> Any:
        if isinstance(value, DeviceTensor):
            return value.numpy()
        return value.copy() if name in self._inputs and isinstance(value, np.ndarray) else value

    def _bound_result(self, value: Any, name: str, target: DeviceTensor | str) -> Any:
        """A result where the binding wants it: what no island made (a constant, an input, a CPU node's) is moved."""
        if target == "cpu":
            return self._result(value, name)
        if isinstance(target, DeviceTensor):
            if value is not target:
                check_target(name, value.dtype, value.shape, target)
                target.write(self._result(value, name))
            return target
        return self.device_tensor(value) if isinstance(value, np.ndarray) else value


class _Running:
    """An executable in use, and the values of a run."""

    def __init__(self, use: Any, values: dict[str, Any]) -> None:
        self._use, self._values = use, values

    def __enter__(self) -> tuple[Executable, dict[str, Any]]:
        return self._use.__enter__(), self._values

    def __exit__(self, *exc: object) -> None:
        self._use.__exit__(*exc)


def _signature(value: Any) -> object:
    if isinstance(value, np.ndarray):
        return (value.dtype, value.shape)
    return (value.dtype.numpy, value.shape) if isinstance(value, DeviceTensor) else type(value)


def _node_arg(info: ValueInfo) -> NodeArg:
    return NodeArg(info.name, f"tensor({dtypes.onnx_name(info.elem_type)})" if info.elem_type else "other", info.shape)
