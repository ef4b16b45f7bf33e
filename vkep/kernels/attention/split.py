"""Attention of few queries (a decoder's step), with its keys split over workgroups, of which the last one joins the
parts: ``shaders/attention_split.comp``."""

from __future__ import annotations

from gpu_shared.capabilities import DeviceCapabilities
from vkep.kernels.attention.parts import (
    MOST_ROWS,
    parts_call,
    parts_reach,
    parts_variants,
    rows_of,
    tiles_of,
    too_many,
    unit_of,
)
from vkep.kernels.attention.problem import AttentionProblem
from vkep.kernels.kernel import Kernel, KernelCall
from vkep.kernels.launch import SHUFFLE, ceil_div, ceil_power_of_two, floor_power_of_two, is_cpu, shuffle_sizes
from vkep.kernels.select import Emission
from vkep.sizes import record_at_hand

_LANES, _LANES_CPU, _LEAST_LANES = 256, 32, 16
#: workgroups that fill a device, and the keys of each
_GROUPS, _GROUPS_CPU = 256, 4
_BLOCKS = (256, 128, 64, 32)

ATTENTION_SPLIT = Kernel("attention_split.comp", variants=parts_variants({}, SHUFFLE), reach=parts_reach)


def _lanes(problem: AttentionProblem, caps: DeviceCapabilities) -> int:
    """Lanes of a workgroup: fewer where their parts of the values do not fit shared memory."""
    most = floor_power_of_two(min(caps.max_workgroup_invocations, caps.max_workgroup_size[0]))
    lanes = min(_LANES_CPU if is_cpu(caps) else _LANES, most)
    while lanes > _LEAST_LANES and _shared_bytes(problem, _BLOCKS[-1], lanes, caps) > caps.max_shared_memory_bytes:
        lanes //= 2
    return lanes


def _value_lanes(problem: AttentionProblem, unit: int, lanes: int) -> int:
    return min(lanes, ceil_power_of_two(ceil_div(problem.value_size, unit)))


def _shared_bytes(problem: AttentionProblem, block: int, lanes: int, caps: DeviceCapabilities) -> int:
    """Upper bound of the shared memory, for whole units or units of one element."""
    slices = 0
    for unit in (1, unit_of(problem)):
        value_lanes = _value_lanes(problem, unit, lanes)
        within = max(shuffle_sizes(caps, lanes)[0] or 1, value_lanes)
        slices = max(slices, lanes // within * value_lanes * unit)
    return 4 * (rows_of(problem) * (problem.size + block + slices) + 2 * lanes)


def no_split(problem: AttentionProblem, caps: DeviceCapabilities) -> str:
    """Why a device does not run a problem with its keys split; "" where it does."""
    if reason := too_many(problem):
        return reason
    problem = record_at_hand(problem)
    lanes = _lanes(problem, caps)
    if lanes < _LEAST_LANES or _shared_bytes(problem, _BLOCKS[-1], lanes, caps) > caps.max_shared_memory_bytes:
        return "too few lanes, or too little shared memory"
    return ""


def _block(problem: AttentionProblem, caps: DeviceCapabilities) -> int:
    """Keys of a workgroup: few enough for enough workgroups; all of them where there are few."""
    others = problem.batch * problem.kv_heads * tiles_of(problem)
    wanted, lanes = _GROUPS_CPU if is_cpu(caps) else _GROUPS, _lanes(problem, caps)
    most = max(_BLOCKS[-1], ceil_power_of_two(problem.keys))
    fitting = [
        b for b in _BLOCKS if b <= most and _shared_bytes(problem, b, lanes, caps) <= caps.max_shared_memory_bytes
    ]
    return next((b for b in fitting if others * ceil_div(problem.keys, b) >= wanted), fitting[-1])


def attention_split(problem: AttentionProblem, e: Emission) -> KernelCall:
    """The dispatch for blocks of keys."""
    known = record_at_hand(problem)
    local, block = _lanes(known, e.caps), _block(known, e.caps)
    unit = unit_of(problem)
    unit = unit if problem.in_units(unit) else 1
    key_lanes = 1 if is_cpu(e.caps) else min(16, floor_power_of_two(ceil_div(problem.size, unit)))
    spec = {"BLOCK": block, "KEY_LANES": key_lanes, "VALUE_LANES": _value_lanes(problem, unit, local)}
    splits = ceil_div(problem.keys, block)
    return parts_call(ATTENTION_SPLIT, problem, e, splits=splits, local=local, unit=unit, spec=spec)


def gains_by_split(problem: AttentionProblem, caps: DeviceCapabilities) -> bool:
    """Whether it is faster than a product, a softmax and a product. It saves dispatches of a decoder's step on a GPU.
    On a CPU driver it takes 1.4 to 17 times as long."""
    known = record_at_hand(problem)
    rows = known.heads // known.kv_heads * known.queries
    return not is_cpu(caps) and rows <= 4 * MOST_ROWS and not no_split(problem, caps)
