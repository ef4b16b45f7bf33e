"""The declarations of ONNX operators for TOSA: one function each, whose signature is the ONNX schema.

@tosa_operator("Relu", types=FLOATS) def relu(b: TosaBuilder, x: TosaTensor) -> TosaTensor:
return b.clamp(x, 0.0, None)

Positional parameters are the inputs (a default of None: optional; ``*inputs``: any number), keyword parameters the
attributes with ONNX's defaults. The function adds operations to the builder, or raises `Decline` with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vkep.errors import Decline
from vkep.graph.attributes import Signature, overlap
from vkep.graph.model import Node
from vkep.tosa.graph import Quantized, TosaBuilder, TosaTensor
from vkep.tosa.tables import with_table
from vkep.tosa.type_legalization import bits_of, shortened, widened

FLOATS = ("float32", "float16")
#: the types that TOSA's integer arithmetic supports at full width
NUMBERS = (*FLOATS, "int32")
ANY = (*FLOATS, "int32", "int16", "int8", "bool")
Function = Callable[..., Any]
_FACTS = ("version", "count")  #: parameters that are not attributes


@dataclass(frozen=True)
class TosaOperator:
    """A declared operator: ONNX versions, types and function."""

    op_type: str
    domain: str
    since: int
    until: int | None
    types: tuple[str, ...]  #: of the first input
    function: Function
    signature: Signature
    moves: bool
    pointwise: bool
    casts: bool

    def accepts_version(self, version: int) -> bool:
        """Whether a schema version is among the declared ones."""
        return self.since <= version and (self.until is None or version <= self.until)


_OPERATORS: dict[tuple[str, str], list[TosaOperator]] = {}


def tosa_operator(
    op_type: str,
    *,
    types: Collection[str],
    domain: str = "",
    since: int = 1,
    until: int | None = None,
    moves: bool = False,
    pointwise: bool = False,
) -> Callable[[Function], Function]:
    """Declare the lowering of an ONNX operator, from version ``since`` of its definition through ``until``.

    ``types`` are the element types of its first input. A parameter named ``version`` gets the definition's version, one
    named ``count`` the node's number of outputs. ``moves``: it only moves elements, so that int64 and unsigned tensors run
    in the types that store them. ``pointwise``: it works element by element.
    """

    def declare(function: Function) -> Function:
        made = TosaOperator(
            op_type=op_type,
            domain=domain,
            since=since,
            until=until,
            types=tuple(types),
            function=function,
            signature=Signature.of(function, _FACTS),
            moves=moves,
            pointwise=pointwise,
            casts="bfloat16" in types,
        )
        others = _OPERATORS.setdefault((domain, op_type), [])
        for other in others:
            if both := overlap((since, until), (other.since, other.until)):
                raise ValueError(f"{op_type}: {both} declared twice")
        others.append(made)
        return function

    return declare


def find(node: Node) -> TosaOperator | None:
    """The declaration for a node, or None."""
    for operator in _OPERATORS.get((node.domain, node.op_type), ()):
        if operator.accepts_version(node.since_version or operator.since):
            return operator
    return None


def declared() -> list[TosaOperator]:
    """Every declaration, by domain and name."""
    return [operator for key in sorted(_OPERATORS) for operator in _OPERATORS[key]]


def lower_node(b: TosaBuilder, node: Node, arguments: Sequence[TosaTensor | None]) -> list[TosaTensor]:
    """The node's results; its operations are added to the builder. Raises `Decline`; then the builder is unchanged."""
    operator = find(node)
    if operator is None:
        raise Decline(f"no TOSA lowering of {node.op_type} (version {node.since_version})")
    inputs, signature = list(arguments), operator.signature
    while inputs and inputs[-1] is None and len(inputs) > signature.required:
        inputs.pop()
    most = len(signature.inputs)
    if len(inputs) < signature.required or (len(inputs) > most and not signature.variadic):
        raise Decline(f"{len(inputs)} inputs; the TOSA lowering takes {signature.required} to {most}")
    short = not operator.casts and any(t is not None and t.dtype == "bfloat16" for t in inputs)
    if short:
        inputs = [widened(b, t) for t in inputs]
    first = inputs[0] if inputs else None
    stored = first.stored if first is not None and operator.moves else ""
    if first is not None and first.dtype not in operator.types and not stored:
        raise Decline(f"input 0 is {first.dtype}; the TOSA lowering takes {', '.join(operator.types)}")
    unknown = set(node.attributes) - set(signature.attributes)
    if unknown:
        raise Decline(f"the TOSA lowering knows no attribute {sorted(unknown)[0]!r}")
    attributes = signature.keywords(node.attributes, version=node.since_version, count=len(node.outputs))
    try:
        with b.attempt():
            if stored:
                inputs = [_as_stored(b, t, stored, i == 0 or signature.variadic) for i, t in enumerate(inputs)]
            made = operator.function(b, *inputs, **attributes)
    except (ValueError, IndexError, ZeroDivisionError, StopIteration) as error:
        # shapes that break ONNX's rules: the engine that runs the node reports them
        raise Decline(f"its inputs do not fit: {error}") from error
    results: list[TosaTensor] = list(made) if isinstance(made, (tuple, list)) else [made]
    if short:
        return [shortened(b, t, operator.moves) if t.dtype == "float32" else t for t in results]
    if stored:
        return [replace(t, stored=stored) for t in results]
    if operator.moves:
        return _with_integers(b, operator, inputs, attributes, results)
    if operator.pointwise and len(results) == 1:
        results = [with_table(operator.function, inputs, attributes, results[0])]
    return results


def _with_integers(
    b: TosaBuilder,
    operator: TosaOperator,
    inputs: Sequence[TosaTensor | None],
    attributes: Mapping[str, Any],
    results: list[TosaTensor],
) -> list[TosaTensor]:
    """The results of moving floats that represent integers of one scale: the integers are moved in the same way."""
    data = [t for t in (inputs if operator.signature.variadic else inputs[:1]) if t is not None]
    known = [t.quantized for t in data]
    if any(t.quantized is not None for t in results) or not all(q is not None and q.axis < 0 for q in known):
        return results
    first = known[0]
    assert first is not None
    if any(q is None or q.zero != first.zero or not np.array_equal(q.scale, first.scale) for q in known):
        return results
    ints = [q.ints for q in known if q is not None]
    moved = operator.function(b, *ints, *inputs[len(ints) :], **attributes)
    made = list(moved) if isinstance(moved, (tuple, list)) else [moved]
    return [replace(t, quantized=Quantized(i, first.scale, first.zero)) for t, i in zip(results, made, strict=True)]


def _as_stored(b: TosaBuilder, tensor: TosaTensor | None, stored: str, is_data: bool) -> TosaTensor | None:
    """The value that stores a tensor, for an operator that only moves elements."""
    if tensor is None or not is_data:
        return tensor
    if tensor.stored == stored:
        return replace(tensor, stored="")
    array = tensor.array
    if array is None or tensor.stored:
        raise Decline(f"{tensor.dtype} of different ranges side by side")
    return bits_of(b, tensor)


def constant_of(tensor: TosaTensor | None, what: str) -> Any:
    """The content of an input that must be known when the graph is made. Raises `Decline`."""
    array = tensor.array if tensor is not None else None
    if array is None:
        raise Decline(f"{what} must be a constant for TOSA")
    return array


def axis_of(axis: int, rank: int) -> int:
    """Normalize an axis. Raises `Decline` outside the rank."""
    if not -rank <= axis < rank:
        raise Decline(f"axis {axis} of a tensor of rank {rank}")
    return axis % rank
