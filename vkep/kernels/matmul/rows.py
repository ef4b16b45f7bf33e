"""Matrix products of few rows (a decoder's step) on GPUs, limited by reading b: ``shaders/matmul_rows.comp``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpu_shared.capabilities import DeviceCapabilities
from vkep.kernels.kernel import Kernel, KernelCall
from vkep.kernels.launch import (
    SHUFFLE,
    ceil_div,
    floor_power_of_two,
    shuffle_sizes,
    with_shuffles,
)
from vkep.kernels.matmul.along_k import MAX_ROWS, row_tile
from vkep.kernels.matmul.form import PLAIN, Form, in_forms, turned_reach
from vkep.kernels.matmul.problem import MatMulProblem, product_reach, unaddressable
from vkep.kernels.matmul.tiles import OF_STORAGE, STORAGE
from vkep.kernels.select import Emission
from vkep.kernels.tuning import Tuned
from vkep.sizes import largest, record_at_hand, stays_few


def _reach(call: KernelCall) -> Mapping[str, int]:
    m, n, k, size = call["m"], call["n"], call["k"], call.size_of("T")
    b = product_reach(call, "b", k, largest(n, call["WIDTH"])) * size
    return {
        "a": product_reach(call, "a", m, k) * size,
        "b": b,
        "b2": b,
        "y": product_reach(call, "y", m, n) * size,
        "gain": k * size,
        **turned_reach(call, size),
    }


MATMUL_ROWS = Kernel("matmul_rows.comp", variants=in_forms(with_shuffles(*OF_STORAGE)), reach=_reach)
#: maximum results of a lane, and minimum lanes of a workgroup
_MOST_VALUES, _LEAST_LANES = 32, 64
#: lanes that a GPU runs at once, as workgroups are counted here
_BUSY_GROUPS = 128


@dataclass(frozen=True)
class Share:
    """A workgroup of ``local`` lanes, ``column_lanes`` of them along the columns, each with ``unroll`` loads in
    flight."""

    column_lanes: int
    unroll: int
    local: int

    @property
    def choice(self) -> tuple[int, ...]:
        """The sizes in the form that `vkep tune` stores."""
        return self.column_lanes, self.unroll, self.local


def no_product_of_rows(problem: MatMulProblem, caps: DeviceCapabilities) -> str:
    """Why `matmul_rows` does not compute a product; "" where it does."""
    if not stays_few(problem.m, MAX_ROWS) or problem.k == 0:
        return f"{problem.m} rows of {problem.k} elements, expected 1 to {MAX_ROWS} that are not empty"
    if min(caps.max_workgroup_invocations, caps.max_workgroup_size[0]) < _LEAST_LANES:
        return f"fewer than {_LEAST_LANES} lanes a workgroup"
    if caps.max_shared_memory_bytes < 4 * _LEAST_LANES * _MOST_VALUES:
        return f"less than {4 * _LEAST_LANES * _MOST_VALUES} bytes of shared memory"
    return unaddressable(problem, caps)


def _most_lanes(caps: DeviceCapabilities, values: int) -> int:
    most = min(caps.max_workgroup_invocations, caps.max_workgroup_size[0], 512)
    return floor_power_of_two(min(most, caps.max_shared_memory_bytes // (4 * values)))


def shares(caps: DeviceCapabilities, values: int) -> list[Share]:
    """All divisions that `vkep tune` tries."""
    most = _most_lanes(caps, values)
    return [
        Share(columns, unroll, local)
        for columns in (1, 2, 4, 8, 16, 32)
        for unroll in (2, 4, 8)
        for local in (64, 128, 256, 512)
        if local <= most
    ]


def share(
    problem: MatMulProblem, width: int, rows: int, caps: DeviceCapabilities, tuned: Tuned, form: Form = PLAIN
) -> Share:
    """The division of the columns among lanes, tuned or else estimated: 128 adjacent bytes of a row per group of lanes,
    fewer where too few workgroups would be busy."""
    problem = record_at_hand(problem)
    columns, sums = form.columns(problem.n), rows * form.sides
    values = width * sums + (form.epsilon is not None)  # in shared memory, of each lane
    sizes = (problem.m, columns * form.sides, problem.k, problem.products, 4 if problem.dtype == "float32" else 2)
    choice = tuned(lambda: [s.choice for s in shares(caps, values)], "rows", *sizes)
    if choice is not None:
        return Share(*choice)
    itemsize = 4 if problem.dtype == "float32" else 2
    lanes = min(32, max(1, 128 // (width * itemsize)))
    least = max(1, 32 // (width * itemsize))
    while lanes > least and ceil_div(columns, lanes * width) * problem.products < _BUSY_GROUPS:
        lanes //= 2
    busy = ceil_div(columns, lanes * width) * problem.products
    local = min(_most_lanes(caps, values), 256 if busy >= 4 * _BUSY_GROUPS else 512)
    return Share(lanes, 4 if sums > 1 else 8, local)


def matmul_rows(problem: MatMulProblem, e: Emission, form: Form = PLAIN) -> list[KernelCall]:
    """The dispatch of a product of few rows in a form."""
    rows, sides, columns = row_tile(problem.m), form.sides, form.columns(problem.n)
    group = 4 if problem.dtype == "float32" else 8
    widths = [w for w in (group, 4) if w * rows * sides <= _MOST_VALUES and problem.in_groups("b", 3, w)]
    if form.update is not None:
        widths = [w for w in widths if form.update.half % w == 0]
    width = widths[0] if widths else 1
    shared = share(problem, width, rows, e.caps, e.target.tuned, form)
    shuffle, required = shuffle_sizes(e.caps, shared.local)
    return [
        form.call(
            MATMUL_ROWS,
            e,
            grid=(ceil_div(columns, shared.column_lanes * width), ceil_div(problem.m, rows), problem.products),
            params=problem.params,
            spec={
                "ROWS": rows,
                "COLUMN_LANES": shared.column_lanes,
                "WIDTH": width,
                "UNROLL": shared.unroll,
                "T_BYTES": 4 if problem.dtype == "float32" else 2,
                "SUBGROUP_LANES": shuffle or 1,
            },
            local_size=(shared.local, 1, 1),
            subgroup_size=required,
            flops=2 * problem.m * columns * sides * problem.k * problem.products,
            defines={"T": STORAGE[problem.dtype], **(SHUFFLE if shuffle else {})},
        )
    ]
