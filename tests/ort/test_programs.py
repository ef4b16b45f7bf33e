"""Programs that are not edited, started by ``python -m vkep.ort`` or with VKEP_ORT set."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import typer
from onnx import parser

from vkep.ort import programs, python_sessions
from vkep.ort.programs import Request

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import json, sys
import numpy as np
import onnxruntime

CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
found = {"argv": sys.argv[1:], "name": __name__, "path": sys.path[0], "available": onnxruntime.get_available_providers()}
found["device"] = onnxruntime.get_device()
wanted = {"none": None, "cuda": [(CUDA, {"device_id": 0, "cudnn_conv_algo_search": "HEURISTIC"}), CPU], "cpu": [CPU]}
for title, providers in wanted.items():
    session = onnxruntime.InferenceSession("model.onnx", providers=providers)
    found[title] = session.get_providers()[0].removesuffix("ExecutionProvider")
    assert (session.run(None, {"x": -np.ones((2, 3), np.float32)})[0] == 0).all()
options = onnxruntime.SessionOptions()
options.optimized_model_filepath = "optimized.onnx"
found["writes"] = onnxruntime.InferenceSession("model.onnx", options, providers=[CPU]).get_providers()[0]
print(json.dumps(found))
"""
MODEL = '<ir_version: 8, opset_import: ["" : 17]> g (float[2,3] x) => (float[2,3] y) { y = Relu(x) }'


@pytest.fixture
def folder(tmp_path: Path, vulkan: object) -> Path:
    onnx.save(parser.parse_model(MODEL), tmp_path / "model.onnx")
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path


def start(
    folder: Path, *command: str, python: str = sys.executable, **variables: str
) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT), str(ROOT / "registry")])
    environment = {**os.environ, "PYTHONPATH": path, **variables}
    return subprocess.run(
        [python, *command], cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False
    )


def found(folder: Path, *command: str, **more: str) -> dict[str, Any]:
    result = start(folder, *command, **more)
    assert result.returncode == 0, result.stderr
    parsed: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return parsed


@pytest.mark.parametrize(
    ("options", "none", "cuda", "cpu"),
    [
        ([], "CPU", "CPU", "CPU"),
        (["--default"], "Vulkan", "CPU", "CPU"),
        (["--as", "CUDAExecutionProvider"], "CPU", "Vulkan", "CPU"),
        (["--default", "--as", "CPUExecutionProvider"], "Vulkan", "Vulkan", "Vulkan"),
    ],
    ids=["registered", "default", "as-cuda", "as-cpu"],
)
def test_a_program(folder: Path, options: list[str], none: str, cuda: str, cpu: str) -> None:
    made = found(folder, "-m", "vkep.ort", *options, "program.py", "-m", "argument", "--default")
    assert made["argv"] == ["-m", "argument", "--default"] and made["name"] == "__main__"
    assert made["path"] == str(folder) and "VulkanExecutionProvider" in made["available"]
    assert (made["none"], made["cuda"], made["cpu"]) == (none, cuda, cpu)
    assert made["writes"] == "CPUExecutionProvider" and (folder / "optimized.onnx").is_file()
    assert (
        ("CUDAExecutionProvider" in made["available"])
        == (made["device"] == "GPU")
        == ("--as" in options and cpu != cuda)
    )


@pytest.mark.parametrize(("replaced", "first"), [(set(), "CPUExecutionProvider"), ({""}, "AzureExecutionProvider")])
def test_a_program_that_passes_all_available_providers(
    registered: Any, replaced: set[str], first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list is by priority: Vulkan is before the CPU, and before all others where it is the default."""
    monkeypatch.setattr(python_sessions, "replaced", replaced)
    names = onnxruntime.get_available_providers()
    assert names.index("VulkanExecutionProvider") < names.index(first) and len(set(names)) == len(names)
    session = onnxruntime.InferenceSession(parser.parse_model(MODEL).SerializeToString(), providers=names)
    assert session.get_providers()[:-1] == names[:-1] and "VulkanExecutionProvider" in session.get_providers()


def test_a_module_and_a_command(folder: Path) -> None:
    made = found(folder, "-m", "vkep.ort", "--default", "-m", "program", "--flag")
    assert made["argv"] == ["--flag"] and made["none"] == "Vulkan" and made["path"] == str(folder)
    command = folder / "bin" / "tool"
    command.parent.mkdir()
    command.write_text(f"#!{sys.executable}\n{PROGRAM}")
    command.chmod(0o755)
    with_tool = {"PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}"}
    assert found(folder, "-m", "vkep.ort", "--default", "tool", "x", **with_tool)["none"] == "Vulkan"
    result = start(folder, "-m", "vkep.ort", "sh")
    assert result.returncode == 1 and "sh is no Python program: set VKEP_ORT instead" in result.stderr
    assert result.stderr.count("\n") == 1


def test_programs_that_cannot_be_started(folder: Path) -> None:
    result = start(folder, "-m", "vkep.ort", "nothing.py")
    assert result.returncode == 1
    assert result.stderr == "python -m vkep.ort: no program 'nothing.py': neither a file, nor a command on PATH\n"
    result = start(folder, "-m", "vkep.ort", "--default")
    assert result.returncode == 2 and "expected a PROGRAM or -m MODULE" in result.stderr
    (folder / "fails.py").write_text("raise ValueError('its own')")
    result = start(folder, "-m", "vkep.ort", "fails.py")
    assert result.returncode == 1 and result.stderr.endswith("ValueError: its own\n") and "Traceback" in result.stderr


@pytest.mark.slow
def test_by_a_variable_where_it_is_enabled(folder: Path) -> None:
    """In a virtual environment of its own: `vkep ort enable` writes to that alone."""
    home = folder / "environment"
    venv.create(home, with_pip=False)
    python = str(home / "bin" / "python")
    site = next((home / "lib").glob("python*/site-packages"))
    packages = {str(Path(str(module.__file__)).parents[1]) for module in (np, onnx, onnxruntime, typer)}
    (site / "packages.pth").write_text("\n".join(sorted(packages)))

    def vkep(*command: str) -> str:
        result = start(folder, "-m", "vkep", "ort", *command, python=python)
        assert result.returncode == 0, result.stderr
        return result.stdout

    assert vkep("status").startswith("not enabled")
    assert found(folder, "program.py", python=python, VKEP_ORT="default")["none"] == "CPU"
    assert str(site / programs.FILE) in vkep("enable")
    status = json.loads(vkep("status", "--json"))
    assert status["files"] == [str(site / programs.FILE)] and status["devices"] and not status["problem"]
    assert found(folder, "program.py", python=python, VKEP_ORT="default")["none"] == "Vulkan"
    made = found(folder, "program.py", python=python, VKEP_ORT="as:CUDAExecutionProvider,default")
    assert (made["none"], made["cuda"], made["cpu"]) == ("Vulkan", "Vulkan", "CPU")
    for off in ("0", ""):
        assert "VulkanExecutionProvider" not in found(folder, "program.py", python=python, VKEP_ORT=off)["available"]
    result = start(folder, "program.py", python=python, VKEP_ORT="defalt")
    assert result.returncode == 0 and "VKEP_ORT has 'defalt', expected 1, default or as:NAME" in result.stderr
    lazy = start(folder, "-c", "import sys; print('vkep.ort.options' in sys.modules)", python=python, VKEP_ORT="1")
    assert lazy.stdout == "False\n", "a program without onnxruntime pays next to nothing"
    assert str(site / programs.FILE) in vkep("disable")
    assert vkep("disable") == "it was not enabled\n"
    assert found(folder, "program.py", python=python, VKEP_ORT="default")["none"] == "CPU"


def test_values_of_the_variable() -> None:
    assert Request.parse("1") == Request() and str(Request()) == "1"
    request = Request.parse("default, as:A,as:B")
    assert request == Request(True, ("A", "B")) and Request.parse(str(request)) == request
    with pytest.raises(ValueError, match="has 'as:'"):
        Request.parse("as:")


@pytest.mark.parametrize("providers", ["text", 5, [5], [("a", 5)], [("a", {}, {})]])
def test_providers_of_no_known_form_are_left_to_onnxruntime(monkeypatch: pytest.MonkeyPatch, providers: Any) -> None:
    monkeypatch.setattr(python_sessions, "replaced", {"", "a"})
    assert python_sessions.rewritten(providers, None) == (providers, None)
    assert python_sessions.rewritten(["a", "b"], [{}]) == (["a", "b"], [{}])
    assert python_sessions.rewritten([], None, configured=True) == ([], None)


@pytest.mark.skipif(importlib.util.find_spec("sympy") is None, reason="onnxruntime.transformers needs sympy")
def test_onnxruntimes_own_tools(folder: Path) -> None:
    command = ["-m", "onnxruntime.transformers.optimizer", "--input", "model.onnx", "--output", "fused.onnx"]
    result = start(folder, "-m", "vkep.ort", *command, "--model_type", "bert", "--opt_level", "0")
    assert result.returncode == 0, result.stderr
    assert (folder / "fused.onnx").is_file()
