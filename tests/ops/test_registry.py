"""Declarations are held against onnx.defs: what does not match the schema fails at import."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import onnx
import pytest

import vkep.ops
from vkep.dtypes import DTYPES
from vkep.ir.builder import Builder
from vkep.ir.tensor import Tensor
from vkep.ops import registry
from vkep.ops.registry import OperatorDeclarationError, operator

FLOATS = ("float32",)


@pytest.fixture(autouse=True)
def _apart() -> Iterator[None]:
    """Declarations made here do not stay."""
    registry.load_own()
    kept = {key: list(entries) for key, entries in registry._OPERATORS.items()}
    yield
    registry._OPERATORS.clear()
    registry._OPERATORS.update(kept)


@pytest.fixture
def nothing_declared(_apart: None) -> None:
    registry._OPERATORS.clear()


def _unary(b: Builder, x: Tensor) -> Tensor:
    return x


def _alpha(default: Any) -> Any:
    def lower(b: Builder, x: Tensor, *, alpha: float = default) -> Tensor:
        return x

    return lower


def _slope(b: Builder, x: Tensor, *, slope: float = 0.01) -> Tensor:
    return x


def _no_axis(b: Builder, *inputs: Tensor) -> Tensor:
    return inputs[0]


def _two(b: Builder, x: Tensor, y: Tensor, *, axis: int) -> Tensor:
    return x


def _axis(b: Builder, *inputs: Tensor, axis: int) -> Tensor:
    return inputs[0]


@pytest.mark.parametrize(
    ("op_type", "function", "options", "message"),
    [
        ("LeakyRelu", _slope, {}, "the schema has no attribute 'slope'; it has"),
        ("LeakyRelu", _alpha(0.02), {}, r"attribute 'alpha' has default 0.02, version \d+ says 0.0"),
        ("LeakyRelu", _alpha(0.01), {"types": {"U": FLOATS}}, r"no type constraint 'U'; it has \['T'\]"),
        ("LeakyRelu", _alpha(0.01), {"types": {"T": ("float32", "int8")}}, r"constraint T allows \['int8'\]"),
        ("LeekyRelu", _alpha(0.01), {}, "the onnx package has no such operator or version"),
        ("LeakyRelu", _alpha(0.01), {"since": 99}, "the onnx package has no such operator or version"),
        ("Concat", _no_axis, {"since": 4}, "required attribute 'axis' is not a parameter"),
        ("Concat", _two, {"since": 4}, "the schema's inputs are variadic, the function's are not"),
        ("Relu", lambda b, x, y: x, {"since": 6}, "the function takes inputs .*the schema has at most 1"),
    ],
)
@pytest.mark.usefixtures("nothing_declared")
def test_declarations_that_do_not_match_the_schema_are_refused(
    op_type: str, function: Any, options: dict[str, Any], message: str
) -> None:
    options = {"types": {"T": FLOATS}, **options}
    with pytest.raises(OperatorDeclarationError, match=message):
        operator(op_type, **options)(function)
    assert not any(registry._OPERATORS.values()), "a refused declaration leaves nothing"


@pytest.mark.usefixtures("nothing_declared")
def test_a_version_is_declared_once() -> None:
    operator("Relu", since=6, until=12, types={"T": FLOATS})(_unary)
    with pytest.raises(OperatorDeclarationError, match="Relu: version 12 is declared twice"):
        operator("Relu", since=12, until=13, types={"T": FLOATS})(_unary)
    operator("Relu", since=13, types={"T": FLOATS})(_unary)
    with pytest.raises(OperatorDeclarationError, match="declared twice"):
        operator("Relu", since=14, types={"T": FLOATS})(_unary)


@pytest.mark.usefixtures("nothing_declared")
def test_an_operator_of_a_domain_that_onnx_does_not_know() -> None:
    operator("Twist", domain="my.domain", types={"x": FLOATS})(_slope)
    [definition] = registry.declared()
    assert not definition.checked and definition.signature.attributes == {"slope": 0.01}


def test_every_declared_version_is_found() -> None:
    """For each version of each schema: the declaration that claims it is the one that a node gets."""
    seen = 0
    for definition in vkep.ops.declared():
        if not definition.checked:
            continue
        for schema in registry.schema_versions(definition):
            node = _node(definition.op_type, definition.domain, schema)
            assert registry.find(node) is definition
            seen += 1
    assert seen > 200


def test_no_declaration_is_unreachable() -> None:
    for definition in vkep.ops.declared():
        if definition.checked:
            assert registry.schema_versions(definition), definition.op_type


def test_types_are_those_of_the_table() -> None:
    for definition in vkep.ops.declared():
        for names in definition.types.values():
            assert names and set(names) <= set(DTYPES), definition.op_type


def _node(op_type: str, domain: str, schema: onnx.defs.OpSchema) -> Any:
    from vkep.graph.model import Node

    names: Sequence[str] = ("x",)
    proto = onnx.helper.make_node(op_type, names, ("y",), domain=domain)
    return Node(0, "n", op_type, domain, tuple(names), ("y",), {}, proto, schema)


def test_attributes_that_are_fixed_are_at_the_defaults_of_onnxruntime() -> None:
    state = pytest.importorskip("onnxruntime.capi.onnxruntime_pybind11_state")
    schemas = {(s.domain, s.name): s for s in state.get_all_operator_schema()}
    seen = set()
    for definition in registry.declared():
        for name, value in definition.fixed.items():
            assert name not in definition.signature.attributes
            spec = schemas[definition.domain, definition.op_type].attributes[name]
            default = onnx.helper.get_attribute_value(onnx.AttributeProto.FromString(spec._default_value))
            assert (default.decode() if isinstance(default, bytes) else default) == pytest.approx(value), name
            seen.add(definition.op_type)
    assert seen == {"CausalConvWithState", "LinearAttention", "VarlenCausalConvWithState"}
