"""Normalisations: layer, RMS, instance and group norm, local response and Lp normalisation."""

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
    lanes,
    required_subgroup_size,
    row_variants,
    row_vectors,
    share_columns,
    with_shuffles,
)
from vkep.kernels.softmax import register_spec

NORM = Kernel(
    "norm.comp",
    operands=(
        Operand("x"),
        Operand("scale"),
        Operand("bias"),
        Operand("y", writes=True),
        Operand("mean", writes=True),
        Operand("inv_std", writes=True),
    ),
    params=(
        ("rows", "uint"),
        ("axis", "uint"),
        ("inv_axis", "float"),
        ("epsilon", "float"),
        *magic_fields("period", "spatial"),
        ("channels", "uint"),
    ),
    spec={
        "SPLIT": 1,
        "IN_REGISTERS": 0,
        "PER_LANE": 1,
        "CENTER": 1,
        "HAS_SCALE": 1,
        "HAS_BIAS": 1,
        "HAS_MEAN": 0,
        "HAS_INV_STD": 0,
        "BY_CHANNEL": 0,
        "SUBGROUP_LANES": 32,
    },
    variants=row_variants(),
)
LP_NORM = Kernel(
    "lp_norm.comp",
    operands=(Operand("x"), Operand("y", writes=True)),
    params=(("columns", "uint"), ("axis", "uint"), *magic_fields("inner")),
    spec={"SPLIT": 1, "ACROSS": 0, "P": 2, "SUBGROUP_LANES": 32},
    variants=with_shuffles(*map(element_defines, ("float32", "float16"))),
)
LRN = Kernel(
    "lrn.comp",
    operands=(Operand("x"), Operand("y", writes=True)),
    params=(
        ("total", "uint"),
        *magic_fields("inner", "channels"),
        ("before", "uint"),
        ("after", "uint"),
        ("alpha_over_size", "float"),
        ("beta", "float"),
        ("bias", "float"),
    ),
    variants=tuple(map(element_defines, ("float32", "float16"))),
)


def _floats_only(what: str, dtype: str) -> None:
    if element_type(dtype).glsl_compute != "float":
        raise ValueError(f"{what}: element type is {dtype!r}, expected float32, float16 or bfloat16")


def layer_norm(
    rows: int,
    axis: int,
    dtype: str,
    caps: DeviceCapabilities,
    x: Any,
    y: Any,
    *,
    scale: Any = None,
    bias: Any = None,
    epsilon: float = 1e-5,
    rms: bool = False,
    mean: Any = None,
    inv_std: Any = None,
    alignment: int | None = None,
) -> list[KernelCall]:
    """Layer norm of the rows of ``x`` [rows, axis] (Ba et al., arXiv:1607.06450), or RMS norm (arXiv:1910.07467).

    ``scale`` and ``bias`` [axis] are of ``dtype``; the optional outputs ``mean`` and ``inv_std`` [rows] are float32.
    Statistics are computed in float32. ``alignment`` (bytes, by default the element's size) divides the addresses of x,
    y, scale and bias: with 16, rows move four elements at a time. Raises `ValueError` for an element type that is no
    float.
    """
    return _norm("layer norm", rows, axis, dtype, caps, x, y, scale, bias, epsilon, not rms, mean, inv_std, alignment)


def group_norm(
    images: int,
    groups: int,
    channels_per_group: int,
    spatial: int,
    dtype: str,
    caps: DeviceCapabilities,
    x: Any,
    y: Any,
    *,
    scale: Any = None,
    bias: Any = None,
    epsilon: float = 1e-5,
    alignment: int | None = None,
) -> list[KernelCall]:
    """Group norm of ``x`` [images, groups, channels_per_group, spatial] (arXiv:1803.08494); instance norm has one
    channel a group. ``scale`` and ``bias`` hold a value a channel, [groups * channels_per_group].
    """
    axis = channels_per_group * spatial
    by_channel = (groups, spatial, channels_per_group)
    return _norm(
        "group norm",
        images * groups,
        axis,
        dtype,
        caps,
        x,
        y,
        scale,
        bias,
        epsilon,
        True,
        None,
        None,
        alignment,
        by_channel,
    )


def _norm(
    what: str,
    rows: int,
    axis: int,
    dtype: str,
    caps: DeviceCapabilities,
    x: Any,
    y: Any,
    scale: Any,
    bias: Any,
    epsilon: float,
    center: bool,
    mean: Any,
    inv_std: Any,
    alignment: int | None,
    by_channel: tuple[int, int, int] | None = None,
) -> list[KernelCall]:
    _floats_only(what, dtype)
    if not element_count(f"{what} input", rows, axis):
        return []
    period, spatial, channels = by_channel or (1, 1, axis)
    vectors = row_vectors(spatial if by_channel else axis, dtype, alignment)
    width = 4 if vectors else 1
    steps = axis // width
    share = share_columns(rows, steps, 1, caps)
    return [
        NORM.call(
            grid=grid(share.groups),
            operands={"x": x, "scale": scale, "bias": bias, "y": y, "mean": mean, "inv_std": inv_std},
            params={
                "rows": rows,
                "axis": steps,
                "inv_axis": 1.0 / axis,
                "epsilon": epsilon,
                **magic_params("period", period),
                **magic_params("spatial", max(spatial // width, 1)),
                "channels": channels,
            },
            spec={
                "SPLIT": share.split,
                "SUBGROUP_LANES": share.shuffle or 1,
                **register_spec(steps, share.split, caps),
                "CENTER": int(center),
                "HAS_SCALE": int(scale is not None),
                "HAS_BIAS": int(bias is not None),
                "HAS_MEAN": int(mean is not None),
                "HAS_INV_STD": int(inv_std is not None),
                "BY_CHANNEL": int(by_channel is not None),
            },
            defines=element_defines(dtype) | vectors | share.defines,
            local_size=(share.local,),
            subgroup_size=required_subgroup_size(share, caps),
            flops=8 * rows * axis,
        )
    ]


def lp_norm(
    outer: int, axis: int, inner: int, dtype: str, caps: DeviceCapabilities, x: Any, y: Any, p: int = 2
) -> list[KernelCall]:
    """``y`` = x / (sum over the middle of [outer, axis, inner] of |x|^p)^(1/p), p 1 or 2; 0 where the norm is 0."""
    _floats_only("lp norm", dtype)
    if p not in (1, 2):
        raise ValueError(f"lp norm: p is {p}, expected 1 or 2 (ONNX LpNormalization)")
    if not element_count("lp norm input", outer, axis, inner):
        return []
    share = share_columns(outer * inner, axis, inner, caps)
    return [
        LP_NORM.call(
            grid=grid(share.groups),
            operands={"x": x, "y": y},
            params={"columns": outer * inner, "axis": axis, **magic_params("inner", inner)},
            spec={**share.lane_spec, "P": p},
            defines=element_defines(dtype) | share.defines,
            local_size=(share.local,),
            subgroup_size=required_subgroup_size(share, caps),
            flops=3 * outer * axis * inner,
        )
    ]


def local_response_norm(
    images: int,
    channels: int,
    inner: int,
    dtype: str,
    caps: DeviceCapabilities,
    x: Any,
    y: Any,
    *,
    size: int,
    alpha: float = 1e-4,
    beta: float = 0.75,
    bias: float = 1.0,
) -> list[KernelCall]:
    """ONNX LRN of ``x`` [images, channels, inner]: squares are summed over the channels
    [c - floor((size-1)/2), c + ceil((size-1)/2)]. Raises `ValueError` for ``size`` < 1 and for non-float types.
    """
    _floats_only("LRN", dtype)
    if size < 1:
        raise ValueError(f"LRN: size is {size}, expected at least 1")
    total = element_count("LRN input", images, channels, inner)
    if not total:
        return []
    local = lanes(caps, total)
    return [
        LRN.call(
            grid=grid(ceil_div(total, local)),
            operands={"x": x, "y": y},
            params={
                "total": total,
                **magic_params("inner", inner),
                **magic_params("channels", channels),
                "before": (size - 1) // 2,
                "after": size // 2,
                "alpha_over_size": alpha / size,
                "beta": beta,
                "bias": bias,
            },
            defines=element_defines(dtype),
            local_size=(local,),
            flops=(2 * size + 4) * total,
        )
    ]
