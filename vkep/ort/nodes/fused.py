"""OrtNodeComputeInfo: one fused node, run by vkep's plans."""

from __future__ import annotations

import contextlib
import copy
import logging
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from vkep import dtypes
from vkep.device.bound import Bound
from vkep.device.runner import PlanRunner
from vkep.device.tensor import ALIGNMENT, DeviceTensor, on_host, open_checks
from vkep.dtypes import DTYPES
from vkep.errors import InvalidInputError, VkepError
from vkep.graph.model import Graph, Model, ValueInfo
from vkep.graph.weights import pack, unpack
from vkep.ir.infer import Known
from vkep.ir.program import Over, Program, ValueSpec, declared_value
from vkep.ort.boundary import CStruct, ffi, lib, status, value
from vkep.ort.graphs.convert import OrtWeight
from vkep.ort.memory.domain import NUMBER_SHIFT, PointerTensor, domain_of
from vkep.ort.memory.tensors import address, byte_count, host_array, host_bytes
from vkep.ort.options import session_options
from vkep.plan.records import Port
from vkep.session.execution.executor import Executable, IslandExecutor, Targets
from vkep.session.execution.vgf import GraphRefused, VgfExecutor
from vkep.session.planning.planned_graph import in_place
from vkep.session.planning.planner import Planner, opened

if TYPE_CHECKING:
    from vkep.ort.runtime import Runtime

logger = logging.getLogger("vkep.ort")
_PLANNED = (IslandExecutor, VgfExecutor)
_MAX_NUMBERS = 18  # size of one input in a signature: type, rank, and at most 16 dimensions


class _Scratch:
    """The arrays that a run fills with its tensors' descriptions."""

    def __init__(self, inputs: int, outputs: int) -> None:
        self.tensors = ffi.new("VkepTensor[]", max(1, inputs))
        self.signature = ffi.new("int64_t[]", max(1, inputs) * _MAX_NUMBERS)
        self.addresses = ffi.new("uint64_t[]", inputs + outputs)
        self.failed = ffi.new("OrtStatus **")


class _Details:
    """The outputs of a fused node that an executable computes on the device, and how it is run by addresses alone."""

    def __init__(self, executable: Executable, inputs: Sequence[str], outputs: Mapping[str, int]) -> None:
        """``outputs``: the places of the fused node's."""
        ports: dict[str, Port] = {}
        for step in executable.steps:
            if isinstance(step, IslandExecutor):
                ports.update({p.name: p for p in step.plan.outputs})
            elif isinstance(step, VgfExecutor):
                made = (Port(p.name, p.dtype.name, p.shape, p.nbytes, is_input=False) for p in step.graph.outputs)
                ports.update({p.name: p for p in made})
        self.ports = {name: ports[name] for name in outputs if name in ports}
        place = {name: i for i, name in enumerate((*inputs, *outputs))}
        island = executable.island
        #: the only step, where its ports are all inputs and outputs of the node (they may also be folded, or an input that
        #: is an output), and none is unpacked on the host
        self.island = (
            island
            if island is not None
            and len(self.ports) == len(outputs)
            and all(p.name in place and not DTYPES[p.dtype].sub_byte_bits for p in island.plan.ports)
            else None
        )
        if self.island is not None:
            self.names = tuple(self.ports)
            self.order = [place[port.name] for port in self.island.plan.ports]  #: among the inputs and outputs
            self.which = ffi.new("size_t[]", list(outputs.values()))
            self.ranks = ffi.new("size_t[]", [len(port.shape) for port in self.ports.values()])
            self._dims = np.array([d for port in self.ports.values() for d in port.shape] or [0], np.int64)
            self.dims = ffi.from_buffer("int64_t[]", self._dims)
            moving = self.island.runner.moving_axes(self.names)
            self._moving = np.array([at for at, _ in moving], np.int64), [value for _, value in moving]

    def at(self, island: IslandExecutor) -> _Details:
        """For other sizes of the same plan, where it is the only step."""
        made = object.__new__(_Details)
        made.__dict__.update(self.__dict__, island=island)
        if island.numbers is not None:
            made._dims, values = self._dims.copy(), island.numbers.values
            places, which = self._moving
            made._dims[places] = [values[k] for k in which]
            made.dims = ffi.from_buffer("int64_t[]", made._dims)
        return made

    @property
    def targets(self) -> Mapping[str, Port]:
        """The ports of the outputs that a run writes."""
        if self.island is None:
            return self.ports
        return {port.name: port for port in self.island.output_ports() if port.name in self.ports}


class _Outputs:
    """ONNX Runtime's memory for the outputs of one run: of those computed on the device before it, else after it."""

    def __init__(self, node: FusedNode, context: Any) -> None:
        self._node, self._context = node, context
        self._made: dict[str, Any] = {}
        self.targets: dict[str, DeviceTensor | np.ndarray[Any, Any]] = {}  #: those that a run writes itself
        self.executable: Executable | None = None  #: the outermost one that was asked about

    def __call__(self, executable: Executable) -> Targets:
        """The targets of an executable's run."""
        self.executable = self.executable or executable
        for name, port in self._node.details(executable).targets.items():
            made, dtype = self._of(name, port.shape), DTYPES[port.dtype]
            if dtype.sub_byte_bits or _lies_off(made):
                continue  # packed on the host, or copied to the host by ONNX Runtime
            if made.on_device:
                self.targets[name] = self._node.device_tensor(name, made, dtype, port.shape, port.nbytes)
            else:
                self.targets[name] = host_array(made.data, dtype, port.shape, port.nbytes)
        return self.targets

    def fill(self, values: Mapping[str, Any]) -> None:
        """Copy the results that the run did not write to ONNX Runtime's memory."""
        for name in self._node.outputs:
            if name not in self.targets or values[name] is not self.targets[name]:
                result = on_host(values[name])
                self._node.write(self._made.get(name) or self._of(name, result.shape), result)

    def _of(self, name: str, shape: Sequence[int]) -> Any:
        ort, index = self._node.runtime.ort, self._node.outputs[name]
        made, dims = ffi.new("VkepTensor *"), ffi.new("int64_t[]", list(shape) or [0])
        ort.check(lib.vkep_output(ort.api, ort.ep_api, self._context, index, dims, len(shape), made))
        self._made[name] = made
        return made


class FusedNode(CStruct, struct="OrtNodeComputeInfo"):
    """A fused node: its graph, and plans by input signature. Runs in any number of threads at once.

    Args:
        runtime: the session's device side.
        graph: its nodes; its weights are needed as long as another signature may occur.
        inputs, outputs: the fused node's, in order ("" where absent).
        program: the plan already made for the static signature.
        shapes_hold: whether ONNX Runtime checks every run against the declared shapes of the inputs. It does for a
            model's inputs; what it infers for other values may be wrong (the output of an If whose branches differ).
        in_body: whether it is a part of a body, whose inputs may grow with each step of a loop.
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
        in_body: bool = False,
    ) -> None:
        self.runtime, self.name = runtime, name
        session = session_options(runtime.device, runtime.options)
        model = Model(graph, opsets, ir_version, name)
        self._planner = Planner(runtime.delegate, session, model, runtime.policy, runtime.graphs)
        made = [o for o in outputs if o]
        self.planned = self._planner.graph(graph.nodes, graph.weights, made, name=name, opened=opened(graph, in_body))
        self.outputs = {name: i for i, name in enumerate(outputs) if name}  #: with their places
        which = [i for i, n in enumerate(inputs) if n and n not in graph.weights]
        self._names = [inputs[i] for i in which]
        self._types = {v.name: v.elem_type for v in graph.outputs if v.elem_type}
        self._which = ffi.new("size_t[]", which)
        self._scratch: list[_Scratch] = []
        self._latest: tuple[bytes, dict[str, Known]] = b"", {}  # see `_specs`
        self._known: WeakKeyDictionary[Executable, _Details] = WeakKeyDictionary()
        #: by plan: the properties at the first sizes that were met, without the island, which would keep the plan
        self._plans: WeakKeyDictionary[PlanRunner, _Details] = WeakKeyDictionary()
        self._domain = ffi.new("VkepDomain *", (runtime.domain.number, NUMBER_SHIFT, ALIGNMENT))
        declared = {v.name: v for v in graph.inputs}
        later = True
        rewrites = _rewrites_an_input(graph)
        # ONNX Runtime declares a tensor of unknown rank as a scalar: a plan that fails because of it is made in a run
        with contextlib.suppress(InvalidInputError):
            later = self._planned_ahead(declared, program, shapes_hold and not rewrites)
        again = later or runtime.delegate.arena.max_memory is not None  # weights are uploaded again
        for weight in graph.weights.values():
            if isinstance(weight, OrtWeight):
                weight.detach(keep=again)
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
        self.planned.plan_static(infos, key, lambda: None if program is None else self._ready(program))
        executable = self.planned.latest
        assert executable is not None, "planned just now"
        self.details(executable)
        later = not shapes_hold or not all(isinstance(s, _PLANNED) for s in executable.steps)
        if not later:
            done = executable.program
            executable.program = Program((), {}, done.placements, done.outputs)  # releases the weights
            self.planned.refuse_new_plans()
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
            over = self.planned.over  # most likely the same as in the previous run
            used = self.planned.taken(key, over) or self.planned.use(self._specs(key), key, over)
            with used.hold:
                if not self._run_by_address(used.executable, context, scratch.addresses, over):
                    self._run(key, scratch.tensors, context)
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

    def _run_by_address(self, executable: Executable, context: Any, addresses: Any, over: Over) -> bool:
        """Run by addresses; False where some of the tensors are not on the device, or outputs lie otherwise than in ``over``."""
        details, count = self.details(executable), len(self._names)
        if details.island is None or self.runtime.profilers or 0 in ffi.unpack(addresses, count):
            return False
        ort, made = self.runtime.ort, addresses + count
        ort.check(
            lib.vkep_outputs(
                ort.api,
                ort.ep_api,
                context,
                len(details.names),
                details.which,
                self._domain,
                details.dims,
                details.ranks,
                made,
            )
        )
        found = ffi.unpack(addresses, count + len(details.names))
        written = dict(zip(found[count:], details.names, strict=True))
        if 0 in found or in_place(zip(self._names, found, strict=False), written) != over:
            return False
        bound = Bound([found[i] for i in details.order], details.island.numbers)
        details.island.runner.run(bound)
        if bound.checks:
            self.runtime.checks.add(bound.checks)
        return True

    def _run(self, key: bytes, tensors: Any, context: Any) -> None:
        values: dict[str, Any] = {}
        for index, (name, spec) in enumerate(self._specs(key).items()):
            values[name] = self._input(name, tensors[index], spec)
        outputs = _Outputs(self, context)
        self.planned.run(values, outputs, key)
        self.runtime.checks.add(open_checks([t for t in outputs.targets.values() if isinstance(t, DeviceTensor)]))
        for profiler in self.runtime.profilers:
            assert outputs.executable is not None, "it was run"
            profiler.measure(self.name, outputs.executable, values)
        outputs.fill(values)

    def details(self, executable: Executable) -> _Details:
        """The properties of an executable, which are checked when it is met first. Raises `VkepError` for an output of another
        type than ONNX Runtime expects."""
        found = self._known.get(executable)
        if found is not None:
            return found
        island = executable.island
        alike = self._plans.get(island.runner) if island is not None else None
        if island is not None and alike is not None:
            found = self._known[executable] = alike.at(island)
            return found
        for placement in executable.program.placements:
            if placement.where == "cpu":
                logger.warning(
                    "%s: on the CPU at these shapes: %s: %s", self.name, placement.node.title, placement.reason
                )
        details = _Details(executable, self._names, self.outputs)
        for name, port in details.ports.items():
            if self._types.get(name, DTYPES[port.dtype].onnx) != DTYPES[port.dtype].onnx:
                raise VkepError(f"{self.name}: {name!r} is made as {port.dtype}, ONNX Runtime has it of another type")
        if any(isinstance(step, IslandExecutor) and step.plan.faults for step in executable.steps):
            self.runtime.checks.expect()
        self._known[executable] = details
        if details.island is not None:
            alike = copy.copy(details)
            alike.island = None
            self._plans[details.island.runner] = alike
        return details

    def _input(self, name: str, tensor: Any, spec: Known) -> Any:
        if not isinstance(spec, ValueSpec):
            raise InvalidInputError(f"input {name!r} of {self.name}: no tensor of numbers")
        dtype, shape = spec.dtype, spec.shape
        if dtype.sub_byte_bits:  # packed in ONNX Runtime's memory, but not for kernels
            return unpack(self._read(tensor), dtype, shape)
        if _lies_off(tensor):
            return self._read(tensor).view(dtype.numpy).reshape(shape)
        nbytes = math.prod(shape) * dtype.itemsize
        if tensor.on_device:
            return self.device_tensor(name, tensor, dtype, shape, nbytes)
        return host_array(tensor.data, dtype, shape, nbytes)

    def _read(self, tensor: Any) -> np.ndarray[Any, Any]:
        """The bytes of a tensor in any memory."""
        nbytes = byte_count(tensor)
        if not tensor.on_device:
            return host_bytes(tensor.data, nbytes)
        out = np.empty(nbytes, np.uint8)
        self.runtime.domain.download(address(tensor.data), out)
        return out

    def device_tensor(self, name: str, tensor: Any, dtype: Any, shape: tuple[int, ...], nbytes: int) -> PointerTensor:
        """A tensor in ONNX Runtime's memory on the device. Raises `InvalidInputError` for memory of another context."""
        pointer = address(tensor.data)
        domain = self.runtime.domain
        if nbytes and domain_of(pointer) is not domain:
            raise InvalidInputError(
                f"{name!r} of {self.name} lies on the context {domain_of(pointer).context.label}, and this session runs on "
                f"{domain.context.label}: give both the same token and group_id"
            )
        return PointerTensor(domain, pointer, dtype, shape, nbytes)

    def write(self, tensor: Any, array: np.ndarray[Any, Any]) -> None:
        """Copy an array to a tensor in any memory."""
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
        latest, specs = self._latest
        if latest == key:
            return specs
        numbers, specs, at = np.frombuffer(key, np.int64).tolist(), {}, 0
        alike: dict[bytes, Known] = {}  # the caches of all layers are
        for name in self._names:
            end = at + 2 + numbers[at + 1]
            mark = key[8 * at : 8 * end]
            known = alike.get(mark)
            if known is None:
                known = declared_value(ValueInfo(name, numbers[at], tuple(numbers[at + 2 : end])))
                assert known is not None, "it has a rank"
                alike[mark] = known
            specs[name], at = known, end
        self._latest = key, specs
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


def _lies_off(tensor: Any) -> bool:
    """Whether a tensor begins at an address in device memory that is not aligned for kernels: a slice of a Scan. The
    host copies it."""
    return tensor.on_device and bool(address(tensor.data) % ALIGNMENT)
