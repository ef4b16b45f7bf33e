"""Pointwise expressions: the operations that a fused kernel computes for one element, as a graph, and its GLSL."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from vkep.dtypes import DType
from vkep.dtypes import load_code as load_code  # the inverse of store_code
from vkep.dtypes import sign_extended as sign_extended
from vkep.ir.pointwise_ops import glsl
from vkep.ir.pointwise_ops import rounded as rounded
from vkep.ir.pointwise_ops import stored_as as stored_as
from vkep.ir.tensor import Tensor
from vkep.sizes import serves_others

#: 32-bit argument type that passes a scalar of a compute type
_SCALAR_KINDS = {"float": "float", "int": "int", "uint": "uint"}


@dataclass(eq=False, slots=True)  # immutable by convention; not frozen, because that makes construction slower
class Expr:
    """A pointwise operation on its arguments, and the GLSL type of its result. Sharing is by identity.

    ``op`` is a name of `vkep.ir.pointwise_ops.OPERATIONS`, or an operator's own GLSL with ``{0}``, ``{1}`` for the arguments.
    """

    ctype: str
    op: str = ""
    args: tuple[Expr, ...] = ()
    _leaves: tuple[Leaf, ...] | None = field(default=None, init=False, repr=False)  #: cached by `leaves`


@dataclass(eq=False, slots=True)
class Leaf(Expr):
    """An element of a tensor. The tensor is a view of the output's shape."""

    tensor: Tensor | None = None


@dataclass(eq=False, slots=True)
class Const(Expr):
    """A scalar known while planning. It is passed as an argument, so that its value selects no shader."""

    value: float | int = 0


@dataclass(eq=False, slots=True)
class Checked(Expr):
    """The value of the first argument; where the second one (a bool) is false, the run has a fault."""

    reason: str = ""
    node: str = ""  #: the node whose specification requires it


def leaf(tensor: Tensor) -> Leaf:
    """An expression that reads the tensor's element."""
    return Leaf(tensor.dtype.glsl_compute, tensor=tensor)


def leaves(expr: Expr) -> tuple[Leaf, ...]:
    """Each distinct leaf, in order of first use. Cached by the expression, since fusion calls this often."""
    if isinstance(expr, Leaf):
        return (expr,)  # not cached: a reference cycle
    if expr._leaves is None:
        found: dict[Leaf, None] = {}
        seen: set[int] = set()
        stack: list[Expr] = [expr]
        while stack:
            node = stack.pop()
            if isinstance(node, Leaf):
                found[node] = None
            elif node._leaves is not None:
                found.update(dict.fromkeys(node._leaves))
            elif node.args and id(node) not in seen:
                seen.add(id(node))
                stack += node.args[::-1]
        expr._leaves = tuple(found)
    return expr._leaves


def tensors(expr: Expr) -> list[Tensor]:
    """The tensor of each of the `leaves`."""
    return [leaf.tensor for leaf in leaves(expr) if leaf.tensor is not None]


def substitute(expr: Expr, replace: Callable[[Leaf], Expr | None]) -> Expr:
    """The expression with each leaf replaced for which ``replace`` returns an expression; shared parts stay shared."""
    done: dict[int, Expr] = {}
    for leaf in leaves(expr):
        placed = replace(leaf)
        if placed is not None and placed is not leaf:
            done[id(leaf)] = placed
    return _rebuilt(expr, done) if done else expr


# An operator of many inputs is an expression as deep as it has inputs, so no function here recurses.


def remaining(
    expr: Expr, done: Mapping[int, object], args: Callable[[Expr], tuple[Expr, ...]] | None = None
) -> Iterator[Expr]:
    """Each distinct node whose id is not in ``done``, after its arguments, from left to right. The caller adds a node to
    ``done`` before it asks for the next one. ``args``: the arguments of a node, where they are not its own."""
    stack = [expr]
    while stack:
        node = stack[-1]
        if id(node) in done:
            stack.pop()
            continue
        below = node.args if args is None else args(node)
        missing = [a for a in below if id(a) not in done] if below else None
        if missing:
            stack += missing[::-1]
        else:
            stack.pop()
            yield node


def _rebuilt(expr: Expr, done: dict[int, Expr]) -> Expr:
    for node in remaining(expr, done):
        done[id(node)] = with_args(node, tuple([done[id(a)] for a in node.args]))
    return done[id(expr)]


def inline(expr: Expr, inner: Mapping[Leaf, Expr]) -> Expr:
    """The expression with leaves replaced, also in what replaces them; shared parts stay shared."""
    done: dict[int, Expr] = {}

    def args(node: Expr) -> tuple[Expr, ...]:
        return (inner[node],) if isinstance(node, Leaf) and node in inner else node.args

    for node in remaining(expr, done, args):
        made = tuple([done[id(a)] for a in args(node)])
        done[id(node)] = made[0] if isinstance(node, Leaf) and made else with_args(node, made)
    return done[id(expr)]


def with_args(node: Expr, args: tuple[Expr, ...]) -> Expr:
    """The node with other arguments: a copy, unless they are its own."""
    if args == node.args:  # compares identities
        return node
    if isinstance(node, Checked):
        return Checked(node.ctype, node.op, args, node.reason, node.node)
    return Expr(node.ctype, node.op, args)


def is_checked(expr: Expr) -> bool:
    """Whether a part of the expression may have a fault."""
    seen: set[int] = set()
    stack = [expr]
    while stack:
        node = stack.pop()
        if isinstance(node, Checked):
            return True
        if node.args and id(node) not in seen:
            seen.add(id(node))
            stack += node.args
    return False


def count(expr: Expr) -> int:
    """Operations in the expression (its arithmetic cost for one element)."""
    seen: set[int] = set()
    stack = [expr]
    while stack:
        node = stack.pop()
        if node.args and id(node) not in seen:
            seen.add(id(node))
            stack += node.args
    return len(seen)


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
    result = writer.write(expr)
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
        code, name = glsl(node.op).format(*args, type=node.ctype), f"t{len(self.lines)}"
        # Reductions of angles in double precision lose digits where a compiler reassociates their differences.
        qualified = f"precise {node.ctype}" if node.ctype == "double" else node.ctype
        self.lines.append(f"{qualified} {name} = {code};")
        return name

    def _constant(self, node: Const) -> str:
        if node.ctype == "bool":
            return "true" if node.value else "false"
        sized = serves_others(node.value)
        key = (node.ctype, node if sized else node.value)  # a size equals other numbers in some runs only
        if key not in self._constants or node.value != node.value:  # NaN is not equal to itself: keep separate
            kind = _SCALAR_KINDS.get(node.ctype)
            if kind is None and sized and -(1 << 31) <= node.value < 1 << 31:
                name = f"c{len(self.scalars)}"
                self.scalars.append((name, "int", node.value))
                self._constants[key] = f"{node.ctype}(args.{name})"
            elif kind is None:
                self._constants[key] = literal(node.value, node.ctype)
            else:
                name = f"c{len(self.scalars)}"
                self.scalars.append((name, kind, node.value))
                self._constants[key] = f"args.{name}"
        return self._constants[key]


def literal(value: float | int, ctype: str) -> str:
    """GLSL for a value of a 64-bit compute type, which has no 32-bit argument form.

    It is composed of 32-bit halves: expressions are passed as preprocessor definitions, which cannot contain 64-bit
    literals. Raises ``ValueError`` for a type that is not of 64 bits.
    """
    if ctype not in ("double", "int64_t", "uint64_t"):
        raise ValueError(f"no literal form for {value!r} in {ctype}")
    code = "d" if ctype == "double" else "q" if ctype == "int64_t" else "Q"
    low, high = struct.unpack("<II", struct.pack("<" + code, float(value) if code == "d" else int(value)))
    if ctype == "double":
        return f"packDouble2x32(uvec2({low}u, {high}u))"
    return f"{ctype}(pack64(u32vec2({low}u, {high}u)))"
