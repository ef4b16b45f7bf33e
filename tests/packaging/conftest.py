"""A wheel and an sdist of the checkout, built once for all packaging tests; no network is used."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command away from the checkout's import path; its output is in the failure."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="session")
def source_copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout, so that builds and editable installs leave nothing behind in it."""
    skipped = shutil.ignore_patterns(
        ".git", ".venv", "__pycache__", ".*_cache", ".hypothesis", "build", "dist", "*.npz", "*.onnx", "*.weights"
    )
    return Path(shutil.copytree(ROOT, tmp_path_factory.mktemp("source") / "vkep", ignore=skipped))


@pytest.fixture(scope="session")
def wheel(source_copy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that `pip wheel .` makes."""
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "-q", source_copy, "--no-build-isolation", "--no-deps", "--no-index",
        "-w", folder, cwd=folder)  # fmt: skip
    (built,) = folder.glob("vkep-*.whl")
    return built


@pytest.fixture(scope="session")
def sdist(source_copy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist that the build backend makes."""
    folder = tmp_path_factory.mktemp("sdist")
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", folder, cwd=source_copy)
    (built,) = folder.glob("vkep-*.tar.gz")
    return built
