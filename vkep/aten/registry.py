"""Declaring an operator of ExecuTorch's Vulkan backend: one function, whose parameters are the ATen schema's arguments.

    @aten("aten.leaky_relu.default")
    def leaky_relu(b: GraphBuilder, x: Val, negative_slope: float = 0.01) -> Val:
        return b.op("LeakyRelu", x, alpha=negative_slope)

The parameters after the builder are the schema's arguments, all of them and in order; a blob has a value for each. A
record of `vkep.aten.arguments` holds several. Arguments are converted to the type of the hint: the blob does not
distinguish 1 from 1.0. The function returns a `Val`, a number for an integer result, or a list where the operator has
several results. It declines a call that it cannot express. Results are cast to the element types that the blob records.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from vkep.aten.arguments import Parameters
from vkep.errors import VkepError

Function = Callable[..., Any]


class AtenDeclarationError(VkepError):
    """An operator is declared twice, or its function does not match its schema."""


@dataclass(frozen=True)
class AtenOperator:
    """One declared operator."""

    name: str  #: ``namespace.operator.overload``
    function: Function
    parameters: tuple[inspect.Parameter, ...]  #: the schema's arguments
    grouped: Callable[[Iterable[Any]], list[Any]]  #: converts the schema's arguments to the function's
    mutates: tuple[str, ...]  #: parameters that the operator writes in place; their new values follow its results

    @property
    def required(self) -> int:
        """Number of arguments without a default."""
        return sum(p.default is p.empty for p in self.parameters)


_OPERATORS: dict[str, AtenOperator] = {}
#: names without their namespace, which blobs use for operators outside the edge dialect
_SHORT: dict[str, str] = {}


def aten(*names: str, mutates: Sequence[str] = ()) -> Callable[[Function], Function]:
    """Declare an operator under one or more names (see the module's text)."""

    def declare(function: Function) -> Function:
        parameters = Parameters.of(function, skip=1)
        unknown = set(mutates) - {p.name for p in parameters.flat}
        if unknown:
            raise AtenDeclarationError(f"{names[0]}: mutates {sorted(unknown)}, which are no parameters")
        for name in names:
            if name in _OPERATORS:
                raise AtenDeclarationError(f"{name} is declared twice")
            _OPERATORS[name] = AtenOperator(name, function, parameters.flat, parameters.grouped, tuple(mutates))
            if "." in name:
                _SHORT.setdefault(name.partition(".")[2], name)
        return function

    return declare


def canonical(name: str) -> str:
    """Convert a name to the form of declarations: ``llama::update_cache`` is ``llama.update_cache.default``."""
    if name.startswith("<built-in function "):
        return name.removeprefix("<built-in function ").rstrip(">")
    if "::" in name:
        name = name.replace("::", ".")
        if name.count(".") == 1:
            name += ".default"
    return name


def find(name: str) -> AtenOperator | None:
    """Return the declaration of an operator by the name that a blob or a registry uses."""
    name = canonical(name)
    return _OPERATORS.get(name) or _OPERATORS.get(_SHORT.get(name, ""))


def declared() -> Iterator[AtenOperator]:
    """Every declared operator, by name."""
    for name in sorted(_OPERATORS):
        yield _OPERATORS[name]
