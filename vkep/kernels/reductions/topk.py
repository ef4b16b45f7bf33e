"""TopK along the middle of a tensor viewed as [outer, axis, inner]: by k searches (``shaders/topk.comp``), by histograms of
bits that bound the result (``shaders/topk_select.comp``), or by a sort (``shaders/topk_sort.comp``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gpu_shared.capabilities import DeviceCapabilities
from vkep.dtypes import DTYPES, DType
from vkep.errors import InvalidNode
from vkep.kernels.fastdiv import magic_params
from vkep.kernels.kernel import Kernel, KernelCall
from vkep.kernels.launch import (
    BUSY_GROUPS,
    ceil_div,
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
from vkep.kernels.reductions.columns import ColumnProblem, column_blocks
from vkep.kernels.select import Candidate, Emission, implement
from vkep.plan.memory import piece_of
from vkep.sizes import at_hand, hint

_VARIANTS = tuple(element_defines(t) | key_defines(t) for t in ("float32", "float16", "int32", "int64", "uint8"))


def _search_reach(call: KernelCall) -> Mapping[str, int]:
    blocks, element = column_blocks(call), call.size_of("IN_T")
    found = blocks * call["k"]
    return {"x": blocks * call["axis"] * element, "values": found * element, "indices": found * 8}


def _sort_reach(call: KernelCall) -> Mapping[str, int]:
    first, last = call["FIRST"], call["LAST"]
    elements, found = call["columns"] * call["axis"], call["columns"] * call["k"]
    key, element = call.size_of("KEY_T"), call.size_of("IN_T")
    return {
        "x": elements * element if first or last else 0,
        "keys": 0 if first else elements * key,
        "places": 0 if first else elements * 4,
        "next_keys": 0 if last else elements * key,
        "next_places": 0 if last else elements * 4,
        "values": found * element if last else 0,
        "indices": found * 8 if last else 0,
    }


TOPK = Kernel("topk.comp", variants=_VARIANTS, reach=_search_reach)
TOPK_SELECT = Kernel("topk_select.comp", variants=_VARIANTS, reach=_search_reach)
TOPK_SORT = Kernel("topk_sort.comp", variants=_VARIANTS, reach=_sort_reach)

#: the longest axis that is one run, and the most elements of a run of a longer one
_WHOLE, _RUN = 512, 128
#: the most elements of a run where a plan that was made for a shorter axis is used
_LONGEST_RUN = 32 * _RUN
#: the most rounds, also where a plan that was made for a smaller k is used
_MOST_ROUNDS = 256
#: the most elements that a selection sorts (``SURVIVORS`` in ``shaders/topk_select.comp``), and the bins of its histograms
_SURVIVORS = 2048
#: costs, in comparisons of two elements: of all merges of an element, of a choice among a column's lanes, of a dispatch,
#: of an element or a bin in a selection's histograms, of an element in a step of its sort, of its barriers
_MERGING, _CHOICE, _DISPATCH, _COUNTING, _EXCHANGE, _BARRIERS = 32, 16, 100, 8, 4, 200


@dataclass(frozen=True)
class TopKProblem(ColumnProblem):
    """``values`` (of ``dtype``) and ``indices`` (int64), both [outer, k, inner]: the k largest (else smallest) elements
    of the middle of ``x``, in order; equal ones by lower index first; NaN counts as the largest.

    Work is ``axis * k`` comparisons per column for small k, ``axis + k * log(k)**2`` for k up to some thousand, else
    ``axis * log(axis)**2`` with temporary memory of two keys (4 or 8 bytes) and two places (4 bytes) an element. Raises
    `InvalidNode` unless ``0 <= k <= axis``.
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


def _takes_sort(problem: TopKProblem, caps: DeviceCapabilities) -> str:
    needed = hint(problem.elements) * _key_type(problem.dtype).itemsize if _merges(problem.axis) else 0
    if needed > piece_of(caps.max_buffer_size):
        return f"a sort needs temporary buffers of {needed} bytes; a buffer of {caps.name} holds {caps.max_buffer_size}"
    return ""


def _key_type(dtype: str) -> DType:
    return DTYPES["uint64" if key_defines(dtype)["KEY_T"] == "uint64_t" else "uint32"]


def _takes_rounds(problem: TopKProblem, caps: DeviceCapabilities) -> str:
    return _takes("rounds", problem, caps, _MOST_ROUNDS)


def _takes_selection(problem: TopKProblem, caps: DeviceCapabilities) -> str:
    return _takes("selection", problem, caps, _SURVIVORS)


def _takes(name: str, problem: TopKProblem, caps: DeviceCapabilities, most: int) -> str:
    fastest = _fastest(problem.k, problem.axis, problem.columns, problem.inner, problem.dtype, caps)
    if fastest != name:
        return f"expected to be slower than {fastest}"
    # always true for the size at hand; a plan with sizes has it as a condition
    return "" if problem.k <= most else f"k is {problem.k}, expected up to {most}"


@at_hand
def _fastest(k: int, axis: int, columns: int, inner: int, dtype: str, caps: DeviceCapabilities) -> str:
    """The candidate that is expected to be the fastest. All compare elements; a GPU has many lanes for that, of which
    searches and selections use few where there are few columns."""
    merges = _merges(axis)
    if not merges:
        return "rounds" if k * 8 <= axis else "sort"
    cpu = is_cpu(caps)
    at_once = 1 if cpu else BUSY_GROUPS * lanes(caps, columns * axis)
    columns = max(columns, 1)
    costs = {"sort": (ceil_div(axis, 1 << merges) + _MERGING) * ceil_div(columns * axis, at_once) + merges * _DISPATCH}
    if k <= _MOST_ROUNDS:
        split = share_columns(columns, axis, inner, caps, shuffles=False).split
        each = ceil_div(axis, split) + (_CHOICE if split > 1 else 0)
        costs["rounds"] = k * each * ceil_div(columns * split, at_once)
    local = _selection_lanes(caps)
    shared = _SURVIVORS * (_key_type(dtype).itemsize + 4) + 4 * local + 16
    if k <= _SURVIVORS and shared <= caps.max_shared_memory_bytes:
        side, bits = 1 if cpu else local, (k - 1).bit_length()
        sorting = bits * (bits + 1) // 2 * _EXCHANGE * ceil_div(1 << bits, side)
        each = _COUNTING * ceil_div(axis + _SURVIVORS, side) + sorting + _BARRIERS
        costs["selection"] = each * ceil_div(columns * side, at_once)
    return min(costs, key=costs.__getitem__)


def _selection_lanes(caps: DeviceCapabilities) -> int:
    return floor_power_of_two(min(32 if is_cpu(caps) else 1024, caps.max_workgroup_invocations))


@at_hand
def _merges(axis: int) -> int:
    """How often pairs of runs are merged: the axis has ``2**merges`` runs."""
    return 0 if axis <= _WHOLE else (ceil_div(axis, _RUN) - 1).bit_length()


def _rounds(problem: TopKProblem, e: Emission) -> KernelCall:
    """In each of k rounds, the lanes of a column find the next element together."""
    share = share_columns(problem.columns, problem.axis, problem.inner, e.caps, shuffles=False)
    return TOPK.call(
        **share.launch,
        operands=e.operands,
        params=problem.params | {"k": problem.k},
        spec={**share.spec, "LARGEST": int(problem.largest)},
        defines=element_defines(problem.dtype) | key_defines(problem.dtype),
        flops=problem.elements * problem.k,
    )


def _selected(problem: TopKProblem, e: Emission) -> KernelCall:
    """A workgroup bounds a column's result by histograms of bits, and sorts what is within the bound."""
    return TOPK_SELECT.call(
        grid=grid(problem.columns),
        operands=e.operands,
        params=problem.params | {"k": problem.k},
        spec={"LARGEST": int(problem.largest)},
        defines=element_defines(problem.dtype) | key_defines(problem.dtype),
        local_size=(_selection_lanes(e.caps),),
        flops=problem.columns * (problem.axis * _COUNTING + 32 * problem.k),
    )


def _sorted(problem: TopKProblem, e: Emission) -> list[KernelCall]:
    """Each lane ranks one element within its run, then in each merged pair of runs. The number of runs is a power of two
    that the size at hand decides; their length follows from the axis."""
    merges = _merges(problem.axis)
    while problem.axis > _LONGEST_RUN << merges:  # never for the size at hand; a plan with sizes has it as a condition
        merges += 1
    shape = (problem.columns, problem.axis)
    key = _key_type(problem.dtype).name
    # a merge reads what the one before it wrote, and writes what that one read
    buffers = [(e.target.scratch(key, shape), e.target.scratch("uint32", shape)) for _ in range(min(merges, 2))]
    result = {"values": e["values"], "indices": e["indices"]}
    run = ceil_div(problem.axis, 1 << merges)
    calls = []
    for stage in range(merges + 1):
        first, last = stage == 0, stage == merges
        keys, places = (None, None) if first else buffers[(stage - 1) % 2]
        next_keys, next_places = (None, None) if last else buffers[stage % 2]
        length = run << max(stage - 1, 0)
        calls.append(
            TOPK_SORT.call(
                **flat_lanes(e.caps, problem.elements),
                operands={
                    "x": e["x"] if first or last else None,
                    "keys": keys,
                    "places": places,
                    "next_keys": next_keys,
                    "next_places": next_places,
                    **(result if last else dict.fromkeys(result)),
                },
                params={
                    "columns": problem.columns,
                    "k": problem.k,
                    **magic_params("axis", problem.axis),
                    **magic_params("inner", problem.inner),
                    **magic_params("run", length),
                },
                spec={"LARGEST": int(problem.largest), "FIRST": int(first), "LAST": int(last)},
                defines=element_defines(problem.dtype) | key_defines(problem.dtype),
                flops=problem.elements * (hint(run) if first else hint(length).bit_length()),
            )
        )
    return calls


implement(
    TopKProblem,
    Candidate("rounds", _rounds, when=_takes_rounds),
    Candidate("selection", _selected, when=_takes_selection),
    Candidate("sort", _sorted, when=_takes_sort),
)
