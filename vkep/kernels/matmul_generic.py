"""Matrix products in the element types that the fast kernels do not take: integers and float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpu_shared.capabilities import DeviceCapabilities
from vkep.kernels.fastdiv import magic_fields, magic_params
from vkep.kernels.kernel import Kernel, KernelCall, Operand
from vkep.kernels.launch import ceil_div, element_count, element_type, grid, lanes

_STRIDES = ("batch0", "batch1", "row", "col")


def _defines(a: str, b: str, y: str) -> dict[str, str]:
    kind = element_type(y)
    return {
        "A_T": element_type(a).glsl,
        "B_T": element_type(b).glsl,
        "Y_T": kind.glsl,
        "ACC_T": kind.glsl_compute,
    }


MATMUL_GENERIC = Kernel(
    "matmul_generic.comp",
    operands=(Operand("a"), Operand("b"), Operand("y", writes=True)),
    params=(
        *((name, "uint") for name in ("m", "n", "k", "total")),
        *magic_fields("tiles_n", "tiles_m"),
        ("batch1", "uint"),
        *((f"{operand}_{axis}", "uint") for operand in "ab" for axis in _STRIDES),
    ),
    spec={"MICRO_M": 4, "MICRO_N": 4},
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
)


def matmul_generic(
    batch: tuple[int, int],
    m: int,
    n: int,
    k: int,
    a_strides: Sequence[int],
    b_strides: Sequence[int],
    dtypes: tuple[str, str, str],
    caps: DeviceCapabilities,
    a: Any,
    b: Any,
    y: Any,
) -> list[KernelCall]:
    """``y[batch] = a[batch] @ b[batch]``, y contiguous [outer batch, inner batch, m, n].

    Strides are in elements: (outer batch, inner batch, row, column), not negative; 0 broadcasts. ``dtypes`` are those of
    a, b and y; sums are kept in y's type and wrap where it is an integer. Raises `ValueError` for bfloat16 and bool, and for
    sizes that 32-bit indices do not reach.
    """
    for dtype in dtypes:
        if element_type(dtype).name == "bfloat16" or element_type(dtype).kind == "bool":
            raise ValueError(f"matmul: no generic kernel for {dtype}; expected an integer type, float32 or float64")
    if not element_count("matmul", *batch, m, n):
        return []
    for name, strides, sizes in (("a", a_strides, (*batch, m, k)), ("b", b_strides, (*batch, k, n))):
        if min(strides) < 0:
            raise ValueError(f"matmul: strides of {name} are {tuple(strides)}, expected none below 0")
        element_count(f"matmul operand {name}", sum((d - 1) * s for d, s in zip(sizes, strides, strict=True) if d) + 1)
    micro_m, micro_n = min(4, 1 << (m - 1).bit_length()), min(4, 1 << (n - 1).bit_length())
    tiles_m, tiles_n = ceil_div(m, micro_m), ceil_div(n, micro_n)
    total = batch[0] * batch[1] * tiles_m * tiles_n
    local = lanes(caps, total)
    stride_params = dict(zip((f"{o}_{axis}" for o in "ab" for axis in _STRIDES), (*a_strides, *b_strides), strict=True))
    return [
        MATMUL_GENERIC.call(
            grid=grid(ceil_div(total, local)),
            operands={"a": a, "b": b, "y": y},
            params={
                "m": m,
                "n": n,
                "k": k,
                "total": total,
                **magic_params("tiles_n", tiles_n),
                **magic_params("tiles_m", tiles_m),
                "batch1": batch[1],
                **stride_params,
            },
            spec={"MICRO_M": micro_m, "MICRO_N": micro_n},
            defines=_defines(*dtypes),
            local_size=(local,),
            flops=2 * batch[0] * batch[1] * m * n * k,
        )
    ]
