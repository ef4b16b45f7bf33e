"""A product is one dispatch with the update of a cache that reads it, unless it would then read what was written meanwhile."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from tests.lowering.test_norms import GPU
from tools.models.builder import GraphBuilder
from tools.models.language import MICROSOFT
from vkep.graph.load import load_model
from vkep.ir.infer import Known
from vkep.ir.program import ValueSpec, declared_value
from vkep.passes import island
from vkep.passes.turned import turn_products
from vkep.placement.partition import lower

HEADS, KV_HEADS, SIZE, K, ROOM = 4, 2, 16, 96, 32


def _step() -> onnx.ModelProto:
    """Attention of one token after a product of ``state``, which then changes."""
    w = GraphBuilder("turned")
    state = w.input("state", [1, 1, K])
    weight = w.constant("weight", w.weight("weight", (K, (HEADS + 2 * KV_HEADS) * SIZE), 1.0))
    qkv = w.add("MatMul", state, weight)
    w.output(w.add("Neg", state), "state_out", [1, 1, K])
    caches = [w.input(name, [1, KV_HEADS, ROOM, SIZE]) for name in ("keys", "values")]
    angles = [w.constant(name, np.ones((ROOM, SIZE // 2), np.float32)) for name in ("cos", "sin")]
    for name, value in (("last", 7), ("total", 8)):
        w.initializers[name] = onnx.numpy_helper.from_array(np.array([value], np.int32), name)
    made = w.add_many(
        "GroupQueryAttention",
        *(qkv, "", "", *caches, "last", "total", *angles),
        outputs=3,
        domain=MICROSOFT,
        num_heads=HEADS,
        kv_num_heads=KV_HEADS,
        do_rotary=1,
    )
    shapes = ([1, 1, HEADS * SIZE], *[[1, KV_HEADS, ROOM, SIZE]] * 2)
    for result, name, shape in zip(made, ("y", "keys_out", "values_out"), shapes, strict=True):
        w.output(result, name, shape)
    graph = onnx.helper.make_graph(w.nodes, w.name, w.inputs, w.outputs, list(w.initializers.values()))
    opsets = [onnx.helper.make_opsetid("", 18), onnx.helper.make_opsetid(MICROSOFT, 1)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.mark.parametrize("between", [False, True])
def test_a_product_does_not_move_past_a_write_to_what_it_reads(between: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    monkeypatch.setattr(island, "turn_products", lambda *arguments: given.append(arguments) or arguments[0])
    loaded = load_model(_step())
    known: dict[str, Known] = dict(loaded.graph.weights)
    for info in loaded.graph.inputs:
        spec = declared_value(info)
        assert isinstance(spec, ValueSpec)
        known[info.name] = spec
    over = (("keys_out", "keys"), ("values_out", "values"), ("state_out", "state"))
    lower(loaded.graph.nodes, known, [v.name for v in loaded.graph.outputs], loaded.opsets, GPU, over=over)
    [(ops, results, caps, shared)] = given
    *ops, written = ops
    assert written.outputs[0].storage.port in shared
    ops.insert(1 if between else len(ops), written)
    turned = turn_products(ops, results, caps, shared)
    assert len(turned) == len(ops) - (not between)
