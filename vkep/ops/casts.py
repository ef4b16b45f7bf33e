"""Changing the element type: Cast, CastLike, BitCast."""

from __future__ import annotations

from vkep import dtypes
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
    value = b.cast_expr(ex.leaf(x), x.dtype, dtypes.DTYPES["float32"])
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
    code = {
        "float32": "floatBitsToUint({0})",
        "float16": "(packHalf2x16(vec2({0}, 0.0)) & 0xffffu)",
        "bfloat16": "uint(bfloat16_bits({0}))",
        "float64": "doubleBitsToUint64({0})",
        "bool": "({0} ? 1u : 0u)",
    }.get(dtype.name, "uint64_t({0})" if dtype.itemsize == 8 else "uint({0})")
    return ex.Expr("uint64_t" if dtype.itemsize == 8 else "uint", code, (value,))


def _from_bits(bits: ex.Expr, dtype: dtypes.DType) -> ex.Expr:
    code = {
        "float32": "uintBitsToFloat({0})",
        "float16": "unpackHalf2x16({0}).x",
        "bfloat16": "uintBitsToFloat({0} << 16)",
        "float64": "uint64BitsToDouble({0})",
        "bool": "({0} != 0u)",
    }.get(dtype.name, ex.rounded(dtype, f"{dtype.glsl_compute}({{0}})"))
    return ex.Expr(dtype.glsl_compute, code, (bits,))
