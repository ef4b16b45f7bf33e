"""Matrix products in the element types that the fast kernels do not support: integers and float64."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gpu_shared.capabilities import DeviceCapabilities
from vkep.kernels.fastdiv import LIMIT, magic_params
from vkep.kernels.kernel import Kernel, KernelCall
from vkep.kernels.launch import ceil_div, element_type, grid, lanes, strip_of
from vkep.kernels.problem import Need, Problem, extent
from vkep.kernels.select import Candidate, Emission, implement

_STRIDES = ("batch0", "batch1", "row", "col")


def _defines(a: str, b: str, y: str) -> dict[str, str]:
    kind = element_type(y)
    return {
        "A_T": element_type(a).glsl,
        "B_T": element_type(b).glsl,
        "Y_T": kind.glsl,
        "ACC_T": kind.glsl_compute,
    }


def _reach(call: KernelCall) -> Mapping[str, int]:
    m, n, k, inner = call["m"], call["n"], call["k"], call["batch1"]
    batch = ceil_div(call["total"], call["tiles_m"] * call["tiles_n"])
    reach = {"y": batch * m * n * call.size_of("Y_T")}
    for name, sizes in (("a", (m, k)), ("b", (k, n))):
        strides = [call[f"{name}_{axis}"] for axis in _STRIDES]
        reach[name] = extent((batch // inner, inner, *sizes), strides) * call.size_of(f"{name.upper()}_T")
    return reach


MATMUL_GENERIC = Kernel(
    "matmul_generic.comp",
    variants=tuple(
        _defines(*types)
        for types in (
            ("int8", "int8", "int32"),
            ("uint8", "int8", "int32"),
            ("uint8", "uint8", "int32"),
            ("int16", "int8", "int32"),
            ("int16", "int16", "int32"),
            ("int32", "int32", "int32"),
            ("int64", "int64", "int64"),
            ("float64", "float64", "float64"),
        )
    ),
    reach=_reach,
)


@dataclass(frozen=True)
class GenericProductProblem(Problem):
    """``y[batch] = a[batch] @ b[batch]``, y dense [outer batch * inner batch, m, n].

    Strides are in elements: (outer batch, inner batch, row, column); 0 broadcasts. ``dtypes`` are those of a, b and y; sums are
    kept in y's type and wrap where it is an integer. Raises `ValueError` for strides below 0.
    """

    batch: tuple[int, int]
    m: int
    n: int
    k: int
    a_strides: tuple[int, ...]
    b_strides: tuple[int, ...]
    dtypes: tuple[str, str, str]

    def __post_init__(self) -> None:
        for name, strides in (("a", self.a_strides), ("b", self.b_strides)):
            if min(strides) < 0:
                raise ValueError(f"matmul: strides of {name} are {strides}, expected none below 0")

    def needs(self) -> tuple[Need, ...]:
        a, b, _ = self.dtypes
        return (
            Need("a", a, (*self.batch, self.m, self.k), self.a_strides),
            Need("b", b, (*self.batch, self.k, self.n), self.b_strides),
        )

    def makes(self) -> tuple[Need, ...]:
        return (Need("y", self.dtypes[2], (*self.batch, self.m, self.n), flat=True),)

    @property
    def flops(self) -> int:
        return 2 * self.batch[0] * self.batch[1] * self.m * self.n * self.k

    def reference(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        kind = np.float64 if self.dtypes[2] == "float64" else np.uint64  # sums of integers wrap
        return a.astype(kind) @ b.astype(kind)


def _no_product(problem: GenericProductProblem, caps: DeviceCapabilities) -> str:
    for dtype in problem.dtypes:
        if element_type(dtype).name == "bfloat16" or element_type(dtype).kind == "bool":
            return f"matmul: no generic kernel for {dtype}; expected an integer type, float32 or float64"
    far = next((stride for stride in (*problem.a_strides, *problem.b_strides) if stride >= LIMIT), None)
    return "" if far is None else f"matmul: strides of {far} elements, expected less than {LIMIT}"


def _generic(problem: GenericProductProblem, e: Emission) -> KernelCall:
    m, n = problem.m, problem.n
    micro_m, micro_n = strip_of(m, 4), strip_of(n, 4)
    tiles_m, tiles_n = ceil_div(m, micro_m), ceil_div(n, micro_n)
    total = problem.batch[0] * problem.batch[1] * tiles_m * tiles_n
    local = lanes(e.caps, total)
    names = (f"{operand}_{axis}" for operand in "ab" for axis in _STRIDES)
    return MATMUL_GENERIC.call(
        grid=grid(ceil_div(total, local)),
        operands=e.operands,
        params={
            "m": m,
            "n": n,
            "k": problem.k,
            "total": total,
            **magic_params("tiles_n", tiles_n),
            **magic_params("tiles_m", tiles_m),
            "batch1": problem.batch[1],
            **dict(zip(names, (*problem.a_strides, *problem.b_strides), strict=True)),
        },
        spec={"MICRO_M": micro_m, "MICRO_N": micro_n},
        defines=_defines(*problem.dtypes),
        local_size=(local,),
    )


implement(GenericProductProblem, Candidate("generic", _generic, when=_no_product))
