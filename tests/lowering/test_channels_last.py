"""The layout with channels last: kept between operations as a view, given up only where an operator needs the other."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import vkep
import vkep.kernels.conv.nhwc
from tests.devices import GPU
from vkep.graph import load_model
from vkep.ir.program import IslandStep, declared_value
from vkep.kernels.conv.conv import ConvProblem
from vkep.kernels.select import choose
from vkep.placement.partition import lower
from vkep.plan.records import Plan
from vkep.sizes import clear_caches

RNG = np.random.default_rng(11)


def residual_network(kernel: int = 3) -> onnx.ModelProto:
    """Two blocks of convolutions with a depthwise one and a residual sum, then a global pool: float16, 2 x 16 x 8 x 8."""
    weights: list[TensorProto] = []
    nodes: list[onnx.NodeProto] = []

    def conv(x: str, y: str, channels: int, out: int, size: int, group: int = 1) -> None:
        scale = 1 / (channels // group * size * size) ** 0.5
        w = (RNG.standard_normal((out, channels // group, size, size)) * scale).astype(np.float16)
        weights.append(numpy_helper.from_array(w, f"w_{y}"))
        weights.append(numpy_helper.from_array(RNG.standard_normal(out).astype(np.float16), f"b_{y}"))
        pads = [size // 2] * 4
        nodes.append(helper.make_node("Conv", [x, f"w_{y}", f"b_{y}"], [y], pads=pads, group=group))

    conv("x", "stem", 16, 32, 1)
    nodes.append(helper.make_node("Relu", ["stem"], ["a"]))
    conv("a", "b", 32, 32, 3, group=32)
    nodes.append(helper.make_node("Clip", ["b", "low", "high"], ["c"]))
    conv("c", "d", 32, 32, kernel)
    nodes.append(helper.make_node("Add", ["d", "a"], ["e"]))
    nodes.append(helper.make_node("Relu", ["e"], ["f"]))
    nodes.append(helper.make_node("GlobalAveragePool", ["f"], ["pooled"]))
    nodes.append(helper.make_node("Concat", ["f", "a"], ["both"], axis=1))
    weights += [numpy_helper.from_array(np.array(v, np.float16), n) for n, v in (("low", 0.0), ("high", 6.0))]
    half = TensorProto.FLOAT16
    graph = helper.make_graph(
        nodes,
        "residual",
        [helper.make_tensor_value_info("x", half, [2, 16, 8, 8])],
        [
            helper.make_tensor_value_info("pooled", half, [2, 32, 1, 1]),
            helper.make_tensor_value_info("both", half, [2, 64, 8, 8]),
        ],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def pooled_network(
    pool: str, *, kernel: int = 3, dtype: type = np.float16, channels: int = 32, **attributes: Any
) -> onnx.ModelProto:
    """A convolution of 16 channels, Relu, a 3x3 pool and a convolution again: 2 x 16 x 10 x 10."""
    weights = [
        numpy_helper.from_array((RNG.standard_normal((out, given, kernel, kernel)) / 4).astype(dtype), name)
        for name, out, given in (("w0", channels, 16), ("w1", 24, channels))
    ]
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node(pool, ["b"], ["c"], kernel_shape=[3, 3], strides=[2, 2], **attributes),
        helper.make_node("Conv", ["c", "w1"], ["y"]),
    ]
    if attributes.get("storage_order") is not None:  # which only indices show
        nodes[2].output.append("indices")
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        nodes,
        "pooled",
        [helper.make_tensor_value_info("x", kind, [2, 16, 10, 10])],
        [helper.make_tensor_value_info("y", kind, None)],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def planned_on_a_gpu(model: onnx.ModelProto) -> Plan:
    graph = load_model(model).graph
    known: dict[str, Any] = {**graph.weights, **{v.name: declared_value(v) for v in graph.inputs}}
    program = lower(graph.nodes, known, [v.name for v in graph.outputs], {"": 21}, GPU)
    [step] = program.steps
    assert isinstance(step, IslandStep)
    return step.plan


def kernels_on_a_gpu(model: onnx.ModelProto) -> Counter[str]:
    plan = planned_on_a_gpu(model)
    return Counter(plan.pipelines[d.pipeline].shader.source for d in plan.dispatches)


def test_one_relayout_in_and_none_between() -> None:
    kernels = kernels_on_a_gpu(residual_network())
    assert kernels["conv_last.comp"] == kernels["matmul_coop.comp"] == kernels["conv_depthwise_last.comp"] == 1
    assert kernels["reduce.comp"] == 1, "the pool reads [n, h, w, c] as it lies"
    moves = kernels["pointwise.comp"] + kernels["pointwise_tile.comp"]
    assert moves == 3, f"the input comes in, and Concat's two parts go out; got {kernels}"


@pytest.mark.parametrize("pool", ["MaxPool", "AveragePool"])
def test_no_relayout_around_a_pool(pool: str) -> None:
    kernels = kernels_on_a_gpu(pooled_network(pool, pads=[1, 1, 1, 1], ceil_mode=1))
    assert kernels["conv_last.comp"] == 2
    assert kernels["pool_last.comp"] == 1 and kernels["pool.comp"] == 0
    moves = kernels["pointwise.comp"] + kernels["pointwise_tile.comp"]
    assert moves == 2, f"the input comes in, and the result goes out; got {kernels}"


@pytest.mark.parametrize(
    ("pool", "options"),
    [("MaxPool", {"storage_order": 0}), ("LpPool", {}), ("MaxPool", {"dtype": np.float32})],
    ids=["indices", "lp", "float32"],
)
def test_other_pools_want_their_channels_second(pool: str, options: dict[str, Any]) -> None:
    kernels = kernels_on_a_gpu(pooled_network(pool, **options))
    assert kernels["pool.comp"] == 1 and kernels["pool_last.comp"] == 0


def test_a_stack_of_convolutions_over_time_keeps_one_layout() -> None:
    """As the features of speech: a convolution of the samples, further ones with GELU between, then rows of a product."""
    shapes = {"w0": (16, 1, 10), "w1": (16, 16, 3), "w2": (24, 16, 3), "w3": (24, 6, 8)}
    weights = [numpy_helper.from_array(RNG.standard_normal(s).astype(np.float16), name) for name, s in shapes.items()]
    weights.append(numpy_helper.from_array(RNG.standard_normal((24, 16)).astype(np.float16), "p"))
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"], strides=[5]),
        helper.make_node("Gelu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "w1"], ["c"], strides=[2]),
        helper.make_node("Gelu", ["c"], ["d"]),
        helper.make_node("Conv", ["d", "w2"], ["e"], strides=[2]),
        helper.make_node("Conv", ["e", "w3"], ["f"], pads=[4, 4], group=4),
        helper.make_node("Transpose", ["f"], ["g"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["g", "p"], ["y"]),
    ]
    half = TensorProto.FLOAT16
    graph = helper.make_graph(
        nodes,
        "speech",
        [helper.make_tensor_value_info("x", half, [2, 1, 640])],
        [helper.make_tensor_value_info("y", half, None)],
        weights,
    )
    kernels = kernels_on_a_gpu(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))
    assert kernels["conv_last.comp"] == 4 and kernels["matmul_coop.comp"] == 1, kernels
    assert kernels["widen_pixels.comp"] == 1 and sum(kernels.values()) == 6, kernels


Step = tuple[str, list[str], str, dict[str, Any]]
PADDED = {"pads": [1, 1, 1, 1]}


@pytest.mark.parametrize(
    "steps",
    [
        [("Conv", ["a", "w1"], "b", PADDED), ("Concat", ["three", "a"], "c", {"axis": 1})],
        [
            ("Conv", ["a", "w1"], "b", PADDED),
            ("Concat", ["a", "x"], "both", {"axis": 1}),
            ("Concat", ["three", "both"], "c", {"axis": 1}),
        ],
        [("Slice", ["a", "s3", "s11", "axis"], "part", {}), ("Conv", ["part", "w2"], "b", PADDED)],
    ],
    ids=["beside others", "in what lies beside others", "a part"],
)
def test_operands_that_are_read_in_vectors_stay_aligned(steps: list[Step]) -> None:
    """A result of one pixel lies as it does among other channels, where three come before it."""
    arrays = {
        "w0": np.ones((16, 16, 1, 1), np.float16),
        "w1": np.ones((16, 16, 3, 3), np.float16),
        "w2": np.ones((16, 8, 3, 3), np.float16),
        "s3": np.array([3]),
        "s11": np.array([11]),
        "axis": np.array([1]),
    }
    nodes = [helper.make_node("Conv", ["x", "w0"], ["a"])]
    nodes += [helper.make_node(op, given, [made], **attributes) for op, given, made, attributes in steps]
    used = {name for node in nodes for name in node.input}
    half = TensorProto.FLOAT16
    graph = helper.make_graph(
        nodes,
        "aligned",
        [helper.make_tensor_value_info(n, half, [1, c, 1, 1]) for n, c in (("x", 16), ("three", 3)) if n in used],
        [helper.make_tensor_value_info(made, half, None) for _, _, made, _ in steps if made in "bc"],
        [numpy_helper.from_array(array, name) for name, array in arrays.items() if name in used],
    )
    plan = planned_on_a_gpu(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))
    [second] = [d for d in plan.dispatches if plan.pipelines[d.pipeline].shader.source == "conv_last.comp"]
    assert all(r.start % 16 == 0 for r in second.reads), second.reads


@pytest.mark.parametrize(
    ("channels", "size", "kernel"), [(3, 3000, 3), (3, 2200, 1), (64, 3000, 3), (64, 3000, 1)], ids=str
)
def test_images_of_many_tiles(channels: int, size: int, kernel: int) -> None:
    """More tiles of rows than a grid has workgroups along one axis."""
    weights = numpy_helper.from_array(np.ones((16, channels, kernel, kernel), np.float16), "w")
    half = TensorProto.FLOAT16
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"])],
        "large",
        [helper.make_tensor_value_info("x", half, [1, channels, size, size])],
        [helper.make_tensor_value_info("y", half, None)],
        [weights],
    )
    plan = planned_on_a_gpu(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))
    assert max(max(d.grid) for d in plan.dispatches) <= 65535
    kernels = {plan.pipelines[d.pipeline].shader.source for d in plan.dispatches}
    assert kernels & {"conv_last.comp", "matmul_coop.comp"}


def test_a_device_that_no_tile_fits_plans_without() -> None:
    small = dataclasses.replace(GPU, max_shared_memory_bytes=16384, max_workgroup_invocations=32)
    problem = ConvProblem(1, 16, 8, 8, 16, 3, 3, pads=(1, 1, 1, 1), dtype="float16", w_constant=True)
    assert choose(problem, small).candidate.name == "direct"


def test_without_weights_known_it_stays_as_it_is() -> None:
    model = residual_network()
    kept = [w for w in model.graph.initializer if w.name != "w_d"]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    model.graph.input.append(helper.make_tensor_value_info("w_d", TensorProto.FLOAT16, [32, 32, 3, 3]))
    assert kernels_on_a_gpu(model)["conv_last.comp"] == 0


@contextmanager
def lying_last() -> Iterator[None]:
    """On any device: 1x1 convolutions are products, which need no cooperative matrices, and so are depthwise ones."""
    clear_caches()  # what was chosen for a problem before is kept
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vkep.kernels.conv.nhwc, "no_cooperative_tile", lambda *_: "")
        yield
    clear_caches()


def test_results() -> None:
    model = residual_network(kernel=1)
    x = RNG.standard_normal((2, 16, 8, 8)).astype(np.float16)
    with lying_last(), vkep.InferenceSession(model, fallback="error") as session:
        [island] = session.islands()
        sources = {p.shader.source for p in island.plan.pipelines}
        assert "conv_depthwise_last.comp" in sources and "conv_depthwise.comp" not in sources
        found = session.run(None, {"x": x})
    with vkep.InferenceSession(model, fallback="error") as session:
        expected = session.run(None, {"x": x})
    for mine, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine.astype(np.float32), other.astype(np.float32), rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize(
    "attributes",
    [{"pads": [1, 0, 1, 2]}, {"ceil_mode": 1}, {"pads": [1, 1, 1, 1], "ceil_mode": 1}, {"dilations": [2, 3]}],
    ids=str,
)
@pytest.mark.parametrize("pool", ["MaxPool", "AveragePool"])
def test_results_of_pools(pool: str, attributes: dict[str, Any]) -> None:
    model = pooled_network(pool, kernel=1, **attributes)
    x = RNG.standard_normal((2, 16, 10, 10)).astype(np.float16)
    with lying_last(), vkep.InferenceSession(model, fallback="error") as session:
        [island] = session.islands()
        sources = {p.shader.source for p in island.plan.pipelines}
        assert "pool_last.comp" in sources and "pool.comp" not in sources
        [found] = session.run(None, {"x": x})
    with vkep.InferenceSession(model, fallback="error") as session:
        [expected] = session.run(None, {"x": x})
    assert found.shape == expected.shape
    np.testing.assert_allclose(found.astype(np.float32), expected.astype(np.float32), rtol=5e-3, atol=5e-3)


def test_a_softmax_over_the_image_as_before_version_13() -> None:
    """It takes the axes from height on together, which lie in the middle of [n, h, w, c]; its result lies as [n, c, h, w]."""
    w = RNG.standard_normal((5, 3, 1, 1)).astype(np.float16)
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["t"]), helper.make_node("Softmax", ["t"], ["y"], axis=2)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT16, [2, 3, 4, 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT16, [2, 5, 4, 6])],
        [numpy_helper.from_array(w, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=7)
    x = RNG.standard_normal((2, 3, 4, 6)).astype(np.float16)
    with lying_last(), vkep.InferenceSession(model, fallback="error") as session:
        found = session.run(None, {"x": x})[0].astype(np.float32)
    scores = np.einsum("oi,nihw->nohw", w[:, :, 0, 0].astype(np.float32), x.astype(np.float32)).reshape(2, 5, 24)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    expected = powers / powers.sum(-1, keepdims=True)
    np.testing.assert_allclose(found.reshape(2, 5, 24), expected, rtol=5e-3, atol=5e-4)
