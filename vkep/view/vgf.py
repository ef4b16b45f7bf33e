"""The document of a VGF file: its segments, and the TOSA operations inside graph segments, read from their SPIR-V
(SPV_ARM_graph, SPV_ARM_tensors; "SPIR-V TOSA 001000.1 Extended Instruction Set").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vkep.dtypes import DTYPES
from vkep.graph.weights import ArrayWeight
from vkep.shaders.spirv import Op, instructions, parse_words
from vkep.vgf.records import BindingSlot, InvalidVgfError, Segment, Vgf
from vkep.view.document import add_graph, new_document
from vkep.view.graph import GraphDocument, Kind
from vkep.view.weights import weight_statistics

#: TOSA's extended instructions, by number
TOSA = (
    *("ARGMAX", "AVG_POOL2D", "CONV2D", "CONV3D", "DEPTHWISE_CONV2D", "FFT2D", "MATMUL", "MAX_POOL2D", "RFFT2D"),
    *("TRANSPOSE_CONV2D", "CLAMP", "ERF", "SIGMOID", "TANH", "ADD", "ARITHMETIC_RIGHT_SHIFT", "BITWISE_AND"),
    *("BITWISE_OR", "BITWISE_XOR", "INTDIV", "LOGICAL_AND", "LOGICAL_LEFT_SHIFT", "LOGICAL_RIGHT_SHIFT", "LOGICAL_OR"),
    *("LOGICAL_XOR", "MAXIMUM", "MINIMUM", "MUL", "POW", "SUB", "TABLE", "ABS", "BITWISE_NOT", "CEIL", "CLZ", "COS"),
    *("EXP", "FLOOR", "LOG", "LOGICAL_NOT", "NEGATE", "RECIPROCAL", "RSQRT", "SIN", "SELECT", "EQUAL", "GREATER"),
    *("GREATER_EQUAL", "REDUCE_ALL", "REDUCE_ANY", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PRODUCT", "REDUCE_SUM"),
    *("CONCAT", "PAD", "RESHAPE", "REVERSE", "SLICE", "TILE", "TRANSPOSE", "GATHER", "SCATTER", "RESIZE", "CAST"),
    "RESCALE",
)
#: opcodes of SPV_ARM_tensors and SPV_ARM_graph
_TENSOR, _GRAPH_CONSTANT, _GRAPH_INPUT, _GRAPH_OUTPUT = 4163, 4181, 4184, 4185


def vgf_document(vgf: Vgf, title: str) -> dict[str, Any]:
    """The content of the file; it is not run."""
    document = new_document(title, "a VGF file: nothing was run", "none")
    kinds: dict[str, Kind] = {}
    for number, resource in enumerate(vgf.resources):
        try:
            kinds[_name(number)] = (resource.dtype, resource.shape)
        except InvalidVgfError:  # an image's format
            continue
    graph = GraphDocument(kinds)
    for what, slots in (("input", vgf.inputs), ("output", vgf.outputs)):
        for slot in slots:
            graph.values[graph.value(_name(slot.resource))]["kind"] = what
    for constant in vgf.constants:
        value = graph.values[graph.value(_name(constant.resource))]
        value["kind"] = "weight"
        dtype = DTYPES.get(value.get("dtype", ""))
        if dtype is not None and not dtype.sub_byte_bits:
            elements = np.frombuffer(constant.data, dtype.numpy)
            value["stats"] = weight_statistics(ArrayWeight(value["name"], elements))
        name = f"constant {constant.resource}"
        document["memory"]["weights"].append({"name": name, "bytes": len(constant.data), "island": 0, "key": name})
    for number, segment in enumerate(vgf.segments):
        module = vgf.modules[segment.module]
        code = module.spirv if module.kind == "graph" else None
        if code is None or not _add_operations(graph, vgf, segment, f"segment {number}", code, kinds):
            inputs, outputs = _names(segment.inputs), _names(segment.outputs)
            more = {"grid": str(list(segment.dispatch))} if segment.kind == "compute" else {}
            graph.add(segment.name, module.name, "vgf", inputs, outputs, attributes=more)
    add_graph(document, graph)
    document["model"] = {
        "format": "VGF",
        "segments": ", ".join(f"{s.name} ({s.kind})" for s in vgf.segments),
        "modules": ", ".join(f"{m.name} ({m.kind})" for m in vgf.modules),
        "constants": f"{len(vgf.constants)} of {sum(len(c.data) for c in vgf.constants)} bytes",
    }
    document["notes"].append("Nothing was run: a VGF file has no times.")
    return document


def _add_operations(
    graph: GraphDocument, vgf: Vgf, segment: Segment, where: str, code: bytes, kinds: dict[str, Kind]
) -> bool:
    """Add the operations of a graph segment; False where its code contains none that are known."""
    words = list(instructions(parse_words(code)))
    sets = {i.operands[0] for i in words if i.opcode == Op.EXT_INST_IMPORT and _text(i.operands[1:]).startswith("TOSA")}
    constants = {i.operands[1]: i.operands[2] for i in words if i.opcode == Op.CONSTANT}
    types = _tensor_types(words)
    held = dict(segment.constants)
    values: dict[int, str] = {}  # SPIR-V's ids of tensors, by the name of the value
    for one in words:
        if one.opcode == _GRAPH_CONSTANT and one.operands[2] in held:
            values[one.operands[1]] = _name(vgf.constants[held[one.operands[2]]].resource)
        elif one.opcode == _GRAPH_INPUT:
            slot = constants.get(one.operands[2], -1)
            if 0 <= slot < len(segment.inputs):
                values[one.operands[1]] = _name(segment.inputs[slot].resource)
        elif one.opcode == _GRAPH_OUTPUT:
            slot = constants.get(one.operands[1], -1)
            if 0 <= slot < len(segment.outputs):
                values[one.operands[0]] = _name(segment.outputs[slot].resource)
    found = False
    for one in words:
        if one.opcode != Op.EXT_INST or one.operands[2] not in sets:
            continue
        kind, made, _, number, *given = one.operands
        name = values.setdefault(made, f"{where}: %{made}")
        if kind in types:
            kinds.setdefault(name, types[kind])
        operator = TOSA[number] if number < len(TOSA) else f"TOSA {number}"
        graph.add(f"{where}: %{made}", operator, "vgf", [values[i] for i in given if i in values], [name])
        found = True
    return found


def _tensor_types(words: Sequence[Any]) -> dict[int, Kind]:
    """Element type and shape of the tensor types, by id."""
    scalars, numbers, lists, types = {}, {}, {}, {}
    for one in words:
        if one.opcode == Op.TYPE_INT:
            scalars[one.operands[0]] = f"int{one.operands[1]}"
        elif one.opcode == Op.TYPE_FLOAT:
            scalars[one.operands[0]] = f"float{one.operands[1]}"
        elif one.opcode == Op.TYPE_BOOL:
            scalars[one.operands[0]] = "bool"
        elif one.opcode == Op.CONSTANT:
            numbers[one.operands[1]] = one.operands[2]
        elif one.opcode == Op.CONSTANT_COMPOSITE and all(i in numbers for i in one.operands[2:]):
            lists[one.operands[1]] = tuple(numbers[i] for i in one.operands[2:])
        elif one.opcode == _TENSOR and len(one.operands) > 3 and one.operands[3] in lists:
            types[one.operands[0]] = (scalars.get(one.operands[1], "?"), lists[one.operands[3]])
    return types


def _text(words: Sequence[int]) -> str:
    return b"".join(word.to_bytes(4, "little") for word in words).split(b"\0")[0].decode(errors="replace")


def _name(resource: int) -> str:
    return f"resource {resource}"


def _names(slots: Sequence[BindingSlot]) -> list[str]:
    return [_name(slot.resource) for slot in slots]
