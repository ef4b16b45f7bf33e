"""`InferenceSession`: a model on a device, with the interface of ONNX Runtime's class.

This module imports little: `vkep.session.session_state` imports numpy, onnx and most of vkep while the driver opens the
device of the first session.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

from gpu_shared.steady import check_wanted, closing, on_end, settle, steady
from gpu_shared.uncopied import Uncopied
from vkep.errors import InvalidInputError, join_onnxruntime
from vkep.session.contexts import ContextAhead
from vkep.session.options import SessionOptions, merged_options
from vkep.session.ort_interface.options import WITHOUT_EFFECT, provider_overrides
from vkep.session.ort_interface.session import OrtSession
from vkep.text import one_line

if TYPE_CHECKING:
    import numpy as np
    from typing_extensions import Unpack

    from gpu_shared.context import SharedGpuContext
    from gpu_shared.lease import DelegateLease
    from vkep.device.delegate import VulkanDelegate
    from vkep.device.external import ExportedMemory, ExternalMemory
    from vkep.device.tensor import DeviceTensor
    from vkep.graph.load import ModelSource
    from vkep.graph.model import Dim, Model, ModelMetadata, ValueInfo
    from vkep.session.binding import IOBinding
    from vkep.session.execution.executor import IslandExecutor
    from vkep.session.external import ExternalSemaphore
    from vkep.session.options import SessionKeywords
    from vkep.session.ort_interface.value import OrtValue
    from vkep.session.reports.report import MemoryReport, Report
    from vkep.session.run_options import RunOptions
    from vkep.session.session_state import Array, Feed, Output
    from vkep.view.page import Page

logger = logging.getLogger("vkep.session")


@dataclass(frozen=True)
class NodeArg:
    """An input or output of the model: ``type`` in ONNX's notation (``tensor(float)``, ``seq(tensor(float))``),
    symbolic dimensions by name; ``shape`` is None for a tensor whose rank the model does not give, and empty for what is no
    tensor."""

    name: str
    type: str
    shape: list[Dim] | None


class InferenceSession(OrtSession, Uncopied):
    """A model ready to run on Vulkan.

    Args:
        path_or_bytes: a path, the model's bytes, or an ``onnx.ModelProto``.
        sess_options: see `SessionOptions`; keyword arguments override its fields. Or onnxruntime's options
            (`vkep.session.ort_interface.options.of_onnxruntime`).
        providers: as ``onnxruntime.InferenceSession`` takes them. The options of ``VulkanExecutionProvider`` apply; a
            provider other than this one and the CPU's leads to a warning.
        provider_options: the options of each provider, in the same order.
        context: a `SharedGpuContext` to use instead of the one that the options name; or the `lease` of another session, for
            a session that belongs to it.

    Static shapes are planned, compiled and uploaded at once; dynamic ones at the first run of each signature. Safe to
    use from several threads. Close it (or use ``with``) to free its memory. A thread opens the context while the model
    is read, and has ended when the constructor returns.

    Raises `InvalidModelError`, `UnsupportedModelError`, ``FileNotFoundError``, ``TypeError`` and ``ValueError`` for
    options, the context errors of `gpu_shared.errors`, `DriverNotFoundError`, `ArenaOutOfMemory`.
    """

    _instead = "open another session with the same model and options, in each process"

    def __init__(
        self,
        path_or_bytes: ModelSource,
        sess_options: SessionOptions | None = None,
        providers: Sequence[str | tuple[str, Mapping[str, Any]]] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        *,
        context: SharedGpuContext | DelegateLease | None = None,
        **overrides: Unpack[SessionKeywords],
    ) -> None:
        started = time.perf_counter_ns()
        join_onnxruntime()
        self.options = options_of(sess_options, providers, provider_options, **overrides)
        self._open(path_or_bytes, context, started)

    @steady
    def _open(self, model: ModelSource, context: SharedGpuContext | DelegateLease | None, started: int) -> None:
        there = not isinstance(model, (str, os.PathLike)) or os.path.isfile(model)  # else the driver is not opened
        with ContextAhead(self.options, context, start=there) as ahead:
            from vkep.session.session_state import SessionState

            self._parts = SessionState(model, self.options, ahead.result)
        self._finalizer = on_end(self, self._parts.close)
        try:
            self._parts.plan_static()
            if self._parts.profile is not None:
                profile = self._parts.profile
                profile.add("Session", "session_initialization", started, time.perf_counter_ns() - started)
            check_wanted()
        except BaseException:
            self.close()
            raise

    # ---- the model's inputs and outputs

    @property
    def model(self) -> Model:
        """The model."""
        return self._parts.model

    def get_inputs(self) -> list[NodeArg]:
        """The model's inputs in order, initializers left out."""
        return [_node_arg(v) for v in self.model.graph.inputs]

    def get_outputs(self) -> list[NodeArg]:
        """The model's outputs in order."""
        return [_node_arg(v) for v in self.model.graph.outputs]

    def get_overridable_initializers(self) -> list[NodeArg]:
        """The weights that a run may replace: initializers that are also inputs, from IR version 4 on."""
        return [_node_arg(v) for v in self.model.graph.overridable]

    def get_modelmeta(self) -> ModelMetadata:
        """The model's metadata."""
        return self.model.metadata

    @property
    def context(self) -> SharedGpuContext:
        """The shared context that the session runs on."""
        return self._delegate.context

    @property
    def lease(self) -> DelegateLease:
        """The session's lease on its context: sessions with ``context=session.lease`` open also after the context's `close`."""
        return self._delegate.lease

    # ---- running

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Feed], run_options: RunOptions | None = None
    ) -> list[Output]:
        """Run the model; results of ``output_names`` (None, or none: all) in order.

        Inputs are numpy arrays (any strides) or what numpy makes one of, `DeviceTensor` or `OrtValue` with the shapes
        and element types that `get_inputs` gives; a sequence is a list of them, an optional without an element None.
        Results are numpy arrays; of a sequence a list of them, of a map a dict, of an optional without an element None. Type
        checkers see an array, which a program with other results narrows (``isinstance(y, list)``).

        Raises `InvalidInputError` for a wrong name, rank, shape or dtype and for data that break an operator's
        specification, ``TypeError`` for other kinds of arguments, `RunTerminatedError`, `ClosedError`,
        `ArenaOutOfMemory`, `DeviceLostError`.
        """
        parts = self._parts
        names = parts.outputs if output_names is None else self._wanted(output_names)
        values = parts.inputs_of(input_feed, run_options)
        parts.execute(values, {}, run_options)
        return [parts.result(values[name], name) for name in names]

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Feed],
        callback: Callable[[list[Output], Any, str], object],
        user_data: Any = None,
        run_options: RunOptions | None = None,
    ) -> None:
        """`run` in a thread of the session's (``concurrency`` of them), which then calls ``callback(results, user_data,
        error)``: the list that `run` returns and an empty text, or an empty list and the error's text where the run
        failed. An exception in the callback is logged.

        `close`, and the end of the interpreter, wait for it. Arrays in ``input_feed`` must not change until then. Raises
        ``TypeError``, `InvalidInputError` and `ClosedError` at once for arguments that are wrong in any run.
        """
        if not callable(callback):
            raise TypeError(f"callback is {callback!r}, expected a function of results, user_data and an error's text")
        names = self._parts.outputs if output_names is None else self._wanted(output_names)
        values = self._parts.inputs_of(input_feed, run_options)

        def work() -> None:
            results, error = [], ""
            try:
                self._parts.execute(values, {}, run_options)
                results = [self._parts.result(values[name], name) for name in names]
            except Exception as raised:
                error = f"{type(raised).__name__}: {raised}"
            try:
                callback(results, user_data, error)
            except Exception:
                logger.exception("the callback of run_async raised")

        self._parts.later(work)

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> list[OrtValue]:
        """`run` with and to `OrtValue`, with the shapes and types of the model's inputs and outputs. The results are on
        the host. Raises as `run`."""
        from vkep.session.ort_interface.value import OrtValue

        return [OrtValue.of(result) for result in self.run(output_names, input_dict_ort_values, run_options)]

    def io_binding(self) -> IOBinding:
        """A new binding for `run_with_iobinding`."""
        from vkep.session.binding import IOBinding

        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: RunOptions | None = None) -> None:
        """Run with bound inputs and outputs; results are in the binding. Raises as `run`."""
        parts = self._parts
        repeat = iobinding.repeat
        if repeat is not None and run_options is None:
            parts.check_open()
            if parts.watch is None and repeat.run():
                return
            iobinding.change()
        targets = parts.targets(iobinding.inputs, iobinding.outputs)
        values = parts.inputs_of(iobinding.inputs, run_options)
        parts.execute(values, targets, run_options)
        iobinding.results = parts.bound_results(values, iobinding.outputs)
        iobinding.unchanged += 1
        if iobinding.unchanged == 2:  # programs that bind other tensors for each run do not pay for it
            iobinding.repeat = parts.repeat(iobinding.inputs, targets, iobinding.results)

    def device_tensor(self, array: Array) -> DeviceTensor:
        """Upload an array, or anything that numpy converts (lists, other libraries' tensors on the host), to the
        session's device, with its shape and dtype. Raises ``TypeError`` for a dtype that no GPU buffer holds,
        `ArenaOutOfMemory`, `ClosedError`."""
        import numpy as np

        from vkep.device.tensor import DeviceTensor

        self._check_open()
        return DeviceTensor.from_numpy(self._delegate, np.asarray(array))

    def empty_device_tensor(
        self, shape: Sequence[SupportsIndex], dtype: str = "float32", *, host_visible: bool = False
    ) -> DeviceTensor:
        """Allocate uninitialized device memory for an output of ``shape``; ``dtype`` is numpy's name, such as
        ``float32``. ``host_visible``: for small results that the host reads by `DeviceTensor.host_view`, which waits
        for the run that wrote them and for no later one.

        Raises ``TypeError`` for an unknown dtype or sizes that are no integers, ``ValueError`` for a negative size,
        `ArenaOutOfMemory`, `ClosedError`.
        """
        from vkep.device.tensor import DeviceTensor, checked_shape
        from vkep.dtypes import DTYPES

        self._check_open()
        if dtype not in DTYPES:
            raise TypeError(f"dtype is {dtype!r}, expected one of {sorted(DTYPES)}")
        return DeviceTensor(self._delegate, DTYPES[dtype], checked_shape(shape), host_visible=host_visible)

    @overload
    def import_memory(self, source: np.ndarray[Any, Any]) -> ExternalMemory: ...
    @overload
    def import_memory(
        self, source: int, size: int, *, memory_type: int | None = None, dedicated: bool = False
    ) -> ExternalMemory: ...
    def import_memory(
        self,
        source: int | np.ndarray[Any, Any],
        size: int | None = None,
        *,
        memory_type: int | None = None,
        dedicated: bool = False,
    ) -> ExternalMemory:
        """Memory of another owner, for tensors that runs read and write in place: an opaque file descriptor of ``size``
        bytes (it is duplicated; other arguments as for `gpu_shared.external.MemorySource`), or a host array whose
        address and size (bytes) are multiples of `gpu_shared.external.host_alignment`.

        Raises ``TypeError`` for a descriptor without ``size``, ``ValueError`` for an array that is read-only or not
        contiguous, and as `gpu_shared.external.ImportedBuffer`.
        """
        from vkep.session.external import import_memory

        self._check_open()
        return import_memory(self._delegate, source, size, memory_type, dedicated)

    def export_memory(self, size: int) -> ExportedMemory:
        """``size`` bytes of new memory on the session's device for tensors, which other devices and APIs may import by
        a file descriptor. Raises as `gpu_shared.external.exported_buffer`."""
        from vkep.device.external import ExportedMemory

        self._check_open()
        return ExportedMemory(self._delegate, size)

    def import_semaphore(self, descriptor: int) -> ExternalSemaphore:
        """A timeline semaphore of another device. Raises as `gpu_shared.external.ImportedSemaphore`."""
        from vkep.session.external import ExternalSemaphore

        self._check_open()
        return ExternalSemaphore(self._delegate, descriptor)

    def check_tensor(self, tensor: DeviceTensor, what: str) -> None:
        """Raise `InvalidInputError` unless the tensor is open and on this session's context, and ``TypeError`` for
        anything but a `DeviceTensor`. ``what`` begins the message."""
        self._parts.check_tensor(tensor, what)

    # ---- looking inside

    def report(self) -> Report:
        """Where each node runs and why, for the signature planned last."""
        from vkep.session.reports.reporting import report_of

        self._check_open()
        return report_of(self._parts)

    @steady
    def plan(self, shapes: Mapping[str, Sequence[int]]) -> Report:
        """Plan for input shapes ahead of the first run (dynamic models); ``shapes`` names every dynamic input. Returns
        the plan's report. Raises `InvalidInputError` for a missing or unknown name or a shape that the model does not
        allow, `UnsupportedModelError`, `ArenaOutOfMemory`."""
        with self._parts.plan_shapes(shapes).hold:
            return self.report()

    def islands(self) -> list[IslandExecutor]:
        """The islands of the signature planned last (for profiling and explaining)."""
        from vkep.session.reports.introspection import flatten

        latest = self._parts.graph.latest
        return flatten(latest).islands if latest else []

    @steady
    def profile(self, feeds: Mapping[str, Feed]) -> list[list[float]]:
        """Nanoseconds of each dispatch of each island in one run."""
        from vkep.session.reports.introspection import flatten

        values = self._parts.inputs_of(feeds)
        used = self._parts.graph_of(values).use(values)
        with used.hold:
            used.executable.run(values, {})
            return [i.profile(values) for i in flatten(used.executable).islands]

    @steady
    def profile_regions(self, feeds: Mapping[str, Feed]) -> list[tuple[str, float]]:
        """The GPU's nanoseconds in each region of one run of a mixed model, by delegate and nodes; for the regions that
        are submitted together; with the sync mode ``queue_wait_idle`` there are none. One thread at a time.
        """
        from vkep.session.reports.tracing import region_times

        values = self._parts.inputs_of(feeds)
        used = self._parts.graph_of(values).use(values)
        with used.hold:
            return region_times(used.executable, values)

    @steady
    def view(self, feeds: Mapping[str, Feed] | None = None, runs: int = 5, *, against: Page | None = None) -> Page:
        """A page of the session: graph, timeline, dispatches, memory, contexts. Jupyter shows it inline; `Page.open` writes it
        and opens it in the browser.

        With ``feeds`` the model is run ``runs`` times unchanged and ``runs`` times with a wait after each dispatch, all
        timed; without them nothing is run. ``against``: the page of another run, to compare with. Raises as `run`.
        """
        from vkep.session.reports.viewing import session_document
        from vkep.view.page import Page

        self._check_open()
        document = session_document(self._parts, feeds, runs)
        return Page([document] if against is None else [document, against.document])

    def memory(self) -> MemoryReport:
        """The device arena (shared by all sessions on the context), and the weights on the device."""
        from vkep.session.reports.reporting import memory_of

        self._check_open()
        return memory_of(self._parts)

    @steady
    def shrink_memory(self) -> int:
        """Return the arena's wholly free regions to the device; returns their bytes. Host memory that is kept for later
        results is freed as well."""
        self._check_open()
        self._delegate.results.trim()
        return self._delegate.arena.shrink()

    # ---- closing

    @closing
    def close(self) -> None:
        """Wait for the GPU and free everything; idempotent. Another thread destroys a context that nothing else refers to, and
        this one waits for that, a second at most. If a signal handler raises meanwhile, another thread completes the work.
        Where the garbage collector calls, it returns at once, and another thread does the work."""
        self._finalizer()
        settle()  # not for ever: the caller may hold a lock that another finalizer needs

    def __repr__(self) -> str:
        parts = self._parts
        where = "closed" if parts.closed else f"on {parts.delegate.capabilities.name}"
        nodes = len(parts.model.graph.nodes)
        return f"<vkep.InferenceSession of {one_line(parts.model.source)}, {nodes} node{'s' * (nodes != 1)}, {where}>"

    def _repr_html_(self) -> str:
        import html

        tables = "" if self._parts.closed else self.report()._repr_html_()
        return f"<code>{html.escape(repr(self))}</code>{tables}"

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
        self._parts.check_open()

    def _wanted(self, names: Sequence[str]) -> Sequence[str]:
        if isinstance(names, str) or not hasattr(names, "__iter__"):
            raise TypeError(f"output_names is a {type(names).__name__}, expected a list of names (None: all)")
        names = list(names)  # it may be an iterator, and is iterated twice
        for name in names:
            if name not in self._parts.output_names:
                raise InvalidInputError(f"the model has no output named {name!r}; it has {self._parts.outputs}")
        return names or self._parts.outputs


def options_of(
    sess_options: SessionOptions | None = None,
    providers: Sequence[str | tuple[str, Mapping[str, Any]]] | None = None,
    provider_options: Sequence[Mapping[str, Any]] | None = None,
    **overrides: Unpack[SessionKeywords],
) -> SessionOptions:
    """The options of a session with these arguments of `InferenceSession`. Raises as `merged_options`."""
    given = {name: value for name, value in overrides.items() if name not in WITHOUT_EFFECT}
    return merged_options(sess_options, {**provider_overrides(providers, provider_options), **given})


def _node_arg(info: ValueInfo) -> NodeArg:
    from vkep.session.inputs import type_name

    no_rank = info.shape is None and info.is_tensor
    return NodeArg(info.name, type_name(info), None if no_rank else list(info.shape or ()))
