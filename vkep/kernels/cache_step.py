"""What a decoder's step does before its attention, in one dispatch: ``shaders/cache_step.comp``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpu_shared.capabilities import DeviceCapabilities
from vkep.kernels.indices import noting
from vkep.kernels.kernel import Kernel, KernelCall, Operand, uints
from vkep.kernels.launch import ceil_div, element_type, lanes
from vkep.kernels.problem import Need, Problem, alignment_of, extent
from vkep.kernels.select import Candidate, Emission, implement
from vkep.kernels.tiles import STORAGE
from vkep.sizes import largest


def _reach(call: KernelCall) -> Mapping[str, int]:
    size, kv_heads, head, value = call.size_of("T"), call["kv_heads"], call["SIZE"], call["VALUE_SIZE"]
    batch = call.groups[1] // kv_heads
    heads, turns = kv_heads * call["GROUP"], int(call["HALF"] > 0)

    def new(name: str, count: int, width: int) -> int:
        steps = (call[f"{name}_batch"], call[f"{name}_head"], 1)
        return extent((batch, count, width), steps) * size

    table = turns * call["table_rows"] * call["HALF"] * size
    return {
        "q": turns * new("q", heads, head),
        "k": new("k", kv_heads, head),
        "v": new("v", kv_heads, value),
        "past_key": batch * kv_heads * call["old"] * head * size,
        "past_value": batch * kv_heads * call["old"] * value * size,
        "cos": table,
        "sin": table,
        "lengths": 4 * batch,
        "total": 4,
        "ids": 8 * batch * call["IDS"],
        "turned": turns * batch * heads * head * size,
        "present_key": batch * kv_heads * call["room"] * head * size,
        "present_value": batch * kv_heads * call["room"] * value * size,
        "origin": 4 * batch,
        "fault": 4,
    }


_INPUTS = ("q", "k", "v", "past_key", "past_value", "cos", "sin", "lengths", "total", "ids")
_OUTPUTS = ("turned", "present_key", "present_value", "origin")
CACHE_STEP = Kernel(
    "cache_step.comp",
    operands=(
        *map(Operand, _INPUTS),
        *(Operand(name, writes=True) for name in _OUTPUTS),
        Operand("fault", writes=True),
    ),
    params=uints(
        *("kv_heads", "old", "room", "table_rows"),
        *(f"{name}_{axis}" for name in "qkv" for axis in ("batch", "head")),
        "fault_code",
    ),
    spec={"SIZE": 64, "VALUE_SIZE": 64, "UNIT": 1, "HALF": 0, "INTERLEAVED": 0, "GROUP": 1, "IDS": 0},
    variants=tuple({"T": t} for t in STORAGE.values()),
    reach=_reach,
)


@dataclass(frozen=True)
class CacheStepProblem(Problem):
    """``present_key`` and ``present_value`` [batch, kv heads, room, size and value size] from those of the past (``old`` rows)
    and one new token: ``k`` and ``v`` of batch and head strides (elements; the elements of a row are dense), at the row that
    ``lengths`` (int32 [batch]) says, or 0 where ``total`` (int32, one) is 1; ``origin`` (int32 [batch]) is that row. Rows
    after it are zero.

    ``half`` pairs of features of ``k`` and ``q`` turn (0: none, and there is no q) by row ``ids`` (int64 [batch]; without, the
    new row) of the tables ``cos`` and ``sin`` [``table_rows``, half]: (i, i + half), or neighbours if ``interleaved``;
    ``turned`` [batch, heads, 1, size] is q. ``fault``: what a run is told where that row is none of the tables'. Elements are
    float32 or float16. ``alignment`` (bytes) divides the addresses of both caches.
    """

    batch: int
    heads: int
    kv_heads: int
    size: int
    value_size: int
    old: int
    room: int
    q_strides: tuple[int, int]
    k_strides: tuple[int, int]
    v_strides: tuple[int, int]
    dtype: str
    half: int = 0
    interleaved: bool = False
    table_rows: int = 0
    ids: bool = False
    fault: str = ""
    alignment: int = 1

    def needs(self) -> tuple[Need, ...]:
        cache = (self.batch, self.kv_heads, self.old)
        q = Need("q", self.dtype, (self.batch, self.heads, self.size), (*self.q_strides, 1))
        table = (self.table_rows, self.half)
        tables = [Need(name, self.dtype, table) for name in ("cos", "sin")]
        return (
            *([q] if self.half else ()),
            Need("k", self.dtype, (self.batch, self.kv_heads, self.size), (*self.k_strides, 1)),
            Need("v", self.dtype, (self.batch, self.kv_heads, self.value_size), (*self.v_strides, 1)),
            Need("past_key", self.dtype, (*cache, self.size)),
            Need("past_value", self.dtype, (*cache, self.value_size)),
            *(tables if self.half else ()),
            Need("lengths", "int32", (self.batch,)),
            Need("total", "int32", (1,)),
            *([Need("ids", "int64", (self.batch,), flat=True)] if self.ids else ()),
        )

    def makes(self) -> tuple[Need, ...]:
        cache = (self.batch, self.kv_heads, self.room)
        turned = [Need("turned", self.dtype, (self.batch, self.heads, 1, self.size))] if self.half else []
        return (
            *turned,
            Need("present_key", self.dtype, (*cache, self.size)),
            Need("present_value", self.dtype, (*cache, self.value_size)),
            Need("origin", "int32", (self.batch,)),
        )

    def placed(self, operands: Mapping[str, Any]) -> CacheStepProblem:
        caches = [operands[f"{when}_{what}"] for when in ("past", "present") for what in ("key", "value")]
        return replace(self, alignment=alignment_of(*caches))


def _no_step(problem: CacheStepProblem, caps: DeviceCapabilities) -> str:
    return "" if problem.dtype in STORAGE else f"element type is {problem.dtype}, expected one of {sorted(STORAGE)}"


def _step(problem: CacheStepProblem, e: Emission) -> KernelCall:
    unit = 16 // element_type(problem.dtype).itemsize
    if problem.alignment % 16 or problem.size % unit or problem.value_size % unit:
        unit = 1
    group = problem.heads // problem.kv_heads
    rows = problem.room + (group if problem.half else 0)
    total = largest(rows * (problem.size // unit), problem.room * (problem.value_size // unit))
    local = lanes(e.caps, total * problem.batch * problem.kv_heads)
    fault, code = noting(e, problem.fault)
    strides = {"q": problem.q_strides, "k": problem.k_strides, "v": problem.v_strides}
    return CACHE_STEP.call(
        grid=(ceil_div(total, local), problem.batch * problem.kv_heads, 2),
        operands={**{name: e.get(name) for name in (*_INPUTS, *_OUTPUTS)}, "fault": fault},
        params={
            "kv_heads": problem.kv_heads,
            "old": problem.old,
            "room": problem.room,
            "table_rows": problem.table_rows,
            **{
                f"{name}_{axis}": s
                for name, of in strides.items()
                for axis, s in zip(("batch", "head"), of, strict=True)
            },
            "fault_code": code,
        },
        spec={
            "SIZE": problem.size,
            "VALUE_SIZE": problem.value_size,
            "UNIT": unit,
            "HALF": problem.half,
            "INTERLEAVED": int(problem.interleaved),
            "GROUP": group,
            "IDS": int(problem.ids),
        },
        defines={"T": STORAGE[problem.dtype]},
        local_size=(local,),
    )


implement(CacheStepProblem, Candidate("cache step", _step, when=_no_step))
