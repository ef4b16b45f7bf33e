"""The Kompute delegate: users' kp shaders as regions of a model, on a VkInstance and VkDevice of kp's own.

kp (0.9) creates its device itself and cannot use an existing one, so values between such a region and the others go
through the host: a copy from vkep's device, one to kp's, and back. `KpRunner.timing` has the time of that.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vkep.device.tensor import on_host
from vkep.errors import VkepError
from vkep.ir.program import KpCall, KpStep
from vkep.plan.records import ShaderVariant
from vkep.shaders.library import ShaderLibrary

if TYPE_CHECKING:
    from vkep.session.reports.report import KomputeReport

logger = logging.getLogger("vkep.kompute")
Array = np.ndarray[Any, Any]


class KomputeError(VkepError):
    """kp is missing, or refuses a region; the text is kp's."""


class KpDevice:
    """kp's manager for one physical device, shared by the process's regions. ``lock`` guards it: kp is not thread-safe."""

    _shared: dict[str, KpDevice] = {}
    _guard = threading.Lock()

    def __init__(self, wanted: str) -> None:
        kp = import_kp()
        self.kp, self.wanted, self.users = kp, wanted, 0
        self.lock = threading.Lock()
        manager = kp.Manager()
        names = [found["device_name"] for found in manager.list_devices()]
        # kp exposes neither UUIDs nor driver names: the device is found by its name
        index = names.index(wanted) if wanted in names else 0
        if index:
            manager.destroy()
            manager = kp.Manager(index)
        self.manager: Any = manager
        self.name: str = names[index]
        if self.name != wanted:
            logger.warning("kp has no device named %r; its regions run on %r", wanted, self.name)

    @classmethod
    def acquire(cls, wanted: str) -> KpDevice:
        """Take one reference to the device named ``wanted``; `release` it afterwards. Raises `KomputeError`."""
        with cls._guard:
            device = cls._shared.get(wanted)
            if device is None:
                try:
                    device = cls._shared[wanted] = cls(wanted)
                except RuntimeError as error:  # kp raises any type
                    raise KomputeError(f"kp cannot make its Vulkan device: {error}") from error
            device.users += 1
            return device

    def release(self) -> None:
        """Release one reference; the last one destroys kp's manager."""
        with self._guard:
            self.users -= 1
            if self.users == 0:
                del self._shared[self.wanted]
                self.manager.destroy()


def import_kp() -> Any:
    """Import the package kp. Raises `KomputeError` that says what to do."""
    # kp calls logging.basicConfig() when it is imported: restore the application's handlers
    root = logging.getLogger()
    before = list(root.handlers)
    try:
        import kp
    except ImportError as error:
        from vkep.placement.kompute import MISSING

        raise KomputeError(f"{MISSING} ({error})") from error
    finally:
        root.handlers[:] = before
    return kp


class KpRunner:
    """One region: its tensors and sequences in kp, created once and evaluated for each run. Thread-safe, one run at a
    time.

    A dispatch that reads another's output begins a new sequence: kp records no barrier between the shaders of one
    sequence. Raises `KomputeError`, and the errors of `vkep.shaders` for a shader.
    """

    def __init__(self, step: KpStep, device_name: str, library: ShaderLibrary) -> None:
        self.step = step
        self.runs = 0
        self.timing = (0, 0, 0)  #: nanoseconds of the last run: copying to kp, running, copying back
        codes = [_spirv(call, library) for call in step.calls]
        self._device: KpDevice | None = KpDevice.acquire(device_name)
        self.device_name = self._device.name
        self._tensors: dict[str, Any] = {}
        self._sequences: list[Any] = []
        self._algorithms: list[Any] = []
        try:
            with self._device.lock:
                self._make(self._device, codes)
        except BaseException as error:
            self.close()
            if isinstance(error, RuntimeError):
                raise KomputeError(f"{self._nodes()}: kp refuses the region: {error}") from error
            raise

    def _make(self, device: KpDevice, codes: Sequence[bytes]) -> None:
        kp, manager, step = device.kp, device.manager, self.step
        for name, (dtype, shape) in step.specs.items():
            weight = step.constants.get(name)
            content = np.zeros(shape, dtype) if weight is None else weight.array()
            self._tensors[name] = manager.tensor_t(np.ascontiguousarray(content).reshape(-1))
        first = [self._tensors[n] for n in (*step.inputs, *step.constants)]
        sequence = manager.sequence()
        if first:
            sequence.record(kp.OpTensorSyncDevice(first))
        written: set[str] = set()
        for call, code in zip(step.calls, codes, strict=True):
            if written.intersection(call.inputs):
                self._sequences.append(sequence)
                sequence, written = manager.sequence(), set()
            tensors = [self._tensors[n] for n in (*call.inputs, *call.outputs)]
            # 32-bit words unchanged: kp copies them as floats
            spec, push = (np.frombuffer(words, np.float32) for words in (call.spec_constants, call.push_constants))
            algorithm = manager.algorithm(tensors, code, list(call.workgroups), spec, push)
            self._algorithms.append(algorithm)
            sequence.record(kp.OpAlgoDispatch(algorithm))
            written.update(call.outputs)
        sequence.record(kp.OpTensorSyncLocal([self._tensors[n] for n in step.outputs]))
        self._sequences.append(sequence)

    def run(self, values: dict[str, Any], targets: Mapping[str, Any]) -> None:
        """Run on the inputs in ``values``; outputs are added there as new arrays. Raises `KomputeError`."""
        device = self._device
        if device is None:
            raise KomputeError(f"{self._nodes()}: the region is closed")
        feeds = {name: on_host(values[name]) for name in self.step.inputs}
        with device.lock:
            start = time.perf_counter_ns()
            for name in self.step.inputs:
                self._tensors[name].data()[...] = np.asarray(feeds[name]).reshape(-1)
            there = time.perf_counter_ns()
            try:
                for sequence in self._sequences:
                    sequence.eval()
            except RuntimeError as error:
                raise KomputeError(f"{self._nodes()}: kp: {error}") from error
            done = time.perf_counter_ns()
            made = {n: self._tensors[n].data().reshape(self.step.specs[n][1]).copy() for n in self.step.outputs}
            self.timing = (there - start, done - there, time.perf_counter_ns() - done)
            self.runs += 1
        values.update(made)

    def report(self) -> KomputeReport:
        """The region's nodes, and the cost of copying its values."""
        sizes = {
            n: int(np.prod(shape, dtype=np.int64)) * np.dtype(d).itemsize for n, (d, shape) in self.step.specs.items()
        }
        from vkep.session.reports.report import KomputeReport

        return KomputeReport(
            nodes=len(self.step.nodes),
            device=self.device_name,
            submits=len(self._sequences),
            bytes_in=sum(sizes[n] for n in self.step.inputs),
            bytes_out=sum(sizes[n] for n in self.step.outputs),
            runs=self.runs,
            last_ns=self.timing,
        )

    def _nodes(self) -> str:
        return ", ".join(node.title for node in self.step.nodes)

    def close(self) -> None:
        """Release the region's objects in kp; idempotent. Runs in other threads must have ended."""
        device, self._device = self._device, None
        if device is None:
            return
        with device.lock:
            for things in (self._sequences, self._algorithms, list(self._tensors.values())):
                for thing in things:
                    thing.destroy()
            self._sequences, self._algorithms, self._tensors = [], [], {}
        device.release()


def _spirv(call: KpCall, library: ShaderLibrary) -> bytes:
    """The shader's SPIR-V, after a check that its descriptors are those that kp binds: set 0, a binding for each input
    and output."""
    shader = call.shader
    if isinstance(shader, Path) and shader.suffix != ".spv":
        compiled = library.spirv(ShaderVariant(str(shader.absolute())))
        code, interface = compiled.words, compiled.reflection
    else:
        try:
            code = shader.read_bytes() if isinstance(shader, Path) else shader
        except OSError as error:
            raise KomputeError(f"{call.node.title}: {error}") from error
        from vkep.shaders.reflect import reflect

        interface = reflect(code)
    count = len(call.inputs) + len(call.outputs)
    bound = {(b.set, b.binding) for b in interface.bindings}
    if not bound <= {(0, k) for k in range(count)}:
        raise KomputeError(
            f"{call.node.title}: its shader has bindings {sorted(bound)}; kp binds set 0, 0 to {count - 1}: the node's "
            f"{len(call.inputs)} inputs, then its {len(call.outputs)} outputs"
        )
    if interface.push_constant_bytes > len(call.push_constants):
        raise KomputeError(
            f"{call.node.title}: its shader reads {interface.push_constant_bytes} bytes of push constants; the registration "
            f"gives {len(call.push_constants)}"
        )
    return code
