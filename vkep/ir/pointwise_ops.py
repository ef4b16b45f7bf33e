"""The pointwise operations: for each name its types, its GLSL, and its meaning as a numpy function.

An expression (`vkep.ir.expr.Expr`) has one of these names, or GLSL of a user's operator. Passes compare names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vkep.dtypes import DTYPES, DType, sign_extended
from vkep.ir import meaning

#: kinds of GLSL types in the signatures of operations
KINDS = {
    "real": ("float", "double"),
    "integer": ("int", "uint", "int64_t", "uint64_t"),
    "signed": ("float", "double", "int", "int64_t"),
    "number": ("float", "double", "int", "uint", "int64_t", "uint64_t"),
    "count": ("int", "uint"),
    "any": ("float", "double", "int", "uint", "int64_t", "uint64_t", "bool"),
}


@dataclass(frozen=True)
class Operation:
    """A pointwise operation.

    ``numpy`` takes arrays of the arguments' types (`vkep.ir.meaning`); its result is converted to the operation's type.
    ``signature``: a GLSL type, or one of the `KINDS`, for each argument and, after ``->``, for the result. Kinds with the
    same name are the same type. ``*`` is a type that the expression states.
    """

    #: with {0}, {1} for the arguments and {type} for the type of the result. `vkep.ir.composed` has the operation for types that
    #: this does not serve; "" serves none
    glsl: str
    numpy: Callable[..., Any]
    signature: str

    @property
    def takes(self) -> list[str]:
        """The GLSL type or the kind of each argument."""
        return self.signature.split(" -> ")[0].split()

    def resolved(self, types: Sequence[str | None], stated: str | None = None) -> tuple[list[str], str]:
        """The types of the arguments and of the result. ``types`` has None for a number, whose type is that of the others;
        ``stated``: the type of the result where the expression states it. Raises ``TypeError``, which says what is expected,
        for types that the operation does not take."""
        takes, [_, result] = self.takes, self.signature.split(" -> ")
        shown = ", ".join("a number" if found is None else found for found in types)
        if len(types) != len(takes):
            raise TypeError(f"takes ({', '.join(takes)}), not ({shown})")
        bound: dict[str, str] = {}
        for kind, found in zip(takes, types, strict=True):
            if found is not None and (found not in KINDS.get(kind, (kind,)) or bound.setdefault(kind, found) != found):
                raise TypeError(f"takes ({', '.join(takes)}), not ({shown})")
        if "count" in takes:
            bound.setdefault("count", "int")
        if stated is not None and result in KINDS:
            bound.setdefault(result, stated)
        made = stated if result == "*" else bound.get(result, result)
        unknown = [kind for kind in takes if kind in KINDS and kind not in bound]
        if made is None or made in KINDS or unknown:
            raise TypeError(f"has no typed argument in ({shown}); state the type of the result")
        if stated is not None and stated != made:
            raise TypeError(f"of ({shown}) has type {made}, not {stated}")
        return [bound.get(kind, kind) for kind in takes], made


def rounded(dtype: DType, code: str) -> str:
    """GLSL that rounds and wraps a value as storing it as ``dtype`` and reading it again would."""
    if dtype.sub_byte_bits:
        if dtype.kind == "int":
            return sign_extended(f"int({code})", dtype.sub_byte_bits)
        return f"(uint({code}) & {(1 << dtype.sub_byte_bits) - 1}u)"
    if dtype.name == "float16":
        return f"rounded_to_half({code})"  # shaders/math.glsl
    if dtype.name in ("int8", "int16", "uint8", "uint16"):
        return f"{dtype.glsl_compute}({dtype.glsl}({code}))"
    if dtype.name == "bfloat16":
        return f"uintBitsToFloat(uint(bfloat16_bits({code})) << 16)"
    return code


_REAL, _NUMBER, _INTEGER, _ANY = (f"{kind} -> {kind}" for kind in ("real", "number", "integer", "any"))
_REALS, _NUMBERS, _INTEGERS = (f"{kind} {kind} -> {kind}" for kind in ("real", "number", "integer"))
_COMPARED, _BOOLS = "number number -> bool", "bool bool -> bool"

# Series where the plain formula would cancel: GLSL has neither log1p nor expm1, and drivers compute tanh from exponentials,
# whose relative error grows without bound towards 0.
_LOG1P = (
    "({0} < 0.03 && {0} > -0.03 ? {0} * (1.0 - {0} * (0.5 - {0} * (1.0 / 3.0 - {0} * (0.25 - {0} * 0.2)))) : "
    "log(1.0 + {0}))"
)
_EXPM1 = (
    "(abs({0}) < 0.1 ? {0} * (1.0 + {0} * (0.5 + {0} * (1.0 / 6.0 + {0} * (1.0 / 24.0 + {0} * (1.0 / 120.0))))) : "
    "exp({0}) - 1.0)"
)
_TANH = (
    "(abs({0}) < 0.1 ? {0} * (1.0 - {0} * {0} * (1.0 / 3.0 - {0} * {0} * (2.0 / 15.0 - {0} * {0} * (17.0 / 315.0)))) : "
    "limited_tanh({0}))"
)

#: by name
OPERATIONS = {
    "same": Operation("{0}", meaning.same, _ANY),
    "cast": Operation("{type}({0})", meaning.same, "any -> *"),
    # ---- arithmetic
    "add": Operation("({0} + {1})", np.add, _NUMBERS),
    "sub": Operation("({0} - {1})", np.subtract, _NUMBERS),
    "mul": Operation("({0} * {1})", np.multiply, _NUMBERS),
    "div": Operation("({0} / {1})", meaning.quotient, _NUMBERS),
    "exact_div": Operation("exact_quotient({0}, {1})", np.divide, _REALS),  # shaders/vkep.glsl
    "exact_div_by_usual": Operation("quotient_by_usual({0}, {1})", np.divide, "float float -> float"),
    "mod": Operation("({0} % {1})", meaning.remainder, _INTEGERS),
    "exact_remainder": Operation("exact_remainder({0}, {1})", meaning.size_of_remainder, _REALS),
    "mul_add": Operation("({0} * {1} + {2})", lambda x, y, z: x * y + z, "number number number -> number"),
    "neg": Operation("(-{0})", np.negative, _NUMBER),
    "abs": Operation("abs({0})", np.abs, "signed -> signed"),
    "with_sign": Operation("with_sign({0}, {1})", np.copysign, _REALS),
    "sign": Operation("sign({0})", np.sign, "signed -> signed"),
    "min": Operation("min({0}, {1})", meaning.minimum, _NUMBERS),
    "max": Operation("max({0}, {1})", meaning.maximum, _NUMBERS),
    "clamp": Operation("clamp({0}, {1}, {2})", meaning.clamp, "number number number -> number"),
    "limited": Operation("limited({0}, {1}, {2})", meaning.limited, "real real real -> real"),
    "relu": Operation("relu({0})", lambda x: np.where(np.isnan(x) | (x > 0), x, 0), _REAL),
    # ---- functions of real numbers
    "floor": Operation("floor({0})", np.floor, _REAL),
    "ceil": Operation("ceil({0})", np.ceil, _REAL),
    "trunc": Operation("trunc({0})", np.trunc, _REAL),
    "round": Operation("roundEven({0})", np.rint, _REAL),
    "near_whole": Operation("near_whole({0})", np.rint, "float -> float"),  # of at most 2**22 (shaders/math.glsl)
    "small_float": Operation("small_float({0})", meaning.same, "int -> float"),  # likewise
    "sqrt": Operation("accurate_sqrt({0})", np.sqrt, _REAL),
    "inversesqrt": Operation("inversesqrt({0})", lambda x: 1 / np.sqrt(x), _REAL),
    "exp": Operation("exp({0})", np.exp, _REAL),
    "expm1": Operation(_EXPM1, np.expm1, _REAL),
    "log": Operation("accurate_log({0})", np.log, _REAL),
    "log1p": Operation(_LOG1P, np.log1p, _REAL),
    "pow": Operation("accurate_pow({0}, {1})", np.power, _REALS),
    "sin": Operation("accurate_sin({0})", np.sin, _REAL),
    "cos": Operation("accurate_cos({0})", np.cos, _REAL),
    "tan": Operation("accurate_tan({0})", np.tan, _REAL),
    "asin": Operation("accurate_asin({0})", np.arcsin, _REAL),
    "acos": Operation("accurate_acos({0})", np.arccos, _REAL),
    "atan": Operation("accurate_atan({0})", np.arctan, _REAL),
    "sinh": Operation("accurate_sinh({0})", np.sinh, _REAL),
    "cosh": Operation("accurate_cosh({0})", np.cosh, _REAL),
    "tanh": Operation(_TANH, np.tanh, _REAL),
    "asinh": Operation("", np.arcsinh, _REAL),
    "acosh": Operation("", np.arccosh, _REAL),
    "atanh": Operation("", np.arctanh, _REAL),
    "softplus": Operation("", lambda x: np.logaddexp(x, 0), _REAL),
    "sigmoid": Operation("(1.0 / (1.0 + exp(-{0})))", meaning.sigmoid, _REAL),
    "erf": Operation("accurate_erf({0})", meaning.erf, _REAL),
    "gelu": Operation("gelu({0})", meaning.gelu, _REAL),
    "gelu_tanh": Operation("gelu_tanh({0})", meaning.gelu_tanh, _REAL),
    # ---- logic
    "isnan": Operation("isnan({0})", np.isnan, "real -> bool"),
    "isinf": Operation("isinf({0})", np.isinf, "real -> bool"),
    "not": Operation("(!{0})", np.logical_not, "bool -> bool"),
    "and": Operation("({0} && {1})", np.logical_and, _BOOLS),
    "or": Operation("({0} || {1})", np.logical_or, _BOOLS),
    "eq": Operation("({0} == {1})", np.equal, "any any -> bool"),
    "ne": Operation("({0} != {1})", np.not_equal, "any any -> bool"),
    "lt": Operation("({0} < {1})", np.less, _COMPARED),
    "le": Operation("({0} <= {1})", np.less_equal, _COMPARED),
    "gt": Operation("({0} > {1})", np.greater, _COMPARED),
    "ge": Operation("({0} >= {1})", np.greater_equal, _COMPARED),
    "where": Operation("({0} ? {1} : {2})", np.where, "bool any any -> any"),
    # ---- bits
    "bit_not": Operation("(~{0})", np.invert, _INTEGER),
    "bit_and": Operation("({0} & {1})", np.bitwise_and, _INTEGERS),
    "bit_or": Operation("({0} | {1})", np.bitwise_or, _INTEGERS),
    "bit_xor": Operation("({0} ^ {1})", np.bitwise_xor, _INTEGERS),
    "shift_left": Operation("({0} << {1})", meaning.shift_left, "integer count -> integer"),
    "shift_right": Operation("({0} >> {1})", meaning.shift_right, "integer count -> integer"),
    "float_bits": Operation("floatBitsToUint({0})", meaning.bits_of("float32"), "float -> uint"),
    "half_bits": Operation("(packHalf2x16(vec2({0}, 0.0)) & 0xffffu)", meaning.bits_of("float16"), "float -> uint"),
    "bfloat16_bits": Operation("uint(bfloat16_bits({0}))", meaning.bits_of("bfloat16"), "float -> uint"),
    "double_bits": Operation("doubleBitsToUint64({0})", meaning.bits_of("float64"), "double -> uint64_t"),
    "from_float_bits": Operation("uintBitsToFloat({0})", meaning.from_bits("float32"), "uint -> float"),
    "from_half_bits": Operation("unpackHalf2x16({0}).x", meaning.from_bits("float16"), "uint -> float"),
    "from_bfloat16_bits": Operation("uintBitsToFloat({0} << 16)", meaning.from_bits("bfloat16"), "uint -> float"),
    "from_double_bits": Operation("uint64BitsToDouble({0})", meaning.from_bits("float64"), "uint64_t -> double"),
    "low_word": Operation("unpackDouble2x32({0}).x", meaning.low_word, "double -> uint"),
    "high_word": Operation("unpackDouble2x32({0}).y", meaning.high_word, "double -> uint"),
    "from_words": Operation("packDouble2x32(uvec2({0}, {1}))", meaning.from_words, "uint uint -> double"),
    # ---- rounds a value to the storage type, which is narrower than the type it is computed in
    **{
        f"as_{d.name}": Operation(code, meaning.stored_as(d), f"{d.glsl_compute} -> {d.glsl_compute}")
        for d in DTYPES.values()
        if (code := rounded(d, "{0}")) != "{0}"
    },
}


def storing_op(dtype: DType) -> str:
    """The operation that rounds a value as storing it as ``dtype`` and reading it again would."""
    name = f"as_{dtype.name}"
    return name if name in OPERATIONS else "same"


def glsl(op: str) -> str:
    """The template of an expression's operation. Raises `ValueError` for a name that is not in the table."""
    operation = OPERATIONS.get(op)
    if operation is None and "{" not in op:
        raise ValueError(f"no pointwise operation is named {op!r}; there are {', '.join(OPERATIONS)}")
    return op if operation is None else operation.glsl
