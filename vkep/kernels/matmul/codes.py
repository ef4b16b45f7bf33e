"""Products of few rows by packed codes, by dot products of bytes: ``shaders/matmul_codes.comp``."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import astuple, dataclass, replace

from gpu_shared.capabilities import DeviceCapabilities
from vkep.kernels.kernel import Kernel, KernelCall
from vkep.kernels.launch import ceil_div, ceil_power_of_two, floor_power_of_two, grid, is_cpu, shuffle_sizes
from vkep.kernels.matmul.along_k import MAX_ROWS, row_tile
from vkep.kernels.matmul.form import PLAIN, Form, in_forms, turned_reach
from vkep.kernels.matmul.nbits_problem import UNIT, MatMulNBitsProblem, packed_reach
from vkep.kernels.matmul.tiles import OF_STORAGE, STORAGE
from vkep.kernels.select import Emission
from vkep.kernels.tuning import Tuned, estimated
from vkep.sizes import record_at_hand, stays_few


def _reach(call: KernelCall) -> Mapping[str, int]:
    m, n, size = call["m"], call["n"], call.size_of("T")
    weights = packed_reach(call, size)
    second = {f"{name}2": nbytes for name, nbytes in weights.items()}
    reach = {"a": m * call["k"] * size, "gain": call["k"] * size, **weights, **second, "y": m * n * size}
    return reach | turned_reach(call, size)


MATMUL_CODES = Kernel("matmul_codes.comp", variants=in_forms(OF_STORAGE), reach=_reach)
#: maximum number of groups of four elements of a that a lane loads for a slab
_MOST_TURNS = 2
#: workgroups that fill a large GPU
_GROUPS = 256
_LANES = 256
#: divisions for one row by the least columns of each, measured on 132 cores (`Share`): about 16 columns a workgroup, which has
#: more lanes where fewer workgroups run
_OF_ONE_ROW = (
    (16384, (4, 16, 128)),
    (12288, (2, 16, 128)),
    (6144, (2, 32, 256)),
    (3072, (2, 64, 512)),
    (0, (4, 128, 512)),
)


@dataclass(frozen=True)
class Share:
    """A workgroup of ``local`` lanes, ``k_lanes`` of them along ``columns`` columns."""

    columns: int
    k_lanes: int
    local: int

    def fits(self, problem: MatMulNBitsProblem, caps: DeviceCapabilities) -> bool:
        """Whether a device runs it, with few enough registers a lane."""
        rows = row_tile(problem.m)
        lanes = min(caps.max_workgroup_invocations, caps.max_workgroup_size[0])
        shared = 2 * 16 * rows * self.k_lanes * (2 * _digits(problem) + 1) + 4 * self.local * rows * self.columns // 8
        return (
            8 <= self.k_lanes <= self.local <= lanes
            and self.columns * rows <= 32
            and rows * self.k_lanes * 8 <= _MOST_TURNS * self.local
            and shared <= caps.max_shared_memory_bytes
        )


def _digits(problem: MatMulNBitsProblem) -> int:
    """Signed bytes for each element of a: 16 bits for a float16, 24 for a float32."""
    return 2 if problem.dtype == "float16" else 3


def _shares(problem: MatMulNBitsProblem, caps: DeviceCapabilities) -> list[Share]:
    tried = itertools.product((2, 4, 8), (8, 16, 32, 64, 128, 256), (64, 128, 256, 512))
    return [share for share in itertools.starmap(Share, tried) if share.fits(problem, caps)]


def share(problem: MatMulNBitsProblem, caps: DeviceCapabilities, tuned: Tuned) -> Share | None:
    """The division of the weights among lanes, tuned or else estimated; None where the device runs none."""
    problem = record_at_hand(problem)
    sizes = (problem.m, problem.n, problem.k, problem.bits, problem.block)
    choice = tuned(lambda: [astuple(s) for s in _shares(problem, caps)], "codes", *sizes)
    if choice is not None:
        return Share(*choice)
    rows, units = row_tile(problem.m), ceil_power_of_two(ceil_div(problem.k, UNIT))
    if rows == 1:
        columns, k_lanes, local = next(sizes for least, sizes in _OF_ONE_ROW if problem.n >= least)
    else:
        # Measured on 132 cores: 32 lanes along k where that gives enough workgroups, else up to 128 in workgroups of
        # twice the size
        columns, k_lanes = 4 if rows <= 2 else 2, 128 if problem.n < _GROUPS * 4 * _LANES // 32 else 32
        local = 2 * _LANES if min(k_lanes, units) >= 128 else _LANES
    k_lanes = max(8, min(k_lanes, units))
    lanes = min(caps.max_workgroup_invocations, caps.max_workgroup_size[0])
    estimates = [Share(columns, k_lanes >> halved, min(local, floor_power_of_two(lanes))) for halved in range(5)]
    return next((s for s in estimates if s.fits(problem, caps)), None)


def no_codes(problem: MatMulNBitsProblem, caps: DeviceCapabilities) -> str:
    """Why the kernel does not compute a product; "" where it does."""
    if not stays_few(problem.m, MAX_ROWS):
        return f"{problem.m} rows, expected up to {MAX_ROWS}"
    if problem.not_in_units:
        return problem.not_in_units
    if not caps.has("integer_dot_product") or is_cpu(caps):
        return "the device has no fast dot products of packed bytes"
    if (shuffle_sizes(caps, 64)[0] or 0) < 8:
        return "the device has no shuffles in subgroups of 8 lanes or more"
    return "" if share(problem, caps, estimated) else "too few lanes, or too little shared memory"


def matmul_codes(problem: MatMulNBitsProblem, e: Emission, form: Form = PLAIN) -> list[KernelCall]:
    """The dispatch of a product of few rows in a form."""
    # lanes share the columns of both products as those of one
    columns = form.columns(problem.n) * form.sides
    shared = share(replace(problem, n=columns), e.caps, e.target.tuned)
    assert shared is not None, "asked by no_codes"
    shuffle, required = shuffle_sizes(e.caps, shared.local)
    rows = row_tile(problem.m)
    return [
        form.call(
            MATMUL_CODES,
            e,
            grid=grid(ceil_div(columns, shared.columns * (shared.local // shared.k_lanes)), ceil_div(problem.m, rows)),
            params=problem.params,
            spec={
                "BITS": problem.bits,
                "ROWS": rows,
                "COLUMNS": shared.columns,
                "K_LANES": shared.k_lanes,
                "DIGITS": _digits(problem),
                "BLOCK": problem.block,
                "ZEROS": problem.zeros_kind,
                "SUBGROUP_LANES": shuffle or 1,
            },
            local_size=(shared.local, 1, 1),
            subgroup_size=required,
            flops=problem.flops * (2 if form.paired else 1),
            defines={"T": STORAGE[problem.dtype]},
        )
    ]
