"""Bad models: a clear error, nothing left behind, other sessions go on."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import vkep
from tests.session.models import ADD_RELU, model
from vkep import InferenceSession, InvalidInputError, InvalidModelError, SharedGpuContext, UnsupportedModelError
from vkep.graph.model import Node
from vkep.placement.fold import FoldError, fold

OPSETS = [helper.make_opsetid("", 18), helper.make_opsetid("f", 1)]
X = {"x": np.ones((2, 3), np.float32), "b": np.ones(3, np.float32)}


@pytest.fixture
def context(own_context: SharedGpuContext) -> Any:
    """A context on which another session lives before and after."""
    with InferenceSession(ADD_RELU, context=own_context) as other:
        before = own_context.users
        yield own_context
        assert own_context.users == before, "a session that failed to open holds nothing"
        np.testing.assert_array_equal(other.run(None, X)[0], np.full((2, 3), 2))


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        ("missing.onnx", FileNotFoundError, "no model file at missing.onnx"),
        (b"\0\1\2", InvalidModelError, "not an ONNX model"),
        (ADD_RELU.SerializeToString()[:-20], InvalidModelError, "truncated|not an ONNX model"),
        (model("g (float[2] x) => (float[2] y) { y = Nonsense(x) }"), UnsupportedModelError, "(?s)neither.*Nonsense"),
        (
            model("g (float[2] x) => (float[2] y) { y = far.Away(x) }", domains=', "far": 3'),
            UnsupportedModelError,
            r"far\.Away",
        ),
        (model("g (float[2] x) => (float[2] y) { y = Relu(x) }", opset=999), InvalidModelError, "knows up to"),
        (
            model("g (float[2] x) => (float[2] y) { y = Relu(x) }", opset=0),
            InvalidModelError,
            "opset of 'ai.onnx' is 0",
        ),
        (model("g (float[2] x) => (float[2] y) { y = Elu<beta=1.0>(x) }"), InvalidModelError, "beta"),
        (model("g (float[2] x) => (float[2] y) { y = Add(x, z) z = Neg(y) }"), InvalidModelError, "its own output"),
        (model("g (float[2] x) => (float[2] y) { y = Einsum<equation=1.5>(x) }"), InvalidModelError, "equation"),
    ],
    ids=["missing", "bytes", "truncated", "operator", "domain", "opset", "no opset", "attribute", "cycle", "equation"],
)
def test_models_that_do_not_open(context: SharedGpuContext, source: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        InferenceSession(source, context=context)


def _unknown_weight_type(proto: onnx.ModelProto) -> None:
    proto.graph.initializer[0].data_type = 1 << 20


def _unknown_input_type(proto: onnx.ModelProto) -> None:
    proto.graph.input[0].type.tensor_type.elem_type = 127


def _reference_in_the_graph(proto: onnx.ModelProto) -> None:
    proto.graph.node[0].op_type = "Softmax"
    del proto.graph.node[0].input[1:]
    proto.graph.node[0].attribute.append(
        onnx.AttributeProto(name="axis", type=onnx.AttributeProto.INT, i=0, ref_attr_name="t")
    )


def _one_function_twice(proto: onnx.ModelProto) -> None:
    function = helper.make_function("f", "F", ["x"], ["y"], [helper.make_node("Relu", ["x"], ["y"])], OPSETS)
    proto.functions.extend([function, function])


def _output_without_a_name(proto: onnx.ModelProto) -> None:
    proto.graph.node[1].op_type = "Dropout"
    proto.graph.node[1].output.append("")
    proto.graph.output.add().type.CopyFrom(proto.graph.output[0].type)


def _shape_of_nothing(proto: onnx.ModelProto) -> None:
    proto.graph.node[0].op_type = "Shape"
    del proto.graph.node[0].input[:]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_shape_of_nothing, "Shape"),
        (_output_without_a_name, "output '' is made by no node"),
        (_unknown_weight_type, "type 1048576"),
        (_unknown_input_type, "'x' has the element type 127, which ONNX has not"),
        (_reference_in_the_graph, "'axis'.*reference"),
        (_one_function_twice, "functions cannot be inlined"),
    ],
)
def test_fields_that_onnx_does_not_check(
    vulkan: object, damage: Callable[[onnx.ModelProto], None], message: str
) -> None:
    proto = model("g (float[2,3] x) => (float[2,3] y) { t = Add(x, b) y = Relu(t) }")
    proto.graph.initializer.append(numpy_helper.from_array(np.ones(3, np.float32), "b"))
    damage(proto)
    with pytest.raises(InvalidModelError, match=message):
        InferenceSession(proto)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("y = MatMul(x, x)", "inner dimensions differ"),
        ("y = Conv(x, x)", "spatial axes"),
    ],
)
def test_nodes_whose_shapes_cannot_be(context: SharedGpuContext, text: str, reason: str) -> None:
    """Vulkan declines them with the reason; the CPU engine, whose word counts, refuses them when they run."""
    proto = model(f"g (float[2,3] x, float[3] b) => (float[] y) {{ {text} }}")
    with InferenceSession(proto, context=context) as session:
        [node] = [n for n in session.report().nodes if n.where == "cpu"]
        assert reason in node.reason and node.reason
        with pytest.raises(InvalidInputError, match=f"(?s)on the CPU.*{node.op_type}"):
            session.run(None, X)
    with pytest.raises(UnsupportedModelError, match=re.escape(node.reason)):
        InferenceSession(proto, context=context, fallback="error")


def test_the_cpu_engine_that_refuses_only_shapes_has_the_last_word(context: SharedGpuContext) -> None:
    """onnx's reference would give a result."""
    proto = model("g (float[a,b] x) => (float[] y) { t = Cast<to=8>(x) f = Flatten<axis=3>(t) y = Cast<to=1>(f) }")
    with (
        InferenceSession(proto, context=context) as session,
        pytest.raises(InvalidInputError, match=r"(?s)on the CPU \(onnxruntime\).*Flatten"),
    ):
        session.run(None, {"x": X["x"]})


SCAN = (
    "s, y = Scan<{}, body = step (float[2] a, float[n] c) => (float[2] d, float[n] e) {{ d = Identity(a) e = Identity(c) }}>"
    "(b, x)"
)
INVALID = [
    ("y = Transpose<perm=[0,1,5]>(x)", "Transpose.*no permutation"),
    ("y = Transpose<perm=[0]>(x)", "Transpose.*no permutation"),
    ("s = Constant<value = int64[1] {7}>() y = Reshape(x, s)", "Reshape.*cannot reshape"),
    ("i = Constant<value = int64[1] {9}>() y = Gather(x, i)", "Gather.*an index is outside"),
    ("y = Flatten<axis=7>(x)", "Flatten.*axis 7 is out of range for rank 2"),
    ("y = Concat<axis=0>(x, b)", "Concat.*differ on another axis than 0"),
    ("y = Softmax<axis=9>(x)", "Softmax.*axis 9 is out of range for rank 2"),
    ("y = MaxPool<kernel_shape=[9, 9]>(x)", "MaxPool.*kernel_shape.*the input has 0 spatial axes"),
    ("k = Constant<value = int64[1] {9}>() y, z = TopK(x, k)", "TopK.*k is 9, expected 0 to 3"),
    ("i = Constant<value = int64[1] {9}>() y = Gather(x, i)", r"Gather.*outside \[-2, 1\] of axis 0: 9"),
    ("y = Add(x, b)", r"Add.*shapes \[\(2, 3\), \(2,\)\] do not broadcast"),
    ("y = PRelu(x, b)", r"PRelu.*shapes \[\(2, 3\), \(2,\)\] do not broadcast"),
    ("y = GreaterOrEqual(x, b)", r"GreaterOrEqual.*shapes \[\(2, 3\), \(2,\)\] do not broadcast"),
    ("y = twice.Sum(x, b)", r"Add.*shapes \[\(2, 3\), \(2,\)\] do not broadcast"),
    (
        SCAN.format("num_scan_inputs=1, scan_input_axes=[5]"),
        "Scan.*scan_input_axes has 5, which is out of range for rank 2",
    ),
    (SCAN.format("num_scan_inputs=1, scan_output_axes=[0, 0]"), "Scan.*scan_output_axes has 2 elements, expected 1"),
    (SCAN.format("num_scan_inputs=7"), "Scan.*num_scan_inputs is 7, with 2 inputs"),
    *[
        (
            "c = Constant<value = bool {1}>() y = If<"
            f"then_branch = t ({inputs}) => ({outputs}) {{ e = Identity(b) f = Identity(b) }},"
            " else_branch = f () => (float[2] g) { g = Identity(b) }>(c)",
            "If.*'then_branch' has . inputs and . outputs, expected 0 and 1",
        )
        for inputs, outputs in (("", ""), ("", "float[2] e, float[2] f"), ("float[2] s", "float[2] e"))
    ],
    *[
        (
            "n = Constant<value = int64 {3}>() c = Constant<value = bool {1}>() y = Loop<body = f "
            f"({inputs}) => ({outputs}) {{ k = Identity(c) e = Identity(b) }}>(n, c, b)",
            "Loop.*'body' has . inputs and . outputs, expected 3 and 2",
        )
        for inputs, outputs in (
            ("int64 i", "bool k, float[2] e"),
            ("int64 i, bool q, float[2] s, float[2] t", "bool k, float[2] e"),
            ("int64 i, bool q, float[2] s", "bool k"),
        )
    ],
    *[
        (
            f"s, y = Scan<num_scan_inputs=1, body = f ({inputs}) => ({outputs}) {{ d = Identity(b) e = Identity(b) }}>(b, x)",
            "Scan.*'body' has . inputs and . outputs, expected 2 and 2",
        )
        for inputs, outputs in (
            ("float[n] c", "float[2] d, float[2] e"),
            ("float[2] a, float[n] c, float q", "float[2] d, float[2] e"),
            ("float[2] a, float[n] c", "float[2] d"),
        )
    ],
]
TWICE = """<domain: "twice", opset_import: ["": 22]> Sum (x, b) => (y) { s = Add(x, b) y = Add(s, s) }"""


def _invalid(text: str, x: str, b: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 22, "twice": 1]> g (float[{x}] x, float[{b}] b) => (float[] y) {{ {text} }}
        {TWICE}"""
    )


def test_an_operator_of_a_later_version_than_the_model_imports(context: SharedGpuContext) -> None:
    """onnx's checker has no schema of QuantizeLinear for version 7, and does not look at its attributes."""
    text = """<ir_version: 10, opset_import: ["": 7]> g (float[2,3] x, float s, uint8 z) => (uint8[2,3] y)
        { y = QuantizeLinear<axis: ints = []>(x, s, z) }"""
    with pytest.raises(
        UnsupportedModelError, match="QuantizeLinear is declared for versions 10 and later; the model imports 7"
    ):
        InferenceSession(onnx.parser.parse_model(text), context=context)


@pytest.mark.parametrize(("text", "message"), INVALID)
@pytest.mark.parametrize("fallback", ["cpu", "error"])
def test_a_model_that_breaks_an_operator_does_not_open(
    context: SharedGpuContext, text: str, message: str, fallback: str
) -> None:
    with pytest.raises(InvalidModelError, match=message):
        InferenceSession(_invalid(text, "2,3", "2"), context=context, fallback=fallback)


@pytest.mark.parametrize(("text", "message"), [case for case in INVALID if "do not broadcast" in case[1]])
def test_a_run_that_breaks_an_operator_is_refused_and_the_next_one_answers(
    context: SharedGpuContext, text: str, message: str
) -> None:
    with InferenceSession(_invalid(text, "n,m", "k"), context=context) as session:
        for _ in range(2):
            with pytest.raises(InvalidInputError, match=message):
                session.run(None, {"x": X["x"], "b": np.ones(2, np.float32)})
            assert session.run(None, X)[0].shape == (2, 3)
        with pytest.raises(InvalidInputError, match=message):
            session.plan({"x": (2, 3), "b": (2,)})


def test_values_of_a_run_that_break_an_operator_are_refused(context: SharedGpuContext) -> None:
    """What is planned when a value is there: a deferred step, a branch, a loop's body."""
    text = """g (float[n,m] x, float[k] b, int64 count, bool more) => (float[] y) {
        y = Loop (count, more, x)
            <body = body (int64 i, bool go, float[n,m] state) => (bool again, float[n,m] next) {
                again = Identity(go) next = Add(state, b)
            }>
    }"""
    feeds = {**X, "count": np.array(2), "more": np.array(True)}
    with InferenceSession(model(text), context=context) as session:
        with pytest.raises(InvalidInputError, match=r"Add.*shapes \[\(2, 3\), \(2,\)\] do not broadcast"):
            session.run(None, {**feeds, "b": np.ones(2, np.float32)})
        np.testing.assert_array_equal(session.run(None, feeds)[0], np.full((2, 3), 3))
    text = """g (float[n,m] x, float[r] b, int64[1] axes) => (float[] y) { u = Unsqueeze(b, axes) y = Add(x, u) }"""
    with InferenceSession(model(text), context=context) as session:
        with pytest.raises(InvalidInputError, match="Unsqueeze"):
            session.run(None, {**X, "axes": np.array([5])})
        with pytest.raises(InvalidInputError, match=r"Add.*shapes \[\(2, 3\), \(4, 1\)\] do not broadcast"):
            session.run(None, {"x": X["x"], "b": np.ones(4, np.float32), "axes": np.array([1])})
        np.testing.assert_array_equal(session.run(None, {**X, "axes": np.array([0])})[0], np.full((2, 3), 2))


def test_external_data_that_is_gone_when_it_is_read(context: SharedGpuContext, tmp_path: Path) -> None:
    proto = model("g (float[4096] x) => (float[4096] y) { y = Add(x, w) }")
    proto.graph.initializer.append(numpy_helper.from_array(np.ones(4096, np.float32), "w"))
    path = tmp_path / "m.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    with InferenceSession(path, context=context) as session:
        np.testing.assert_array_equal(session.run(None, {"x": np.zeros(4096, np.float32)})[0], np.ones(4096))
    (tmp_path / "w.bin").unlink()
    with pytest.raises(InvalidModelError, match=r"no external data file for weight .* at .*w\.bin"):
        InferenceSession(path, context=context)


def test_a_result_of_more_axes_than_an_array_has(context: SharedGpuContext) -> None:
    proto = model("g (float[2,3] x) => (float[] y) { y = Reshape(x, s) }")
    proto.graph.initializer.append(numpy_helper.from_array(np.array([1] * 64 + [-1]), "s"))
    with pytest.raises(InvalidModelError, match=r"Reshape.*a result has 65 axes, expected at most 64"):
        InferenceSession(proto, context=context)


@pytest.mark.parametrize("limit", [np.inf, np.nan, 1e308])
def test_a_range_without_end(context: SharedGpuContext, limit: float) -> None:
    proto = model("g (double a, double b, double c) => (double[n] y) { y = Range(a, b, c) }")
    feeds = {name: np.array(value) for name, value in (("a", 0.0), ("b", limit), ("c", 1e-308))}
    with (
        InferenceSession(proto, context=context) as session,
        pytest.raises(InvalidInputError, match="Range"),
        np.errstate(all="ignore"),
    ):
        session.run(None, feeds)


@pytest.mark.parametrize(("op_type", "opset"), [("BitwiseAnd", 13), ("GreaterOrEqual", 7)])
def test_an_operator_that_is_newer_than_the_opset_takes_one_type(vulkan: object, op_type: str, opset: int) -> None:
    """The model's opset gives it no schema; the shader of two types would not compile."""
    proto = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["": {opset}]> g (uint8[2] x, int16[2] b) => (uint8[2] y) {{ y = {op_type}(x, b) }}'
    )
    with pytest.raises(InvalidModelError, match="input 1 is int16, another one uint8: both must be of one type"):
        InferenceSession(proto, save_plans=False)


def test_no_driver_is_an_error_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*args: Any, **options: Any) -> None:
        raise vkep.DriverNotFoundError("loading Vulkan", hint="install a driver")

    monkeypatch.setattr(SharedGpuContext, "create", none)
    with pytest.raises(vkep.DriverNotFoundError, match="install a driver"):
        InferenceSession(ADD_RELU, token="no driver")


def test_functions_that_call_each_other_many_times_are_counted_first(vulkan: object) -> None:
    """Eighteen functions, each of which calls the one before twice: a kilobyte, and 262144 nodes."""
    functions = [helper.make_function("f", "F0", ["x"], ["y"], [helper.make_node("Relu", ["x"], ["y"])], OPSETS)]
    for k in range(1, 19):
        calls = [helper.make_node(f"F{k - 1}", [a], [b], domain="f") for a, b in (("x", "t"), ("t", "y"))]
        functions.append(helper.make_function("f", f"F{k}", ["x"], ["y"], calls, OPSETS))
    value = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in ("x", "y")]
    graph = helper.make_graph([helper.make_node("F18", ["x"], ["y"], domain="f")], "g", value[:1], value[1:])
    proto = helper.make_model(graph, functions=functions, opset_imports=OPSETS, ir_version=9)
    with pytest.raises(
        vkep.UnsupportedModelError, match="has 262144 nodes, its functions laid out; max_nodes is 250000"
    ):
        vkep.InferenceSession(proto)
    functions[0].node[0].CopyFrom(helper.make_node("F1", ["x"], ["y"], domain="f"))
    again = helper.make_model(graph, functions=functions, opset_imports=OPSETS, ir_version=9)
    with pytest.raises(vkep.InvalidModelError, match="calls itself"):
        vkep.InferenceSession(again)


def test_a_branch_with_more_outputs_than_its_node(vulkan: object) -> None:
    proto = model(
        "g (float[2] x) => (float[2] y) { c = Constant<value = bool {1}>()"
        " y = If (c) <then_branch = t () => (float[2] p, float[2] q) { p = Relu(x) q = Neg(x) },"
        " else_branch = e () => (float[2] r) { r = Abs(x) }> }"
    )
    with pytest.raises(InvalidModelError, match=r"If.*has 0 inputs and 2 outputs, expected 0 and 1"):
        InferenceSession(proto)


@pytest.mark.parametrize(
    ("op_type", "inputs"),
    [
        ("Range", [np.int64(0), np.int64(1 << 40), np.int64(1)]),
        ("Expand", [np.ones(1, np.float32), np.array([1 << 20, 1 << 20])]),
        ("Tile", [np.ones((2, 2), np.float32), np.array([1 << 20, 1 << 20])]),
        ("Pad", [np.ones((2, 2), np.float32), np.array([1 << 20, 0, 0, 1 << 20])]),
        ("OneHot", [np.arange(9), np.int64(1 << 40), np.array([0, 1], np.float32)]),
        ("Add", [np.ones((1 << 16, 1), np.float32), np.ones((1, 1 << 16), np.float32)]),
        ("ConstantOfShape", [np.array([1 << 40])]),
    ],
)
def test_small_constants_that_expand_are_not_folded(
    op_type: str, inputs: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    proto = helper.make_node(op_type, [f"i{k}" for k in range(len(inputs))], ["y"])
    schema = onnx.defs.get_schema(op_type, 18, "")
    node = Node(0, "n", op_type, "", tuple(proto.input), tuple(proto.output), {}, proto, schema)
    for evaluates in ("evaluate", "_Evaluator"):
        monkeypatch.setattr(f"vkep.placement.fold.{evaluates}", None)
    with pytest.raises(FoldError, match="would be"):
        fold(node, [np.asarray(i) for i in inputs], {"": 18})
