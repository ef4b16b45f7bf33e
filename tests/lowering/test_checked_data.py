"""Nodes whose data Vulkan's kernels check are not in data graphs, which check nothing. No GPU is used."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from tests.tosa.harness import model
from tools.backend_suite.cases import load_cases
from tools.plan_devices import DEVICES
from vkep.errors import InvalidNode, VkepError
from vkep.graph import load_model
from vkep.ir.infer import Known
from vkep.ir.program import IslandStep, Program, VgfStep, declared_value
from vkep.placement.partition import lower
from vkep.placement.policy import Policy
from vkep.tosa import registry

CAPS = DEVICES["cpu"]
#: the operators of ONNX's node cases that data graphs run where their data are not checked
CHECKED = {"Div", "Gather", "GatherND", "Mod", "ScatterElements", "ScatterND"}


def lowered(proto: onnx.ModelProto, policy: Policy | None = None) -> Program:
    loaded = load_model(proto.SerializeToString())
    known: dict[str, Known] = dict(loaded.graph.weights)
    for info in loaded.graph.inputs:
        value = declared_value(info)
        assert value is not None
        known[info.name] = value
    outputs = [v.name for v in loaded.graph.outputs]
    return lower(loaded.graph.nodes, known, outputs, loaded.opsets, CAPS, policy)


def in_graphs(program: Program) -> list[str]:
    return [node.op_type for step in program.steps if isinstance(step, VgfStep) for node in step.nodes]


def test_no_node_case_with_a_check_runs_unchecked() -> None:
    """All single nodes of ONNX's cases: where Vulkan's plan can report a fault, no data graph runs the node, unless the
    session does not ask for checks."""
    declared = {operator.op_type for operator in registry.declared()}
    unchecked: set[str] = set()
    for name, case in load_cases().items():
        proto = case.model() if case.kind == "node" else None
        if proto is None or len(proto.graph.node) != 1 or proto.graph.node[0].op_type not in declared:
            continue
        try:
            alone = lowered(proto)
        except VkepError:  # a case that Vulkan refuses
            continue
        found = {
            checks: in_graphs(lowered(proto, Policy("vgf_first", graphs="driver", check_data=checks)))
            for checks in (True, False)
        }
        if any(isinstance(step, IslandStep) and step.plan.faults for step in alone.steps):
            assert not found[True], name
            unchecked.update(found[False])
        else:
            assert found[True] == found[False], name
    assert unchecked == CHECKED


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("Div(a, b)", False),
        ("Mod(a, b)", False),
        ("Div(a, k)", True),
        ("Mod<fmod=1>(a, k)", True),
    ],
)
def test_known_divisors_stay_in_data_graphs(text: str, want: bool) -> None:
    proto = model(f"g (int32[4] a, int32[4] b) => (int32[4] y) {{ y = {text} }}", k=np.array([1, 2, 3, 4], np.int32))
    program = lowered(proto, Policy("vgf_first", graphs="driver"))
    assert bool(in_graphs(program)) == want
    (placed,) = program.placements
    assert want or "check_data" in placed.declined["vgf"]


@pytest.mark.parametrize(
    ("text", "weights"),
    [
        ("y = Gather<axis=0>(x, i)", {"i": np.array([0, 4])}),
        ("y = ScatterND(x, i, u)", {"i": np.array([[9]]), "u": np.zeros((1, 4), np.float32)}),
    ],
)
def test_known_indices_out_of_range_are_refused(text: str, weights: dict[str, Any]) -> None:
    """As by Vulkan, also where a data graph is offered the node first."""
    proto = model(f"g (float[4,4] x) => (float[?,4] y) {{ {text} }}", **weights)
    for policy in (None, Policy("vgf_first", graphs="driver"), Policy("vgf_first", graphs="driver", check_data=False)):
        with pytest.raises(InvalidNode, match="outside"):
            lowered(proto, policy)
