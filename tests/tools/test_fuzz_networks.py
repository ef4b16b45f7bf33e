"""Random networks: a short campaign, and that one finds wrong results."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from onnx import helper, numpy_helper

from gpu_shared import SharedGpuContext
from tests.nightly import nightly
from tools.fuzz.networks import compare, steps
from tools.fuzz.networks.compare import difference, first_wrong, judge, with_outputs
from tools.fuzz.networks.graph import Network
from tools.fuzz.networks.meanings import evaluate
from tools.fuzz.networks.strategy import alone, networks
from tools.fuzz.worker import OnnxRuntime

pytest.importorskip("onnxruntime")

KINDS = [("float32", False), ("float16", True), ("mixed", False), ("float32", True)]
#: the same networks in each run
ALIKE: dict[str, Any] = {
    "derandomize": True, "database": None, "deadline": None, "phases": [Phase.generate],
    "suppress_health_check": list(HealthCheck),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "symbolic"), KINDS)
def test_a_short_campaign_finds_nothing(kind: str, symbolic: bool, shared_context: SharedGpuContext) -> None:
    """A short form of ``python -m tools.fuzz.networks``."""

    @settings(max_examples=6 if nightly() else 3, **ALIKE)
    @given(networks(kind, symbolic))
    def check(network: Network) -> None:
        assume(network.size > 4)
        verdict = judge(network, shared_context)
        assert (verdict.kind, verdict.text, verdict.declined) == ("right", "", ""), network

    check()


@pytest.mark.parametrize(("kind", "symbolic"), KINDS)
def test_float64_agrees_with_onnx_runtime(kind: str, symbolic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The evaluator's own operators mean what ONNX Runtime's do. Its norms of few elements have errors of up to 20 roundings."""
    monkeypatch.setattr(compare, "_FACTOR", 8 * compare._FACTOR)

    @settings(max_examples=60 if nightly() else 20, **ALIKE)
    @given(networks(kind, symbolic))
    def check(network: Network) -> None:
        every = with_outputs(network, [n for node in network.model.graph.node for n in node.output])
        session = OnnxRuntime(every.model)
        for run, feeds in enumerate(every.feeds):
            answer = session.run(feeds)
            assert answer.kind == "result", answer.text
            assert difference(every, run, answer.outputs, None) == ""

    check()


@pytest.mark.parametrize("kind", ["float32", "float16"])
@pytest.mark.parametrize(
    "step",
    [steps.conv, steps.conv_transpose, steps.pool, steps.channel_norm, steps.last_norm, steps.resize],
    ids=lambda step: step.__name__,
)
def test_operators_of_one_kind(step: steps.Step, kind: str, shared_context: SharedGpuContext) -> None:
    @settings(max_examples=10 if nightly() else 4, **ALIKE)
    @given(alone(step, kind))
    def check(network: Network) -> None:
        verdict = judge(network, shared_context)
        assert (verdict.kind, verdict.text, verdict.declined) == ("right", "", ""), network

    check()


def _network(*nodes: onnx.NodeProto, weights: dict[str, np.ndarray[Any, Any]], **types: str) -> Network:
    x = np.random.default_rng(0).standard_normal((1, 4, 6, 6)).astype(np.float32)
    graph = helper.make_graph(
        nodes, "network",
        [helper.make_tensor_value_info("x", 1, x.shape)],
        [helper.make_tensor_value_info("y", 1, None)],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    names = [name for node in nodes for name in (*node.input, *node.output)]
    return Network(model, ({"x": x},), dict.fromkeys(names, "float32") | types)


def test_a_wrong_value_is_found_and_rounding_is_not(shared_context: SharedGpuContext) -> None:
    """One element that is off by a thousandth is wrong; half a unit in the last place is not."""
    w = np.random.default_rng(1).standard_normal((3, 4, 3, 3)).astype(np.float32)
    nodes = [helper.make_node("Conv", ["x", "w"], ["t"]), helper.make_node("Sigmoid", ["t"], ["y"])]
    network = _network(*nodes, weights={"w": w})
    right = evaluate(network.model, network.feeds[0])["y"].astype(np.float32)
    assert difference(network, 0, [right], [right]) == ""
    assert difference(network, 0, [np.nextafter(right, np.float32(2))], None) == ""
    for place in ((0, 0, 0, 0), (0, 2, 3, 3)):
        wrong = right.copy()
        wrong[place] += 1e-3
        assert difference(network, 0, [wrong], [right]).startswith(
            f"y (of Sigmoid): 1 of 48 elements; at {list(place)}"
        )
    assert "shape" in difference(network, 0, [right[:, :2]], [right])
    assert "float16" in difference(network, 0, [right.astype(np.float16)], [right])
    assert judge(network, shared_context).kind == "right"


def test_the_first_wrong_node_is_named(shared_context: SharedGpuContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine whose Sigmoid is wrong: the nodes before it are right, and what reads it is not named."""
    from vkep import InferenceSession

    nodes = [
        helper.make_node(o, [i], [r]) for o, i, r in (("Relu", "x", "a"), ("Sigmoid", "a", "b"), ("Neg", "b", "y"))
    ]
    network = _network(*nodes, weights={})
    run = InferenceSession.run

    def wrong(self: Any, names: Any, feeds: Any, *rest: Any) -> Any:
        results = run(self, names, feeds, *rest)
        named = zip((output.name for output in self.get_outputs()), results, strict=True)
        return [result * np.float32(1.01) if name in ("b", "y") else result for name, result in named]

    monkeypatch.setattr(InferenceSession, "run", wrong)
    assert judge(network, shared_context).kind == "wrong"
    assert "b (of Sigmoid)" in first_wrong(network, shared_context)


def test_a_refusal_of_both_is_no_failure(shared_context: SharedGpuContext) -> None:
    """A product of matrices that do not fit each other."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    network = _network(*nodes, weights={"w": np.zeros((5, 2), np.float32)})
    assert judge(network, shared_context).kind == "refused"
    assert not judge(network, shared_context).is_failure
    alone = replace(network, feeds=({"x": np.zeros((1, 4, 6, 7), np.float32)},))
    assert judge(alone, shared_context).kind == "refused"
