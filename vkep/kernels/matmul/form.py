"""What a product of few rows computes beside itself in one dispatch: the RMS norm before it, a second product, or the rotation
of its queries and keys and their way to the caches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from vkep.kernels.attention.cache_update import CacheUpdateProblem
from vkep.kernels.epilogue import call_arguments
from vkep.kernels.kernel import Kernel, KernelCall
from vkep.kernels.select import Emission

#: of the rotation (shaders/turned.glsl)
_TURN_INPUTS = {"cos", "sin", "first", "ids"}


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
    def sides(self) -> int:
        """Columns, far from each other, whose results are stored together."""
        return 2 if self.paired or self.update is not None else 1

    def columns(self, n: int) -> int:
        """Places of ``sides`` columns in a product of n columns."""
        return n if self.update is None else n // 2

    def call(
        self,
        kernel: Kernel,
        e: Emission,
        *,
        params: Mapping[str, Any],
        spec: Mapping[str, int],
        defines: Mapping[str, str],
        **launch: Any,
    ) -> KernelCall:
        """The kernel's call, from the arguments, spec constants and definitions of the plain product."""
        operands = dict(e.operands)
        defines = {**defines, **_defines(self.epsilon is not None, self.paired, self.update is not None)}
        if self.epsilon is not None:
            params = {**params, "epsilon": self.epsilon}
        if self.update is not None:
            up = self.update
            operands["y"] = e["turned"]
            operands["fault"], code = e.target.fault(up.fault)
            sizes = {"heads": up.heads, "kv_heads": up.kv_heads, "room": up.room, "table_rows": up.table_rows}
            params = {**params, **sizes, "fault_code": code}
            spec = {**spec, "HALF": up.half, "IDS": int(up.ids)}
        return kernel.call(
            operands={operand.name: operands.get(operand.name) for operand in kernel.interface(defines).operands},
            params=params,
            spec=spec,
            **launch,
            **call_arguments(e.epilogue, defines),
        )


def _defines(normed: bool, paired: bool, turned: bool) -> dict[str, str]:
    return {name: "1" for name, holds in (("NORMED", normed), ("PAIRED", paired), ("TURNED", turned)) if holds}


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


def in_forms(variants: Iterable[Mapping[str, str]]) -> tuple[Mapping[str, str], ...]:
    """The variants of a product's kernel in each of its forms."""
    second = ((False, False), (True, False), (False, True))
    return tuple({**v, **_defines(normed, *more)} for v in variants for normed in (False, True) for more in second)


def turned_reach(call: KernelCall, size: int) -> dict[str, int]:
    """Bytes of the operands of a rotation, for elements of ``size`` bytes."""
    if "TURNED" not in call.defines:
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
