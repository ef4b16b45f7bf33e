"""Attention of few queries (a decoder's step), with its keys split over workgroups, and the dispatch that joins the
parts: ``shaders/attention_split.comp``, ``shaders/attention_join.comp``."""

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
    grid,
    is_cpu,
    shuffle_sizes,
)
from vkep.kernels.select import Emission
from vkep.sizes import record_at_hand

#: maximum number of queries: with more, a block of keys is read for too few of them at a time
MAX_QUERIES = 4
#: maximum rows (queries of heads that share keys) of a workgroup
_MOST_ROWS = 8
#: units of values that a lane loads before it knows their weights
_MOST_HELD = 4
_LANES, _LANES_CPU, _LEAST_LANES = 256, 32, 16
#: workgroups that fill a device, and the keys of each
_GROUPS, _GROUPS_CPU = 512, 4
_BLOCKS = (256, 128, 64, 32)


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
    partial = 4 * rows * call["splits"]
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
        "sink": heads * size if call["SINK"] and not call["PARTIAL"] else 0,
        "k_scale": 4 * scales_of(code, call["K_CHANNELS"], kv_heads * call["SIZE"]),
        "v_scale": 4 * scales_of(code, call["V_CHANNELS"], kv_heads * call["VALUE_SIZE"]),
        "y": partial * call["VALUE_SIZE"] if call["PARTIAL"] else dense,
        "stats": 2 * partial if call["PARTIAL"] else 0,
    }


_INPUTS = ("q", "k", "v", "bias", "origin", "sink", "k_scale", "v_scale")
ATTENTION_SPLIT = Kernel(
    "attention_split.comp",
    operands=(
        *map(Operand, _INPUTS),
        Operand("y", writes=True),
        Operand("stats", writes=True),
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
        "CODE": 0,
        "K_CHANNELS": 0,
        "V_CHANNELS": 0,
        "SUBGROUP_LANES": 32,
    },
    variants=_variants(),
    reach=_split_reach,
)


def _join_reach(call: KernelCall) -> Mapping[str, int]:
    rows, heads, queries, size = call["rows"], call["heads"], call["queries"], call.size_of("T")
    partial = 4 * rows * call["splits"]
    last_row = (heads - 1) * call["y_head"] + (queries - 1) * call["y_row"]
    return {
        "values": partial * call["VALUE_SIZE"],
        "stats": 2 * partial,
        "sink": heads * size if call["SINK"] else 0,
        "y": ((rows // (heads * queries) - 1) * heads * queries * call["VALUE_SIZE"] + last_row + call["VALUE_SIZE"])
        * size,
    }


ATTENTION_JOIN = Kernel(
    "attention_join.comp",
    operands=(Operand("values"), Operand("stats"), Operand("sink"), Operand("y", writes=True)),
    params=uints("rows", "heads", "queries", "splits", "y_head", "y_row"),
    spec={"VALUE_SIZE": 64, "SINK": 0, "COLUMNS": 64, "SUBGROUP_LANES": 32},
    variants=tuple({"T": t, **extra} for t in ("float", "float16_t") for extra in ({}, SHUFFLE)),
    reach=_join_reach,
)


def _lanes(problem: AttentionProblem, caps: DeviceCapabilities) -> int:
    """Lanes of a workgroup: fewer where their parts of the values do not fit shared memory."""
    most = floor_power_of_two(min(caps.max_workgroup_invocations, caps.max_workgroup_size[0]))
    lanes = min(_LANES_CPU if is_cpu(caps) else _LANES, most)
    while lanes > _LEAST_LANES and _shared_bytes(problem, _BLOCKS[-1], lanes, caps) > caps.max_shared_memory_bytes:
        lanes //= 2
    return lanes


def _rows(problem: AttentionProblem) -> int:
    return min(_MOST_ROWS, ceil_power_of_two(problem.heads // problem.kv_heads * problem.queries))


def _value_lanes(problem: AttentionProblem, unit: int, lanes: int) -> int:
    return min(lanes, ceil_power_of_two(ceil_div(problem.value_size, unit)))


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
    wanted = _GROUPS_CPU if is_cpu(caps) else _GROUPS
    fitting = [
        b for b in _BLOCKS if _shared_bytes(problem, b, _lanes(problem, caps), caps) <= caps.max_shared_memory_bytes
    ]
    return next((b for b in fitting if others * ceil_div(problem.keys, b) >= wanted), fitting[-1])


def attention_split(problem: AttentionProblem, e: Emission) -> list[KernelCall]:
    """The dispatch for blocks of keys, and the one that joins several blocks."""
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
    held = max(1, block // (local // value_lanes))
    early = not is_cpu(e.caps) and unit > 1 and value_lanes * unit >= problem.value_size and held <= _MOST_HELD
    glsl = element_type(problem.dtype).glsl
    held_as = CODES[problem.coding][1] if problem.coding else glsl
    bias = element_type(problem.bias_dtype).glsl if problem.bias_strides else glsl
    lanes = {"SUBGROUP_LANES": shuffle or 1}
    extra = SHUFFLE if shuffle else {}
    partial = splits > 1
    values = e.target.scratch("float32", (total, splits, problem.value_size)) if partial else e["y"]
    stats = e.target.scratch("float32", (total, splits, 2)) if partial else None
    params = attention_params(problem)
    made = [
        ATTENTION_SPLIT.call(
            grid=(splits, problem.kv_heads * tiles, problem.batch),
            operands={
                **{name: e.get(name) for name in _INPUTS},
                "y": values,
                "stats": stats,
            },
            params={**params, "row_tiles": tiles, "splits": splits},
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
                "EARLY": int(early),
                "CODE": NUMBERS[problem.coding],
                "K_CHANNELS": int(problem.k_channels),
                "V_CHANNELS": int(problem.v_channels),
                **lanes,
            },
            defines={"T": glsl, "C": held_as, "BIAS_T": bias, **extra},
            local_size=(local,),
            subgroup_size=required,
            flops=problem.flops,
        )
    ]
    if partial:
        made.append(
            ATTENTION_JOIN.call(
                grid=grid(total),
                operands={"values": values, "stats": stats, "sink": e.get("sink"), "y": e["y"]},
                params={
                    "rows": total,
                    "heads": problem.heads,
                    "queries": problem.queries,
                    "splits": splits,
                    **{name: params[name] for name in ("y_head", "y_row")},
                },
                spec={
                    "VALUE_SIZE": problem.value_size,
                    "SINK": int(problem.sink),
                    "COLUMNS": min(local, ceil_power_of_two(problem.value_size)),
                    **lanes,
                },
                defines={"T": glsl, **extra},
                local_size=(local,),
                subgroup_size=required,
                flops=2 * total * splits * problem.value_size,
            )
        )
    return made


def gains_by_split(problem: AttentionProblem, caps: DeviceCapabilities) -> bool:
    """Whether it is faster than a product, a softmax and a product. It saves dispatches of a decoder's step on a GPU.
    On a CPU driver it takes 1.4 to 17 times as long."""
    rows = problem.heads // problem.kv_heads * problem.queries
    return not is_cpu(caps) and rows <= 4 * _MOST_ROWS and not no_split(problem, caps)
