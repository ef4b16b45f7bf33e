"""OrtNodeComputeInfo: one fused node, run by vkep's plans."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vkep import dtypes
from vkep.device.bound import Bound
from vkep.device.tensor import ALIGNMENT, on_host, open_checks
from vkep.dtypes import DTYPES
from vkep.errors import InvalidInputError, VkepError
from vkep.graph.model import Graph, Model, ValueInfo
from vkep.graph.weights import pack, unpack
from vkep.ir.infer import Known
from vkep.ir.program import Over, Program, ValueSpec, declared_value
from vkep.ort.boundary import NULL, CStruct, ffi, lib, status, value
from vkep.ort.graph import OrtWeight
from vkep.ort.memory import NUMBER_SHIFT, PointerTensor, domain_of
from vkep.ort.options import session_options
from vkep.ort.tensors import address, byte_count, host_array, host_bytes
from vkep.plan.records import Port
from vkep.session.executor import Executable, IslandExecutor, Targets
from vkep.session.planned_graph import DeferredExecutor, Use, allowed, overwritten
from vkep.session.planner import Planner
from vkep.session.vgf_executor import GraphRefused, VgfExecutor

if TYPE_CHECKING:
    from vkep.ort.checks import RunChecks
    from vkep.ort.runtime import Runtime

logger = logging.getLogger("vkep.ort")
_PLANNED = (IslandExecutor, VgfExecutor)
_MAX_NUMBERS = 18  # size of one input in a signature: type, rank, and at most 16 dimensions


class _Details:
    """The properties of an executable that a run needs: dtype (None: not a tensor of numbers), shape and bytes of each
    input, and the outputs that islands compute."""

    def __init__(
        self,
        executable: Executable,
        specs: Iterable[Known],
        inputs: Sequence[str],
        outputs: Sequence[str],
        over: Over,
    ) -> None:
        self.over = over  #: the outputs that the executable writes to an input's memory
        self.layout = [_layout(spec) for spec in specs]
        self.ports: dict[str, Port] = {}
        for step in executable.steps:
            if isinstance(step, IslandExecutor):
                self.ports.update({p.name: p for p in step.plan.outputs})
            elif isinstance(step, VgfExecutor):
                made = (Port(p.name, p.dtype.name, p.shape, p.nbytes, is_input=False) for p in step.graph.outputs)
                self.ports.update({p.name: p for p in made})
        self.on_device: _OnDevice | None = None
        island = executable.sole_island
        if island is not None and not any(DTYPES[p.dtype].sub_byte_bits for p in island.plan.ports):
            with contextlib.suppress(KeyError):  # an output that is also an input, or folded
                self.on_device = _OnDevice(island, inputs, outputs)


class _Scratch:
    """The arrays that a run fills with its tensors' descriptions."""

    def __init__(self, inputs: int, outputs: int) -> None:
        self.tensors = ffi.new("VkepTensor[]", max(1, inputs))
        self.signature = ffi.new("int64_t[]", max(1, inputs) * _MAX_NUMBERS)
        self.addresses = ffi.new("uint64_t[]", inputs + outputs)
        self.failed = ffi.new("OrtStatus **")


class _OnDevice:
    """Runs an executable that is one island, where all inputs and outputs are in the session's device memory: such a
    run needs only their addresses."""

    def __init__(self, island: IslandExecutor, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        """Raises `KeyError` where a port of the island is not an input or output of the fused node."""
        self._runner = island.runner
        ports = {p.name: p for p in island.plan.outputs}
        made = [(i, ports[name]) for i, name in enumerate(outputs) if name]
        self.count = len(made)
        self.which = ffi.new("size_t[]", [i for i, _ in made])
        self.ranks = ffi.new("size_t[]", [len(port.shape) for _, port in made])
        self.dims = ffi.new("int64_t[]", [d for _, port in made for d in port.shape] or [0])
        self._inputs, self._outputs = inputs, [port.name for _, port in made]
        places = {name: i for i, name in enumerate(inputs)}
        places |= {port.name: len(inputs) + k for k, (_, port) in enumerate(made)}
        self._order = [places[port.name] for port in island.plan.ports]

    def over(self, addresses: Sequence[int]) -> Over:
        """The outputs that are to be written to an input's memory; ``addresses`` as for `run`."""
        made = addresses[-self.count :] if self.count else ()
        if set(made).isdisjoint(addresses[: len(self._inputs)]):
            return ()
        outputs = dict(zip(made, self._outputs, strict=True))
        pairs = zip(self._inputs, addresses, strict=False)
        return tuple([(outputs[address], name) for name, address in pairs if address in outputs])

    def run(self, addresses: Sequence[int], checks: RunChecks) -> None:
        """``addresses`` of the inputs, then of the outputs."""
        bound = Bound([addresses[i] for i in self._order])
        self._runner.run(bound)
        if bound.checks:
            checks.add(bound.checks)


class FusedNode(CStruct, struct="OrtNodeComputeInfo"):
    """A fused node: its graph, and plans by input signature. Runs in any number of threads at once.

    Args:
        runtime: the session's device side.
        graph: its nodes; its weights are needed as long as another signature may occur.
        inputs, outputs: the fused node's, in order ("" where absent).
        program: the plan already made for the static signature.
        shapes_hold: whether ONNX Runtime checks every run against the declared shapes of the inputs. It does for a
            model's inputs; what it infers for other values may be wrong (the output of an If whose branches differ).
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
        shapes_hold: bool = False,
    ) -> None:
        self.runtime, self.name = runtime, name
        session = session_options(runtime.device, runtime.options)
        model = Model(graph, opsets, ir_version, name)
        self._planner = Planner(runtime.delegate, session, model, runtime.policy, runtime.graphs)
        self.planned = self._planner.graph(graph.nodes, graph.weights, [o for o in outputs if o], name=name)
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        which = [i for i, n in enumerate(inputs) if n and n not in graph.weights]
        self._names = [inputs[i] for i in which]
        self._types = {v.name: v.elem_type for v in graph.outputs if v.elem_type}
        self._which = ffi.new("size_t[]", which)
        self._scratch: list[_Scratch] = []
        self._over: Over = ()  # the outputs that the latest runs wrote to an input's memory
        self._domain = ffi.new("VkepDomain *", (runtime.domain.number, NUMBER_SHIFT, ALIGNMENT))
        declared = {v.name: v for v in graph.inputs}
        later = True
        rewrites = _rewrites_an_input(graph)
        # ONNX Runtime declares a tensor of unknown rank as a scalar: a plan that fails because of it is made in a run
        with contextlib.suppress(InvalidInputError):
            later = self._planned_ahead(declared, program, shapes_hold and not rewrites)
        for weight in graph.weights.values():
            if isinstance(weight, OrtWeight):
                weight.detach(keep=later)
        super().__init__()  # last: from here on ONNX Runtime holds it

    def _planned_ahead(self, declared: Mapping[str, ValueInfo], program: Program | None, shapes_hold: bool) -> bool:
        """Plan for the declared shapes, where all are static; returns whether a run may still need another plan: unless
        ``shapes_hold``.

        Raises `InvalidInputError` where a node does not allow these shapes.
        """
        if not all(n in declared and declared[n].is_static for n in self._names):
            return True
        infos = [declared[n] for n in self._names]
        numbers = [n for info in infos for n in (info.elem_type, len(info.shape or ()), *(info.shape or ()))]
        key = np.array(numbers, np.int64).tobytes()
        used = self.planned.use_key((key, ()), lambda: self._make(key, program))
        with used.hold:
            executable = used.executable
            later = not shapes_hold or not all(isinstance(s, _PLANNED) for s in executable.steps)
        if not later:
            done = executable.program
            executable.program = Program((), {}, done.placements, done.outputs)  # releases the weights
            self.planned.seal()
        return later

    # ---- ONNX Runtime's members

    @status
    def CreateState(self, context: Any, state: Any) -> None:
        """Store the name that ONNX Runtime gave the node."""
        self.name = ffi.string(self.runtime.ort.ep_api.NodeComputeContext_NodeName(context)).decode()
        state[0] = ffi.cast("void *", self.pointer)

    @status
    def Compute(self, state: Any, context: Any) -> None:
        """Run once: by addresses alone where all tensors are on the device, else by values."""
        ort = self.runtime.ort
        scratch = self._scratch.pop() if self._scratch else _Scratch(len(self._names), len(self.outputs))
        try:
            count, addresses = len(self._names), scratch.addresses
            length = lib.vkep_gather(
                ort.api,
                ort.ep_api,
                context,
                count,
                self._which,
                self._domain,
                scratch.tensors,
                addresses,
                scratch.signature,
                scratch.failed,
            )
            if length < 0:
                ort.check(scratch.failed[0])
            key = ffi.buffer(scratch.signature, 8 * length)[:]
            over = self._over  # most likely the same as in the previous run
            used = self.planned.use_key((key, over), lambda: self._make(key, over=over))
            with used.hold:
                executable = used.executable
                known = executable.caller.on_device
                here = known is not None and 0 not in ffi.unpack(addresses, count)
                if known is not None and here and not self.runtime.profilers:
                    made = lib.vkep_outputs(
                        ort.api,
                        ort.ep_api,
                        context,
                        known.count,
                        known.which,
                        self._domain,
                        known.dims,
                        known.ranks,
                        addresses + count,
                    )
                    if made != NULL:
                        ort.check(made)
                    found = ffi.unpack(addresses, count + known.count)
                    if 0 not in found and known.over(found) == over:
                        known.run(found, self.runtime.checks)
                        return
                self._run(executable, key, scratch.tensors, context)
        finally:
            self._scratch.append(scratch)

    @value(None)
    def ReleaseState(self, state: Any) -> None:
        """Does nothing: the plans are closed with the node."""

    def release(self) -> None:
        """Close the plans; ONNX Runtime has released the node."""
        super().release()
        self.planned.close()

    # ---- inside

    def _run(self, executable: Executable, key: bytes, tensors: Any, context: Any) -> None:
        details: _Details = executable.caller
        values: dict[str, Any] = {}
        for index, name in enumerate(self._names):
            values[name] = self._input(name, tensors[index], *details.layout[index])
        graph = self.planned
        with contextlib.ExitStack() as held:
            waits = executable.sole_step
            if isinstance(waits, DeferredExecutor):  # values of inputs decide its plan, and the shapes of its outputs
                graph, values = waits.graph, waits.inputs_of(values)
                signature = graph.signature(values)
                executable, details = self._used(held, graph.use(values, signature), ())
            targets, waiting = self._targets(context, details)
            over = overwritten(values, targets)
            if over != details.over and not graph.sealed:
                if graph is self.planned:
                    self._over = over
                    used = graph.use_key((key, over), lambda: self._make(key, over=over))
                else:
                    used = graph.use(values, signature, over)
                executable, details = self._used(held, used, over)
            kept = allowed(targets, over, executable)
            for index, name in enumerate(self.outputs):
                if name in targets and name not in kept:
                    waiting[name] = self._output(context, index, details.ports[name].shape)
            self._send(executable, values, kept, waiting)
        for index, name in enumerate(self.outputs):
            if name and name not in details.ports:  # folded, or computed in a part that was planned during the run
                result = on_host(values[name])
                self._write(self._output(context, index, result.shape), result)

    def _used(self, held: contextlib.ExitStack, used: Use, over: Over) -> tuple[Executable, _Details]:
        """An executable that is in use until ``held`` ends, and its details. ``over``: the outputs that it writes to an
        input's memory."""
        held.enter_context(used.hold)
        executable = used.executable
        if executable.caller is None:
            executable.caller = _Details(executable, (), self._names, self.outputs, over)
        return executable, executable.caller

    def _targets(self, context: Any, details: _Details) -> tuple[dict[str, Any], dict[str, Any]]:
        """ONNX Runtime's memory for the outputs whose shapes are known: those that a run writes itself, and those that are
        written after it.
        """
        targets: dict[str, Any] = {}
        waiting: dict[str, Any] = {}
        for index, name in enumerate(self.outputs):
            port = details.ports.get(name)
            if port is None:
                continue
            made = self._output(context, index, port.shape)
            dtype = DTYPES[port.dtype]
            if dtype.sub_byte_bits or _lies_off(made):
                waiting[name] = made  # packed on the host, or copied to the host by ONNX Runtime
            elif made.on_device:
                targets[name] = self._device_tensor(name, made, dtype, port.shape, port.nbytes)
            else:
                waiting[name] = made
                targets[name] = host_array(made.data, dtype, port.shape, port.nbytes)
        return targets, waiting

    def _send(
        self,
        executable: Executable,
        values: dict[str, Any],
        targets: Targets,
        waiting: Mapping[str, Any],
    ) -> None:
        """Run, and copy the outputs in ``waiting`` to ONNX Runtime's memory where the run did not write them there."""
        executable.run(values, targets)
        self.runtime.checks.add(open_checks(targets.values()))
        if self.runtime.profilers:
            for profiler in self.runtime.profilers:
                profiler.measure(self.name, executable, values)
        for name, made in waiting.items():
            if name not in targets or values[name] is not targets[name]:
                self._write(made, on_host(values[name]))

    def _input(self, name: str, tensor: Any, dtype: Any, shape: tuple[int, ...], nbytes: int) -> Any:
        if dtype is None:
            raise InvalidInputError(f"input {name!r} of {self.name}: no tensor of numbers")
        if dtype.sub_byte_bits:  # packed in ONNX Runtime's memory, but not for kernels
            return unpack(self._read(tensor), dtype, shape)
        if _lies_off(tensor):
            return self._read(tensor).view(dtype.numpy).reshape(shape)
        if tensor.on_device:
            return self._device_tensor(name, tensor, dtype, shape, nbytes)
        return host_array(tensor.data, dtype, shape, nbytes)

    def _read(self, tensor: Any) -> np.ndarray[Any, Any]:
        """The bytes of a tensor in any memory."""
        nbytes = byte_count(tensor)
        if not tensor.on_device:
            return host_bytes(tensor.data, nbytes)
        out = np.empty(nbytes, np.uint8)
        self.runtime.domain.download(address(tensor.data), out)
        return out

    def _device_tensor(self, name: str, tensor: Any, dtype: Any, shape: tuple[int, ...], nbytes: int) -> PointerTensor:
        pointer = address(tensor.data)
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
        dtype = dtypes.from_onnx(tensor.type)
        if dtype is not None and dtype.sub_byte_bits:
            array = pack(array, dtype)
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        if tensor.on_device:
            self.runtime.domain.upload(address(tensor.data), data)
        else:
            host_bytes(tensor.data, nbytes)[:] = data

    def _make(self, key: bytes, program: Program | None = None, over: Over = ()) -> Executable:
        specs = self._specs(key)
        executable = None if program is None else self._ready(program)
        if executable is None:
            executable = self.planned.plan(specs, over)
        for placement in executable.program.placements:
            if placement.where == "cpu":
                logger.warning(
                    "%s: on the CPU at these shapes: %s: %s", self.name, placement.node.title, placement.reason
                )
        details = executable.caller = _Details(executable, specs.values(), self._names, self.outputs, over)
        for name, port in details.ports.items():
            if self._types.get(name, DTYPES[port.dtype].onnx) != DTYPES[port.dtype].onnx:
                executable.close()
                raise VkepError(f"{self.name}: {name!r} is made as {port.dtype}, ONNX Runtime has it of another type")
        if any(isinstance(step, IslandExecutor) and step.plan.faults for step in executable.steps):
            self.runtime.checks.expect()
        return executable

    def _ready(self, program: Program) -> Executable | None:
        """The executable of the program; None where the VGF converter or driver refuses a part, which is then placed
        again."""
        try:
            return self._planner(program)
        except GraphRefused as refusal:
            logger.info("%s: planned again: %s", self.name, refusal.reason)
            return None

    def _specs(self, key: bytes) -> dict[str, Known]:
        """The inputs' types and shapes, which the shim wrote to the signature: type, rank, dimensions."""
        numbers = iter(np.frombuffer(key, np.int64).tolist())
        specs: dict[str, Known] = {}
        for name in self._names:
            elem_type, rank = next(numbers), next(numbers)
            known = declared_value(ValueInfo(name, elem_type, tuple(itertools.islice(numbers, rank))))
            assert known is not None, "it has a rank"
            specs[name] = known
        return specs


def _rewrites_an_input(graph: Graph) -> bool:
    """Whether a node makes an output of the type and shape of an input that it reads: a cache, which may be written in place."""
    inputs = {v.name: (v.elem_type, v.shape) for v in graph.inputs if v.name not in graph.weights}
    outputs = {v.name: (v.elem_type, v.shape) for v in graph.outputs}
    return any(
        outputs[made] == inputs[read]
        for node in graph.nodes
        for made in node.outputs
        if made in outputs
        for read in node.reads
        if read in inputs
    )


def _layout(spec: Known) -> tuple[Any, tuple[int, ...], int]:
    if not isinstance(spec, ValueSpec):
        return None, (), 0
    return spec.dtype, spec.shape, math.prod(spec.shape) * spec.dtype.itemsize


def _lies_off(tensor: Any) -> bool:
    """Whether a tensor begins at an address in device memory that is not aligned for kernels: a slice of a Scan. The
    host copies it."""
    return tensor.on_device and bool(address(tensor.data) % ALIGNMENT)
