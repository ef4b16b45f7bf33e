"""Whether vkep's results of a form are right, by ONNX Runtime's CPU provider without optimization.

A form that changes no types has the results of the plain model. Of a float16 form, vkep's results may be 1.5 times as far from
the float32 results as those of the plain model are where each weight and each operator's result is rounded to float16. (ONNX
Runtime's CPU provider computes float16 models in float32 and rounds less often.)

In a quantized model, a float that lies near the middle between two steps is rounded up or down by its last bits, and what
follows differs by whole steps. `spread` measures what that does to the results: ONNX Runtime runs the model again with the
scale of each quantizer changed by 2^-18, up or down, 32 times the precision of float32 (of float16: by its precision). vkep may
be off by twice what that does, and by one step of the last quantizer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tools.half_precision.__main__ import RATIO, relative_error
from tools.ort_cpu import cpu_session
from tools.user_forms.forms import Array, Feeds, Form, copy_of

#: the greatest difference of exact forms, relative to the largest result and at least to 1
NEAR = 1e-4
#: a rounding to float16, relative
HALF = 2.0**-11
#: quantizers, and which input is the scale that their results are divided by (None: they compute it from input 0)
QUANTIZERS: dict[str, int | None] = {
    "QuantizeLinear": 1,
    "DynamicQuantizeLinear": None,
    "DynamicQuantizeMatMul": None,
    "QLinearConv": 6,
    "QLinearMatMul": 6,
    "QLinearAdd": 6,
    "QLinearMul": 6,
    "QGemm": 7,
    "QLinearConcat": 0,
    **dict.fromkeys(("QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax"), 3),
    **dict.fromkeys(("QLinearAveragePool", "QLinearGlobalAveragePool"), 3),
}
#: relative change of the scales, and runs with changed scales
CHANGE, RUNS = 2.0**-18, 3


@dataclass(frozen=True)
class Expected:
    """ONNX Runtime's results: of the form, and for float16 also of the float32 model (``wide``), from which vkep's may be ``far``
    (relative). Others may be ``off`` by so much and by `NEAR`."""

    results: list[Array]
    wide: list[Array] | None = None
    far: float = 0.0
    off: float = 0.0

    def difference(self, results: Sequence[Array]) -> str:
        """How vkep's results differ by more than they may; "" where they do not."""
        for got, want in zip(results, self.results, strict=True):
            if got.shape != want.shape or got.dtype != want.dtype:
                return f"{got.dtype}{list(got.shape)}, expected {want.dtype}{list(want.shape)}"
        if self.wide is not None:
            far = relative_error(results, self.wide)
            return "" if far <= self.far else f"{far:.3g} from float32, {self.far:.3g} may be"
        for got, want in zip(results, self.results, strict=True):
            if want.dtype.kind not in "fiub":
                continue
            ours, theirs = got.astype(np.float64), want.astype(np.float64)
            same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
            largest = np.abs(theirs[np.isfinite(theirs)]).max(initial=0)
            off = np.abs(np.where(same, 0, ours) - np.where(same, 0, theirs)).max(initial=0)
            limit = self.off + NEAR * max(1, largest)
            if not off <= limit:
                return f"up to {off:.3g} off, of results up to {largest:.3g}; {limit:.3g} may be"
        return ""


def expected_of(form: Form, made: onnx.ModelProto, plain: onnx.ModelProto, feeds: Feeds) -> Expected:
    """What vkep's results of the form ``made`` of the model ``plain`` are compared with."""
    off = spread(made if not form.exact else plain, feeds)
    if form.exact:
        return Expected(_run(plain, feeds), off=off)
    results = _run(made, feeds)
    if form.half and not off:
        wide, given = _run(plain, feeds), {name: _half(array) for name, array in feeds.items()}
        return Expected(results, wide, RATIO * max(HALF, relative_error(_run(rounded(plain), given), wide)))
    return Expected(results, off=off)


def inputs_of(model: onnx.ModelProto, feeds: Feeds) -> dict[str, Array]:
    """The inputs in the types of the model's."""
    types = {value.name: value.type.tensor_type.elem_type for value in model.graph.input}
    return {
        name: array.astype(helper.tensor_dtype_to_np_dtype(types[name]))
        for name, array in feeds.items()
        if name in types
    }


def _run(model: onnx.ModelProto, feeds: Feeds) -> list[Array]:
    results: list[Array] = cpu_session(model, optimized=False).run(None, inputs_of(model, feeds))
    return results


def rounded(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with each weight, and each result of a node, rounded from float32 to float16."""
    made = onnx.shape_inference.infer_shapes(model)
    types = {v.name: v.type.tensor_type.elem_type for v in (*made.graph.value_info, *made.graph.output)}
    for tensor in made.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            tensor.CopyFrom(numpy_helper.from_array(_half(numpy_helper.to_array(tensor)), tensor.name))
    nodes = []
    for node in made.graph.node:
        nodes.append(node)
        for k, name in enumerate(node.output):
            if types.get(name) == onnx.TensorProto.FLOAT:
                node.output[k] = f"{name} exact"
                nodes.append(helper.make_node("Cast", [f"{name} exact"], [f"{name} half"], to=onnx.TensorProto.FLOAT16))
                nodes.append(helper.make_node("Cast", [f"{name} half"], [name], to=onnx.TensorProto.FLOAT))
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    return made


def _half(array: Array) -> Array:
    """Floats as float16 has them, with the largest ones at its ends, as converters leave them; other numbers as they are."""
    if array.dtype != np.float32:
        return array
    return np.clip(array, -65504, 65504).astype(np.float16).astype(np.float32)


def spread(model: onnx.ModelProto, feeds: Feeds) -> float:
    """How far results of a quantized model may be off because rounding decides steps; 0 of a model without quantizers."""
    if not any(node.op_type in QUANTIZERS for node in model.graph.node):
        return 0.0
    exact, widest = _run(model, feeds), 0.0
    for seed in range(RUNS):
        changed = _run(_changed(model, np.random.default_rng(seed)), feeds)
        for a, b in zip(exact, changed, strict=True):
            widest = max(widest, float(np.abs(a.astype(np.float64) - b.astype(np.float64)).max(initial=0)))
    return 2 * widest + _last_step(model)


def _changed(model: onnx.ModelProto, rng: np.random.Generator) -> onnx.ModelProto:
    """The model with the scale of each quantizer, or what it quantizes, changed by `CHANGE`."""
    made = copy_of(model)
    types = {tensor.name: tensor.data_type for tensor in made.graph.initializer}
    nodes = []
    for k, node in enumerate(made.graph.node):
        if node.op_type in QUANTIZERS:
            place = QUANTIZERS[node.op_type]
            at = 0 if place is None else place
            if at < len(node.input) and node.input[at]:
                read, by, name = node.input[at], f"changed by {k}", f"changed {k}"
                dtype = helper.tensor_dtype_to_np_dtype(types.get(read, onnx.TensorProto.FLOAT))
                change = max(CHANGE, float(np.finfo(dtype).eps))
                factor = np.array(1 + change * rng.choice([-1, 1]), dtype)
                made.graph.initializer.append(numpy_helper.from_array(factor, by))
                nodes.append(helper.make_node("Mul", [read, by], [name]))
                node.input[at] = name
        nodes.append(node)
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    return made


def _last_step(model: onnx.ModelProto) -> float:
    """The largest step of a quantizer whose integers are a result, alone or dequantized."""
    outputs = {value.name for value in model.graph.output}
    scales: Mapping[str, Any] = {tensor.name: tensor for tensor in model.graph.initializer}
    steps = [0.0]
    for node in model.graph.node:
        if not outputs & set(node.output):
            continue
        if node.op_type == "DequantizeLinear" and node.input[1] in scales:
            steps.append(float(np.max(numpy_helper.to_array(scales[node.input[1]]))))
        elif node.op_type in QUANTIZERS:
            steps.append(1.0)
    return max(steps)
