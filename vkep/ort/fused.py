"""OrtNodeComputeInfo: one fused node, run as vkep's plans."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vkep import dtypes
from vkep.device.runner import PlanRunner
from vkep.errors import InvalidInputError, UnsupportedModelError
from vkep.graph.model import Graph
from vkep.graph.weights import unpack
from vkep.lowering.partition import Known, lower
from vkep.lowering.program import CpuStep, HostValue, IslandStep, Placement, Program, ValueSpec
from vkep.ort.boundary import CStruct, ffi, lib, status, value
from vkep.ort.graph import OrtWeight
from vkep.ort.memory import PointerTensor, domain_of
from vkep.ort.tensors import address, byte_count, host_array, host_bytes
from vkep.plan.records import Port
from vkep.session.cpu import CpuRunner
from vkep.session.executor import DeferredExecutor, Executable, ExecutableCache, IslandExecutor

if TYPE_CHECKING:
    from vkep.ort.runtime import Runtime

logger = logging.getLogger("vkep.ort")
_MAX_NUMBERS = 18  # of one input in a signature: type, rank, and at most 16 dimensions


class FusedExecutable(Executable):
    """An executable for one signature, with what a run needs to know of it."""

    def __init__(self, program: Program, steps: Sequence[Any], layout: Sequence[tuple[Any, tuple[int, ...], int]]) -> None:
        super().__init__(program, steps)
        self.layout = layout  #: dtype (None: no tensor of numbers), shape, bytes of each input
        self.ports: dict[str, Port] = {
            p.name: p for s in steps if isinstance(s, IslandExecutor) for p in s.plan.outputs
        }


class FusedNode(CStruct, struct="OrtNodeComputeInfo"):
    """A fused node: its graph, and plans by input signature. Runs in any number of threads at once.

    Args:
        runtime: the session's device side.
        graph: what it computes; its weights are needed until no further signature can come.
        inputs, outputs: the fused node's, in order ("" where absent).
        program: the plan already made for the static signature.
    """

    def __init__(
        self,
        runtime: Runtime,
        graph: Graph,
        opsets: Mapping[str, int],
        ir_version: int,
        inputs: Sequence[str],
        outputs: Sequence[str],
        program: Program | None = None,
        *,
        name: str = "",
    ) -> None:
        self.runtime, self.name = runtime, name
        self._graph: Graph | None = graph
        self._opsets, self._ir_version = opsets, ir_version
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        which = [i for i, n in enumerate(inputs) if n and n not in graph.weights]
        self._names = [inputs[i] for i in which]
        self._which = ffi.new("size_t[]", which)
        self._scratch: list[tuple[Any, Any]] = []
        self.cache = ExecutableCache(runtime.options.plan_cache_size)
        infos = {v.name: v for v in graph.inputs}
        if all(infos[n].is_static for n in self._names if n in infos):
            signature: list[int] = []
            for n in self._names:
                dims = tuple(int(d) for d in infos[n].shape or ())  # type: ignore[arg-type]
                signature += [infos[n].elem_type, len(dims), *dims]
            key = np.array(signature, np.int64).tobytes()
            with self.cache.use(key, lambda: self._make(key, program)) as executable:
                later = not all(isinstance(s, IslandExecutor) for s in executable.steps)
            if not later:
                executable.program = Program((), {}, executable.program.placements)  # lets the weights go
            self._graph = None  # ONNX Runtime holds every run to the shapes
        else:
            later = True
        for weight in graph.weights.values():
            if isinstance(weight, OrtWeight):
                weight.detach(keep=later)
        super().__init__()  # last: from here on ONNX Runtime holds it

    # ---- ONNX Runtime's members

    @status
    def CreateState(self, context: Any, state: Any) -> None:
        self.name = ffi.string(self.runtime.ort.ep_api.NodeComputeContext_NodeName(context)).decode()
        state[0] = ffi.cast("void *", self.pointer)

    @status
    def Compute(self, state: Any, context: Any) -> None:
        ort = self.runtime.ort
        scratch = self._scratch.pop() if self._scratch else self._new_scratch()
        tensors, signature = scratch
        try:
            failed = ffi.new("OrtStatus **")
            length = lib.vkep_gather(
                ort.api, ort.ep_api, context, len(self._names), self._which, tensors, signature, failed
            )
            if length < 0:
                ort.check(failed[0])
            key = ffi.buffer(signature, 8 * length)[:]
            with self.cache.use(key, lambda: self._make(key)) as executable:
                assert isinstance(executable, FusedExecutable)
                self._run(executable, tensors, context)
        finally:
            self._scratch.append(scratch)

    @value(None)
    def ReleaseState(self, state: Any) -> None:
        """Nothing: the plans go with the node."""

    def release(self) -> None:
        super().release()
        self.cache.close()

    # ---- inside

    def _new_scratch(self) -> tuple[Any, Any]:
        count = max(1, len(self._names))
        return ffi.new("VkepTensor[]", count), ffi.new("int64_t[]", count * _MAX_NUMBERS)

    def _run(self, executable: FusedExecutable, tensors: Any, context: Any) -> None:
        values: dict[str, Any] = {}
        for index, name in enumerate(self._names):
            values[name] = self._input(name, tensors[index], *executable.layout[index])
        targets: dict[str, PointerTensor] = {}
        waiting: list[tuple[str, Any]] = []
        for index, name in enumerate(self.outputs):
            port = executable.ports.get(name)
            if port is None:
                continue
            made = self._output(context, index, port.shape)
            if made.on_device:
                dtype = dtypes.DTYPES[port.dtype]
                targets[name] = self._device_tensor(name, made, dtype, port.shape, port.nbytes)
            else:
                waiting.append((name, made))
        executable.run(values, targets)  # type: ignore[arg-type]  # pointer tensors are device tensors
        for name, made in waiting:
            self._write(made, values[name])
        for index, name in enumerate(self.outputs):
            if name and name not in executable.ports:  # folded, or made in a part that was planned during the run
                result = _on_host(values[name])
                self._write(self._output(context, index, result.shape), result)

    def _input(self, name: str, tensor: Any, dtype: Any, shape: tuple[int, ...], nbytes: int) -> Any:
        if dtype is None:
            raise InvalidInputError(f"input {name!r} of {self.name}: no tensor of numbers")
        if tensor.on_device:
            return self._device_tensor(name, tensor, dtype, shape, nbytes)
        if dtype.sub_byte_bits:
            return unpack(host_bytes(tensor.data, byte_count(tensor)), dtype, shape)
        return host_array(tensor.data, dtype, shape, nbytes)

    def _device_tensor(self, name: str, tensor: Any, dtype: Any, shape: tuple[int, ...], nbytes: int) -> PointerTensor:
        pointer = address(tensor.data)
        if dtype.sub_byte_bits:
            raise InvalidInputError(f"{name!r} of {self.name}: {dtype} cannot cross between islands in device memory")
        domain = self.runtime.domain
        if nbytes and domain_of(pointer) is not domain:
            raise InvalidInputError(
                f"{name!r} of {self.name} lies on the context {domain_of(pointer).context.label}, and this session runs on "
                f"{domain.context.label}: give both the same token and group_id"
            )
        return PointerTensor(domain, pointer, dtype, shape, nbytes)

    def _output(self, context: Any, index: int, shape: Sequence[int]) -> Any:
        ort = self.runtime.ort
        made, dims = ffi.new("VkepTensor *"), ffi.new("int64_t[]", list(shape) or [0])
        ort.check(lib.vkep_output(ort.api, ort.ep_api, context, index, dims, len(shape), made))
        return made

    def _write(self, tensor: Any, array: np.ndarray[Any, Any]) -> None:
        nbytes = byte_count(tensor)
        if not nbytes:
            return
        if nbytes != array.nbytes:
            raise TypeError(f"an output of {self.name} has elements narrower than a byte, which do not leave an island")
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        if tensor.on_device:
            self.runtime.domain.upload(address(tensor.data), data)
        else:
            host_bytes(tensor.data, nbytes)[:] = data

    def _make(self, key: bytes, program: Program | None = None) -> FusedExecutable:
        layout, specs = self._layout(key)
        if program is None:
            graph = self._graph
            if graph is None:
                raise InvalidInputError(f"{self.name}: got shapes other than those that the model declares")
            known: dict[str, Known] = {**graph.weights, **specs}
            caps = self.runtime.delegate.capabilities
            program = lower(graph.nodes, known, [o for o in self.outputs if o], self._opsets, caps)
        return FusedExecutable(program, self._steps(program), layout)

    def _layout(self, key: bytes) -> tuple[list[tuple[Any, tuple[int, ...], int]], dict[str, Known]]:
        numbers = np.frombuffer(key, np.int64).tolist()
        layout: list[tuple[Any, tuple[int, ...], int]] = []
        specs: dict[str, Known] = {}
        at = 0
        for name in self._names:
            elem_type, rank = numbers[at : at + 2]
            shape = tuple(numbers[at + 2 : at + 2 + rank])
            at += 2 + rank
            dtype = dtypes.from_onnx(elem_type)
            if dtype is None:
                specs[name] = HostValue(dtypes.onnx_name(elem_type))
                layout.append((None, shape, 0))
            else:
                specs[name] = ValueSpec(dtype, shape)
                layout.append((dtype, shape, int(np.prod(shape, dtype=np.int64)) * dtype.itemsize))
        return layout, specs

    def _ready(self, program: Program) -> Executable:
        return Executable(program, self._steps(program))

    def _steps(self, program: Program) -> list[IslandExecutor | CpuRunner | DeferredExecutor]:
        """Compile and upload a program's islands; other steps as the session's options allow."""
        runtime, options = self.runtime, self.runtime.options
        self._check_placements(program.placements)
        steps: list[IslandExecutor | CpuRunner | DeferredExecutor] = []
        try:
            for step in program.steps:
                if isinstance(step, IslandStep):
                    runner = PlanRunner(runtime.delegate, step.plan, step.weights, concurrency=options.concurrency)
                    steps.append(IslandExecutor(step, runner))
                elif isinstance(step, CpuStep):
                    steps.append(CpuRunner(step, self._opsets))
                else:
                    caps = runtime.delegate.capabilities
                    steps.append(DeferredExecutor(step, self._ready, self._opsets, caps, options.plan_cache_size))
        except BaseException:
            for made in steps:
                if not isinstance(made, CpuRunner):
                    made.close()
            raise
        return steps

    def _check_placements(self, placements: Sequence[Placement]) -> None:
        declined = [p for p in placements if p.where == "cpu"]
        lines = [f"{p.node.title}: {p.reason}" for p in declined]
        if lines and self.runtime.options.fallback == "error":
            raise UnsupportedModelError("fallback='error', and at these shapes Vulkan declines\n  " + "\n  ".join(lines))
        for line in lines:
            logger.warning("%s: claimed for Vulkan, but at these shapes on the CPU: %s", self.name, line)


def _on_host(result: Any) -> np.ndarray[Any, Any]:
    return result if isinstance(result, np.ndarray) else result.numpy()


