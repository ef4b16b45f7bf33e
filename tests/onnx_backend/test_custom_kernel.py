"""docs/adding-a-kernel.md: a problem, a kernel and an operator of one's own, run as the page has them."""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from vkep import InferenceSession
from vkep.ops import registry

pytestmark = pytest.mark.usefixtures("vulkan")

PAGE = Path(__file__).parents[2] / "docs" / "adding-a-kernel.md"


@pytest.fixture
def _declared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    text = PAGE.read_text(encoding="utf-8")
    [glsl], [python] = (re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL) for language in ("glsl", "python"))
    (tmp_path / "hysteresis.comp").write_text(glsl, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType("hysteresis_page")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # dataclasses look their module up
    exec(compile(python, str(PAGE), "exec"), vars(module))
    yield
    del registry._OPERATORS["com.example", "Hysteresis"]


def _followed(x: np.ndarray, low: float, high: float) -> np.ndarray:
    y, state = np.zeros_like(x), np.zeros(x.shape[:-1], x.dtype)
    for k in range(x.shape[-1]):
        state = np.where(x[..., k] > high, 1, np.where(x[..., k] < low, 0, state))
        y[..., k] = state
    return y


@pytest.mark.usefixtures("_declared")
def test_the_page_computes_what_it_says() -> None:
    node = helper.make_node("Hysteresis", ["x"], ["y"], domain="com.example", low=-0.5)
    x, y = (helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["rows", 40]) for n in "xy")
    model = helper.make_model(
        helper.make_graph([node], "g", [x], [y]),
        opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("com.example", 1)],
        ir_version=10,
    )
    rng = np.random.default_rng(7)
    with InferenceSession(model.SerializeToString(), fallback="error") as session:
        for rows in (1, 3, 200):
            data = rng.normal(0, 1, (rows, 40)).astype(np.float32)
            np.testing.assert_array_equal(session.run(None, {"x": data})[0], _followed(data, -0.5, 1.0))
