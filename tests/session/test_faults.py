"""Vulkan calls that fail, a short form of ``python -m tools.fuzz.faults``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools.fuzz.faults import WHAT

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("arguments", [["--most", "12"], ["--lost", "--most", "4"]], ids=["fails", "lost"])
@pytest.mark.parametrize("what", list(WHAT))
def test_a_fault_is_an_error_and_leaves_nothing(vulkan: object, what: str, arguments: list[str]) -> None:
    command = [sys.executable, "-m", "tools.fuzz.faults", "--what", what, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " faults, 0 with something wrong" in done.stdout and not done.stdout.startswith(f"{what}: 0 ")
