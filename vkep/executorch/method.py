"""One method of a program, ready to run: its delegates on the device, its arenas, its instructions bound."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from gpu_shared.errors import ClosedError
from gpu_shared.steady import check_wanted, closing, on_end, steady
from gpu_shared.uncopied import Uncopied
from vkep.device.tensor import DeviceTensor
from vkep.errors import InvalidInputError, InvalidPteError, VkepError
from vkep.executorch.calls import ChainedCalls, DelegateCall, chained
from vkep.executorch.context_resources import ContextResources, ProgramResources
from vkep.executorch.core import Core, MethodParts
from vkep.executorch.delegate_payloads import Blob, VgfBlob, VulkanBlob
from vkep.executorch.delegates import GraphRunner, Pending, Runner, VulkanRunner
from vkep.executorch.metadata import MethodMeta
from vkep.executorch.portable import KERNELS
from vkep.executorch.report import MethodReport, method_report
from vkep.executorch.steps import Bound, State, bind_jump, bind_kernel, bind_move
from vkep.executorch.tensors import HostTensor, check_input, is_torch, to_torch
from vkep.pte.flow import INPUT
from vkep.pte.method import DecodedMethod
from vkep.pte.steps import DelegateStep, JumpStep, KernelStep, MoveStep
from vkep.pte.values import Place, TensorValue
from vkep.view.page import Page

Array = np.ndarray[Any, Any]


class Method(Uncopied):
    """A method that is loaded: `execute` runs it. Made by `Program.load_method`.

    Safe to use from several threads; runs come one after the other, since a method's arenas and state are its own.
    """

    _instead = "load the method of a program again"

    @steady
    def __init__(self, core: Core, decoded: DecodedMethod, blobs: Sequence[Blob], resources: ProgramResources) -> None:
        """Raises the context errors of `gpu_shared.errors`, `ArenaOutOfMemory`, `GpuError`, `VkepError`."""
        self._core = core  # keeps the contexts alive
        self._most_instructions = resources.options.max_instructions
        self._decoded = decoded
        self._parts = MethodParts()
        self._lock = self._parts.lock
        self._finalizer = on_end(self, self._parts.close)
        self._resources: list[ContextResources] = [
            resources.of(delegate, f"{decoded.where}, delegate {number}")
            for number, delegate in enumerate(decoded.delegates)
        ]
        self._parts.resources = list(dict.fromkeys(self._resources))
        graphs = [number for number, blob in enumerate(blobs) if isinstance(blob, VgfBlob)]
        self.flow = decoded.analysed([id(resources) for resources in self._resources], as_stored=graphs)
        self._last = [(resources, 0) for resources in dict.fromkeys(self._resources)]
        try:
            self._runners = self._make_runners(blobs)
            most_bytes = resources.options.host_bytes
            self._state = State(_make_values(decoded, most_bytes), most_bytes)
            self._initial = list(self._state.values)
            self._steps = self._bind()
            check_wanted()
        except BaseException:
            self.close()
            raise
        values = self._state.values
        self._inputs: list[tuple[int, HostTensor | None, bool]] = []
        for number, index in enumerate(decoded.inputs):
            held = values[index]
            write = self.flow.writes.get((INPUT, number))
            self._inputs.append(
                (index, held if isinstance(held, HostTensor) else None, write is not None and write.to_arena)
            )
        self._names = [f"{decoded.where}, input {n}" for n in range(len(decoded.inputs))]

    # ---- running

    @steady
    def execute(self, inputs: Sequence[Any] = ()) -> list[Any]:
        """Run the method; its outputs in order, as arrays (torch tensors where an input is one) and Python numbers.

        Inputs are numpy arrays or torch tensors of the program's dtypes and shapes (at most these, where they are
        dynamic), and numbers. Raises `InvalidInputError` for others, `ClosedError`, `DeviceLostError`, `VkepError` where a
        kernel refuses what the program gives it.
        """
        if not isinstance(inputs, (list, tuple)):
            raise InvalidInputError(
                f"{self._decoded.where}: got a {type(inputs).__name__}, expected a list or tuple of inputs"
            )
        for resources in self._parts.resources:
            resources.vulkan.context  # noqa: B018  # in a forked child it raises, before any lock is tried
        with self._lock:
            check_wanted()  # after an interrupt a later call may have run, with another state
            self._check_open()
            for resources, value in self._last:
                if value:
                    resources.vulkan.lease.wait(value)  # the GPU may still read what the previous run wrote
            try:
                self._take(inputs)
                self._run()
                outputs = self._outputs()
            finally:
                self._state.results.clear()
                self._state.given.clear()
                self._last = [(resources, resources.vulkan.context.timeline.submitted) for resources, _ in self._last]
        if any(is_torch(value) for value in inputs):
            return [to_torch(value) for value in outputs]
        return outputs

    __call__ = execute

    def _take(self, inputs: Sequence[Any]) -> None:
        if len(inputs) != len(self._inputs):
            raise InvalidInputError(
                f"{self._decoded.where}: got {len(inputs)} inputs, expected {len(self._inputs)}: {self.metadata.describe()}"
            )
        values, given = self._state.values, self._state.given
        if not self.flow.linear:
            values[:] = self._initial
        for (index, held, copied), value, name in zip(self._inputs, inputs, self._names, strict=True):
            if held is None:
                spec = self._decoded.values[index]
                if isinstance(value, np.generic):
                    value = value.item()
                if spec is not None and not isinstance(value, (int, float, bool, str)):
                    raise InvalidInputError(f"{name}: got a {type(value).__name__}, expected a {type(spec).__name__}")
                values[index] = value
                given.append(value)
                continue
            array = check_input(value, held.spec, name)
            if copied:
                held.reset()
                held.assign(array, name)
            else:
                held.array = array
            given.append(array)

    def _run(self) -> None:
        steps = self._steps
        if self.flow.linear:
            for step in steps:
                step()
            return
        at = count = 0
        while at < len(steps):
            target = steps[at]()
            at = at + 1 if target is None else target
            count += 1
            if count > self._most_instructions:
                where = self._decoded.where
                raise VkepError(
                    f"{where}: the run has more than {self._most_instructions} instructions (max_instructions)"
                )

    def _outputs(self) -> list[Any]:
        found: list[Any] = []
        results, values = self._state.results, self._state.values
        taken: set[int] = set()  # ids of the arrays that are outputs already
        for index, source in zip(self._decoded.outputs, self.flow.outputs, strict=True):
            if source is None:
                held = values[index]
                found.append(np.array(held.array, order="C") if isinstance(held, HostTensor) else held)
                continue
            value = np.array(self._state.given[source[1]], order="C") if source[0] == INPUT else results[source]
            if isinstance(value, DeviceTensor):
                value = value.numpy()
            elif id(value) in taken:
                value = value.copy()
            taken.add(id(value))
            spec = self._decoded.values[index]
            if isinstance(spec, TensorValue) and spec.is_static and value.shape != spec.sizes:
                if value.size != math.prod(spec.sizes):
                    raise VkepError(
                        f"{self._decoded.where}: a delegate gives an output of shape {list(value.shape)}, "
                        f"the program planned {spec}"
                    )
                value = value.reshape(spec.sizes)
            found.append(value)
        return found

    # ---- looking inside

    @property
    def name(self) -> str:
        """The method's name."""
        return self._decoded.name

    @property
    def metadata(self) -> MethodMeta:
        """The inputs and outputs of the method."""
        return MethodMeta(self._decoded)

    def report(self) -> MethodReport:
        """Where each part runs: delegates and their contexts, operators in numpy, tensors that stay on the device."""
        self._check_open()
        return method_report(self._decoded, self.flow, self._resources, self._runners)

    def view(self, inputs: Sequence[Any] = (), runs: int = 5) -> Page:
        """A page of the method, as `vkep.InferenceSession.view`: it is run twice ``runs`` times and two times more. One thread
        at a time. Raises as `execute`.
        """
        from vkep.executorch.viewing import method_document

        def run(around: Callable[[int, Bound], Bound]) -> None:
            steps = self._steps
            self._steps = [around(number, step) for number, step in enumerate(steps)]
            try:
                self.execute(inputs)
            finally:
                self._steps = steps

        self._check_open()
        return Page([method_document(self._decoded, self._resources, self._runners, run, runs)])

    def graph_constant_bytes(self, resources: ContextResources) -> int:
        """Bytes of the constants in the VGF files that run on a context; the driver holds one copy for each file."""
        pairs = zip(self._runners, self._resources, strict=True)
        return sum(
            runner.constant_bytes for runner, own in pairs if own is resources and isinstance(runner, GraphRunner)
        )

    # ---- closing

    @closing
    def close(self) -> None:
        """Free the method's objects on the device; idempotent. The program can load it again."""
        self._finalizer()

    @property
    def closed(self) -> bool:
        """Whether the method's program was closed."""
        return self._parts.closed

    @property
    def parts(self) -> MethodParts:
        """The device objects, for the program, which closes them."""
        return self._parts

    def _check_open(self) -> None:
        if self._parts.closed or self._core.closed:
            raise ClosedError(self._decoded.where)

    # ---- making

    def _make_runners(self, blobs: Sequence[Blob]) -> list[Runner]:
        decoded, named = self._decoded, self._core.named_data
        uses: dict[int, DelegateStep] = {}
        for step in decoded.steps:
            if isinstance(step, DelegateStep):
                uses.setdefault(step.delegate, step)
        runners: list[Runner] = []
        for number, (blob, resources) in enumerate(zip(blobs, self._resources, strict=True)):
            used = uses.get(number)
            where = f"{decoded.where}, delegate {number} ({decoded.delegates[number].backend})"
            inputs = [decoded.values[i] for i in used.inputs] if used else []
            outputs = [decoded.values[i] for i in used.outputs] if used else []
            if used is None:  # no instruction calls it
                runners.append(_Unused())
                continue
            for value in (*inputs, *outputs):
                if isinstance(value, TensorValue) and value.dtype.kind == "c":
                    raise InvalidPteError(f"{where} takes or gives {value}; its backend has no complex numbers")
            runner: Runner
            if isinstance(blob, VulkanBlob):
                runner = VulkanRunner(resources, blob, inputs, outputs, named, where)
            else:
                runner = GraphRunner(resources, blob, inputs, outputs, where)
            self._parts.runners.append(runner)
            runner.prepare()
            runners.append(runner)
        return runners

    def _bind(self) -> list[Bound]:
        decoded, state = self._decoded, self._state
        bound: list[Bound] = []
        calls: list[tuple[DelegateCall, ContextResources]] = []  # consecutive calls

        def bind_calls() -> None:
            for one in chained(calls, decoded.values) if self.flow.linear else [call for call, _ in calls]:
                bound.append(one.run)
                if isinstance(one, ChainedCalls):
                    self._parts.chains.append(one)
            calls.clear()

        for number, step in enumerate(decoded.steps):
            where = f"{decoded.where}, instruction {number}"
            if isinstance(step, DelegateStep):
                call = DelegateCall(state, decoded.values, number, step, self._runners[step.delegate], self.flow)
                calls.append((call, self._resources[step.delegate]))
                continue
            bind_calls()
            if isinstance(step, KernelStep):
                bound.append(bind_kernel(state, decoded.values, step, KERNELS[step.name], where))
            elif isinstance(step, MoveStep):
                bound.append(bind_move(state, step))
            elif isinstance(step, JumpStep):
                bound.append(bind_jump(state, step))
            elif not self.flow.linear:  # jumps count the instructions
                bound.append(_nothing)
        bind_calls()
        return bound


class _Unused:
    """A delegate that no instruction calls."""

    can_stage = False

    def prepare(self) -> None:
        pass

    def run(self, inputs: Sequence[Any], keep: Sequence[bool]) -> list[Any]:
        raise AssertionError("no instruction calls this delegate")

    def stage(self, inputs: Sequence[Any], keep: Sequence[bool], locks: ExitStack, held: ExitStack) -> Pending:
        raise AssertionError("no instruction calls this delegate")

    def executables(self) -> list[Any]:
        return []

    def close(self) -> None:
        pass


def _nothing() -> None:
    return None


def _make_values(decoded: DecodedMethod, most_bytes: int) -> list[Any]:
    """Create the values of a run, tensors on their arenas. Raises `VkepError` where these exceed ``most_bytes``, or the
    host has no memory for them."""
    sizes = dict(enumerate(decoded.arenas[1:], 1))
    for value in decoded.values:
        place = value.place if isinstance(value, TensorValue) else None
        if place is not None and place.arena < 0:
            sizes[place.arena] = max(sizes.get(place.arena, 0), place.end)
    needed = sum(sizes.values())
    if needed > most_bytes:
        raise VkepError(f"{decoded.where}: its arenas take {needed} bytes; max_host_bytes allows {most_bytes}")
    try:
        arenas = {number: np.zeros(size, np.uint8) for number, size in sizes.items()}
    except (MemoryError, ValueError) as error:
        raise VkepError(f"{decoded.where}: no memory for its arenas of {decoded.arenas} bytes: {error}") from error
    return [_value(value, arenas, most_bytes) if isinstance(value, TensorValue) else value for value in decoded.values]


def _value(value: TensorValue, arenas: Mapping[int, Array], most_bytes: int) -> HostTensor:
    if value.constant is not None:
        return HostTensor(value, np.frombuffer(value.constant, np.uint8))
    place: Place | None = value.place
    assert place is not None
    storage = arenas[place.arena][place.offset : place.end]
    if value.initial is not None:
        storage[...] = np.frombuffer(value.initial, np.uint8)
    return HostTensor(value, storage, most_bytes)
