"""The examples of docs/serving.md: the shell's lines, and the Python blocks against the server that they start."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.serving.conftest import ROOT, serving
from vkep.cli import app

PAGE = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")


@pytest.mark.gpu
def test_the_examples_of_the_page(vulkan: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("fastapi", "uvicorn", "prometheus_client", "llguidance", "openai"):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```(python|sh)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    lines = [
        shlex.split(line, comments=True)[1:]
        for _, block in blocks
        for line in block.splitlines()
        if line.startswith("vkep ")
    ]
    *before, serve = lines
    for line in before:
        assert CliRunner().invoke(app, line).exit_code == 0, line
    assert serve[0] == "serve" and serve[-2:] == ["--port", "8000"]
    with serving(tmp_path, serve[1:-2]) as running:
        for kind, block in blocks:
            if kind == "python":
                text = block.replace("http://127.0.0.1:8000", running.url)
                paths = os.pathsep.join([str(ROOT), str(ROOT / "registry")])
                found = subprocess.run(
                    [sys.executable, "-c", text],
                    env={**os.environ, "PYTHONPATH": paths},
                    capture_output=True,
                    text=True,
                    timeout=300,
                    check=False,
                )
                assert found.returncode == 0 and found.stdout, found.stderr
    talked = CliRunner().invoke(app, ["chat", "llm", "-n", "4", "-t", "0"], input="Hello\n/new\nHello\n")
    first, again = talked.stdout.splitlines()[:1], talked.stderr.splitlines()
    assert talked.exit_code == 0 and first and len([line for line in again if "tokens/s" in line]) == 2, talked.output
