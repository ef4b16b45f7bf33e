"""Vulkan calls that fail, a short form of ``python -m tools.fuzz.faults``."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.nightly import nightly
from tools.fuzz.faults import WHAT

ROOT = Path(__file__).parents[2]
EXTRAS = ["regions", "delegate", "onnxruntime"]


def _find_nothing_wrong(*arguments: str, what: Sequence[str]) -> None:
    command = [sys.executable, "-X", "faulthandler", "-m", "tools.fuzz.faults", *arguments, "--what", *what]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r"(\w+): [1-9]\d* faults", done.stdout) == list(what)
    assert " faults, 0 with something wrong" in done.stdout


@pytest.mark.parametrize(("arguments", "most"), [([], 12), (["--lost"], 4)], ids=["fails", "lost"])
def test_a_fault_is_an_error_and_leaves_nothing(vulkan: object, arguments: list[str], most: int) -> None:
    _find_nothing_wrong(
        *arguments, "--most", str(most if nightly() else most // 2), what=[name for name in WHAT if name not in EXTRAS]
    )


def test_the_same_of_data_graphs_and_onnx_runtime(vulkan: object) -> None:
    for package in ("vgfpy", "model_converter", "emulation_layer", "onnxruntime"):
        pytest.importorskip(package)
    _find_nothing_wrong("--most", "1", what=EXTRAS)
