"""Appends new tokens to a decoder's cache, before its attention, in one dispatch: ``shaders/cache_update.comp``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpu_shared.capabilities import DeviceCapabilities
from vkep.kernels.attention.kv_codes import CODES, NUMBERS, encoded, is_number, scales_of
from vkep.kernels.indices import noting
from vkep.kernels.kernel import Kernel, KernelCall
from vkep.kernels.launch import ceil_div, element_type, lanes
from vkep.kernels.matmul.tiles import STORAGE
from vkep.kernels.problem import Need, Problem, alignment_of, extent
from vkep.kernels.reference import rotated
from vkep.kernels.select import Candidate, Emission, implement
from vkep.sizes import hint, largest

Strides = tuple[int, int, int]
#: caches of these types hold numbers alone
_WITHOUT_NAN = ("int8", "uint8")
#: so many new tokens of a cache in place are written an element a lane: a lane of more takes longer than there are lanes for
_FEW_TOKENS = 16


def _reach(call: KernelCall) -> Mapping[str, int]:
    size, kv_heads, head, value = call.size_of("T"), call["kv_heads"], call["SIZE"], call["VALUE_SIZE"]
    rows, packs = call.size_of("C"), 2 if call["CODE"] == NUMBERS["uint8"] else 1
    key_row, value_row = ceil_div(head, packs) * rows, ceil_div(value, packs) * rows
    batch, length = call.groups[1] // kv_heads, call["tokens"]
    heads, turns = kv_heads * call["GROUP"], int(call["HALF"] > 0)

    def new(name: str, count: int, width: int) -> int:
        steps = (call[f"{name}_batch"], call[f"{name}_head"], call[f"{name}_row"], 1)
        return extent((batch, count, length, width), steps) * size

    table = turns * call["table_rows"] * call["HALF"] * size
    return {
        "q": turns * new("q", heads, head),
        "k": new("k", kv_heads, head),
        "v": new("v", kv_heads, value),
        "past_key": batch * kv_heads * call["old"] * key_row,
        "past_value": batch * kv_heads * call["old"] * value_row,
        "cos": table,
        "sin": table,
        "first": 4 * batch,
        "ids": 8 * batch * length * call["IDS"],
        "k_scale": 4 * scales_of(call["CODE"], call["K_CHANNELS"], kv_heads * head),
        "v_scale": 4 * scales_of(call["CODE"], call["V_CHANNELS"], kv_heads * value),
        **dict.fromkeys(("q_gain", "k_gain"), call["NORM"] * head * size),
        "turned": turns * batch * heads * length * head * size,
        "present_key": batch * kv_heads * call["room"] * key_row,
        "present_value": batch * kv_heads * call["room"] * value_row,
        "fault": 4,
    }


_INPUTS = (
    "q",
    "k",
    "v",
    "past_key",
    "past_value",
    "cos",
    "sin",
    "first",
    "ids",
    "k_scale",
    "v_scale",
    "q_gain",
    "k_gain",
)
_OUTPUTS = ("turned", "present_key", "present_value")
CACHE_UPDATE = Kernel(
    "cache_update.comp",
    variants=tuple({"T": t, "C": c} for t in STORAGE.values() for c in (t, "uint16_t", "uint8_t")),
    reach=_reach,
)


@dataclass(frozen=True)
class CacheUpdateProblem(Problem):
    """``present_key`` and ``present_value`` [batch, kv heads, room, size and value size] from those of the past
    (``old`` rows; 0: there is none) and ``length`` new tokens: ``k`` and ``v`` of batch, head and row strides
    (elements; the elements of a row are dense), from the row on that ``first`` (int32 [batch]) says. Rows after them
    are the past's (zero where it has none); in those before row ``used`` values that are not finite become 0
    (``used`` 0: they are not looked at).

    ``half`` pairs of features of ``k`` and ``q`` are rotated (0: none, and there is no q) by row ``ids`` (int64 [batch,
    length]; without, the cache's row) of the tables ``cos`` and ``sin`` [``table_rows``, half]: (i, i + half), or
    neighbours if ``interleaved``; ``turned`` [batch, heads, length, size] is q. ``fault``: the error's message where
    that row is outside the tables. Elements are float32 or float16. ``alignment`` (bytes) divides the addresses of both
    caches.

    ``cache`` is the element type of the caches where it differs from ``dtype`` (`CODES`). int8, uint8 and float8_e4m3fn
    hold numbers divided by ``k_scale`` and ``v_scale`` (float32: one, or with ``k_channels`` and ``v_channels`` one for
    each head and feature [kv heads * size and value size]), rounded to the nearest, ties to even, and clamped to the
    type's range. An element of uint8 has two numbers of 4 bits, so that a row has half as many elements.

    ``over``: the past is in the present's memory, and is not an operand.

    ``epsilon``: each row of q and k is divided by its root mean square (with epsilon below the root) and multiplied by ``q_gain``
    and ``k_gain`` [size] before it is rotated; None: it is not.
    """

    batch: int
    heads: int
    kv_heads: int
    length: int
    size: int
    value_size: int
    old: int
    room: int
    used: int
    q_strides: Strides
    k_strides: Strides
    v_strides: Strides
    dtype: str
    half: int = 0
    interleaved: bool = False
    table_rows: int = 0
    ids: bool = False
    fault: str = ""
    alignment: int = 1
    over: bool = False
    cache: str = ""
    k_channels: bool = False
    v_channels: bool = False
    epsilon: float | None = None

    def needs(self) -> tuple[Need, ...]:
        past = (self.batch, self.kv_heads, self.old)
        q = Need("q", self.dtype, (self.batch, self.heads, self.length, self.size), (*self.q_strides, 1))
        new = (self.batch, self.kv_heads, self.length)
        table = (self.table_rows, self.half)
        tables = [Need(name, self.dtype, table) for name in ("cos", "sin")]
        pasts = [
            Need("past_key", self.stored, (*past, self.width(self.size))),
            Need("past_value", self.stored, (*past, self.width(self.value_size))),
        ]
        key_scales = self.kv_heads * self.size if self.k_channels else 1
        value_scales = self.kv_heads * self.value_size if self.v_channels else 1
        scales = [Need("k_scale", "float32", (key_scales,)), Need("v_scale", "float32", (value_scales,))]
        return (
            *([q] if self.half else ()),
            Need("k", self.dtype, (*new, self.size), (*self.k_strides, 1)),
            Need("v", self.dtype, (*new, self.value_size), (*self.v_strides, 1)),
            *(pasts if self.has_past else ()),
            *(tables if self.half else ()),
            Need("first", "int32", (self.batch,)),
            *([Need("ids", "int64", (self.batch, self.length), flat=True)] if self.ids else ()),
            *(scales if self.scaled else ()),
            *(Need(name, self.dtype, (self.size,), flat=True) for name in self.gains),
        )

    def makes(self) -> tuple[Need, ...]:
        cache = (self.batch, self.kv_heads, self.room)
        turned = [Need("turned", self.dtype, (self.batch, self.heads, self.length, self.size))] if self.half else []
        return (
            *turned,
            Need("present_key", self.stored, (*cache, self.width(self.size))),
            Need("present_value", self.stored, (*cache, self.width(self.value_size))),
        )

    @property
    def gains(self) -> tuple[str, ...]:
        """The names of the gains, where there are any."""
        return () if self.epsilon is None else ("q_gain", "k_gain")

    @property
    def stored(self) -> str:
        """The type of the caches' elements."""
        return self.cache or self.dtype

    @property
    def scaled(self) -> bool:
        """Whether the caches hold numbers divided by scales."""
        return self.cache not in ("", "bfloat16")

    def width(self, size: int) -> int:
        """Elements of a cache's row that holds this many numbers."""
        return ceil_div(size, CODES[self.cache][0]) if self.cache else size

    @property
    def has_past(self) -> bool:
        """Whether a past is read that is not the output itself."""
        return self.old != 0 and not self.over

    def in_place(self, pairs: Mapping[str, str]) -> CacheUpdateProblem | None:
        both = {"present_key": "past_key", "present_value": "past_value"}
        return replace(self, over=True) if pairs == both and self.length <= self.room == self.old else None

    def placed(self, operands: Mapping[str, Any]) -> CacheUpdateProblem:
        caches = [
            operands[name] for name in ("past_key", "past_value", "present_key", "present_value") if name in operands
        ]
        return replace(self, alignment=alignment_of(*caches))

    @property
    def updates(self) -> tuple[str, ...]:
        return ("present_key", "present_value") if self.over else ()

    def reference(
        self, k: np.ndarray, v: np.ndarray, first: np.ndarray, **others: np.ndarray
    ) -> tuple[np.ndarray, ...]:
        rows = first.astype(np.int64)[:, None] + np.arange(self.length)  # of the new tokens
        if self.over:
            rows = np.clip(first.astype(np.int64), 0, self.room - self.length)[:, None] + np.arange(self.length)
        turned = []
        if self.half:
            at = others["ids"] if self.ids else rows
            q, cos, sin = others["q"], others["cos"], others["sin"]
            if self.epsilon is not None:
                q, k = (
                    t / np.sqrt(np.mean(t * t, axis=3, keepdims=True) + self.epsilon) * others[gain]
                    for t, gain in ((q, "q_gain"), (k, "k_gain"))
                )
            at = np.where((at >= 0) & (at < self.table_rows), at, 0)
            q, k = (rotated(t, cos[at][:, None], sin[at][:, None], self.interleaved) for t in (q, k))
            turned = [q]
        made = []
        for name, new in (("key", k), ("value", v)):
            stored = encoded(new, self.cache, others.get(f"{name[0]}_scale"))
            cache = np.zeros((self.batch, self.kv_heads, self.room, stored.shape[3]), stored.dtype)
            if self.over:
                cache[:] = others[f"present_{name}"]
            elif self.has_past:
                kept = min(self.old, self.room)
                cache[:, :, :kept] = others[f"past_{name}"][:, :, :kept]
            for past, new_rows, at in zip(cache, stored, rows, strict=True):
                after = past[:, at[0] : self.used]
                after[~is_number(after, self.cache)] = 0
                inside = (at >= 0) & (at < self.room)
                past[:, at[inside]] = new_rows[:, inside]
            made.append(cache)
        return (*turned, *made)


def _no_update(problem: CacheUpdateProblem, caps: DeviceCapabilities) -> str:
    if problem.cache and problem.cache not in CODES:
        return f"the cache's element type is {problem.cache}, expected one of {sorted(CODES)}"
    return "" if problem.dtype in STORAGE else f"element type is {problem.dtype}, expected one of {sorted(STORAGE)}"


def _update(problem: CacheUpdateProblem, e: Emission) -> KernelCall:
    width, value_width = problem.width(problem.size), problem.width(problem.value_size)
    unit = 16 // element_type(problem.stored).itemsize
    if problem.alignment % 16 or width % unit or value_width % unit or (problem.cache == "uint8" and problem.size % 2):
        unit = 1
    if problem.over and hint(problem.length) <= _FEW_TOKENS:
        unit = 1
    group = problem.heads // problem.kv_heads
    rows = problem.length if problem.over else problem.room
    turning = group * problem.length if problem.half else 0
    total = largest((rows + turning) * (width // unit), rows * (value_width // unit))
    cleans = problem.used != 0 and problem.cache not in _WITHOUT_NAN
    if problem.over and problem.batch != 1 and cleans:  # rows that only the longest sequences have
        total = largest(total, ceil_div((problem.used - problem.length) * (width // unit), 16))
    local = lanes(e.caps, total * problem.batch * problem.kv_heads)
    groups = ceil_div(total, local)
    fault, code = noting(e, problem.fault)
    strides = {"q": problem.q_strides, "k": problem.k_strides, "v": problem.v_strides}
    return CACHE_UPDATE.call(
        grid=(groups, problem.batch * problem.kv_heads, 2),
        operands={**{name: e.get(name) for name in (*_INPUTS, *_OUTPUTS)}, "fault": fault},
        params={
            "kv_heads": problem.kv_heads,
            "tokens": problem.length,
            "old": problem.old if problem.has_past else 0,
            "room": problem.room,
            "used": problem.used,
            "table_rows": problem.table_rows,
            "lanes": groups * local,
            **{
                f"{name}_{axis}": s
                for name, of in strides.items()
                for axis, s in zip(("batch", "head", "row"), of, strict=True)
            },
            "fault_code": code,
            "epsilon": problem.epsilon or 0.0,
        },
        spec={
            "SIZE": problem.size,
            "VALUE_SIZE": problem.value_size,
            "UNIT": unit,
            "HALF": problem.half,
            "INTERLEAVED": int(problem.interleaved),
            "GROUP": group,
            "IDS": int(problem.ids),
            "OVER": int(problem.over),
            "CODE": NUMBERS[problem.cache],
            "K_CHANNELS": int(problem.k_channels),
            "V_CHANNELS": int(problem.v_channels),
            "CLEAN": int(cleans),
            "NORM": int(problem.epsilon is not None),
        },
        defines={
            "T": STORAGE[problem.dtype],
            "C": CODES[problem.cache][1] if problem.cache else STORAGE[problem.dtype],
        },
        local_size=(local,),
    )


implement(CacheUpdateProblem, Candidate("cache update", _update, when=_no_update))
