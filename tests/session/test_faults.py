"""Vulkan calls that fail, a short form of ``python -m tools.fuzz.faults``."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools.fuzz.faults import WHAT

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("arguments", [["--most", "12"], ["--lost", "--most", "4"]], ids=["fails", "lost"])
def test_a_fault_is_an_error_and_leaves_nothing(vulkan: object, arguments: list[str]) -> None:
    command = [sys.executable, "-X", "faulthandler", "-m", "tools.fuzz.faults", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r"(\w+): [1-9]\d* faults", done.stdout) == list(WHAT)
    assert " faults, 0 with something wrong" in done.stdout
