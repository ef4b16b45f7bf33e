"""One node onto Vulkan: by its declared operator, else through the function body that ONNX gives it."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace

from vkep.dtypes import DType
from vkep.errors import Decline, InvalidNode
from vkep.graph.model import Node
from vkep.ir.builder import Builder, NeedsValue
from vkep.ir.tensor import Tensor
from vkep.ops import registry
from vkep.placement.functions import has_body, lower_function

#: what an operator function runs into when shapes and attributes break the operator's definition
_BROKEN = (IndexError, ValueError, ArithmeticError, MemoryError, struct.error)


def check_known(node: Node) -> None:
    """`Decline` a node that has neither a declaration nor a function body."""
    if registry.find(node) is None and not has_body(node):
        raise Decline(_why_undeclared(node))


def lower_node(
    b: Builder, node: Node, arguments: Sequence[Tensor | None], opsets: Mapping[str, int]
) -> Sequence[Tensor]:
    """The node's results; its operations are added to the builder. Raises `Decline`, `InvalidNode`.

    A declaration that declines is followed by the function body, where there is one; the reason told is the
    declaration's.
    """
    definition = registry.find(node)
    if definition is None:
        check_known(node)
    declined: Decline | None = None
    if definition is not None:
        operations = len(b.ops)
        try:
            return _declared(b, node, arguments, definition)
        except (NeedsValue, InvalidNode):
            raise
        except Decline as decline:
            if not has_body(node):
                raise
            del b.ops[operations:]
            declined = decline

    outer = b.node

    def inner(part: Node, inputs: Sequence[Tensor | None], versions: Mapping[str, int]) -> Sequence[Tensor]:
        b.node = replace(part, name=outer.name if outer is not None else part.name)
        try:
            return lower_node(b, part, inputs, versions)
        finally:
            b.node = outer

    try:
        return lower_function(b, node, arguments, opsets, inner)
    except (NeedsValue, InvalidNode):
        raise
    except Decline:
        if declined is not None:
            raise declined from None
        raise


def _declared(
    b: Builder, node: Node, arguments: Sequence[Tensor | None], definition: registry.OperatorDef
) -> Sequence[Tensor]:
    signature = definition.signature
    # an operator without a schema has its types by the names of its inputs
    constraints = node.constraints if node.schema is not None else signature.inputs
    shared = constraints if node.schema is not None else definition.constraints
    bound: dict[str, DType] = {}
    for position, tensor in enumerate(arguments):
        if tensor is None:
            if signature.variadic or (position < len(signature.inputs) and signature.needed[position]):
                raise InvalidNode(f"input {position} is missing")
            continue
        if shared and (position < len(shared) or node.schema is not None):  # a schema's last one may be variadic
            constraint = shared[min(position, len(shared) - 1)]
            if constraint.startswith("tensor(") and constraint != f"tensor({tensor.dtype.onnx_name})":
                raise InvalidNode(f"input {position} is {tensor.dtype}, expected {constraint}")
            same = bound.setdefault(constraint, tensor.dtype)
            if same is not tensor.dtype:
                raise InvalidNode(f"input {position} is {tensor.dtype}, another one {same}: both must be of one type")
        name = tensor.dtype.name
        if position < len(constraints):
            allowed = definition.types.get(constraints[position])
        elif node.schema is not None and constraints:  # the last one is variadic
            allowed = definition.types.get(constraints[-1])
        else:
            allowed = None
        if allowed is not None and name not in allowed:
            raise Decline(f"input {position} is {tensor.dtype}; the kernels take {', '.join(allowed)}")
    results = _call(definition, node, b, list(arguments))
    for tensor in results:
        b.check_storage(tensor.dtype)
    return results


def _call(
    definition: registry.OperatorDef, node: Node, builder: Builder, tensors: list[Tensor | None]
) -> Sequence[Tensor]:
    signature = definition.signature
    while tensors and tensors[-1] is None and len(tensors) > signature.required:
        tensors.pop()
    most = len(signature.inputs)
    if len(tensors) < signature.required:
        raise InvalidNode(f"{len(tensors)} inputs; it has {signature.required} to {most}")
    if len(tensors) > most and not signature.variadic:
        raise Decline(f"{len(tensors)} inputs; the kernel takes {signature.required} to {most}")
    attributes = dict(node.attributes)
    unknown = (
        () if attributes.keys() <= signature.attributes.keys() else attributes.keys() - signature.attributes.keys()
    )
    for name in sorted(unknown):
        if not _at_default(name, attributes.pop(name), definition, node):
            raise Decline(f"attribute {name!r} is not supported")
    for name in signature.required_attributes:
        if name not in attributes:
            raise InvalidNode(f"attribute {name!r} is missing")
        typed = not definition.checked and isinstance(default, (int, float, str)) and name in attributes
        if typed and type(attributes[name]) is not type(default):
            raise InvalidNode(f"attribute {name!r} is {attributes[name]!r}, expected {type(default).__name__}")
    try:
        result = definition.function(builder, *tensors, **signature.keywords(attributes, opset=node.since_version))
    except _BROKEN as error:
        raise Decline(f"its inputs and attributes do not fit together: {type(error).__name__}: {error}") from error
    return result if isinstance(result, (tuple, list)) else (result,)


def _at_default(name: str, value: object, definition: registry.OperatorDef, node: Node) -> bool:
    """Whether an attribute has the default that its schema gives it: it is as good as absent."""
    default = definition.fixed.get(name)
    if default is None and node.schema is not None and name in node.schema.attributes:
        default = registry.schema_default(node.schema, name)
    if isinstance(default, float) and isinstance(value, float):
        return math.isclose(value, default, rel_tol=1e-6)
    return default is not None and value == default


def _why_undeclared(node: Node) -> str:
    if node.schema is None:
        return f"{node.domain or 'ai.onnx'}.{node.op_type} is no operator that the onnx package or vkep knows"
    return f"no Vulkan kernel for {node.op_type} (version {node.since_version})"
