"""Attention of few queries (a decoder's step) on a GPU, where each subgroup reads its keys and values in one pass:
``shaders/attention_stream.comp``. Of one new token also with the update of the cache before it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpu_shared.capabilities import DeviceCapabilities
from vkep.kernels.attention.cache_update import CacheUpdateProblem
from vkep.kernels.attention.parts import (
    parts_call,
    parts_reach,
    parts_variants,
    rows_of,
    tiles_of,
    too_many,
    unit_of,
)
from vkep.kernels.attention.problem import AttentionProblem
from vkep.kernels.indices import noting
from vkep.kernels.kernel import Kernel, KernelCall
from vkep.kernels.launch import SHUFFLE, ceil_div, ceil_power_of_two, floor_power_of_two, is_cpu, shuffle_sizes
from vkep.kernels.matmul.cooperative_tiles import compute_units
from vkep.kernels.problem import Need, Problem, alignment_of, extent
from vkep.kernels.select import Candidate, Emission, implement
from vkep.sizes import divides, largest, record_at_hand

#: lanes of a workgroup, of which each compute unit gets one
_LANES = 256
#: keys, and values, of which a lane holds a unit, and the same times rows: more would need too many registers
_HELD, _HELD_ROWS = 8, 32

_STRIDES = ("new_k_batch", "new_k_head", "new_v_batch", "new_v_head")


def _reach(call: KernelCall) -> Mapping[str, int]:
    if "UPDATES" not in call.defines:
        return parts_reach(call)
    size, batch, head = call.size_of("T"), call.groups[2], call["SIZE"]
    kv_heads = call.groups[1] // call["row_tiles"]

    def new(name: str, width: int) -> int:
        return extent((batch, kv_heads, width), (call[f"new_{name}_batch"], call[f"new_{name}_head"], 1)) * size

    return {
        **parts_reach(call),
        "new_key": new("k", head),
        "new_value": new("v", call["VALUE_SIZE"]),
        **dict.fromkeys(("cos", "sin"), call["table_rows"] * call["HALF"] * size),
        "ids": 8 * batch * call["IDS"],
        **dict.fromkeys(("q_gain", "k_gain"), call["NORM"] * head * size),
        "fault": 4,
    }


_UPDATES = {"UPDATES": "1"}
_VARIANTS = parts_variants(SHUFFLE)
ATTENTION_STREAM = Kernel(
    "attention_stream.comp",
    variants=(*_VARIANTS, *({**v, **_UPDATES} for v in _VARIANTS if v["T"] == v["C"])),
    reach=_reach,
)


def _line(problem: AttentionProblem) -> int:
    """Lanes of a row of keys or values."""
    units = ceil_div(max(problem.size, problem.value_size), unit_of(problem))
    return max(ceil_power_of_two(units), rows_of(problem))


def _shared_bytes(problem: AttentionProblem, lanes: int, subgroup: int) -> int:
    return 4 * (lanes // subgroup * rows_of(problem) * (problem.value_size + 2) + 4 * lanes)


def _lanes(problem: AttentionProblem, caps: DeviceCapabilities) -> int:
    """Lanes of a workgroup: fewer where the sums of their subgroups do not fit shared memory."""
    lanes = min(_LANES, floor_power_of_two(min(caps.max_workgroup_invocations, caps.max_workgroup_size[0])))
    size = caps.subgroup_size
    while lanes > size and _shared_bytes(problem, lanes, size) > caps.max_shared_memory_bytes:
        lanes //= 2
    return lanes


def no_stream(problem: AttentionProblem, caps: DeviceCapabilities) -> str:
    """Why a device does not run a problem in one pass; "" where it does."""
    if is_cpu(caps):
        return "a CPU driver computes scores in blocks faster"
    if reason := too_many(problem):
        return reason
    if not problem.in_units(unit_of(problem)):
        return f"rows that are not aligned, or no multiples of {unit_of(problem)} elements"
    problem = record_at_hand(problem)
    lanes = _lanes(problem, caps)
    shuffle = shuffle_sizes(caps, lanes)[0]
    if shuffle is None or _line(problem) > shuffle:
        return f"no subgroup holds a row of {max(problem.size, problem.value_size)} elements and combines them"
    if _shared_bytes(problem, lanes, shuffle) > caps.max_shared_memory_bytes:
        return "too little shared memory"
    return ""


def _launch(problem: AttentionProblem, caps: DeviceCapabilities) -> dict[str, Any]:
    """Arguments of `parts_call`."""
    known = record_at_hand(problem)
    held = min(_HELD, _HELD_ROWS // rows_of(known))
    return {
        "splits": largest(1, compute_units(caps) // (problem.batch * problem.kv_heads * tiles_of(known))),
        "local": _lanes(known, caps),
        "unit": unit_of(problem),
        "spec": {
            "LINE": _line(known),
            "HELD": held,
            "HALVES": int(problem.dtype == "float16"),
        },
    }


def attention_stream(problem: AttentionProblem, e: Emission) -> KernelCall:
    """The dispatch; with several workgroups for the same rows, the last one joins their results."""
    return parts_call(ATTENTION_STREAM, problem, e, **_launch(problem, e.caps))


@dataclass(frozen=True)
class UpdatingAttentionProblem(Problem):
    """``attention`` of one new token of each sequence, with the ``update`` of the cache that it reads, in the past's memory.

    The operands are the update's, then the attention's ``bias`` and ``sink``; ``y`` is the attention's result. What no kernel
    computes: `not_updating`.
    """

    attention: AttentionProblem
    update: CacheUpdateProblem

    def needs(self) -> tuple[Need, ...]:
        return (*self.update.needs(), *(need for need in self.attention.needs() if need.name in ("bias", "sink")))

    def makes(self) -> tuple[Need, ...]:
        return (*self.attention.makes(), *self.update.makes()[1:])

    def placed(self, operands: Mapping[str, Any]) -> UpdatingAttentionProblem:
        units = ("q", "k", "v", "cos", "sin", "q_gain", "k_gain", "y", "present_key", "present_value")
        alignment = alignment_of(*(operands[name] for name in units if name in operands))
        return replace(self, attention=replace(self.attention, alignment=alignment))

    @property
    def flops(self) -> int:
        return self.attention.flops

    @property
    def updates(self) -> tuple[str, ...]:
        return self.update.updates

    def reference(self, **operands: np.ndarray) -> tuple[np.ndarray, ...]:
        others = {name: operands.pop(name) for name in ("bias", "sink") if name in operands}
        turned, keys, values = self.update.reference(**operands)
        k, v = keys[:, :, : self.attention.keys], values[:, :, : self.attention.keys]
        return self.attention.reference(turned, k, v, origin=operands["first"], **others), keys, values


def not_updating(attention: AttentionProblem, update: CacheUpdateProblem) -> str:
    """Why no kernel computes an attention with the update of its cache; "" where one does."""
    if not update.over or update.used or update.length != 1 or attention.queries != 1:
        return "not one token in the memory of its past"
    if update.cache or attention.coding:
        return "a cache of another type"
    if not update.half or update.interleaved or 2 * update.half > update.size:
        return "no rotation, or one of neighbours"
    return "" if attention.origin and attention.bounds[1] == 1 else "a query that does not see its own key last"


def _no_update(problem: UpdatingAttentionProblem, caps: DeviceCapabilities) -> str:
    attention, update = problem.attention, problem.update
    unit = unit_of(attention)
    counts = (update.half, *update.k_strides, *update.v_strides)
    if reason := not_updating(attention, update) or no_stream(attention, caps):
        return reason
    return "" if all(divides(unit, count) for count in counts) else f"rows that are no multiples of {unit} elements"


def _attention_update(problem: UpdatingAttentionProblem, e: Emission) -> KernelCall:
    update = problem.update
    fault, code = noting(e, update.fault)
    launch = _launch(problem.attention, e.caps)
    spec = {"HALF": update.half, "IDS": int(update.ids), "NORM": int(update.epsilon is not None)}
    steps = (*update.k_strides[:2], *update.v_strides[:2])
    return parts_call(
        ATTENTION_STREAM,
        problem.attention,
        e,
        **{**launch, "spec": {**launch["spec"], **spec}},
        operands={
            "k": e["present_key"],
            "v": e["present_value"],
            "origin": e["first"],
            "new_key": e["k"],
            "new_value": e["v"],
            **{name: e.get(name) for name in ("cos", "sin", "ids", "q_gain", "k_gain")},
            "fault": fault,
        },
        params={
            **dict(zip(_STRIDES, steps, strict=True)),
            "table_rows": update.table_rows,
            "fault_code": code,
            "epsilon": update.epsilon or 0.0,
        },
        defines=_UPDATES,
    )


implement(UpdatingAttentionProblem, Candidate("stream", _attention_update, when=_no_update))
