"""Interrupts at random moments, a short form of ``python -m tools.fuzz.interrupts``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools.fuzz.interrupts import WHAT

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("where", ["main", "thread"])
@pytest.mark.parametrize("what", list(WHAT))
def test_nothing_is_lost(vulkan: object, what: str, where: str) -> None:
    command = [sys.executable, "-m", "tools.fuzz.interrupts", "--what", what, "--count", "40"]
    if where == "thread":
        command.append("--threads")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and done.stdout.startswith(f"{what}: 4"), done.stdout + done.stderr
    assert "live blocks" not in done.stderr
