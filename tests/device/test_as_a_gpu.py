"""Tests as on a GPU, on any driver: with memory of its own (``--discrete``), and with wide subgroups (marked ``wide``)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.session.models import ADD_RELU
from tools.discrete import take_for_discrete
from vkep import DeviceInfo, InferenceSession, SharedGpuContext

TESTS = Path(__file__).parents[1]
#: tests that have to do with a GPU's copies, kernels and plans
SOME = (
    "tests/device/test_runner.py::test_memory_of_a_lost_run_does_not_count",
    "tests/generation/test_view.py",
    "tests/session/test_decode.py::test_a_loop_in_a_fixed_buffer_has_few_plans[input-1-0]",
    "tests/session/test_growing.py::test_new_rows_alone_are_written",
    "tests/session/test_in_place.py::test_a_decoder_writes_its_new_rows_alone",
    "tests/session/test_sized_results.py::test_sizes_of_1_are_served_by_a_plan_of_other_sizes[pieces of an axis]",
)
WIDE = sorted(str(file) for file in TESTS.rglob("test_*.py") if "mark.wide" in file.read_text("utf-8"))


def test_a_device_is_taken_for_a_discrete_gpu(vulkan: DeviceInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    take_for_discrete(monkeypatch.setattr)
    x, b = np.arange(-3, 3, dtype=np.float32).reshape(2, 3), np.ones(3, np.float32)
    with (
        SharedGpuContext.create({"gpu_shared_context_token": "discrete"}, device=vulkan) as context,
        InferenceSession(ADD_RELU, context=context) as session,
        session.device_tensor(x) as tensor,
    ):
        assert context.capabilities.device_type == "discrete" and tensor.block.mapped is None
        for given in (x, tensor):
            np.testing.assert_array_equal(session.run(None, {"x": given, "b": b})[0], np.maximum(x + b, 0))


@pytest.mark.timeout(3600)  # many compilations: only for what hangs
@pytest.mark.parametrize("arguments", [("--discrete", *SOME), ("-m", "wide", *WIDE)], ids=["discrete", "wide"])
def test_some_tests_as_on_a_gpu(vulkan: DeviceInfo, arguments: tuple[str, ...]) -> None:
    if "llvmpipe" not in vulkan.name:
        pytest.skip("subgroups of another width are lavapipe's; on this device the tests run as they are")
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *arguments]
    wide = os.environ | {"LP_NATIVE_VECTOR_WIDTH": "256"}
    done = subprocess.run(command, cwd=TESTS.parent, env=wide, capture_output=True, text=True, timeout=3000)
    assert done.returncode == 0 and "subgroups of 4" not in done.stdout, done.stdout + done.stderr
