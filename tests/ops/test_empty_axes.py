"""Sizes of 0: the cases of ONNX's operators with axes cut to 0. Where ONNX Runtime has a result, vkep has the same one, on
Vulkan."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from tests.ops.cases import assert_like, by_onnxruntime, model_of, on_vulkan
from tools.backend_suite.cases import load_cases
from vkep import InvalidInputError
from vkep.dtypes import DTYPES

pytestmark = pytest.mark.usefixtures("vulkan")
Array = np.ndarray[Any, Any]
#: pairs of a node and its inputs
Case = tuple[onnx.ModelProto, list[Array]]
#: operators whose kernels in ONNX Runtime end the process where a size is 0
_FATAL = {"ConvTranspose", "GRU", "LSTM", "STFT"}
#: operators that draw numbers, and those of which docs/operators.md or ONNX leaves the result of no elements open
_OPEN = {
    "Bernoulli", "Dropout", "ImageDecoder", "MatMulInteger", "NonMaxSuppression", "QLinearMatMul", "RandomNormal",
    "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Squeeze",
}  # fmt: skip
_CASES, _CUTS = 2, 5


@functools.cache
def _by_operator() -> dict[str, list[Case]]:
    """The first cases of each operator whose inputs are tensors that kernels take."""
    found: dict[str, list[Case]] = defaultdict(list)
    kinds = {d.numpy for d in DTYPES.values()}
    for name, case in load_cases().items():
        if not name.startswith("node/"):
            continue
        model = case.model()
        op_type = model.graph.node[0].op_type
        known = len(model.graph.node) == 1 and not model.graph.node[0].domain and len(found[op_type]) < _CASES
        if not known or op_type in _FATAL | _OPEN:
            continue
        inputs = next(case.data(model))[0]
        if inputs and all(isinstance(a, np.ndarray) and a.dtype in kinds for a in inputs):
            found[op_type].append((model, inputs))
    return {op_type: cases for op_type, cases in sorted(found.items()) if cases}


def _cuts(inputs: list[Array]) -> Iterator[list[Array]]:
    """The inputs with all axes of a size, a first axis, or one axis cut to 0."""
    axes = [(i, axis) for i, a in enumerate(inputs) for axis in range(a.ndim) if a.shape[axis]]
    sizes = dict.fromkeys(inputs[i].shape[axis] for i, axis in axes)
    groups = [{p for p in axes if inputs[p[0]].shape[p[1]] == size} for size in sizes]
    groups += [{p for p in axes if not p[1] and inputs[p[0]].shape[0] == inputs[0].shape[0]}] if inputs[0].ndim else []
    unique: list[set[tuple[int, int]]] = []
    for group in [*groups, *({p} for p in axes if inputs[p[0]].ndim > 1)]:
        if group and group not in unique:
            unique.append(group)
    for group in unique[:_CUTS]:
        yield [
            np.ascontiguousarray(a[tuple(slice(0 if (i, axis) in group else None) for axis in range(a.ndim))])
            if a.ndim
            else a
            for i, a in enumerate(inputs)
        ]


def _with_shapes(model: onnx.ModelProto, inputs: list[Array]) -> onnx.ModelProto:
    cut = onnx.ModelProto()
    cut.CopyFrom(model)
    for info, array in zip(cut.graph.input, inputs, strict=True):
        info.type.tensor_type.shape.CopyFrom(onnx.helper.make_tensor_type_proto(1, array.shape).tensor_type.shape)
    for info in cut.graph.output:
        info.type.tensor_type.ClearField("shape")
    cut.ir_version = min(cut.ir_version, 11)
    return cut


@pytest.mark.parametrize("op_type", _by_operator())
def test_axes_of_no_elements(op_type: str) -> None:
    for model, inputs in _by_operator()[op_type]:
        for arrays in _cuts(inputs):
            cut = _with_shapes(model, arrays)
            values: dict[str, Any] = {info.name: a for info, a in zip(cut.graph.input, arrays, strict=True)}
            try:
                expected = by_onnxruntime(cut, values)
            except Exception:  # it refuses these sizes, or has no such operator
                continue
            assert_like(on_vulkan(cut, values), expected, 1e-3, 1e-3)


@pytest.mark.parametrize("op_type", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("layout", [0, 1])
def test_recurrent_layers_of_no_steps_or_sequences(op_type: str, layout: int) -> None:
    """What the CPU engine's kernels end the process for: the last states of no steps are 0."""
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op_type]
    weights = {"w": np.ones((1, 4 * gates, 2), np.float32), "r": np.ones((1, 4 * gates, 4), np.float32)}
    for steps, batch in ((0, 3), (2, 0), (0, 0)):
        order = (1, 0) if layout else (0, 1)
        x = np.ones((*np.array([steps, batch])[list(order)], 2), np.float32)
        state = np.ones((batch, 1, 4) if layout else (1, batch, 4), np.float32)
        inputs: dict[str, Array | None] = {"x": x, **weights, "b": None, "lens": None, "h": state}
        model = model_of(op_type, inputs, outputs=("y", "last"), opset=22, hidden_size=4, layout=layout)
        y, last = on_vulkan(model, inputs)
        assert y.shape == ((batch, steps, 1, 4) if layout else (steps, 1, batch, 4))
        assert last.shape == state.shape and not last.any()


def test_parts_of_an_empty_projection() -> None:
    """Queries, keys and values of one product begin behind the end of a batch of 0."""
    graph = """g (float[n,3,8] x) => (float[n,2,3,4] y) {
        a = MatMul(x, w) r = Reshape(a, s) t = Transpose<perm=[2,0,3,1,4]>(r) q3, k3, v3 = Split<axis=0>(t, p)
        q = Squeeze(q3, z) k = Squeeze(k3, z) v = Squeeze(v3, z) kt = Transpose<perm=[0,1,3,2]>(k)
        c = MatMul(q, kt) e = Softmax(c) y = MatMul(e, v) }"""
    proto = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 17]> {graph}')
    weights = {"w": np.ones((8, 24), np.float32), "s": [0, 3, 3, 2, 4], "p": [1, 1, 1], "z": [0]}
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in weights.items())
    for batch in (2, 0, 3, 0, 5):
        values = {"x": np.ones((batch, 3, 8), np.float32)}
        assert_like(on_vulkan(proto, values), by_onnxruntime(proto, values))


@pytest.mark.parametrize("tail", [(12, -1, 16), (12, 4, -1), (-1, 12, 16), (5, -1, 16)])
@pytest.mark.parametrize("batch", [0, 2])
def test_reshape_to_a_batch_that_may_be_empty(tail: tuple[int, ...], batch: int) -> None:
    """As exporters write ``x.view(n, 12, -1, 16)``."""
    graph = """g (float[n,12,64] x) => (float[a,b,c,d] y) {
        d = Shape<start=0, end=1>(x) s = Concat<axis=0>(d, c) r = Reshape<allowzero=1>(x, s) y = Neg(r) }"""
    proto = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 18]> {graph}')
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array(tail), "c"))
    values = {"x": np.ones((batch, 12, 64), np.float32)}
    if 5 in tail:
        with pytest.raises(InvalidInputError, match="Reshape"):
            on_vulkan(proto, values)
    else:
        assert_like(on_vulkan(proto, values), by_onnxruntime(proto, values))
