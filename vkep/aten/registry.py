"""Declaring an operator of ExecuTorch's Vulkan backend: one function, whose parameters are the ATen schema's arguments.

    @aten("aten.leaky_relu.default")
    def leaky_relu(b: GraphBuilder, x: Val, negative_slope: float = 0.01) -> Val:
        return b.op("LeakyRelu", x, alpha=negative_slope)

The parameters after the builder stand in the schema's order, all of them; a blob has a value for each. A record of
`vkep.aten.arguments` stands for several. What the hint says is what arrives: the blob keeps 1 and 1.0 as one value, so
``int`` and ``float`` are converted. The function returns a `Val`, a number for an integer result, or a list where the
operator has several results; what it cannot express it declines. Results are cast to the element types that the blob
records.
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
    """An operator is declared twice, or its function cannot be one."""


@dataclass(frozen=True)
class AtenOperator:
    """One declared operator."""

    name: str  #: ``namespace.operator.overload``
    function: Function
    parameters: tuple[inspect.Parameter, ...]  #: the schema's arguments
    grouped: Callable[[Iterable[Any]], list[Any]]  #: the function's arguments from the schema's
    mutates: tuple[str, ...]  #: parameters that the operator writes; their new values follow its results

    @property
    def required(self) -> int:
        """Number of arguments without a default."""
        return sum(p.default is p.empty for p in self.parameters)


_OPERATORS: dict[str, AtenOperator] = {}
#: names without their namespace, as blobs write operators that are not of the edge dialect
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
    """A name as declarations write it: ``llama::update_cache`` is ``llama.update_cache.default``."""
    if name.startswith("<built-in function "):
        return name.removeprefix("<built-in function ").rstrip(">")
    if "::" in name:
        name = name.replace("::", ".")
        if name.count(".") == 1:
            name += ".default"
    return name


def find(name: str) -> AtenOperator | None:
    """The declaration of an operator as a blob or a registry names it."""
    name = canonical(name)
    return _OPERATORS.get(name) or _OPERATORS.get(_SHORT.get(name, ""))


def declared() -> Iterator[AtenOperator]:
    """Every declared operator, by name."""
    for name in sorted(_OPERATORS):
        yield _OPERATORS[name]
