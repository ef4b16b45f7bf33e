"""Channels-last nodes are taken apart: what runs, what declines and what is deferred is the plain operator's."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.lowering.test_partition import caps  # noqa: F401  # a fixture
from vkep.dtypes import DTYPES
from vkep.graph.load import read_graph
from vkep.graph.weights import ArrayWeight
from vkep.ir.program import CpuStep, DeferredStep, IslandStep, Program, ValueSpec
from vkep.ops import registry
from vkep.placement.channels_last import CHANNELS_LAST, NHWC, channels_first, made_by
from vkep.placement.partition import lower

OPSETS = {"": 17}


def program(
    op_type: str,
    device: Any,
    known: Any,
    outputs: Any = ("y",),
    inputs: Any = ("x", "w"),
    **attributes: Any,
) -> Program:
    proto = onnx.GraphProto()
    proto.node.append(helper.make_node(op_type, inputs, outputs, domain=NHWC, **attributes))
    return lower(read_graph(proto, OPSETS, None, 9, "").nodes, known, outputs, OPSETS, device)


def weight(*shape: int) -> ArrayWeight:
    return ArrayWeight("w", np.ones(shape, np.float32))


def test_every_operator_of_the_list_has_a_kernel() -> None:
    assert {d.op_type for d in registry.declared() if not d.domain} >= CHANNELS_LAST


def test_a_convolution_is_one_island_with_its_own_layout(caps: Any) -> None:  # noqa: F811
    made = program("Conv", caps, {"x": ValueSpec(DTYPES["float32"], (1, 5, 7, 3)), "w": weight(4, 3, 3, 3)})
    (step,) = made.steps
    assert isinstance(step, IslandStep)
    assert [(p.name, p.shape) for p in step.plan.outputs] == [("y", (1, 3, 5, 4))]
    assert [n.op_type for n in step.nodes] == ["Transpose", "Conv", "Transpose"]
    assert made.placements[0].node.domain == NHWC  # the node's own line in a report comes first


def test_nodes_that_vulkan_declines_are_plain_operators_on_the_cpu(caps: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.delitem(registry._OPERATORS, ("", "LRN"))
    known = {"x": ValueSpec(DTYPES["float32"], (1, 5, 7, 3))}
    made = program("LRN", caps, known, inputs=("x",), size=3)
    (step,) = [s for s in made.steps if isinstance(s, CpuStep)]
    assert [(n.op_type, n.domain, n.proto.domain) for n in step.nodes] == [("LRN", "", "")]


def test_an_unknown_shape_waits(caps: Any) -> None:  # noqa: F811
    made = program("Conv", caps, {"w": weight(4, 3, 3, 3)})
    (step,) = made.steps
    assert isinstance(step, DeferredStep)


def test_an_operator_that_is_not_in_the_list_is_left_alone(caps: Any) -> None:  # noqa: F811
    made = program("Resize", caps, {"x": ValueSpec(DTYPES["float32"], (1, 4, 4, 2)), "w": weight(4)})
    assert [p.where for p in made.placements] == ["cpu"]


@pytest.mark.parametrize("rank", [3, 4, 5])
def test_the_transposes_undo_each_other(rank: int) -> None:
    proto = onnx.GraphProto()
    proto.node.append(helper.make_node("MaxPool", ["x"], ["y", "i"], domain=NHWC, kernel_shape=[2] * (rank - 2)))
    (node,) = read_graph(proto, OPSETS, None, 9, "").nodes
    before, inner, after = channels_first(node, rank, OPSETS)
    there, back = before.attributes["perm"], after.attributes["perm"]
    assert [there[axis] for axis in back] == list(range(rank))
    assert there[1] == rank - 1
    assert [n.outputs for n in (before, inner, after)] == made_by(node)
    assert inner.outputs[1] == "i"  # indices count in channels first, as ONNX Runtime leaves them
    assert tuple(inner.proto.input) == inner.inputs
