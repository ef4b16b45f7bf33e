"""ONNX to TOSA: the graphs' structure, and what is declined."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.tosa.harness import lowered, model
from vkep.errors import Decline
from vkep.tosa import declared
from vkep.tosa.ops.quantized import multiplier_and_shift

RNG = np.random.default_rng(0)


def weight(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def test_layouts_are_changed_once_at_each_end() -> None:
    """Two convolutions, a residual sum with a broadcast constant, and pooling between: one transpose in, one out."""
    text = """g (float[1,4,8,8] x) => (float[1,4,4,4] y) {
        a = Conv<pads=[1,1,1,1]>(x, w) b = Relu(a) c = Add(b, k) d = Conv<pads=[1,1,1,1]>(c, w)
        e = Add(d, b) y = MaxPool<kernel_shape=[2,2], strides=[2,2]>(e) }"""
    graph = lowered(model(text, w=weight(4, 4, 3, 3), k=weight(4, 1, 1)))
    assert list(graph.operations).count("transpose") == 2
    assert graph.operations[0] == "transpose" and graph.operations[-1] == "transpose"


def test_transposes_of_the_model_cancel_with_those_of_the_layout() -> None:
    text = """g (float[1,8,8,4] x) => (float[1,8,8,4] y) {
        a = Transpose<perm=[0,3,1,2]>(x) b = Conv(a, w) y = Transpose<perm=[0,2,3,1]>(b) }"""
    graph = lowered(model(text, w=weight(4, 4, 1, 1)))
    assert graph.operations == ("conv2d",)


def test_axes_of_size_one_move_by_reshape() -> None:
    text = "g (float[2,6,5,5] x) => (float[2,6] y) { a = Conv(x, w) b = GlobalAveragePool(a) y = Flatten(b) }"
    graph = lowered(model(text, w=weight(6, 6, 1, 1)))
    assert list(graph.operations).count("transpose") == 1


def test_nodes_that_no_output_needs_are_left_out() -> None:
    graph = lowered(model("g (float[4] x) => (float[4] y) { a = Exp(x) b = Sin(a) y = Cos(x) }"))
    assert graph.operations == ("cos",)


def test_an_output_that_is_an_input_is_an_operation() -> None:
    graph = lowered(model("g (float[4] x) => (float[4] y, float[4] z) { y = Identity(x) z = Identity(x) }"))
    assert graph.operations == ("maximum", "maximum")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("g (float[2,3] x) => (float[2,3] y) { y = Acosh(x) }", "no TOSA lowering of Acosh"),
        ("g (double[2,3] x) => (double[2,3] y) { y = Abs(x) }", "'x' is float64"),
        ("g (float[2,3] x) => (int64[2,3] y) { y = Cast<to=7>(x) }", "integers of 32 bits"),
        ("g (int64[2,3] x) => (float[2,3] y) { y = Cast<to=1>(x) }", "int32 holds only indices"),
        ("g (int64[2,3] x) => (int64[3,2] y) { y = Transpose(x) }", "may need all its bits"),
        ("g (int64[2,3] x) => (int64[2,3] y) { y = Add(x, x) }", "input 0 is int64"),
        (
            "g (float[1,1,9,9] x) => (float[1,1,4,4] y) { y = MaxPool<kernel_shape=[2,2],dilations=[5,5]>(x) }",
            "dilation",
        ),
        ("g (float[1,1,1,4] x) => (float[1,1,n,m] y) { y = MaxPool<kernel_shape=[2,2]>(x) }", "no empty tensors"),
        ("g (float[1,1,1,1,1,1,2] x) => (float[1,1,1,1,1,1,2] y) { y = Abs(x) }", "which TOSA 1.0 has not"),
        ("g (float[0,3] x) => (float[0,3] y) { y = Abs(x) }", "which TOSA 1.0 has not"),
        ("g (float[2,3] x, float[2] k) => (float[2,3] y) { y = Add(x, k) }", "its inputs do not fit"),
        ("g (float[2,3] x) => (float[3,2] y) { y = Transpose<perm=[0,5]>(x) }", "no permutation"),
        ("g (float[2,3] x) => (float[2,3] y) { y = Softmax<axis=9>(x) }", "axis 9 of a tensor of rank 2"),
        ("g (float16[2,3] x, float16 e) => (float16[2,3] y) { y = Pow(x, e) }", "POW of float16"),
        (
            "g (float[2,3,6] x) => (float[2,3,6] y) { s = Constant<value=int64[3]{3,3,6}>() y = Resize(x, , , s) }",
            "RESIZE",
        ),
        ("g (float[1,2000,1] x) => (float[1,2000,2] y) { y = DFT(x) }", "a transform of 2000 points"),
        (
            """g (float[4] x, float[2] u) => (float[4] y) {
              i = Constant<value=int64[2]{1,1}>() y = ScatterElements(x, i, u) }""",
            "an index twice",
        ),
    ],
)
def test_declined_nodes_are_reported_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(Decline) as caught:
        lowered(model(text))
    assert reason in caught.value.reason
    assert "'" in caught.value.reason  # the node's title


def test_a_declined_node_leaves_nothing_in_its_island() -> None:
    from vkep.dtypes import DTYPES
    from vkep.graph import load_model
    from vkep.tosa import TosaIsland, TosaPort

    text = "g (float[2,3] x, float[2,3] z) => (float[2,3] y) { a = Exp(x) b = Acosh(z) y = Sin(a) }"
    nodes = load_model(model(text)).graph.nodes
    known = {n: TosaPort(n, DTYPES["float32"], (2, 3)) for n in ("x", "z")}
    island = TosaIsland()
    island.add(nodes[0], known.get)
    with pytest.raises(Decline):
        island.add(nodes[1], known.get)
    island.add(nodes[2], known.get)
    graph = island.finish(["y"])
    assert [p.name for p in graph.inputs] == ["x"] and graph.operations == ("exp", "sin")


@pytest.mark.parametrize("scale", [1e-9, 3.2e-5, 0.5, 0.9999999999, 1.0, 1.5, 200.0, 2.0**20])
def test_scales_of_rescale(scale: float) -> None:
    multiplier, shift = multiplier_and_shift(scale)
    assert 0 < multiplier < 2**31 and 2 <= shift <= 62
    assert abs(multiplier / 2.0**shift - scale) <= scale * 2.0**-20


@pytest.mark.parametrize("scale", [0.0, -1.0, float("inf"), float("nan"), 2.0**31])
def test_scales_that_rescale_has_not(scale: float) -> None:
    with pytest.raises(ValueError, match="scale"):
        multiplier_and_shift(scale)


def test_every_declaration_names_an_operator_of_onnx() -> None:
    import onnx

    for operator in declared():
        schema = onnx.defs.get_schema(operator.op_type, 30, operator.domain)
        assert operator.since <= schema.since_version or operator.until is not None
        unknown = set(operator.signature.attributes) - {a for v in _history(operator.op_type) for a in v.attributes}
        assert not unknown, f"{operator.op_type}: {unknown}"


def _history(op_type: str) -> list[Any]:
    import onnx

    versions, version = [], 40
    while version >= 1:
        try:
            versions.append(onnx.defs.get_schema(op_type, version, ""))
        except onnx.defs.SchemaError:
            break
        version = versions[-1].since_version - 1
    return versions
