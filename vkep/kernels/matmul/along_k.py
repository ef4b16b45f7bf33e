"""Products of few rows by weights that are dense along k, floats or packed codes: ``shaders/matmul_along_k.comp``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpu_shared.capabilities import DeviceCapabilities
from vkep.kernels.epilogue import call_arguments
from vkep.kernels.kernel import Kernel, KernelCall
from vkep.kernels.launch import (
    SHUFFLE,
    ceil_div,
    ceil_power_of_two,
    floor_power_of_two,
    grid,
    is_cpu,
    shuffle_sizes,
    with_shuffles,
)
from vkep.kernels.matmul.problem import MatMulProblem, product_reach, unaddressable
from vkep.kernels.matmul.tiles import OF_STORAGE, STORAGE
from vkep.kernels.problem import extent
from vkep.kernels.select import Emission
from vkep.kernels.tuning import Tuned
from vkep.sizes import at_hand, divides, stays_few


def _reach(call: KernelCall) -> Mapping[str, int]:
    m, n, size, inner = call["m"], call["n"], call.size_of("T"), call["batch1"]
    tiles = ceil_div(m, call["ROWS"])
    sizes = (call.groups[2] // tiles // inner, inner, n, call["units"] * (call["WORDS"] * 32 // call["BITS"] or 1))
    weights = extent(sizes, (call["b_batch0"], call["b_batch1"], call["b_col"], 1))
    scales = n * call["blocks"] * size if call["BLOCK"] else 0
    return {
        "a": product_reach(call, "a", m, call["k"], tiles) * size,
        "b": weights * call["BITS"] // 8,
        "scales": scales,
        "zeros": {0: 0, 1: n * call["zero_bytes"], 2: scales}[call["ZEROS"]],
        "y": product_reach(call, "y", m, n, tiles) * size,
    }


MATMUL_ALONG_K = Kernel("matmul_along_k.comp", variants=with_shuffles(*OF_STORAGE), reach=_reach)
#: maximum number of rows: products of more reuse the weights that they read, and gain from tiles
MAX_ROWS = 8
#: minimum lanes of a workgroup, and maximum results of a lane
_LEAST_LANES, _MOST_VALUES = 32, 32
_LANES, _LANES_WITHOUT_SHUFFLES = 256, 64


@dataclass(frozen=True)
class Share:
    """The division of the weights among lanes: a workgroup of ``local`` lanes, ``k_lanes`` of them along ``columns``
    columns, each with ``unroll`` units of ``words`` words of each column in flight.
    """

    columns: int
    k_lanes: int
    unroll: int
    words: int
    local: int

    @property
    def choice(self) -> tuple[int, ...]:
        """The sizes in the form that `vkep tune` stores."""
        return self.columns, self.k_lanes, self.unroll, self.words, self.local


@dataclass(frozen=True)
class Weights:
    """The kind of the weights: bits of each, weights of a block (0: no scales), whether zero points are packed (1) or
    floats (2), and the words of the widest unit that their addresses and blocks allow (0: one element at a time)."""

    bits: int
    block: int = 0
    zeros: int = 0
    words: int = 4


def no_lanes(caps: DeviceCapabilities) -> str:
    """Why a device does not run the kernel; "" where it does."""
    if min(caps.max_workgroup_invocations, caps.max_workgroup_size[0]) < _LEAST_LANES:
        return f"fewer than {_LEAST_LANES} lanes a workgroup"
    most = 4 * _LEAST_LANES * _MOST_VALUES
    return f"less than {most} bytes of shared memory" if caps.max_shared_memory_bytes < most else ""


@at_hand
def row_tile(m: int) -> int:
    """Rows that a workgroup computes."""
    return min(ceil_power_of_two(m), MAX_ROWS)


@at_hand
def share(m: int, n: int, k: int, weights: Weights, caps: DeviceCapabilities, tuned: Tuned) -> Share:
    """The division of the weights of a product on a device: tuned, or else estimated."""
    key = ("along_k", m, n, k, weights.bits, weights.block)
    choice = tuned(lambda: [s.choice for s in shares(m, k, weights, caps)], *key)
    if choice is not None:
        return Share(*choice)
    rows = row_tile(m)
    each = 32 // weights.bits
    if is_cpu(caps):
        words = min(weights.words, ceil_div(4 * weights.bits, 32))  # a unit has at least four weights
        units = ceil_div(k, words * each or 1)
        local = _local(caps)
        return Share(min(4, _MOST_VALUES // rows), min(local, ceil_power_of_two(units)), 1, words, local)
    wanted = 4 if weights.bits >= 16 else 2 if weights.bits == 8 else 1
    words = min(weights.words, wanted)
    units, columns = ceil_div(k, words * each or 1), min(4, _MOST_VALUES // rows)
    unroll = 4 if rows <= 2 else 2 if rows <= 4 else 1
    local = _local(caps)
    k_lanes = min(max(floor_power_of_two(units // unroll), min(8, local)), local)
    return Share(columns, k_lanes, unroll, words, local)


def shares(m: int, k: int, weights: Weights, caps: DeviceCapabilities) -> list[Share]:
    """All divisions that `vkep tune` tries."""
    rows, most = row_tile(m), _local(caps)
    found = []
    for words in sorted({min(weights.words, w) for w in (1, 2, 4) if w * 32 >= 4 * weights.bits}):
        units = ceil_div(k, words * 32 // weights.bits or 1)
        for columns in (2, 4, 8):
            for unroll in (1, 2, 4):
                loads = columns * unroll * max(words, 1)
                for k_lanes in (8, 32, 64, 128, 256):
                    enough = k_lanes * unroll <= 2 * ceil_power_of_two(units) or (k_lanes, unroll) == (8, 1)
                    if k_lanes <= most and columns * rows <= _MOST_VALUES and loads <= 64 and enough:
                        found += [
                            Share(columns, k_lanes, unroll, words, local)
                            for local in sorted({most, max(k_lanes, min(64, most))})
                        ]
    return found


def _local(caps: DeviceCapabilities) -> int:
    most = min(caps.max_workgroup_invocations, caps.max_workgroup_size[0])
    wanted = caps.subgroup_size if is_cpu(caps) else _LANES
    if shuffle_sizes(caps, floor_power_of_two(min(most, wanted)))[0] is None:
        wanted = min(wanted, _LANES_WITHOUT_SHUFFLES, caps.max_shared_memory_bytes // (4 * _MOST_VALUES))
    return floor_power_of_two(min(most, wanted))


def product_along_k(
    sizes: tuple[int, int, int],
    weights: Weights,
    dtype: str,
    params: Mapping[str, int | float],
    wide_a: bool,
    e: Emission,
    flops: int,
    batch: int = 1,
) -> list[KernelCall]:
    """The dispatch of a product of (m, n, k); with ``wide_a`` the rows of a consist of aligned groups of 16 bytes."""
    m, n, k = sizes
    shared = share(m, n, k, weights, e.caps, e.target.tuned)
    rows, unit = row_tile(m), shared.words * 32 // weights.bits or 1
    size = 4 if dtype == "float32" else 2
    shuffle, required = shuffle_sizes(e.caps, shared.local)
    defines = {"T": STORAGE[dtype], **(SHUFFLE if shuffle else {})}
    groups = ceil_div(n, shared.columns * (shared.local // shared.k_lanes))
    return [
        MATMUL_ALONG_K.call(
            grid=grid(groups, ceil_div(m, rows) * batch),
            operands={name: e.get(name) for name in ("a", "b", "scales", "zeros", "y")},
            params={"blocks": 0, "zero_bytes": 0, **params, "m": m, "n": n, "k": k, "units": ceil_div(k, unit)},
            spec={
                "BITS": weights.bits,
                "ROWS": rows,
                "COLUMNS": shared.columns,
                "K_LANES": shared.k_lanes,
                "UNROLL": shared.unroll,
                "WORDS": shared.words,
                "BLOCK": weights.block,
                "ZEROS": weights.zeros,
                "A_WIDE": int(wide_a and divides(unit, k) and unit * size % 16 == 0),
                "T_BYTES": size,
                "WHOLE_TURNS": int(divides(shared.k_lanes * shared.unroll, ceil_div(k, unit))),
                "SUBGROUP_LANES": shuffle or 1,
            },
            local_size=(shared.local, 1, 1),
            subgroup_size=required,
            flops=flops,
            **call_arguments(e.epilogue, defines),
        )
    ]


def no_product_along_k(problem: MatMulProblem, caps: DeviceCapabilities) -> str:
    """Why the kernel does not compute a product; "" where it does."""
    if not problem.b_along_k:
        return "b is not dense along k"
    if not stays_few(problem.m, MAX_ROWS) or problem.k == 0:
        return f"{problem.m} rows of {problem.k} elements, expected 1 to {MAX_ROWS} that are not empty"
    return no_lanes(caps) or unaddressable(problem, caps)


def matmul_along_k(problem: MatMulProblem, e: Emission) -> list[KernelCall]:
    """The dispatch of a product of few rows by floats."""
    bits = 32 if problem.dtype == "float32" else 16
    group = 128 // bits
    weights = Weights(bits, words=4 if problem.in_groups("b", 2, group) else 0)
    params: dict[str, Any] = {name: value for name, value in problem.params.items() if name != "b_row"}
    sizes, wide = (problem.m, problem.n, problem.k), problem.in_groups("a", 3, group)
    return product_along_k(sizes, weights, problem.dtype, params, wide, e, problem.flops, problem.products)
