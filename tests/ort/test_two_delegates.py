"""The VGF delegate inside ONNX Runtime sessions: fused nodes that are VGF and Vulkan in turn, on a shared device."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from examples import mixed_delegates as example
from tests.mixed.harness import X
from tests.ort.conftest import OpenSession, gpu_device, graph, where
from tests.vgf.harness import need_vgf
from vkep import InferenceSession

MODEL = example.build_model().SerializeToString()
ISLAND, GRAPH = "IslandExecutor", "VgfExecutor"


@pytest.fixture(autouse=True)
def _extra(monkeypatch: pytest.MonkeyPatch) -> None:
    need_vgf()
    monkeypatch.setenv("VKEP_VALIDATION", "0")  # the emulation layers themselves break rules that validation knows


Kinds = Callable[[], list[list[str]]]


@pytest.fixture
def kinds(registered: Any) -> Kinds:
    """The steps of each fused node made since the test began."""
    from vkep.ort.boundary import live

    gc.collect()
    before = live("OrtNodeComputeInfo")  # held: an identity is not given twice

    def made() -> list[list[str]]:
        mine = [node for node in live("OrtNodeComputeInfo") if node not in before]
        return [[type(s).__name__ for s in node.planned.latest.steps] for node in mine]

    return made


def check(session: Any) -> None:
    for scale in (1.0, 0.5, -0.3):
        x = X * np.float32(scale)
        assert np.abs(session.run(None, {"x": x})[0] - example.reference(x)).max() <= 1e-6


@pytest.mark.parametrize("io", ["device", "host"])
def test_the_rfc_example_beside_a_plain_session(session: OpenSession, kinds: Kinds, io: str) -> None:
    from vkep.ort.boundary import live

    made = session(MODEL, prefer="vgf_first", io=io)
    assert kinds() == [[GRAPH, ISLAND, GRAPH]]
    check(made)
    with InferenceSession(MODEL, prefer="vgf_first") as plain:
        assert plain.context is live("OrtEp")[-1].runtime.context
        np.testing.assert_array_equal(plain.run(None, {"x": X})[0], made.run(None, {"x": X})[0])


def test_vulkan_first_is_one_island(session: OpenSession, kinds: Kinds) -> None:
    made = session(MODEL, prefer="vulkan_first")
    assert kinds() == [[ISLAND]]
    check(made)


def test_bound_tensors_of_the_same_context_reach_the_graph(session: OpenSession, registered: Any) -> None:
    doubled = session(graph("g (float[1,3,8,8] x) => (float[1,3,8,8] z) { z = Add(x, x) }"), prefer="vgf_first")
    made = session(MODEL, prefer="vgf_first")
    first, second = doubled.io_binding(), made.io_binding()
    first.bind_cpu_input("x", X / 2)
    first._iobinding.bind_output("z", gpu_device(registered))
    for _ in range(3):
        doubled.run_with_iobinding(first)
        second.bind_ortvalue_input("x", first.get_outputs()[0])
        second._iobinding.bind_output("y", gpu_device(registered))
        made.run_with_iobinding(second)
        assert np.abs(second.get_outputs()[0].numpy() - example.reference(X)).max() <= 1e-6


@pytest.mark.parametrize(
    ("size", "steps", "on_cpu"),
    [
        (1, [[GRAPH, ISLAND, GRAPH]], set()),
        (2, [[GRAPH], [GRAPH]], {"Acosh"}),  # alone, and TOSA has it not: ONNX Runtime's CPU provider
        (3, [[ISLAND]], set()),  # two graphs of two are too small; their nodes make Vulkan's part larger
    ],
)
def test_small_partitions_go_to_the_other_delegate(
    session: OpenSession, kinds: Kinds, size: int, steps: Any, on_cpu: set[str]
) -> None:
    text = "g (float[4] x) => (float[4] y) { a = Exp(x) b = Exp(a) c = Acosh(b) d = Sin(c) y = Cos(d) }"
    made = session(graph(text), prefer="vgf_first", min_partition_size=size, all_on_vulkan=False)
    assert sorted(kinds()) == sorted(steps)
    assert set(where(made).get("CPUExecutionProvider", {})) == on_cpu
    x = np.linspace(0.1, 0.8, 4, dtype=np.float32)
    want = np.cos(np.sin(np.arccosh(np.exp(np.exp(x)))))
    np.testing.assert_allclose(made.run(None, {"x": x})[0], want, rtol=1e-4, atol=1e-5)


def test_nodes_that_the_converter_refuses_go_to_vulkan(
    session: OpenSession, kinds: Kinds, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vkep import vgf

    def refuse(_mlir: str) -> bytes:
        raise vgf.ConvertError("not today")

    monkeypatch.setattr(vgf, "mlir_to_vgf", refuse)
    made = session(MODEL, prefer="vgf_first")
    assert kinds() == [[ISLAND]]
    check(made)


def test_shapes_that_only_a_run_tells(session: OpenSession, kinds: Kinds) -> None:
    model = graph("g (float[n,4] x) => (float[n,4] y) { a = Exp(x) b = Acosh(a) c = Sin(a) y = Add(b, c) }", opset=17)
    made = session(model, prefer="vgf_first")
    for rows in (1, 5):
        x = np.abs(np.random.default_rng(rows).standard_normal((rows, 4))).astype(np.float32) + 0.5
        want = np.arccosh(np.exp(x)) + np.sin(np.exp(x))
        np.testing.assert_allclose(made.run(None, {"x": x})[0], want, rtol=1e-4, atol=1e-5)
        assert kinds() == [[GRAPH, ISLAND, GRAPH]]


def test_a_compiled_model_is_vulkan_only_and_says_so(
    registered: Any, session: OpenSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source, target = tmp_path / "model.onnx", tmp_path / "compiled.onnx"
    source.write_bytes(MODEL)
    options = onnxruntime.SessionOptions()
    for key, value in (("ep.context_enable", "1"), ("ep.context_file_path", str(target))):
        options.add_session_config_entry(key, value)
    with caplog.at_level(logging.WARNING, logger="vkep.ort"):
        onnxruntime.InferenceSession(
            str(source), options, providers=[(registered.EP_NAME, {"prefer": "vgf_first"})], enable_fallback=0
        )
    assert "a compiled model carries Vulkan plans only" in caplog.text
    check(session(str(target), prefer="vgf_first"))
