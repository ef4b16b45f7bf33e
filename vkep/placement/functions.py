"""Operators that ONNX defines by a function body: their nodes are lowered by the body where they have no kernel."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from vkep.dtypes import DTYPES, DType
from vkep.errors import Decline, InvalidModelError
from vkep.graph.load import read_graph
from vkep.graph.model import Node
from vkep.graph.weights import ArrayWeight, SizesWeight, Weight
from vkep.ir.builder import Builder, NeedsValue
from vkep.ir.infer import Known, infer, shape_of, tied_types
from vkep.ir.program import ValueSpec
from vkep.ir.tensor import Tensor
from vkep.placement.control import MAX_UNROLLED_NODES, HostDriven, expand, is_control
from vkep.placement.fold import COPIES, FoldError, can_fold
from vkep.placement.fold_sizes import fold_with_sizes
from vkep.placement.inlined import NeedsContent
from vkep.sizes import fixed, serves_others

#: operators of a body that keeps its narrow types
_PRODUCTS = {"Conv", "Einsum", "Gemm", "MatMul"}
_NARROW = (DTYPES["float16"], DTYPES["bfloat16"])
#: lowers one node of a body: (node, arguments, the body's opsets) to results; raises `Decline`
LowerNode = Callable[[Node, Sequence[Tensor | None], Mapping[str, int]], Sequence[Tensor]]


def has_body(node: Node) -> bool:
    """Whether ONNX gives the node's operator a function body."""
    schema: Any = node.schema  # the package's type hints lack function bodies
    return schema is not None and (schema.has_function or schema.has_context_dependent_function)


def lower_function(
    b: Builder, node: Node, arguments: Sequence[Tensor | None], opsets: Mapping[str, int], lower_node: LowerNode
) -> list[Tensor]:
    """Lower a node through its function body: all of it, or raise `Decline` (`InvalidNode`) with the reason of a node
    in its body.

    Of float16 and bfloat16 it is computed in float32, as a kernel would: between its nodes squares and sums overflow. A body with
    products is not, since their kernels are faster in the narrower types and accumulate in float32.

    A body that needs a value raises `NeedsValue` naming the node's inputs that the value is computed from.
    """
    body = _body(node, arguments, opsets.get(node.domain, 0))
    kinds = {inner.op_type for inner in body.node}
    if not kinds & _PRODUCTS and not kinds <= COPIES and _narrow(node, arguments):
        widened = [None if t is None else _widened(b, t) for t in arguments]
        results = lower_function(b, node, widened, opsets, lower_node)
        return [b.cast(t, kind) for t, kind in zip(results, _types(node, arguments, results, opsets), strict=True)]
    versions = {"": opsets.get("", onnx.defs.onnx_opset_version()), **{o.domain: o.version for o in body.opset_import}}
    env: dict[str, Tensor | None] = {}
    origin: dict[str, frozenset[str]] = {}  # maps a value to the node's inputs that its content depends on
    for name, argument, outer in zip(
        body.input, [*arguments, *[None] * len(body.input)], [*node.inputs, *[""] * len(body.input)], strict=False
    ):
        env[name] = argument
        origin[name] = frozenset([outer] if outer else [])
    pending = deque(_nodes(node, body, versions))
    while pending:
        inner = pending.popleft()
        if is_control(inner):
            pending.extendleft(reversed(_expanded(b, node, inner, env, origin, versions)))
            continue
        inputs = [env.get(n) if n else None for n in inner.inputs]
        sources = frozenset[str]().union(*(origin.get(n, frozenset()) for n in inner.inputs))
        try:
            computed = _folded(b, inner, inputs, versions) or lower_node(inner, inputs, versions)
        except NeedsValue as need:
            asked = _asked(need, inner, inputs)
            wanted = frozenset[str]().union(*(origin.get(n, frozenset()) for n in asked))
            need.names = tuple(n for n in node.inputs if n in wanted)
            raise need
        except Decline as decline:
            raise type(decline)(f"{inner.op_type} in its function body: {decline.reason}") from None
        if inner.op_type in ("Shape", "Size"):
            sources = frozenset()
        for name, tensor in zip(inner.outputs, computed, strict=False):
            if name:
                env[name], origin[name] = tensor, sources
    made = [env.get(name) for name in body.output]
    spare = next((t for t in made if t is not None), None)
    outputs: list[Tensor] = []
    for k, name in enumerate(node.outputs):
        result = made[k] if made[k] is not None or name else spare  # an output that nothing reads may have any value
        if result is None:
            raise Decline(f"its function body makes no output {name!r}")
        outputs.append(result)
    return outputs


def _narrow(node: Node, arguments: Sequence[Tensor | None]) -> bool:
    """Whether some inputs are of 16-bit floats, which their operator takes."""
    schema: Any = node.schema
    last = len(schema.inputs) - 1
    types = [
        (t.dtype, schema.inputs[min(k, last)].types)
        for k, t in enumerate(arguments)
        if t is not None and t.dtype in _NARROW
    ]
    return bool(types) and all(f"tensor({dtype.onnx_name})" in allowed for dtype, allowed in types)


def _types(
    node: Node, arguments: Sequence[Tensor | None], results: Sequence[Tensor], opsets: Mapping[str, int]
) -> Sequence[DType]:
    """The element types of the results: by ONNX's inference, else that of an input that the schema ties them to."""
    known: dict[str, Known] = {
        name: ValueSpec(t.dtype, t.shape) for name, t in zip(node.inputs, arguments, strict=False) if t is not None
    }
    specs = infer(node, known, opsets)
    tied = tied_types(node, [None if t is None else t.dtype for t in arguments])
    return [
        spec.dtype if spec else tied.get(k, t.dtype) for k, (spec, t) in enumerate(zip(specs, results, strict=True))
    ]


def _widened(b: Builder, tensor: Tensor) -> Tensor:
    if tensor.dtype not in _NARROW:
        return tensor
    known = tensor.array
    return b.cast(tensor, DTYPES["float32"]) if known is None else b.constant(known.astype(np.float32))


def _asked(need: NeedsValue, node: Node, inputs: Sequence[Tensor | None]) -> Sequence[str]:
    """The inputs of a node whose content is needed: those that it names, else those that contain the tensor."""
    pairs = zip(node.inputs, inputs, strict=True)
    return need.names or [n for n, t in pairs if t is not None and t.storage is need.tensor.storage] or node.inputs


def _expanded(
    b: Builder,
    node: Node,
    inner: Node,
    env: dict[str, Tensor | None],
    origin: dict[str, frozenset[str]],
    versions: Mapping[str, int],
) -> list[Node]:
    """The nodes that replace a control-flow node of the body; their constants are added to ``env``."""
    known = {n: _known(n, t) for n in inner.reads if (t := env.get(n)) is not None}
    missing = [n for n in inner.reads if n not in known]
    if missing:
        raise Decline(f"{inner.op_type} in its function body reads the absent {missing[0]!r}")
    expansion = expand(inner, known, versions, MAX_UNROLLED_NODES, by_session=False)
    if isinstance(expansion, HostDriven):
        raise Decline(f"{inner.op_type} in its function body: {expansion.reason}")
    if isinstance(expansion, NeedsContent):
        tensor = env[expansion.name]
        assert tensor is not None
        need = NeedsValue(f"{inner.op_type} in its function body: {expansion.reason}", tensor)
        need.names = tuple(n for n in node.inputs if n in origin.get(expansion.name, frozenset()))
        raise need
    for name, weight in expansion.weights.items():
        env[name], origin[name] = b.weight(weight), frozenset()
    return expansion.nodes


def _known(name: str, tensor: Tensor) -> Weight | ValueSpec:
    array = tensor.array
    if array is None:
        return ValueSpec(tensor.dtype, tensor.shape)
    if array.dtype == object:
        return SizesWeight(name, array, tensor.dtype.onnx)
    return ArrayWeight(name, np.asarray(array, order="C"))  # `ascontiguousarray` gives a scalar an axis


def _body(node: Node, arguments: Sequence[Tensor | None], opset: int) -> onnx.FunctionProto:
    """The body for the newest version of the model's opset or below."""
    schema: Any = node.schema
    plain = [v for v in schema.function_opset_versions if v <= opset]
    if plain:
        body = schema.get_function_with_opset_version(max(plain))
    else:
        versions = [v for v in schema.context_dependent_function_opset_versions if v <= opset]
        if not versions:
            raise Decline(f"{node.op_type} has no function body for opset {opset}")
        body = _body_for(node, arguments, max(versions), None)
        if not body and any(serves_others(d) for t in arguments if t is not None for d in t.shape):
            body = _body_for(node, arguments, max(versions), _numbered)  # the body differs for other sizes
    if isinstance(body, bytes):
        body = onnx.FunctionProto.FromString(body)
    if not body.node:
        raise Decline(f"{node.op_type} has no function body for these inputs")
    return body


def _numbered(size: int) -> int:
    return int(fixed(size, "onnx's function body depends on the size"))


def _body_for(node: Node, arguments: Sequence[Tensor | None], version: int, size: Callable[[int], int] | None) -> Any:
    """The body for the arguments' types. ``size`` converts symbolic sizes to numbers; without it they are left open."""
    types = [onnx.TypeProto() for _ in arguments]
    for made, t in zip(types, arguments, strict=True):
        if t is not None:
            shape = [d if not serves_others(d) else size and size(d) for d in t.shape]
            made.CopyFrom(helper.make_tensor_type_proto(t.dtype.onnx, shape))
    schema: Any = node.schema
    return schema.get_context_dependent_function_with_opset_version(
        version, node.proto.SerializeToString(), [t.SerializeToString() for t in types]
    )


def _nodes(node: Node, body: onnx.FunctionProto, versions: Mapping[str, int]) -> Sequence[Node]:
    """The body's nodes with the node's attributes (or their defaults) in place of the references to them."""
    assert node.schema is not None
    given = {a.name: a for a in node.proto.attribute}
    for name, spec in node.schema.attributes.items():
        if name not in given and spec.default_value.name:
            given[name] = spec.default_value
    graph = onnx.GraphProto(name=node.op_type)
    for proto in body.node:
        copy = graph.node.add()
        copy.CopyFrom(proto)
        del copy.attribute[:]
        for attribute in proto.attribute:
            if not attribute.ref_attr_name:
                copy.attribute.add().CopyFrom(attribute)
            elif attribute.ref_attr_name in given:
                value = copy.attribute.add()
                value.CopyFrom(given[attribute.ref_attr_name])
                value.name = attribute.name
        if proto.op_type == "Constant" and proto.domain in ("", "ai.onnx"):
            _plain_constant(copy)
    return _with_constants(graph, versions)


def _plain_constant(proto: onnx.NodeProto) -> None:
    """Set a Constant's value as a tensor, whichever attribute holds it."""
    if len(proto.attribute) != 1:
        raise Decline("a Constant in its function body has no value")
    [attribute] = proto.attribute
    kinds = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
    if attribute.name in kinds:
        array = np.array(helper.get_attribute_value(attribute), kinds[attribute.name])
        del proto.attribute[:]
        proto.attribute.append(helper.make_attribute("value", numpy_helper.from_array(array)))


def _with_constants(graph: onnx.GraphProto, versions: Mapping[str, int]) -> Sequence[Node]:
    """Read the nodes, keeping Constants (which `read_graph` turns into weights) as nodes."""
    nodes: list[Node] = []
    for proto in graph.node:
        alone = onnx.GraphProto(name=graph.name, node=[proto])
        try:
            found = read_graph(alone, versions, None, onnx.IR_VERSION, "")
        except InvalidModelError as error:
            raise Decline(f"its function body cannot be read alone: {error}") from None
        if found.nodes:
            nodes += found.nodes
        else:
            nodes.append(Node(len(nodes), "", "Constant", "", (), tuple(proto.output), {}, proto))
    return nodes


def _folded(
    b: Builder, node: Node, inputs: Sequence[Tensor | None], versions: Mapping[str, int]
) -> Sequence[Tensor] | None:
    """The results that planning knows: constants, shapes, and values computed from them."""
    if node.op_type == "Constant":
        try:
            return [b.constant(numpy_helper.to_array(node.proto.attribute[0].t))]
        except (TypeError, IndexError, ValueError) as error:  # onnx writes some bodies only for a few types
            raise Decline(f"the constant {node.outputs[0]!r} of its function body has no value: {error}") from None
    first = inputs[0] if inputs else None
    if node.op_type in ("Shape", "Size") and first is not None:
        return [b.weight(shape_of(node, "", first.shape))]
    known = [None if t is None else _known("", t) for t in inputs]
    if not can_fold(node) or any(isinstance(value, ValueSpec) for value in known):
        return None
    weights = [value if isinstance(value, Weight) else None for value in known]
    try:
        results = fold_with_sizes(node, weights, versions)
    except FoldError:
        return None
    if results is None:
        return None
    return [b.weight(w or ArrayWeight("", np.zeros(0, np.float32))) for w in results]
