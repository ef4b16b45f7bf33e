"""`vkep tune`: what it prints and keeps."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx.parser
import pytest

from vkep.cache import read_sealed

PRODUCT = """
<ir_version: 8, opset_import: ["" : 17]>
product (float[n, 16] x, float[16, 24] w) => (float[n, 24] y) { y = MatMul(x, w) }
"""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VKEP_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "product.onnx"
    path.write_bytes(onnx.parser.parse_model(PRODUCT).SerializeToString())
    return path


def test_the_problems_of_a_model_are_measured_and_kept(run: Callable[..., Any], model: Path) -> None:
    found = json.loads(run("tune", model, "--dim", "n=12", "-n", 1, "--json").stdout)
    (problem,) = found["models"][str(model)]
    assert problem["labels"] == ["MatMul_0"]
    assert problem["candidates"] > 1
    assert 0 < problem["chosen_ns"] <= problem["default_ns"]
    content = read_sealed(Path(found["kept_in"]), 1 << 20)
    assert content is not None
    kept = json.loads(bytes(content))
    assert kept["device"] == found["device"]
    assert kept["choices"] == ({} if problem["choice"] is None else {problem["problem"]: problem["choice"]})


def test_a_dry_run_keeps_nothing(run: Callable[..., Any], model: Path, tmp_path: Path) -> None:
    printed = run("tune", model, "--dim", "n=12", "-n", 1, "--dry-run").stdout
    assert "1 problems" in printed
    assert "nothing kept" in printed
    assert not (tmp_path / "cache" / "tuning").exists()


def test_a_file_that_is_not_there_is_wrong_usage(run: Callable[..., Any], tmp_path: Path) -> None:
    result = run("tune", tmp_path / "none.onnx")
    assert result.exit_code == 2
    assert "no such file" in result.stderr
