"""Softmax and log-softmax over the middle of a tensor viewed as [outer, axis, inner] (``shaders/softmax.comp``)."""

from __future__ import annotations

from typing import Any

from gpu_shared.capabilities import DeviceCapabilities
from vkep.kernels.fastdiv import magic_fields, magic_params
from vkep.kernels.kernel import Kernel, KernelCall, Operand
from vkep.kernels.launch import (
    ceil_div,
    element_count,
    element_defines,
    element_type,
    grid,
    is_cpu,
    required_subgroup_size,
    row_variants,
    row_vectors,
    share_columns,
)

#: elements that a lane keeps in registers at most
MAX_PER_LANE = 16

SOFTMAX = Kernel(
    "softmax.comp",
    operands=(Operand("x"), Operand("y", writes=True)),
    params=(("columns", "uint"), ("axis", "uint"), *magic_fields("inner"), ("alpha", "float")),
    spec={"SPLIT": 1, "ACROSS": 0, "IN_REGISTERS": 0, "PER_LANE": 1, "LOG": 0, "KEEP_POWERS": 0, "SUBGROUP_LANES": 32},
    variants=row_variants(),
)


def softmax(
    outer: int,
    axis: int,
    inner: int,
    dtype: str,
    caps: DeviceCapabilities,
    x: Any,
    y: Any,
    *,
    log: bool = False,
    alpha: float = 1.0,
    alignment: int | None = None,
) -> list[KernelCall]:
    """``y`` = softmax (or its logarithm) of ``alpha * x`` over the middle of [outer, axis, inner].

    Floats only, computed in float32; the maximum is subtracted first. ``alignment`` (bytes, by default the element's
    size) divides both addresses: with 16, contiguous rows move four elements at a time. Raises `ValueError` for other
    element types.
    """
    if element_type(dtype).glsl_compute != "float":
        raise ValueError(f"softmax: element type is {dtype!r}, expected float32, float16 or bfloat16")
    if not element_count("softmax input", outer, axis, inner):
        return []
    vectors = row_vectors(axis, dtype, alignment) if inner == 1 else {}
    steps = axis // 4 if vectors else axis
    share = share_columns(outer * inner, steps, inner, caps)
    registers = register_spec(steps, share.split, caps)
    keep_powers = not log and dtype == "float32" and not registers["IN_REGISTERS"]
    return [
        SOFTMAX.call(
            grid=grid(share.groups),
            operands={"x": x, "y": y},
            params={"columns": outer * inner, "axis": steps, **magic_params("inner", inner), "alpha": alpha},
            spec={**share.lane_spec, **registers, "LOG": int(log), "KEEP_POWERS": int(keep_powers)},
            defines=element_defines(dtype) | vectors | share.defines,
            local_size=(share.local,),
            subgroup_size=required_subgroup_size(share, caps),
            flops=4 * outer * axis * inner,
        )
    ]


def register_spec(axis: int, split: int, caps: DeviceCapabilities) -> dict[str, int]:
    """Whether a lane keeps its elements in registers, and how many (rounded so that few pipelines arise).

    A CPU driver has its cache for that, and spills long register arrays.
    """
    per_lane = ceil_div(axis, split)
    if is_cpu(caps) or per_lane > MAX_PER_LANE:
        return {"IN_REGISTERS": 0, "PER_LANE": 1}
    return {"IN_REGISTERS": 1, "PER_LANE": next(n for n in (1, 2, 4, 6, 8, 12, 16) if n >= per_lane)}
