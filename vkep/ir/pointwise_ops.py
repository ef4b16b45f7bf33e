"""The GLSL of pointwise operations that have a name: those that several operators use, or that a pass matches.

An expression (`vkep.ir.expr.Expr`) has one of these names, or GLSL of its own. Passes compare names.
"""

from __future__ import annotations

from vkep.dtypes import DTYPES, DType, sign_extended


def rounded(dtype: DType, code: str) -> str:
    """GLSL that rounds and wraps a value as storing it as ``dtype`` and reading it again would."""
    if dtype.sub_byte_bits:
        if dtype.kind == "int":
            return sign_extended(f"int({code})", dtype.sub_byte_bits)
        return f"(uint({code}) & {(1 << dtype.sub_byte_bits) - 1}u)"
    if dtype.name in ("int8", "int16", "uint8", "uint16", "float16"):
        return f"{dtype.glsl_compute}({dtype.glsl}({code}))"
    if dtype.name == "bfloat16":
        return f"uintBitsToFloat(uint(bfloat16_bits({code})) << 16)"
    return code


#: a float32 NaN
NAN = "uintBitsToFloat(0x7fc00000u)"

#: name -> GLSL, with {0}, {1} for the arguments and {type} for the type of the result
GLSL = {
    "same": "{0}",
    "cast": "{type}({0})",
    "add": "({0} + {1})",
    "sub": "({0} - {1})",
    "mul": "({0} * {1})",
    "div": "({0} / {1})",
    "exact_div": "exact_quotient({0}, {1})",  # shaders/math.glsl
    "mul_add": "({0} * {1} + {2})",
    "mul_float": "(float({0}) * {1})",
    "neg": "(-{0})",
    "abs": "abs({0})",
    "exp": "exp({0})",
    "sqrt": "sqrt({0})",
    "floor": "floor({0})",
    "round": "roundEven({0})",
    "isnan": "isnan({0})",
    "min": "min({0}, {1})",
    "max": "max({0}, {1})",
    "not": "(!{0})",
    "and": "({0} && {1})",
    "or": "({0} || {1})",
    "eq": "({0} == {1})",
    "ne": "({0} != {1})",
    "lt": "({0} < {1})",
    "le": "({0} <= {1})",
    "gt": "({0} > {1})",
    "ge": "({0} >= {1})",
    "where": "({0} ? {1} : {2})",
    # rounds a value to the storage type, which is narrower than the type it is computed in
    **{f"as_{d.name}": code for d in DTYPES.values() if (code := rounded(d, "{0}")) != "{0}"},
}


def stored_as(dtype: DType) -> str:
    """The operation that rounds a value as storing it as ``dtype`` and reading it again would."""
    name = f"as_{dtype.name}"
    return name if name in GLSL else "same"


def glsl(op: str) -> str:
    """The template of an expression's operation. Raises `ValueError` for a name that is not in the table."""
    template = GLSL.get(op, op)
    if template is op and "{" not in op:
        raise ValueError(f"no pointwise operation is named {op!r}; there are {', '.join(GLSL)}")
    return template
