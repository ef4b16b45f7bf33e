"""Stores types that TOSA 1.0 lacks in types that it has: int64 in int32, unsigned integers as the bits of signed ones.

bfloat16, an extension, is only cast: operators compute in float32, and each result is rounded.

At a graph's border an int64 tensor is bound as the int32 tensor [..., 2] of its words (low word first), the same bytes; an
unsigned one as the signed type of its width. See `TosaTensor.stored`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from vkep.tosa.graph import Array, TosaBuilder, TosaTensor, Value

#: maps an unsigned type to the signed type that stores its bits
SIGNED = {"uint8": "int8", "uint16": "int16", "uint32": "int32"}


def border_type(dtype: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    """Element type and shape of the TOSA argument or result for a model's tensor."""
    if dtype == "int64":
        return "int32", (*shape, 2)
    return SIGNED.get(dtype, dtype), shape or (1,)


def from_argument(b: TosaBuilder, raw: Value, dtype: str, shape: tuple[int, ...]) -> TosaTensor:
    """Convert an argument of the type and shape of `border_type` to the model's tensor."""
    if dtype == "bfloat16":
        wide = b.op("cast", [raw], raw.shape, "float32")
        return TosaTensor(wide, tuple(range(len(wide.shape))), scalar=not shape, stored="float32")
    if dtype != "int64":
        made = TosaTensor(raw, tuple(range(len(raw.shape))), scalar=not shape)
        return replace(made, stored="signed_bits") if dtype in SIGNED else made
    starts, sizes = [0] * len(raw.shape), [*raw.shape[:-1], 1]
    low = b.op("slice", [raw, b.shape_value(starts), b.shape_value(sizes)], sizes)
    words = b.reshape(TosaTensor(low, tuple(range(len(low.shape)))), shape)
    return replace(words, stored="low_words")


def to_result(b: TosaBuilder, tensor: TosaTensor) -> Value:
    """Convert a tensor to a result of the type and shape of `border_type`, in ONNX's order of axes."""
    value = b.ordered(tensor)
    if tensor.stored == "float32":
        return b.op("cast", [value], value.shape, "bfloat16")
    if tensor.stored != "int32":
        return value
    shape = (*tensor.shape, 1)
    low = b.reshape(replace(tensor, stored=""), shape)
    count = b.constant(np.full((1,) * len(shape), 31, np.int32))
    high = b.elementwise("arithmetic_right_shift", low, count, attributes={"round": "false"})  # all bits the sign
    words = [b.ordered(low), b.ordered(high)]
    return b.op("concat", words, (*tensor.shape, 2), axis=f"{len(shape) - 1} : i32")


def widened(b: TosaBuilder, tensor: TosaTensor | None) -> TosaTensor | None:
    """Convert bfloat16 to float32; other tensors are unchanged."""
    if tensor is None or tensor.dtype != "bfloat16":
        return tensor
    return replace(tensor, stored="") if tensor.stored else b.constant(tensor.array, "float32")


def shortened(b: TosaBuilder, tensor: TosaTensor, exact: bool = False) -> TosaTensor:
    """Convert float32 to bfloat16: rounded, unless it is known to be ``exact``."""
    if not exact:
        value = b.op("cast", [tensor.value], tensor.value.shape, "bfloat16")
        tensor = TosaTensor(b.op("cast", [value], value.shape, "float32"), tensor.perm, tensor.scalar)
    return replace(tensor, stored="float32", quantized=None, table=None)


def as_int64(tensor: TosaTensor) -> TosaTensor:
    """An int32 tensor as the int64 tensor of the same numbers."""
    return replace(tensor, stored="int32", quantized=None, table=None)


def bits_of(b: TosaBuilder, tensor: TosaTensor) -> TosaTensor:
    """An integer tensor in a signed type, bit for bit; of int64 only what fits in 32 bits. Raises `Decline`."""
    if tensor.stored == "low_words":
        b.decline("int64 from outside the graph, of which TOSA's int32 holds only indices")
    if tensor.stored:
        return replace(tensor, stored="")
    array = tensor.array
    if array is None or array.dtype.kind not in "iu":
        return tensor
    if array.dtype.name in SIGNED:
        return b.constant(np.asarray(array, order="C").view(SIGNED[array.dtype.name]))
    return narrowed(b, array) if array.dtype.itemsize == 8 else tensor


def narrowed(b: TosaBuilder, array: Array) -> TosaTensor:
    """A constant of 64 bits as int32. Raises `Decline` where it does not fit."""
    if array.size and (array.min() < -(2**31) or array.max() >= 2**31):
        b.decline("a 64-bit constant beyond 32 bits, the widest integer of TOSA 1.0")
    return b.constant(array.astype(np.int32))


def index_of(b: TosaBuilder, tensor: TosaTensor, size: int) -> TosaTensor:
    """Indices along an axis of ``size`` elements as int32 from 0 on: negative ones count from the end.

    The graph clamps indices to the axis, since it cannot report one outside of it.
    """
    array = tensor.array
    if array is not None:
        wanted = np.where(array < 0, array + size, array)
        if wanted.size == 0 or wanted.min() < 0 or wanted.max() >= size:
            b.decline("indices outside the axis, or none")
        return b.constant(wanted.astype(np.int32))
    if tensor.stored not in ("int32", "low_words") and tensor.dtype != "int32":
        b.decline(f"indices of type {tensor.dtype}")
    plain = replace(tensor, stored="")
    negative = b.elementwise("greater", b.fill(plain, 0), plain, dtype="bool")
    from_end = b.add(plain, b.fill(plain, size))
    return b.clamp(b.select(negative, from_end, plain), 0, size - 1)


def flip(b: TosaBuilder, tensor: TosaTensor) -> TosaTensor:
    """uint8 as the int8 that is 128 less (one bit flipped), and back."""
    array = tensor.array
    if array is not None:
        made = array.view(np.int8) if array.dtype == np.uint8 else array
        flipped = (np.ascontiguousarray(made) ^ np.int8(-128)).astype(np.int8)
        return b.constant(flipped if tensor.dtype == "uint8" else flipped.view(np.uint8))
    value = tensor.value
    if value not in b.flipped:
        mask = Value("int8", (1,) * len(value.shape), np.full((1,) * len(value.shape), -128, np.int8))
        made_value = b.op("bitwise_xor", [value, mask], value.shape)
        b.flipped[value], b.flipped[made_value] = made_value, value
    stored = "" if tensor.stored == "signed_bits" else "signed_bits"
    return TosaTensor(b.flipped[value], tensor.perm, tensor.scalar, stored=stored)
