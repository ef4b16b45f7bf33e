"""Collects the numbers of a plan that depend on sizes, while the plan is laid out for the current sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vkep.ir.tensor import Storage
from vkep.kernels.kernel import KernelCall
from vkep.plan.records import Port
from vkep.plan.sized import Buffer, PlanSizes
from vkep.shaders.interface import ADDRESS_BYTES
from vkep.sizes import Trace, fixed, fixed_text, hint, is_size, plain_text, text_parts


class SizedNumbers:
    """The numbers of one plan that depend on sizes. Each method returns the value for the current sizes."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._values: dict[Any, int] = {}
        self._arguments: list[tuple[int, int, str, int]] = []
        self._grids: list[tuple[int, int, int]] = []
        self._addends: list[tuple[int, int, int]] = []
        self._slots: list[tuple[int, int]] = []
        self._faults: list[tuple[int, tuple[str | int, ...]]] = []
        self._shapes: list[tuple[int, int, int]] = []
        self._places: list[tuple[int, int, int, int]] = []
        self._buffers: dict[Storage, int] = {}

    def _value(self, number: Any) -> int:
        return self._values.setdefault(number, len(self._values))

    def call(self, k: int, call: KernelCall) -> tuple[int, int, int]:
        """The arguments and the grid of dispatch ``k``; returns its grid for the current sizes."""
        base = ADDRESS_BYTES * len(call.operands)
        self._arguments += [(k, base + 4 * place, code, self._value(number)) for place, code, number in call.sized]
        self._grids += [(k, axis, self._value(n)) for axis, n in enumerate(call.grid) if is_size(n)]
        x, y, z = map(hint, call.grid)
        return x, y, z

    def needs_table(self, k: int, call: KernelCall) -> bool:
        """Whether runs change arguments of dispatch ``k``, which must then be in the argument table. The offsets of temporary
        buffers are not among them: a recording keeps these. Call it after `addend` was called for its operands."""
        return bool(call.sized) or (bool(self._addends) and self._addends[-1][0] == k)

    def addend(self, k: int, relocation: int, number: Any) -> int:
        """The addend of a relocation, without the offset of its buffer."""
        if is_size(number):
            self._addends.append((k, relocation, self._value(number)))
        return int(hint(number))

    def place(self, k: int, relocation: int, storage: Storage, within: int) -> None:
        """Add a relocation that points into a temporary buffer."""
        self._places.append((k, relocation, self._buffers[storage], within))

    def buffers(self, storages: Sequence[Storage]) -> None:
        """Add the temporary buffers, in the order of their lifetimes."""
        self._buffers = {storage: k for k, storage in enumerate(storages)}

    def slot(self, k: int, number: Any) -> int:
        """Add the addend of a slot."""
        if is_size(number):
            self._slots.append((k, self._value(number)))
        return int(hint(number))

    def port(self, k: int, port: Port) -> Port:
        """Add a port's shape."""
        self._shapes += [(k, axis, self._value(dim)) for axis, dim in enumerate(port.shape) if is_size(dim)]
        return Port(port.name, port.dtype, tuple(map(hint, port.shape)), hint(port.nbytes), port.is_input)

    def text(self, defines: Sequence[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
        """Definitions of a shader. A size in them is fixed: the plan serves only sizes that give the same number."""
        return tuple([(name, fixed_text(text, self._trace, "it is in the text of a shader")) for name, text in defines])

    def reasons(self, rejected: Sequence[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
        """The reasons against candidates, as readable text."""
        return tuple([(name, plain_text(reason)) for name, reason in rejected])

    def fault(self, k: int, fault: tuple[int, str]) -> tuple[int, str]:
        """Add a code and its text, fault ``k`` of the plan."""
        parts = text_parts(fault[1], self._trace)
        if len(parts) > 1:
            self._faults.append((k, tuple([p if isinstance(p, str) else self._value(p) for p in parts])))
        return fault[0], plain_text(fault[1])

    def spec(self, spec: Mapping[str, Any]) -> dict[str, int]:
        """Specialization constants. One that depends on sizes is fixed: the plan serves only sizes that give the same number."""
        return {name: int(fixed(value, "it is a constant of a shader")) for name, value in spec.items()}

    def finished(self, lifetimes: Sequence[tuple[Storage, int, int]]) -> PlanSizes:
        """Return the collected numbers. ``lifetimes``: each buffer, with the first and last group that need it."""
        buffers = tuple([Buffer(self._value(storage.nbytes), first, last) for storage, first, last in lifetimes])
        return PlanSizes(
            values=self._trace.formulas(list(self._values)),
            arguments=tuple(self._arguments),
            grids=tuple(self._grids),
            addends=tuple(self._addends),
            slots=tuple(self._slots),
            shapes=tuple(self._shapes),
            faults=tuple(self._faults),
            buffers=buffers,
            places=tuple(self._places),
        )
