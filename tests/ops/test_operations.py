"""Every operation of the table, for all types that it takes: kernels compute what its numpy function means."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import pytest
from onnx import helper

import vkep
from vkep.dtypes import DTYPES
from vkep.ir.builder import Builder
from vkep.ir.evaluate import evaluate
from vkep.ir.expr import Expr, Leaf, leaf
from vkep.ir.pointwise_ops import KINDS, OPERATIONS
from vkep.ir.tensor import Tensor
from vkep.ops import operator, registry

pytestmark = pytest.mark.usefixtures("vulkan")

_TYPES = {"float": "float32", "double": "float64", "int": "int32", "uint": "uint32", "int64_t": "int64",
          "uint64_t": "uint64", "bool": "bool"}  # fmt: skip
#: arguments of which every operation is defined, other than those below
_VALUES = np.array([0.75, 0.1, 0.5, 1.0, 0.3])
_ABOVE_1, _WHOLE = np.array([1.0, 1.5, 3.0, 1e3, 2.5]), np.array([3, 1, 2, 30, 7])
#: float32 functions with an error of a few units in the last place
_WITHIN = {"float": 2e-6, "double": 1e-14}


def _typings() -> list[tuple[str, tuple[str, ...], str]]:
    """Each operation with each of the types that it takes, and of its result."""
    typings = []
    for name, operation in OPERATIONS.items():
        for kind in KINDS["any"]:
            types = tuple(kind if taken in KINDS else taken for taken in operation.takes)
            if all(t in KINDS.get(taken, (taken,)) for t, taken in zip(types, operation.takes, strict=True)):
                for made in KINDS["any"] if operation.signature.endswith("*") else (operation.resolved(types)[1],):
                    typings.append((name, types, made))
    return list(dict.fromkeys(typings))


_TYPINGS = _typings()


def _inputs() -> dict[str, np.ndarray]:
    """Three arguments of each type."""
    inputs = {}
    for ctype, name in _TYPES.items():
        kind = DTYPES[name].numpy
        for k in range(3):
            drawn = np.roll(_VALUES if ctype in KINDS["real"] else _WHOLE, k)
            inputs[f"{ctype}{k}"] = (drawn > 2 if ctype == "bool" else drawn).astype(kind)
        if ctype in KINDS["real"]:
            inputs[f"{ctype}_above"] = _ABOVE_1.astype(kind)
    return inputs


def _operation(b: Builder, x: Tensor, y: Tensor | None = None, z: Tensor | None = None, *, number: int) -> Tensor:
    name, _, made = _TYPINGS[number]
    return b.store(b.expr(name, *[t for t in (x, y, z) if t is not None], ctype=made), DTYPES[_TYPES[made]])


@pytest.fixture
def declared() -> Iterator[None]:
    operator("Operation", domain="com.example", types=dict.fromkeys("xyz", tuple(_TYPES.values())))(_operation)
    yield
    del registry._OPERATORS["com.example", "Operation"]


def test_kernels_compute_what_operations_mean(declared: None) -> None:
    inputs = _inputs()
    nodes, outputs, reads = [], [], []
    for number, (name, types, made) in enumerate(_TYPINGS):
        arguments = [f"{types[0]}_above"] if name == "acosh" else [f"{t}{k}" for k, t in enumerate(types)]
        nodes.append(helper.make_node("Operation", arguments, [f"y{number}"], domain="com.example", number=number))
        elem_type = DTYPES[_TYPES[made]].onnx
        outputs.append(helper.make_tensor_value_info(f"y{number}", elem_type, [len(_VALUES)]))
        reads.append(arguments)
    infos = [
        helper.make_tensor_value_info(name, DTYPES[value.dtype.name].onnx, value.shape)
        for name, value in inputs.items()
    ]
    graph = helper.make_graph(nodes, "operations", infos, outputs)
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("com.example", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=9)
    onnx.checker.check_model(model)
    with vkep.InferenceSession(model, fallback="error") as session:
        results = session.run(None, inputs)
    differ = []
    for (name, types, made), arguments, found in zip(_TYPINGS, reads, results, strict=True):
        leaves: list[Leaf] = [leaf(Tensor.contiguous(DTYPES[_TYPES[t]], (len(_VALUES),))) for t in types]
        values = dict(zip(leaves, (inputs[a] for a in arguments), strict=True))
        expected = evaluate(Expr(made, name, tuple(leaves)), values.__getitem__)
        within = _WITHIN.get(made, 0)
        if not np.allclose(found, expected, within, within / 10, equal_nan=True):
            differ.append(f"{name} of {types}: {found}, expected {expected}")
    assert not differ, "\n".join(differ)


def test_intermediate_results_are_rounded_to_float16() -> None:
    """Mesa's compiler removed the conversion to float16 and back."""
    bits = np.arange(0, 1 << 32, 40_009, dtype=np.uint64).astype(np.uint32)
    ends = np.array([65519.996, 65520, 2**-14, 2**-24, 2**-25, 3 * 2**-25, np.inf, -0.0, np.nan], np.float32)
    x = np.concatenate([bits.view(np.float32), ends, -ends])
    info = helper.make_tensor_value_info
    nodes = [helper.make_node("Cast", ["x"], ["h"], to=10), helper.make_node("Cast", ["h"], ["y"], to=1)]
    graph = helper.make_graph(nodes, "g", [info("x", 1, x.shape)], [info("y", 1, x.shape)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    with vkep.InferenceSession(model, fallback="error") as session:
        [y] = session.run(None, {"x": x})
    with np.errstate(over="ignore"):
        expected = x.astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(y, expected)
    zero = expected == 0
    np.testing.assert_array_equal(np.signbit(y[zero]), np.signbit(expected[zero]))
