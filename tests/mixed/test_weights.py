"""Weights that both delegates read lie on the device once, where their bytes serve both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from vkep.ir.program import IslandStep, VgfStep

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(5)
W = RNG.uniform(0.5, 1.5, (64, 64)).astype(np.float32)
K = RNG.uniform(-0.2, 0.2, (8, 3, 3, 3)).astype(np.float32)
R = np.arange(63, -1, -1, dtype=np.int32)
X = RNG.uniform(0.5, 1.0, (64, 64)).astype(np.float32)


def model(nodes: list[onnx.NodeProto], weights: dict[str, Array], shape: Any = X.shape) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, shape),
            helper.make_tensor_value_info("r", TensorProto.INT32, (64,)),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def node(op: str, *names: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, list(names[:-1]), [names[-1]], **attributes)


#: how a data graph may read the weight, and numpy's result; the Vulkan region after it computes acosh(1 + .) + w
READS: dict[str, tuple[list[onnx.NodeProto], Callable[[Array, Array], Array]]] = {
    "elementwise": ([node("Mul", "x", "w", "a")], lambda x, r: x * W),
    "matmul": ([node("MatMul", "x", "w", "a")], lambda x, r: x @ W),
    "gather table": ([node("Gather", "w", "r", "t", axis=0), node("Mul", "x", "t", "a")], lambda x, r: x * W[r]),
    "broadcast": (
        [  # TOSA sees the weight with an axis more
            node("Reshape", "x", "three", "f"),
            node("Mul", "f", "w", "p"),
            node("Reshape", "p", "two", "a"),
        ],
        lambda x, r: x * W,
    ),
}
REST = {
    "w": W,
    "one": np.array(1, np.float32),
    "three": np.array([1, 64, 64]),
    "two": np.array([64, 64]),
    "places": np.tile(np.arange(64)[:, None], (1, 64)),
}


#: TOSA's SCATTER has no reduction, so that Vulkan reads the weight
ADD_BY_SCATTER = node("ScatterElements", "c", "places", "w", "d", axis=0, reduction="add")


def after(a: str) -> list[onnx.NodeProto]:
    return [node("Add", a, "one", "b"), node("Acosh", "b", "c"), ADD_BY_SCATTER, node("Sin", "d", "y")]


@pytest.mark.parametrize("how", READS)
def test_one_copy_for_both(opened: Any, how: str) -> None:
    nodes, numpy_form = READS[how]
    session = opened(model([*nodes, *after("a")], REST), prefer="vgf_first", check_data=False)  # the indices
    first, island, _ = session._parts.graph.latest.program.steps
    assert isinstance(first, VgfStep) and isinstance(island, IslandStep)
    (shared,) = first.graph.weights
    assert shared.weight.key in island.weights

    report, memory = session.report(), session.memory()
    assert report.graphs[0].shared_bytes == W.nbytes
    assert report.graphs[0].constant_bytes < W.nbytes  # what the driver keeps are indices and zero points
    assert memory.shared_bytes == W.nbytes
    assert list(memory.constants.values()).count(W.nbytes) == 1  # the device's one copy
    assert f"{W.nbytes} bytes of weights shared with Vulkan" in str(report)

    (executor, _, _) = session._parts.graph.latest.steps
    (y,) = session.run(None, {"x": X, "r": R})
    np.testing.assert_allclose(y, np.sin(np.arccosh(1 + numpy_form(X, R)) + W), rtol=2e-4, atol=2e-4)
    (recorded,) = executor.runner._recordings.values()
    (tensor,) = executor._weights.tensors
    bound = {(id(t.buffer), t.offset) for t in recorded._tensors.values()}
    assert (id(tensor.block.buffer), tensor.block.offset) in bound  # a VkTensorARM on the store's buffer
    store = session._delegate.constants
    assert store._entries[shared.weight.key].address == tensor.address  # which kernels read by this address


def test_a_second_session_adds_no_copy(opened: Any) -> None:
    proto = model([*READS["matmul"][0], *after("a")], REST)
    sessions = [opened(proto, prefer="vgf_first") for _ in range(2)]
    assert list(sessions[0].memory().constants.values()).count(W.nbytes) == 1
    want = sessions[0].run(None, {"x": X, "r": R})[0]
    sessions[0].close()
    np.testing.assert_array_equal(sessions[1].run(None, {"x": X, "r": R})[0], want)


def test_other_layouts_and_unshared_weights_stay_constants(opened: Any) -> None:
    """A convolution's kernel is OIHW in ONNX and OHWI in TOSA; and a weight that no Vulkan kernel reads is the graph's."""
    nodes = [
        node("Conv", "x", "k", "a"),
        node("Mul", "a", "only", "o"),
        node("Exp", "o", "e"),
        node("Acosh", "e", "b"),
        node("Sin", "b", "y"),
    ]
    only = RNG.uniform(0.5, 1, (8, 14, 14)).astype(np.float32)
    proto = model(nodes, {"k": K, "only": only}, (1, 3, 16, 16))
    session = opened(proto, prefer="vgf_first")
    graphs = session.report().graphs
    assert sum(g.shared_bytes for g in graphs) == 0
    assert graphs[0].constant_bytes >= K.nbytes + only.nbytes
    assert "have 7.0 KiB of constants of their own" in str(session.memory())


def test_constants_that_tosa_requires_stay_constants() -> None:
    from vkep.graph.weights import ArrayWeight
    from vkep.tosa.graph import TosaBuilder
    from vkep.tosa.shared import shareable

    b = TosaBuilder()
    table = np.arange(256, dtype=np.int8)
    weight = ArrayWeight("table", table)
    x, t = b.input("int8", (4, 64)), b.constant(table)
    flat = b.reshape(t, (4, 64))
    looked = b.op("table", [x.value, t.value], (4, 64))
    added = b.op("maximum", [looked, flat.value], (4, 64))
    by_add = b.ops[-1:]
    assert [w.shape for _, w in shareable(by_add, [added], [(weight, table)], {weight.key})] == [(4, 64)]
    by_table = b.ops[:-1]
    assert shareable(by_table, [looked], [(weight, table)], {weight.key}) == []
    assert shareable(by_add, [added], [(weight, table)], {"another"}) == []
