"""Which delegate gets which node, and why. Slow: exports with torch."""

from __future__ import annotations

from typing import Any

import pytest


def placed(report: Any, target: str) -> Any:
    return next(node for node in report.nodes if node.target == target)


def test_vgf_first_gives_vulkan_what_vgf_declines(exporting: Any) -> None:
    report = exporting.partition(*exporting.rfc(), prefer="vgf_first")
    assert [part.delegate for part in report.partitions] == ["vgf", "vulkan", "vgf"]
    assert report.counts == {"vgf": 7, "vulkan": 3}
    island = [node for node in report.nodes if node.where == "vulkan"]
    assert {node.target for node in island} == {"aten.index_select.default", "aten.gather.default"}
    assert all("int64" in node.declined["vgf"] for node in island if "index_select" in node.target)
    assert all(not node.declined for node in report.nodes if node.where == "vgf")


def test_vulkan_first_gives_vgf_what_vulkan_declines(exporting: Any) -> None:
    report = exporting.partition(*exporting.rfc(), prefer="vulkan_first")
    assert exporting.kinds(report) == {"vulkan": 2, "vgf": 1}
    assert report.counts == {"vulkan": 9, "vgf": 1}
    assert placed(report, "aten.reciprocal.default").declined == {"vulkan": "no operator implementation"}


def test_auto_keeps_vgf_for_what_pays(exporting: Any) -> None:
    """Pooling goes to VGF first, but a pool of 0.00 MFLOP does not pay for the crossing; reciprocal has no other place."""
    report = exporting.partition(*exporting.rfc(), prefer="auto")
    pool = placed(report, "aten.avg_pool2d.default")
    assert pool.where == "vulkan" and "too few to pay" in pool.declined["vgf"]
    assert placed(report, "aten.reciprocal.default").where == "vgf"
    assert exporting.kinds(report) == {"vulkan": 1, "vgf": 1}


@pytest.mark.parametrize(
    ("channels", "data_graphs", "expected"),
    [(64, "driver", "vgf"), (4, "driver", "vulkan"), (64, "emulation layers", "vulkan")],
)
def test_auto_gives_heavy_convolutions_to_data_graphs_of_the_driver(
    exporting: Any, channels: int, data_graphs: str, expected: str
) -> None:
    import torch

    x = torch.randn(1, channels, 32, 32)
    report = exporting.partition(exporting.Convolution(channels), (x,), data_graphs, prefer="auto")
    assert report.counts == {expected: 2}  # the activation follows


def test_partitions_that_are_too_small_go_to_the_other_delegate(exporting: Any) -> None:
    """Transpose and pooling (2 nodes) are too few for a VGF partition of their own, and join the Vulkan island."""
    report = exporting.partition(*exporting.rfc(), prefer="vgf_first", min_partition_size=3)
    assert [part.delegate for part in report.partitions] == ["vulkan", "vgf"]
    pool = placed(report, "aten.avg_pool2d.default")
    assert pool.where == "vulkan"
    assert pool.declined == {"vgf": "its partition has 2 nodes, fewer than min_partition_size=3"}
    assert report.partitions[0].nodes == 5


def test_partitions_too_small_for_both_are_portable(exporting: Any) -> None:
    report = exporting.partition(*exporting.rfc(), prefer="vulkan_first", min_partition_size=3)
    reciprocal = placed(report, "aten.reciprocal.default")
    assert reciprocal.where == "portable" and reciprocal.partition == -1
    assert set(reciprocal.declined) == {"vulkan", "vgf"}
    assert "fewer than min_partition_size=3" in reciprocal.declined["vgf"]
    assert all(part.nodes >= 3 for part in report.partitions)


@pytest.mark.parametrize("size", [1, 4, 100])
def test_no_partition_is_smaller_than_asked(exporting: Any, size: int) -> None:
    for prefer in ("auto", "vgf_first", "vulkan_first"):
        report = exporting.partition(*exporting.rfc(), prefer=prefer, min_partition_size=size)
        assert all(part.nodes >= size for part in report.partitions)
        assert sum(report.counts.values()) == 10
        if size == 100:
            assert report.counts == {"portable": 10} and all(len(n.declined) == 2 for n in report.nodes)


@pytest.mark.parametrize("prefer", ["auto", "vgf_first", "vulkan_first"])
def test_delegates_never_wait_for_each_other(exporting: Any, prefer: str) -> None:
    """Each partitioner would put its two nodes into one partition, and these two would be a cycle."""
    import torch

    inputs = (torch.rand(3) + 1, torch.rand(3) + 1)
    program, report = exporting.lower(exporting.Crossing(), inputs, prefer=prefer)
    assert report.counts == {"vgf": 2, "vulkan": 2}
    assert len(report.partitions) == 3  # one of the two is split, the other stays whole
    assert len(exporting.delegates(program)) == 3


def test_an_operator_that_both_decline_is_portable(exporting: Any) -> None:
    import torch

    report = exporting.partition(exporting.TopOfAll(), (torch.randn(2, 5),), prefer="vgf_first")
    top = placed(report, "aten.topk.default")
    assert top.where == "portable" and set(top.declined) == {"vgf", "vulkan"}
    assert placed(report, "aten.mul.Tensor").where != "portable"


@pytest.mark.parametrize("prefer", ["vgf_first", "vulkan_first"])
def test_a_result_is_picked_where_it_is_made(exporting: Any, prefer: str) -> None:
    import torch

    report = exporting.partition(exporting.Pooled(), (torch.randn(1, 2, 8, 8),), prefer=prefer)
    assert report.counts == {prefer.removesuffix("_first"): len(report.nodes)}
    assert len(report.partitions) == 1


def test_a_small_partition_stays_where_no_other_has_a_kernel(exporting: Any) -> None:
    """A linear layer kept whole has no portable kernel: pruning it would leave a program that cannot be loaded."""
    import torch

    program, report = exporting.lower(
        torch.nn.Linear(4, 3), (torch.randn(2, 4),), prefer="vgf_first", min_partition_size=3
    )
    assert placed(report, "aten.linear.default").where != "portable"
    assert "kept although small" in report.partitions[0].note
    assert not program.execution_plan[0].operators


def test_every_method_has_its_report(exporting: Any) -> None:
    import torch
    from executorch.exir import to_edge_transform_and_lower

    from vkep.executorch.export import UnifiedGpuPartitioner

    partitioner = UnifiedGpuPartitioner(exporting.spec(prefer="vgf_first"))
    with pytest.raises(RuntimeError, match="nothing was partitioned yet"):
        _ = partitioner.report
    net, inputs = exporting.rfc()
    exported = {
        "forward": torch.export.export(net.eval(), inputs),
        "pooled": torch.export.export(exporting.Pooled(), (torch.randn(1, 2, 8, 8),)),
    }
    manager = to_edge_transform_and_lower(exported, partitioner=[partitioner])
    assert [len(report.nodes) for report in partitioner.reports] == [10, len(partitioner.report.nodes)]
    assert manager.methods == {"forward", "pooled"}


def test_a_buffer_that_changes_stays_outside(exporting: Any) -> None:
    """Without alias_buffer_mutations a Vulkan delegate does not say which result is which buffer."""
    program, report = exporting.lower(*exporting.counter(), prefer="vulkan_first")
    assert report.counts == {"vulkan": 2}
    assert exporting.delegates(program) == ["VulkanBackend"]
    assert [op.name for op in program.execution_plan[0].operators] == ["aten::copy_"]


def test_a_buffer_that_changes_is_its_delegates_where_that_says_so(exporting: Any) -> None:
    options = {"alias_buffer_mutations": True}
    program, _ = exporting.lower(*exporting.counter(), prefer="vulkan_first", vulkan_compile_options=options)
    assert exporting.delegates(program) == ["VulkanBackend"]
    assert not program.execution_plan[0].operators


def test_arguments_are_checked(exporting: Any) -> None:
    from vkep.executorch.export import UnifiedGpuPartitioner

    with pytest.raises(TypeError, match="expected a UnifiedGpuCompileSpec"):
        UnifiedGpuPartitioner({"prefer": "auto"})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="expected one of driver, emulation layers"):
        UnifiedGpuPartitioner(exporting.spec(), data_graphs="none")
