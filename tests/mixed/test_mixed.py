"""Mixed models on one device: partitions, preferences, shared values, sync modes, threads, ends of life."""

from __future__ import annotations

import gc
import itertools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gpu_shared
from examples import mixed_delegates as example
from gpu_shared import SharedGpuContextRegistry
from tests.mixed.harness import PREFERENCES, VGF_SPLIT, X, places
from tests.tosa.harness import model
from vkep import InferenceSession
from vkep.ir.program import IslandStep, VgfStep

# ---- the RFC's example


@pytest.mark.parametrize("sync_mode", ["timeline", "queue_wait_idle", "none"])
@pytest.mark.parametrize("prefer", PREFERENCES)
def test_the_example_under_every_preference_and_sync_mode(opened: Any, prefer: str, sync_mode: str) -> None:
    session = opened(prefer=prefer, sync_mode=sync_mode)
    if prefer == "vgf_first":
        assert places(session) == VGF_SPLIT
        kinds = [type(step) for step in session._parts.graph.latest.program.steps]
        assert kinds == [VgfStep, IslandStep, VgfStep]
    if prefer == "vulkan_first":
        assert places(session) == ["vulkan"] * 10
    for scale in (1.0, 0.5, -0.3):  # replays with new content
        (y,) = session.run(None, {"x": X * np.float32(scale)})
        assert np.abs(y - example.reference(X * np.float32(scale))).max() <= 1e-6


def test_partitions_are_the_same_each_time(opened: Any) -> None:
    reports = [opened(prefer="vgf_first").report().to_dict()["nodes"] for _ in range(3)]
    assert reports[0] == reports[1] == reports[2]


def test_the_report_says_who_declined_and_why(opened: Any) -> None:
    report = opened(prefer="vgf_first").report()
    (node,) = [n for n in report.nodes if n.where == "vulkan"]
    assert node.op_type == "GatherElements"
    assert node.declined == {"vgf": "TOSA gathers rows, and single elements only as rows of one: Vulkan is asked first"}
    assert "declined by vgf: TOSA gathers rows" in str(report)
    assert [g.nodes for g in report.graphs] == [3, 6]


def test_a_page_shows_the_regions_on_one_clock(opened: Any) -> None:
    document = opened(prefer="vgf_first").view({"x": X}, 1).document
    assert [n["where"] for n in document["nodes"]] == VGF_SPLIT
    [run] = document["runs"]
    spans = [(s["name"].split(":")[0], s["island"], s["dispatch"], s["region"]) for s in run["gpu"]]
    assert spans == [("vgf", -1, -1, 0), ("GatherElements_3", 0, 0, -1), ("vgf", -1, -1, 1)]
    assert all(a["end"] <= b["start"] for a, b in itertools.pairwise(run["gpu"]))
    assert run["start"] - run["uncertainty"] <= run["gpu"][0]["start"] <= run["end"] + run["uncertainty"]
    assert [(r["kind"], r["nodes"]) for r in document["regions"]] == [("vgf", [0, 1, 2]), ("vgf", [4, 5, 6, 7, 8, 9])]


# ---- the partitioner


@pytest.mark.parametrize(
    ("prefer", "size", "want"),
    [
        ("vgf_first", 1, VGF_SPLIT),
        ("vgf_first", 3, ["vgf"] * 10),  # the lone gather is offered to VGF
        (
            "vgf_first",
            4,
            ["vulkan"] * 4 + ["vgf"] * 6,
        ),  # the first three are offered to Vulkan, and make its part larger
        ("vgf_first", 7, ["vulkan"] * 10),
        ("vulkan_first", 10, ["vulkan"] * 10),
    ],
)
def test_small_partitions_go_to_the_other_delegate(opened: Any, prefer: str, size: int, want: list[str]) -> None:
    session = opened(prefer=prefer, min_partition_size=size)
    assert places(session) == want
    (y,) = session.run(None, {"x": X})
    assert np.abs(y - example.reference(X)).max() <= 1e-6


def test_a_small_partition_that_the_other_delegate_declines_goes_to_the_cpu(opened: Any) -> None:
    text = "g (float[2,3] x) => (float[2,3] y) { a = Exp(x) b = Exp(a) c = Acosh(b) d = Sin(c) y = Sin(d) }"
    session = opened(model(text), prefer="vgf_first", min_partition_size=2)
    assert places(session) == ["vgf", "vgf", "cpu", "vgf", "vgf"]
    x = np.random.default_rng(0).uniform(0, 0.5, (2, 3)).astype(np.float32)
    want = np.sin(np.sin(np.arccosh(np.exp(np.exp(x)))))
    np.testing.assert_allclose(session.run(None, {"x": x})[0], want, rtol=1e-4, atol=1e-5)


def test_a_pruned_node_says_so(opened: Any) -> None:
    nodes = opened(prefer="vgf_first", min_partition_size=4).report().nodes
    assert nodes[0].declined["vgf"] == "its partition has 3 nodes, fewer than min_partition_size=4"


def test_nodes_that_both_decline_go_to_the_cpu_with_both_reasons(opened: Any) -> None:
    session = opened(model("g (string[4] x) => (string[4] y) { y = StringConcat(x, x) }"), prefer="vgf_first")
    (node,) = session.report().nodes
    assert node.where == "cpu"
    assert "vgf: " in node.reason and "vulkan: " in node.reason


def test_islands_are_convex(opened: Any) -> None:
    """A branch that leaves VGF and comes back: what joins it cannot lie in the first graph."""
    text = """g (float[2,3] x) => (float[2,3] y) {
      a = Exp(x) b = Acosh(a) c = Sin(a) y = Add(b, c) }"""
    session = opened(model(text), prefer="vgf_first")
    assert places(session) == ["vgf", "vulkan", "vgf", "vgf"]
    x = np.abs(np.random.default_rng(0).standard_normal((2, 3))).astype(np.float32) + 0.5
    (y,) = session.run(None, {"x": x})
    np.testing.assert_allclose(y, np.arccosh(np.exp(x)) + np.sin(np.exp(x)), rtol=1e-4, atol=1e-5)


def test_auto_gives_quantized_regions_to_vgf(opened: Any) -> None:
    from tests.tosa.harness import expected, feeds_of
    from tests.tosa.test_results import qdq

    proto = qdq()
    session = opened(proto, prefer="auto")
    where = {n.op_type: n.where for n in session.report().nodes if n.where != "folded"}
    assert set(where.values()) == {"vgf"}, where
    feeds = feeds_of(proto)
    (y,), (want,) = session.run(None, feeds), expected(proto, feeds)
    assert np.abs(y - want).max() <= 2 * 0.06 + 1e-5


def test_dynamic_shapes(opened: Any) -> None:
    session = opened(
        model("g (float[n,3] x) => (float[n,3] y) { a = Exp(x) b = Acosh(a) y = Sin(b) }"), prefer="vgf_first"
    )
    for n in (1, 4, 2, 4):
        x = np.random.default_rng(n).uniform(0.5, 1, (n, 3)).astype(np.float32)
        (y,) = session.run(None, {"x": x})
        np.testing.assert_allclose(y, np.sin(np.arccosh(np.exp(x))), rtol=1e-4, atol=1e-5)


# ---- one device


def test_one_instance_and_one_device(vulkan: Any, no_leak: Callable[[], dict[str, int]]) -> None:
    options: dict[str, Any] = {"token": "mixed one device", "prefer": "vgf_first"}
    with (
        InferenceSession(example.build_model(), **options) as a,
        InferenceSession(example.build_model(), **options) as b,
    ):
        for session in (a, b):
            assert places(session) == VGF_SPLIT
            session.run(None, {"x": X})
        counts = no_leak()
        assert counts["instance"] == 1 and counts["device"] == 1
        a.close()
        (y,) = b.run(None, {"x": X})
        assert np.abs(y - example.reference(X)).max() <= 1e-6
    gc.collect()


def test_threads_share_a_context(opened: Any) -> None:
    sessions = [opened(prefer=p) for p in ("vgf_first", "vulkan_first")]
    errors: list[BaseException] = []

    def work(k: int) -> None:
        try:
            for i in range(6):
                x = X * np.float32((k * 6 + i + 1) / 30)
                (y,) = sessions[k % 2].run(None, {"x": x})
                assert np.abs(y - example.reference(x)).max() <= 1e-6
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_sessions_close_in_any_order(opened: Any, order: tuple[int, ...]) -> None:
    sessions = [opened(prefer=p) for p in PREFERENCES]
    for session in sessions:
        session.run(None, {"x": X})
    left = list(range(3))
    for k in order:
        sessions[k].close()
        left.remove(k)
        for other in left:
            (y,) = sessions[other].run(None, {"x": X})
            assert np.abs(y - example.reference(X)).max() <= 1e-6


def test_a_context_that_the_application_registered_serves_both(graph_context: Any) -> None:
    registry = SharedGpuContextRegistry.get()
    spec = gpu_shared.parse_shared_gpu_compile_spec(
        gpu_shared.make_shared_gpu_compile_specs(token="vgf tests", mode="lookup_only")
    )
    registry.register_context(spec, graph_context)
    try:
        with InferenceSession(
            example.build_model(), token="vgf tests", context_mode="lookup_only", prefer="vgf_first"
        ) as session:
            assert session.context is graph_context
            assert places(session) == VGF_SPLIT
            (y,) = session.run(None, {"x": X})
            assert np.abs(y - example.reference(X)).max() <= 1e-6
    finally:
        registry.unregister_context(spec)


def test_a_context_without_data_graphs_runs_all_on_vulkan_and_says_why(shared_context: Any) -> None:
    if "VK_ARM_data_graph" in shared_context.enabled_extensions:
        pytest.skip("this driver's own contexts run data graphs")
    with InferenceSession(example.build_model(), context=shared_context, prefer="vgf_first") as session:
        report = session.report()
        assert {n.where for n in report.nodes} == {"vulkan"}
        assert "VK_ARM_data_graph" in report.why_no_graphs


# ---- failures


@pytest.mark.usefixtures("collected")
def test_a_graph_that_the_driver_refuses_goes_to_vulkan(opened: Any, graph_context: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(graph_context.device.fn, "vkCreateDataGraphPipelinesARM", lambda *a: -3)
    before = gpu_shared.live_counts()
    session = opened(model("g (float[3,5] x) => (float[3,5] y) { a = Exp(x) y = Sin(a) }"), prefer="vgf_first")
    nodes = session.report().nodes
    assert [n.where for n in nodes] == ["vulkan", "vulkan"]
    assert "its partition was refused" in nodes[0].declined["vgf"]
    x = np.ones((3, 5), np.float32)
    np.testing.assert_allclose(session.run(None, {"x": x})[0], np.sin(np.exp(x)), rtol=1e-5)
    session.close()
    after = gpu_shared.live_counts()
    for kind in ("data_graph_pipeline", "shader_module", "descriptor_set_layout"):
        assert after.get(kind, 0) <= before.get(kind, 0), kind


def test_without_the_converter_vulkan_runs_and_the_report_says_why(opened: Any, monkeypatch: Any) -> None:
    from vkep.vgf import ConvertError, convert

    def missing() -> None:
        raise ConvertError("TOSA to VGF needs the package ai-ml-sdk-model-converter")

    monkeypatch.setattr(convert, "converter", missing)
    session = opened(prefer="vgf_first")
    assert places(session) == ["vulkan"] * 10
    assert "ai-ml-sdk-model-converter" in session.report().why_no_graphs


def test_bad_options() -> None:
    with pytest.raises(ValueError, match="prefer is 'vgf'"):
        InferenceSession(example.build_model(), prefer="vgf")
    with pytest.raises(ValueError, match="min_partition_size is 0"):
        InferenceSession(example.build_model(), min_partition_size=0)


def test_further_plans_once_the_context_is_closed(vulkan: object) -> None:
    """A new size is a new data graph, whose pipelines the context's users share."""
    proto = model("g (float[n,6] x) => (float[n,6] y) { s = Sin(x) a = Acosh(s) c = Abs(a) y = Exp(c) }")
    with InferenceSession(proto, prefer="vgf_first", token="closing graphs") as session:
        context = session.context
        context.close()
        for rows in (1, 4):
            session.run(None, {"x": np.full((rows, 6), np.pi / 2, np.float32)})
            assert {"vgf", "vulkan"} <= set(places(session))
    assert context.closed
