"""Drawn graphs whose products read the same rows: other columns, biases, shared weights, other users of the results."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]

#: what a product's result becomes
ENDS = ("output", "transposed", "halves", "normed", "joined", "product", "activated", "heads", "squeezed", "twice")
#: what is added to a product or done with it, by itself
AFTER = ("", "", "bias", "bias first", "scaled bias", "scalar", "tanh", "gelu", "matrix")


@dataclass
class Drawn:
    """A model of float16 with open rows, its inputs and the rows that a run may have."""

    rng: np.random.Generator
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[TensorProto] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    text: list[str] = field(default_factory=list)  #: of its parts

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], name=f"node{len(self.nodes)}", **attributes))
        return name

    def constant(self, array: Array) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def normal(self, *shape: int, scale: float = 1.0) -> str:
        return self.constant((self.rng.standard_normal(shape) * scale).astype(np.float16))

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def pick(self, *among: Any) -> Any:
        return among[int(self.rng.integers(len(among)))]


def draw(seed: int, alike: bool) -> tuple[onnx.ModelProto, dict[str, Array], list[str]]:
    """A model, its inputs, and the texts of its parts. ``alike``: its products may all be joined, where heads read them or other
    operations that take any strides."""
    g = Drawn(np.random.default_rng([seed, alike]))
    batch, length, k = g.pick(1, 2), g.pick(4, 9, 12), g.pick(16, 24)
    flat = bool(g.rng.integers(2)) and not alike
    x = g.add("Mul", "x", g.normal(k))
    rows = g.add("Reshape", x, g.ints(-1, k)) if flat else x
    count = int(g.rng.integers(2, 5))
    shared = g.normal(k, 32, scale=k**-0.5)
    after = g.pick("", "bias", "scaled bias")
    made = []
    for _ in range(count):
        n = 32 if alike else g.pick(8, 16, 32, 32, 12)
        form = g.pick("columns", "columns", "transposed" if flat else "columns", "shared" if not alike else "columns")
        if form == "transposed":
            y = g.add("Gemm", rows, g.normal(n, k, scale=k**-0.5), transB=1)
        elif form == "shared":
            y, n = g.add("MatMul", rows, shared), 32
        else:
            y = g.add("MatMul", rows, g.normal(k, n, scale=k**-0.5))
        step = g.pick("", "bias") if alike and after == "bias" else after if alike else g.pick(*AFTER)
        made.append((_changed(g, y, n, step, batch * length if flat else length), n))
        g.text.append(f"{form} {n} {step}")
    order = g.rng.permutation(count)
    # an epilogue of one alone is not alike, and halves of few rows are a pair (vkep.passes.pairs)
    ends = ("heads", "transposed", "twice") if alike else ENDS
    for position in order.tolist():
        y, n = made[position]
        end = g.pick(*ends)
        g.text.append(f"{position}: {end}")
        _ended(g, g.add("Reshape", y, g.ints(batch, -1, n)) if flat and end not in ("output", "product") else y, n, end)
    if not alike and g.rng.integers(4) == 0:
        g.outputs.append(g.add("Neg", shared))
        g.text.append("a weight that others read")
    shapes = {"x": (batch, length, k)}
    feeds = {name: g.rng.standard_normal(shape).astype(np.float16) for name, shape in shapes.items()}
    graph = helper.make_graph(
        g.nodes,
        "drawn",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT16, [batch, "length", k])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT16, None) for name in dict.fromkeys(g.outputs)],
        g.weights,
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    return onnx.shape_inference.infer_shapes(proto), feeds, g.text


def _changed(g: Drawn, y: str, n: int, step: str, rows: int) -> str:
    if "bias" in step:
        bias = g.normal(n)
        y = g.add("Add", bias, y) if step == "bias first" else g.add("Add", y, bias)
    if "scal" in step:
        y = g.add("Mul", y, g.constant(np.array(0.5, np.float16)))
    if step == "tanh":
        y = g.add("Tanh", y)
    if step == "gelu":
        y = g.add("Gelu", y)
    if step == "matrix":  # a constant that is no row
        y = g.add("Add", y, g.normal(rows, n))
    return y


def _ended(g: Drawn, y: str, n: int, end: str) -> None:
    """Outputs that are computed from a product's result."""
    if end == "output":
        g.outputs.append(y)
    elif end == "transposed":
        g.outputs.append(g.add("Neg", g.add("Transpose", y, perm=[0, 2, 1])))
    elif end == "halves":
        half = n // 2
        parts = [g.add("Slice", y, g.ints(a), g.ints(a + half), g.ints(-1)) for a in (0, n - half)]
        g.outputs.append(g.add("Mul", *parts))
    elif end == "normed":
        g.outputs.append(g.add("LayerNormalization", y, g.normal(n), axis=-1))
    elif end == "joined":
        g.outputs.append(g.add("Concat", y, g.add("Abs", y), axis=-1))
    elif end == "product":
        g.outputs.append(g.add("MatMul", y, g.normal(n, 8, scale=n**-0.5)))
    elif end == "activated":
        g.outputs.append(g.add("Sigmoid", y))
    elif end == "squeezed":
        g.outputs.append(g.add("ReduceMean", y, g.ints(1), keepdims=0))
    elif end == "twice":
        g.outputs += [g.add("Sigmoid", y), g.add("Transpose", g.add("Mul", y, y), perm=[0, 2, 1])]
    else:  # an attention of the result with itself
        size = n // 4
        heads = g.add("Reshape", y, g.ints(0, -1, 4, size))
        q, k = g.add("Transpose", heads, perm=[0, 2, 1, 3]), g.add("Transpose", heads, perm=[0, 2, 3, 1])
        p = g.add("Softmax", g.add("MatMul", q, k), axis=-1)
        z = g.add("Transpose", g.add("MatMul", p, q), perm=[0, 2, 1, 3])
        g.outputs.append(g.add("Reshape", z, g.ints(0, -1, n)))
