"""TopK along the middle of a tensor viewed as [outer, axis, inner]: by k searches (``shaders/topk.comp``), by a merge sort
(``shaders/topk_sort.comp``, ``shaders/topk_merge.comp``), or by a sort of those elements that are as good as the least of the
best k parts of a column (``shaders/argreduce.comp``, ``shaders/topk_filter.comp``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpu_shared.capabilities import DeviceCapabilities
from vkep.errors import InvalidNode
from vkep.kernels.fastdiv import magic_params
from vkep.kernels.kernel import Kernel, KernelCall
from vkep.kernels.launch import (
    BUSY_GROUPS,
    ceil_div,
    ceil_power_of_two,
    element_defines,
    flat_lanes,
    floor_power_of_two,
    grid,
    is_cpu,
    key_defines,
    lanes,
    share_columns,
)
from vkep.kernels.problem import Need
from vkep.kernels.reductions.argreduce import best_parts, candidate_bytes, candidate_of, candidates_scratch
from vkep.kernels.reductions.columns import ColumnProblem, column_blocks
from vkep.kernels.select import Candidate, Emission, implement
from vkep.plan.memory import piece_of
from vkep.sizes import at_hand, hint, serves_others, smallest

_VARIANTS = tuple(element_defines(t) | key_defines(t) for t in ("float32", "float16", "int32", "int64", "uint8"))


def _results(call: KernelCall, written: int = 1) -> dict[str, int]:
    found = column_blocks(call) * call["k"] * written
    return {"values": found * call.size_of("IN_T"), "indices": found * 8}


def _search_reach(call: KernelCall) -> Mapping[str, int]:
    return {"x": column_blocks(call) * call["axis"] * call.size_of("IN_T"), **_results(call)}


def _sort_reach(call: KernelCall) -> Mapping[str, int]:
    blocks, last, from_x = column_blocks(call), call["LAST"], call["FROM_X"]
    lists = blocks * call["room"] * candidate_of(call)
    return {
        "x": blocks * call["axis"] * call.size_of("IN_T") if last or from_x else 0,
        "found": 0 if from_x else lists,
        "sorted": 0 if last else lists,
        "counts": 4 * call["columns"] if call["COUNTED"] or not (from_x or last) else 0,
        **_results(call, last),
    }


def _filter_reach(call: KernelCall) -> Mapping[str, int]:
    blocks, candidate = column_blocks(call), candidate_of(call)
    return {
        "x": blocks * call["axis"] * call.size_of("IN_T"),
        "best": blocks * call["parts"] * candidate,
        "found": blocks * call["capacity"] * candidate,
        "counts": 4 * call["columns"],
    }


def _merge_reach(call: KernelCall) -> Mapping[str, int]:
    blocks, last = column_blocks(call), call["LAST"]
    lists = blocks * call["axis"] * candidate_of(call)
    return {
        "x": blocks * call["axis"] * call.size_of("IN_T") if last else 0,
        "sorted": lists,
        "merged": 0 if last else lists,
        **_results(call, last),
    }


TOPK = Kernel("topk.comp", variants=_VARIANTS, reach=_search_reach)
TOPK_SORT = Kernel("topk_sort.comp", variants=_VARIANTS, reach=_sort_reach)
TOPK_FILTER = Kernel("topk_filter.comp", variants=_VARIANTS, reach=_filter_reach)
TOPK_MERGE = Kernel("topk_merge.comp", variants=_VARIANTS, reach=_merge_reach)

#: the most elements that a workgroup sorts
_MOST_SORTED = 2048
#: how much longer an axis may become that a plan with sizes sorts
_GROWTH = 16
#: the most rounds, also where a plan that was made for a smaller k is used
_MOST_ROUNDS = 256
#: elements of a pair of runs that a lane merges
_CHUNK = 16
#: elements of a part that a lane filters (``shaders/topk_filter.comp``)
_PIECE = 32
#: costs: of a look at an element in a search, of a choice among a column's lanes, of moving an element in a merge,
#: of a dispatch on a CPU and on a GPU
_LOOK, _CHOICE, _MOVE, _DISPATCH = 1, 16, 4, (8000, 300)


@dataclass(frozen=True)
class TopKProblem(ColumnProblem):
    """``values`` (of ``dtype``) and ``indices`` (int64), both [outer, k, inner]: the k largest (else smallest) elements
    of the middle of ``x``, in order; equal ones by lower index first; NaN counts as the largest.

    Work is ``axis * k`` comparisons per column for small k, ``axis + k * log(k)`` for k up to a thousand, else
    ``axis * log(axis)``. Temporary memory is two keys with their places (together 8 or 16
    bytes) an element at most. Raises `InvalidNode`
    unless ``0 <= k <= axis``.
    """

    k: int = 1
    largest: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.k <= self.axis:
            raise InvalidNode(f"k is {self.k}, expected 0 to {self.axis}, the axis' length")

    def makes(self) -> tuple[Need, ...]:
        shape = (self.outer, self.k, self.inner)
        return (Need("values", self.dtype, shape, flat=True), Need("indices", "int64", shape, flat=True))

    def reference(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if self.largest:  # the stable sort of the reversed axis, so that the lower of equal indices comes first
            order = self.axis - 1 - np.argsort(x[:, ::-1], axis=1, kind="stable")[:, ::-1]
        else:
            order = np.argsort(x, axis=1, kind="stable")
        order = order[:, : self.k]
        return np.take_along_axis(x, order, axis=1), order


def _room(dtype: str, caps: DeviceCapabilities) -> int:
    """The most elements that a workgroup sorts: two keys and places each in shared memory."""
    each = 2 * (4 + (8 if candidate_bytes(dtype) == 16 else 4))
    return min(_MOST_SORTED, floor_power_of_two(caps.max_shared_memory_bytes // each))


def _takes_rounds(problem: TopKProblem, caps: DeviceCapabilities) -> str:
    return _takes("rounds", problem, caps, _MOST_ROUNDS)


def _takes_selection(problem: TopKProblem, caps: DeviceCapabilities) -> str:
    room, k = _room(problem.dtype, caps), hint(problem.k)
    if reason := _takes("selection", problem, caps, room // 2):
        return reason
    parts = _parts(k, room)
    candidates = hint(problem.columns) * max(parts, k * ceil_div(hint(problem.axis), parts))
    return _beyond_a_buffer("selection", candidates * candidate_bytes(problem.dtype), caps)


def _takes(name: str, problem: TopKProblem, caps: DeviceCapabilities, most: int) -> str:
    fastest = _fastest(problem.k, problem.axis, problem.columns, problem.inner, problem.dtype, caps)
    if fastest != name:
        return f"expected to be slower than {fastest}"
    # always true for the size at hand; a plan with sizes has it as a condition
    return "" if problem.k <= most else f"k is {problem.k}, expected up to {most}"


def _takes_sort(problem: TopKProblem, caps: DeviceCapabilities) -> str:
    needed = hint(problem.elements) * candidate_bytes(problem.dtype) if _merges(problem, caps) else 0
    return _beyond_a_buffer("sort", needed, caps)


def _beyond_a_buffer(what: str, needed: int, caps: DeviceCapabilities) -> str:
    if needed <= piece_of(caps.max_buffer_size):
        return ""
    return f"a {what} needs temporary buffers of {needed} bytes; a buffer of {caps.name} holds {caps.max_buffer_size}"


@at_hand
def _fastest(k: int, axis: int, columns: int, inner: int, dtype: str, caps: DeviceCapabilities) -> str:
    """The candidate that is expected to be the fastest. A GPU has many lanes, of which each candidate uses as many as it
    has work for; on a CPU driver all of them share few cores."""
    cpu, room, columns = is_cpu(caps), _room(dtype, caps), max(columns, 1)
    at_once = 1 if cpu else BUSY_GROUPS * lanes(caps, columns * axis)
    dispatch = _DISPATCH[0 if cpu else 1]

    def sorting(count: int) -> int:  # in a workgroup for each column
        local = 1 if cpu else _sort_lanes(room, caps)
        levels = count.bit_length()
        searches = 0 if cpu else levels * levels
        return (levels * _MOVE * ceil_div(count, local) + searches) * ceil_div(columns * local, at_once)

    def looking(count: int, split: int) -> int:  # by so many lanes for each column
        return _LOOK * (ceil_div(count, split) + (_CHOICE if split > 1 else 0)) * ceil_div(columns * split, at_once)

    merges = (ceil_div(axis, room) - 1).bit_length()
    blocks = ceil_div(axis, room) * sorting(min(axis, room)) if cpu else sorting(min(axis, room))
    merging = merges * (dispatch + _MOVE * ceil_div(columns * axis, at_once))
    costs = {"sort": dispatch + blocks + merging}
    if k <= _MOST_ROUNDS:
        split = share_columns(columns, axis, inner, caps, shuffles=False).split
        costs["rounds"] = dispatch + k * looking(axis, 1 if cpu else split)
    if 2 * k <= room < axis:
        parts = _parts(k, room)
        costs["selection"] = 4 * dispatch + looking(axis, parts) + looking(k * ceil_div(axis, parts), parts)
        costs["selection"] += sorting(parts) + sorting(2 * k)
    return min(costs, key=costs.__getitem__)


@at_hand
def _parts(k: int, room: int) -> int:
    """Into how many parts a selection of ``k`` divides a column: the more, the fewer elements remain."""
    return max(min(4 * ceil_power_of_two(k), room), min(256, room))


def _sort_lanes(size: int, caps: DeviceCapabilities) -> int:
    """Lanes of a workgroup that sorts ``size`` elements. On a CPU driver lanes beyond a subgroup only wait for others."""
    most = floor_power_of_two(caps.max_workgroup_invocations)
    return min(caps.subgroup_size if is_cpu(caps) else max(size // 8, 32), most)


def _merges(problem: TopKProblem, caps: DeviceCapabilities) -> int:
    """How often pairs of runs are merged: the axis has ``2**merges`` runs."""
    longest = hint(problem.axis) * (_GROWTH if serves_others(problem.axis) else 1)
    return int((ceil_div(longest, _room(problem.dtype, caps)) - 1).bit_length())


def _defines(problem: TopKProblem) -> dict[str, str]:
    return element_defines(problem.dtype) | key_defines(problem.dtype)


def _rounds(problem: TopKProblem, e: Emission) -> KernelCall:
    """In each of k rounds, the lanes of a column find the next element together."""
    share = share_columns(problem.columns, problem.axis, problem.inner, e.caps, shuffles=False)
    return TOPK.call(
        **share.launch,
        operands=e.operands,
        params=problem.params | {"k": problem.k},
        spec={**share.spec, "LARGEST": int(problem.largest)},
        defines=_defines(problem),
        flops=problem.elements * problem.k,
    )


def _sort(
    problem: TopKProblem,
    e: Emission,
    size: int,
    length: int,
    run: int,
    runs: int,
    operands: Mapping[str, Any],
    **spec: int,
) -> KernelCall:
    """A dispatch that sorts ``runs`` runs of ``run`` elements of each column, up to ``size``."""
    local = _sort_lanes(size, e.caps)
    none = dict.fromkeys(("x", "found", "sorted", "counts", "values", "indices"))
    params = {**magic_params("inner", problem.inner), **magic_params("runs", runs)}
    return TOPK_SORT.call(
        grid=grid(problem.columns * runs),
        operands={**none, **operands},
        params={
            **params,
            "columns": problem.columns,
            "room": length,
            "run": run,
            "axis": problem.axis,
            "k": problem.k,
        },
        spec={"LARGEST": int(problem.largest), "SIZE": size, **spec},
        defines=_defines(problem),
        local_size=(local,),
        flops=problem.columns * runs * hint(run) * hint(run).bit_length(),
    )


def _selected(problem: TopKProblem, e: Emission) -> list[KernelCall]:
    """The k-th of the best elements of parts bounds what is sorted."""
    outer, axis, inner, k = problem.outer, problem.axis, problem.inner, problem.k
    parts = _parts(k, _room(problem.dtype, e.caps))
    while 2 * k > parts:  # never for the size at hand; a plan with sizes has it as a condition
        parts *= 2
    steps = ceil_div(axis, parts)
    capacity = k * steps
    first, best = best_parts(problem, problem.largest, parts, e, NAN_LOSES=int(not problem.largest))
    ordered = candidates_scratch(e, problem.dtype, outer * parts * inner)
    found = candidates_scratch(e, problem.dtype, outer * capacity * inner)
    counts = e.target.scratch("uint32", (problem.columns,))
    pieces = ceil_div(steps, _PIECE)
    x, results = {"x": e["x"]}, {"values": e["values"], "indices": e["indices"]}
    bound = _sort(
        problem, e, parts, parts, parts, 1, {"found": best, "sorted": ordered, "counts": counts}, FROM_X=0, LAST=0
    )
    filtered = TOPK_FILTER.call(
        **flat_lanes(e.caps, problem.columns * k * pieces),
        operands={**x, "best": ordered, "found": found, "counts": counts},
        params={
            **problem.params,
            **magic_params("pieces", pieces),
            **magic_params("k", k),
            "parts": parts,
            "capacity": capacity,
        },
        spec={"LARGEST": int(problem.largest)},
        defines=_defines(problem),
        flops=problem.columns * k * steps,
    )
    last = _sort(
        problem, e, parts, capacity, parts, 1, {**x, "found": found, "counts": counts, **results}, FROM_X=0, COUNTED=1
    )
    return [first, bound, filtered, last]


def _sorted(problem: TopKProblem, e: Emission) -> list[KernelCall]:
    """Workgroups sort runs of a column, then pairs of runs are merged. The number of runs is a power of two that the size
    at hand decides; their length follows from the axis."""
    room, merges = _room(problem.dtype, e.caps), _merges(problem, e.caps)
    while problem.axis > room << merges:  # never for the size at hand; a plan with sizes has it as a condition
        merges += 1
    size = room if serves_others(problem.axis) else max(ceil_power_of_two(ceil_div(problem.axis, 1 << merges)), 4)
    shape = (problem.elements,)
    # a merge reads what the one before it wrote, and writes what that one read
    buffers = [candidates_scratch(e, problem.dtype, *shape) for _ in range(min(merges, 2))]
    result = {"values": e["values"], "indices": e["indices"]}
    run = ceil_div(problem.axis, 1 << merges)
    to = {"sorted": buffers[0]} if merges else result
    calls = [_sort(problem, e, size, problem.axis, run, 1 << merges, {"x": e["x"], **to}, LAST=int(not merges))]
    for stage in range(merges):
        last = stage == merges - 1
        length = run << stage
        pair_bits = merges - 1 - stage
        chunks = ceil_div(smallest(2 * length, problem.k), _CHUNK)
        calls.append(
            TOPK_MERGE.call(
                **flat_lanes(e.caps, problem.columns * chunks << pair_bits),
                operands={
                    "x": e["x"] if last else None,
                    "sorted": buffers[stage % 2],
                    "merged": None if last else buffers[(stage + 1) % 2],
                    **(result if last else dict.fromkeys(result)),
                },
                params={
                    **problem.params,
                    "run": length,
                    **magic_params("chunks", chunks),
                    "pair_bits": pair_bits,
                    "k": problem.k,
                },
                spec={"CHUNK": _CHUNK, "LAST": int(last)},
                defines=_defines(problem),
                flops=hint(problem.columns * chunks << pair_bits) * _CHUNK,
            )
        )
    return calls


implement(
    TopKProblem,
    Candidate("rounds", _rounds, when=_takes_rounds),
    Candidate("selection", _selected, when=_takes_selection),
    Candidate("sort", _sorted, when=_takes_sort),
)
