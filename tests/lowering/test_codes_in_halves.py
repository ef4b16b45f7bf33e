"""Quantized models on a device with float16 matrices, and on one with int8 ones too: their products are of codes in this type,
which later operations read."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from gpu_shared.capabilities import DeviceCapabilities
from tests.devices import GPU, GPU_OF_CODES
from tools.ort_cpu import cpu_session
from tools.passes.check import islands
from tools.passes.models import check_model
from tools.size_conditions import declared
from tools.user_forms.forms import FORMS
from vkep.graph import load_model
from vkep.ir.ops import KernelOp, Pointwise, reads
from vkep.ir.program import IslandStep, declared_value
from vkep.placement.partition import lower
from vkep.plan.records import ShaderVariant

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxruntime.quantization")

STATIC = [name for name in FORMS if name.startswith(("QDQ", "QOperator"))]
DYNAMIC = [name for name in FORMS if name.startswith("dynamic")]


def _model(nodes: list[onnx.NodeProto], weights: dict[str, np.ndarray], x: list[int], y: list[int]) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, x)],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, y)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def _random(*shape: int) -> np.ndarray:
    terms = max(1, int(np.prod(shape[1:])))
    return (np.random.default_rng(shape[0]).standard_normal(shape) / terms**0.5).astype(np.float32)


def residual() -> onnx.ModelProto:
    """Convolutions of 3x3 and 1x1, a residual sum, a depthwise one, a global pool and a product."""
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w0", "b0"], ["a"], pads=[1] * 4),
        node("Relu", ["a"], ["ar"]),
        node("Conv", ["ar", "w1", "b1"], ["s"]),
        node("Conv", ["ar", "w2", "b0"], ["p"], pads=[1] * 4),
        node("Relu", ["p"], ["q"]),
        node("Conv", ["q", "wd"], ["qd"], pads=[1] * 4, group=16),
        node("Conv", ["qd", "w3", "b1"], ["r"]),
        node("Add", ["r", "s"], ["t"]),
        node("Relu", ["t"], ["u"]),
        node("GlobalAveragePool", ["u"], ["g"]),
        node("Flatten", ["g"], ["f"]),
        node("Gemm", ["f", "w4", "b4"], ["y"], transB=1),
    ]
    weights = {"w0": _random(16, 3, 3, 3), "w1": _random(32, 16, 1, 1), "w2": _random(16, 16, 3, 3)}
    weights |= {"w3": _random(32, 16, 1, 1), "wd": _random(16, 1, 3, 3), "w4": _random(10, 32)}
    weights |= {"b0": _random(16), "b1": _random(32), "b4": _random(10)}
    return _model(nodes, weights, [9, 3, 10, 10], [9, 10])


def dense() -> onnx.ModelProto:
    """Two products with a residual sum, as in a transformer."""
    node = helper.make_node
    nodes = [
        node("MatMul", ["x", "w1"], ["a"]),
        node("Add", ["a", "b1"], ["b"]),
        node("Relu", ["b"], ["c"]),
        node("MatMul", ["c", "w2"], ["d"]),
        node("Add", ["d", "x"], ["y"]),
    ]
    return _model(nodes, {"w1": _random(64, 96), "b1": _random(96), "w2": _random(96, 64)}, [2, 9, 64], [2, 9, 64])


def heads() -> onnx.ModelProto:
    """Attention of four heads as exporters write it: both operands of its products are computed."""
    node = helper.make_node
    nodes = [node("MatMul", ["x", f"w{n}"], [f"{n}0"]) for n in "qkv"]
    nodes += [node("Reshape", [f"{n}0", "apart"], [f"{n}1"]) for n in "qkv"]
    nodes += [node("Transpose", [f"{n}1"], [n], perm=[0, 2, 3, 1] if n == "k" else [0, 2, 1, 3]) for n in "qkv"]
    nodes += [
        node("MatMul", ["q", "k"], ["s0"]),
        node("Div", ["s0", "root"], ["s1"]),
        node("Softmax", ["s1"], ["p"]),
        node("MatMul", ["p", "v"], ["o0"]),
        node("Transpose", ["o0"], ["o1"], perm=[0, 2, 1, 3]),
        node("Reshape", ["o1", "together"], ["o2"]),
        node("MatMul", ["o2", "wo"], ["y"]),
    ]
    weights = {f"w{n}": _random(64, 64) for n in "qkvo"} | {"root": np.array(4, np.float32)}
    weights |= {"apart": np.array([0, 0, 4, 16]), "together": np.array([0, 0, 64])}
    return _model(nodes, weights, [2, 24, 64], [2, 24, 64])


def pooled() -> onnx.ModelProto:
    """A convolution of an image, the maxima of its windows, and a convolution of these."""
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w0", "b0"], ["a"], pads=[3] * 4, strides=[2, 2]),
        node("Relu", ["a"], ["r"]),
        node("MaxPool", ["r"], ["p"], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4),
        node("Conv", ["p", "w1", "b1"], ["y"], pads=[1] * 4),
    ]
    weights = {"w0": _random(16, 3, 7, 7), "w1": _random(32, 16, 3, 3), "b0": _random(16), "b1": _random(32)}
    return _model(nodes, weights, [2, 3, 24, 22], [2, 32, 6, 6])


def _quantized(make: Any, form: str) -> tuple[onnx.ModelProto, np.ndarray]:
    logging.disable(logging.WARNING)
    try:
        model = make()
        shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
        x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
        return FORMS[form].make(model, {"x": x}), x
    finally:
        logging.disable(logging.NOTSET)


DEVICES = pytest.mark.parametrize("caps", [GPU, GPU_OF_CODES], ids=["halves", "codes"])


def _shaders(model: onnx.ModelProto, caps: DeviceCapabilities) -> list[ShaderVariant]:
    """That of each dispatch."""
    loaded = load_model(model.SerializeToString())
    known: dict[str, Any] = {**loaded.graph.weights, **{v.name: declared_value(v) for v in loaded.graph.inputs}}
    program = lower(loaded.graph.nodes, known, [v.name for v in loaded.graph.outputs], loaded.opsets, caps)
    steps = [step for step in program.steps if isinstance(step, IslandStep)]
    return [s.plan.pipelines[d.pipeline].shader for s in steps for d in s.plan.dispatches]


def _kernels(model: onnx.ModelProto, caps: DeviceCapabilities) -> Counter[str]:
    return Counter(shader.source for shader in _shaders(model, caps))


@pytest.mark.parametrize(
    ("make", "form"),
    # of `pooled`, a float at the limit between two codes decides where codes are computed in the run
    [(m, f) for m in (residual, dense, heads, pooled) for f in STATIC + DYNAMIC * (m is not pooled)],
)
@DEVICES
def test_results_are_those_of_onnxruntime(make: Any, form: str, caps: DeviceCapabilities) -> None:
    model, x = _quantized(make, form)
    [expected] = cpu_session(model, optimized=False).run(None, {"x": x})  # optimized, it rounds otherwise
    report = check_model(model, caps, {"x": x}, expected={"y": expected})
    assert report.islands and not report.differences, "\n".join(map(str, report.differences))


@pytest.mark.parametrize("form", [name for name in STATIC if name.startswith("QDQ")])
@DEVICES
def test_no_pass_over_memory_is_left_between_the_products(form: str, caps: DeviceCapabilities) -> None:
    kernels = _kernels(_quantized(residual, form)[0], caps)
    products = kernels["conv_last.comp"] + kernels["matmul_coop.comp"] + kernels["conv_depthwise_last.comp"]
    assert kernels["conv_last.comp"] == 2 and products >= 5, kernels
    assert not kernels["conv_tiled.comp"] + kernels["matmul_tiled.comp"] + kernels["pointwise_tile.comp"], kernels
    assert _kernels(_quantized(dense, form)[0], caps) == Counter({"matmul_coop.comp": 2, "pointwise.comp": 1})
    attention = _kernels(_quantized(heads, form)[0], caps)
    # the pass is of the input: a softmax stores codes, as products do
    assert attention == Counter({"matmul_coop.comp": 6, "softmax.comp": 1, "pointwise.comp": 1}), attention


@pytest.mark.parametrize("form", STATIC)
@DEVICES
def test_maxima_are_those_of_codes(form: str, caps: DeviceCapabilities) -> None:
    kernels = _kernels(_quantized(pooled, form)[0], caps)
    assert kernels["pool_last.comp"] == 1 and not kernels["pool.comp"], kernels
    assert kernels["pointwise.comp"] + kernels["pointwise_tile.comp"] <= 3, (
        kernels
    )  # of the input, the result, and uint8


@pytest.mark.parametrize("form", [name for name in STATIC if name.startswith("QDQ")])
@DEVICES
def test_of_two_products_that_are_added_the_first_stores_codes(form: str, caps: DeviceCapabilities) -> None:
    """Not float32, which is four times the bytes."""
    model, _ = _quantized(residual, form)
    with islands() as found:
        declared(load_model(model.SerializeToString()), {}).lowered({}, caps)
    made = {t.storage: op for ops, _ in found for op in ops if isinstance(op, KernelOp) for t in op.outputs}
    added = [t for op in made.values() for t in op.all_inputs[2:] if t.storage in made]
    assert added and all(t.dtype.itemsize <= 2 for t in added), added
    if caps is GPU_OF_CODES:  # which are read as vectors
        reads = [dict(shader.defines).get("EIGHT_READS", "") for shader in _shaders(model, caps)]
        assert any("E4_int8" in read for read in reads)


@pytest.mark.parametrize(("channels", "group"), [(15, 3), (12, 12), (16, 4)])
def test_no_weight_is_converted_in_a_run(channels: int, group: int) -> None:
    """Also where no kernel has float32 results of such groups of channels."""
    w = np.random.default_rng(2).integers(0, 256, (2 * channels, channels // group, 3, 3)).astype(np.uint8)
    graph = helper.make_graph(
        [helper.make_node("ConvInteger", ["x", "w", "x_zero", "w_zero"], ["y"], group=group)],
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.UINT8, [2, channels, 9, 9])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.INT32, None)],
        [
            numpy_helper.from_array(a, n)
            for n, a in {"w": w, "x_zero": np.array(9, np.uint8), "w_zero": np.array(100, np.uint8)}.items()
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    case = declared(load_model(model.SerializeToString()), {})
    with islands() as found:
        case.lowered({}, GPU)
    [(ops, _)] = found
    assert not any(isinstance(op, Pointwise) and any(t.storage.weight is not None for t in reads(op)) for op in ops)


@pytest.mark.parametrize("form", ["QLinearConv", "QLinearMatMul", "QLinearMatMul of what is computed"])
@DEVICES
def test_float32_holds_the_sums_of_operators_that_add_integers(form: str, caps: DeviceCapabilities) -> None:
    """They are sums in int32 by their specification, and a bias may cancel them: no kernel adds more products, but one of int8,
    whose sums are int32, where float32 rounds them only once."""
    n, k, convolves = 16, 576, form == "QLinearConv"
    codes = np.full((k, n), 127, np.int8)
    w = np.ascontiguousarray(codes.T).reshape(n, k // 9, 3, 3) if convolves else codes
    one, zero = np.array(1, np.float32), np.array(0, np.uint8)
    values: dict[str, np.ndarray] = {
        "s": one,
        "x_zero": zero,
        "w_zero": zero.astype(np.int8),
        "b": np.full(n, 1 << 24, np.int32),
    }
    inputs: dict[str, tuple[int, tuple[int, ...]]]
    inputs = {"x": (onnx.TensorProto.UINT8, (1, k // 9, 12, 12) if convolves else (32, k))}
    if form.endswith("computed"):
        inputs["w"] = onnx.TensorProto.INT8, w.shape
    else:
        values["w"] = w
    operands = ["x", "s", "x_zero", "w", "s", "w_zero", "s", "x_zero", *(["b"] if convolves else [])]
    graph = helper.make_graph(
        [helper.make_node(form.split()[0], operands, ["y"])],
        "g",
        [helper.make_tensor_value_info(name, *of) for name, of in inputs.items()],
        [helper.make_tensor_value_info("y", onnx.TensorProto.UINT8, None)],
        [numpy_helper.from_array(a, name) for name, a in values.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    with islands() as found:
        declared(load_model(model.SerializeToString()), {}).lowered({}, caps)
    products = [op for ops, _ in found for op in ops if isinstance(op, KernelOp) and len(op.inputs) == 2]
    assert products and {op.inputs[0].dtype.name for op in products} <= {"float16", "int8"}, products
    rounded_once = form == "QLinearMatMul" and caps is GPU_OF_CODES
    assert all(op.inputs[1].size // n * 255 * 128 <= 2**24 for op in products) != rounded_once, products


@pytest.mark.parametrize(
    ("bias", "scale", "one"),
    [(None, 1e-6, True), (2**20, 1e-4, True), (2**24 - 2**20, 1e-4, False), (2**20, 1e-5, False)],
)
def test_rounded_sums_give_the_codes_of_exact_ones(bias: int | None, scale: float, one: bool) -> None:
    """One product of int8 where sums that float32 rounds become the last codes, whatever the bias."""
    rng, n = np.random.default_rng(5), 16
    w = rng.integers(-127, 128, (n, 512, 3, 3)).astype(np.int8)
    w[:4], w[4:6, ::2], w[6:8, 1::2] = 127, 127, -127
    values: dict[str, np.ndarray] = {"s": np.array(1, np.float32), "t": np.array(scale, np.float32), "w": w}
    values["z"] = np.array(3, np.uint8)
    values["b"] = np.array([] if bias is None else rng.choice([-bias, bias], n), np.int32)
    operands = ["x", "s", "z", "w", "t", "w_zero", "s", "z", *([] if bias is None else ["b"])]
    values["w_zero"] = np.array(0, np.int8)
    graph = helper.make_graph(
        [helper.make_node("QLinearConv", operands, ["y"], pads=[1] * 4)],
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.UINT8, (1, 512, 8, 8))],
        [helper.make_tensor_value_info("y", onnx.TensorProto.UINT8, None)],
        [numpy_helper.from_array(a, name) for name, a in values.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    x = rng.integers(0, 256, (1, 512, 8, 8)).astype(np.uint8)
    x[:, ::2, :4] = 255
    [expected] = cpu_session(model, optimized=False).run(None, {"x": x})
    report = check_model(model, GPU_OF_CODES, {"x": x}, expected={"y": expected})
    assert report.islands and not report.differences, "\n".join(map(str, report.differences))
    assert (_kernels(model, GPU_OF_CODES)["conv_last.comp"] == 1) == one
    assert len(np.unique(expected)) > 5


@pytest.mark.parametrize("make", [residual, dense])
@DEVICES
def test_operators_of_codes_have_the_kernels_of_dequantized_ones(make: Any, caps: DeviceCapabilities) -> None:
    """And epilogues without integers: whole numbers are float32 in them."""
    kernels = {form: _kernels(_quantized(make, form)[0], caps) for form in ("QDQ, uint8, per channel", "QOperator")}
    products = [
        [k[n] for n in ("conv_last.comp", "matmul_coop.comp", "conv_depthwise_last.comp")] for k in kernels.values()
    ]
    assert products[0] == products[1] and any(products[0]), kernels
