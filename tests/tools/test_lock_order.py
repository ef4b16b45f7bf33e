"""The order of locks is found while tests run, and compared with the one that docs/safety.md states."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools import lock_order

ROOT = Path(__file__).parents[2]


def test_sessions_keep_the_order(vulkan: object) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-p", "tools.lock_order"]
    done = subprocess.run(
        [*command, "tests/session/test_closing.py", "-k", "refused"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout
    pairs = dict(line.split(": ") for line in done.stdout.splitlines() if line.startswith(("vkep.", "gpu_shared.")))
    assert "vkep.session.planning.planned_graph._planning" in pairs["vkep.device.delegate.lock"].split(", ")


@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        ({"vkep.device.delegate.lock": {"gpu_shared.lifetime.lock"}}, "delegate.lock (line 5) is taken while"),
        ({"vkep.a.lock": {"vkep.b.lock"}, "vkep.b.lock": {"vkep.a.lock"}}, "each of these locks is taken while"),
        ({"gpu_shared.lifetime.lock": {"vkep.device.delegate.lock"}}, ""),
    ],
)
def test_what_breaks_the_order(monkeypatch: pytest.MonkeyPatch, pairs: dict[str, set[str]], said: str) -> None:
    monkeypatch.setattr(lock_order, "before", pairs)
    found = lock_order.broken()
    assert [said in line for line in found] == [True] * bool(said), found
