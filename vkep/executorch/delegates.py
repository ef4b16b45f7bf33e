"""Delegates prepared on a device. Each runs on arrays and device tensors, and leaves its results on the device or the
host as asked."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple, Protocol

import numpy as np

from vkep import dtypes
from vkep.aten import Border, import_vk_graph
from vkep.device.datagraph.runner import VgfRunner
from vkep.device.tensor import DeviceTensor
from vkep.dtypes import DTYPES
from vkep.errors import InvalidInputError, InvalidPteError, VkepError
from vkep.executorch.context_resources import ContextResources
from vkep.executorch.delegate_payloads import VgfBlob, VulkanBlob
from vkep.pte.values import TensorValue, Value
from vkep.pte.vk_graph import VkGraph, VkTensor
from vkep.session.execution.executor import Executable, IslandExecutor, Watch, own_array, own_tensor
from vkep.session.execution.submit_batch import Staged
from vkep.session.planning.planner import Planner

Array = np.ndarray[Any, Any]


class Pending(NamedTuple):
    """A delegate's run that is submitted together with others."""

    staged: Staged
    kept: Sequence[DeviceTensor | None]  #: the outputs that stay on the device
    results: Callable[[], list[Array | DeviceTensor]]  #: returns what `Runner.run` returns; call it after the submit


class Runner(Protocol):
    """A delegate of a method, for one run at a time."""

    def run(self, inputs: Sequence[Any], keep: Sequence[bool]) -> list[Array | DeviceTensor]:
        """Inputs are arrays, numbers or device tensors of this context; outputs in ``keep`` are device tensors, others
        arrays, which belong to the caller.
        """

    @property
    def can_stage(self) -> bool:
        """Whether `stage` may be called, once it is prepared."""

    def stage(self, inputs: Sequence[Any], keep: Sequence[bool], locks: ExitStack, held: ExitStack) -> Pending:
        """Prepare a run for a submit with others: see `vkep.session.execution.submit_batch.Region`. Device tensors among
        ``inputs`` may be results of these others that are not yet written."""

    def prepare(self) -> None:
        """Plan everything whose shapes are known before the first run."""

    def executables(self) -> list[Executable]:
        """The plans, for the report."""

    def close(self) -> None:
        """Free the delegate's resources."""


class VulkanRunner:
    """A Vulkan delegate: its graph imported, planned for each signature of its inputs."""

    def __init__(
        self,
        resources: ContextResources,
        blob: VulkanBlob,
        inputs: Sequence[Value],
        outputs: Sequence[Value],
        named_data: Mapping[str, memoryview],
        where: str,
    ) -> None:
        imported = import_vk_graph(
            blob.graph,
            named_data,
            inputs=[_border(v, blob.graph, i, where) for v, i in zip(inputs, blob.graph.input_ids, strict=True)],
            outputs=[_border(v, blob.graph, i, where) for v, i in zip(outputs, blob.graph.output_ids, strict=True)],
            source=where,
        )
        self._where = where
        self._resources = resources
        self.model = imported.model
        graph = self.model.graph
        self._inputs = [v.name for v in graph.inputs[: len(inputs)]]
        self._outputs = [v.name for v in graph.outputs[: len(outputs)]]
        self._all = [v.name for v in graph.outputs]
        planner = Planner(resources.vulkan, resources.options, self.model)
        self._graph = planner.graph(graph.nodes, graph.weights, self._all, name=where)
        self._states: dict[str, Any] = {s.input: s.initial.array() for s in imported.states}
        self._kept = {s.output: s.input for s in imported.states}
        self._key: Hashable = None  # of the only signature, where all shapes are static
        self._spare: dict[str, DeviceTensor] = {}  # maps a state to its next value
        self._held: dict[str, DeviceTensor] = {}  # outputs that stay on the device, allocated once
        self.watch: Watch | None = None  #: runs the steps of `run` one by one, to time them

    def prepare(self) -> None:
        """As `Runner.prepare`."""
        try:
            self._key = self._graph.plan_static(self.model.graph.inputs)
        except InvalidInputError as error:
            raise InvalidPteError(f"{self._where}: {error}") from None

    @property
    def can_stage(self) -> bool:
        """True where its graph is one island that computes all outputs and keeps no state."""
        return self._key is not None and not self._kept and self._island() is not None

    def _island(self) -> IslandExecutor | None:
        one = self._graph.latest.island if self._graph.latest is not None else None
        return one if one is not None and set(self._all) <= set(one.outputs) else None

    def stage(self, inputs: Sequence[Any], keep: Sequence[bool], locks: ExitStack, held: ExitStack) -> Pending:
        """As `Runner.stage`."""
        values, targets = self._bind(inputs, keep)
        island = self._island()
        assert island is not None
        staged = island.stage(values, targets, locks, held)
        kept = [values[name] if wanted else None for name, wanted in zip(self._outputs, keep, strict=True)]
        return Pending(staged, kept, lambda: self._results(inputs, keep, values, targets))

    def run(self, inputs: Sequence[Any], keep: Sequence[bool]) -> list[Array | DeviceTensor]:
        """As `Runner.run`."""
        values, targets = self._bind(inputs, keep)
        self._graph.run(values, targets, self._key, self.watch)
        return self._results(inputs, keep, values, targets)

    def _bind(
        self, inputs: Sequence[Any], keep: Sequence[bool]
    ) -> tuple[dict[str, Any], dict[str, DeviceTensor | None]]:
        values: dict[str, Any] = {}
        for name, value in zip(self._inputs, inputs, strict=True):
            values[name] = value if isinstance(value, (np.ndarray, DeviceTensor)) else np.asarray(value)
        values.update(self._states)
        targets: dict[str, DeviceTensor | None] = {}
        for name, kept in zip(self._outputs, keep, strict=True):
            if kept:
                targets[name] = self._held.get(name)
        for name in self._kept:
            targets[name] = self._spare.get(name)
        return values, targets

    def _results(
        self,
        inputs: Sequence[Any],
        keep: Sequence[bool],
        values: Mapping[str, Any],
        targets: Mapping[str, DeviceTensor | None],
    ) -> list[Array | DeviceTensor]:
        for output in self._kept:  # a failed run leaves the states as they were
            if isinstance(values[output], DeviceTensor):
                values[output].check()
        for output, name in self._kept.items():
            self._keep_state(output, name, values[output])
        given = {id(v) for v in (*inputs, *self._states.values())}
        return [
            self._result(name, values[name], targets.get(name) if kept else None, kept, id(values[name]) in given)
            for name, kept in zip(self._outputs, keep, strict=True)
        ]

    def _keep_state(self, output: str, name: str, value: Any) -> None:
        before = self._states[name]
        if isinstance(value, DeviceTensor):
            if isinstance(before, DeviceTensor):
                self._spare[output] = before
            else:
                self._spare.pop(output, None)
        self._states[name] = value

    def _result(
        self, name: str, value: Any, target: DeviceTensor | None, kept: bool, given: bool
    ) -> Array | DeviceTensor:
        """``given``: the value is also an input or a state, so the result is copied."""
        if not kept:
            return own_array(value, given)
        tensor = own_tensor(self._resources.vulkan, name, value, target, given)
        if self._key is not None:
            self._held[name] = tensor
        return tensor

    @property
    def borders(self) -> tuple[Sequence[str], Sequence[str]]:
        """The names in its graph of the program's inputs and outputs."""
        return self._inputs, self._outputs

    def executables(self) -> list[Executable]:
        """As `Runner.executables`."""
        return [self._graph.latest] if self._graph.latest is not None else []

    def close(self) -> None:
        """As `Runner.close`."""
        self._graph.close()
        for tensor in (*self._held.values(), *self._spare.values(), *self._states.values()):
            if isinstance(tensor, DeviceTensor):
                tensor.close()
        self._held.clear()
        self._spare.clear()


class GraphRunner:
    """A VGF delegate: its file runs unchanged, on device tensors that are allocated once.

    Bytes cross its border in the order in which the program stores them: where that differs from the order of the
    dimensions (channels last), the exporter gave the VGF's tensor the stored shape.

    Raises `InvalidPteError` where the program's tensors differ from the VGF's.
    """

    def __init__(
        self, resources: ContextResources, blob: VgfBlob, inputs: Sequence[Value], outputs: Sequence[Value], where: str
    ) -> None:
        vgf = blob.vgf
        self._where = where
        self._memory = resources.vulkan
        self._ports = []
        for slot, value in zip((*vgf.inputs, *vgf.outputs), (*inputs, *outputs), strict=True):
            resource = vgf.resources[slot.resource]
            if not isinstance(value, TensorValue):
                raise InvalidPteError(f"{where}: value {value!r} at {slot.name!r} is no tensor")
            if math.prod(value.sizes) != math.prod(resource.shape):
                raise InvalidPteError(
                    f"{where}: the program has {value} at {slot.name!r}, the VGF {resource.dtype} {list(resource.shape)}"
                )
            self._ports.append((DTYPES[resource.dtype], value))
        self._count = len(inputs)
        self.constant_bytes = sum(len(c.data) for c in vgf.constants)  #: which the driver stores
        self.runner = VgfRunner(resources.vgf, vgf)
        self._tensors: list[DeviceTensor] = []
        try:
            for dtype, value in self._ports:
                self._tensors.append(DeviceTensor(self._memory, dtype, value.stored_sizes))
        except BaseException:
            self.close()
            raise

    def prepare(self) -> None:
        """As `Runner.prepare`."""

    @property
    def can_stage(self) -> bool:
        """True where the host casts nothing between the program and the file."""
        return all(dtype.numpy == spec.dtype for dtype, spec in self._ports)

    def stage(self, inputs: Sequence[Any], keep: Sequence[bool], locks: ExitStack, held: ExitStack) -> Pending:
        """As `Runner.stage`."""
        given = [self._given(k, value) for k, value in enumerate(inputs)]
        results = self._tensors[self._count :]
        recorded = locks.enter_context(self.runner.staged(given, results))
        staged = Staged(self.runner.lease, [recorded.commands], recorded.submitted)
        return Pending(staged, results, lambda: self._results(keep))

    def run(self, inputs: Sequence[Any], keep: Sequence[bool]) -> list[Array | DeviceTensor]:
        """As `Runner.run`."""
        given = [self._given(k, value) for k, value in enumerate(inputs)]
        self.runner.submit(given, self._tensors[self._count :])
        return self._results(keep)

    def _results(self, keep: Sequence[bool]) -> list[Array | DeviceTensor]:
        results = self._tensors[self._count :]
        found: list[Array | DeviceTensor] = []
        for (_, spec), tensor, kept in zip(self._ports[self._count :], results, keep, strict=True):
            if kept and tensor.dtype.numpy == spec.dtype:
                found.append(tensor)
            else:
                array = np.asarray(spec.from_stored(tensor.numpy()), order="C")
                found.append(array if array.dtype == spec.dtype else array.astype(spec.dtype))
        return found

    def _given(self, index: int, value: Any) -> DeviceTensor:
        dtype, spec = self._ports[index]
        if isinstance(value, DeviceTensor):
            if value.dtype is dtype and value.nbytes == self._tensors[index].nbytes and not value.capacity:
                return value
            value = value.numpy()
        array = np.asarray(value)
        if array.size != math.prod(spec.sizes):
            raise VkepError(f"{self._where}: got a tensor of shape {list(array.shape)}, the VGF was made for {spec}")
        tensor = self._tensors[index]
        tensor.write(np.asarray(spec.to_stored(array.reshape(spec.sizes)), dtype.numpy, order="C"))
        return tensor

    def executables(self) -> list[Executable]:
        """As `Runner.executables`."""
        return []

    def close(self) -> None:
        """As `Runner.close`."""
        self.runner.close()
        for tensor in self._tensors:
            tensor.close()
        self._tensors = []


def _border(value: Value, graph: VkGraph, index: int, where: str) -> Border:
    """The program's tensor for the value ``index`` of the delegate's graph. Raises `InvalidPteError` where the two do
    not match."""
    if not isinstance(value, TensorValue):
        return Border()
    inside = graph.values[index]
    dims = tuple(inside.dims) if isinstance(inside, VkTensor) else ()
    same = isinstance(inside, VkTensor) and dims == value.sizes
    if isinstance(inside, VkTensor) and not value.is_static:
        fits = len(dims) == len(value.sizes)
    else:
        fits = math.prod(dims) == math.prod(value.sizes)
    if not fits:
        raise InvalidPteError(f"{where}: the program has {value} where the delegate's graph has the shape {list(dims)}")
    shape = None if same or not value.is_static else value.sizes
    return Border(dtypes.from_numpy(value.dtype).onnx, not value.is_static, shape)
