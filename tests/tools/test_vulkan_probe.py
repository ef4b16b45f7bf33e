"""The probe that the setup asks: it sees the driver that the tests run on, and says why when there is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.vulkan_probe import Device, Probe, probe

PROGRAM = Path(__file__).resolve().parents[2] / "tools" / "vulkan_probe.py"


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(PROGRAM), *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.mark.gpu
def test_it_finds_a_device_that_vkep_can_use() -> None:
    found = probe()
    assert found.check("loader")
    assert found.check("device"), found.error
    assert all(device.name and device.api >= (1, 0, 0) for device in found.devices)


def test_without_a_driver_it_says_so(tmp_path: Path) -> None:
    nothing = {"VK_DRIVER_FILES": str(tmp_path / "none.json"), "VK_ICD_FILENAMES": str(tmp_path / "none.json")}
    done = run("--json", **nothing)
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert found["devices"] == []
    assert found["error"]
    assert run("--check", "device", **nothing).returncode == 1


@pytest.mark.parametrize(
    ("device", "answers"),
    [
        (Device("llvmpipe (LLVM 15)", "CPU", (1, 3, 230), (0, 0, 1)), {"device"}),
        (Device("llvmpipe (LLVM 19)", "CPU", (1, 4, 305), (0, 0, 1)), {"device", "current-driver"}),
        (Device("A GPU", "discrete GPU", (1, 3, 0), (550, 1, 0)), {"device", "gpu", "current-driver"}),
        (Device("An old GPU", "integrated GPU", (1, 2, 0), (1, 0, 0)), set()),
    ],
)
def test_what_a_device_answers(device: Device, answers: set[str]) -> None:
    found = Probe(loader=True, devices=[device])
    assert {what for what in ("device", "gpu", "current-driver") if found.check(what)} == answers
