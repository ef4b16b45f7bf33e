"""Gate and up of a decoder's step: two products of the same rows are one dispatch on a GPU, however exporters write them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest

from tests.devices import as_a_gpu
from tests.lowering.test_norms import GPU, dispatched
from tools.plan_devices import DEVICES
from vkep import InferenceSession
from vkep.models.builder import GraphBuilder
from vkep.models.language import BLOCK, MICROSOFT, packed

Open = Callable[..., InferenceSession]
K, N = 96, 40


def _gated(bits: int, whole: bool, activation: str, biased: bool = False, rows: int = 1, more: bool = False) -> Any:
    """``activation(x @ gate) * (x @ up)`` of a norm: two products, or one of which each half is a part (``whole``)."""
    w = GraphBuilder(f"gated{bits}{activation}")
    scale = w.constant("scale", 1 + w.weight("scale", (K,), 0.1))
    x = w.add("SimplifiedLayerNormalization", w.input("x", [1, rows, K]), scale, axis=-1, epsilon=1e-6, stash_type=1)

    def product(name: str, n: int) -> str:
        weight = w.weight(name, (K, n), 1.0)
        if not bits:
            return w.add("MatMul", x, w.constant(name, weight))
        codes, scales = packed(weight.T)
        w.initializers[f"{name}.codes"] = onnx.numpy_helper.from_array(codes, f"{name}.codes")
        stored = [f"{name}.codes", w.constant(f"{name}.scales", scales)]
        [y] = w.add_many("MatMulNBits", x, *stored, outputs=1, domain=MICROSOFT, K=K, N=n, bits=4, block_size=BLOCK)
        return y

    if whole:
        gate, up = w.add_many("Split", product("both", 2 * N), outputs=2, axis=-1, num_outputs=2)
    else:
        gate, up = product("gate", N), product("up", N)
    if biased:
        gate, up = (
            w.add("Add", t, w.constant(f"bias{k}", w.weight(f"bias{k}", (N,), 1.0))) for k, t in enumerate((gate, up))
        )
    if activation == "silu":
        gated = w.add("Mul", gate, w.add("Sigmoid", gate))
    elif activation == "quick":
        [gated] = w.add_many("QuickGelu", gate, outputs=1, domain=MICROSOFT, alpha=1.702)
    else:
        w.nodes.append(onnx.helper.make_node("Gelu", [gate], ["gelu"], domain=MICROSOFT))
        gated = "gelu"
    y = w.add("Mul", gated, up)
    w.output(y, "y", [1, rows, N])
    if more:
        w.output(w.add("Neg", up), "z", [1, rows, N])
    graph = onnx.helper.make_graph(w.nodes, w.name, w.inputs, w.outputs, list(w.initializers.values()))
    opsets = [onnx.helper.make_opsetid("", 18), onnx.helper.make_opsetid(MICROSOFT, 1)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.mark.wide
@pytest.mark.parametrize(
    ("bits", "whole", "activation", "biased", "rows", "dispatches"),
    [
        (4, False, "silu", False, 1, 1),
        (4, True, "gelu", False, 1, 1),
        (0, False, "quick", True, 1, 1),
        (0, True, "silu", False, 1, 1),
        (4, True, "silu", False, 3, 2),  # the norm of several rows is a dispatch of its own
        (0, True, "silu", False, 2, 2),
    ],
)
def test_one_dispatch_computes_both(
    open_session: Open, bits: int, whole: bool, activation: str, biased: bool, rows: int, dispatches: int
) -> None:
    proto = _gated(bits, whole, activation, biased, rows)
    x = {"x": np.random.default_rng(3).normal(size=(1, rows, K)).astype(np.float32)}
    [expected] = open_session(proto).run(None, x)
    with as_a_gpu():
        session = open_session(proto)
        assert session.report().islands[0].dispatches == dispatches
        [y] = session.run(None, x)
    np.testing.assert_allclose(y, expected, rtol=2e-4, atol=2e-4 * np.abs(expected).max())


@pytest.mark.wide
@pytest.mark.parametrize("whole", [False, True])
def test_a_product_that_others_read_stays(open_session: Open, whole: bool) -> None:
    proto = _gated(4, whole, "silu", more=True)
    x = {"x": np.random.default_rng(3).normal(size=(1, 1, K)).astype(np.float32)}
    expected = open_session(proto).run(None, x)
    with as_a_gpu():
        got = open_session(proto).run(None, x)
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-4 * np.abs(other).max())


@pytest.mark.parametrize("precision", ["int4-fp16", "fp16"])
@pytest.mark.parametrize(("tokens", "paired"), [(1, 2), (3, 2), (40, 0)])
def test_layers_of_a_step(precision: str, tokens: int, paired: int) -> None:
    found = dispatched(precision, tokens, GPU)
    assert sum("PAIRED" in dict(shader.defines) for shader in found) == paired


def test_a_cpu_computes_them_apart() -> None:
    found = dispatched("int4-fp16", 1, replace(DEVICES["cpu"]))
    assert not any("PAIRED" in dict(shader.defines) for shader in found)
