"""`Formulas`: numbers as functions of a run's sizes, as plain data, and computed all at once."""

from __future__ import annotations

import functools
import math
import operator
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from ml_dtypes import bfloat16

from vkep.sizes.magic import magic

#: an operand of a node: a number, ("sum", terms, const) over nodes before it, or ("node", k) for a float
Operand = Any
Node = tuple[str, tuple[Operand, ...]]
BINARY: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "**": operator.pow,
    "//": operator.floordiv,
    "%": operator.mod,
}


def _scaled(length: int, numerator: int, denominator: int) -> int:
    """The floor of the float32 product of a length and a float32 number. Raises ``OverflowError``."""
    return math.floor(_single(_single(length) * (numerator / denominator)))


def _single(number: float) -> float:
    (rounded,) = _FLOAT32.unpack(_FLOAT32.pack(number))
    return float(rounded)


_FLOAT32 = struct.Struct("<f")
_DOUBLE, _DOUBLE_BITS = struct.Struct("<II"), struct.Struct("<d")
#: ONNX's elementwise operators of floats, each by the function of numpy that folding evaluates it with
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "Abs": np.absolute,
    "Add": np.add,
    "Cast": lambda x: x,
    "Ceil": np.ceil,
    "Cos": np.cos,
    "Div": np.divide,
    "Exp": np.exp,
    "Floor": np.floor,
    "Log": np.log,
    "Max": lambda *x: functools.reduce(np.maximum, x),
    "Min": lambda *x: functools.reduce(np.minimum, x),
    "Mul": np.multiply,
    "Neg": np.negative,
    "Pow": np.power,
    "Reciprocal": np.reciprocal,
    "Round": np.rint,
    "Sin": np.sin,
    "Sqrt": np.sqrt,
    "Sub": np.subtract,
}


def _rounding(function: Callable[..., Any], dtype: Callable[[Any], Any]) -> Callable[..., float]:
    """A function of numbers in the arithmetic of float32 (of float64 for that type), whose result is rounded to a type."""
    wide = np.float64 if dtype is np.float64 else np.float32

    def rounded(*numbers: float) -> float:
        with np.errstate(all="ignore"):
            return float(dtype(function(*map(wide, numbers))))

    return rounded


def _truncated(bits: int) -> Callable[[float], int]:
    """The integer that kernels convert a float to: truncated, NaN as 0, numbers beyond the type as its ends."""

    def truncated(number: float) -> int:
        low, high = -(1 << bits - 1), (1 << bits - 1) - 1
        if math.isnan(number):
            return 0
        return min(max(int(number), low), high) if math.isfinite(number) else (low if number < 0 else high)

    return truncated


#: functions of numbers that return a float: an operator in the arithmetic of an element type ("float32.Mul")
REALS: Mapping[str, Callable[..., float]] = {
    f"{dtype.__name__}.{name}": _rounding(function, dtype)
    for dtype in (np.float16, bfloat16, np.float32, np.float64)
    for name, function in _FUNCTIONS.items()
}
#: functions that decide between two floats, as 0 or 1
TESTS: Mapping[str, Callable[[float, float], int]] = {
    "less": lambda a, b: int(a < b),
    "at_most": lambda a, b: int(a <= b),
    "equal": lambda a, b: int(a == b),
}
#: functions of a float that return its 32 lower or higher bits in float64
_WORDS: Mapping[str, Callable[[float], int]] = {
    "low_word": lambda number: _DOUBLE.unpack(_DOUBLE_BITS.pack(number))[0],
    "high_word": lambda number: _DOUBLE.unpack(_DOUBLE_BITS.pack(number))[1],
}
#: functions of floats that return an integer
WHOLES: Mapping[str, Callable[[float], int]] = {
    "floor": math.floor,
    "ceil": math.ceil,
    "round": round,
    "int32.Cast": _truncated(32),
    "int64.Cast": _truncated(64),
}
#: functions of numbers
CALLS: Mapping[str, Callable[..., Any]] = {
    **REALS,
    **TESTS,
    **WHOLES,
    **_WORDS,
    "active": lambda count, number: number if count > 0 else 0,
    "bit_length": lambda n: int(n).bit_length(),
    "gcd": math.gcd,
    "max": max,
    "power": lambda base, n: base << n,
    # of an extent that is not active, nothing is divided by it
    "magic_multiplier": lambda n: magic(n or 1)[0],
    "magic_shift": lambda n: magic(n or 1)[1],
    "scaled": _scaled,
}


@dataclass(frozen=True)
class Formulas:
    """Results over ``symbols`` integers.

    ``nodes`` in order: ("symbol", (k,)), a name of `BINARY` with two operands, or one of `CALLS`. With ``relations``
    ("==", "!=" or ">=", one for each result) the results are conditions: each must have that relation to 0.
    """

    symbols: int
    nodes: tuple[Node, ...]
    results: tuple[Operand, ...]
    relations: tuple[str, ...] | None = None

    @classmethod
    def of(
        cls, nodes: Sequence[Node], symbols: int, results: Sequence[Operand], relations: tuple[str, ...] | None = None
    ) -> Formulas:
        """The formulas with only those nodes that the results need."""
        needed: set[int] = set()
        waiting = [node for result in results for node in nodes_of(result)]
        while waiting:
            node = waiting.pop()
            if node not in needed:
                needed.add(node)
                waiting += [n for o in nodes[node][1] for n in nodes_of(o)]
        number = {node: k for k, node in enumerate(sorted(needed))}
        kept = tuple([(nodes[n][0], tuple([_renumbered(o, number) for o in nodes[n][1]])) for n in sorted(needed)])
        return cls(symbols, kept, tuple([_renumbered(r, number) for r in results]), relations)

    def check(self) -> None:
        """Raise `ValueError` for an unknown name, or for a node that refers to one that is not before it."""
        for k, (op, operands) in enumerate((*self.nodes, *[("results", (r,)) for r in self.results])):
            known = op in BINARY or op in CALLS or op == ("results" if k >= len(self.nodes) else "symbol")
            if not known or any(not 0 <= node < min(k, len(self.nodes)) for o in operands for node in nodes_of(o)):
                raise ValueError(f"formula {k} is {op!r} of {operands}")
        if self.relations is not None and not {*self.relations} <= {"==", "!=", ">="}:
            raise ValueError(f"relations are {self.relations}")

    def __call__(self, sizes: Sequence[int]) -> tuple[Any, ...]:
        """The results for these sizes, in the order of the symbols."""
        values: tuple[Any, ...] = self._compiled(sizes)
        return values

    def hold(self, sizes: Sequence[int]) -> bool:
        """Whether the conditions hold for these sizes. A formula that is undefined (a division by 0) counts as a
        condition that does not hold."""
        try:
            return bool(self._compiled(sizes))
        except (ArithmeticError, ValueError):
            return False

    def failed(self, sizes: Sequence[int]) -> list[str]:
        """The conditions that do not hold for these sizes, as text."""
        try:
            values = Formulas(self.symbols, self.nodes, self.results)(sizes)
        except (ArithmeticError, ValueError) as error:
            return [str(error)]
        return [
            f"{self.text(result)} {relation} 0"
            for result, relation, value in zip(self.results, self.relations or (), values, strict=True)
            if not {"==": value == 0, "!=": value != 0, ">=": value >= 0}[relation]
        ]

    def text(self, operand: Operand) -> str:
        """A formula in Python's notation, with symbols s0, s1 and so on."""
        names: list[str] = []
        for op, operands in self.nodes:
            parts = [_text(o, names) for o in operands]
            if op == "symbol":
                names.append(f"s{operands[0]}")
            else:
                names.append(f"({parts[0]} {op} {parts[1]})" if op in BINARY else f"{op}({', '.join(parts)})")
        return _text(operand, names)

    @functools.cached_property
    def _compiled(self) -> Callable[[Sequence[int]], Any]:
        """All formulas as one Python function: every name in it is generated here, every number is an integer or a
        float."""
        names: list[str] = []
        lines = ["def compute(sizes):"]
        for k, (op, operands) in enumerate(self.nodes):
            if op == "symbol":
                code = f"sizes[{int(operands[0])}]"
            else:
                parts = [_text(o, names) for o in operands]
                code = f"{parts[0]} {op} {parts[1]}" if op in BINARY else f"CALLS[{op!r}]({', '.join(parts)})"
            lines.append(f"    n{k} = {code}")
            names.append(f"n{k}")
        parts = [_text(r, names) for r in self.results]
        if self.relations is not None:
            parts = [f"{part} {relation} 0" for part, relation in zip(parts, self.relations, strict=True)]
            lines.append(f"    return {' and '.join(parts) or 'True'}")
        else:
            lines.append(f"    return ({''.join(part + ', ' for part in parts)})")
        space: dict[str, Any] = {"CALLS": CALLS, "inf": math.inf, "nan": math.nan}
        exec(compile("\n".join(lines), "<formulas>", "exec"), space)
        return space["compute"]


def nodes_of(operand: Operand) -> list[int]:
    """The nodes that an operand refers to."""
    if not isinstance(operand, tuple):
        return []
    return [operand[1]] if operand[0] == "node" else [n for product, _ in operand[1] for n in product]


def _renumbered(operand: Operand, number: Mapping[int, int]) -> Operand:
    if not isinstance(operand, tuple):
        return operand
    if operand[0] == "node":
        return ("node", number[operand[1]])
    _, terms, const = operand
    return ("sum", tuple([(tuple([number[n] for n in product]), count) for product, count in terms]), const)


def _text(operand: Operand, names: Sequence[str]) -> str:
    if not isinstance(operand, tuple):
        return repr(float(operand)) if isinstance(operand, float) else f"({int(operand)})"
    if operand[0] == "node":
        return names[operand[1]]
    _, terms, const = operand
    parts = ["*".join([*([str(count)] if count != 1 else []), *[names[n] for n in p]]) for p, count in terms]
    text = " + ".join([*parts, *([str(const)] if const else [])])
    return text if len(terms) == 1 and not const and terms[0][1] == 1 and len(terms[0][0]) == 1 else f"({text})"
