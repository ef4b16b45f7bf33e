"""Runs kernel calls on the machine's driver with numpy arrays as operands.

Every tensor lies between two guards; `Harness.run` fails when a kernel writes outside of its tensors. Outputs begin as
garbage, so a kernel that misses an element is found out too.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from gpu_shared.capabilities import DeviceCapabilities
from gpu_shared.memory import Buffer
from tests.nightly import alternately, nightly
from tools.passes.interpreter import Interpreter
from vkep.device.measure.kernel_runner import KernelRunner, ReadyCall
from vkep.dtypes import DTYPES
from vkep.ir import tensor as ir
from vkep.ir.ops import KernelOp
from vkep.ir.tensor import contiguous_strides
from vkep.kernels import launch
from vkep.kernels.epilogue import Epilogue
from vkep.kernels.kernel import ITS_VIEW, KernelCall
from vkep.kernels.problem import Need, NoReference, Problem
from vkep.kernels.select import Choice, Emission, bind, candidates, emit
from vkep.kernels.tuning import Choice as Tiling
from vkep.kernels.tuning import chosen
from vkep.shaders.interface import ADDRESS_BYTES

GUARD = 256  #: bytes on either side of a tensor; also its alignment
GUARD_BYTE = 0xA5
GARBAGE_BYTE = 0xCD


@dataclass(eq=False)
class Tensor:
    """An operand: its content before a run and, where calls write it, after."""

    array: np.ndarray
    offset: int = 0  #: bytes by which its address is off the guard's alignment

    @classmethod
    def empty(cls, shape: Sequence[int], dtype: Any) -> Tensor:
        """An output: garbage until a kernel writes it."""
        size = math.prod(shape) * np.dtype(dtype).itemsize
        return cls(np.frombuffer(bytes([GARBAGE_BYTE]) * size, dtype).reshape(shape))


@dataclass
class NumpyWorkspace:
    """The target that candidates ask for scratch tensors, tables, packed weights and places for their faults."""

    caps: DeviceCapabilities = field(default_factory=DeviceCapabilities.for_tests)
    choices: Mapping[str, Tiling] = field(default_factory=dict)  #: tuned
    tensors: list[Tensor] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    flag: Tensor | None = None  #: the word that kernels note faults in, as (1-based) positions in ``faults``

    def scratch(self, dtype: str, shape: tuple[int, ...]) -> Tensor:
        self.tensors.append(Tensor.empty(shape, dtype))
        return self.tensors[-1]

    def counters(self, count: int) -> Tensor:
        return self.constant(np.zeros(count, np.uint32))

    def constant(self, array: np.ndarray) -> Tensor:
        self.tensors.append(Tensor(array))
        return self.tensors[-1]

    def prepack(self, weight: Tensor, transform: Callable[[np.ndarray], np.ndarray], tag: str) -> Tensor:
        return self.constant(transform(weight.array))

    def has_packed(self, weight: Tensor, tag: str) -> bool:
        return False

    def tuned(self, options: Callable[[], Iterable[Tiling]], *problem: object) -> Tiling | None:
        return chosen(self.choices, "", options, *problem)

    def fault(self, reason: str) -> tuple[Tensor, int]:
        self.flag = self.flag or Tensor(np.zeros(2, np.uint32))
        self.faults.append(reason)
        return self.flag, len(self.faults)


class SecondOpinion:
    """The results of a problem by its reference, from the operands as they are before a kernel runs."""

    def __init__(self, problem: Problem, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        needs, makes = problem.operands
        host = Interpreter()
        op = KernelOp(problem, [_view(need) for need in needs], [_view(make) for make in makes])
        read = [*zip(needs, op.inputs, inputs, strict=True), *zip(makes, op.outputs, outputs, strict=True)]
        for need, view, tensor in read:
            if need in needs or need.name in problem.updates:
                whole = ir.Tensor.contiguous(
                    view.dtype, (int(view.storage.nbytes) // view.dtype.itemsize,), view.storage
                )
                host.put(whole, _elements(tensor.array, need)[: whole.size])
        self.made: list[tuple[Need, np.ndarray]] = []
        try:
            host.run([op])
        except NoReference:
            return
        self.made = [(make, host.read(view)) for make, view in zip(makes, op.outputs, strict=True)]

    def compare(self, arrays: Sequence[np.ndarray]) -> None:
        """Raises `AssertionError` where results differ by more than kernels' sums in float32 may."""
        for (make, expected), array in zip(self.made, arrays, strict=bool(self.made)):
            flat = _elements(array, make)
            strides = [s * flat.itemsize for s in make.strides or contiguous_strides(make.shape)]
            got = np.lib.stride_tricks.as_strided(flat, make.shape, strides)
            kept = ~np.ma.getmaskarray(expected)
            got, wanted = got[kept], np.ma.getdata(expected)[kept]
            kind = DTYPES[make.dtype]
            if kind.kind != "float":
                np.testing.assert_array_equal(got, wanted.astype(got.dtype), f"{make.name} by the reference of {make}")
                continue
            rtol = {"float16": 1e-2, "bfloat16": 5e-2}.get(kind.name, 2e-3)
            most = float(np.abs(wanted[np.isfinite(wanted)]).max(initial=0.0))
            np.testing.assert_allclose(
                got.astype(np.float64),
                wanted.astype(kind.numpy).astype(np.float64),
                rtol,
                rtol * most,
                err_msg=make.name,
            )


def _view(need: Need) -> ir.Tensor:
    storage = ir.Storage(need.extent * DTYPES[need.dtype].itemsize, label=need.name)
    return ir.Tensor(DTYPES[need.dtype], need.shape, storage, need.strides or contiguous_strides(need.shape))


def _elements(array: np.ndarray, need: Need) -> np.ndarray:
    """The elements of an operand that a test passes, of the problem's type, in the order of memory."""
    kind = DTYPES[need.dtype]
    stored = np.dtype(np.uint8) if kind.kind == "bits" else kind.numpy
    return np.ascontiguousarray(array).reshape(-1).view(stored)


#: as what a device is selected for: a CPU driver, a GPU, a GPU without subgroup operations
EACH_DEVICE = ("cpu", "discrete", "plain")


def devices_in_turns(name: str, values: Iterable[Any]) -> pytest.MarkDecorator:
    """Parametrizes a test by ``name`` and ``caps``: by default each value with one kind of device, these in turns."""
    return pytest.mark.parametrize((name, "caps"), alternately(values, EACH_DEVICE), indirect=["caps"])


def as_discrete(caps: DeviceCapabilities) -> DeviceCapabilities:
    """A device as a discrete GPU, with no more lanes in a workgroup than shuffles combine (`shuffle_sizes`)."""
    lanes = min(caps.max_workgroup_invocations, launch._MOST_SUBGROUPS * caps.subgroup_size)
    return replace(caps, device_type="discrete", max_workgroup_invocations=lanes)


class Harness(KernelRunner):
    """One device for a test module; pipelines are kept between runs. The guards find what a kernel writes: the validation layers,
    which take a third of the time, watch it at night."""

    def __init__(self, select: int | str | None = None) -> None:
        super().__init__("vkep kernel tests", select, validation=None if nightly() else False)

    def compute(
        self,
        problem: Problem,
        caps: DeviceCapabilities,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        *,
        epilogue: Epilogue | None = None,
        candidate: str = "",
        tuned: Mapping[str, Tiling] | None = None,
        compare: bool = True,
        **how: Any,
    ) -> NumpyWorkspace:
        """Run the candidate that is chosen for a problem, or the one that is named; ``how`` as for `run`. Results are compared
        with the problem's reference, unless an epilogue changes them or ``compare`` is False: the order of results is free."""
        opinion = SecondOpinion(problem, inputs, outputs) if compare and epilogue is None else None
        target = NumpyWorkspace(caps, tuned or {})
        taken = next((c for c in candidates(type(problem)) if c.name == candidate), None)
        if taken is not None:
            assert taken.when(problem, caps) == ""
            calls = Choice(taken).emit(problem, Emission(target, bind(problem, inputs, outputs), epilogue))
        else:
            assert not candidate, f"{type(problem).__name__} has no candidate {candidate!r}"
            calls = emit(problem, target, inputs, outputs, epilogue)
        self.run(calls, **how)
        if opinion is not None:
            opinion.compare([t.array for t in outputs])
        return target

    def run(self, calls: Sequence[KernelCall], *, indirect: bool = False, in_memory: bool | None = None) -> None:
        """Run the calls in order and read every written tensor back into its ``array``.

        ``indirect`` passes every operand through a slot of a table; ``in_memory`` forces where arguments lie. Raises
        `AssertionError` where a guard changed.
        """
        for call in calls:
            reaches = call.reaches()
            for operand, tensor in call.operands:
                if tensor is not None:
                    reach = reaches.get(operand.name, ITS_VIEW)
                    assert reach <= tensor.array.nbytes, f"{call.kernel.source}: {operand.name} reaches {reach} bytes"
        tensors = {id(t): t for call in calls for _, t in call.operands if t is not None}
        written = {id(t) for call in calls for o, t in call.operands if t is not None and o.writes}
        buffers = {key: self._upload(t) for key, t in tensors.items()}
        addresses = {key: buffers[key].address + GUARD + t.offset for key, t in tensors.items()}
        ready: list[ReadyCall] = []
        tables: list[Buffer] = []
        for call in calls:
            targets = [addresses[id(t)] if t is not None else 0 for _, t in call.operands]
            mask = 0
            if indirect:
                mask = sum(1 << i for i, target in enumerate(targets) if target)
                slots = struct.pack(f"<{len(targets)}Q", *targets)
                tables.append(self.buffer(len(slots), slots))
                start = tables[-1].address
                targets = [start + ADDRESS_BYTES * i if target else 0 for i, target in enumerate(targets)]
            ready.append(self.ready(call, targets, indirect=mask, in_memory=in_memory))
        commands = self.pool.allocate().begin(one_time=True)
        for prepared in ready:
            prepared.record(commands)
            commands.memory_barrier()
        self.submit(commands)
        for prepared in ready:
            prepared.close()
        for table in tables:
            table.close()
        for key, buffer in buffers.items():
            self._download(tensors[key], buffer, key in written)
            buffer.close()

    def _upload(self, tensor: Tensor) -> Buffer:
        data = np.ascontiguousarray(tensor.array).tobytes()
        whole = np.full(2 * GUARD + tensor.offset + len(data), GUARD_BYTE, np.uint8)
        start = GUARD + tensor.offset
        whole[start : start + len(data)] = np.frombuffer(data, np.uint8)
        return self.buffer(len(whole), whole.data)

    def _download(self, tensor: Tensor, buffer: Buffer, written: bool) -> None:
        source = buffer
        if buffer.mapped is None:
            source = Buffer(self.device, buffer.size, "download")
            self.copy(buffer, source, buffer.size)
            source.invalidate()
        assert source.mapped is not None
        whole = np.frombuffer(bytes(source.mapped), np.uint8)
        start, size = GUARD + tensor.offset, tensor.array.nbytes
        before, after = whole[:start], whole[start + size :]
        assert (before == GUARD_BYTE).all(), "a kernel wrote before the start of a tensor"
        assert (after == GUARD_BYTE).all(), "a kernel wrote beyond the end of a tensor"
        content = np.frombuffer(whole[start : start + size].tobytes(), tensor.array.dtype).reshape(tensor.array.shape)
        if written:
            tensor.array = content.copy()
        else:
            assert content.tobytes() == np.ascontiguousarray(tensor.array).tobytes(), "a kernel wrote an input"
        if source is not buffer:
            source.close()
