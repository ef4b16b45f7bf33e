"""A product is one dispatch with the update of a cache that reads it, or attention with the update before it, unless it would
then read what was written meanwhile."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest

from tests.lowering.test_norms import GPU
from vkep.graph.load import load_model
from vkep.ir.infer import Known
from vkep.ir.ops import KernelOp, Op
from vkep.ir.program import IslandStep, ValueSpec, declared_value
from vkep.ir.tensor import Tensor
from vkep.kernels.attention.cache_update import CacheUpdateProblem
from vkep.models.builder import GraphBuilder
from vkep.models.language import MICROSOFT
from vkep.passes import pipeline
from vkep.passes.rewrite import Goal
from vkep.placement.partition import lower

HEADS, KV_HEADS, SIZE, K, ROOM = 4, 2, 16, 96, 32


def _step(batch: int = 1) -> onnx.ModelProto:
    """Attention of one token of each sequence after a product of ``state``, which then changes."""
    w = GraphBuilder("turned")
    state = w.input("state", [batch, 1, K])
    weight = w.constant("weight", w.weight("weight", (K, (HEADS + 2 * KV_HEADS) * SIZE), 1.0))
    qkv = w.add("MatMul", state, weight)
    w.output(w.add("Neg", state), "state_out", [batch, 1, K])
    caches = [w.input(name, [batch, KV_HEADS, ROOM, SIZE]) for name in ("keys", "values")]
    angles = [w.constant(name, np.ones((ROOM, SIZE // 2), np.float32)) for name in ("cos", "sin")]
    for name, values in (("last", [7] * batch), ("total", [8])):
        w.initializers[name] = onnx.numpy_helper.from_array(np.array(values, np.int32), name)
    made = w.add_many(
        "GroupQueryAttention",
        *(qkv, "", "", *caches, "last", "total", *angles),
        outputs=3,
        domain=MICROSOFT,
        num_heads=HEADS,
        kv_num_heads=KV_HEADS,
        do_rotary=1,
    )
    shapes = ([batch, 1, HEADS * SIZE], *[[batch, KV_HEADS, ROOM, SIZE]] * 2)
    for result, name, shape in zip(made, ("y", "keys_out", "values_out"), shapes, strict=True):
        w.output(result, name, shape)
    graph = onnx.helper.make_graph(w.nodes, w.name, w.inputs, w.outputs, list(w.initializers.values()))
    opsets = [onnx.helper.make_opsetid("", 18), onnx.helper.make_opsetid(MICROSOFT, 1)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)


OVER = (("keys_out", "keys"), ("values_out", "values"), ("state_out", "state"))


def _lowered(batch: int, over: tuple[tuple[str, str], ...]) -> list[str]:
    """The shader of each dispatch of a step on a GPU."""
    loaded = load_model(_step(batch))
    known: dict[str, Known] = dict(loaded.graph.weights)
    for info in loaded.graph.inputs:
        spec = declared_value(info)
        assert isinstance(spec, ValueSpec)
        known[info.name] = spec
    outputs = [v.name for v in loaded.graph.outputs]
    program = lower(loaded.graph.nodes, known, outputs, loaded.opsets, GPU, over=over)
    plans = [step.plan for step in program.steps if isinstance(step, IslandStep)]
    return [plan.pipelines[d.pipeline].shader.source for plan in plans for d in plan.dispatches]


@pytest.mark.parametrize(("name", "batch"), [("updates in products", 1), ("updates in attention", 2)])
@pytest.mark.parametrize("between", [False, True])
def test_nothing_moves_past_a_write_to_what_it_reads(
    name: str, batch: int, between: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[list[Op], Goal]] = []

    def taken(ops: list[Op], goal: Goal) -> list[Op]:
        given.append((ops, goal))
        return ops

    passes = {step.name: step for step in pipeline.PASSES}
    monkeypatch.setattr(pipeline, "PASSES", (*({**passes, name: replace(passes[name], run=taken)}).values(),))
    _lowered(batch, OVER)
    [(ops, goal)] = given
    shared = goal.shared
    [written] = [op for op in ops if op.outputs[0].storage.port in shared and len(op.outputs) == 1]
    ops = [op for op in ops if op is not written]
    first = 0
    if name == "updates in attention":  # as if the update read what the step overwrites
        [update] = [op for op in ops if isinstance(op, KernelOp) and isinstance(op.problem, CacheUpdateProblem)]
        q, k, *others = update.inputs
        first, state = ops.index(update), ops[0].inputs[0].storage
        ops[first] = replace(update, inputs=[q, Tensor(k.dtype, k.shape, state, k.strides), *others])
    ops.insert(first + 1 if between else len(ops), written)
    joined = passes[name].run(ops, goal)
    assert len(joined) == len(ops) - (not between)


def test_attention_updates_the_cache_of_several_sequences_in_place() -> None:
    assert "cache_update.comp" in _lowered(2, ())
    sources = _lowered(2, OVER[:2])
    assert "attention_stream.comp" in sources and "cache_update.comp" not in sources
