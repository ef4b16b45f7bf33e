"""Where vkep's declarations of com.microsoft differ from the schemas in the onnxruntime package.

python -m tools.backend_suite.contrib_schemas    # the differences without a reason; exit status 1 where there are some

`REASONS` has the others; `tools.backend_suite.contrib` writes them into docs/operators.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import onnx

DOMAIN = "com.microsoft"
_AS_ONNX = "as ONNX's operator of this name"
_LAYOUT = "a kernel of another provider alone has it; a node with it is declined"
#: what differs, by operator, and why
REASONS: dict[str, tuple[str, str]] = {
    "AttnLSTM": ("attribute layout", "as ONNX's LSTM"),
    "ConvTransposeWithDynamicPads": ("types of x, w, bias: more", "as ONNX's ConvTranspose"),
    "DequantizeLinear": ("attributes block_size, output_dtype", _AS_ONNX),
    "DynamicQuantizeLSTM": ("attribute layout", "as ONNX's LSTM"),
    "EmbedLayerNormalization": ("inputs gamma, beta: optional", "a model without them has one meaning"),
    "ExpandDims": ("types of x: more", "a view of any type"),
    "GatedAdd": ("input gate_weight: none", _LAYOUT),
    "GatherND": ("types of data: more", _AS_ONNX),
    "GemmaRotaryEmbedding": ("types of q, q_rot, k, k_rot: more", "float32 as well"),
    "GridSample": ("types of x, grid: more", _AS_ONNX),
    "Pad": ("types of data, value: more", _AS_ONNX),
    "QLinearAveragePool": ("attribute dilations", "as ONNX's AveragePool"),
    "QLinearGlobalAveragePool": ("inputs x_zero_point, y_zero_point: optional", "absent is 0, as elsewhere in the domain"),
    "QMoE": (
        "inputs fc1_global_scale, fc2_global_scale, fc1_act_scale, fc2_act_scale, fc1_act_block_scale, fc2_act_block_scale: none",
        _LAYOUT,
    ),
    "QOrderedAttention": ("inputs scale_QKT_gemm, scale_QKT_softmax: required", "ONNX Runtime's kernel reads them too"),
    "QuantizeLinear": ("attributes block_size, output_dtype, precision, saturate", _AS_ONNX),
    "Range": ("types of start, limit, delta: more", _AS_ONNX),
    "SimplifiedLayerNormalization": ("no schema", "ONNX Runtime has it in ONNX's domain; exporters write it in either"),
    "SparseToDenseMatMul": ("types of x: more", "a session makes sparse tensors dense"),
    "TransposeMatMul": ("attributes transBatchA, transBatchB", "as FusedMatMul, which it is an old name of"),
    "UnfoldTensor": ("types of x: more", "a copy of any type"),
    "VarlenCausalConvWithState": ("inputs kernel_delta, previous_mask: none", _LAYOUT),
}  # fmt: skip


def differences() -> Iterator[tuple[str, str]]:
    """(operator, what differs) for each declaration that the newest schema of onnxruntime does not describe."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    from vkep.ops.registry import declared

    schemas: dict[str, Any] = {}
    for schema in state.get_all_operator_schema():
        if schema.domain == DOMAIN and (
            schema.name not in schemas or schema.since_version > schemas[schema.name].since_version
        ):
            schemas[schema.name] = schema
    for entry in declared():
        if entry.domain == DOMAIN:
            found = "; ".join(_of(entry, schemas[entry.op_type])) if entry.op_type in schemas else "no schema"
            if found:
                yield entry.op_type, found


def _of(entry: Any, schema: Any) -> Iterator[str]:
    ours, theirs = entry.signature.attributes, {name: _default(a) for name, a in schema.attributes.items()}
    yield from _listed("attribute", [name for name in ours if name not in theirs])
    yield from _listed("attribute", [name for name in theirs if name not in ours and name not in entry.fixed], ": none")
    known = [name for name in ours if theirs.get(name) is not None]
    yield from _listed("default of attribute", [name for name in known if not _same(ours[name], theirs[name])])
    if entry.signature.variadic:
        return
    names = [i.name for i in schema.inputs]
    needed = [i.option.name == "Single" for i in schema.inputs]
    here = list(entry.signature.needed)
    yield from _listed("input", names[len(here) :], ": none")
    pairs = list(zip(names, here, needed, strict=False))
    yield from _listed("input", [name for name, mine, its in pairs if its and not mine], ": optional")
    yield from _listed("input", [name for name, mine, its in pairs if mine and not its], ": required")
    more = [
        name
        for name, input_ in zip(entry.signature.inputs, schema.inputs, strict=False)
        if _wider(entry, name, input_, schema)
    ]
    if more:
        yield f"types of {', '.join(more)}: more"


def _listed(what: str, names: list[str], how: str = "") -> Iterator[str]:
    if names:
        yield f"{what}{'s' if len(names) > 1 else ''} {', '.join(names)}{how}"


def _default(attribute: Any) -> Any:
    if not attribute._default_value:
        return None
    proto = onnx.AttributeProto.FromString(attribute._default_value)
    value = onnx.helper.get_attribute_value(proto)
    return value.decode() if isinstance(value, bytes) else value


def _same(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, float):
        return isinstance(ours, (int, float)) and abs(ours - theirs) <= 1e-6 * max(1.0, abs(theirs))
    return tuple(ours or ()) == tuple(theirs) if isinstance(theirs, list) else bool(ours == theirs)


def _wider(entry: Any, name: str, input_: Any, schema: Any) -> bool:
    """Whether the declaration takes types of an input that the schema does not list."""
    from vkep.dtypes import DTYPES

    allowed = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}.get(
        input_.typeStr, [input_.typeStr]
    )
    return any(f"tensor({DTYPES[t].onnx_name})" not in allowed for t in entry.types.get(name, ()))


def rows() -> list[str]:
    """The rows of the table: operator, difference, reason."""
    return [f"| {name} | {what} | {why} |" for name, (what, why) in REASONS.items()]


def unexplained() -> list[str]:
    """Differences without a reason, and reasons without a difference."""
    found = dict(differences())
    expected = {name: what for name, (what, _) in REASONS.items()}
    new = [f"{name}: {what}" for name, what in found.items() if expected.get(name) != what]
    return new + [f"{name}: no longer {what!r}" for name, what in expected.items() if name not in found]


if __name__ == "__main__":
    lines = unexplained()
    print("\n".join(lines))
    sys.exit(1 if lines else 0)
