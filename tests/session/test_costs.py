"""What a small model may cost is bounded before memory or time is taken."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import vkep
from gpu_shared.capabilities import DeviceCapabilities
from vkep.graph.model import Node
from vkep.placement.fold import FoldError, fold
from vkep.session.options import SessionOptions

FLOAT = TensorProto.FLOAT
HUGE = 70_000_000_000_000_000
X = np.ones(2, np.float32)
OPSETS = [helper.make_opsetid("", 18)]


def model(nodes: list[onnx.NodeProto], x: list[Any], y: list[Any] | None, **arrays: npt.ArrayLike) -> bytes:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", FLOAT, x)],
        [helper.make_tensor_value_info("y", FLOAT, y)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()],
    )
    return bytes(helper.make_model(graph, opset_imports=OPSETS, ir_version=9).SerializeToString())


def outer(x: list[Any]) -> bytes:
    """A table of all products of a row's numbers, and its sum along one axis: n numbers take n * n floats on the way."""
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0]),
        helper.make_node("MatMul", ["t", "x"], ["m"]),
        helper.make_node("Softmax", ["m"], ["s"]),
        helper.make_node("ReduceSum", ["s", "one"], ["y"]),
    ]
    return model(nodes, x, [1, x[1]], one=np.array([0]))


def ones(*shape: int) -> npt.NDArray[np.float32]:
    """A view of one number: it takes no memory."""
    return np.broadcast_to(np.float32(1), shape)


def test_a_run_that_would_take_more_than_the_option_says_is_refused(vulkan: object) -> None:
    with vkep.InferenceSession(outer([1, "n"]), max_run_bytes=1 << 20, save_plans=False) as session:
        for _ in range(2):
            assert session.run(None, {"x": np.ones((1, 64), np.float32)})[0] == pytest.approx(np.ones((1, 64)))
            with pytest.raises(
                vkep.OutOfDeviceMemoryError, match=r"and max_run_bytes is 1048576: use a smaller"
            ) as told:
                session.run(None, {"x": np.ones((1, 4096), np.float32)})
            assert told.value.asked > 4096 * 4096 * 4 and told.value.budget == 1 << 20


@pytest.mark.usefixtures("collected")
def test_a_model_of_fixed_sizes_is_refused_when_it_opens(vulkan: object) -> None:
    before = vkep.live_counts()
    with pytest.raises(vkep.OutOfDeviceMemoryError, match="max_run_bytes is 1000000"):
        vkep.InferenceSession(outer([1, 4096]), max_run_bytes=1_000_000, save_plans=False)
    assert vkep.live_counts() == before


def test_without_the_option_the_bound_is_the_device_s_memory(monkeypatch: pytest.MonkeyPatch, vulkan: object) -> None:
    monkeypatch.setattr(DeviceCapabilities, "memory_bytes", property(lambda device: 1 << 20))
    with vkep.InferenceSession(outer([1, "n"]), save_plans=False) as session:
        session.run(None, {"x": np.ones((1, 64), np.float32)})
        with pytest.raises(vkep.OutOfDeviceMemoryError, match="max_run_bytes is 1048576"):
            session.run(None, {"x": np.ones((1, 4096), np.float32)})


@pytest.mark.parametrize(
    ("inputs", "node", "feeds"),
    [
        ("float[n] x, int64[1] s", "Expand(x, s)", {"x": X[:1], "s": [HUGE]}),
        ("float[n] x, int64[1] s", "Tile(x, s)", {"x": X, "s": [HUGE]}),
        ("float[n] x, int64[2] s", "Pad(x, s)", {"x": X, "s": [0, HUGE]}),
        ("int64[1] s", "ConstantOfShape(s)", {"s": [HUGE]}),
        ("int64 a, int64 b, int64 c", "Range(a, b, c)", {"a": 0, "b": HUGE, "c": 1}),
        ("int64[n] x, int64 d, float[2] v", "OneHot(x, d, v)", {"x": [0, 1], "d": HUGE, "v": X}),
    ],
    ids=lambda case: case.split("(")[0] if isinstance(case, str) else "",
)
def test_a_result_on_the_cpu_that_no_memory_holds_is_refused(
    vulkan: object, inputs: str, node: str, feeds: dict[str, Any]
) -> None:
    proto = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["": 18]> g ({inputs}) => (float[k] y) <int64[1] st = {{0}}, int64[1] en = {{4}}>'
        f"{{ t = {node} y = Slice(t, st, en) }}"
    )
    with (
        vkep.InferenceSession(proto, save_plans=False) as session,
        pytest.raises(
            vkep.InvalidInputError, match=f"{node.split('(')[0]}.*its result would have [1-9][0-9]* elements"
        ),
    ):
        session.run(None, {name: np.asarray(value) for name, value in feeds.items()})


@pytest.mark.parametrize("value", [0, -1, "1 GiB", 1.5])
def test_a_bound_that_is_missing_is_reported(value: Any) -> None:
    with pytest.raises(ValueError, match=r"max_run_bytes is .*, expected an integer of at least 1, or None"):
        SessionOptions(max_run_bytes=value)


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes", "why"),
    [
        ("Einsum", [ones(1 << 16)] * 2, {"equation": "i,j->ij"}, "would be 4294967296 elements"),
        ("Einsum", [ones(1024, 1024)] * 2, {"equation": "ij,kl->i"}, "would take .* steps"),
        ("Gemm", [ones(1, 1 << 16)] * 2, {"transA": 1}, "would be 4294967296 elements"),
        ("MatMul", [ones(16384, 16384)] * 2, {}, "would take 4398046511104 steps"),
        ("Concat", [ones(1 << 20)] * 300, {"axis": 0}, "would be 314572800 elements"),
        (
            "Gather",
            [ones(1, 1 << 15), np.zeros(1 << 15, np.int64)],
            {},
            "would be 1073741824 elements",
        ),
        (
            "Resize",
            [ones(1, 1, 4, 4), None, None, np.array([1, 1, 1 << 16, 1 << 16])],
            {},
            "would be 4294967296 elements",
        ),
        ("LpPool", [ones(1, 1, 3000, 3000)], {"kernel_shape": [1, 1]}, "would take .* steps"),
    ],
)
def test_costly_constants_are_not_folded(
    op_type: str, inputs: list[Any], attributes: dict[str, Any], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"i{k}" if a is not None else "" for k, a in enumerate(inputs)]
    proto = helper.make_node(op_type, names, ["y"], **attributes)
    schema = onnx.defs.get_schema(op_type, 18, "")
    node = Node(0, "n", op_type, "", tuple(names), ("y",), attributes, proto, schema)
    for evaluates in ("evaluate", "_Evaluator"):
        monkeypatch.setattr(f"vkep.placement.fold.{evaluates}", None)
    with pytest.raises(FoldError, match=why):
        fold(node, inputs, {"": 18})


def test_results_of_folding_are_bounded_together(monkeypatch: pytest.MonkeyPatch, vulkan: object) -> None:
    monkeypatch.setattr("vkep.placement.fold.MAX_TOTAL_BYTES", 1000)
    nodes = [
        helper.make_node("Expand", [before, "shape"], [after])
        for before, after in (("one", "a"), ("two", "b"), ("three", "c"))
    ]
    nodes += [helper.make_node("Sum", ["x", "a", "b", "c"], ["y"])]
    arrays = {n: np.float32(k + 1) for k, n in enumerate(("one", "two", "three"))}
    graph = model(nodes, [512], [512], shape=np.array([512]), **arrays)
    with vkep.InferenceSession(graph, save_plans=False) as session:
        assert session.run(None, {"x": np.zeros(512, np.float32)})[0] == pytest.approx(np.full(512, 6.0))
        assert sum(node.where == "folded" for node in session.report().nodes) == 1


def test_loops_in_loops_are_laid_out_to_a_bound(monkeypatch: pytest.MonkeyPatch, vulkan: object) -> None:
    """The session drives those that are left."""
    monkeypatch.setattr("vkep.placement.partition.MAX_TOTAL_UNROLLED", 200)
    value = helper.make_tensor_value_info
    body = [helper.make_node("Add", ["s2", "x"], ["t2"])]
    for depth in (2, 1, 0):
        names = [f"{n}{depth}" for n in "ics"]
        infos = [
            value(names[0], TensorProto.INT64, []),
            value(names[1], TensorProto.BOOL, []),
            value(names[2], FLOAT, [1]),
        ]
        nodes = [*body, helper.make_node("Identity", [names[1]], [f"d{depth}"])]
        outputs = [value(f"d{depth}", TensorProto.BOOL, []), value(f"t{depth}", FLOAT, [1])]
        loop = helper.make_graph(nodes, f"b{depth}", infos, outputs)
        before = f"s{depth - 1}" if depth else "x"
        after = f"t{depth - 1}" if depth else "y"
        body = [helper.make_node("Loop", ["trips", "", before], [after], body=loop)]
    began = time.process_time()
    with vkep.InferenceSession(model(body, [1], [1], trips=np.array(6)), save_plans=False) as session:
        assert session.run(None, {"x": np.ones(1, np.float32)})[0] == pytest.approx([1.0 + 6**3])
        assert any(node.where == "control" for node in session.report().nodes)
    assert time.process_time() - began < 20
