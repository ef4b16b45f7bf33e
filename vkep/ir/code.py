"""The GLSL of pointwise expressions."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass

from vkep.dtypes import DType
from vkep.dtypes import load_code as load_code  # the inverse of store_code
from vkep.ir.composed import composed
from vkep.ir.expr import Checked, Const, Expr, Leaf, known_number, remaining
from vkep.ir.pointwise_ops import KINDS, glsl
from vkep.ir.tensor import Tensor
from vkep.sizes import called, serves_others

#: 32-bit argument type that passes a scalar of a compute type
_SCALAR_KINDS = {"float": "float", "int": "int", "uint": "uint"}


def store_code(dtype: DType, value: str) -> str:
    """GLSL that converts a computed value to its stored form."""
    if dtype.name == "bfloat16":
        return f"bfloat16_bits({value})"
    if dtype.kind == "bool":
        return f"uint8_t({value} ? 1 : 0)"
    return value if dtype.glsl == dtype.glsl_compute else f"{dtype.glsl}({value})"


@dataclass(frozen=True)
class Code:
    """GLSL of an expression: statements, the name of the result, and the scalars it reads as ``args.cN``.

    ``fault`` is the fault word that the statements write to as ``FAULT_WORD`` (None: they write none).
    """

    statements: str
    result: str
    scalars: tuple[tuple[str, str, float | int], ...]
    fault: Tensor | None = None


#: returns a fault word and a code, as `vkep.kernels.select.Target.fault`
NameFault = Callable[[Checked], tuple[Tensor | None, int]]


def generate(expr: Expr, name_leaf: Callable[[Leaf], str], name_fault: NameFault = lambda _: (None, 0)) -> Code:
    """Generate the GLSL of an expression; ``name_leaf`` returns the code that reads a leaf."""
    writer = _Writer(name_leaf, name_fault)
    result = writer.write(composed(expr))
    return Code(" ".join(writer.lines), result, tuple(writer.scalars), writer.fault)


class _Writer:
    """Collects the statements and scalars of an expression."""

    def __init__(self, name_leaf: Callable[[Leaf], str], name_fault: NameFault) -> None:
        self._name_leaf, self._name_fault = name_leaf, name_fault
        self.fault: Tensor | None = None
        self._names: dict[int, str] = {}
        self._constants: dict[tuple[str, float | int | Const], str] = {}
        self.lines: list[str] = []
        self.scalars: list[tuple[str, str, float | int]] = []

    def write(self, expr: Expr) -> str:
        """Write the statements of an expression; returns the code for its value."""
        for node in remaining(expr, self._names):
            self._names[id(node)] = self._written(node, [self._names[id(a)] for a in node.args])
        return self._names[id(expr)]

    def _written(self, node: Expr, args: list[str]) -> str:
        if isinstance(node, Leaf):
            return self._name_leaf(node)
        if isinstance(node, Const):
            return self._constant(node)
        if isinstance(node, Checked):
            name, holds = args
            word, number = self._name_fault(node)
            if word is not None:
                self.fault, scalar = word, f"f{len(self.scalars)}"
                self.scalars.append((scalar, "uint", number))
                self.lines.append(f"if (!{holds}) note_fault(FAULT_WORD, args.{scalar});")
            return name
        template = glsl(node.op)
        if node.op == "cast" and node.args[0].ctype in KINDS["real"] and node.ctype in KINDS["integer"]:
            template = glsl("cast") if _within(node.args[0], node.ctype) else "to_{type}({0})"  # shaders/math.glsl
        code, name = template.format(*args, type=node.ctype), f"t{len(self.lines)}"
        # Reductions of angles in double precision lose digits where a compiler reassociates their differences.
        qualified = f"precise {node.ctype}" if node.ctype == "double" else node.ctype
        self.lines.append(f"{qualified} {name} = {code};")
        return name

    def _constant(self, node: Const) -> str:
        if node.ctype == "bool":
            return "true" if node.value else "false"
        if node.literal:
            return literal(node.value, node.ctype)
        sized = serves_others(node.value)
        key = (node.ctype, node if sized else node.value)  # a size equals other numbers in some runs only
        if key not in self._constants or node.value != node.value:  # NaN is not equal to itself: keep separate
            kind = _SCALAR_KINDS.get(node.ctype)
            if kind is None and sized and node.ctype != "double" and -(1 << 31) <= node.value < 1 << 31:
                name = f"c{len(self.scalars)}"
                self.scalars.append((name, "int", node.value))
                self._constants[key] = f"{node.ctype}(args.{name})"
            elif kind is None and sized and node.ctype == "double":
                name = f"c{len(self.scalars)}"
                words = [(f"{name}{part}", "uint", called(f"{part}_word", node.value)) for part in ("low", "high")]
                self.scalars += words
                self._constants[key] = f"packDouble2x32(uvec2(args.{name}low, args.{name}high))"
            elif kind is None:
                self._constants[key] = _bits(
                    float(node.value) if node.ctype == "double" else int(node.value), node.ctype
                )
            else:
                name = f"c{len(self.scalars)}"
                self.scalars.append((name, kind, node.value))
                self._constants[key] = f"args.{name}"
        return self._constants[key]


def _within(value: Expr, ctype: str) -> bool:
    """Whether an expression's values are limited to those of an integer type of 32 bits."""
    zero: float | int | None = 0
    if value.op == "add" and value.args[0].op == "near_whole":  # other sums may be rounded beyond the type
        value, zero = value.args[0], known_number(value.args[1])
    value = value.args[0] if value.op == "near_whole" else value
    if value.op != "clamp" or ctype not in ("int", "uint") or zero is None:
        return False
    low, high = map(known_number, value.args[1:])
    least, most = (0, 2**32) if ctype == "uint" else (-(2**31), 2**31)
    return low is not None and high is not None and least <= low + zero <= high + zero < most


#: of a Python number in a literal: an integer of 64 bits is converted, since a preprocessor definition, in which expressions are
#: passed, cannot contain its own form
_LITERALS = {
    "float": "{!r}",
    "double": "{!r}lf",
    "int": "{}",
    "uint": "{}u",
    "int64_t": "int64_t({})",
    "uint64_t": "uint64_t({}u)",
}


def literal(value: float | int, ctype: str) -> str:
    """GLSL for a number. Raises ``ValueError`` for a type that is no number's."""
    if ctype not in _LITERALS:
        raise ValueError(f"no literal form for {value!r} in {ctype}")
    if ctype in ("float", "double"):
        number = float(value)
        if not math.isfinite(number):
            return _bits(number, ctype)
        code = _LITERALS[ctype].format(number)
    else:
        number = int(value)
        if not -(1 << 31) < number < 1 << (32 if ctype[0] == "u" else 31):
            return _bits(number, ctype)
        code = _LITERALS[ctype].format(number)
    return f"({code})" if number < 0 or math.copysign(1, number) < 0 else code


def _bits(value: float | int, ctype: str) -> str:
    """A number by the bits of its representation, as 32-bit parts."""
    if ctype == "float":
        return f"uintBitsToFloat({struct.unpack('<I', struct.pack('<f', value))[0]}u)"
    if ctype in ("int", "uint"):
        return f"int({int(value) & 0xFFFFFFFF}u)" if ctype == "int" else f"{value}u"
    code = "d" if ctype == "double" else "q" if ctype == "int64_t" else "Q"
    low, high = struct.unpack("<II", struct.pack("<" + code, value))
    if ctype == "double":
        return f"packDouble2x32(uvec2({low}u, {high}u))"
    return f"{ctype}(pack64(u32vec2({low}u, {high}u)))"
