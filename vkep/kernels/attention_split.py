"""Attention of few queries (a decoder's step), with its keys split over workgroups, of which the last one joins the
parts: ``shaders/attention_split.comp``."""

from __future__ import annotations

from collections.abc import Mapping

from gpu_shared.capabilities import DeviceCapabilities
from vkep.kernels.attention_problem import AttentionProblem, attention_params, row_reach
from vkep.kernels.kernel import Kernel, KernelCall, Operand, uints
from vkep.kernels.kv_codes import CODES, NUMBERS, scales_of
from vkep.kernels.launch import (
    SHUFFLE,
    ceil_div,
    ceil_power_of_two,
    element_type,
    floor_power_of_two,
    is_cpu,
    shuffle_sizes,
)
from vkep.kernels.select import Emission
from vkep.sizes import record_at_hand

#: maximum number of queries: with more, a block of keys is read for too few of them at a time
MAX_QUERIES = 4
#: maximum rows (queries of heads that share keys) of a workgroup
_MOST_ROWS = 8
#: units of keys, and of values, that a lane loads at once
_MOST_HELD = 8
_LANES, _LANES_CPU, _LEAST_LANES = 256, 32, 16
#: workgroups that fill a device, and the keys of each
_GROUPS, _GROUPS_CPU = 256, 4
_BLOCKS = (256, 128, 64, 32)
#: sequences times heads of keys from which on workgroups are smaller, and more: several share a core
_CROWD, _CROWD_LANES, _CROWD_HELD, _CROWD_GROUPS, _CROWD_BLOCK = 64, 128, 4, 1024, 64


def _variants() -> tuple[dict[str, str], ...]:
    types = (("float", "float"), ("float16_t", "float16_t"), ("float16_t", "float"))
    return tuple(
        {"T": t, "C": c, "BIAS_T": bias, **extra}
        for t, bias in types
        for c in (t, "uint16_t", "uint8_t")
        for extra in ({}, SHUFFLE)
    )


def _split_reach(call: KernelCall) -> Mapping[str, int]:
    batch, size = call.groups[2], call.size_of("T")
    kv_heads = call.groups[1] // call["row_tiles"]
    heads = kv_heads * call["GROUP"]
    rows = batch * heads * call["queries"]
    partial = 4 * rows * call["splits"] * call["PARTIAL"]
    last_row = (heads - 1) * call["y_head"] + (call["queries"] - 1) * call["y_row"]
    dense = ((batch - 1) * heads * call["queries"] * call["VALUE_SIZE"] + last_row + call["VALUE_SIZE"]) * size
    columns = {0: 0, 1: call["keys"], 2: 1}[call["BIAS"]]
    code, packs, held = call["CODE"], 2 if call["CODE"] == NUMBERS["uint8"] else 1, call.size_of("C")
    return {
        "q": row_reach(call, "q", (batch, heads, call["queries"]), call["SIZE"]) * size,
        "k": ceil_div(row_reach(call, "k", (batch, kv_heads, call["keys"]), call["SIZE"]), packs) * held,
        "v": ceil_div(row_reach(call, "v", (batch, kv_heads, call["keys"]), call["VALUE_SIZE"]), packs) * held,
        "bias": row_reach(call, "bias", (batch, heads, call["queries"]), columns) * call.size_of("BIAS_T"),
        "origin": 4 * batch if call["ORIGIN"] else 0,
        "sink": heads * size if call["SINK"] else 0,
        "k_scale": 4 * scales_of(code, call["K_CHANNELS"], kv_heads * call["SIZE"]),
        "v_scale": 4 * scales_of(code, call["V_CHANNELS"], kv_heads * call["VALUE_SIZE"]),
        "y": dense,
        "parts": partial * call["VALUE_SIZE"],
        "stats": 2 * partial,
        "arrivals": 4 * batch * call.groups[1] * call["PARTIAL"],
    }


_INPUTS = ("q", "k", "v", "bias", "origin", "sink", "k_scale", "v_scale")
ATTENTION_SPLIT = Kernel(
    "attention_split.comp",
    operands=(
        *map(Operand, _INPUTS),
        *(Operand(name, writes=True) for name in ("y", "parts", "stats", "arrivals")),
    ),
    params=(
        *uints("queries", "keys", "row_tiles", "splits"),
        *uints(*(f"{name}_{axis}" for name in "qkv" for axis in ("batch", "head", "row"))),
        *uints("y_head", "y_row", "bias_batch", "bias_head", "bias_row"),
        *(("scale", "float"), ("softcap", "float"), ("first", "int"), ("end", "int")),
    ),
    spec={
        "SIZE": 64,
        "VALUE_SIZE": 64,
        "ROWS": 1,
        "BLOCK": 64,
        "KEY_LANES": 8,
        "VALUE_LANES": 8,
        "GROUP": 1,
        "UNIT": 8,
        "BIAS": 0,
        "SOFTCAP": 0,
        "ORIGIN": 0,
        "SINK": 0,
        "PARTIAL": 1,
        "EARLY": 0,
        "EARLY_KEYS": 0,
        "HALVES": 0,
        "COLUMNS": 16,
        "CODE": 0,
        "K_CHANNELS": 0,
        "V_CHANNELS": 0,
        "SUBGROUP_LANES": 32,
    },
    variants=_variants(),
    reach=_split_reach,
)


def _is_crowd(problem: AttentionProblem, caps: DeviceCapabilities) -> bool:
    return not is_cpu(caps) and problem.batch * problem.kv_heads >= _CROWD


def _lanes(problem: AttentionProblem, caps: DeviceCapabilities) -> int:
    """Lanes of a workgroup: fewer where their parts of the values do not fit shared memory."""
    most = floor_power_of_two(min(caps.max_workgroup_invocations, caps.max_workgroup_size[0]))
    lanes = min(_LANES_CPU if is_cpu(caps) else _CROWD_LANES if _is_crowd(problem, caps) else _LANES, most)
    while lanes > _LEAST_LANES and _shared_bytes(problem, _BLOCKS[-1], lanes, caps) > caps.max_shared_memory_bytes:
        lanes //= 2
    return lanes


def _rows(problem: AttentionProblem) -> int:
    return min(_MOST_ROWS, ceil_power_of_two(problem.heads // problem.kv_heads * problem.queries))


def _value_lanes(problem: AttentionProblem, unit: int, lanes: int) -> int:
    return min(lanes, ceil_power_of_two(ceil_div(problem.value_size, unit)))


def _join_lanes(problem: AttentionProblem) -> int:
    """Lanes along a value that is joined: 4 elements each where that divides them."""
    return ceil_power_of_two(problem.value_size if problem.value_size % 4 else problem.value_size // 4)


def _unit(problem: AttentionProblem) -> int:
    """Elements that are read at once: 16 bytes, or 8 as codes, which need no more registers than 8 numbers."""
    return 8 if problem.coding else 16 // element_type(problem.dtype).itemsize


def _shared_bytes(problem: AttentionProblem, block: int, lanes: int, caps: DeviceCapabilities) -> int:
    """Upper bound of the shared memory, for whole units or units of one element."""
    slices = 0
    for unit in (1, _unit(problem)):
        value_lanes = _value_lanes(problem, unit, lanes)
        within = max(shuffle_sizes(caps, lanes)[0] or 1, value_lanes)
        slices = max(slices, lanes // within * value_lanes * unit)
    return 4 * (_rows(problem) * (problem.size + block + slices) + 2 * lanes)


def no_split(problem: AttentionProblem, caps: DeviceCapabilities) -> str:
    """Why a device does not run a problem with its keys split; "" where it does."""
    if problem.queries > MAX_QUERIES:
        return f"{problem.queries} queries, expected up to {MAX_QUERIES}"
    problem = record_at_hand(problem)
    lanes = _lanes(problem, caps)
    if lanes < _LEAST_LANES or _shared_bytes(problem, _BLOCKS[-1], lanes, caps) > caps.max_shared_memory_bytes:
        return "too few lanes, or too little shared memory"
    return ""


def _block(problem: AttentionProblem, caps: DeviceCapabilities) -> int:
    """Keys of a workgroup: few enough for enough workgroups; all of them where there are few."""
    tiles = ceil_div(problem.heads // problem.kv_heads * problem.queries, _rows(problem))
    others = problem.batch * problem.kv_heads * tiles
    crowd, lanes = _is_crowd(problem, caps), _lanes(problem, caps)
    wanted = _GROUPS_CPU if is_cpu(caps) else _CROWD_GROUPS if crowd else _GROUPS
    most = max(_BLOCKS[-1], ceil_power_of_two(problem.keys))
    fitting = [
        b for b in _BLOCKS if b <= most and _shared_bytes(problem, b, lanes, caps) <= caps.max_shared_memory_bytes
    ]
    if crowd:
        fitting = [b for b in fitting if b >= _CROWD_BLOCK] or fitting
    return next((b for b in fitting if others * ceil_div(problem.keys, b) >= wanted), fitting[-1])


def attention_split(problem: AttentionProblem, e: Emission) -> KernelCall:
    """The dispatch for blocks of keys."""
    known = record_at_hand(problem)
    rows, local, block = _rows(known), _lanes(known, e.caps), _block(known, e.caps)
    group = problem.heads // problem.kv_heads
    tiles, splits = ceil_div(group * problem.queries, rows), ceil_div(problem.keys, block)
    total = problem.batch * problem.heads * problem.queries
    unit = _unit(problem)
    unit = unit if problem.in_units(unit) else 1
    shuffle, required = shuffle_sizes(e.caps, local)
    key_lanes = 1 if is_cpu(e.caps) else min(16, floor_power_of_two(ceil_div(problem.size, unit)))
    value_lanes = _value_lanes(problem, unit, local)
    early = not is_cpu(e.caps) and unit > 1
    most_held = _CROWD_HELD if _is_crowd(known, e.caps) else _MOST_HELD
    held, held_keys = (min(most_held, max(1, block // (local // lanes))) for lanes in (value_lanes, key_lanes))
    glsl = element_type(problem.dtype).glsl
    held_as = CODES[problem.coding][1] if problem.coding else glsl
    bias = element_type(problem.bias_dtype).glsl if problem.bias_strides else glsl
    partial = splits > 1
    parts = e.target.scratch("float32", (total, splits, problem.value_size)) if partial else None
    stats = e.target.scratch("float32", (total, splits, 2)) if partial else None
    arrivals = e.target.counters(problem.batch * problem.kv_heads * tiles) if partial else None
    return ATTENTION_SPLIT.call(
        grid=(splits, problem.kv_heads * tiles, problem.batch),
        operands={
            **{name: e.get(name) for name in (*_INPUTS, "y")},
            "parts": parts,
            "stats": stats,
            "arrivals": arrivals,
        },
        params={**attention_params(problem), "row_tiles": tiles, "splits": splits},
        spec={
            "SIZE": problem.size,
            "VALUE_SIZE": problem.value_size,
            "ROWS": rows,
            "BLOCK": block,
            "KEY_LANES": key_lanes,
            "VALUE_LANES": value_lanes,
            "GROUP": group,
            "UNIT": unit,
            "BIAS": 0 if problem.bias_strides is None else 1 if problem.bias_strides[3] else 2,
            "SOFTCAP": int(problem.softcap != 0),
            "ORIGIN": int(problem.origin),
            "SINK": int(problem.sink),
            "PARTIAL": int(partial),
            "EARLY": held if early and value_lanes * unit >= problem.value_size else 0,
            "EARLY_KEYS": held_keys if early and key_lanes * unit == problem.size else 0,
            "HALVES": int(problem.dtype == "float16"),
            "COLUMNS": min(local // rows, _join_lanes(problem)),
            "CODE": NUMBERS[problem.coding],
            "K_CHANNELS": int(problem.k_channels),
            "V_CHANNELS": int(problem.v_channels),
            "SUBGROUP_LANES": shuffle or 1,
        },
        defines={"T": glsl, "C": held_as, "BIAS_T": bias, **(SHUFFLE if shuffle else {})},
        local_size=(local,),
        subgroup_size=required,
        flops=problem.flops + 2 * total * splits * problem.value_size * partial,
    )


def gains_by_split(problem: AttentionProblem, caps: DeviceCapabilities) -> bool:
    """Whether it is faster than a product, a softmax and a product. It saves dispatches of a decoder's step on a GPU.
    On a CPU driver it takes 1.4 to 17 times as long."""
    rows = problem.heads // problem.kv_heads * problem.queries
    return not is_cpu(caps) and rows <= 4 * _MOST_ROWS and not no_split(problem, caps)
