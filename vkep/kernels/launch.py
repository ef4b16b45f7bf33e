"""Shared by selection functions: element types, grids, the division of columns among lanes, the planner's workspace."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from gpu_shared.capabilities import DeviceCapabilities
from vkep.dtypes import DTYPES, DType
from vkep.kernels.kernel import KernelCall
from vkep.sizes import at_hand, divides, largest, matches, power_of_two_in

MAX_GRID_AXIS = 65535  #: workgroups that every device supports along one axis
#: workgroups below which a GPU counts as underused, so that long axes are divided further: a large GPU holds a thousand
#: of 256 lanes at once, and reaches its bandwidth only when most of them have loads in flight
BUSY_GROUPS = 1024
#: workgroups that keep a CPU driver's cores evenly busy
CPU_GROUPS = 32
MAX_RANK = 8
#: GLSL type of an untyped unit of this many bytes
UNITS = {1: "uint8_t", 2: "uint16_t", 4: "uint", 8: "uvec2", 16: "uvec4"}


#: define of kernels whose lanes combine values by shuffles (``shaders/lanes.glsl``)
SHUFFLE = {"SUBGROUP_SHUFFLE": "1"}


class Workspace(Protocol):
    """The memory that a selection function may request from its planner; the results are operands."""

    def scratch(self, dtype: str, shape: tuple[int, ...]) -> Any:
        """An uninitialised tensor that lives until the calls that name it have run."""

    def counters(self, count: int) -> Any:
        """Unsigned integers [count] that are 0 before the calls that name them; these leave them 0 for others."""

    def constant(self, array: np.ndarray) -> Any:
        """A tensor with the array's shape, dtype and values."""


def element_type(dtype: str) -> DType:
    """The element type by name. Raises ``ValueError`` for an unknown one."""
    try:
        return DTYPES[dtype]
    except KeyError:
        raise ValueError(f"kernels: element type is {dtype!r}, expected one of {sorted(DTYPES)}") from None


def element_defines(dtype: str, out: str | None = None) -> dict[str, str]:
    """Defines of ``shaders/elements.glsl`` for input elements of ``dtype`` and output elements of ``out`` (default: the
    same).

    bool elements compute as uint 0 or 1.
    """
    source, target = element_type(dtype), element_type(out or dtype)
    compute = "uint" if source.kind == "bool" else source.glsl_compute
    defines = {"IN_T": source.glsl, "OUT_T": target.glsl, "COMPUTE_T": compute}
    if source.name == "bfloat16":
        defines["IN_BFLOAT16"] = "1"
    if target.name == "bfloat16":
        defines["OUT_BFLOAT16"] = "1"
    return defines


def real_defines(*dtypes: str) -> dict[str, str]:
    """Defines of ``shaders/real.glsl``: positions and sums are doubles where any of these element types is float64."""
    return {"DOUBLES": "1"} if "float64" in dtypes else {}


def limit(dtype: str, lowest: bool) -> str:
    """GLSL for the minimum (or maximum) of an element type: minus (plus) infinity for floats."""
    kind = element_type(dtype)
    if kind.name == "float64":
        return f"packDouble2x32(uvec2(0u, {'0xfff00000u' if lowest else '0x7ff00000u'}))"
    if kind.kind == "float":
        return f"uintBitsToFloat({'0xff800000u' if lowest else '0x7f800000u'})"
    if kind.kind == "bool":
        return "0u" if lowest else "1u"
    info = np.iinfo(kind.numpy)
    value = int(info.min if lowest else info.max)
    if kind.itemsize == 8:  # without 64-bit literals, which no definition can use
        if kind.kind == "uint":
            return "uint64_t(0)" if lowest else "~uint64_t(0)"
        return "(int64_t(1) << 63)" if lowest else "~(int64_t(1) << 63)"
    suffix = "u" if kind.kind == "uint" else ""
    return f"(-{-(value + 1)} - 1)" if value < 0 else f"{value}{suffix}"  # -2**31 is not a literal of int


def key_defines(dtype: str) -> dict[str, str]:
    """Defines of ``shaders/sortkey.glsl``."""
    kind = element_type(dtype)
    wide = kind.itemsize == 8
    floating = "KEY_DOUBLE" if wide else "KEY_FLOAT"
    family = {"float": floating, "int": "KEY_SIGNED"}.get(kind.kind, "KEY_UNSIGNED")
    sign = "(uint64_t(1) << 63)" if wide else "0x80000000u"
    return {family: "1", "KEY_T": "uint64_t" if wide else "uint", "KEY_SIGN_BIT": sign}


def is_cpu(caps: DeviceCapabilities) -> bool:
    """Whether the device is a CPU driver."""
    return caps.device_type == "cpu"


def gathers_pairs(caps: DeviceCapabilities) -> bool:
    """Whether two neighbours of 32 bits are loaded as one word: a CPU driver gathers each lane's word by itself, a long one in
    the time of a short one."""
    return is_cpu(caps) and caps.has("int64")


def shared_itemsize(dtype: DType, caps: DeviceCapabilities) -> int:
    """Bytes of an element in shared memory: a narrow one takes a word on a device that lacks types of its width."""
    needed = {1: ("int8", "storage_8bit"), 2: ("int16", "float16", "storage_16bit")}.get(dtype.itemsize, ())
    return dtype.itemsize if caps.has(*needed) else 4


@at_hand
def lanes(caps: DeviceCapabilities, total: int) -> int:
    """Lanes per workgroup for kernels whose ``total`` lanes do not cooperate.

    On a CPU driver starting a workgroup costs as much as the work of tens of lanes (lavapipe: 128 lanes are 1.6 to
    2.5 times as fast as 8), but its cores share only whole workgroups.
    """
    most = floor_power_of_two(caps.max_workgroup_invocations)
    if is_cpu(caps):
        return max(min(128, most, floor_power_of_two(total // CPU_GROUPS)), min(caps.subgroup_size, most))
    return min(256, most)


def flat_lanes(caps: DeviceCapabilities, total: int) -> dict[str, Any]:
    """Arguments of `Kernel.call` for ``total`` lanes that do not cooperate (``flat_lane`` in ``shaders/workgroup.glsl``)."""
    local = lanes(caps, total)
    return {"grid": grid(ceil_div(total, local)), "local_size": (local,)}


def floor_power_of_two(n: int) -> int:
    """The largest power of two that is at most ``n``; 1 for less."""
    return 1 << (n.bit_length() - 1) if n > 0 else 1


def ceil_power_of_two(n: int) -> int:
    """The least power of two that is at least ``n``."""
    return 1 << (n - 1).bit_length() if n > 1 else 1


@at_hand
def strip_of(count: int, most: int) -> int:
    """Rows or columns that a lane computes: a power of two up to ``most``, not more than ``count`` needs."""
    return min(most, ceil_power_of_two(count))


def ceil_div(a: int, b: int) -> int:
    """``a / b`` rounded up."""
    return -(-a // b)


def grid(groups: int, z: int = 1) -> tuple[int, int, int]:
    """The grid (x, y, z) of ``groups`` workgroups folded into x and y (``flat_group`` in ``shaders/workgroup.glsl``);
    some may be surplus. Raises ``ValueError`` for more than a dispatch can hold."""
    x, y = in_lines(groups, MAX_GRID_AXIS)
    if y > MAX_GRID_AXIS:
        raise ValueError(f"kernels: {groups} workgroups are more than one dispatch can hold ({MAX_GRID_AXIS}**2)")
    return x, y, z


def in_lines(groups: int, limit: int) -> tuple[int, int]:
    """``groups`` workgroups, or a few more, as x and y of a grid whose x is at most ``limit``. A size that is not far from the
    limit may pass it."""
    if not _may_pass(groups, limit) and groups <= limit:
        return groups, 1
    y = largest(1, ceil_div(groups, limit))
    return ceil_div(groups, y), y


@at_hand
def _may_pass(groups: int, limit: int) -> bool:
    return 16 * groups > limit


def numbered(prefix: str, values: Sequence[int], rest: int) -> dict[str, int]:
    """``{prefix0: .., prefix7: ..}`` for `dims.glsl`, filled up with ``rest``. Raises ``ValueError`` for more than
    eight values."""
    if len(values) > MAX_RANK:
        raise ValueError(f"kernels: {len(values)} dimensions for {prefix!r}, expected at most {MAX_RANK}")
    return {f"{prefix}{i}": (values[i] if i < len(values) else rest) for i in range(MAX_RANK)}


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides in elements of a contiguous tensor."""
    strides, step = [], 1
    for d in reversed(shape):
        strides.append(step)
        step *= d
    return tuple(reversed(strides))


def unit_for(row_bytes: int, alignment: int, widest: int = 16) -> int:
    """Bytes of the widest unit that divides rows of ``row_bytes`` and the operands' addresses (``alignment`` bytes)."""
    return math.gcd(power_of_two_in(row_bytes or widest, widest), alignment)


@dataclass(frozen=True)
class ColumnShare:
    """How a kernel over the middle of [outer, axis, inner] divides its columns among lanes."""

    split: int  #: lanes per column, a power of two
    across: bool  #: whether neighbouring lanes are neighbours along the axis
    local: int  #: lanes per workgroup
    groups: int  #: workgroups for all columns
    shuffle: int | None  #: subgroup size, where lanes combine by shuffles
    required: int | None  #: that size, where the device lets a pipeline require it

    @property
    def launch(self) -> dict[str, Any]:
        """Arguments of `Kernel.call`."""
        return {"grid": grid(self.groups), "local_size": (self.local,), "subgroup_size": self.required}

    @property
    def spec(self) -> dict[str, int]:
        """Its spec constants by name."""
        return {"SPLIT": self.split, "ACROSS": int(self.across)}

    @property
    def lane_spec(self) -> dict[str, int]:
        """`spec` for kernels that include ``shaders/lanes.glsl``."""
        return {**self.spec, "SUBGROUP_LANES": self.shuffle or 1}

    @property
    def defines(self) -> dict[str, str]:
        """Its defines by name."""
        return SHUFFLE if self.shuffle else {}


def share_columns(
    columns: int, axis: int, inner: int, caps: DeviceCapabilities, shuffles: bool = True, load_bytes: int = 4
) -> ColumnShare:
    """Divide ``columns`` columns of ``axis`` elements; a lane loads ``load_bytes`` at once.

    A CPU driver gets one lane per column wherever the columns suffice for its cores: it has nothing to combine, and
    gains nothing from neighbouring addresses. A GPU wants neighbouring lanes at neighbouring addresses (along the axis
    where ``inner`` is 1) and enough lanes in flight. A lane by itself reads rows of up to a memory sector (32 bytes);
    lanes side by side fill a line (128).
    """
    share = _shared_out(columns, axis, matches(inner, 1), caps, shuffles, load_bytes)
    return replace(share, groups=ceil_div(columns, share.local // share.split))


@at_hand
def _shared_out(
    columns: int, axis: int, rows: bool, caps: DeviceCapabilities, shuffles: bool, load_bytes: int
) -> ColumnShare:
    split = 1
    local = lanes(caps, columns)
    if is_cpu(caps):
        if columns < 4 * caps.subgroup_size and axis >= 2 * caps.subgroup_size:
            split = local
    elif rows:
        if axis > 32 // load_bytes:
            split = 32 if axis <= 1024 and columns >= BUSY_GROUPS else local
            split = min(split, local, ceil_power_of_two(axis))
    elif columns < BUSY_GROUPS * local:
        wanted, line = ceil_power_of_two(ceil_div(BUSY_GROUPS * local, columns)), 128 // load_bytes
        split = min(
            wanted, local // min(line, ceil_power_of_two(columns), local), floor_power_of_two(max(axis // 4, 1))
        )
    across = rows and split > 1
    shuffle, required = shuffle_sizes(caps, local) if shuffles and across else (None, None)
    return ColumnShare(split, across, local, 0, shuffle, required)


#: subgroups of a required size that a workgroup may have (Vulkan: maxComputeWorkgroupSubgroups; 32 is the lowest limit
#: among known drivers)
_MOST_SUBGROUPS = 32


def shuffle_sizes(caps: DeviceCapabilities, local: int) -> tuple[int | None, int | None]:
    """The subgroup size by which workgroups of ``local`` lanes can combine values by shuffles, and that size again
    where a pipeline must require it; None where they cannot, or need not."""
    size, control = caps.subgroup_size, caps.has("subgroup_size_control")
    fixed = caps.min_subgroup_size == caps.max_subgroup_size or control
    usable = fixed and caps.has("subgroup_shuffle") and 1 < size <= local
    if control and local > _MOST_SUBGROUPS * size:
        return None, None
    return (size, size if control else None) if usable else (None, None)


def row_vectors(row_length: int, dtype: str, alignment: int, out: str | None = None) -> dict[str, str]:
    """Defines of ``shaders/rows.glsl`` to move four elements of ``dtype`` at a time, which are stored in ``out`` (default: the
    same); none where the rows or addresses do not allow it.

    ``alignment`` in bytes divides the addresses of all row operands.
    """
    kind = element_type(dtype)
    if kind.name not in ("float32", "float16") or not divides(4, row_length) or alignment % (4 * kind.itemsize):
        return {}
    return {"VECTOR_IN_T": kind.glsl_vector, "VECTOR_OUT_T": element_type(out or dtype).glsl_vector}


def row_unit(call: KernelCall, kind: str = "IN_T") -> int:
    """Bytes that a kernel with ``shaders/rows.glsl`` loads (``OUT_T``: stores) at a time, the unit of its row lengths."""
    return call.size_of(f"VECTOR_{kind}" if "VECTOR_IN_T" in call.defines else kind)


def row_variants() -> tuple[dict[str, str], ...]:
    """Variants of row kernels to compile ahead of time."""
    plain = [element_defines(t) for t in ("float32", "float16")]
    vectors = [element_defines(t) | row_vectors(4, t, 16) for t in ("float32", "float16")]
    return with_shuffles(*plain, *vectors)


def with_shuffles(*variants: dict[str, str]) -> tuple[dict[str, str], ...]:
    """Variants to compile ahead of time, each without shuffles and with them."""
    return tuple(v | extra for v in variants for extra in ({}, SHUFFLE))
