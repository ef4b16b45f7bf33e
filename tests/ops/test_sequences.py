"""Sequences and optionals: they dissolve into their tensors while planning. Against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

from tests.ops.cases import assert_like, by_onnxruntime
from vkep import InferenceSession, InvalidInputError, InvalidModelError, UnsupportedModelError
from vkep.ir.program import LONGEST_LIST

ONE = np.arange(6, dtype=np.float32).reshape(2, 3)
TWO = -np.ones((1, 3), np.float32)


def _model(text: str, opset: int = 18) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 9, opset_import: ["": {opset}]> {text}')


def _check(model: onnx.ModelProto, *feeds: dict[str, Any], fallback: str = "error") -> dict[str, str]:
    """Run and compare, feed by feed; where the nodes ran the last time."""
    with InferenceSession(model, fallback=fallback) as session:
        for feed in feeds:
            for ours, expected in zip(session.run(None, feed), by_onnxruntime(model, feed), strict=True):
                if isinstance(expected, list):
                    assert isinstance(ours, list)
                    assert_like(ours, expected)
                else:
                    assert_like([ours], [expected])
        return {n.op_type: n.where for n in session.report().nodes}


def test_tensors_of_a_sequence_stay_on_the_device() -> None:
    model = _model(
        """g (seq(float[]) s, float[n,3] x, int64 at) => (float[a,3] y, seq(float[]) t, int64 n) {
            i = SequenceInsert(s, x, at)
            t = SequenceErase(i)
            n = SequenceLength(t)
            c = ConcatFromSequence<axis = 0>(t)
            y = Neg(c)
        }"""
    )
    feeds = [
        {"s": s, "x": ONE, "at": np.array(at)} for s, at in (([ONE, TWO], 1), ([ONE, TWO], -2), ([TWO], 1), ([TWO], 0))
    ]
    where = _check(model, *feeds)
    assert where["Neg"] == where["Concat"] == "vulkan" and "cpu" not in where.values()


def test_splits_of_any_kind_and_elements_of_them() -> None:
    model = _model(
        """g (float[5,4] x) => (seq(float[]) a, seq(float[]) b, seq(float[]) c, float[4] d, float[k,m,n] e) {
            two = Constant<value = int64 {2}>()
            lengths = Constant<value = int64[3] {1,0,3}>()
            last = Constant<value = int64 {-1}>()
            a = SplitToSequence<axis = 0>(x, two)
            b = SplitToSequence<axis = -1>(x, lengths)
            c = SplitToSequence<axis = 0, keepdims = 0>(x)
            d = SequenceAt(c, last)
            e = ConcatFromSequence<axis = -1, new_axis = 1>(c)
        }"""
    )
    x = np.arange(20, dtype=np.float32).reshape(5, 4)
    assert set(_check(model, {"x": x}).values()) <= {"vulkan", "inlined"}


def test_a_loop_that_appends_and_a_map_with_lengths_that_are_data() -> None:
    model = _model(
        """g (int64 n, seq(float[]) s, float[3] x) => (seq(float[]) t, seq(int64[]) z) {
            go = Constant<value = bool {1}>()
            t = Loop(n, go, s) <
                body = l (int64 i, bool c, seq(float[]) u) => (bool d, seq(float[]) v) {
                    d = Identity(c) f = Cast<to = 1>(i) a = Add(x, f) v = SequenceInsert(u, a)
                }
            >
            z = SequenceMap(t) < body = m (float[] e) => (int64[] r) { r = NonZero(e) } >
        }"""
    )
    feeds = [{"n": np.array(n), "s": [ONE[0]], "x": np.array([-1, 0, 2], np.float32)} for n in (2, 0, 3)]
    where = _check(model, *feeds)
    assert where["Loop"] == where["SequenceMap"] == "inlined" and "cpu" not in where.values()


def test_a_loop_whose_end_is_computed_runs_on_the_cpu_with_an_empty_sequence() -> None:
    model = _model(
        """g (int64 x) => (seq(int64[]) t, int64[n] y) {
            most = Constant<value = int64 {9}>() go = Constant<value = bool {1}>()
            none = SequenceEmpty<dtype = 7>()
            last, t = Loop(most, go, x, none) <
                body = l (int64 i, bool c, int64 a, seq(int64[]) u) => (bool d, int64 b, seq(int64[]) v) {
                    b = Sub(a, i) zero = Constant<value = int64 {0}>() d = Greater(b, zero)
                    axes = Constant<value = int64[1] {0}>() e = Unsqueeze(b, axes) v = SequenceInsert(u, e)
                }
            >
            y = ConcatFromSequence<axis = 0>(t)
        }"""
    )
    where = _check(model, {"x": np.array(5)}, {"x": np.array(1)}, fallback="cpu")
    assert where["Loop"] == "cpu" and where["ConcatFromSequence"] == "inlined"


def test_texts_in_sequences_go_to_the_cpu_and_the_rest_does_not() -> None:
    model = _model(
        """g (string[n] a, seq(string[]) s, float[2] x) => (seq(string[]) t, string[m] b, float[2] y) {
            t = SequenceInsert(s, a) b = ConcatFromSequence<axis = 0>(t) y = Neg(x)
        }"""
    )
    texts = [np.array(t, object) for t in (["a", "b"], ["c"])]
    where = _check(model, {"a": texts[0], "s": texts, "x": ONE[0, :2]}, fallback="cpu")
    assert where["Neg"] == "vulkan" and where["Concat"] == "cpu"


OPTIONAL = _model(
    """g (optional(float[3]) o) => (bool has, float[3] y) {
        has = OptionalHasElement(o)
        y = If(has) <
            then_branch = t () => (float[3] a) { e = OptionalGetElement(o) a = Neg(e) },
            else_branch = f () => (float[3] b) { b = Constant<value = float[3] {1,2,3}>() }
        >
    }"""
)


def test_an_optional_with_and_without_an_element() -> None:
    with InferenceSession(OPTIONAL, fallback="error") as session:
        assert session.get_inputs()[0].type == "optional(tensor(float))"
        for value, expected in ((ONE[0], -ONE[0]), (None, [1, 2, 3]), (session.device_tensor(ONE[1]), -ONE[1])):
            has, y = session.run(None, {"o": value})
            assert has == (value is not None)
            np.testing.assert_array_equal(y, np.array(expected, np.float32))
        with pytest.raises(InvalidInputError, match=r"input 'o': got float64 \(3,\), expected tensor\(float\)"):
            session.run(None, {"o": np.zeros(3)})
        with pytest.raises(InvalidInputError, match=r"inputs \(\['o'\]\) are missing"):
            session.run(None, {})


def test_outputs_may_be_none_and_lists_given_are_the_callers_own() -> None:
    model = _passing()
    given = [ONE.copy(), TWO.copy()]
    with InferenceSession(model, fallback="error") as session:
        same, copy, nothing = session.run(None, {"s": given})
        same[0][:] = 9
        copy[1][:] = 9
        assert nothing is None
    assert_like(given, [ONE, TWO])


def _passing() -> onnx.ModelProto:
    sequence = onnx.helper.make_sequence_type_proto(onnx.helper.make_tensor_type_proto(1, None))
    optional = onnx.helper.make_optional_type_proto(sequence)
    nodes = [
        onnx.helper.make_node("Identity", ["s"], ["t"]),
        onnx.helper.make_node("Optional", [], ["o"], type=sequence),
    ]
    values = {n: onnx.ValueInfoProto(name=n, type=t) for n, t in {"s": sequence, "t": sequence, "o": optional}.items()}
    graph = onnx.helper.make_graph(nodes, "g", [values["s"]], list(values.values()))
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)


def test_tensors_of_a_sequence_may_lie_on_the_device() -> None:
    model = _model("g (seq(float[]) s) => (float[n,3] y) { c = ConcatFromSequence<axis = 0>(s) y = Abs(c) }")
    with InferenceSession(model, fallback="error") as session:
        assert session.get_inputs()[0].type == "seq(tensor(float))"
        (y,) = session.run(None, {"s": [session.device_tensor(ONE), TWO]})
        np.testing.assert_array_equal(y, np.abs(np.concatenate([ONE, TWO])))
        with pytest.raises(InvalidInputError, match=r"input 's': got float32 \(2, 3\), expected a list"):
            session.run(None, {"s": ONE})
        with pytest.raises(InvalidInputError, match=r"input 's'\[1\]: got int64 \(2,\), expected tensor\(float\)"):
            session.run(None, {"s": [ONE, np.array([1, 2])]})


def test_a_long_sequence_is_the_cpus() -> None:
    model = _model("g (seq(float[]) s) => (float[n,3] y) { c = ConcatFromSequence<axis = 0>(s) y = Abs(c) }")
    where = _check(model, {"s": [TWO] * (LONGEST_LIST + 1)}, fallback="cpu")
    assert where == {"ConcatFromSequence": "cpu", "Abs": "vulkan"}


@pytest.mark.parametrize(
    ("node", "error"),
    [
        ("SequenceAt(s, three)", r"SequenceAt.*position 3 is outside \[-2, 1\]"),
        ("SequenceErase(s, three)", r"SequenceErase.*position 3 is outside \[-2, 1\]"),
        ("SequenceInsert(s, x, three)", r"SequenceInsert.*position 3 is outside \[-2, 2\]"),
        ("SplitToSequence<axis = 0>(x, three1)", r"SplitToSequence.*lengths \[3\] of an axis of 2"),
    ],
)
def test_positions_and_lengths_that_are_not_there(node: str, error: str) -> None:
    model = _model(
        f"""g (float[2] x) => (float[2] y) {{
            three = Constant<value = int64 {{3}}>() three1 = Constant<value = int64[1] {{3}}>()
            s = SequenceConstruct(x, x) t = {node} y = Neg(x)
        }}"""
    )
    with pytest.raises(InvalidModelError, match=error):
        InferenceSession(model, fallback="error")


def test_a_split_into_more_tensors_than_are_unrolled_is_declined_before_they_are_listed() -> None:
    """A damaged model may declare an axis whose parts no memory holds."""
    model = _model(f"g (float[{1 << 40}] x, int64 i) => (float[1] y) {{ s = SplitToSequence(x) y = SequenceAt(s, i) }}")
    with pytest.raises(UnsupportedModelError, match=f"a sequence of more than {LONGEST_LIST} tensors"):
        InferenceSession(model, fallback="error")
