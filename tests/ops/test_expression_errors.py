"""Faults of a user's operator function: the error names the operation, the types, the node and the line that wrote it."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator

import numpy as np
import onnx.parser
import pytest

import vkep
from vkep.errors import ExpressionError
from vkep.ir.algebra import where
from vkep.ir.builder import Builder
from vkep.ir.tensor import Tensor
from vkep.ops import operator, registry

pytestmark = pytest.mark.usefixtures("vulkan")

Declare = Callable[[Callable[[Builder, Tensor], Tensor]], object]


@pytest.fixture
def declare() -> Iterator[Declare]:
    yield lambda function: operator("Mine", domain="com.example", types={"x": ("float32",)})(function)
    registry._OPERATORS.pop(("com.example", "Mine"), None)


def _run() -> list[float]:
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 18, "com.example": 1]> g (float[3] x) => (float[3] y) { y = com.example.Mine(x) }'
    )
    model.graph.node[0].name = "my_node"
    with vkep.InferenceSession(model, fallback="error") as session:
        [y] = session.run(None, {"x": np.array([-1, 0, 2], np.float32)})
    values: list[float] = y.tolist()
    return values


def test_a_number_takes_the_type_of_the_values(declare: Declare) -> None:
    declare(lambda b, x: b.store(b.expr("where", b.expr("gt", x, 0), x, 0), x.dtype))
    assert _run() == [0, 0, 2]


def test_the_same_in_the_algebra(declare: Declare) -> None:
    declare(lambda b, x: b.pointwise(lambda v: where(v > 0, v, 0), x))
    assert _run() == [0, 0, 2]


@pytest.mark.parametrize(
    "write",
    [
        lambda b, x: b.store(b.expr("where", x, x, 0), x.dtype),
        lambda b, x: b.pointwise("add", x, b.expr("cast", x, ctype="int")),
        lambda b, x: b.pointwise(lambda v: v & 1, x),
        lambda b, x: b.pointwise(lambda v: where(v > 0, v, v > 1), x),
        lambda b, x: b.pointwise(lambda v: v if v > 0 else v * 0, x),
        lambda b, x: b.pointwise(lambda v: v > 0, x),
        lambda b, x: b.store(b.expr("exp", b.expr("cast", x, ctype="int")), x.dtype),
    ],
)
def test_types_that_do_not_fit_name_the_node_and_the_line(
    declare: Declare, write: Callable[[Builder, Tensor], Tensor]
) -> None:
    declare(write)
    with pytest.raises(ExpressionError, match="my_node") as raised:
        _run()
    assert any(frame.filename == __file__ and frame.name == "<lambda>" for frame in traceback.extract_tb(raised.tb))
