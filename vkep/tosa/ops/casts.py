"""Casts with the same meaning in ONNX and in TOSA."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from vkep import dtypes
from vkep.tosa.graph import TosaBuilder, TosaTensor
from vkep.tosa.registry import ANY, FLOATS, tosa_operator
from vkep.tosa.type_legalization import SIGNED, as_int64, bits_of, shortened, widened

_WIDE = (*ANY, "int64", *SIGNED, "bfloat16")


@tosa_operator("Cast", types=_WIDE, since=6)
def cast(b: TosaBuilder, x: TosaTensor, *, to: int, saturate: int = 1, round_mode: str = "up") -> TosaTensor:
    target = dtypes.from_onnx(to)
    if target is None:
        b.decline(f"no cast to {dtypes.onnx_name(to)}")
    return cast_to(b, x, target.name)


@tosa_operator("CastLike", types=_WIDE)
def cast_like(
    b: TosaBuilder, x: TosaTensor, like: TosaTensor, *, saturate: int = 1, round_mode: str = "up"
) -> TosaTensor:
    return cast_to(b, x, like.dtype)


def cast_to(b: TosaBuilder, x: TosaTensor, dtype: str) -> TosaTensor:
    """Cast to another type. Raises `Decline` for casts that TOSA 1.0 cannot express."""
    if x.dtype == dtype:
        return x
    if x.dtype == "bfloat16":
        return cast_to(b, widened(b, x) or x, dtype)
    if dtype == "bfloat16":
        return shortened(b, cast_to(b, x, "float32"), x.dtype == "bool")
    if x.stored:
        return _from_held(b, x, dtype)
    if dtype == "int64":
        if x.dtype in FLOATS:
            b.decline("floats as int64: TOSA 1.0 has integers of 32 bits")
        return as_int64(cast_to(b, x, "int32"))
    if dtype in SIGNED:
        if x.dtype in FLOATS and dtype == "uint32":
            b.decline("floats as uint32: TOSA 1.0 has integers of 31 bits and a sign")
        wide = cast_to(b, x, "int32")
        kept = wide if dtype == "uint32" else b.elementwise("cast", wide, dtype=SIGNED[dtype])
        return replace(kept, stored="signed_bits")
    if x.dtype in FLOATS and dtype == "bool":
        equal = b.elementwise("equal", x, b.fill(x, 0), dtype="bool")
        return b.unary("logical_not", equal)
    if x.dtype in FLOATS and dtype not in FLOATS:  # TOSA rounds, ONNX truncates
        wide = b.elementwise("cast", truncated(b, x), dtype="int32")
        return wide if dtype == "int32" else b.elementwise("cast", wide, dtype=dtype)
    if x.dtype == "bool" and dtype in FLOATS:  # SPIR-V's TOSA set casts booleans to integers only
        return b.select(x, b.constant(1, dtype), b.constant(0, dtype))
    return b.elementwise("cast", x, dtype=dtype)


def truncated(b: TosaBuilder, x: TosaTensor) -> TosaTensor:
    """Floats without their fractions."""
    positive = b.elementwise("greater_equal", x, b.fill(x, 0), dtype="bool")
    return b.select(positive, b.unary("floor", x), b.unary("ceil", x))


def _from_held(b: TosaBuilder, x: TosaTensor, dtype: str) -> TosaTensor:
    if x.stored == "low_words" and dtype == "int32":  # ONNX does not define the result for values out of range
        return replace(x, stored="")
    plain = bits_of(b, x)
    if x.stored == "signed_bits":
        if x.dtype == "uint32":
            if dtype != "int32":
                b.decline(f"uint32 as {dtype}: TOSA 1.0 has integers of 31 bits and a sign")
        else:
            wide = b.elementwise("cast", plain, dtype="int32")
            mask = np.iinfo(np.dtype(x.dtype)).max
            plain = b.elementwise("bitwise_and", wide, b.fill(wide, mask))
    return cast_to(b, plain, dtype)
