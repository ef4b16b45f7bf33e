"""What the exported program holds: both delegates, and the shared compile specs. Slow: exports with torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpu_shared.compile_spec import parse_shared_gpu_compile_spec

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("prefer", "expected"),
    [
        ("vgf_first", ["VgfBackend", "VulkanBackend", "VgfBackend"]),
        ("vulkan_first", ["VulkanBackend", "VgfBackend", "VulkanBackend"]),
        ("auto", ["VulkanBackend", "VgfBackend"]),
    ],
)
def test_both_delegates_are_in_the_program_and_no_kernel_between(
    exporting: Any, prefer: str, expected: list[str]
) -> None:
    program, report = exporting.lower(*exporting.rfc(), prefer=prefer)
    assert sorted(exporting.delegates(program)) == sorted(expected)
    assert not program.execution_plan[0].operators
    assert "portable" not in report.counts


def test_the_shared_specs_reach_every_delegate(exporting: Any) -> None:
    spec = {
        "shared_context_token": "scene0",
        "shared_context_mode": "create_only",
        "shared_sync_mode": "queue_wait_idle",
        "shared_group_id": 7,
        "prefer": "vgf_first",
        "extra_shared_compile_specs": (("studio", b"north"),),
    }
    program, _ = exporting.lower(*exporting.rfc(), **spec)
    for delegate in program.execution_plan[0].delegates:
        shared = parse_shared_gpu_compile_spec(delegate.compile_specs)
        assert shared == exporting.spec(**spec).shared()
        assert shared.key == ("scene0", 7)
        assert [bytes(s.value) for s in delegate.compile_specs if s.key == "studio"] == [b"north"]
    own = {delegate.id: {s.key for s in delegate.compile_specs} for delegate in program.execution_plan[0].delegates}
    assert {"tosa_spec", "output_format"} <= own["VgfBackend"]  # the delegate's own are there beside


def test_the_options_of_vulkan_reach_it(exporting: Any) -> None:
    options = {"force_fp16": True}
    program, _ = exporting.lower(*exporting.rfc(), prefer="vulkan_first", vulkan_compile_options=options)
    for delegate in program.execution_plan[0].delegates:
        assert ("force_fp16" in {s.key for s in delegate.compile_specs}) == (delegate.id == "VulkanBackend")


@pytest.mark.parametrize("prefer", ["auto", "vulkan_first"])
def test_a_size_that_may_change_still_may_in_the_program(exporting: Any, prefer: str) -> None:
    """Weighing partitions must not fix the sizes that it weighs."""
    dynamic, upper = 1, [8, 10]  # the number of a bounded shape in the schema
    program, report = exporting.lower(*exporting.batched(), dynamic=exporting.batch(), prefer=prefer)
    assert exporting.delegates(program) == ["VulkanBackend"]
    plan = program.execution_plan[0]
    output = plan.values[plan.outputs[0]].val
    assert (int(output.shape_dynamism), list(output.sizes)) == (dynamic, upper)
    assert [part.flops for part in report.partitions] == [2 * 4 * (24 * 32 + 32 * 10) + 4 * 32 + 24 * 32 + 32 * 10]


def test_the_rfcs_example(exporting: Any, tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples" / "export_unified_vgf_vulkan_e2e.py")]
    command += ["--out_dir", str(tmp_path / "out"), "--token", "t", "--group_id", "9", "--prefer", "vgf_first"]
    command += ["--min_partition_size", "1", "--sync_mode", "none"]
    result = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "registry")])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "delegates: VgfBackend -> VulkanBackend -> VgfBackend" in result.stdout
    x = np.fromfile(tmp_path / "out" / "input0.bin", np.float32)
    expected = np.fromfile(tmp_path / "out" / "expected0.bin", np.float32)
    net, inputs = exporting.rfc()
    np.testing.assert_array_equal(x, inputs[0].numpy().ravel())
    np.testing.assert_allclose(expected, net(*inputs).numpy().ravel(), rtol=1e-6)
    program = exporting.deserialize_pte_binary((tmp_path / "out" / "unified_vgf_vulkan.pte").read_bytes()).program
    assert len(program.execution_plan[0].delegates) == 3
    for delegate in program.execution_plan[0].delegates:
        shared = parse_shared_gpu_compile_spec(delegate.compile_specs)
        assert (shared.key, str(shared.sync_mode)) == (("t", 9), "none")


def test_the_example_names_missing_packages(tmp_path: Path) -> None:
    """Where torch is missing (as in a plain install), one line and no traceback."""
    script = ROOT / "examples" / "export_unified_vgf_vulkan_e2e.py"
    code = (
        "import sys, runpy; sys.modules['torch'] = None; sys.argv = ['x']; "
        f"runpy.run_path({str(script)!r}, run_name='__main__')"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False
    )
    assert result.returncode == 1
    assert result.stderr == "this example needs torch: pip install 'vkep[executorch]'\n"
