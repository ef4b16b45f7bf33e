"""Types that TOSA 1.0 has not, held in types that it has: int64 in int32, unsigned integers as the bits of signed ones.

bfloat16, an extension, is only cast: operators compute in float32, and each result is rounded.

At a graph's border an int64 tensor is bound as the int32 tensor [..., 2] of its words (low word first), the same bytes; an
unsigned one as the signed type of its width. See `TosaTensor.held`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from vkep.tosa.graph import Array, TosaBuilder, TosaTensor, Value

#: the signed type that holds an unsigned one's bits
SIGNED = {"uint8": "int8", "uint16": "int16", "uint32": "int32"}


def border(dtype: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    """Element type and shape of the TOSA tensor that carries a model's tensor across the graph's border."""
    if dtype == "int64":
        return "int32", (*shape, 2)
    return SIGNED.get(dtype, dtype), shape or (1,)


def taken_in(b: TosaBuilder, raw: Value, dtype: str, shape: tuple[int, ...]) -> TosaTensor:
    """The model's tensor behind an argument of the type and shape that `border` gives."""
    if dtype == "bfloat16":
        wide = b.op("cast", [raw], raw.shape, "float32")
        return TosaTensor(wide, tuple(range(len(wide.shape))), scalar=not shape, held="short")
    if dtype != "int64":
        made = TosaTensor(raw, tuple(range(len(raw.shape))), scalar=not shape)
        return replace(made, held="bits") if dtype in SIGNED else made
    starts, sizes = [0] * len(raw.shape), [*raw.shape[:-1], 1]
    low = b.op("slice", [raw, b.shape_value(starts), b.shape_value(sizes)], sizes)
    words = b.reshape(TosaTensor(low, tuple(range(len(low.shape)))), shape)
    return replace(words, held="low")


def handed_out(b: TosaBuilder, tensor: TosaTensor) -> Value:
    """The value that `border` describes, of a tensor in ONNX's order."""
    value = b.ordered(tensor)
    if tensor.held == "short":
        return b.op("cast", [value], value.shape, "bfloat16")
    if tensor.held != "fits":
        return value
    shape = (*tensor.shape, 1)
    low = b.reshape(replace(tensor, held=""), shape)
    count = b.constant(np.full((1,) * len(shape), 31, np.int32))
    high = b.elementwise("arithmetic_right_shift", low, count, attributes={"round": "false"})  # all bits the sign
    words = [b.ordered(low), b.ordered(high)]
    return b.op("concat", words, (*tensor.shape, 2), axis=f"{len(shape) - 1} : i32")


def widened(b: TosaBuilder, tensor: TosaTensor | None) -> TosaTensor | None:
    """bfloat16 as float32, the rest as it is."""
    if tensor is None or tensor.dtype != "bfloat16":
        return tensor
    return replace(tensor, held="") if tensor.held else b.constant(tensor.array, "float32")


def shortened(b: TosaBuilder, tensor: TosaTensor, exact: bool = False) -> TosaTensor:
    """float32 as bfloat16: rounded, unless it is known to be ``exact``."""
    if not exact:
        value = b.op("cast", [tensor.value], tensor.value.shape, "bfloat16")
        tensor = TosaTensor(b.op("cast", [value], value.shape, "float32"), tensor.perm, tensor.scalar)
    return replace(tensor, held="short", quantized=None, table=None)


def as_int64(tensor: TosaTensor) -> TosaTensor:
    """An int32 tensor as the int64 tensor of the same numbers."""
    return replace(tensor, held="fits", quantized=None, table=None)


def bits_of(b: TosaBuilder, tensor: TosaTensor) -> TosaTensor:
    """An integer tensor in a signed type, bit for bit; of int64 only what fits in 32 bits. Raises `Decline`."""
    if tensor.held == "low":
        b.decline("int64 from outside the graph, of which TOSA's int32 holds only indices")
    if tensor.held:
        return replace(tensor, held="")
    array = tensor.array
    if array is None or array.dtype.kind not in "iu":
        return tensor
    if array.dtype.name in SIGNED:
        return b.constant(np.ascontiguousarray(array).view(SIGNED[array.dtype.name]))
    return narrowed(b, array) if array.dtype.itemsize == 8 else tensor


def narrowed(b: TosaBuilder, array: Array) -> TosaTensor:
    """A constant of 64 bits as int32. Raises `Decline` where it does not fit."""
    if array.size and (array.min() < -(2**31) or array.max() >= 2**31):
        b.decline("a 64-bit constant beyond 32 bits, the widest integer of TOSA 1.0")
    return b.constant(array.astype(np.int32))


def index_of(b: TosaBuilder, tensor: TosaTensor, size: int) -> TosaTensor:
    """Indices along an axis of ``size`` elements as int32 from 0 on: negative ones count from the end.

    What the graph computes with is kept inside the axis, as no one can be told of an index outside it.
    """
    array = tensor.array
    if array is not None:
        wanted = np.where(array < 0, array + size, array)
        if wanted.size == 0 or wanted.min() < 0 or wanted.max() >= size:
            b.decline("indices outside the axis, or none")
        return b.constant(wanted.astype(np.int32))
    if tensor.held not in ("fits", "low") and tensor.dtype != "int32":
        b.decline(f"indices of type {tensor.dtype}")
    plain = replace(tensor, held="")
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
    held = "" if tensor.held == "bits" else "bits"
    return TosaTensor(b.flipped[value], tensor.perm, tensor.scalar, held=held)
