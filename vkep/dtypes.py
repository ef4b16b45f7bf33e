"""Element types: ONNX's number, numpy's dtype, how GLSL stores one and computes with it."""

from __future__ import annotations

from dataclasses import dataclass, field

import ml_dtypes
import numpy as np
from onnx import TensorProto


@dataclass(frozen=True, slots=True)
class DType:
    """An element type: its names in ONNX, numpy and GLSL, and how it is stored and computed."""

    name: str  #: numpy's name, used in plans
    onnx: int  #: ``TensorProto.DataType``
    onnx_name: str  #: as in type constraints: ``tensor(<onnx_name>)``
    numpy: np.dtype
    glsl: str  #: storage type in a buffer
    glsl_compute: str  #: type that kernels compute in
    kind: str  #: "float", "int", "uint", "bool", or "bits" for what kernels only move and cast
    sub_byte_bits: int = 0  #: 2 or 4 where an element is narrower than a byte, else 0
    itemsize: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "itemsize", self.numpy.itemsize)

    @property
    def bits(self) -> int:
        """Bits of one element's value in a model file."""
        return self.sub_byte_bits or self.itemsize * 8

    @property
    def largest(self) -> float:
        """The largest finite number of a floating-point type; the lowest is its negative."""
        return float(ml_dtypes.finfo(self.numpy).max)

    @property
    def glsl_vector(self) -> str:
        """Four elements in a buffer."""
        return _VECTORS[self.glsl]

    def __str__(self) -> str:
        return self.name


#: GLSL's vectors of four by the type of an element
_VECTORS = {
    "float": "vec4",
    "float16_t": "f16vec4",
    "double": "dvec4",
    "int": "ivec4",
    "uint": "uvec4",
    "int8_t": "i8vec4",
    "uint8_t": "u8vec4",
    "int16_t": "i16vec4",
    "uint16_t": "u16vec4",
    "int64_t": "i64vec4",
    "uint64_t": "u64vec4",
}
_T = TensorProto
DTYPES: dict[str, DType] = {
    d.name: d
    for d in (
        DType("float32", _T.FLOAT, "float", np.dtype(np.float32), "float", "float", "float"),
        DType("float16", _T.FLOAT16, "float16", np.dtype(np.float16), "float16_t", "float", "float"),
        DType("bfloat16", _T.BFLOAT16, "bfloat16", np.dtype(ml_dtypes.bfloat16), "uint16_t", "float", "float"),
        DType("float64", _T.DOUBLE, "double", np.dtype(np.float64), "double", "double", "float"),
        DType("int8", _T.INT8, "int8", np.dtype(np.int8), "int8_t", "int", "int"),
        DType("int16", _T.INT16, "int16", np.dtype(np.int16), "int16_t", "int", "int"),
        DType("int32", _T.INT32, "int32", np.dtype(np.int32), "int", "int", "int"),
        DType("int64", _T.INT64, "int64", np.dtype(np.int64), "int64_t", "int64_t", "int"),
        DType("uint8", _T.UINT8, "uint8", np.dtype(np.uint8), "uint8_t", "uint", "uint"),
        DType("uint16", _T.UINT16, "uint16", np.dtype(np.uint16), "uint16_t", "uint", "uint"),
        DType("uint32", _T.UINT32, "uint32", np.dtype(np.uint32), "uint", "uint", "uint"),
        DType("uint64", _T.UINT64, "uint64", np.dtype(np.uint64), "uint64_t", "uint64_t", "uint"),
        DType("bool", _T.BOOL, "bool", np.dtype(np.bool_), "uint8_t", "bool", "bool"),
        # numpy stores one of these in each byte, with the high bits zero; weights are packed while planning for kernels
        # that read packed ones
        DType("int4", _T.INT4, "int4", np.dtype(ml_dtypes.int4), "int8_t", "int", "int", 4),
        DType("uint4", _T.UINT4, "uint4", np.dtype(ml_dtypes.uint4), "uint8_t", "uint", "uint", 4),
    )
}
if hasattr(_T, "INT2") and hasattr(ml_dtypes, "int2"):  # newer than the oldest onnx and ml_dtypes that vkep takes
    DTYPES["int2"] = DType("int2", _T.INT2, "int2", np.dtype(ml_dtypes.int2), "int8_t", "int", "int", 2)
    DTYPES["uint2"] = DType("uint2", _T.UINT2, "uint2", np.dtype(ml_dtypes.uint2), "uint8_t", "uint", "uint", 2)
# 8-bit and 4-bit floats: kernels move them as bits, casts convert (`vkep.ir.float8`)
for _name, _onnx in (
    ("float8_e4m3fn", "FLOAT8E4M3FN"),
    ("float8_e4m3fnuz", "FLOAT8E4M3FNUZ"),
    ("float8_e5m2", "FLOAT8E5M2"),
    ("float8_e5m2fnuz", "FLOAT8E5M2FNUZ"),
    ("float8_e8m0fnu", "FLOAT8E8M0"),
    ("float4_e2m1fn", "FLOAT4E2M1"),
):
    if hasattr(_T, _onnx) and hasattr(ml_dtypes, _name):
        _bits = 4 if _name.startswith("float4") else 0
        DTYPES[_name] = DType(
            _name,
            getattr(_T, _onnx),
            _onnx.lower(),
            np.dtype(getattr(ml_dtypes, _name)),
            "uint8_t",
            "uint",
            "bits",
            _bits,
        )
BOOL, FLOAT16, FLOAT32 = (DTYPES[_n] for _n in ("bool", "float16", "float32"))
INT8, INT16, INT32, INT64, UINT8, UINT32 = (DTYPES[_n] for _n in ("int8", "int16", "int32", "int64", "uint8", "uint32"))
_BY_ONNX = {d.onnx: d for d in DTYPES.values()}
_BY_NUMPY = {d.numpy: d for d in DTYPES.values()}


def from_onnx(number: int) -> DType | None:
    """The element type with this ``TensorProto.DataType``, or None where kernels have none (strings, complex numbers,
    ...)."""
    return _BY_ONNX.get(number)


def from_numpy(dtype: np.dtype) -> DType:
    """The element type of an array; `TypeError` for one that a GPU buffer cannot hold."""
    try:
        return _BY_NUMPY[np.dtype(dtype)]
    except KeyError:
        raise TypeError(f"no GPU element type for numpy dtype {dtype}; expected one of {sorted(DTYPES)}") from None


def onnx_name(number: int) -> str:
    """A readable name for any ``TensorProto.DataType``."""
    known = _BY_ONNX.get(number)
    if known is not None:
        return known.onnx_name
    return TensorProto.DataType.Name(number).lower() if number in TensorProto.DataType.values() else f"type {number}"


def load_code(dtype: DType, element: str) -> str:
    """GLSL that converts a stored element to its compute type."""
    if dtype.name == "bfloat16":
        return f"uintBitsToFloat(uint({element}) << 16)"
    if dtype.kind == "bool":
        return f"({element} != uint8_t(0))"
    if dtype.sub_byte_bits and dtype.kind == "int":
        return sign_extended(f"int({element})", dtype.sub_byte_bits)
    return element if dtype.glsl == dtype.glsl_compute else f"{dtype.glsl_compute}({element})"


def sign_extended(code: str, bits: int) -> str:
    """GLSL for the two's complement number in the low ``bits`` of an int."""
    return f"(({code}) << {32 - bits} >> {32 - bits})"
