"""The unified compile spec, without torch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.processes import python
from vkep.executorch.export import ExportReport, NodePlacement, PartitionReport, UnifiedGpuCompileSpec

#: stands for a VgfCompileSpec, which only torch's side can make
VGF = SimpleNamespace(tosa_spec="TOSA-1.0+FP")


def printed(code: str) -> str:
    done = python(code)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_defaults_are_the_rfcs() -> None:
    spec = UnifiedGpuCompileSpec(vgf=VGF)
    assert (spec.vulkan_compile_options, spec.shared_context_token, spec.shared_context_mode) == (
        None,
        "default",
        "lookup_or_create",
    )
    assert (spec.shared_sync_mode, spec.shared_group_id, spec.min_partition_size, spec.prefer) == (
        "timeline",
        0,
        3,
        "auto",
    )
    assert spec.extra_shared_compile_specs == ()
    shared = spec.shared()
    assert (shared.key, str(shared.mode), shared.min_partition_size) == (("default", 0), "lookup_or_create", 3)


def test_the_fields_come_back_from_the_shared_specs() -> None:
    spec = UnifiedGpuCompileSpec(
        vgf=VGF,
        shared_context_token="scene0",
        shared_context_mode="lookup_only",
        shared_sync_mode="queue_wait_idle",
        shared_group_id=2,
        min_partition_size=5,
        prefer="vgf_first",
        extra_shared_compile_specs=(("mine", b"1"), SimpleNamespace(key="other", value=b"2")),
    )
    shared = spec.shared()
    assert shared.key == ("scene0", 2)
    assert [str(v) for v in (shared.mode, shared.sync_mode, shared.prefer)] == [
        "lookup_only",
        "queue_wait_idle",
        "vgf_first",
    ]
    assert shared.min_partition_size == 5


@pytest.mark.parametrize(
    ("fields", "error", "text"),
    [
        ({"prefer": "vgf"}, ValueError, "gpu_shared_prefer.*allowed: auto, vgf_first, vulkan_first"),
        ({"shared_context_mode": "create"}, ValueError, "gpu_shared_context_mode"),
        ({"shared_sync_mode": "fence"}, ValueError, "gpu_shared_sync_mode"),
        ({"shared_group_id": -1}, ValueError, "gpu_shared_group_id"),
        ({"min_partition_size": 1.5}, TypeError, "gpu_shared_min_partition_size"),
        ({"shared_context_token": ""}, ValueError, "gpu_shared_context_token"),
        ({"extra_shared_compile_specs": ("x",)}, TypeError, "expected a CompileSpec or a"),
        ({"extra_shared_compile_specs": (("gpu_shared_group_id", b"4"),)}, ValueError, "given twice"),
        ({"extra_shared_compile_specs": (("gpu_shared_colour", b"4"),)}, ValueError, "unknown key"),
        ({"vulkan_compile_options": [1]}, TypeError, "expected a dict of VulkanPartitioner's options"),
        ({"vgf": None}, TypeError, "expected a VgfCompileSpec"),
    ],
)
def test_a_value_that_is_not_allowed_is_refused(fields: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        UnifiedGpuCompileSpec(**{"vgf": VGF, **fields})


def test_the_package_brings_in_no_torch() -> None:
    code = (
        "import sys, vkep.executorch.export as e\n"
        "print([n for n in ('torch', 'executorch') if n in sys.modules], e.UnifiedGpuCompileSpec.__name__)"
    )
    assert printed(code) == "[] UnifiedGpuCompileSpec\n"


def test_the_partitioner_names_packages_to_install() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import vkep.executorch.export as e\n"
        "try:\n    e.UnifiedGpuPartitioner\nexcept ModuleNotFoundError as error:\n    print(error)"
    )
    assert "'torch': pip install 'vkep[executorch]'" in printed(code)


def test_a_name_that_is_not_there() -> None:
    import vkep.executorch.export as export

    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = export.Nothing


def test_the_report_prints_who_took_what_and_why() -> None:
    report = ExportReport(
        "vgf_first",
        2,
        "driver",
        (
            NodePlacement("a", "aten.sin.default", "vgf", 0),
            NodePlacement("b", "aten.gather.default", "vulkan", 1, {"vgf": "its index is int64"}),
            NodePlacement("c", "aten.topk.default", "portable", -1, {"vgf": "no", "vulkan": "nor I"}),
        ),
        (PartitionReport("vgf", 1, 8), PartitionReport("vulkan", 1, 2_000_000, "kept")),
    )
    assert report.counts == {"vgf": 1, "vulkan": 1, "portable": 1}
    text = str(report)
    assert "nodes: 1 vulkan, 1 vgf, 1 portable" in text
    assert "partition 1: vulkan, 1 nodes, 2.00 MFLOP (kept)" in text
    assert "vulkan: aten.gather.default 'b'; declined by vgf: its index is int64" in text
    assert "portable: aten.topk.default 'c'; declined by vulkan: nor I" in text
    assert '"where": "portable"' in report.to_json()
