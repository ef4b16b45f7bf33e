"""Operators by the categories of the CUDA plugin provider's tests (its design, table 10.1), each run by Vulkan: fallback to the
CPU provider is disabled, ONNX Runtime's optimizer too (it would remove nodes), and its assignment is looked at. Fused, and as
single kernels of the registry.

The table's other categories have files of their own: provider options and devices, layouts, graph capture, device tensors.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.ort.conftest import OpenSession, reference, where

EP = "VulkanExecutionProvider"
NO_CPU = {"session.disable_cpu_ep_fallback": "1"}
RNG = np.random.default_rng(11)


def f32(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.standard_normal(shape).astype(np.float32)


def ints(*values: int) -> np.ndarray[Any, Any]:
    return np.array(values, np.int64)


class Op:
    """One node: its inputs (arrays), which of them are constants, and its attributes."""

    def __init__(
        self,
        op_type: str,
        *inputs: Any,
        constants: tuple[int, ...] = (),
        outputs: int = 1,
        opset: int = 21,
        domain: str = "",
        expected: Any = None,
        **attributes: Any,
    ) -> None:
        self.op_type, self.opset, self.expected = op_type, opset, expected
        names = ["" if a is None else f"x{i}" for i, a in enumerate(inputs)]
        node = helper.make_node(op_type, names, [f"y{i}" for i in range(outputs)], domain=domain, **attributes)
        weights = [numpy_helper.from_array(inputs[i], f"x{i}") for i in constants]
        self.feeds = {f"x{i}": a for i, a in enumerate(inputs) if a is not None and i not in constants}
        infos = [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in self.feeds.items()
        ]
        made = [onnx.ValueInfoProto(name=f"y{i}") for i in range(outputs)]
        graph = helper.make_graph([node], op_type, infos, made, weights)
        opsets = [helper.make_opsetid("", opset)]
        if domain:
            opsets.append(helper.make_opsetid(domain, 1))
        self.model = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


MS = "com.microsoft"
X = f32(2, 3, 8, 8)
QUANTIZED = np.arange(-60, 60, 5, dtype=np.int8).reshape(4, 6)
CATEGORIES: dict[str, list[Op]] = {
    "registration": [
        Op("Add", f32(4, 5), f32(5)),
        Op("MatMul", f32(2, 4, 8), f32(8, 6), constants=(1,)),
        Op("Gemm", f32(4, 8), f32(6, 8), f32(6), constants=(1, 2), transB=1, alpha=0.5),
        Op("Conv", X, f32(4, 3, 3, 3), f32(4), constants=(1, 2), pads=[1, 1, 1, 1]),
    ],
    "tensor ops": [
        Op("Reshape", f32(2, 6), ints(3, -1), constants=(1,)),
        Op("Split", f32(6, 4), outputs=2, axis=0, num_outputs=2),
        Op("Concat", f32(2, 3), f32(2, 5), axis=1),
        Op("Gather", f32(5, 4), ints(0, 3, 1), axis=0),
        Op("Unsqueeze", f32(2, 3), ints(0, 2), constants=(1,)),
        Op("Tile", f32(2, 3), ints(2, 1), constants=(1,)),
        Op("Pad", f32(2, 3), ints(0, 1, 0, 2), np.float32(1.5).reshape(()), constants=(1, 2)),
        Op("Slice", f32(6, 5), ints(1), ints(6), ints(0), ints(2), constants=(1, 2, 3, 4)),
        Op("Transpose", f32(2, 3, 4), perm=[2, 0, 1]),
        Op("Cast", f32(7) * 9, to=onnx.TensorProto.INT32),
        Op("Where", f32(4) > 0, f32(4), f32(4)),
        Op("Flatten", f32(2, 3, 4), axis=2),
        Op("ArgMax", f32(3, 7), axis=1),
        Op("TopK", f32(3, 9), ints(4), outputs=2, constants=(1,)),
        Op("Trilu", f32(4, 4), upper=0),
        Op("NonZero", f32(3, 4) > 0),
    ],
    "math": [
        Op("Softmax", f32(3, 9)),
        Op("Relu", f32(9)),
        Op("Sigmoid", f32(9)),
        Op("Tanh", f32(9)),
        Op("Einsum", f32(3, 4), f32(4, 5), equation="ij,jk->ik"),
        Op("Einsum", f32(2, 3, 4), f32(2, 4, 5), equation="bij,bjk->bik"),
    ],
    "reduce": [
        Op("ReduceMean", f32(2, 5, 3), ints(1), constants=(1,), keepdims=0),
        Op("ReduceSum", f32(2, 5, 3), ints(0, 2), constants=(1,)),
    ],
    "space and depth": [
        Op("SpaceToDepth", X, blocksize=2),
        Op("DepthToSpace", f32(1, 8, 3, 3), blocksize=2),
        Op("Upsample", f32(1, 2, 3, 3), np.array([1, 1, 2, 2], np.float32), constants=(1,), opset=9),
    ],
    "shapes": [
        Op("CumSum", f32(4, 5), np.array(1, np.int64), constants=(1,)),
        Op("ConstantOfShape", ints(2, 3), value=helper.make_tensor("v", 1, [1], [2.5])),
        Op("Resize", X, None, None, ints(2, 3, 5, 12), constants=(3,), mode="linear"),
        Op("Sum", f32(3), f32(3), f32(3)),
    ],
    "normalization": [
        Op("LayerNormalization", f32(3, 8), f32(8), f32(8), constants=(1, 2)),
        Op("InstanceNormalization", X, f32(3), f32(3), constants=(1, 2)),
        Op("BatchNormalization", X, f32(3), f32(3), f32(3), f32(3) ** 2 + 1, constants=(1, 2, 3, 4)),
    ],
    "convolution and pooling": [
        Op("ConvTranspose", f32(1, 3, 5, 5), f32(3, 2, 3, 3), constants=(1,), strides=[2, 2]),
        Op("MaxPool", X, kernel_shape=[2, 2], strides=[2, 2]),
        Op("AveragePool", X, kernel_shape=[3, 3]),
    ],
    "scatter and gather": [
        Op("GatherND", f32(3, 4), np.array([[0, 1], [2, 3]], np.int64)),
        Op("ScatterElements", f32(3, 3), np.array([[0, 2, 1]], np.int64), f32(1, 3)),
        Op("OneHot", ints(0, 2, 1), np.array(4, np.int64), np.array([0, 1], np.float32), constants=(1, 2)),
    ],
    "spatial": [Op("GridSample", f32(1, 2, 5, 5), np.tanh(f32(1, 3, 4, 2)), mode="linear")],
    "contributed": [
        Op("FastGelu", f32(3, 8), f32(8), domain=MS),
        Op("Gelu", f32(3, 8), domain=MS),
        Op("BiasGelu", f32(3, 8), f32(8), domain=MS),
        Op("SkipLayerNormalization", f32(1, 3, 8), f32(1, 3, 8), f32(8), f32(8), domain=MS),
        # the CPU provider has no kernel for it: at ratio 0 it is an addition
        Op("BiasDropout", B := f32(3, 8), C := f32(8), None, np.array(0, np.float32), domain=MS, expected=[B + C]),
        Op("FusedMatMul", f32(4, 8), f32(6, 8), transB=1, alpha=0.5, domain=MS),
    ],
    "dropout": [Op("Dropout", f32(3, 4), opset=7, ratio=0.5), Op("Dropout", f32(3, 4), opset=10, ratio=0.5)],
    "quantization": [
        Op("DequantizeLinear", QUANTIZED, np.float32(0.1), np.int8(3), constants=(1, 2)),
        Op("QuantizeLinear", f32(4, 6) * 9, np.float32(0.1), np.int8(3), constants=(1, 2)),
        Op("MatMulInteger", QUANTIZED, QUANTIZED.T.copy(), np.array(2, np.int8)),
    ],
    "blocks of quantized rows": [
        Op(
            "GatherBlockQuantized",
            np.arange(64, dtype=np.uint8).reshape(4, 16),
            ints(2, 0),
            f32(4, 2),
            constants=(0, 2),
            domain=MS,
            block_size=16,
            bits=4,
            quantize_axis=1,
            gather_axis=0,
        )
    ],
    "identity": [Op("Identity", f32(5), opset=13), Op("Identity", f32(5), opset=25)],
}
CASES = [
    pytest.param(op, id=f"{category}-{op.op_type}-{i}")
    for category, ops in CATEGORIES.items()
    for i, op in enumerate(ops)
]


@pytest.mark.parametrize("kernels", ["compile", "registry"])
@pytest.mark.parametrize("op", CASES)
def test_vulkan_runs_it(session: OpenSession, op: Op, kernels: str) -> None:
    made = session(op.model, entries=NO_CPU, optimize=False, kernels=kernels)
    assert where(made) == {EP: Counter({op.op_type: 1})}
    expected = op.expected if op.expected is not None else reference(op.model, op.feeds)
    for got, wanted in zip(made.run(None, op.feeds), expected, strict=True):
        assert got.dtype == wanted.dtype
        assert got.shape == wanted.shape
        np.testing.assert_allclose(got, wanted, rtol=2e-4, atol=2e-4)


def test_a_node_without_a_kernel_is_declined_with_its_reason(session: OpenSession) -> None:
    op = Op("Cast", X, to=onnx.TensorProto.STRING)
    with pytest.raises(Exception, match=r"Cast .*: no kernel casts to string"):
        session(op.model, fallback="error")


@pytest.mark.parametrize("text", [False, True], ids=["numbers", "texts beside them"])
def test_copies_between_the_providers(session: OpenSession, text: bool) -> None:
    """MemcpyFromHost and MemcpyToHost, which ONNX Runtime inserts around a node of the CPU provider's."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Cast", ["a"], ["t"], to=onnx.TensorProto.STRING),
        helper.make_node("Cast", ["t"], ["b"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Neg", ["b"], ["y"]),
    ]
    outputs = [helper.make_tensor_value_info("y", 1, [4])]
    if text:
        outputs.append(helper.make_tensor_value_info("t", onnx.TensorProto.STRING, [4]))
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", 1, [4])], outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9).SerializeToString()
    made = session(model, all_on_vulkan=False, optimize=False)
    assert where(made)[EP] == {"Relu": 1, "Neg": 1}
    x = np.array([1.5, -2, 3, 0], np.float32)
    results = made.run(None, {"x": x})
    np.testing.assert_array_equal(results[0], -np.maximum(x, 0))
    if text:
        assert list(results[1]) == list(reference(model, {"x": x})[1])


def test_an_initializer_of_texts_is_the_cpu_providers(session: OpenSession) -> None:
    texts = numpy_helper.from_array(np.array(["a", "b", "c"], object), "names")
    nodes = [
        helper.make_node("Neg", ["x"], ["y"]),
        helper.make_node("ArgMax", ["y"], ["k"], axis=0, keepdims=0),
        helper.make_node("Gather", ["names", "k"], ["name"]),
    ]
    outputs = [helper.make_tensor_value_info("y", 1, [3]), helper.make_tensor_value_info("name", 8, [])]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", 1, [3])], outputs, [texts])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9).SerializeToString()
    y, name = session(model, all_on_vulkan=False).run(None, {"x": np.array([2, -3, 1], np.float32)})
    assert list(y) == [-2, 3, -1] and str(name) == "b"


def test_with_fallback_disabled_a_node_for_the_cpu_is_refused(session: OpenSession) -> None:
    op = Op("Cast", X, to=onnx.TensorProto.STRING)
    with pytest.raises(
        Exception, match=r"explicitly disabled the default CPU EP fallback|assigned to the default CPU EP"
    ):
        session(op.model, entries=NO_CPU)


def test_key_operators_are_assigned_to_the_provider(session: OpenSession) -> None:
    """The probe: one model with the operators that most models live on."""
    keys = ("Add", "Sub", "Mul", "Div", "MatMul", "Gemm", "Conv", "Softmax", "LayerNormalization", "Gather", "Concat")
    text = (
        "probe (float[1,4,6,6] x, float[4,4,3,3] w, float[36,8] m, int64[2] i) => (float[8,8] y) <float[8] s = "
        "{1,1,1,1,1,1,1,1}, int64[2] shape = {4, 36}> { c = Conv<pads=[1,1,1,1]>(x, w) r = Reshape(c, shape) p = MatMul(r, m) "
        "a = Add(p, s) b = Sub(a, p) d = Div(a, s) e = Mul(d, b) n = LayerNormalization(e, s, s) z = Softmax(n) "
        "g = Gather(z, i) h = Concat<axis=0>(g, g, z) y = Gemm<transA=1>(h, h) }"
    )
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 18]> {text}')
    made = session(model.SerializeToString(), entries=NO_CPU, optimize=False)
    assert set(where(made)[EP]) >= set(keys)
