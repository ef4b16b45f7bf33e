"""Attention over long sequences: the scores of all queries are never there at once. Plans only: no GPU is used."""

from __future__ import annotations

from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from gpu_shared.capabilities import DeviceCapabilities
from vkep.dtypes import DTYPES
from vkep.graph import load_model
from vkep.ir.infer import Known
from vkep.ir.program import IslandStep, ValueSpec
from vkep.ops.attention import sdpa
from vkep.placement.partition import lower
from vkep.plan.records import Plan

CPU = DeviceCapabilities.for_tests()
GPU = DeviceCapabilities.for_tests(device_type="discrete", subgroup_size=32, min_subgroup_size=32, max_subgroup_size=32)
SIZE = 64
OPSET = onnx.defs.onnx_opset_version()


@pytest.fixture(autouse=True)
def with_scores_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU has a kernel without, which does not take everything."""
    monkeypatch.setattr(sdpa, "gains_by_attention", lambda *args: False)


def _plan(heads: int, length: int, caps: DeviceCapabilities, **attributes: Any) -> Plan:
    shape = (1, heads, length, SIZE)
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("q", "k", "v", "y")]
    node = helper.make_node("Attention", ["q", "k", "v"], ["y"], **attributes)
    graph = helper.make_graph([node], "g", infos[:3], infos[3:])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=13)
    known: dict[str, Known] = {name: ValueSpec(DTYPES["float32"], shape) for name in "qkv"}
    read = load_model(onnx.ModelProto.FromString(proto.SerializeToString()))
    [step] = lower(read.graph.nodes, known, ["y"], read.opsets, caps).steps
    assert isinstance(step, IslandStep)
    return step.plan


@pytest.mark.parametrize("caps", [CPU, GPU], ids=["cpu", "gpu"])
@pytest.mark.parametrize(("heads", "length"), [(8, 4096), (32, 16384)])
def test_memory_is_that_of_a_block(caps: DeviceCapabilities, heads: int, length: int) -> None:
    plan = _plan(heads, length, caps)
    budget = sdpa.SCORES_BYTES_CPU if caps is CPU else sdpa.SCORES_BYTES
    block = max(budget, 64 * heads * length * 4)
    assert block / 2 < plan.activation_bytes <= 2.1 * block, "scores and probabilities"
    assert heads * length * length * 4 >= 4 * plan.activation_bytes


@pytest.mark.parametrize("caps", [CPU, GPU], ids=["cpu", "gpu"])
def test_keys_that_no_query_of_a_block_sees_are_left_out(caps: DeviceCapabilities) -> None:
    def flops(**attributes: Any) -> int:
        return sum(dispatch.flops for dispatch in _plan(8, 8192, caps, **attributes).dispatches)

    everything = flops()
    assert 0.5 < flops(is_causal=1) / everything < 0.57
    assert flops(is_causal=1, left_window_size=512) / everything < 0.15


def test_short_sequences_are_one_block() -> None:
    assert len(_plan(8, 512, GPU).dispatches) <= 5
