"""Interrupts at random moments, a short form of ``python -m tools.fuzz.interrupts``."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools.fuzz.interrupts import WHAT

ROOT = Path(__file__).parents[2]
#: kinds of work that one process does, and how many interrupts of each: opening takes long
TOGETHER = [
    (40, ("runs", "parts", "shapes", "binds", "reads", "closes", "handles", "executes")),
    (20, ("opens", "contexts", "loads")),
    (40, ("steps", "generates")),
]


def test_every_kind_is_tried() -> None:
    assert sorted(kind for _, kinds in TOGETHER for kind in kinds) == sorted(WHAT)


@pytest.mark.parametrize("where", ["main", "thread"])
@pytest.mark.parametrize(("count", "kinds"), TOGETHER)
def test_nothing_is_lost(vulkan: object, kinds: tuple[str, ...], count: int, where: str) -> None:
    command = [sys.executable, "-m", "tools.fuzz.interrupts", "--what", *kinds, "--count", str(count)]
    if where == "thread":
        command.append("--threads")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stdout + done.stderr
    counted = re.findall(r"^(\w+): (\d+) interrupts", done.stdout, re.MULTILINE)
    assert [kind for kind, interrupts in counted if int(interrupts) >= count] == list(kinds)
    assert "live blocks" not in done.stderr and "unreferenced" not in done.stderr, done.stderr
