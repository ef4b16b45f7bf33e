"""Converts operations to a plan: kernels are chosen, buffers and barriers placed, and everything becomes plain data."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gpu_shared.capabilities import DeviceCapabilities
from vkep.dtypes import DTYPES, from_onnx
from vkep.errors import KernelBoundsError
from vkep.graph.weights import PackedWeight, Weight
from vkep.ir import expr as ex
from vkep.ir.code import generate, store_code
from vkep.ir.ops import BaseTarget, KernelOp, Op, Pointwise
from vkep.ir.tensor import Storage, Tensor, collapse
from vkep.kernels import select
from vkep.kernels.kernel import ITS_VIEW, PUSH_CONSTANT_BYTES, KernelCall
from vkep.kernels.pointwise import PointwiseOperand, pointwise
from vkep.kernels.select import bind
from vkep.kernels.tuning import Choice
from vkep.passes.epilogues import epilogue_of
from vkep.passes.sized import SizedNumbers
from vkep.plan.memory import Lifetime, live_peak, pack, piece_of, too_large
from vkep.plan.records import (
    FAULT,
    FRESH,
    ConstantRef,
    Dispatch,
    PipelineKey,
    Plan,
    Port,
    Range,
    Relocation,
    ShaderVariant,
    Slot,
    Space,
)
from vkep.plan.schedule import Access, schedule
from vkep.plan.sized import PlanSizes
from vkep.shaders.interface import ADDRESS_BYTES, Operand
from vkep.sizes import Trace, hint, is_size, largest
from vkep.threads import Threads

#: constants, since an enumeration's attributes are slow to read
_CONSTANT, _ACTIVATION, _PORT, _FAULT = Space.CONSTANT, Space.ACTIVATION, Space.PORT, Space.FAULT
#: the run's fault word: all dispatches may write it in any order, so it is not an access for hazards and schedules
_FAULT_WORD = Tensor.contiguous(DTYPES["uint32"], (1,), Storage(4, port=FAULT, label="fault word"))
#: number of fault codes that each operation may use
_CODES = 256


@dataclass
class PlannedIsland:
    """A plan, and the weights of its constants."""

    plan: Plan
    weights: dict[str, Weight]
    sizes: PlanSizes | None = None  #: the changes for other sizes, where it was planned with symbolic sizes


@dataclass
class Emitter(BaseTarget):
    """The `Target` of one operation's candidate while it emits."""

    packed: dict[tuple[str, str], Tensor] = field(default_factory=dict)
    #: if False, `_MustPackError` ends an emission that needs a packed form which no plan has made yet
    may_pack: bool = False
    node: str = ""  #: the operation that is being emitted
    check_data: bool = True  #: whether faults are reported
    first_code: int = 1  #: codes are numbered by the operation's place in the plan, since threads emit in any order
    faults: dict[int, str] = field(default_factory=dict)  #: reasons by code
    #: memory of the counters, which all operations of a plan share, and how many this one needs
    counting: Storage = field(default_factory=lambda: Storage(0, label="counters"))
    counted: int = 0

    def fault(self, reason: str, node: str = "") -> tuple[Tensor | None, int]:
        """``node``: the node whose specification requires it, where the operation has several. Raises
        ``ValueError`` for more reasons than there are codes."""
        if not self.check_data:
            return None, 0
        text = f"{node or self.node or self.label}: {reason}"
        code = next((code for code, known in self.faults.items() if known == text), 0)
        if not code:
            code = self.first_code + len(self.faults)
            if len(self.faults) == _CODES:
                raise ValueError(f"{self.label!r} has more than {_CODES} reasons for a fault")
            self.faults[code] = text
        return _FAULT_WORD, code

    def counters(self, count: int) -> Tensor:
        """Counters that are 0 before and after each operation, so that all operations of a plan share the same memory."""
        self.counted = largest(self.counted, count)
        return Tensor.contiguous(DTYPES["uint32"], (count,), self.counting)

    def has_packed(self, weight: Tensor, tag: str) -> bool:
        """Whether an earlier plan has packed the weight under this tag."""
        base = weight.storage.weight
        return base is not None and base.is_hashed and "/".join(_packed_key(base, weight, tag)) in base.packed

    def prepack(self, weight: Tensor, transform: Callable[[np.ndarray], np.ndarray], tag: str) -> Tensor | None:
        """The weight, transformed once and cached under ``tag``; None where it is no constant. Raises `_MustPackError` where that
        would pack now."""
        base = weight.storage.weight
        if base is None:
            return None
        if not (self.may_pack or base.is_hashed):
            raise _MustPackError
        key = _packed_key(base, weight, tag)
        if key not in self.packed:
            if not (self.may_pack or "/".join(key) in base.packed):
                raise _MustPackError
            made = PackedWeight(base, weight.offset, transform, "/".join(key))
            dtype = from_onnx(made.elem_type)
            assert dtype is not None
            # another thread may have made it meanwhile: the first one is used
            self.packed.setdefault(key, Tensor.contiguous(dtype, made.shape, Storage(made.nbytes, weight=made)))
        return self.packed[key]


def emit(
    ops: Sequence[Op],
    ports: Sequence[Port],
    caps: DeviceCapabilities,
    *,
    check_data: bool = True,
    tuned: Mapping[str, Choice] | None = None,
    trace: Trace | None = None,
    shared: Mapping[int, int] | None = None,
) -> PlannedIsland:
    """Choose kernels for the operations, using what was ``tuned`` on the device, and lay out the plan; with
    ``check_data`` kernels report faults in their data. Shapes may hold sizes of ``trace``. ``shared``: outputs' ports
    that are in memory of an input's."""
    packed: dict[tuple[str, str], Tensor] = {}
    counting = Storage(0, label="counters")
    labels = [_label(op) for op in ops]
    targets = [
        Emitter(
            caps,
            label,
            {} if tuned is None else tuned,
            packed,
            node=op.node if isinstance(op, KernelOp) else "",
            check_data=check_data,
            first_code=1 + _CODES * k,
            counting=counting,
        )
        for k, (op, label) in enumerate(zip(ops, labels, strict=True))
    ]
    made = [_calls_unless_packing(op, target) for op, target in zip(ops, targets, strict=True)]
    late = [k for k, found in enumerate(made) if found is None]
    if late:
        # Packing and hashing weights is most of the work; numpy and hashlib do it without the GIL.
        for k in late:
            targets[k] = replace(targets[k], may_pack=True, faults={})
        with Threads(min(os.cpu_count() or 1, len(late))) as pool:
            for k, found in zip(late, pool.map(lambda k: _calls(ops[k], targets[k]), late), strict=True):
                made[k] = found
    calls = [(call, label) for label, found in zip(labels, made, strict=True) for call in found or ()]
    counted = largest(0, *(target.counted for target in targets))
    if counted:  # at each run, since one before may have ended early
        counting.nbytes = 4 * counted
        zeros = Pointwise(Tensor.contiguous(DTYPES["uint32"], (counted,), counting), ex.Const("uint", value=0))
        calls[:0] = [(call, "counters") for call in _pointwise_calls(zeros, targets[0])]
    faults = tuple(entry for target in targets for entry in target.faults.items())
    return _PlanLayout(calls, ports, faults, trace, piece_of(caps.max_buffer_size), shared or {}).planned()


def _packed_key(base: Weight, weight: Tensor, tag: str) -> tuple[str, str]:
    """The key of a packed form: the weight's content, the elements that the view reads, and the tag."""
    # An axis of stride 0 repeats the same content. It is left out, since its length may be a size, which int() would fix.
    axes = [(n, stride) for n, stride in zip(weight.shape, weight.strides, strict=True) if is_size(stride) or stride]
    shape, strides = (tuple([int(axis[k]) for axis in axes]) for k in (0, 1))
    return f"{base.key}:{int(weight.offset)}:{shape}:{strides}", tag


class _MustPackError(Exception):
    """An operation needs packed weights that do not exist yet, during planning that must not pack."""


def _calls_unless_packing(op: Op, emitter: Emitter) -> list[KernelCall] | None:
    try:
        return _calls(op, emitter)
    except _MustPackError:
        return None


def _label(op: Op) -> str:
    labels = op.labels
    return (labels[0] if len(labels) == 1 else " + ".join(dict.fromkeys(labels))) or "copy"


def _calls(op: Op, emitter: Emitter) -> list[KernelCall]:
    return _pointwise_calls(op, emitter) if isinstance(op, Pointwise) else _kernel_calls(op, emitter)


def _pointwise_calls(op: Pointwise, emitter: Emitter) -> list[KernelCall]:
    inputs: list[Tensor] = []
    names: dict[tuple[int, tuple[int, ...], int], str] = {}

    def name(leaf: ex.Leaf) -> str:
        tensor = leaf.tensor
        assert tensor is not None
        key = (id(tensor.storage), tensor.strides, tensor.offset)
        if key not in names:
            names[key] = f"x{len(inputs)}"
            inputs.append(tensor)
        return names[key]

    code = generate(op.expr, name, lambda checked: emitter.fault(checked.reason, checked.node))
    shape, strides = collapse(op.out.shape, [op.out.strides, *(t.strides for t in inputs)])
    params = ", ".join(f"{t.dtype.glsl_compute} x{k}" for k, t in enumerate(inputs))
    function = (
        f"{op.out.dtype.glsl} compute({params}) {{ {code.statements} return {store_code(op.out.dtype, code.result)}; }}"
    )
    operands = [_pointwise_operand(t, shape, s) for t, s in zip([op.out, *inputs], strides, strict=True)]
    cost = ex.count(op.expr)
    return pointwise(shape, operands[0], operands[1:], function, code.scalars, emitter.caps, cost, code.fault)


def _pointwise_operand(tensor: Tensor, shape: Sequence[int], strides: Sequence[int]) -> PointwiseOperand:
    spans = [(dim - 1) * step for dim, step in zip(shape, strides, strict=True)]
    lowest = sum(span for span, step in zip(spans, strides, strict=True) if step < 0)
    if lowest:
        tensor = tensor.view((sum(abs(span) for span in spans) + 1,), (1,), tensor.offset + lowest)
    return PointwiseOperand(tensor, tensor.dtype, tuple(strides), tensor.offset, -lowest)


def _kernel_calls(op: KernelOp, emitter: Emitter) -> list[KernelCall]:
    """The dispatches of the chosen candidate, which may rely on the alignment of these operands (`Problem.placed`)."""
    epilogue = epilogue_of(op) if op.epilogue is not None else None
    placed = op.problem.placed(bind(op.problem, op.inputs, op.outputs))
    return select.emit(placed, emitter, op.inputs, op.outputs, epilogue)


def _accesses(call: KernelCall, shared: Mapping[int, int]) -> list[Access]:
    """The accesses of a call, without constants. ``shared`` as for `emit`."""
    touched = []
    for operand, tensor in call.operands:
        if tensor is not None and tensor.storage.weight is None and tensor is not _FAULT_WORD:
            storage = tensor.storage
            memory = storage if storage.port is None else shared.get(storage.port, storage.port)
            start, end = tensor.byte_range
            touched.append(Access(memory, start, end, operand.writes))
    return touched


def _at_current_sizes(accesses: Sequence[Sequence[Access]]) -> list[list[Access]]:
    """The accesses with the current sizes, on the condition that other sizes have no more conflicts."""
    sized: dict[Hashable, list[Access]] = {}
    for access in itertools.chain.from_iterable(accesses):
        if is_size(access.start) or is_size(access.end):
            sized.setdefault(access.memory, [])
    for access in itertools.chain.from_iterable(accesses):
        earlier = sized.get(access.memory)
        if earlier is not None and _written_out(access) not in map(_written_out, earlier):
            for other in earlier:
                _require_no_more_conflicts(access, other)
            earlier.append(access)
    return [[Access(a.memory, hint(a.start), hint(a.end), a.writes) for a in touched] for touched in accesses]


def _require_no_more_conflicts(access: Access, earlier: Access) -> None:
    """Make it a condition of the trace, by comparing, that two accesses to a memory do not conflict at other sizes unless they do
    at these: a dispatch that waits without need is right. An access that covers another one replaces it, so it always must."""
    start, end, first, last = map(hint, (access.start, access.end, earlier.start, earlier.end))
    if access.writes or earlier.writes:
        if start >= last:
            bool(access.start >= earlier.end)
        elif first >= end:
            bool(earlier.start >= access.end)
    if access.writes and start <= first and last <= end:
        bool(access.start <= earlier.start and earlier.end <= access.end)


def _written_out(access: Access) -> tuple[Hashable, ...]:
    """An access in a form whose comparison puts no condition on sizes."""
    ends: tuple[Any, ...] = access.start, access.end
    bounds = [(v.terms, v.const) if is_size(v) else v for v in ends]
    return (*bounds, access.writes)


def _alive(calls: Sequence[tuple[KernelCall, str]], groups: Sequence[int]) -> tuple[list[Storage], list[Lifetime]]:
    """The temporary buffers, with the first and last group that need each. Buffers of one group never share memory,
    because one dispatch would then wait for the other."""
    spans: dict[Storage, list[int]] = {}
    for (call, _), group in zip(calls, groups, strict=True):
        for _, tensor in call.operands:
            if tensor is not None and tensor.storage.weight is None and tensor.storage.port is None:
                span = spans.setdefault(tensor.storage, [group, group])
                span[0], span[1] = min(span[0], group), max(span[1], group)
    return list(spans), [Lifetime(hint(s.nbytes), first, last) for s, (first, last) in spans.items()]


def _prove(call: KernelCall, operand: Operand, tensor: Tensor, reach: int, end: int) -> None:
    """Prove that the bytes a kernel may access are in the operand's view, and the view in its storage."""
    first = tensor.offset * tensor.dtype.itemsize
    if end > tensor.storage.nbytes or (reach > 0 and first + reach > end):
        raise KernelBoundsError(
            f"{call.kernel.source}: it may touch {reach} bytes of {operand.name!r} from byte {first} on; the operand is "
            f"{tensor.dtype} {list(tensor.shape)}, which ends at byte {end} of {tensor.storage.nbytes}"
        )


class _PlanLayout:
    """Converts kernel calls over tensors into dispatches over addresses."""

    def __init__(
        self,
        calls: Sequence[tuple[KernelCall, str]],
        ports: Sequence[Port],
        faults: tuple[tuple[int, str], ...],
        trace: Trace | None,
        piece: int,
        shared: Mapping[int, int],
    ) -> None:
        self.piece = piece
        self.sized = None if trace is None else SizedNumbers(trace)
        accesses = [_accesses(call, shared) for call, _ in calls]
        if self.sized is not None:
            accesses = _at_current_sizes(accesses)
        groups = schedule(accesses, lambda groups: live_peak(_alive(calls, groups)[1]))
        order = sorted(range(len(calls)), key=groups.__getitem__)
        self.calls = [calls[i] for i in order]
        self.groups = [groups[i] for i in order]
        self.ports, self.faults = tuple(ports), faults
        self.weights: dict[str, Weight] = {}
        self.constants: dict[str, int] = {}
        self.slots: dict[tuple[int, int], int] = {}
        self.pipelines: dict[PipelineKey, int] = {}
        self.reaches: dict[Hashable, Mapping[str, int]] = {}
        self.offsets, self.slab, self.peak = self._place()

    def planned(self) -> PlannedIsland:
        dispatches = [self._dispatch(k, call, label) for k, (call, label) in enumerate(self.calls)]
        sized, slots = self.sized, [Slot(port, addend) for port, addend in self.slots]
        ports, faults, sizes = self.ports, self.faults, None
        if sized is not None:
            faults = tuple([sized.fault(k, fault) for k, fault in enumerate(faults)])
            ports = tuple([sized.port(k, port) for k, port in enumerate(ports)])
            slots = [Slot(slot.port, sized.slot(k, slot.addend)) for k, slot in enumerate(slots)]
            sizes = sized.finished([(s, life.first, life.last) for s, life in self.lifetimes])
        plan = Plan(
            ports=ports,
            constants=tuple(
                ConstantRef(key, self.weights[key].nbytes, self.weights[key].name) for key in self.constants
            ),
            activation_bytes=self.slab,
            slots=tuple(slots),
            pipelines=tuple(self.pipelines),
            dispatches=tuple(dispatches),
            live_peak_bytes=self.peak,
            faults=faults,
        )
        return PlannedIsland(plan, self.weights, sizes)

    def _place(self) -> tuple[dict[Storage, int], int, int]:
        storages, lifetimes = _alive(self.calls, self.groups)
        offsets, total = pack(lifetimes, self.piece)
        self.lifetimes = list(zip(storages, lifetimes, strict=True))
        for storage, life in self.lifetimes:
            if life.nbytes > self.piece:
                label = next(
                    label for call, label in self.calls for _, t in call.operands if t and t.storage is storage
                )
                raise too_large(label, life.nbytes, self.piece)
        for port in self.ports:
            if hint(port.nbytes) > self.piece:
                raise too_large(port.name, hint(port.nbytes), self.piece)
        if self.sized is not None:
            self.sized.buffers(storages)
        return dict(zip(storages, offsets, strict=True)), total, live_peak(lifetimes)

    def _dispatch(self, k: int, call: KernelCall, label: str) -> Dispatch:
        sized, reaches = self.sized, self._reaches_of(call)
        relocations: list[Relocation] = []
        reads: list[Range] = []
        writes: list[Range] = []
        indirect = bytes_moved = 0
        for position, (operand, tensor) in enumerate(call.operands):
            if tensor is None:
                continue
            _prove(call, operand, tensor, reaches.get(operand.name, ITS_VIEW), tensor.byte_range[1])
            at = position * ADDRESS_BYTES
            if tensor is _FAULT_WORD:
                relocations.append(Relocation(at, _FAULT, 0))
                continue
            relocation, accessed = self._address(k, len(relocations), at, tensor)
            relocations.append(relocation)
            (writes if operand.writes else reads).append(accessed)
            bytes_moved += min(accessed.end - accessed.start, hint(tensor.nbytes))
            if tensor.storage.port not in (None, FRESH):  # the operand of a fresh slot is the slot itself
                indirect |= 1 << position
        in_memory = call.argument_bytes > PUSH_CONSTANT_BYTES
        variant, spec, grid = call.variant, {**call.spec, "INDIRECT": indirect}, call.grid
        if sized is not None:
            in_memory |= sized.needs_table(k, call)
            variant = ShaderVariant(variant.source, sized.text(variant.defines))
            spec, grid = sized.spec(spec), sized.call(k, call)
        key = PipelineKey(variant, tuple(sorted(spec.items())), call.argument_bytes, in_memory, call.subgroup_size)
        return Dispatch(
            pipeline=self.pipelines.setdefault(key, len(self.pipelines)),
            arguments=bytes(ADDRESS_BYTES * len(call.operands)) + call.scalars,
            relocations=tuple(relocations),
            grid=grid,
            barrier=k > 0 and self.groups[k] != self.groups[k - 1],
            label=label,
            reads=tuple(reads),
            writes=tuple(writes),
            flops=hint(call.flops),
            bytes=bytes_moved,
            candidate=call.candidate,
            rejected=call.rejected if sized is None else sized.reasons(call.rejected),
        )

    def _address(self, k: int, number: int, at: int, tensor: Tensor) -> tuple[Relocation, Range]:
        """The relocation that writes the address of an operand of dispatch ``k``, at ``at`` bytes of its arguments, and what the
        dispatch accesses there. ``number``: of the dispatch's relocations."""
        storage, sized = tensor.storage, self.sized
        addend = tensor.offset * tensor.dtype.itemsize
        start, end = map(hint, tensor.byte_range)
        if storage.port is not None:
            slot = self.slots.setdefault((storage.port, addend), len(self.slots))
            return Relocation(at, _PORT, slot, 0), Range(_PORT, storage.port, start, end)
        if sized is not None:
            addend = sized.addend(k, number, addend)
        if storage.weight is not None:
            index = self._constant(storage.weight)
            return Relocation(at, _CONSTANT, index, addend), Range(_CONSTANT, index, start, end)
        if sized is not None:
            sized.place(k, number, storage, addend)
        base = self.offsets[storage]
        return Relocation(at, _ACTIVATION, 0, base + addend), Range(_ACTIVATION, 0, base + start, base + end)

    def _reaches_of(self, call: KernelCall) -> Mapping[str, int]:
        """`KernelCall.reaches`, cached for calls with the same arguments, since layers recur."""
        key = (call.variant, call.scalars, call.grid, tuple(call.spec.values()), call.sized)
        reaches = self.reaches.get(key)
        if reaches is None:
            reaches = self.reaches[key] = call.reaches()
        return reaches

    def _constant(self, weight: Weight) -> int:
        key = weight.key
        index = self.constants.get(key)
        if index is None:
            index = self.constants[key] = len(self.constants)
            self.weights[key] = weight
        return index
