"""The tables of a .pte and of a .ptd file, as ExecuTorch's schemas declare them (program.fbs, flat_tensor.fbs, 1.x).

Fields are in the order of their ids; see `vkep.pte.flatbuffer`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated

import ml_dtypes
import numpy as np

from vkep.pte.flatbuffer import (
    INT8,
    UNION,
    Bool,
    Bytes,
    EnumField,
    Float64,
    Int8,
    Int32,
    Int64,
    Table,
    UInt8,
    UInt32,
    UInt64,
)

PROGRAM_IDENTIFIER = b"ET12"
DATA_IDENTIFIER = b"FT01"
#: the only version of either schema
VERSION = 0


class ScalarType(IntEnum):
    """torch's numbers of element types."""

    BYTE, CHAR, SHORT, INT, LONG, HALF, FLOAT, DOUBLE = range(8)
    COMPLEX_HALF, COMPLEX_FLOAT, COMPLEX_DOUBLE, BOOL = range(8, 12)
    QINT8, QUINT8, QINT32, BFLOAT16, QUINT4X2, QUINT2X4 = range(12, 18)
    BITS16 = 22
    FLOAT8E5M2, FLOAT8E4M3FN, FLOAT8E5M2FNUZ, FLOAT8E4M3FNUZ, UINT16, UINT32, UINT64 = range(23, 30)


#: numpy's dtype of each element type that vkep's tensors support
NUMPY: dict[ScalarType, np.dtype] = {
    ScalarType.BYTE: np.dtype(np.uint8),
    ScalarType.CHAR: np.dtype(np.int8),
    ScalarType.SHORT: np.dtype(np.int16),
    ScalarType.INT: np.dtype(np.int32),
    ScalarType.LONG: np.dtype(np.int64),
    ScalarType.HALF: np.dtype(np.float16),
    ScalarType.FLOAT: np.dtype(np.float32),
    ScalarType.DOUBLE: np.dtype(np.float64),
    ScalarType.COMPLEX_FLOAT: np.dtype(np.complex64),
    ScalarType.COMPLEX_DOUBLE: np.dtype(np.complex128),
    ScalarType.BOOL: np.dtype(np.bool_),
    ScalarType.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
    ScalarType.FLOAT8E5M2: np.dtype(ml_dtypes.float8_e5m2),
    ScalarType.FLOAT8E4M3FN: np.dtype(ml_dtypes.float8_e4m3fn),
    ScalarType.FLOAT8E5M2FNUZ: np.dtype(ml_dtypes.float8_e5m2fnuz),
    ScalarType.FLOAT8E4M3FNUZ: np.dtype(ml_dtypes.float8_e4m3fnuz),
    ScalarType.UINT16: np.dtype(np.uint16),
    ScalarType.UINT32: np.dtype(np.uint32),
    ScalarType.UINT64: np.dtype(np.uint64),
}
SCALAR_TYPES = {dtype: number for number, dtype in NUMPY.items()}


class TensorShapeDynamism(IntEnum):
    STATIC, DYNAMIC_BOUND, DYNAMIC_UNBOUND = range(3)


class TensorDataLocation(IntEnum):
    SEGMENT, EXTERNAL = range(2)


class DataLocation(IntEnum):
    INLINE, SEGMENT = range(2)


class DeviceType(IntEnum):
    CPU, CUDA = range(2)


class ContainerMetadata(Table):
    encoded_inp_str: str
    encoded_out_str: str


class AllocationDetails(Table):
    memory_id: UInt32
    memory_offset_low: UInt32
    memory_offset_high: UInt32

    @property
    def offset(self) -> int:
        return self.memory_offset_high << 32 | self.memory_offset_low


class ExtraTensorInfo(Table):
    mutable_data_segments_idx: UInt64
    fully_qualified_name: str
    location: Annotated[TensorDataLocation, EnumField(INT8, TensorDataLocation)]
    device_type: Annotated[DeviceType, EnumField(INT8, DeviceType)]
    device_index: Int8


class Null(Table):
    pass


class Int(Table):
    value: Int64


class BoolValue(Table):
    value: Bool


class Double(Table):
    value: Float64


class Tensor(Table):
    scalar_type: Annotated[ScalarType, EnumField(INT8, ScalarType)]
    storage_offset: Int32
    sizes: tuple[Int32, ...]
    dim_order: tuple[UInt8, ...]
    requires_grad: Bool
    data_buffer_idx: UInt32
    allocation_info: AllocationDetails | None
    layout: Int8
    shape_dynamism: Annotated[TensorShapeDynamism, EnumField(INT8, TensorShapeDynamism)]
    extra_tensor_info: ExtraTensorInfo | None


class String(Table):
    value: str


class IntList(Table):
    value: tuple[Int64, ...]  #: indices of values that hold the integers


class DoubleList(Table):
    value: tuple[Float64, ...]


class BoolList(Table):
    value: tuple[Bool, ...]


class TensorList(Table):
    value: tuple[Int32, ...]


class OptionalTensorList(Table):
    value: tuple[Int32, ...]  #: -1: None


KernelTypes = (
    Null
    | Int
    | BoolValue
    | Double
    | Tensor
    | String
    | IntList
    | DoubleList
    | BoolList
    | TensorList
    | OptionalTensorList
)


class EValue(Table):
    val: Annotated[KernelTypes | None, UNION]


class Operator(Table):
    name: str
    overload: str

    @property
    def full_name(self) -> str:
        """``namespace::name.overload``."""
        return f"{self.name}.{self.overload}" if self.overload else self.name


class KernelCall(Table):
    op_index: Int32
    args: tuple[Int32, ...]


class DelegateCall(Table):
    delegate_index: Int32
    args: tuple[Int32, ...]


class MoveCall(Table):
    move_from: Int32
    move_to: Int32


class JumpFalseCall(Table):
    cond_value_index: Int32
    destination_instruction: Int32


class FreeCall(Table):
    value_index: Int32


InstructionArguments = KernelCall | DelegateCall | MoveCall | JumpFalseCall | FreeCall


class Instruction(Table):
    instr_args: Annotated[InstructionArguments | None, UNION]


class BackendDelegateDataReference(Table):
    location: Annotated[DataLocation, EnumField(INT8, DataLocation)]
    index: UInt32


class CompileSpec(Table):
    key: str
    value: Bytes


class BackendDelegate(Table):
    id: str
    processed: BackendDelegateDataReference
    compile_specs: tuple[CompileSpec, ...]


class Chain(Table):
    inputs: tuple[Int32, ...]
    outputs: tuple[Int32, ...]
    instructions: tuple[Instruction, ...]


class NonConstBufferDevice(Table):
    buffer_idx: Int32
    device_type: Annotated[DeviceType, EnumField(INT8, DeviceType)]
    device_index: Int8


class ExecutionPlan(Table):
    name: str
    container_meta_type: ContainerMetadata | None
    values: tuple[EValue, ...]
    inputs: tuple[Int32, ...]
    outputs: tuple[Int32, ...]
    chains: tuple[Chain, ...]
    operators: tuple[Operator, ...]
    delegates: tuple[BackendDelegate, ...]
    non_const_buffer_sizes: tuple[Int64, ...]
    non_const_buffer_device: tuple[NonConstBufferDevice, ...]


class Buffer(Table):
    storage: Bytes


class BackendDelegateInlineData(Table):
    data: Bytes


class DataSegment(Table):
    offset: UInt64
    size: UInt64


class SubsegmentOffsets(Table):
    segment_index: UInt32
    offsets: tuple[UInt64, ...]


class NamedData(Table):
    key: str
    segment_index: UInt32


class Program(Table):
    version: UInt32
    execution_plan: tuple[ExecutionPlan, ...]
    constant_buffer: tuple[Buffer, ...]
    backend_delegate_data: tuple[BackendDelegateInlineData, ...]
    segments: tuple[DataSegment, ...]
    constant_segment: SubsegmentOffsets | None
    mutable_data_segments: tuple[SubsegmentOffsets, ...]
    named_data: tuple[NamedData, ...]


class TensorLayout(Table):
    scalar_type: Annotated[ScalarType, EnumField(INT8, ScalarType)]
    sizes: tuple[Int32, ...]
    dim_order: tuple[UInt8, ...]


class NamedTensor(Table):
    key: str
    segment_index: UInt32
    tensor_layout: TensorLayout | None


class FlatTensor(Table):
    version: UInt32
    segments: tuple[DataSegment, ...]
    named_data: tuple[NamedTensor, ...]
