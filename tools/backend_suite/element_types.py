"""Which element types of an operator's schema vkep takes: ONNX's own node cases, retyped, are lowered for a device that
has every scalar type. Nothing runs, so no driver is needed.

python -m tools.backend_suite.element_types      # every operator and type that is declined, with the reason
"""

from __future__ import annotations

import copy
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from gpu_shared.capabilities import DeviceCapabilities
from tools.backend_suite.cases import GRAPHS, Case, load_cases
from vkep import dtypes
from vkep.errors import VkepError
from vkep.graph import load_model
from vkep.ir.program import ValueSpec
from vkep.ops.registry import declared as declared_operators
from vkep.ops.registry import onnx_history
from vkep.placement.partition import lower

#: the oldest operator set that vkep supports
OLDEST = 7
#: declining other types is no gap: the case's body, or an attribute's width, is for one type
_OF_ONE_TYPE = {"BitCast", "If", "Loop", "Scan", "SequenceMap"}
#: cases tried for each type: one may decline for another reason than its type
_TRIES = 12
#: inputs of more elements than this stay inputs of the model; smaller ones of other types are axes, shapes and the like
_KNOWN = 64
_BY_NAME = {f"tensor({d.onnx_name})": d for d in dtypes.DTYPES.values()}


@dataclass
class Taken:
    """One operator: element types of its first constraint that are taken, and why the others are not."""

    operator: str
    taken: set[str] = field(default_factory=set)
    declined: dict[str, str] = field(default_factory=dict)
    older: dict[int, list[str]] = field(default_factory=dict)  #: see `older_gaps`

    def note(self, dtype: str, reason: str | None) -> None:
        if reason is None:
            self.taken.add(dtype)
            self.declined.pop(dtype, None)
        elif dtype not in self.taken:
            self.declined.setdefault(dtype, reason)


def survey(match: str = "") -> list[Taken]:
    """Every operator of ONNX's own domain that has node cases over tensors."""
    found: dict[str, Taken] = defaultdict(lambda: Taken(""))
    caps = DeviceCapabilities.for_tests()
    tried: dict[tuple[str, str], int] = defaultdict(int)
    for case in load_cases().values():
        operator = case.operator()
        if (
            case.kind != "node"
            or operator in (GRAPHS, *_OF_ONE_TYPE)
            or "." in operator
            or (match and operator != match)
        ):
            continue
        for dtype, model in retyped(case):
            entry = found[operator]
            entry.operator = operator
            if dtype in entry.taken or tried[operator, dtype] >= _TRIES:
                continue
            tried[operator, dtype] += 1
            entry.note(dtype, declined(model, caps))
    for entry in found.values():
        entry.older = older_gaps(entry)
    return [found[name] for name in sorted(found)]


def retyped(case: Case) -> Iterator[tuple[str, onnx.ModelProto]]:
    """The case's model for every element type that the newest schema's first constraint allows."""
    model = case.model()
    nodes = model.graph.node
    if len(nodes) != 1 or nodes[0].domain not in ("", "ai.onnx"):
        return
    node = nodes[0]
    opset = next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx"))
    schema = onnx.defs.get_schema(node.op_type, opset)
    formal = [schema.inputs[min(i, len(schema.inputs) - 1)].type_str for i in range(len(node.input))]
    constraint = next((c for c in schema.type_constraints if c.type_param_str in formal), None)
    data = next(iter(case.data(model)), None)
    if constraint is None or data is None or not all(isinstance(a, np.ndarray) for a in data[0]):
        return
    arrays = dict(zip((i.name for i in model.graph.input), data[0], strict=False))
    kinds = {name: kind for name, kind in zip(node.input, formal, strict=True) if name}
    for allowed in sorted(constraint.allowed_type_strs):
        dtype = _BY_NAME.get(allowed)
        if dtype is not None:
            yield dtype.name, _model(model, arrays, kinds, constraint.type_param_str, dtype)


def _model(
    model: onnx.ModelProto, arrays: dict[str, np.ndarray], kinds: dict[str, str], chosen: str, dtype: dtypes.DType
) -> onnx.ModelProto:
    inputs, weights = [], []
    for name, array in arrays.items():
        of_type = kinds.get(name) == chosen
        if of_type or array.size > _KNOWN:
            elem = dtype.onnx if of_type else helper.np_dtype_to_tensor_dtype(array.dtype)
            inputs.append(helper.make_tensor_value_info(name, elem, array.shape))
        else:
            weights.append(numpy_helper.from_array(array, name))
    node = copy.deepcopy(model.graph.node[0])
    outputs = [onnx.ValueInfoProto(name=n) for n in node.output if n]
    graph = helper.make_graph([node], "retyped", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)


def declined(model: onnx.ModelProto, caps: DeviceCapabilities) -> str | None:
    """Why some node would run on the CPU; None where all is Vulkan's (or planned once values are known)."""
    try:
        loaded = load_model(model)
        known: dict[str, Any] = dict(loaded.graph.weights)
        for value in loaded.graph.inputs:
            dtype = dtypes.from_onnx(value.elem_type)
            assert dtype is not None and value.static_shape is not None
            known[value.name] = ValueSpec(dtype, value.static_shape)
        program = lower(loaded.graph.nodes, known, [o.name for o in loaded.graph.outputs], loaded.opsets, caps)
    except VkepError as error:
        return " ".join(str(error).split())
    return next((p.reason for p in program.placements if p.where == "cpu"), None)


def older_gaps(entry: Taken) -> dict[int, list[str]]:
    """Types, by version in force at opset 7 or since, that no declaration and no function body takes, beside those that
    the newest version declines too. All types where a version has no declaration.
    """
    gaps = {}
    history = onnx_history(entry.operator, "")
    entries = [d for d in declared_operators() if d.op_type == entry.operator and not d.domain]
    for schema in history if entries else ():
        later = [s.since_version for s in history if s.since_version > schema.since_version]
        has_body = schema.has_function or schema.has_context_dependent_function  # type: ignore[attr-defined]
        if schema.deprecated or has_body or (later and min(later) <= OLDEST):
            continue
        serving = [d for d in entries if d.accepts_version(schema.since_version)]
        for constraint in schema.type_constraints:
            names = [_BY_NAME[t].name for t in constraint.allowed_type_strs if t in _BY_NAME]
            taken = set(names) if serving else set()
            for definition in serving:
                taken &= set(definition.types.get(constraint.type_param_str, names))
            missing = [n for n in names if n not in taken and n not in entry.declined]
            if missing:
                gaps[schema.since_version] = missing
    return gaps


def lines(found: list[Taken]) -> list[str]:
    """Rows of a table: operators with declined types, the same reasons together."""
    rows = []
    for entry in found:
        by_reason: dict[str, list[str]] = defaultdict(list)
        for name in dtypes.DTYPES:
            if name in entry.declined:
                by_reason[entry.declined[name].replace(f"input 0 is {name}; ", "")].append(name)
        for reason, names in by_reason.items():
            rows.append(f"| {entry.operator} | {' '.join(names)} | {reason.replace('|', chr(92) + '|')[:160]} |")
        for version, names in sorted(entry.older.items()):
            rows.append(f"| {entry.operator} | version {version}: {' '.join(names)} | not declared |")
    return rows


if __name__ == "__main__":
    print("\n".join(lines(survey(sys.argv[1] if len(sys.argv) > 1 else ""))))
