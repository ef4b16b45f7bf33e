"""Lowers one node to Vulkan: by its declared operator, else through ONNX's function body."""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from gpu_shared.capabilities import DeviceCapabilities
from vkep.dtypes import DType
from vkep.errors import Decline, InvalidNode
from vkep.graph.model import Node
from vkep.graph.weights import MOST_AXES
from vkep.ir.builder import LARGEST, Builder, NeedsValue
from vkep.ir.tensor import Tensor
from vkep.ops import registry
from vkep.placement.functions import has_body, lower_function
from vkep.plan.memory import piece_of
from vkep.sizes import hint

#: exceptions of operator functions whose shapes and attributes break the operator's definition
_BROKEN = (IndexError, ValueError, ArithmeticError, MemoryError, struct.error)


def check_known(node: Node) -> None:
    """`Decline` a node that has neither a declaration nor a function body."""
    if registry.find(node) is None and not has_body(node):
        raise Decline(_why_undeclared(node))


def lower_node(
    b: Builder, node: Node, arguments: Sequence[Tensor | None], opsets: Mapping[str, int], in_body: bool = False
) -> Sequence[Tensor]:
    """The node's results; its operations are added to the builder. Raises `Decline`, `InvalidNode`.

    Where the declaration declines, the function body is tried, if there is one; the reported reason is the
    declaration's. ``in_body``: the node is one of a function body.
    """
    definition = registry.find(node)
    if definition is None:
        check_known(node)
    declined = ""
    if definition is not None:
        try:
            with b.attempt():
                return _declared(b, node, arguments, definition, in_body)
        except (NeedsValue, InvalidNode):
            raise
        except Decline as decline:
            if not has_body(node):
                raise
            declined = decline.reason

    outer = b.node

    def inner(part: Node, inputs: Sequence[Tensor | None], versions: Mapping[str, int]) -> Sequence[Tensor]:
        b.node = replace(part, name=outer.name if outer is not None else part.name)
        try:
            return lower_node(b, part, inputs, versions, in_body=True)
        finally:
            b.node = outer

    try:
        return lower_function(b, node, arguments, opsets, inner)
    except (NeedsValue, InvalidNode):
        raise
    except Decline:
        if declined:
            raise Decline(declined) from None
        raise


def _declared(
    b: Builder, node: Node, arguments: Sequence[Tensor | None], definition: registry.OperatorDef, in_body: bool
) -> Sequence[Tensor]:
    signature = definition.signature
    bound: dict[str, DType] = {}
    newest = None if node.schema is not None else next(iter(registry.onnx_history(node.op_type, node.domain)), None)
    constraints = tuple(f.type_str for f in newest.inputs) if newest is not None else node.constraints or None
    expected = _input_types(definition, constraints, len(arguments))
    for position, (tensor, (constraint, exact, allowed)) in enumerate(zip(arguments, expected, strict=True)):
        if tensor is None:
            if signature.variadic or (position < len(signature.inputs) and signature.needed[position]):
                raise InvalidNode(f"input {position} is missing")
            continue
        dtype = tensor.dtype
        if exact and exact != f"tensor({dtype.onnx_name})":
            raise InvalidNode(f"input {position} is {dtype}, expected {exact}")
        other = bound.setdefault(constraint, dtype)
        # floats may be mixed by an operator that is newer than the model's opset, which may be ONNX Runtime's own, and by
        # some of ONNX's function bodies
        mixed = other is not dtype if newest is None else other.glsl_compute != dtype.glsl_compute
        if constraint and not in_body and mixed:
            raise InvalidNode(f"input {position} is {dtype}, another one {other}: both must be of one type")
        if allowed is not None and dtype.name not in allowed:
            raise Decline(f"input {position} is {dtype}; the kernels take {', '.join(allowed)}")
    results = _call(definition, node, b, list(arguments))
    for tensor in results:  # also a view, which a plan may have to copy
        if tensor.size >= LARGEST:
            raise Decline(f"a result of shape {tensor.shape}; the kernels take 0 to 2**31 - 1 elements")
        if tensor.rank > MOST_AXES:
            raise InvalidNode(f"a result has {tensor.rank} axes, expected at most {MOST_AXES}")
    return results


@functools.lru_cache(4096)
def _input_types(
    definition: registry.OperatorDef, constraints: tuple[str, ...] | None, count: int
) -> tuple[tuple[str, str, tuple[str, ...] | None], ...]:
    """The element types that an operator's inputs may have: for each of ``count`` inputs the type parameter that it shares
    with others, the one type that it may have, and those that the kernels support ("" and None: any). ``constraints`` are the
    schema's, None where there is no schema: then types are grouped by the inputs' names.
    """
    shared = definition.constraints if constraints is None else constraints
    names = definition.signature.inputs if constraints is None else constraints
    further = constraints[-1] if constraints else ""  # a schema's last input may be variadic
    rows = []
    for position in range(count):
        constraint = shared[position] if position < len(shared) else further
        name = names[position] if position < len(names) else further
        exact = constraint if constraint.startswith("tensor(") else ""
        rows.append((constraint, exact, definition.types.get(name)))
    return tuple(rows)


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
    if not attributes.keys() <= signature.attributes.keys():
        for name in sorted(attributes.keys() - signature.attributes.keys()):
            if not _at_default(name, attributes.pop(name), definition, node):
                raise Decline(f"attribute {name!r} is not supported")
    for name in signature.required_attributes:
        if name not in attributes:
            raise InvalidNode(f"attribute {name!r} is missing")
    for name, value in attributes.items():
        default = signature.attributes[name]
        if not isinstance(default, (int, float, str)) or type(value) is type(default):
            continue
        # onnx's checker tells integers from floats, but has no schema for an operator of a later version
        if not (definition.checked and isinstance(value, (int, float)) and not isinstance(default, str)):
            raise InvalidNode(f"attribute {name!r} is {value!r}, expected {type(default).__name__}")
    try:
        result = definition.function(builder, *tensors, **signature.keywords(attributes, opset=node.since_version))
    except _BROKEN as error:
        raise Decline(f"its inputs and attributes do not fit together: {type(error).__name__}: {error}") from error
    return result if isinstance(result, (tuple, list)) else (result,)


def _at_default(name: str, value: object, definition: registry.OperatorDef, node: Node) -> bool:
    """Whether an attribute has its schema's default: it then counts as absent."""
    default = definition.fixed.get(name)
    if default is None and node.schema is not None and name in node.schema.attributes:
        default = registry.schema_default(node.schema, name)
    if isinstance(default, float) and isinstance(value, float):
        return math.isclose(value, default, rel_tol=1e-6)
    return default is not None and value == default


def _why_undeclared(node: Node) -> str:
    if node.schema is None:
        if known := registry.versions(node.domain, node.op_type):
            return f"{node.domain or 'ai.onnx'}.{node.op_type} is declared for versions {known}; the model imports {node.opset}"
        return f"{node.domain or 'ai.onnx'}.{node.op_type} is no operator that the onnx package or vkep knows"
    return f"no Vulkan kernel for {node.op_type} (version {node.since_version})"


def check_sizes(caps: DeviceCapabilities, tensors: Iterable[tuple[str, Tensor | None]], all_of_them: bool) -> None:
    """Raise `Decline` for tensors that exceed the device's largest buffer: inputs and weights only, or all. The current
    sizes are checked."""
    most = piece_of(caps.max_buffer_size)
    for name, tensor in tensors:
        if tensor is None or not (all_of_them or tensor.storage.port is not None or tensor.storage.is_constant):
            continue
        needed = hint(tensor.storage.nbytes)
        if needed > most:
            raise Decline(
                f"{name!r} needs {needed} bytes, and one buffer of {caps.name} holds at most {caps.max_buffer_size} "
                "(maxBufferSize)"
            )
