"""Options for graph capture: every run computes from and into what is bound to that run, whatever its graph id."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import pytest

from tests.ort.conftest import OpenSession, graph

ADD = graph("g (float[n,3] x) => (float[n,3] y) { a = Add(x, x) y = Relu(a) }")
OnGpu = Callable[[np.ndarray[Any, Any]], Any]
#: where the input and the output of a run are
SIDES = ["device", "cpu", "feeds"]


def run_once(session: Any, on_gpu: OnGpu, x: np.ndarray[Any, Any], side: str, number: int) -> np.ndarray[Any, Any]:
    options = onnxruntime.RunOptions()
    options.add_run_config_entry("gpu_graph_id", str(number))
    if side == "feeds":
        return np.asarray(session.run(None, {"x": x}, options)[0])
    binding = session.io_binding()
    if side == "cpu":
        binding.bind_cpu_input("x", x)
        binding.bind_output("y")
        session.run_with_iobinding(binding, options)
        return np.asarray(binding.copy_outputs_to_cpu()[0])
    target = on_gpu(np.full_like(x, 7))
    binding.bind_ortvalue_input("x", on_gpu(x))
    binding.bind_ortvalue_output("y", target)
    session.run_with_iobinding(binding, options)
    return np.asarray(target.numpy())


@pytest.mark.parametrize("first", SIDES)
@pytest.mark.parametrize("then", SIDES)
def test_each_run_uses_its_own_binding(
    session: OpenSession, on_gpu: OnGpu, rng: np.random.Generator, first: str, then: str
) -> None:
    opened = session(ADD, enable_graph_capture=1)
    for number in (0, 4, -1):
        for side, rows in ((first, 2), (first, 2), (then, 2), (then, 5), (first, 2)):
            x = rng.standard_normal((rows, 3)).astype(np.float32)
            np.testing.assert_array_equal(run_once(opened, on_gpu, x, side, number), np.maximum(2 * x, 0))


def test_one_binding_reads_what_its_buffers_hold_then(session: OpenSession, on_gpu: OnGpu) -> None:
    x = np.ones((2, 3), np.float32)
    source, target = on_gpu(x), on_gpu(np.zeros_like(x))
    opened = session(ADD, enable_graph_capture=1)
    binding = opened.io_binding()
    binding.bind_ortvalue_input("x", source)
    binding.bind_ortvalue_output("y", target)
    for factor in (1, 3, -2):
        source.update_inplace(factor * x)
        opened.run_with_iobinding(binding)
        np.testing.assert_array_equal(target.numpy(), np.maximum(2 * factor * x, 0))


def test_by_the_name_of_the_cuda_option(session: OpenSession) -> None:
    x = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(session(ADD, enable_cuda_graph=1).run(None, {"x": x})[0], 2 * x)
