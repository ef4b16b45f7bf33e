"""The command line under test, small models, and nothing left behind."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import pytest
from typer.testing import CliRunner

import gpu_shared
from tools.models.catalog import write_model
from vkep.cli import app

DYNAMIC = """
<ir_version: 8, opset_import: ["" : 17]>
two (float[batch, 8] x, float[batch, length] z) => (float[batch, 8] y, float[batch, length] w) {
    y = Tanh(x)
    w = Softmax(z)
}
"""
#: With `nonzero_declined`, NonZero runs on the CPU, and what follows waits for its shape; the second lies inside that part
ON_CPU = """
<ir_version: 8, opset_import: ["" : 17]>
mixed (float[3, 4] x) => (float[2, n] y) {
    i = NonZero(x)
    f = Cast<to = 1>(i)
    j = NonZero(f)
    k = Cast<to = 1>(j)
    y = Exp(k)
}
"""


@pytest.fixture
def run() -> Callable[..., Any]:
    """``run("run", path, "--json")``: exit code, standard output and standard error of a command in this process."""

    def invoke(*arguments: object) -> Any:
        return CliRunner().invoke(app, [str(argument) for argument in arguments])

    return invoke


@pytest.fixture
def nonzero_declined(monkeypatch: pytest.MonkeyPatch) -> None:
    """NonZero as on a vkep without a kernel for it."""
    from vkep.ops import registry
    from vkep.placement import partition

    monkeypatch.delitem(registry._OPERATORS, ("", "NonZero"), raising=False)
    monkeypatch.setattr(partition, "replacement_nodes", lambda node, known, opsets: [node])


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Every Vulkan object that a command made is gone at its end."""
    gc.collect()
    before = gpu_shared.live_counts()
    yield
    if gpu_shared.live_counts() != before:
        gc.collect()
    assert gpu_shared.live_counts() == before


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with add.onnx (x + x2, 2 by 3) and softmax.onnx with their references, and two models of parsed text."""
    folder = tmp_path_factory.mktemp("models")
    for name, short in (("op_add_2x3", "add"), ("op_softmax_512x128", "softmax")):
        written = write_model(name, folder)
        written.with_suffix(".npz").rename(folder / f"{short}.npz")
        written.rename(folder / f"{short}.onnx")
    onnx.save(onnx.parser.parse_model(DYNAMIC), folder / "dynamic.onnx")
    onnx.save(onnx.parser.parse_model(ON_CPU), folder / "mixed.onnx")
    return folder
