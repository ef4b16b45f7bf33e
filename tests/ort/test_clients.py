"""The lines of docs/clients run, where the client is installed: polygraphy and onnxruntime-genai are part of the test extra."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import parser

from tests.ort import client_models

ROOT = Path(__file__).resolve().parents[2]
MODEL = '<ir_version: 8, opset_import: ["" : 17]> g (float[2,3] x) => (float[2,3] y) { a = Exp(x) y = Relu(a) }'
PROGRAM = """
import onnxruntime
assert "CUDAExecutionProvider" in onnxruntime.get_available_providers() and onnxruntime.get_device() == "GPU"
print(onnxruntime.InferenceSession("model.onnx", providers=["CUDAExecutionProvider"]).get_providers())
"""


def _model(folder: Path) -> None:
    onnx.save(parser.parse_model(MODEL), folder / "model.onnx")
    (folder / "program.py").write_text(PROGRAM)


#: page -> the packages it takes, what makes its files, and what it must print
PAGES: dict[str, tuple[list[str], Callable[[Path], None], list[str]]] = {
    "polygraphy": (["polygraphy"], _model, ["providers: ['VulkanExecutionProvider']", "All outputs matched"]),
    "onnxruntime-genai": (["onnxruntime_genai"], lambda folder: None, ["[1, 5, 7, 9, "]),
    "optimum": (
        ["optimum.onnxruntime", "torch", "diffusers"],
        lambda folder: None,
        ["['VulkanExecutionProvider', 'CPUExecutionProvider'] tensor([[", "tensor([[  1,   2,   3, ", "(96, 128)"],
    ),
    "sentence-transformers": (
        ["sentence_transformers", "optimum.onnxruntime"],
        lambda folder: client_models.write_sentences(folder / "sentences"),
        ["(2, 16)"],
    ),
    "closed-lists": (
        ["sympy"],
        _model,
        ["['VulkanExecutionProvider', 'CUDAExecutionProvider', 'CPUExecutionProvider']", "Model saved to fused.onnx"],
    ),
}
#: pages whose lines change the environment or start a server (tests/ort/test_programs.py does what they do), and a table
NOT_RUN = {"jupyter", "one-line"}


def _is_there(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        return False


def test_every_page_is_run() -> None:
    assert {path.stem for path in (ROOT / "docs" / "clients").glob("*.md")} == set(PAGES) | NOT_RUN


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_the_lines_of_a_page(registered: Any, tmp_path: Path, page: str) -> None:
    packages, prepare, expected = PAGES[page]
    missing = [package for package in packages if not _is_there(package)]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")
    prepare(tmp_path)
    text = (ROOT / "docs" / "clients" / f"{page}.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```(sh|python)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    shell = "".join(code for kind, code in blocks if kind == "sh")
    lines = [line for line in shell.splitlines() if not line.startswith("pip ")]
    commands = [["bash", "-c", line] for line in lines]
    programs = "\n".join(code for kind, code in blocks if kind == "python")
    if programs:
        commands.append([sys.executable, "-c", programs])
    assert commands
    path = os.pathsep.join([str(ROOT), str(ROOT / "registry")])
    bin_ = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    printed = ""
    for command in commands:
        result = subprocess.run(
            command,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": path, "PATH": bin_, "HF_HUB_OFFLINE": "1"},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert result.returncode == 0, result.stdout + result.stderr
        printed += result.stdout + result.stderr
    for one in expected:
        assert one in printed, printed
