"""What a product of few rows computes beside itself in one dispatch: the RMS norm before it, a second product, or the rotation
of its queries and keys and their way to the caches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vkep.kernels.cache_update import CacheUpdateProblem
from vkep.kernels.kernel import Kernel, Operand, uints
from vkep.kernels.select import Emission

_PAIRED, _TURNED = 2, 4
_DEFINES = {1: "NORMED", _PAIRED: "PAIRED", _TURNED: "TURNED"}
#: the kernels of `in_forms`, by the forms that they have
_FORMS = (0, 1, _PAIRED, _PAIRED + 1, _TURNED, _TURNED + 1)
#: of the rotation (shaders/turned.glsl)
_TURN_INPUTS, _TURN_OUTPUTS = ("cos", "sin", "first", "ids"), ("present_key", "present_value")
_TURN_PARAMS = uints("heads", "kv_heads", "room", "table_rows", "fault_code")


@dataclass(frozen=True)
class Form:
    """``epsilon``: a is the RMS norm ``a * gain / sqrt(mean(a**2) + epsilon)`` of one row. ``paired``: two products of a, by
    the weights and by further operands whose names end with 2; the epilogue makes one result of both. ``update``: the columns
    are the queries, keys and values of one token, head by head, which this problem takes; its results are the product's.
    Raises ``ValueError`` for two products, or an update whose columns are no such ones."""

    epsilon: float | None = None
    paired: bool = False
    update: CacheUpdateProblem | None = None

    def __post_init__(self) -> None:
        if self.update is not None and (self.paired or not_turned(self.update)):
            raise ValueError(f"a product's form: {not_turned(self.update) or 'two products of an update'}")

    @property
    def number(self) -> int:
        """Of `_FORMS`."""
        return (self.epsilon is not None) + _PAIRED * self.paired + _TURNED * (self.update is not None)

    @property
    def sides(self) -> int:
        """Columns, far from each other, whose results are stored together."""
        return 1 if self.number < _PAIRED else 2

    def columns(self, n: int) -> int:
        """Places of ``sides`` columns in a product of n columns."""
        return n if self.update is None else n // 2

    def kernel(self, forms: Sequence[Kernel]) -> Kernel:
        """The kernel of this form, of those of `in_forms`."""
        return forms[_FORMS.index(self.number)]

    def arguments(
        self, forms: Sequence[Kernel], e: Emission, params: Mapping[str, Any], spec: Mapping[str, int]
    ) -> dict[str, Any]:
        """Operands, arguments and spec constants for the kernel's call, from those of the plain product."""
        operands, more, turned = dict(e.operands), {}, {}
        if self.epsilon is not None:
            more["epsilon"] = self.epsilon
        if self.update is not None:
            up = self.update
            operands["y"] = e["turned"]
            operands["fault"], code = e.target.fault(up.fault)
            sizes = (up.heads, up.kv_heads, up.room, up.table_rows, code)
            more |= dict(zip((name for name, _ in _TURN_PARAMS), sizes, strict=True))
            turned = {"HALF": up.half, "IDS": int(up.ids)}
        kernel = self.kernel(forms)
        return {
            "operands": {operand.name: operands.get(operand.name) for operand in kernel.operands},
            "params": {**params, **more},
            "spec": {**spec, **turned},
        }

    @property
    def defines(self) -> dict[str, str]:
        """The kernel's further definitions."""
        return _defines(self.number)


def _defines(number: int) -> dict[str, str]:
    return {name: "1" for bit, name in _DEFINES.items() if number & bit}


PLAIN = Form()


def not_turned(update: CacheUpdateProblem) -> str:
    """Why a product cannot compute an update of a cache; "" where it can."""
    if (update.batch, update.length) != (1, 1) or not update.over or update.used:
        return "not one token in the memory of its past"
    more = {need.name for need in update.operands[0]} - {"q", "k", "v", *_TURN_INPUTS}
    if more or update.cache:
        return f"the update reads {', '.join(sorted(more)) or 'a cache of another type'}"
    halves = 2 * update.half == update.size == update.value_size and not update.interleaved
    return "" if halves else "not both halves of each head are rotated"


def in_forms(kernel: Kernel, weights: Sequence[str]) -> tuple[Kernel, ...]:
    """A product's kernel as it is; of a norm; of two products; of two of a norm; of queries, keys and values; of these of a
    norm. ``weights`` are the operands that each of two products has."""

    def form(number: int) -> Kernel:
        normed, turned = number & 1, number & _TURNED
        operands = [Operand("gain")] if normed else []
        operands += [Operand(f"{name}2") for name in weights] if number & _PAIRED else []
        if turned:
            operands += [*map(Operand, _TURN_INPUTS), *(Operand(n, writes=True) for n in (*_TURN_OUTPUTS, "fault"))]
        return replace(
            kernel,
            operands=(*kernel.operands, *operands),
            params=(*kernel.params, *((("epsilon", "float"),) if normed else ()), *(_TURN_PARAMS if turned else ())),
            spec={**kernel.spec, **({"HALF": 1, "IDS": 0} if turned else {})},
            variants=tuple({**v, **_defines(number)} for v in kernel.variants),
        )

    return kernel, *(form(number) for number in _FORMS[1:])


def turned_reach(call: Any, size: int) -> dict[str, int]:
    """Bytes of the operands of a rotation, for elements of ``size`` bytes."""
    if "TURNED" not in dict(call.variant.defines):
        return {}
    table, head = call["table_rows"] * call["HALF"] * size, 2 * call["HALF"] * size
    cache = call["kv_heads"] * call["room"] * head
    caches = {"present_key": cache, "present_value": cache}
    return {
        "cos": table,
        "sin": table,
        "first": 4,
        "ids": 8 * call["IDS"],
        **caches,
        "y": call["heads"] * head,
        "fault": 4,
    }
