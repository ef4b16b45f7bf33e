"""Changing the element type: Cast, CastLike, BitCast."""

from __future__ import annotations

from vkep import dtypes
from vkep.ir import algebra as fn
from vkep.ir import expr as ex
from vkep.ir.builder import Builder
from vkep.ir.float8 import encode
from vkep.ir.tensor import Tensor
from vkep.ops.allowed import every
from vkep.ops.registry import operator


def _target(b: Builder, to: int) -> dtypes.DType:
    dtype = dtypes.from_onnx(to)
    if dtype is None:
        b.decline(f"no kernel casts to {dtypes.onnx_name(to)}")
    return dtype


@operator("Cast", since=6, types={"T1": every("Cast", "T1")})
def cast(b: Builder, x: Tensor, *, to: int, saturate: int = 1, round_mode: str = "up") -> Tensor:
    return _cast(b, x, _target(b, to), bool(saturate), round_mode)


@operator("CastLike", types={"T1": every("CastLike", "T1"), "T2": every("CastLike", "T2")})
def cast_like(b: Builder, x: Tensor, target_type: Tensor, *, saturate: int = 1, round_mode: str = "up") -> Tensor:
    return _cast(b, x, target_type.dtype, bool(saturate), round_mode)


def _cast(b: Builder, x: Tensor, to: dtypes.DType, saturate: bool, round_mode: str) -> Tensor:
    if to.kind != "bits" or x.dtype is to:  # the attributes concern 8-bit floats only
        return b.cast(x, to)
    if round_mode not in ("up", "down", "nearest"):
        b.decline(f"round_mode is {round_mode!r}, expected 'up', 'down' or 'nearest'")
    value = b.cast_expr(ex.leaf(x), x.dtype, dtypes.FLOAT32)
    return b.store(encode(value, to, saturate, round_mode), to, shape=x.shape)


@operator("BitCast", types={"T1": every("BitCast", "T1")})
def bit_cast(b: Builder, x: Tensor, *, to: int) -> Tensor:
    dtype = _target(b, to)
    if dtype.bits != x.dtype.bits:
        b.decline(f"{x.dtype} and {dtype} differ in width")
    array = x.array
    if array is not None:
        return b.constant(array.view(dtype.numpy))
    return b.store(_from_bits(_to_bits(ex.leaf(x), x.dtype), dtype), dtype, shape=x.shape)


def _to_bits(value: ex.Expr, dtype: dtypes.DType) -> ex.Expr:
    """An element's bits as an unsigned integer of its width or more."""
    of_floats = {
        "float32": fn.float_bits,
        "float16": fn.half_bits,
        "bfloat16": fn.bfloat16_bits,
        "float64": fn.double_bits,
    }.get(dtype.name)
    return of_floats(value) if of_floats else fn.cast(value, "uint64_t" if dtype.itemsize == 8 else "uint")


def _from_bits(bits: ex.Expr, dtype: dtypes.DType) -> ex.Expr:
    to_floats = {
        "float32": fn.from_float_bits,
        "float16": fn.from_half_bits,
        "bfloat16": fn.from_bfloat16_bits,
        "float64": fn.from_double_bits,
    }.get(dtype.name)
    return to_floats(bits) if to_floats else fn.stored_as(fn.cast(bits, dtype.glsl_compute), dtype)
