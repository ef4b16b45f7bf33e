"""tools.ort_python: tests of another package run with vkep in its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import ort_python

pytest.importorskip("onnxruntime")

TESTS = """
import os, unittest
import onnxruntime as onnxrt
from onnxruntime.capi import _pybind_state as C
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, OrtValueVector

class TestAll(unittest.TestCase):
    def test_name(self):
        self.assertEqual(onnxrt.__name__, PACKAGE)

    def test_absent(self):
        C.OrtDevice.cuda(1)

    def test_ends(self):
        os._exit(3)

    def test_options(self):
        import onnxruntime
        onnxruntime.SessionOptions().add_session_config_entry("a", "b")

    def test_parts(self):
        for name in onnxrt.get_available_providers():
            with self.subTest(name):
                if name != "VulkanExecutionProvider":
                    self.skipTest("no GPU")
"""


@pytest.mark.parametrize("package", ["onnxruntime", "vkep"])
def test_outcomes(tmp_path: Path, package: str) -> None:
    file = tmp_path / "tests.py"
    file.write_text(TESTS.replace("PACKAGE", repr(package)))
    found = {test.removeprefix("TestAll.test_"): outcome for test, outcome in ort_python.outcomes(file, package)}
    assert {name: outcome.how for name, outcome in found.items()} == {
        "name": "passed",
        "absent": "failed",
        "ends": "failed",
        "options": "passed",
        "parts": "skipped" if package == "onnxruntime" else "passed",
    }
    assert found["ends"].text == "ended the process with status 3"
    assert package != "vkep" or "vkep has no 'OrtDevice.cuda'" in found["absent"].text
    assert dict(ort_python.outcomes(file, package, "name")).keys() == {"TestAll.test_name"}
