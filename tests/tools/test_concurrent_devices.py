"""The plugin finds an instance that is created while another thread calls Vulkan."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TESTS = """
import threading
from gpu_shared.instance import Instance

def test_after_each_other():
    for _ in range(3):
        with Instance() as instance:
            instance.physical_devices()

def test_beside():
    with Instance() as used:
        begun, stop = threading.Event(), threading.Event()
        def call():
            while not stop.is_set():
                used.physical_devices()
                begun.set()
        thread = threading.Thread(target=call)
        thread.start()
        begun.wait(60)
        for _ in range(20):
            Instance().close()
        stop.set()
        thread.join()
"""


@pytest.mark.usefixtures("no_layers")
@pytest.mark.parametrize("workers", ["0", "1"])
def test_what_it_finds(vulkan: object, tmp_path: Path, workers: str) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    arguments = [
        "-q",
        "-n",
        workers,
        "-p",
        "tools.concurrent_devices",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "2 passed" in done.stdout, done.stdout + done.stderr
    assert " 1 tests in which a device was created or destroyed beside other calls" in done.stdout
    assert re.search(r"\d+ x test_it\.py::test_beside: vk", done.stdout)
    assert "test_after_each_other" not in done.stdout
