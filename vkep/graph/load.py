"""Reads a model: bytes to `Model`; an invalid model is reported in one sentence."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import helper

from vkep.errors import InvalidModelError, UnsupportedModelError
from vkep.graph import wire
from vkep.graph.files import FileBytes, FilePart, FileReader, file_identity
from vkep.graph.initializers import without_files
from vkep.graph.kinds import other_kind
from vkep.graph.model import Dim, Graph, Model, ModelMetadata, Node, ValueInfo
from vkep.graph.normalize import bodies, captured, normalize
from vkep.graph.unchecked import ignored_attributes, with_ignored_attributes
from vkep.graph.weights import Content, ProtoWeight, Weight, make_weight

logger = logging.getLogger("vkep.graph")
#: model files up to this many bytes are read at once
_AT_ONCE = 1 << 20
ModelSource = str | os.PathLike[str] | bytes | bytearray | memoryview | onnx.ModelProto | Model


def load_model(
    source: ModelSource,
    *,
    base_dir: str | os.PathLike[str] | None = None,
    unknown_attributes: str = "warn",
    max_nodes: int | None = None,
    given: Collection[str] = (),
    files: Mapping[str, bytes] | None = None,
) -> Model:
    """Read a model from a path, its bytes, or a ``ModelProto``.

    Weights in external files are searched beside the model, or in ``base_dir``; ``files`` has the content of some of them by
    location, and ``given`` names initializers that the caller replaces (`without_files`). Attributes that are ignored
    (`unchecked`) are warned of, or with ``unknown_attributes="error"`` an `InvalidModelError`. Raises
    `FileNotFoundError`, `InvalidModelError` (no ONNX model, or one that breaks the specification), `UnsupportedModelError`
    (compiled or optimized for ONNX Runtime alone, or of more than ``max_nodes`` nodes after its functions are inlined) or
    `TypeError`.
    """
    if isinstance(source, Model):  # read already, and may have been rewritten
        return source
    read = _read(source, Path(base_dir) if base_dir is not None else None)
    proto, name, contents = without_files(read.proto, given, files or {}), read.name, read.contents
    if not proto.HasField("graph") or not proto.opset_import:
        raise InvalidModelError(
            f"{name} is not an ONNX model: it has no {'graph' if proto.opset_import else 'opset import'}"
        )
    opsets = {_domain(o.domain): o.version for o in proto.opset_import}
    for what, version, least in (
        ("IR version", proto.ir_version, 0),
        *((f"opset of {d or 'ai.onnx'!r}", v, int(d == "")) for d, v in opsets.items()),
    ):
        if not least <= version < 1 << 31:
            raise InvalidModelError(
                f"{name}: its {what} is {version}, expected a number from {least} to {(1 << 31) - 1}"
            )
    newest = onnx.defs.onnx_opset_version()
    if opsets.get("", 0) > newest:
        raise InvalidModelError(
            f"{name} uses ai.onnx opset {opsets['']}; the installed onnx package knows up to {newest}: upgrade onnx"
        )
    _check_size(proto, name, max_nodes)
    if proto.functions:
        from onnx import inliner

        opsets |= _imports_of_functions(proto, opsets, name)
        try:
            proto = inliner.inline_local_functions(proto)
        except (onnx.checker.ValidationError, RuntimeError) as error:
            raise InvalidModelError(f"{name}: its functions cannot be inlined: {error}") from error
    proto = normalize(proto, name)
    for node, unknown in with_ignored_attributes(proto.graph):
        text = f"{name}: {node.op_type} {node.name!r} has no attribute {', '.join(map(repr, sorted(unknown)))}"
        if unknown_attributes == "error":
            raise InvalidModelError(text)
        logger.warning("%s: ignored", text)
    graph = read_graph(proto.graph, opsets, read.folder, proto.ir_version, name, contents)
    if _COMPILED[0] in opsets or _CPU_LAYOUT in opsets:
        _refuse_compiled(graph, name)
    return Model(
        graph=graph,
        opsets=opsets,
        ir_version=proto.ir_version,
        source=name,
        metadata=ModelMetadata(
            producer_name=proto.producer_name,
            graph_name=proto.graph.name,
            domain=proto.domain,
            description=proto.doc_string,
            graph_description=proto.graph.doc_string,
            version=proto.model_version,
            custom_metadata_map={p.key: p.value for p in proto.metadata_props},
        ),
        file_identity="" if files else read.identity,
    )


#: domain and operator of the nodes that ONNX Runtime's providers compile to
_COMPILED = ("com.microsoft", "EPContext")
#: domain of the operators in the layout of ONNX Runtime's kernels for one processor
_CPU_LAYOUT = "com.microsoft.nchwc"


def _refuse_compiled(graph: Graph, name: str) -> None:
    if any(node.domain == _CPU_LAYOUT for node in graph.nodes):
        raise UnsupportedModelError(
            f"{name} was optimized for the CPU kernels of ONNX Runtime on one processor ({_CPU_LAYOUT}): save it with "
            "graph_optimization_level ORT_ENABLE_EXTENDED, or open the model that it was made from"
        )
    node = next((n for n in graph.nodes if (n.domain, n.op_type) == _COMPILED), None)
    if node is not None:
        provider = str(node.attributes.get("source", "a provider it does not name"))
        which = "vkep.ort" if provider == "VulkanExecutionProvider" else "that provider"
        raise UnsupportedModelError(
            f"{name} is compiled for ONNX Runtime (EPContext of {provider}): open it with onnxruntime and {which}, "
            "or open the model that it was compiled from"
        )


def _imports_of_functions(proto: onnx.ModelProto, opsets: Mapping[str, int], name: str) -> dict[str, int]:
    """The versions of domains that only functions import."""
    found: dict[str, int] = {}
    for function in proto.functions:
        for domain, version in ((_domain(o.domain), o.version) for o in function.opset_import):
            if domain not in opsets and found.setdefault(domain, version) != version:
                raise InvalidModelError(
                    f"{name}: its functions import versions {found[domain]} and {version} of {domain!r}, expected one version"
                )
    return found


_TERM = rb"[A-Za-z]*(?:\.\.\.[A-Za-z]*)?"
#: of Einsum, without spaces: for some other texts ONNX's shape inference does not end
_EQUATION = re.compile(rb"%b(?:,%b)*(?:->%b)?" % (_TERM, _TERM, _TERM))
#: graphs that lie in one another, with functions inlined; protobuf reads 33 from bytes
MOST_DEPTH = 24


def _check_size(proto: onnx.ModelProto, name: str, most: int | None) -> None:
    """Check the number of nodes, and how deep graphs lie in one another, before functions are inlined: a kilobyte of functions
    may expand to any number."""
    functions = {(_domain(f.domain), f.name, f.overload): f.node for f in proto.functions}
    known: dict[tuple[str, str, str], tuple[int, int]] = {}
    entered: set[tuple[str, str, str]] = set()

    def called(node: onnx.NodeProto) -> tuple[int, int]:
        key = (_domain(node.domain), node.op_type, node.overload)
        if key in functions and key not in known:
            if key in entered:
                raise InvalidModelError(f"{name}: the function {node.op_type!r} calls itself")
            entered.add(key)
            known[key] = measure(functions[key])
        return known.get(key, (1, 1))

    def measure(nodes: Iterable[onnx.NodeProto]) -> tuple[int, int]:
        """The number of nodes, and of graphs in one another."""
        total, deepest = 0, 1
        for node in nodes:
            count, depth = called(node) if functions else (1, 1)
            for body in bodies(node):
                inside, below = measure(body.node)
                count, depth = count + inside, max(depth, below + 1)
            total, deepest = total + count, max(deepest, depth)
        return total, deepest

    try:
        found, depth = measure(proto.graph.node)
    except RecursionError:
        raise InvalidModelError(f"{name}: its functions or bodies lie too deep in one another") from None
    if depth > MOST_DEPTH:
        raise UnsupportedModelError(
            f"{name} has {depth} graphs in one another (bodies of If, Loop and Scan), expected at most {MOST_DEPTH}: "
            "flatten its control flow"
        )
    if most is not None and found > most:
        raise UnsupportedModelError(f"{name} has {found} nodes, its functions laid out; max_nodes is {most}")


def _domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def read_graph(
    proto: onnx.GraphProto,
    opsets: Mapping[str, int],
    folder: Path | None,
    ir_version: int,
    where: str,
    contents: Mapping[int, Content] | None = None,
    *,
    check_nodes: bool = True,
) -> Graph:
    """Read one graph (a model's, or the body of a control-flow operator). ``contents`` are the bytes of the
    initializers that ``proto`` was read without, by index. ``where`` begins error messages. Without ``check_nodes`` another
    engine has checked the nodes by their schemas.

    Raises `InvalidModelError` where the graph contradicts the specification.
    """
    _check_names(proto, where)
    contents = contents or {}
    weights: dict[str, Weight] = {
        t.name: make_weight(t, folder, contents.get(index)) for index, t in enumerate(proto.initializer)
    }
    nodes: list[Node] = []
    for index, node in enumerate(proto.node):
        constant = _constant(node, folder)
        if constant is not None:
            weights[node.output[0]] = constant
        else:
            title = f"{where}, node {index}"
            nodes.append(_read_node(node, len(nodes), opsets, ir_version, title, folder, check=check_nodes))
    inputs = tuple(_value_info(v) for v in proto.input if v.name not in weights)
    outputs = tuple(_value_info(v) for v in proto.output)
    _check_names_once(nodes, inputs, weights, where)
    # Before IR version 4 every initializer was listed as an input, and none could be replaced.
    replaceable = tuple(_value_info(v) for v in proto.input if v.name in weights) if ir_version >= 4 else ()
    graph = Graph(proto.name, tuple(nodes), inputs, outputs, weights, replaceable)
    known = ({v.name for v in inputs} | set(weights) | {o for n in graph.nodes for o in n.outputs}) - {""}
    for output in outputs:
        if output.name not in known and where:
            raise InvalidModelError(f"{where}: output {output.name!r} is made by no node")
    return graph


def _check_names(proto: onnx.GraphProto, where: str) -> None:
    """Check that names are text: protobuf returns text that is not UTF-8 as bytes. Such a file is damaged."""
    names = [v.name for part in (proto.input, proto.output, proto.initializer) for v in part]
    for node in proto.node:
        names += [node.op_type, node.domain, node.name, *node.input, *node.output, *(a.name for a in node.attribute)]
        for attribute in node.attribute:
            for body in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
                _check_names(body, where)
    broken = next((name for name in names if not isinstance(name, str)), None)
    if broken is not None:
        raise InvalidModelError(f"{where} is not an ONNX model, or is damaged: the name {broken!r} is no UTF-8 text")


@dataclass(frozen=True)
class _Read:
    proto: onnx.ModelProto  #: without the bytes of its large initializers
    folder: Path | None  #: of external data
    name: str  #: the model's name in messages
    contents: dict[int, Content]  #: those bytes, by the initializers' places
    identity: str = ""


def _read(source: Any, base_dir: Path | None) -> _Read:
    contents: dict[int, Content] = {}
    identity = ""
    if isinstance(source, onnx.ModelProto):
        return _Read(source, base_dir, "the model", contents)
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        base_dir, name = base_dir or path.parent, str(path)
        data, size, contents, identity = _read_file(path)
    elif isinstance(source, (bytes, bytearray, memoryview)):
        view = memoryview(source).cast("B")
        size, name = len(view), f"the model ({len(source)} bytes)"
        data, raw = wire.split(view) or (bytes(view), [])
        for one in raw:
            held = _Held(view[one.start : one.end])
            contents[one.initializer] = held if isinstance(source, bytes) else _Held(held().data)
    else:
        raise TypeError(f"a model is a path, bytes or onnx.ModelProto; got {type(source).__name__}")
    if not size:
        raise InvalidModelError(f"{name} is not an ONNX model: it is empty")
    kind = other_kind(bytes(data[:512]))
    if kind:
        raise InvalidModelError(f"{name} is not an ONNX model: it is {kind}")
    try:
        return _Read(onnx.ModelProto.FromString(data), base_dir, name, contents, identity)
    except DecodeError as error:
        raise InvalidModelError(
            f"{name} is not an ONNX model, or is truncated: {size} bytes that do not parse as a ModelProto ({error})"
        ) from None


class _Held:
    """Bytes in memory, as `Content`."""

    def __init__(self, view: memoryview) -> None:
        self._view, self.nbytes = view, view.nbytes

    def __call__(self) -> np.ndarray:
        return np.array(self._view)  # aligned for any element type

    def read_into(self, out: np.ndarray, start: int = 0) -> None:
        out[:] = self._view[start : start + out.nbytes]


def _read_file(path: Path) -> tuple[bytes, int, dict[int, Content], str]:
    """Open a model file (its large initializers are read on use). Returns it, its size and identity. Raises
    ``FileNotFoundError``, and `InvalidModelError` for a file that is too large for a model."""
    reader = FileReader(path)
    size = reader.status.st_size
    if size == 0:
        return b"", 0, {}, ""
    data: FileBytes | memoryview = FileBytes(reader)
    if size <= _AT_ONCE:
        data = data[:]  # type: ignore[assignment]
    split = wire.split(data)
    if split is None and size > wire.MOST_BYTES:
        raise InvalidModelError(
            f"{path} is not an ONNX model, or is damaged: it has {size} bytes, expected at most {wire.MOST_BYTES} besides the "
            "raw data of its initializers (save larger tensors as external data)"
        )
    found, raw = split or (bytes(data[:]), [])
    parts = {r.initializer: FilePart(reader, r.start, r.end) for r in raw}
    contents: dict[int, Content] = dict(parts)
    if not hasattr(os, "preadv"):  # Windows, where an open file cannot be replaced
        contents = {index: _Held(part().data) for index, part in parts.items()}
    return found, size, contents, file_identity(path, reader.status)


def _read_node(
    proto: onnx.NodeProto,
    index: int,
    opsets: Mapping[str, int],
    ir_version: int,
    where: str,
    folder: Path | None,
    *,
    check: bool,
) -> Node:
    domain = _domain(proto.domain)
    schema = None
    if domain in opsets:
        try:
            schema = onnx.defs.get_schema(proto.op_type, opsets[domain], domain)
        except onnx.defs.SchemaError:
            schema = None
    elif domain == "":
        raise InvalidModelError(
            f"{where}: {proto.op_type} needs an opset import for ai.onnx; the model has {dict(opsets)}"
        )
    if not domain and proto.op_type == "Einsum":
        _check_equation(proto, where)
    captures = tuple(dict.fromkeys(c for body in bodies(proto) for c in captured(body)))
    if schema is not None and check:
        context = onnx.checker.C.CheckerContext()
        context.ir_version = ir_version
        context.opset_imports = dict(opsets)
        try:
            if captures:  # the checker must see a graph that defines them
                onnx.checker.check_graph(_graph_around(proto, captures), context)
            else:
                onnx.checker.check_node(proto, context)
        except onnx.checker.ValidationError as error:
            raise InvalidModelError(f"{where} ({proto.op_type} {proto.name!r}): {str(error).strip()}") from None
    return Node(
        index=index,
        name=proto.name or f"{proto.op_type}_{index}",
        op_type=proto.op_type,
        domain=domain,
        inputs=tuple(proto.input),
        outputs=tuple(proto.output),
        attributes=_attributes(proto),
        proto=proto,
        schema=schema,
        opset=opsets.get(domain, 0),
        captures=captures,
        bodies={
            a.name: read_graph(a.g, opsets, folder, ir_version, "", check_nodes=check)
            for a in proto.attribute
            if a.type == onnx.AttributeProto.GRAPH
        },
    )


def _check_equation(proto: onnx.NodeProto, where: str) -> None:
    equation = next((a.s for a in proto.attribute if a.name == "equation"), b"")
    if not _EQUATION.fullmatch(equation.replace(b" ", b"")):
        raise InvalidModelError(
            f"{where} ({proto.op_type} {proto.name!r}): its equation is {equation.decode(errors='replace')!r}, expected terms of "
            "letters, each with at most one '...', with commas between them, and '->' before the result's"
        )


def _graph_around(node: onnx.NodeProto, captures: Sequence[str]) -> onnx.GraphProto:
    """A graph of the node alone, whose inputs (of any type) are the values that it reads."""
    reads = dict.fromkeys([*(n for n in node.input if n), *captures])
    inputs = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ()) for name in reads]
    outputs = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ()) for name in node.output if name]
    return helper.make_graph([node], "node", inputs, outputs)


def _attributes(proto: onnx.NodeProto) -> dict[str, Any]:
    values = {}
    ignored = ignored_attributes(proto)
    for attribute in proto.attribute:
        if attribute.name in ignored:
            continue
        try:
            value = helper.get_attribute_value(attribute)
        except ValueError as error:  # a reference to a function's attribute, or a type that ONNX has not
            raise InvalidModelError(f"{proto.op_type} {proto.name!r}: attribute {attribute.name!r}: {error}") from error
        if isinstance(value, onnx.TensorProto) and value.data_location == onnx.TensorProto.EXTERNAL:
            raise InvalidModelError(
                f"{proto.op_type} {proto.name!r}: attribute {attribute.name!r} is in another file; vkep reads initializers and "
                "the values of Constant from there: store it in the model"
            )
        if attribute.type == onnx.AttributeProto.STRING:
            value = value.decode("utf-8", "replace")
        elif attribute.type == onnx.AttributeProto.STRINGS:
            value = [v.decode("utf-8", "replace") for v in value]
        values[attribute.name] = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value
    return values


def _constant(proto: onnx.NodeProto, folder: Path | None) -> Weight | None:
    """A Constant node with a tensor value is a weight."""
    if (
        proto.op_type != "Constant"
        or proto.domain not in ("", "ai.onnx")
        or len(proto.attribute) != 1
        or len(proto.output) != 1
    ):
        return None
    attribute = proto.attribute[0]
    if attribute.name != "value":
        return None
    if attribute.t.data_location == onnx.TensorProto.EXTERNAL:
        return make_weight(attribute.t, folder)
    return ProtoWeight(attribute.t, proto.output[0])


def _value_info(proto: onnx.ValueInfoProto) -> ValueInfo:
    sparse = proto.type.HasField("sparse_tensor_type")
    if not sparse and not proto.type.HasField("tensor_type"):  # a body may omit the types of its outputs
        return ValueInfo(proto.name, 0, None, proto.type if proto.type.WhichOneof("value") is not None else None)
    tensor = proto.type.sparse_tensor_type if sparse else proto.type.tensor_type
    if tensor.elem_type not in onnx.TensorProto.DataType.values():
        raise InvalidModelError(f"the value {proto.name!r} has the element type {tensor.elem_type}, which ONNX has not")
    if not tensor.HasField("shape"):
        return ValueInfo(proto.name, tensor.elem_type, None, sparse=sparse)
    dims = tensor.shape.dim
    denotations = tuple(d.denotation for d in dims) if any(d.denotation for d in dims) else ()
    return ValueInfo(proto.name, tensor.elem_type, tuple(map(_dim, dims)), denotations=denotations, sparse=sparse)


def _dim(dim: onnx.TensorShapeProto.Dimension) -> Dim:
    if dim.HasField("dim_value") and dim.dim_value >= 0:
        return int(dim.dim_value)
    return dim.dim_param or None


def _check_names_once(
    nodes: list[Node], inputs: tuple[ValueInfo, ...], weights: Mapping[str, Weight], where: str
) -> None:
    """Check single assignment and that every name is defined before its use (ONNX IR, "Graphs")."""
    defined = {v.name for v in inputs} | set(weights)
    for node in nodes:
        for name in node.reads:
            # a body may use values of its outer graph, so only a top-level graph (where is set) is checked
            if name not in defined and where:
                raise InvalidModelError(
                    f"{where}: {node.title} reads {name!r}, which no input, weight or earlier node defines"
                )
        for name in node.outputs:
            if name and name in defined:
                raise InvalidModelError(f"{where}: {node.title} defines {name!r} a second time")
            defined.add(name)
