"""One OrtValue bound to an input and to an output, through ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.calls import noted
from tests.ort.conftest import OpenSession
from tests.session.test_decode import KV_HEADS, LAYERS, SIZE, decoder, steps
from tests.session.test_in_place import GENERAL, W, X, model_of, rows_alone
from tools.ort_cpu import cpu_session
from vkep.plan.records import Plan
from vkep.session.planning import planner


@pytest.mark.parametrize("total", ["mask", "input"])
def test_a_decoder_keeps_its_caches(
    session: OpenSession, registered: Any, monkeypatch: pytest.MonkeyPatch, total: str
) -> None:
    planned: list[Plan] = noted(monkeypatch, planner, "PlanRunner", lambda delegate, plan, *_, **__: plan)
    model, room = decoder(total), 32
    theirs = cpu_session(model)
    names = [o.name for o in theirs.get_outputs()]
    past = [n.replace("n", "p") for n in names[1:]]
    kept = [np.zeros((1, KV_HEADS, room, SIZE), np.float32)] * (2 * LAYERS)
    opened = session(model.SerializeToString())
    caches = [registered.to_device(k) for k in kept]
    for feed in steps(5, 6, room):
        if total == "mask":
            feed["mask"] = np.ones((1, int(feed.pop("total")[0])), np.int64)
        binding = opened.io_binding()
        for name, value in feed.items():
            binding.bind_cpu_input(name, value)
        for source, name, cache in zip(past, names[1:], caches, strict=True):
            binding.bind_ortvalue_input(source, cache)
            binding.bind_ortvalue_output(name, cache)
        binding.bind_output("y", "cpu")
        opened.run_with_iobinding(binding)
        expected = theirs.run(None, feed | dict(zip(past, kept, strict=True)))
        kept = expected[1:]
        np.testing.assert_allclose(binding.copy_outputs_to_cpu()[-1], expected[0], rtol=1e-4, atol=1e-4)
    assert any(any(rows_alone(plan)) for plan in planned)
    for ours, cache in zip(caches, kept, strict=True):
        np.testing.assert_allclose(ours.numpy()[:, :, :11], cache[:, :, :11], rtol=1e-4, atol=1e-4)


def test_a_cache_of_a_declared_shape_is_written_in_place(
    session: OpenSession, registered: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All shapes are static: the plan that is made ahead writes elsewhere, and a run may have another one."""
    planned: list[Plan] = noted(monkeypatch, planner, "PlanRunner", lambda delegate, plan, *_, **__: plan)
    rng, room = np.random.default_rng(4), 9
    node = helper.make_node("TensorScatter", ["past", "new", "at"], ["present"], axis=2)
    kinds = {"past": (2, 3, room, 4), "new": (2, 3, 1, 4)}
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in kinds.items()]
    infos.append(helper.make_tensor_value_info("at", TensorProto.INT64, [2]))
    result = helper.make_tensor_value_info("present", TensorProto.FLOAT, kinds["past"])
    graph = helper.make_graph([node], "cache", infos, [result])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=10)
    opened = session(model.SerializeToString())
    expected = rng.normal(0, 1, kinds["past"]).astype(np.float32)
    cache = registered.to_device(expected)
    for step in range(3):
        new, at = rng.normal(0, 1, kinds["new"]).astype(np.float32), np.array([step, 5 + step])
        binding = opened.io_binding()
        binding.bind_ortvalue_input("past", cache)
        binding.bind_cpu_input("new", new)
        binding.bind_cpu_input("at", at)
        binding.bind_ortvalue_output("present", cache)
        opened.run_with_iobinding(binding)
        for b, place in enumerate(at):
            expected[b, :, place] = new[b, :, 0]
        np.testing.assert_array_equal(cache.numpy(), expected)
    assert len(planned) == 2
    assert len(planned[1].dispatches) < len(planned[0].dispatches)  # without the copy of the past


@pytest.mark.parametrize("what", [name for name in GENERAL if name not in ("on the host", "itself", "given too")])
def test_every_model_takes_an_input_as_its_outputs_place(session: OpenSession, registered: Any, what: str) -> None:
    nodes, right = GENERAL[what]
    expected = right()
    opened = session(model_of(nodes, {"x": (6, 6), "w": (6, 6)}, list(expected)))
    for _ in range(2):
        x = registered.to_device(X)
        binding = opened.io_binding()
        binding.bind_ortvalue_input("x", x)
        binding.bind_cpu_input("w", W)
        for name in expected:
            binding.bind_ortvalue_output(name, x) if name == "y" else binding.bind_output(name, "cpu")
        opened.run_with_iobinding(binding)
        for name, result in zip(expected, binding.copy_outputs_to_cpu(), strict=True):
            np.testing.assert_allclose(result, expected[name], rtol=1e-4, atol=1e-4)
