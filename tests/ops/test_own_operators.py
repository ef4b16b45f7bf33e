"""What docs/adding-an-operator.md promises of declarations, for operators of users' own domains: versions, attributes, types."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.session.models import model
from vkep import InferenceSession, InvalidModelError, UnsupportedModelError
from vkep.errors import VkepError
from vkep.ir.builder import Builder
from vkep.ir.tensor import Tensor
from vkep.ops import operator, registry
from vkep.ops.registry import OperatorDeclarationError

pytestmark = pytest.mark.usefixtures("vulkan")

Open = Callable[..., InferenceSession]
DOMAIN = "com.example"
FLOAT = {"x": ("float32",)}


@pytest.fixture(autouse=True)
def _apart() -> Iterator[None]:
    """Declarations made here do not stay."""
    registry.load_own()
    kept = {key: list(entries) for key, entries in registry._OPERATORS.items()}
    yield
    registry._OPERATORS.clear()
    registry._OPERATORS.update(kept)


def _adds(value: float) -> Callable[[Builder, Tensor], Tensor]:
    return lambda b, x: b.pointwise("add", x, value)


@pytest.fixture
def _shifted() -> None:
    """The later version first: the order of declarations does not matter."""
    operator("Shifted", domain=DOMAIN, since=4, until=5, types=FLOAT)(_adds(100))
    operator("Shifted", domain=DOMAIN, until=2, types=FLOAT)(_adds(1))
    operator("Shifted", domain=DOMAIN, since=8, types=FLOAT)(_adds(10000))


def _of(open_session: Open, text: str, domains: str, **feeds: Any) -> list[float]:
    session = open_session(model(text, domains=domains), fallback="error")
    [result] = session.run(None, feeds or {"x": np.zeros(2, np.float32)})
    return [float(value) for value in result]


NODE = "g (float[2] x) => (float[2] y) { y = com.example.Shifted(x) }"


@pytest.mark.parametrize(
    ("version", "added"), [(1, 1), (2, 1), (4, 100), (5, 100), (8, 10000), (9, 10000), (2_000_000_000, 10000)]
)
@pytest.mark.usefixtures("_shifted")
def test_the_models_import_selects_the_version(open_session: Open, version: int, added: float) -> None:
    assert _of(open_session, NODE, f', "{DOMAIN}": {version}') == [added] * 2


@pytest.mark.parametrize("version", [3, 6])
@pytest.mark.usefixtures("_shifted")
def test_a_version_that_is_not_declared(version: int) -> None:
    reason = rf"com.example.Shifted is declared for versions 1 to 2, 4 to 5, 8 and later; the model imports {version}"
    with pytest.raises(UnsupportedModelError, match=reason):
        InferenceSession(model(NODE, domains=f', "{DOMAIN}": {version}'), fallback="error")


@pytest.mark.usefixtures("_shifted")
def test_a_body_has_its_models_version(open_session: Open) -> None:
    text = """g (float[2] x, bool b) => (float[2] y) { y = If(b) <
        then_branch = t () => (float[2] z) { z = com.example.Shifted(x) },
        else_branch = e () => (float[2] z) { z = Neg(x) }> }"""
    feeds = {"x": np.zeros(2, np.float32), "b": np.array(True)}
    assert _of(open_session, text, f', "{DOMAIN}": 5', **feeds) == [100, 100]


@pytest.mark.usefixtures("_shifted")
def test_a_function_of_the_model_imports_the_domain_alone(open_session: Open) -> None:
    text = f"""<ir_version: 9, opset_import: ["": 18, "f": 1]> g (float[2] x) => (float[2] y) {{ y = f.F(x) }}
        <domain: "f", opset_import: ["": 18, "{DOMAIN}": 4]> F (x) => (y) {{ y = com.example.Shifted(x) }}"""
    session = open_session(onnx.parser.parse_model(text), fallback="error")
    assert session.run(None, {"x": np.zeros(2, np.float32)})[0].tolist() == [100, 100]


def test_functions_that_import_different_versions() -> None:
    functions = "".join(
        f'<domain: "f", opset_import: ["": 18, "{DOMAIN}": {version}]> F{version} (x) => (y) {{ y = com.example.Shifted(x) }}'
        for version in (1, 4)
    )
    text = f"""<ir_version: 9, opset_import: ["": 18, "f": 1]> g (float[2] x) => (float[2] y) {{ a = f.F1(x) y = f.F4(a) }}
        {functions}"""
    with pytest.raises(InvalidModelError, match=r"its functions import versions 1 and 4 of 'com\.example'"):
        InferenceSession(onnx.parser.parse_model(text))


@pytest.mark.usefixtures("_shifted")
def test_a_model_without_an_import_gets_the_newest(open_session: Open) -> None:
    assert _of(open_session, NODE, "") == [10000, 10000]


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({}, {"since": 5, "until": 9}, "Twice: versions 5 to 9 are declared twice"),
        ({}, {"since": 3}, "Twice: versions from 3 on are declared twice"),
        ({"until": 4}, {"since": 4}, "Twice: version 4 is declared twice"),
        ({"since": 2, "until": 4}, {"until": 3}, "Twice: versions 2 to 3 are declared twice"),
    ],
)
def test_versions_declared_twice(first: dict[str, Any], second: dict[str, Any], message: str) -> None:
    operator("Twice", domain=DOMAIN, types=FLOAT, **first)(_adds(1))
    with pytest.raises(OperatorDeclarationError, match=message):
        operator("Twice", domain=DOMAIN, types=FLOAT, **second)(_adds(2))


def _scaled(
    b: Builder,
    x: Tensor,
    *,
    by: float,
    times: int = 2,
    mode: str = "up",
    offsets: tuple[float, ...] = (0.5, 0.25),
    signs: tuple[int, ...] | None = None,
) -> Tensor:
    total = by * times * (1 if mode == "up" else -1) + sum(offsets) + sum(signs or ())
    return b.pointwise("add", x, total)


def _attributed(**attributes: Any) -> onnx.ModelProto:
    node = helper.make_node("Scaled", ["x"], ["y"], name="mine", domain=DOMAIN, **attributes)
    infos = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in "xy"]
    graph = helper.make_graph([node], "g", infos[:1], infos[1:])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


@pytest.fixture
def _scale() -> None:
    operator("Scaled", domain=DOMAIN, types=FLOAT, fixed={"axis": -1, "kind": "plain", "epsilon": 0.1})(_scaled)


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({"by": 3.0}, 6.75),
        ({"by": 3.0, "times": 4}, 12.75),
        ({"by": 3.0, "mode": "down"}, -5.25),
        ({"by": 3.0, "offsets": [1.0]}, 7.0),
        ({"by": 3.0, "signs": [1, -3]}, 4.75),
        ({"by": 3.0, "axis": -1, "kind": "plain", "epsilon": 0.1}, 6.75),
    ],
)
@pytest.mark.usefixtures("_scale")
def test_attributes_and_their_defaults(open_session: Open, attributes: dict[str, Any], expected: float) -> None:
    session = open_session(_attributed(**attributes), fallback="error")
    assert session.run(None, {"x": np.zeros(2, np.float32)})[0].tolist() == [expected] * 2


@pytest.mark.parametrize(
    ("attributes", "error", "message"),
    [
        ({"by": 3.0, "other": 1}, UnsupportedModelError, "mine.*attribute 'other' is not supported"),
        ({"by": 3.0, "axis": 0}, UnsupportedModelError, "mine.*attribute 'axis' is not supported"),
        ({"by": 3.0, "kind": "fancy"}, UnsupportedModelError, "mine.*attribute 'kind' is not supported"),
        ({}, VkepError, "mine.*attribute 'by' is missing"),
        ({"by": 3.0, "times": 2.5}, InvalidModelError, "mine.*attribute 'times' is 2.5, expected int"),
        ({"by": 3.0, "mode": 1}, InvalidModelError, "mine.*attribute 'mode' is 1, expected str"),
    ],
)
@pytest.mark.usefixtures("_scale")
def test_attributes_that_are_refused(attributes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        InferenceSession(_attributed(**attributes), fallback="error")


def test_inputs_that_share_a_type() -> None:
    operator("Both", domain=DOMAIN, types={"x y": ("float32", "float16")})(lambda b, x, y: b.pointwise("add", x, y))
    text = "g (float[2] x, float16[2] y) => (float[2] z) { z = com.example.Both(x, y) }"
    with pytest.raises(VkepError, match="Both"):
        InferenceSession(model(text, domains=f', "{DOMAIN}": 1'), fallback="error")


def test_types_for_what_is_no_input() -> None:
    with pytest.raises(OperatorDeclarationError, match=r"types for \['z'\], which are no inputs of the function"):
        operator("Both", domain=DOMAIN, types={"x z": ("float32",)})(_adds(1))
