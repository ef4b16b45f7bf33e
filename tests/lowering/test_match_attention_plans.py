"""Plans of models that spell attention out: memory, names, kernels. No GPU is used."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest

from gpu_shared.capabilities import DeviceCapabilities
from tests.devices import GPU
from tests.lowering.written_attention import Spelling
from tools.models.catalog import Options, build_model
from vkep.dtypes import from_onnx
from vkep.graph import load_model
from vkep.ir.infer import Known
from vkep.ir.program import IslandStep, ValueSpec
from vkep.ops.attention import sdpa
from vkep.passes import attention
from vkep.passes.match_attention import AttentionMatch
from vkep.placement.partition import lower
from vkep.plan.records import Plan

CPU = DeviceCapabilities.for_tests()


def _plan(proto: onnx.ModelProto, caps: DeviceCapabilities) -> Plan:
    read = load_model(onnx.ModelProto.FromString(proto.SerializeToString()))
    known: dict[str, Known] = dict(read.graph.weights)
    for info in read.graph.inputs:
        dtype = from_onnx(info.elem_type)
        assert dtype is not None and info.is_static and info.shape is not None
        known[info.name] = ValueSpec(dtype, tuple(int(d) for d in info.shape if isinstance(d, int)))
    program = lower(read.graph.nodes, known, [o.name for o in read.graph.outputs], read.opsets, caps)
    [step] = program.steps
    assert isinstance(step, IslandStep)
    assert {placement.where for placement in program.placements} <= {"vulkan", "folded"}
    assert len(program.placements) == len(read.graph.nodes)
    return step.plan


def _long(heads: int, length: int, mask: str = "") -> onnx.ModelProto:
    g = Spelling()
    for name in list(g.values):
        g.values[name] = np.empty((1, heads, length, 64), np.float32)
    scores = g.scores()
    if mask == "causal":
        scores = g.hide(scores, -np.inf, g.constant(np.tri(length, dtype=bool), np.bool_), seen=True)
    elif mask == "bias":
        scores = g.add("Add", scores, g.input(np.empty((1, 1, 1, length), np.float32)))
    g.mix(scores)
    return g.model()


@pytest.mark.parametrize("caps", [CPU, GPU], ids=["cpu", "gpu"])
@pytest.mark.parametrize("mask", ["", "bias"])
def test_memory_is_that_of_a_block(caps: DeviceCapabilities, mask: str) -> None:
    heads, length = 16, 8192
    plan = _plan(_long(heads, length, mask), caps)
    block = max(sdpa.SCORES_BYTES_CPU if caps is CPU else sdpa.SCORES_BYTES, 64 * heads * length * 4)
    assert plan.activation_bytes <= 2.1 * block < heads * length * length * 4 / 10


@pytest.mark.parametrize("fused", [True, False])
def test_keys_that_no_query_of_a_block_sees_are_left_out(fused: bool) -> None:
    caps = CPU if fused else replace(CPU, features=CPU.features - {"subgroup_arithmetic"})
    whole, causal = (_plan(_long(8, 4096, mask), caps) for mask in ("", "causal"))
    assert 0.49 < sum(d.flops for d in causal.dispatches) / sum(d.flops for d in whole.dispatches) < 0.6
    assert (len(causal.dispatches) == 1) is fused


def test_dispatches_have_the_names_of_all_nodes() -> None:
    g = Spelling()
    for name in list(g.values):
        g.values[name] = np.empty((1, 8, 4096, 64), np.float32)
    g.mix(g.add("Add", g.scores(), g.input(np.empty((1, 1, 1, 4096), np.float32))))
    names = {name for dispatch in _plan(g.model(), CPU).dispatches for name in dispatch.label.split(" + ")}
    assert names == {node.name for node in g.nodes if node.op_type != "Transpose"}, "which is a view"


@pytest.mark.parametrize("name", ["bert", "bert_enc", "gpt2step"])
@pytest.mark.parametrize("float16", [False, True])
def test_models(monkeypatch: pytest.MonkeyPatch, name: str, float16: bool) -> None:
    """Each softmax of these is an attention's."""
    found: list[AttentionMatch] = []

    def lowered(match: AttentionMatch, caps: DeviceCapabilities) -> None:
        found.append(match)

    monkeypatch.setattr(attention, "_as_sdpa", lowered)
    proto = build_model(name, Options(float16=float16))
    _plan(proto, CPU)
    assert len(found) == sum(node.op_type == "Softmax" for node in proto.graph.node) > 0
    assert {match.scale for match in found} == {0.125}
    assert all(len(match.masks) == (name == "bert") for match in found)


@pytest.mark.parametrize("name", ["bert", "bert_enc"])
def test_a_gpu_has_one_kernel_for_all_of_it(
    taken: list[AttentionMatch], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """From the projections' results to what the next one reads: the copy that merges the heads is in it too."""
    proto = build_model(name, Options(float16=True))
    plan = _plan(proto, GPU)
    assert len(taken) == sum(node.op_type == "Softmax" for node in proto.graph.node) > 0
    sources = [plan.pipelines[dispatch.pipeline].shader.source for dispatch in plan.dispatches]
    assert sum(source.startswith("attention") for source in sources) == len(taken)
    assert not any(source.startswith("softmax") for source in sources)
    fused = [d.label for d, s in zip(plan.dispatches, sources, strict=True) if s.startswith("attention")]
    names = {node.output[0]: node.name for node in proto.graph.node}
    for node in proto.graph.node:
        if node.op_type == "Softmax":
            assert any({node.name, names[node.input[0]]} <= set(label.split(" + ")) for label in fused)
    layers = len(taken)
    monkeypatch.setattr(attention, "_as_sdpa", lambda match, caps: None)
    written = _plan(proto, GPU)
    assert len(written.dispatches) == len(plan.dispatches) + 2 * layers, "two products and a softmax are one"


@pytest.mark.parametrize("queries", [15, 16])
def test_a_guarded_mask_of_float16_on_a_gpu(taken: list[AttentionMatch], queries: int) -> None:
    """Without its products' factors and the copies of k; with few queries the scores are stored, where they may overflow."""
    g = Spelling(np.float16)
    for name in (g.q, g.k, g.v):
        g.values[name] = np.empty((2, 4, queries if name == g.q else 24, 64), np.float16)
    g.as_torch_exports()
    plan = _plan(g.model(), GPU)
    sources = [plan.pipelines[dispatch.pipeline].shader.source for dispatch in plan.dispatches]
    assert (sources == ["pointwise.comp", "attention_coop.comp"]) == bool(taken) == (queries == 16), sources


def test_small_scores_on_a_cpu_driver_are_run_as_written(taken: list[AttentionMatch]) -> None:
    _plan(build_model("bert"), CPU)
    assert not taken
