"""``python -m tools.tosa_coverage [--write]``: each TOSA operator with the ONNX operators whose lowering uses it.

What is used is seen by lowering ONNX's node tests, node by node, and some quantized models. ``--write`` puts the table into
docs/vgf.md.
"""

from __future__ import annotations

import argparse
import collections
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from tools.backend_suite.cases import load_cases
from vkep import dtypes
from vkep.errors import Decline, VkepError
from vkep.graph import load_model
from vkep.graph.weights import ArrayWeight
from vkep.tosa import TosaIsland, TosaPort

#: TOSA 1.0's operators, section by section
OPERATORS = (
    "ARGMAX", "AVG_POOL2D", "CONV2D", "CONV3D", "DEPTHWISE_CONV2D", "FFT2D", "MATMUL", "MAX_POOL2D", "RFFT2D",
    "TRANSPOSE_CONV2D", "CLAMP", "ERF", "SIGMOID", "TANH", "ADD", "ARITHMETIC_RIGHT_SHIFT", "BITWISE_AND",
    "BITWISE_OR", "BITWISE_XOR", "INTDIV", "LOGICAL_AND", "LOGICAL_LEFT_SHIFT", "LOGICAL_RIGHT_SHIFT", "LOGICAL_OR",
    "LOGICAL_XOR", "MAXIMUM", "MINIMUM", "MUL", "POW", "SUB", "TABLE", "ABS", "BITWISE_NOT", "CEIL", "CLZ", "COS",
    "EXP", "FLOOR", "LOG", "LOGICAL_NOT", "NEGATE", "RECIPROCAL", "RSQRT", "SIN", "SELECT", "EQUAL", "GREATER",
    "GREATER_EQUAL", "REDUCE_ALL", "REDUCE_ANY", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PRODUCT", "REDUCE_SUM", "CONCAT",
    "PAD", "RESHAPE", "REVERSE", "SLICE", "TILE", "TRANSPOSE", "GATHER", "SCATTER", "RESIZE", "CAST", "RESCALE",
    "CONST", "IDENTITY", "CUSTOM", "COND_IF", "WHILE_LOOP", "VARIABLE", "VARIABLE_WRITE", "VARIABLE_READ",
    "CONST_SHAPE",
)  # fmt: skip
WHY_NOT = {
    "CLZ": "no ONNX operator counts leading zeros",
    "FFT2D": "the emulation layer (0.11) crashes where another operator reads its result; DFT is a MATMUL",
    "RFFT2D": "as FFT2D",
    "CONST": "every constant",
    "CONST_SHAPE": "every shape operand",
    "IDENTITY": "values are passed on as they are",
    "CUSTOM": "has no meaning of its own",
    "COND_IF": "control flow is the session's; the emulation layer has none",
    "WHILE_LOOP": "as COND_IF",
    "VARIABLE": "ONNX models keep no state",
    "VARIABLE_WRITE": "as VARIABLE",
    "VARIABLE_READ": "as VARIABLE",
}
_DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "vgf.md"
_BEGIN = "<!-- TOSA operators: written by python -m tools.tosa_coverage -->\n"
_END = "<!-- TOSA operators: end -->\n"
_QUANTIZED = """g (float[1,4,6,6] x) => (float[n] y) {{
  q = QuantizeLinear(x, s, z) a = DequantizeLinear(q, s, z) {body} p = QuantizeLinear(r, s, z) y = DequantizeLinear(p, s, z) }}"""
#: operators that the node tests lack
_PLAIN = ("g (float[1,2,4,4,4] x, float[3,2,2,2,2] k) => (float[n] y) { y = Conv(x, k) }",)
_BODIES = (
    "r = Sigmoid(a)", "r = Add(a, a)", "r = MaxPool<kernel_shape=[2,2]>(a)", "r = AveragePool<kernel_shape=[2,2]>(a)",
    "r = GlobalAveragePool(a)", "k = DequantizeLinear(w, s, z) r = Conv(a, k)", "r = Relu(a)",
)  # fmt: skip


def _models() -> Iterator[tuple[onnx.ModelProto, dict[str, Any]]]:
    """Models, with the known content of their inputs."""
    for name, case in load_cases().items():
        if name.startswith("node/"):
            model = case.model()
            for inputs, _ in case.data(model):
                given = [v for v in model.graph.input if v.name not in {t.name for t in model.graph.initializer}]
                yield model, {info.name: value for info, value in zip(given, inputs, strict=False)}
                break
    for text in (*_PLAIN, *(_QUANTIZED.format(body=body) for body in _BODIES)):
        made = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {text}')
        made.graph.output[0].type.tensor_type.ClearField("shape")
        w = np.ones((2, 4, 3, 3), np.int8)
        weights = {"s": np.float32(0.1), "z": np.int8(3), "w": w}
        made.graph.initializer.extend(
            numpy_helper.from_array(np.asarray(a), n) for n, a in weights.items() if re.search(rf"\b{n}[,)]", text)
        )
        empty = {i.name: np.zeros([d.dim_value for d in i.type.tensor_type.shape.dim]) for i in made.graph.input}
        yield made, empty


def _lowered(model: onnx.ModelProto, given: dict[str, Any]) -> Iterator[tuple[str, set[str]]]:
    """(ONNX operator, TOSA operators) of each node that the lowering takes.

    Inputs of int64, and of one element, count as constants.
    """
    loaded = load_model(model)
    known: dict[str, Any] = dict(loaded.graph.weights)
    for info in loaded.graph.inputs:
        value = given.get(info.name)
        dtype = dtypes.from_onnx(info.elem_type)
        if dtype is None or not isinstance(value, np.ndarray):
            continue
        if dtype.name == "int64" or value.size == 1:
            known[info.name] = ArrayWeight(info.name, np.asarray(value))
        else:
            known[info.name] = TosaPort(info.name, dtype, value.shape)
    island = TosaIsland()
    for node in loaded.graph.nodes:
        before = len(island.builder.ops)
        try:
            island.add(node, known.get)
        except Decline:
            continue
        made = {op.name.upper() for op in island.builder.ops[before:]}
        if any(tensor.stored == "int32" for tensor in (island.tensors[n] for n in node.outputs if n)):
            made |= {"ARITHMETIC_RIGHT_SHIFT", "CONCAT"}  # the operations that make the words of an int64 result
        yield node.op_type, made


def reached() -> dict[str, set[str]]:
    """ONNX operators by TOSA operator."""
    table: dict[str, set[str]] = collections.defaultdict(set)
    for model, given in _models():
        try:
            for op_type, names in _lowered(model, given):
                for name in names:
                    table[name].add(op_type)
        except VkepError:  # models of sequences and the like, which no session takes
            continue
    return table


def table() -> str:
    """The table of docs/vgf.md."""
    found = reached()
    stray = set(found) - set(OPERATORS)
    if stray:
        raise AssertionError(f"not in TOSA 1.0: {sorted(stray)}")
    lines = ["| TOSA | reached by |", "|---|---|"]
    for name in OPERATORS:
        names = sorted(found.get(name, ()))
        if not names and name not in WHY_NOT:
            raise AssertionError(f"{name} is not reached, and no reason is given")
        if len(names) > 12:
            names = [*names[:12], f"{len(names) - 12} more"]
        lines.append(f"| {name} | {', '.join(names) if names else '(' + WHY_NOT[name] + ')'} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the table into docs/vgf.md")
    arguments = parser.parse_args()
    if not arguments.write:
        print(table(), end="")
        return 0
    document = _DOCUMENT.read_text(encoding="utf-8")
    head, _, rest = document.partition(_BEGIN)
    _, _, tail = rest.partition(_END)
    _DOCUMENT.write_text(head + _BEGIN + table() + _END + tail, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
