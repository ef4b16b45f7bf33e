"""``vkep vgf convert | dump | run``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

from tests.tosa.harness import model
from tests.vgf.harness import DATA, need_vgf
from tests.vgf.test_segments import NEGATE, SHIFTED, file
from vkep.cli import app
from vkep.vgf import decode, mlir_to_vgf


@pytest.fixture(autouse=True)
def _extra(vulkan: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    need_vgf()
    monkeypatch.setenv("VKEP_VALIDATION", "0")  # the emulation layers themselves break rules


def run(*arguments: Any) -> Any:
    return CliRunner().invoke(app, ["vgf", *map(str, arguments)])


def test_a_model_becomes_a_file_that_runs(tmp_path: Path) -> None:
    onnx.save(model("g (float[2,3] x) => (float[2,3] y) { a = Sin(x) y = Exp(a) }"), tmp_path / "m.onnx")
    made = run("convert", tmp_path / "m.onnx", "-o", tmp_path / "m.vgf", "--mlir", tmp_path / "m.mlir", "--json")
    assert made.exit_code == 0, made.output
    assert json.loads(made.stdout)["bytes"] == (tmp_path / "m.vgf").stat().st_size
    assert "tosa.sin" in (tmp_path / "m.mlir").read_text()
    again = run("convert", tmp_path / "m.mlir", "-o", tmp_path / "again.vgf")
    assert again.exit_code == 0 and (tmp_path / "again.vgf").read_bytes() == (tmp_path / "m.vgf").read_bytes()
    x = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    ran = run("run", tmp_path / "m.vgf", "-i", tmp_path / "x.npy", "-o", tmp_path / "out", "--json")
    assert ran.exit_code == 0, ran.output
    assert json.loads(ran.stdout)["outputs"] == [{"name": "output_0", "dtype": "float32", "shape": [2, 3]}]
    np.testing.assert_allclose(np.load(tmp_path / "out" / "output_0.npy"), np.exp(np.sin(x)), rtol=1e-5)


def test_dump(tmp_path: Path) -> None:
    shown = run("dump", DATA / "executorch_cnn.vgf", "--spirv", tmp_path)
    assert shown.exit_code == 0
    assert "1 graph and 0 compute segments, 7 constants" in shown.stdout
    assert "input input_0: float32 [1, 3, 32, 32], binding 0" in shown.stdout
    (module,) = tmp_path.glob("*.spv")
    assert module.read_bytes()[:4] == b"\x03\x02\x23\x07"


def test_a_file_inside_another(tmp_path: Path) -> None:
    inner = (DATA / "executorch_pool.vgf").read_bytes()
    (tmp_path / "model.pte").write_bytes(b"some container" + inner)
    assert run("run", tmp_path / "model.pte").exit_code == 0
    missing = run("dump", tmp_path / "model.pte", "--index", 1)
    assert missing.exit_code == 2 and "has 1 VGF files inside; --index is 1" in missing.output.replace("\n", " ")


def test_errors_name_what_cannot_be_converted(tmp_path: Path) -> None:
    onnx.save(model("g (float[2,3] x) => (float[2,3] y) { y = Acosh(x) }"), tmp_path / "m.onnx")
    declined = run("convert", tmp_path / "m.onnx", "-o", tmp_path / "m.vgf")
    assert declined.exit_code == 2 and "no TOSA lowering of Acosh" in declined.output.replace("\n", " ")
    assert not (tmp_path / "m.vgf").exists()
    (tmp_path / "short.vgf").write_bytes((DATA / "executorch_pool.vgf").read_bytes()[:1000])
    short = run("run", tmp_path / "short.vgf")
    assert short.exit_code == 1 and "truncated" in short.output.replace("\n", " ")
    assert run("run", tmp_path / "nowhere.vgf").exit_code == 2


def test_push_constants_and_shaders_in_source_form(tmp_path: Path) -> None:
    graph = decode(mlir_to_vgf(NEGATE))
    (tmp_path / "m.vgf").write_bytes(file(SHIFTED, graph, push=8))
    shown = " ".join(run("dump", tmp_path / "m.vgf").output.split())
    assert f"{len(SHIFTED)} characters of GLSL" in shown and "push constants of 8 bytes at 0" in shown
    x = np.random.default_rng(0).uniform(-1, 1, 64).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    arguments = ("run", tmp_path / "m.vgf", "-i", tmp_path / "x.npy", "-o", tmp_path)
    missing = run(*arguments)
    assert missing.exit_code and "--push second=FILE" in " ".join(missing.output.split())
    assert run(*arguments, "--push", "second=nowhere").exit_code == 2
    (tmp_path / "push").write_bytes(np.float32(0.5).tobytes() + np.int32(2).tobytes())
    ran = run(*arguments, "--push", f"second={tmp_path / 'push'}")
    assert ran.exit_code == 0, ran.output
    want = np.abs(np.abs(x) * np.tile([1, 2, 3, 4], 16).astype(np.float32) - 1)
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), want, rtol=1e-6, atol=1e-6)
