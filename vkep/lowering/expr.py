"""Pointwise expressions: what a fused kernel computes for one element, as a small graph that becomes GLSL."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

from vkep.dtypes import DTYPES, DType, sign_extended
from vkep.dtypes import load_code as load_code  # the other half of store_code
from vkep.lowering.tensor import Tensor

#: 32-bit argument type that carries a scalar of a compute type
_SCALAR_KINDS = {"float": "float", "int": "int", "uint": "uint"}


@dataclass(frozen=True, eq=False)
class Expr:
    """A GLSL template over arguments, with the type it computes in. Sharing is by identity."""

    ctype: str
    template: str = ""
    args: tuple[Expr, ...] = ()


@dataclass(frozen=True, eq=False)
class Leaf(Expr):
    """One element of a tensor (a view of the output's shape)."""

    tensor: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Const(Expr):
    """A scalar known at compile time. It travels as an argument, so that its value selects no shader."""

    value: float | int = 0


def leaf(tensor: Tensor) -> Leaf:
    return Leaf(tensor.dtype.glsl_compute, tensor=tensor)


def leaves(expr: Expr) -> tuple[Leaf, ...]:
    """Each distinct leaf, in order of first use. (Fusion asks often: the expression keeps the answer.)"""
    known: tuple[Leaf, ...] | None = expr.__dict__.get("leaves")
    if known is not None:
        return known
    found: list[Leaf] = []
    seen: set[int] = set()
    stack = [expr]
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, Leaf):
            found.append(node)
        elif node.args:
            stack.extend(reversed(node.args))
    known = expr.__dict__["leaves"] = tuple(found)
    return known


def substitute(expr: Expr, replace: Callable[[Leaf], Expr | None]) -> Expr:
    """The expression with leaves replaced; shared parts stay shared."""
    done: dict[int, Expr] = {id(leaf): replace(leaf) or leaf for leaf in leaves(expr)}
    if all(done[id(leaf)] is leaf for leaf in leaves(expr)):
        return expr

    def visit(node: Expr) -> Expr:
        result = done.get(id(node))
        if result is None:
            result = node
            if node.args:
                args = tuple([visit(a) for a in node.args])
                if args != node.args:  # of nodes that are equal where they are the same
                    result = Expr(node.ctype, node.template, args)
            done[id(node)] = result
        return result

    return visit(expr)


def count(expr: Expr) -> int:
    """Operations in the expression (its arithmetic cost for one element)."""
    seen: set[int] = set()

    def visit(node: Expr) -> int:
        if id(node) in seen:
            return 0
        seen.add(id(node))
        return (1 if node.args else 0) + sum(visit(a) for a in node.args)

    return visit(expr)


def store_code(dtype: DType, value: str) -> str:
    """GLSL that turns a computed value into what is stored."""
    if dtype.name == "bfloat16":
        return f"bfloat16_bits({value})"
    if dtype.kind == "bool":
        return f"uint8_t({value} ? 1 : 0)"
    return value if dtype.glsl == dtype.glsl_compute else f"{dtype.glsl}({value})"


def rounded(dtype: DType, code: str) -> str:
    """GLSL for a value as it would be after being stored as ``dtype`` and read again (wraps and rounds)."""
    if dtype.sub_byte_bits:
        if dtype.kind == "int":
            return sign_extended(f"int({code})", dtype.sub_byte_bits)
        return f"(uint({code}) & {(1 << dtype.sub_byte_bits) - 1}u)"
    if dtype.name in ("int8", "int16", "uint8", "uint16", "float16"):
        return f"{dtype.glsl_compute}({dtype.glsl}({code}))"
    if dtype.name == "bfloat16":
        return f"uintBitsToFloat(uint(bfloat16_bits({code})) << 16)"
    return code


@dataclass(frozen=True)
class Code:
    """GLSL for an expression: statements, the name that holds the result, and the scalars it reads as ``args.cN``."""

    statements: str
    result: str
    scalars: tuple[tuple[str, str, float | int], ...]


def generate(expr: Expr, name_leaf: Callable[[Leaf], str]) -> Code:
    """Write an expression as GLSL statements; ``name_leaf`` gives the code that reads a leaf."""
    names: dict[int, str] = {}
    lines: list[str] = []
    scalars: list[tuple[str, str, float | int]] = []
    seen_constants: dict[tuple[str, float | int], str] = {}

    def constant(node: Const) -> str:
        if node.ctype == "bool":
            return "true" if node.value else "false"
        key = (node.ctype, node.value)
        if key not in seen_constants or node.value != node.value:  # NaN never equals itself: keep apart
            kind = _SCALAR_KINDS.get(node.ctype)
            if kind is None:
                seen_constants[key] = literal(node.value, node.ctype)
            else:
                name = f"c{len(scalars)}"
                scalars.append((name, kind, node.value))
                seen_constants[key] = f"args.{name}"
        return seen_constants[key]

    def visit(node: Expr) -> str:
        if id(node) not in names:
            if isinstance(node, Leaf):
                names[id(node)] = name_leaf(node)
            elif isinstance(node, Const):
                names[id(node)] = constant(node)
            else:
                code = node.template.format(*(visit(a) for a in node.args))
                name = f"t{len(lines)}"
                lines.append(f"{node.ctype} {name} = {code};")
                names[id(node)] = name
        return names[id(node)]

    result = visit(expr)
    return Code(" ".join(lines), result, tuple(scalars))


def literal(value: float | int, ctype: str) -> str:
    """GLSL for a value of a compute type that has no 32-bit argument form (64-bit types).

    Made of 32-bit halves: a preprocessor definition, which is where expressions go, can hold no 64-bit literal.
    """
    if ctype not in ("double", "int64_t", "uint64_t"):
        raise ValueError(f"no literal form for {value!r} in {ctype}")
    code = "d" if ctype == "double" else "q" if ctype == "int64_t" else "Q"
    low, high = struct.unpack("<II", struct.pack("<" + code, float(value) if code == "d" else int(value)))
    if ctype == "double":
        return f"packDouble2x32(uvec2({low}u, {high}u))"
    return f"{ctype}(pack64(u32vec2({low}u, {high}u)))"


def compute_dtype(ctype: str) -> DType:
    """The storage type that holds a compute type exactly."""
    return DTYPES[
        {"float": "float32", "int": "int32", "uint": "uint32", "bool": "bool", "double": "float64"}.get(
            ctype, ctype.removesuffix("_t")
        )
    ]
