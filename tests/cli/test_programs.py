"""ExecuTorch programs on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

DATA = Path(__file__).parents[1] / "executorch" / "data"
GIVEN, SPECIAL = DATA / "given", DATA / "special"
Run = Callable[..., Any]


@pytest.mark.gpu
def test_run_takes_files_in_order_and_writes_outputs(run: Run, tmp_path: Path) -> None:
    result = run("run", GIVEN / "vk.pte", "-i", GIVEN / "input0.npy", "-n", 3, "-o", tmp_path / "out.npz")
    assert result.exit_code == 0, result.output
    assert "delegate 1: VulkanBackend" in result.stdout and "in numpy: aten::reciprocal.out" in result.stdout
    np.testing.assert_allclose(np.load(tmp_path / "out.npz")["output_0"], np.load(GIVEN / "expected0.npy"), atol=1e-5)


def test_random_inputs_and_shapes(run: Run) -> None:
    result = run("run", SPECIAL / "dynamic.pte", "-s", "input_0=3x8", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["outputs"]["output_0"]["shape"] == [3, 2]
    assert run("run", GIVEN / "cnn_none.pte").exit_code == 0
    assert run("run", SPECIAL / "external.pte").exit_code == 0, "data files named like the program are read"


def test_explain(run: Run) -> None:
    result = run("explain", GIVEN / "none.pte", "--json")
    assert result.exit_code == 0 and json.loads(result.stdout)["in_numpy"]["aten::permute_copy.out"] == 2


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["run", GIVEN / "none.pte", "--check-cpu"], 2, "--check-cpu: for .onnx models"),
        (["explain", GIVEN / "none.pte", "--plan", "--time"], 2, "--plan, --time: for .onnx models"),
        (["run", SPECIAL / "counter_lost.pte"], 1, "alias_buffer_mutations"),
        (["run", GIVEN / "none.pte", "-i", GIVEN / "expected0.npy"], 2, "input 0: got shape [1, 3,"),
        (["run", DATA / "nowhere.pte"], 2, "no such file"),
    ],
)
def test_errors(run: Run, arguments: list[Any], status: int, message: str) -> None:
    result = run(*arguments)
    assert (result.exit_code, result.exception is None or isinstance(result.exception, SystemExit)) == (status, True)
    assert message in result.stderr


@pytest.mark.gpu
def test_view_shows_delegates_and_what_is_between_them(run: Run, tmp_path: Path) -> None:
    page = tmp_path / "run.html"
    result = run("view", GIVEN / "vk.pte", "-i", GIVEN / "input0.npy", "-n", 1, "-o", page, "--no-open", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [n["op"] for n in found["nodes"] if n["where"] == "cpu"] == ["aten::reciprocal.out"]
    makers = {v for n in found["nodes"] for v in n["outputs"]}
    givers = {k for k, v in enumerate(found["values"]) if v.get("kind") in ("input", "weight")}
    assert all(set(n["inputs"]) <= makers | givers for n in found["nodes"]), "every value comes from somewhere"
    assert {d["island"] for d in found["dispatches"]} == {0, 1}
    assert all(d["nodes"] for d in found["dispatches"] if d["label"] != "copy")
    [timed] = found["runs"]
    assert [s["name"] for s in timed["host"] if s["depth"] == 1] == [
        "delegate 0",
        "cpu: aten::reciprocal.out",
        "delegate 1",
    ]
    assert len(timed["gpu"]) == len(found["dispatches"])
    assert page.is_file()
