"""Attention in one dispatch that never writes its scores to memory (``shaders/attention.glsl``): float16 on cooperative
matrices, or float32 arithmetic in registers; on a CPU driver subgroup by subgroup (``shaders/attention_subgroup.comp``).

Source: T. Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning", 2023.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpu_shared.capabilities import CooperativeMatrixShape, DeviceCapabilities
from vkep.kernels.attention.problem import AttentionProblem, attention_params, row_reach
from vkep.kernels.attention.split import attention_split, gains_by_split, no_split
from vkep.kernels.attention.stream import attention_stream, no_stream
from vkep.kernels.kernel import GLSL_BYTES, Kernel, KernelCall
from vkep.kernels.launch import ceil_div, element_type, is_cpu
from vkep.kernels.matmul.cooperative_tiles import float16_shape
from vkep.kernels.matmul.tiles import OF_SUBGROUPS, SubgroupTile, is_cpu_driver, subgroup_tile
from vkep.kernels.select import Candidate, Emission, implement
from vkep.kernels.tuning import Tuned, estimated
from vkep.sizes import record_at_hand

#: minimum number of queries: with fewer most of a block is unused, and few workgroups read the keys
MIN_QUERIES = 16
#: workgroups that fully occupy a device, by its type, and for all other types
_WORKGROUPS_TO_FILL, _WORKGROUPS_TO_FILL_SMALL = {"discrete": 128, "virtual": 128}, 24
#: most blocks of keys in sequence for an attention of fewer workgroups than a quarter of these: beyond, scores in memory occupy
#: more of the device and are faster
_LONGEST_CHAIN = 32
#: 32-bit registers that a lane's matrices may occupy: more would spill
_MATRIX_REGISTERS = 200
_LANE_COLUMNS = 8
#: parts of a subgroup's columns that the values have at most
_MOST_PARTS = 8
#: workgroups whose powers 32-bit numbers count
_MOST_GROUPS = 1 << 21

_ONLY_SPLIT = "a sink of each head, or keys and values in codes"


def _tiled_defines(dtype: str, bias: str) -> dict[str, str]:
    kind = element_type(dtype)
    unit = {"UNIT_T": kind.glsl_vector, "UNIT_ALIGN": str(4 * kind.itemsize)}
    return {"T": kind.glsl, **unit, "BIAS_T": element_type(bias).glsl}


def _reach(call: KernelCall) -> Mapping[str, int]:
    """Rows up to the last query or key of the last head and batch: lines beyond are clamped to these, or not stored.

    ``first``, ``end`` and ``origin`` choose among the keys only: a block begins and ends within them whatever they hold.
    """
    _, heads, batch = call.grid
    itemsize = GLSL_BYTES[call.defines.get("T", "float16_t")]

    def rows(name: str, heads: int, count: int, size: int) -> int:
        return row_reach(call, name, (batch, heads, count), size)

    queries, keys, size, value_size = (call[name] for name in ("queries", "keys", "SIZE", "VALUE_SIZE"))
    kv_heads = ceil_div(heads, call["GROUP"])
    columns = {0: 0, 1: keys, 2: 1}[call["BIAS"]]
    last_row = (heads - 1) * call["y_head"] + (queries - 1) * call["y_row"]
    return {
        "q": rows("q", heads, queries, size) * itemsize,
        "k": rows("k", kv_heads, keys, size) * itemsize,
        "v": rows("v", kv_heads, keys, value_size) * itemsize,
        "bias": rows("bias", heads, queries, columns) * call.size_of("BIAS_T"),
        "origin": 4 * batch,
        "y": ((batch - 1) * heads * queries * value_size + last_row + value_size) * itemsize,
    }


def _subgroup_reach(call: KernelCall) -> Mapping[str, int]:
    tile = call["ROWS"] * call["LANE_COLUMNS"] * call["LOCAL_X"]
    return {**_reach(call), "powers": math.prod(call.groups) * tile * call.size_of("T")}


ATTENTION_COOPERATIVE = Kernel(
    "attention_coop.comp", variants=({"BIAS_T": "float16_t"}, {"BIAS_T": "float"}), reach=_reach
)
ATTENTION_TILED = Kernel(
    "attention_tiled.comp",
    variants=tuple(
        _tiled_defines(*t) for t in (("float32", "float32"), ("float16", "float16"), ("float16", "float32"))
    ),
    reach=_reach,
)
ATTENTION_SUBGROUP = Kernel(
    "attention_subgroup.comp", variants=tuple({**v, "BIAS_T": v["T"]} for v in OF_SUBGROUPS), reach=_subgroup_reach
)


@dataclass(frozen=True)
class AttentionTile:
    """A workgroup computes a block of ``queries`` by ``keys`` scores at a time; ``rows`` of the queries belong to a
    subgroup, or to a lane without cooperative matrices.
    """

    queries: int
    keys: int
    rows: int

    @property
    def block(self) -> dict[str, int]:
        """The block's spec constants by name."""
        return {"BLOCK_Q": self.queries, "BLOCK_K": self.keys}


#: the fastest first, measured on a fully occupied device of 132 cores with heads of 32 to 160 (docs/design-log/gpu-speed.md)
COOPERATIVE_TILES = (
    AttentionTile(128, 32, 32),
    AttentionTile(128, 32, 16),
    AttentionTile(64, 32, 16),
)
TILED_TILES = (
    AttentionTile(32, 16, 4),
    AttentionTile(64, 32, 8),
    AttentionTile(64, 16, 8),
    AttentionTile(16, 16, 4),
    AttentionTile(32, 32, 4),
    AttentionTile(8, 8, 4),
)


def gains_by_attention(problem: AttentionProblem, caps: DeviceCapabilities) -> bool:
    """Whether one kernel is faster than scores in memory, by measurement (docs/design-log/gpu-speed.md).

    With more queries than a decoder's step has, only on cooperative matrices: without them the tiles of separate
    products are faster.
    """
    if gains_by_split(problem, caps):
        return True
    if problem.sink or problem.coding:
        return False
    # keys that no query sees are left out, and no mask is computed; float16 is not measured
    if is_cpu(caps) and ((problem.first, problem.end) == (None, None) or problem.dtype != "float32"):
        return False  # before anything is asked of sizes
    known = record_at_hand(problem)
    if known.queries < MIN_QUERIES:
        return False
    if is_cpu(caps):
        return not _subgroup_when(problem, caps)
    tile = _cooperative_tile(known, caps)
    if tile is None:
        return False
    busy = 4 * _groups(known, tile) >= _to_fill(caps)
    return busy or ceil_div(known.keys, tile.keys) <= _LONGEST_CHAIN


def _cooperative_when(problem: AttentionProblem, caps: DeviceCapabilities) -> str:
    if problem.sink or problem.coding:
        return _ONLY_SPLIT
    if problem.dtype != "float16":
        return f"attention of {problem.dtype}; cooperative matrices take float16"
    if _shape(problem, caps) is None:
        return (
            "the device has no cooperative matrices of float16 (with n = k), or no shuffles and ballots for their rows"
        )
    return _no_tile(problem, _cooperative_tile(problem, caps))


def _cooperative(problem: AttentionProblem, e: Emission) -> KernelCall:
    shape, tile = _shape(problem, e.caps), _cooperative_tile(problem, e.caps, e.target.tuned)
    assert shape is not None and tile is not None, "asked by _cooperative_when"
    spec = {
        **tile.block,
        "SUB_ROWS": tile.rows,
        "MAT_M": shape.m,
        "MAT_N": shape.n,
        "MAT_K": shape.k,
        "SUBGROUP_LANES": e.caps.subgroup_size,
        "VECTORS": int(problem.in_units(8)),
    }
    defines = _bias_defines(problem, "float16")
    lanes = tile.queries // tile.rows * e.caps.subgroup_size
    return _call(ATTENTION_COOPERATIVE, problem, tile, e, spec, defines, lanes, e.caps.subgroup_size)


def _tiled_when(problem: AttentionProblem, caps: DeviceCapabilities) -> str:
    return _ONLY_SPLIT if problem.sink or problem.coding else _no_tile(problem, _tiled_tile(problem, caps))


def _tiled(problem: AttentionProblem, e: Emission) -> KernelCall:
    tile = _tiled_tile(problem, e.caps, e.target.tuned)
    assert tile is not None, "asked by _tiled_when"
    vectors = int(problem.in_units(4))
    spec = {**tile.block, "MICRO_ROWS": tile.rows, "LANE_COLUMNS": _LANE_COLUMNS, "VECTORS": vectors}
    defines = _tiled_defines(problem.dtype, problem.bias_dtype if problem.bias_strides else problem.dtype)
    lanes = tile.queries // tile.rows * _LANE_COLUMNS
    return _call(ATTENTION_TILED, problem, tile, e, spec, defines, lanes, None)


def _subgroup_when(problem: AttentionProblem, caps: DeviceCapabilities) -> str:
    if problem.sink or problem.coding:
        return _ONLY_SPLIT
    if not (is_cpu_driver(caps) and caps.has("subgroup_arithmetic")):
        return "its subgroups are no vectors of a CPU, or do not compute maxima"
    tile = _subgroup_tile(problem, caps)
    if problem.value_size > _MOST_PARTS * tile.columns:
        return f"{problem.value_size} values, the kernel's registers hold {_MOST_PARTS * tile.columns}"
    groups = problem.batch * problem.heads * ceil_div(problem.queries, tile.rows)
    return "" if groups < _MOST_GROUPS else f"{groups} workgroups, the kernel counts fewer than {_MOST_GROUPS}"


def _subgroup_tile(problem: AttentionProblem, caps: DeviceCapabilities) -> SubgroupTile:
    """Its rows are queries, and its columns keys, then values."""
    tile = subgroup_tile(problem.queries, problem.keys, problem.batch * problem.heads, caps, False)
    pairs = problem.in_units(2)
    return replace(tile, lane_columns=4, unroll=4).in_pairs(caps, problem.dtype, pairs, pairs)


def _subgroup(problem: AttentionProblem, e: Emission) -> KernelCall:
    tile = _subgroup_tile(problem, e.caps)
    block = AttentionTile(tile.rows, tile.columns, tile.rows)
    groups = math.prod(_grid(problem, block))
    return _call(
        ATTENTION_SUBGROUP,
        problem,
        block,
        e,
        tile.spec,
        tile.defines(problem.dtype) | _bias_defines(problem, problem.dtype),
        tile.lanes,
        tile.required_subgroup_size,
        powers=e.target.scratch(problem.dtype, (groups, tile.rows, tile.columns)),
    )


def _bias_defines(problem: AttentionProblem, without: str) -> dict[str, str]:
    return {"BIAS_T": element_type(problem.bias_dtype if problem.bias_strides else without).glsl}


def _call(
    kernel: Kernel,
    problem: AttentionProblem,
    tile: AttentionTile,
    e: Emission,
    spec: dict[str, int],
    defines: dict[str, str],
    lanes: int,
    subgroup_size: int | None,
    **scratch: Any,
) -> KernelCall:
    bias = problem.bias_strides
    return kernel.call(
        grid=_grid(problem, tile),
        operands={name: e.get(name) for name in ("q", "k", "v", "bias", "origin", "y")} | scratch,
        params=attention_params(problem),
        spec={
            "SIZE": problem.size,
            "VALUE_SIZE": problem.value_size,
            "GROUP": problem.heads // problem.kv_heads,
            "BIAS": 0 if bias is None else 1 if bias[3] else 2,
            "SOFTCAP": int(problem.softcap != 0),
            "ORIGIN": int(problem.origin),
            **spec,
        },
        defines=defines,
        local_size=(lanes, 1, 1),
        subgroup_size=subgroup_size,
        flops=record_at_hand(problem).flops_by(tile.queries, tile.keys),
    )


implement(
    AttentionProblem,
    Candidate("stream", attention_stream, when=no_stream),
    Candidate("split", attention_split, when=no_split),
    Candidate("cooperative", _cooperative, when=_cooperative_when),
    Candidate("subgroup", _subgroup, when=_subgroup_when),
    Candidate("tiled", _tiled, when=_tiled_when),
)


# ---- which tile


def _shape(problem: AttentionProblem, caps: DeviceCapabilities) -> CooperativeMatrixShape | None:
    """The matrices' shape for a problem; None without such matrices, or where their rows do not divide a subgroup."""
    if problem.dtype != "float16" or not (caps.has("subgroup_shuffle") and caps.has("subgroup_ballot")):
        return None
    shape = float16_shape(caps)
    return shape if shape is not None and shape.n == shape.k and caps.subgroup_size % shape.m == 0 else None


def _grid(problem: AttentionProblem, tile: AttentionTile) -> tuple[int, int, int]:
    return ceil_div(problem.queries, tile.queries), problem.heads, problem.batch


def _groups(problem: AttentionProblem, tile: AttentionTile) -> int:
    return math.prod(_grid(problem, tile))


def _no_tile(problem: AttentionProblem, tile: AttentionTile | None) -> str:
    """Why the device cannot run a problem with a tile; "" where it can."""
    if tile is None:
        return f"no tile of heads of {problem.size} and {problem.value_size} elements fits the device"
    return ""


def _to_fill(caps: DeviceCapabilities) -> int:
    return _WORKGROUPS_TO_FILL.get(caps.device_type, _WORKGROUPS_TO_FILL_SMALL)


def _chosen(
    problem: AttentionProblem, caps: DeviceCapabilities, kind: str, fitting: Sequence[AttentionTile], tuned: Tuned
) -> AttentionTile | None:
    """The tuned tile, else the first with enough workgroups for the device, else the one with the most workgroups."""
    problem = record_at_hand(problem)
    sizes = (problem.batch * problem.heads, problem.queries, problem.keys, problem.size, problem.value_size)
    choice = tuned(lambda: [(t.queries, t.keys, t.rows) for t in fitting], "attention", kind, *sizes)
    if choice is not None:
        return AttentionTile(*choice)
    filling = [tile for tile in fitting if _groups(problem, tile) >= _to_fill(caps)]
    if filling:
        return filling[0]
    return max(fitting, key=lambda tile: _groups(problem, tile), default=None)


def _cooperative_tile(
    problem: AttentionProblem, caps: DeviceCapabilities, tuned: Tuned = estimated
) -> AttentionTile | None:
    shape = _shape(problem, caps)
    if shape is None:
        return None
    fitting = [tile for tile in COOPERATIVE_TILES if _cooperative_runs(tile, problem, caps, shape)]
    return _chosen(problem, caps, "cooperative", fitting, tuned)


def _tiled_tile(problem: AttentionProblem, caps: DeviceCapabilities, tuned: Tuned = estimated) -> AttentionTile | None:
    fitting = [tile for tile in TILED_TILES if _tiled_runs(tile, problem, caps)]
    return _chosen(problem, caps, "tiled", fitting, tuned)


def _pitch(elements: int, unit: int) -> int:
    """Length of a line in shared memory in units, as in the GLSL."""
    return ceil_div(elements, unit) | 1


def _cooperative_runs(
    tile: AttentionTile, problem: AttentionProblem, caps: DeviceCapabilities, shape: CooperativeMatrixShape
) -> bool:
    depth = ceil_div(problem.size, shape.k) * shape.k
    width = ceil_div(problem.value_size, shape.n) * shape.n
    subgroups, lanes = tile.queries // tile.rows, caps.subgroup_size
    shares = lanes // shape.m
    k_pitch, v_pitch = _pitch(depth, 8), _pitch(width, 8)
    stage, slices = tile.keys * (k_pitch + v_pitch), subgroups * shape.m * shape.n // 4
    units = max(tile.queries * max(k_pitch, v_pitch), stage + max(stage, slices))
    # sums and two blocks' scores take 4 bytes, queries and powers 2
    registers = tile.rows * (4 * (width + 2 * tile.keys) + 2 * (depth + shape.k)) // (4 * lanes)
    return (
        subgroups * lanes <= min(caps.max_workgroup_invocations, caps.max_workgroup_size[0])
        and 16 * units + 4 <= caps.max_shared_memory_bytes
        and registers <= _MATRIX_REGISTERS
        and not (tile.rows % shape.m or tile.keys % shape.n or shape.n % (4 * shares))
    )


def _tiled_runs(tile: AttentionTile, problem: AttentionProblem, caps: DeviceCapabilities) -> bool:
    lanes = tile.queries // tile.rows * _LANE_COLUMNS
    depth, width = _pitch(problem.size, 4), _pitch(problem.value_size, 4)
    units = tile.keys * (depth + width) + tile.queries * (_pitch(tile.keys, 4) + depth)
    return (
        lanes <= min(caps.max_workgroup_invocations, caps.max_workgroup_size[0])
        and 16 * units + 4 * (tile.queries + lanes) <= caps.max_shared_memory_bytes
    )
