"""Every elementwise operator at zeros, infinities, NaN and the ends of its type's range, in every floating-point type, as an
input and as a constant: IEEE 754, C and numpy in float64 have one answer, which no driver and no kernel changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx.defs import SchemaError

from gpu_shared.capabilities import DeviceCapabilities
from tests.ops.cases import OPSET, Array, model_of, on_vulkan
from tests.ops.special_values import BINARY, FLOATS, LARGEST_ANGLE, UNARY, differences, pairs, special
from vkep.dtypes import DTYPES
from vkep.errors import Decline
from vkep.ir.builder import Builder
from vkep.ir.ops import Pointwise
from vkep.ir.tensor import Storage, Tensor
from vkep.ops.registry import OperatorDef, declared
from vkep.placement.inlined import make_node
from vkep.placement.nodes import lower_node

pytestmark = pytest.mark.usefixtures("vulkan")
#: operators of floats that are not functions of one or two elements, or that other tests hold
OTHERS = {"Where", "CastLike", "BitCast", "Trilu"}


def _run(op_type: str, inputs: dict[str, Array], **rest: Any) -> Array:
    return on_vulkan(model_of(op_type, inputs, outputs=("out",), opset=24, **rest), inputs)[0]


@pytest.mark.parametrize(
    ("op_type", "kind"), [(op, kind) for op in UNARY for kind in FLOATS if (op, kind) != ("Celu", "float64")]
)  # ONNX's Celu is of float32
def test_of_one_input(op_type: str, kind: str) -> None:
    x = special(FLOATS[kind])
    if op_type in ("Sin", "Cos", "Tan") and kind == "float64":
        x = x[~(np.abs(x) > LARGEST_ANGLE) | np.isinf(x)]
    assert differences(UNARY[op_type], [x], _run(op_type, {"x": x})) == []


@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize("op_type", BINARY)
def test_of_two_inputs(op_type: str, kind: str) -> None:
    x, y = pairs(FLOATS[kind])
    got = _run(op_type, {"x": x, "y": y}, **BINARY[op_type].attributes)
    assert differences(BINARY[op_type], [x, y], got) == []


@pytest.mark.gpu
@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize("op_type", ["Pow", "Div"])
def test_of_a_constant(op_type: str, kind: str) -> None:
    """A constant of one element chooses another expression for some values."""
    x = special(FLOATS[kind])
    for number in (-np.inf, -3.0, -2.0, -1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 1.5, 2.0, 3.0, np.inf, np.nan):
        y = np.array(number).astype(x.dtype)
        got = _run(op_type, {"x": x, "y": y}, constants=("y",))
        assert differences(BINARY[op_type], [x, np.full(x.shape, y)], got) == [], number


@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize("exponent", [np.int32, np.int64, np.uint8, np.float32, np.float16, np.float64])
def test_powers_with_another_type_of_exponent(exponent: Any, kind: str) -> None:
    y = np.array(
        [0, 1, 2, 3, 7, 64, 65, 2**24 + 1] if exponent not in (np.uint8, np.float16) else [0, 1, 2, 3, 64, 200]
    )
    y = y if exponent is np.uint8 else np.concatenate([y, -y])
    base, power = (g.reshape(-1) for g in np.meshgrid(special(FLOATS[kind]), y.astype(exponent)))
    got = _run("Pow", {"x": base, "y": power})
    assert differences(BINARY["Pow"], [base, power], got) == []


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("kind", FLOATS)
def test_powers_of_zero_alone(kind: str, size: int) -> None:
    """A driver computes a vector of equal numbers by other instructions."""
    for zero in (0.0, -0.0):
        for exponent in (-np.inf, -3.0, -2.0, -1.5, -1.0, -0.5, 0.5, 1.0, 2.0, np.inf, np.nan):
            x, y = (np.full(size, number).astype(FLOATS[kind]) for number in (zero, exponent))
            assert differences(BINARY["Pow"], [x, y], _run("Pow", {"x": x, "y": y})) == []


def _is_elementwise(definition: OperatorDef, count: int) -> bool:
    """Whether the operator takes ``count`` floats and computes each element of its result from one of each."""
    names = [f"x{k}" for k in range(count)]
    b = Builder(DeviceCapabilities.for_tests())
    x = [Tensor.contiguous(DTYPES["float32"], (2, 3, 5), Storage(120, port=k)) for k in range(count)]
    try:
        [made] = lower_node(b, make_node(definition.op_type, names, ["out"], OPSET), x, {"": OPSET})
    except (Decline, ValueError, SchemaError):
        return False
    return made.shape == (2, 3, 5) and bool(b.ops) and all(isinstance(op, Pointwise) for op in b.ops)


def test_every_elementwise_operator_is_here() -> None:
    newest = {d.op_type: d for d in declared() if not d.domain and d.until is None}
    for count, cases in ((1, UNARY), (2, BINARY)):
        found = {name for name, definition in newest.items() if _is_elementwise(definition, count)}
        assert len(found) > 10
        assert found - OTHERS <= UNARY.keys() | BINARY.keys()
        assert len(found & cases.keys()) > 10
