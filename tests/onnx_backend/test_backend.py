"""`vkep.backend`: ONNX's backend interface, also under ONNX's own runner."""

from __future__ import annotations

import unittest
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.backend.test.runner import Runner

import vkep.backend
from gpu_shared import DeviceInfo
from vkep.backend import VulkanBackend

pytestmark = pytest.mark.usefixtures("vulkan")


def _model() -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node("Add", ["a", "b"], ["sum"]), helper.make_node("Relu", ["sum"], ["y"])],
        "add",
        [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [2, "n"]) for n in "ab"],
        [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, None) for n in ("y", "sum")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


def test_prepare_runs_more_than_once_and_names_outputs() -> None:
    prepared = vkep.backend.prepare(_model())
    try:
        for width in (3, 5):
            a, b = np.full((2, width), -2, np.float32), np.full((2, width), 1, np.float32)
            outputs: Any = prepared.run([a, b])  # a tuple that is also indexed by name
            np.testing.assert_array_equal(outputs["y"], np.zeros((2, width), np.float32))
            np.testing.assert_array_equal(outputs[1], a + b)
            again: Any = prepared.run({"b": b, "a": a})
            np.testing.assert_array_equal(again["sum"], a + b)
        assert prepared.report().all_on_vulkan
    finally:
        prepared.close()


def test_wrong_number_of_inputs() -> None:
    prepared = vkep.backend.prepare(_model())
    try:
        with pytest.raises(ValueError, match=r"got 1 inputs, the model takes 2: \['a', 'b'\]"):
            prepared.run([np.zeros((2, 2), np.float32)])
        with pytest.raises(AttributeError, match="RunOptions has no 'fast'"):
            prepared.run([np.zeros((2, 2), np.float32)] * 2, fast=True)
    finally:
        prepared.close()


def test_run_node() -> None:
    x = np.array([[-1.5, 0, 2.5]], np.float32)
    (y,) = vkep.backend.run_node(helper.make_node("LeakyRelu", ["x"], ["y"], alpha=0.5), [x])
    np.testing.assert_array_equal(y, np.where(x < 0, x * 0.5, x))


def test_run_node_of_an_old_version_with_an_absent_input() -> None:
    x = np.array([-3, 0.5, 7], np.float32)
    node = helper.make_node("Clip", ["x", "", "high"], ["y"])
    (y,) = vkep.backend.run_node(node, [x, np.float32(1)], opset_version=11)
    np.testing.assert_array_equal(y, np.minimum(x, 1))
    (old,) = vkep.backend.run_node(helper.make_node("Clip", ["x"], ["y"], min=0.0), [x], opset_version=6)
    np.testing.assert_array_equal(old, np.maximum(x, 0))
    with pytest.raises(ValueError, match="Clip: got 1 inputs, the node takes 2"):
        vkep.backend.run_node(node, [x])


def test_run_model() -> None:
    a = np.arange(4, dtype=np.float32).reshape(2, 2)
    y, total = vkep.backend.run_model(_model(), [a, -a])
    np.testing.assert_array_equal(y, np.zeros((2, 2), np.float32))
    np.testing.assert_array_equal(total, np.zeros((2, 2), np.float32))


def test_devices(vulkan: DeviceInfo) -> None:
    assert vkep.backend.supports_device("CPU")  # the interface takes this where no device is named
    assert vkep.backend.supports_device("VULKAN")
    assert vkep.backend.supports_device(f"VULKAN:{vulkan.index}")
    assert not vkep.backend.supports_device("VULKAN:999")
    assert not vkep.backend.supports_device("CUDA")
    assert not vkep.backend.supports_device("VULKAN:first")
    with pytest.raises(ValueError, match="device is 'CUDA', expected 'VULKAN'"):
        vkep.backend.prepare(_model(), "CUDA")
    vkep.backend.prepare(_model(), f"VULKAN:{vulkan.index}").close()


def test_onnx_own_runner() -> None:
    """The interface fits the runner that other backends use."""
    runner = Runner(VulkanBackend, __name__)
    cases = runner.include(r"^test_(add|softmax_axis_0|resize_upsample_scales_nearest)_cpu$").test_cases
    suite = unittest.TestSuite(unittest.defaultTestLoader.loadTestsFromTestCase(cases["OnnxBackendNodeModelTest"]))
    result = unittest.TestResult()
    suite.run(result)
    assert [text for _, text in result.errors + result.failures] == []
    assert result.testsRun - len(result.skipped) == 3
