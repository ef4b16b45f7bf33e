"""What the kernels of attention of few queries share (``shaders/attention_parts.glsl``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vkep.kernels.attention.kv_codes import CODES, NUMBERS, scales_of
from vkep.kernels.attention.problem import AttentionProblem, attention_params, row_reach
from vkep.kernels.kernel import Kernel, KernelCall
from vkep.kernels.launch import SHUFFLE, ceil_div, ceil_power_of_two, element_type, shuffle_sizes
from vkep.kernels.select import Emission
from vkep.sizes import at_hand, record_at_hand

#: maximum number of queries: with more, a block of keys is read for too few of them at a time; and of a plan that is made for a
#: few of them, so that a run of more needs no other one
MAX_QUERIES, _SERVED_QUERIES = 4, 64
#: maximum rows (queries of heads that share keys) of a workgroup
MOST_ROWS = 8
_INPUTS = ("q", "k", "v", "bias", "origin", "sink", "k_scale", "v_scale")
#: elements; their codes; elements of a bias
_TYPES = tuple(
    {"T": t, "C": c, "BIAS_T": bias}
    for t, bias in (("float", "float"), ("float16_t", "float16_t"), ("float16_t", "float"))
    for c in (t, "uint16_t", "uint8_t")
)


def parts_variants(*defines: Mapping[str, str]) -> tuple[Mapping[str, str], ...]:
    """The definitions that a kernel is compiled with ahead of time, with each of ``defines``."""
    return tuple({**types, **extra} for types in _TYPES for extra in defines)


def parts_reach(call: KernelCall) -> dict[str, int]:
    """Bytes of each operand that a call accesses."""
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


def rows_of(problem: AttentionProblem) -> int:
    """Rows of a workgroup."""
    return min(MOST_ROWS, ceil_power_of_two(problem.heads // problem.kv_heads * problem.queries))


def tiles_of(problem: AttentionProblem) -> int:
    """Workgroups for all rows of a head of keys."""
    return ceil_div(problem.heads // problem.kv_heads * problem.queries, rows_of(problem))


def unit_of(problem: AttentionProblem) -> int:
    """Elements that are read at once: 16 bytes, or 8 as codes, which need no more registers than 8 numbers."""
    return 8 if problem.coding else 16 // element_type(problem.dtype).itemsize


def too_many(problem: AttentionProblem) -> str:
    """Why a problem has too many queries; "" where it has not."""
    few = _are_few(problem.queries) and problem.queries <= _SERVED_QUERIES
    return "" if few else f"{problem.queries} queries, expected up to {MAX_QUERIES}"


@at_hand
def _are_few(queries: int) -> bool:
    return queries <= MAX_QUERIES


@at_hand
def _are_several(splits: int) -> bool:
    return splits > 1


def parts_call(
    kernel: Kernel,
    problem: AttentionProblem,
    e: Emission,
    *,
    splits: int,
    local: int,
    unit: int,
    spec: Mapping[str, int],
    operands: Mapping[str, Any] | None = None,
    params: Mapping[str, Any] | None = None,
    defines: Mapping[str, str] | None = None,
) -> KernelCall:
    """The dispatch of ``splits`` workgroups of ``local`` lanes for each `rows_of` rows, which read ``unit`` elements at once.
    ``spec``, ``operands``, ``params`` and ``defines``: the kernel's own."""
    group, (shuffle, required) = problem.heads // problem.kv_heads, shuffle_sizes(e.caps, local)
    rows = rows_of(record_at_hand(problem))
    tiles = ceil_div(group * problem.queries, rows)  # of a run's queries, which may be more than those at hand
    total = problem.batch * problem.heads * problem.queries
    partial = _are_several(splits) or splits > 1  # several at hand may be one in a run, which joins its own part
    parts = e.target.scratch("float32", (total, splits, problem.value_size)) if partial else None
    stats = e.target.scratch("float32", (total, splits, 2)) if partial else None
    arrivals = e.target.counters(problem.batch * problem.kv_heads * tiles) if partial else None
    glsl = element_type(problem.dtype).glsl
    held_as = CODES[problem.coding][1] if problem.coding else glsl
    bias = element_type(problem.bias_dtype).glsl if problem.bias_strides else glsl
    # 4 elements a lane where that divides a value
    joined = ceil_power_of_two(problem.value_size if problem.value_size % 4 else problem.value_size // 4)
    return kernel.call(
        grid=(splits, problem.kv_heads * tiles, problem.batch),
        operands={
            **{name: e.get(name) for name in (*_INPUTS, "y")},
            "parts": parts,
            "stats": stats,
            "arrivals": arrivals,
            **(operands or {}),
        },
        params={**attention_params(problem), "row_tiles": tiles, "splits": splits, **(params or {})},
        spec={
            "SIZE": problem.size,
            "VALUE_SIZE": problem.value_size,
            "ROWS": rows,
            "GROUP": group,
            "UNIT": unit,
            "BIAS": 0 if problem.bias_strides is None else 1 if problem.bias_strides[3] else 2,
            "SOFTCAP": int(problem.softcap != 0),
            "ORIGIN": int(problem.origin),
            "SINK": int(problem.sink),
            "PARTIAL": int(partial),
            "COLUMNS": min(local // rows, joined),
            "CODE": NUMBERS[problem.coding],
            "K_CHANNELS": int(problem.k_channels),
            "V_CHANNELS": int(problem.v_channels),
            "SUBGROUP_LANES": shuffle or 1,
            **spec,
        },
        defines={"T": glsl, "C": held_as, "BIAS_T": bias, **(SHUFFLE if shuffle else {}), **(defines or {})},
        local_size=(local,),
        subgroup_size=required,
        flops=problem.flops + 2 * total * splits * problem.value_size * partial,
    )
