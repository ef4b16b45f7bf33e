"""Products of 2 to 32 rows by packed codes on cooperative matrices that are filled from registers:
``shaders/matmul_codes_frag.comp``."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import astuple, dataclass

from gpu_shared.capabilities import CooperativeMatrixShape, DeviceCapabilities
from vkep.kernels.kernel import Kernel, KernelCall
from vkep.kernels.launch import ceil_div, is_cpu
from vkep.kernels.matmul.cooperative import HALVES
from vkep.kernels.matmul.cooperative_tiles import VECTOR, compute_units, float16_shape
from vkep.kernels.matmul.form import PLAIN, Form
from vkep.kernels.matmul.nbits_problem import UNIT, MatMulNBitsProblem, packed_reach
from vkep.kernels.select import Emission
from vkep.kernels.tuning import Tuned
from vkep.sizes import at_hand, record_at_hand, stays_few


def _reach(call: KernelCall) -> Mapping[str, int]:
    m, n = call["m"], call["n"]
    weights = packed_reach(call, 2)
    second = {f"{name}2": nbytes for name, nbytes in weights.items()}
    return {"a": 2 * m * call["k"], **weights, **second, "y": 2 * m * n}


MATMUL_CODES_FRAGMENTS = Kernel("matmul_codes_frag.comp", variants=(HALVES, {**HALVES, "PAIRED": "1"}), reach=_reach)
#: rows beyond which tiles in shared memory are faster
MOST_ROWS = 32
#: units of a stage
_STAGE = 4
#: the shape and subgroups whose order of elements the kernel knows
_KNOWN = (16, 16, 16, 32)


@dataclass(frozen=True)
class Division:
    """A workgroup of ``n_groups`` by ``k_groups`` subgroups, each of ``columns`` matrices along columns, with ``slots`` stages
    of weights and ``a_slots`` of a on their way in registers."""

    columns: int
    n_groups: int
    k_groups: int
    slots: int
    a_slots: int

    def fits(self, caps: DeviceCapabilities, shape: CooperativeMatrixShape, row_tiles: int) -> bool:
        """Whether a device runs it. Shared memory, as the GLSL computes it, is for columns and rows on their way to
        matrices, or for sums."""
        lanes = self.n_groups * self.k_groups * caps.subgroup_size
        lines, pitch = self.columns * shape.n + row_tiles * shape.m, shape.k // VECTOR | 1
        part = max(lines * pitch, shape.m * (self.columns * shape.n // 4 + 1))
        return (
            lanes <= min(caps.max_workgroup_invocations, caps.max_workgroup_size[0])
            and 16 * self.n_groups * self.k_groups * part + 4 <= caps.max_shared_memory_bytes
        )


#: by the matrices along rows: the subgroups that a core needs, and divisions from few subgroups to many, of which the first that
#: has as many is taken. They were the fastest ones on 132 cores for some number of columns (docs/design-log/gpu-speed.md).
_PREFERRED = {
    1: (11, (Division(2, 1, 4, 2, 1), Division(2, 1, 8, 2, 1), Division(2, 1, 16, 2, 2), Division(1, 1, 16, 2, 2))),
    2: (5, (Division(2, 4, 2, 2, 2), Division(2, 2, 4, 2, 2), Division(2, 1, 8, 2, 2), Division(1, 1, 8, 2, 2))),
}


def no_fragments(problem: MatMulNBitsProblem, caps: DeviceCapabilities) -> str:
    """Why the kernel does not compute a product; "" where it does."""
    if problem.dtype != "float16":
        return f"cooperative matrices of float16, the product is of {problem.dtype}"
    if problem.not_in_units:
        return problem.not_in_units
    shape = float16_shape(caps)
    if shape is None:
        return "the device has no cooperative matrices of float16 with float32 sums"
    if is_cpu(caps):
        return "a driver on the CPU takes minutes to compile for cooperative matrices"
    lines = caps.subgroup_size // 4  # columns, or rows, that lanes load together
    if not lines or shape.m % lines or shape.n % lines or caps.subgroup_size % 4:
        return f"subgroups of {caps.subgroup_size} lanes do not fill matrices of {shape.m} by {shape.n}"
    if problem.m < 2 or not stays_few(problem.m, MOST_ROWS):
        return f"{problem.m} rows, expected 2 to {MOST_ROWS}"
    return "" if _fitting(caps, problem.m) else "too few lanes, or too little shared memory"


def unknown_order(problem: MatMulNBitsProblem, caps: DeviceCapabilities) -> str:
    """Why the kernel is not expected to know the order of a matrix's elements; "" where it is."""
    shape = float16_shape(caps)
    if shape is None or (shape.m, shape.n, shape.k, caps.subgroup_size) != _KNOWN:
        return "the order of a matrix's elements is known of 16 by 16 by 16 in subgroups of 32 lanes"
    return ""


@at_hand
def _row_tiles(m: int, shape: CooperativeMatrixShape) -> int:
    return min(2, ceil_div(m, shape.m))


def _fitting(caps: DeviceCapabilities, m: int, sides: int = 1) -> list[Division]:
    """Every division that a device runs."""
    shape = float16_shape(caps)
    tried = itertools.product((1, 2, 4), (1, 2, 4), (2, 4, 8, 16), (1, 2), (1, 2))
    return [
        d
        for d in itertools.starmap(Division, tried)
        if shape is not None
        and d.a_slots <= d.slots
        and d.columns >= sides
        and 4 <= d.n_groups * d.k_groups <= 16
        and d.fits(caps, shape, _row_tiles(m, shape))
    ]


def division(problem: MatMulNBitsProblem, caps: DeviceCapabilities, tuned: Tuned, sides: int = 1) -> Division:
    """The division of a product, or of two (``sides``), among subgroups, tuned or else estimated."""
    problem = record_at_hand(problem)
    sizes = (problem.m, sides * problem.n, problem.k, problem.bits, problem.block)
    fitting = _fitting(caps, problem.m, sides)
    choice = tuned(lambda: list(map(astuple, fitting)), "fragments", *sizes)
    if choice is not None:
        return Division(*choice)
    shape = float16_shape(caps)
    assert shape is not None, "asked by no_fragments"
    wanted, preferred = _PREFERRED[_row_tiles(problem.m, shape)]
    ordered = [d for d in preferred if d in fitting] or fitting
    subgroups = [
        ceil_div(sides * problem.n, shape.n * d.columns * d.n_groups) * d.n_groups * d.k_groups for d in ordered
    ]
    busy = wanted * compute_units(caps)
    return next((d for d, count in zip(ordered, subgroups, strict=True) if count >= busy), ordered[-1])


def codes_by_fragments(problem: MatMulNBitsProblem, e: Emission, form: Form = PLAIN) -> list[KernelCall]:
    """The dispatch of a product of few rows, or (``form``) of two of the same rows."""
    shape, sides = float16_shape(e.caps), 2 if form.paired else 1
    assert shape is not None and form.epsilon is None, "asked by no_fragments and FusedProductProblem"
    chosen, row_tiles = division(problem, e.caps, e.target.tuned, sides), _row_tiles(problem.m, shape)
    columns = shape.n * chosen.columns * chosen.n_groups // sides
    vector = problem.k % VECTOR == 0 and problem.at_a % (2 * VECTOR) == 0
    return [
        form.call(
            MATMUL_CODES_FRAGMENTS,
            e,
            grid=(ceil_div(problem.n, columns), ceil_div(problem.m, row_tiles * shape.m), 1),
            params=problem.params,
            spec={
                "BITS": problem.bits,
                "ROW_TILES": row_tiles,
                "COLUMN_TILES": chosen.columns,
                "K_GROUPS": chosen.k_groups,
                "N_GROUPS": chosen.n_groups,
                "SLOTS": chosen.slots,
                "A_SLOTS": chosen.a_slots,
                "BLOCK": problem.block,
                "ZEROS": problem.zeros_kind,
                "A_VECTOR": int(vector) + int(vector and problem.k % (UNIT * _STAGE) == 0),
                "MAT_M": shape.m,
                "MAT_N": shape.n,
                "MAT_K": shape.k,
                "SUBGROUP_LANES": e.caps.subgroup_size,
            },
            local_size=(chosen.n_groups * chosen.k_groups * e.caps.subgroup_size, 1, 1),
            subgroup_size=e.caps.subgroup_size,
            flops=problem.flops * sides,
            defines=HALVES,
        )
    ]
