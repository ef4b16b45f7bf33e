"""Graph capture and replay by annotation id."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import pytest

from tests.ort.conftest import OpenSession, graph

ADD = graph("g (float[n,3] x) => (float[n,3] y) { a = Add(x, x) y = Relu(a) }")
OnGpu = Callable[[np.ndarray[Any, Any]], Any]


class Bound:
    """A session's inputs and outputs bound for one annotation id."""

    def __init__(self, session: Any, on_gpu: OnGpu, x: np.ndarray[Any, Any], number: int) -> None:
        self.session, self.x = session, x
        self.source, self.target = on_gpu(x), on_gpu(np.zeros_like(x))
        self.binding = session.io_binding()
        self.binding.bind_ortvalue_input("x", self.source)
        self.binding.bind_ortvalue_output("y", self.target)
        self.options = onnxruntime.RunOptions()
        self.options.add_run_config_entry("gpu_graph_id", str(number))

    def run(self) -> np.ndarray[Any, Any]:
        self.session.run_with_iobinding(self.binding, self.options)
        return np.asarray(self.target.numpy())

    def feed(self, x: np.ndarray[Any, Any]) -> None:
        self.source.update_inplace(x)


@pytest.fixture
def computes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One entry for each fused node that ONNX Runtime's executor runs."""
    from vkep.ort.fused import FusedNode

    seen: list[str] = []
    original = FusedNode.Compute

    def spy(self: Any, *args: Any) -> None:
        seen.append(self.name)
        original(self, *args)

    monkeypatch.setattr(FusedNode, "Compute", spy)
    return seen


def test_captured_runs_are_replayed_with_what_the_buffers_then_hold(
    session: OpenSession, on_gpu: OnGpu, rng: np.random.Generator, computes: list[str]
) -> None:
    made = session(ADD, enable_graph_capture=1)
    runs = [Bound(made, on_gpu, rng.standard_normal((n, 3)).astype(np.float32), n) for n in (2, 5)]
    for bound in runs:
        np.testing.assert_array_equal(bound.run(), np.maximum(2 * bound.x, 0))
    assert len(computes) == 2
    for bound in reversed(runs):
        bound.feed(-bound.x)
        np.testing.assert_array_equal(bound.run(), np.maximum(-2 * bound.x, 0))
    assert len(computes) == 2, "a replay does not go through the executor"


def test_minus_one_is_neither_captured_nor_replayed(session: OpenSession, on_gpu: OnGpu, computes: list[str]) -> None:
    bound = Bound(session(ADD, enable_graph_capture=1), on_gpu, np.ones((2, 3), np.float32), -1)
    bound.run()
    bound.run()
    assert len(computes) == 2


def test_without_the_option_nothing_is_captured(session: OpenSession, on_gpu: OnGpu, computes: list[str]) -> None:
    bound = Bound(session(ADD), on_gpu, np.ones((2, 3), np.float32), 1)
    bound.run()
    bound.run()
    assert len(computes) == 2


def test_a_released_graph_is_captured_again(session: OpenSession, on_gpu: OnGpu, computes: list[str]) -> None:
    made = session(ADD, enable_graph_capture=1)
    bound = Bound(made, on_gpu, np.ones((2, 3), np.float32), 4)
    bound.run()
    made.release_captured_graph(4)
    bound.run()
    bound.run()
    assert len(computes) == 2


def test_a_replay_over_freed_memory_is_an_error(session: OpenSession) -> None:
    made = session(ADD, enable_graph_capture=1)
    x = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(made.run(None, {"x": x})[0], 2 * x)  # from and to host memory, by temporary tensors
    with pytest.raises(Exception, match="whose memory has been freed since; bind all inputs and outputs"):
        made.run(None, {"x": 3 * x})


def test_a_run_with_host_memory_cannot_be_captured(session: OpenSession) -> None:
    made = session(ADD, enable_graph_capture=1, io="host")
    with pytest.raises(Exception, match=r"graph capture: \['x', 'y'\] of .* are not in device memory"):
        made.run(None, {"x": np.ones((2, 3), np.float32)})


def test_a_graph_id_that_is_no_number(session: OpenSession) -> None:
    options = onnxruntime.RunOptions()
    options.add_run_config_entry("gpu_graph_id", "first")
    with pytest.raises(Exception, match=r"gpu_graph_id|stoi|parse|Failed"):
        session(ADD, enable_graph_capture=1).run(None, {"x": np.ones((2, 3), np.float32)}, options)
