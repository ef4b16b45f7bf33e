"""Numbers of SPIR-V's instructions (specification 3.52), and the functions that replace instructions on 64-bit
elements."""

from __future__ import annotations

from typing import NamedTuple

from vkep.shaders.spirv import Op

FUNCTION_CALL, LOAD, STORE = 57, 61, 62
CONSTRUCT, EXTRACT, COPY_OBJECT = 80, 81, 83
F_TO_U, F_TO_S, S_TO_F, U_TO_F, U_CONVERT, S_CONVERT, F_CONVERT = 109, 110, 111, 112, 113, 114, 115
BITCAST, LOGICAL_NOT, SELECT = 124, 168, 169
SHIFT_RIGHT_UNSIGNED, SHIFT_RIGHT_SIGNED, SHIFT_LEFT, BITWISE_OR, BITWISE_AND = 194, 195, 196, 197, 199

#: the capabilities that go with a width: Int8 and 8-bit storage; Int16, Float16 and 16-bit storage; Int64 and Float64
CAPABILITIES = {8: (39, 4448, 4449, 4450), 16: (22, 9, 4433, 4434, 4435, 4436), 64: (11, 10)}
#: the operands of a type's declaration that are types
TYPES_IN = {
    Op.TYPE_VECTOR: slice(1, 2),
    Op.TYPE_ARRAY: slice(1, 2),
    Op.TYPE_RUNTIME_ARRAY: slice(1, 2),
    Op.TYPE_STRUCT: slice(1, None),
    Op.TYPE_POINTER: slice(2, 3),
    Op.TYPE_FUNCTION: slice(1, None),
}
ACCESS_CHAINS = frozenset({65, 66})
POINTER_CASTS = frozenset({117, 120, BITCAST})  #: OpConvertPtrToU, OpConvertUToPtr, OpBitcast
CONVERSIONS = frozenset(range(F_TO_U, F_CONVERT + 1))
#: instructions that move values of any type
PASSED_ON = frozenset(
    {
        1,  # OpUndef
        Op.FUNCTION + 1,  # OpFunctionParameter
        FUNCTION_CALL,
        Op.VARIABLE,
        LOAD,
        *ACCESS_CHAINS,
        79,  # OpVectorShuffle
        CONSTRUCT,
        EXTRACT,
        82,  # OpCompositeInsert
        COPY_OBJECT,
        SELECT,
        245,  # OpPhi
    }
)
WITHOUT_RESULT = frozenset(
    {
        0,  # OpNop
        Op.FUNCTION_END,
        STORE,
        63,  # OpCopyMemory
        224,  # OpControlBarrier
        225,  # OpMemoryBarrier
        228,  # OpAtomicStore
        246,  # OpLoopMerge
        247,  # OpSelectionMerge
        248,  # OpLabel
        *range(249, 256),  # branches and returns
        4458,  # OpCooperativeMatrixStoreKHR
    }
)
#: PackDouble2x32, UnpackDouble2x32
SAME_WORDS = frozenset({(Op.EXT_INST, 59), (Op.EXT_INST, 65)})
#: the same on two words as on one
BITWISE = frozenset({BITWISE_OR, 198, BITWISE_AND, 200})
SHIFTS = {SHIFT_LEFT: "i64_shl", SHIFT_RIGHT_UNSIGNED: "u64_shr", SHIFT_RIGHT_SIGNED: "s64_shr"}


class Function(NamedTuple):
    """A function of ``shaders/words.comp``, and the types of its arguments and result."""

    name: str  #: in ``shaders/words.comp``
    swapped: bool = False  #: the arguments
    negated: bool = False  #: the result


_INT = {
    126: Function("i64_neg"),
    128: Function("i64_add"),
    130: Function("i64_sub"),
    132: Function("i64_mul"),
    134: Function("u64_div"),
    135: Function("s64_div"),
    137: Function("u64_mod"),
    138: Function("s64_rem"),
    139: Function("s64_mod"),
    170: Function("i64_eq"),
    171: Function("i64_ne"),
    172: Function("u64_lt", swapped=True),
    173: Function("s64_lt", swapped=True),
    174: Function("u64_le", swapped=True),
    175: Function("s64_le", swapped=True),
    176: Function("u64_lt"),
    177: Function("s64_lt"),
    178: Function("u64_le"),
    179: Function("s64_le"),
}
_INT_EXTENDED = {5: "s64_abs", 7: "s64_sign", 38: "u64_min", 39: "s64_min", 41: "u64_max", 42: "s64_max"}
_FLOAT = {
    127: Function("f64_neg"),
    129: Function("f64_add"),
    131: Function("f64_sub"),
    133: Function("f64_mul"),
    136: Function("f64_div"),
    156: Function("f64_isnan"),
    157: Function("f64_isinf"),
    180: Function("f64_eq"),
    183: Function("f64_eq", negated=True),
    184: Function("f64_lt"),
    185: Function("f64_le", swapped=True, negated=True),
    186: Function("f64_lt", swapped=True),
    187: Function("f64_le", negated=True),
    188: Function("f64_le"),
    189: Function("f64_lt", swapped=True, negated=True),
    190: Function("f64_le", swapped=True),
    191: Function("f64_lt", negated=True),
}
_FLOAT_EXTENDED = {
    **dict.fromkeys((1, 2), "f64_round_even"),
    3: "f64_trunc",
    4: "f64_abs",
    6: "f64_sign",
    8: "f64_floor",
    9: "f64_ceil",
    31: "f64_sqrt",
    **dict.fromkeys((37, 79), "f64_min"),
    **dict.fromkeys((40, 80), "f64_max"),
    **dict.fromkeys((43, 81), "f64_clamp"),
}
#: key: whether the elements are floats, and the opcode (with OpExtInst, the number of the GLSL.std.450 instruction too)
FUNCTIONS: dict[tuple[int, ...], Function] = {
    **{(False, opcode): function for opcode, function in _INT.items()},
    **{(True, opcode): function for opcode, function in _FLOAT.items()},
    **{(False, Op.EXT_INST, number): Function(name) for number, name in _INT_EXTENDED.items()},
    **{(True, Op.EXT_INST, number): Function(name) for number, name in _FLOAT_EXTENDED.items()},
}
