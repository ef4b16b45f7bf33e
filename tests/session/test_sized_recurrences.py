"""Recurrent layers whose state is too large for one workgroup: few plans serve sequences of every length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx.numpy_helper
import pytest

from tests.calls import noted
from tests.session.models import model
from tools.ort_cpu import cpu_session
from tools.plan_devices import DEVICES
from tools.size_conditions import declared
from vkep import InferenceSession
from vkep.graph import load_model
from vkep.ir.program import IslandStep
from vkep.plan.sized import instance
from vkep.session.planning.planner import Planner
from vkep.sizes import Trace

Open = Callable[..., InferenceSession]
LENGTHS = (3, 5, 4, 7, 6, 9, 8, 11, 10, 12)
HIDDEN, INPUTS = 24, 8
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}

#: operator, its attributes, and what differs from a forward float32 layer of a batch of 120
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "LSTM": ("LSTM", "", {}),
    "LSTM backwards": ("LSTM", 'direction="reverse"', {"lengths": True}),
    "LSTM in both directions": ("LSTM", 'direction="bidirectional"', {"directions": 2, "state": True, "lengths": True}),
    "LSTM in both directions of an open batch": ("LSTM", 'direction="bidirectional"', {"directions": 2, "open": True}),
    "LSTM of float16": ("LSTM", "", {"dtype": np.float16, "lengths": True}),
    "LSTM with the batch in front": ("LSTM", "layout=1", {"layout": 1, "alone": True}),
    "GRU": ("GRU", "", {"state": True}),
    "GRU backwards": ("GRU", 'direction="reverse", linear_before_reset=1', {"state": True, "lengths": True}),
    "GRU in both directions": ("GRU", 'direction="bidirectional"', {"directions": 2, "lengths": True}),
    "RNN": ("RNN", "", {"wide": 1, "lengths": True}),
    "RNN in both directions": ("RNN", 'direction="bidirectional"', {"wide": 1, "directions": 2, "state": True}),
    "quantized LSTM": ("com.microsoft.DynamicQuantizeLSTM", 'direction="reverse"', {"quantized": True, "alone": True}),
}


def layer(case: str) -> tuple[bytes, Callable[[int, np.random.Generator], dict[str, Any]]]:
    """A model, and its inputs for a length."""
    op, attributes, other = CASES[case]
    kind, count, dtype = (
        op.split(".")[-1].replace("DynamicQuantize", ""),
        other.get("directions", 1),
        other.get("dtype", np.float32),
    )
    batch, hidden = (240 if kind == "RNN" else 120), HIDDEN
    draw, name = np.random.default_rng(1), {np.float32: "float", np.float16: "float16"}[dtype]
    gates = GATES[kind]
    weights = {
        "w": draw.normal(0, 0.3, (count, gates * hidden, INPUTS)).astype(dtype),
        "r": draw.normal(0, 0.3, (count, gates * hidden, hidden)).astype(dtype),
        "bias": draw.normal(0, 0.3, (count, 2 * gates * hidden)).astype(dtype),
    }
    axes = "b" if other.get("open") else batch
    inputs = [f"{name}[{axes},n,{INPUTS}] x" if other.get("layout") else f"{name}[n,{axes},{INPUTS}] x"]
    arguments = ["x", "w", "r", "bias", "", ""]
    if other.get("lengths"):
        inputs.append(f"int32[{axes}] lengths")
        arguments[4] = "lengths"
    if other.get("state"):
        inputs.append(f"{name}[{count},{axes},{hidden}] h")
        arguments[5] = "h"
    domains = ""
    if other.get("quantized"):
        domains = ', "com.microsoft": 1'
        scales = {"ws": np.full(count, 0.01, np.float32), "wz": np.full(count, 3, np.int8)}
        whole = {
            k: draw.integers(-40, 40, v.shape).astype(np.int8).transpose(0, 2, 1)
            for k, v in weights.items()
            if k != "bias"
        }
        weights = {**whole, "bias": weights["bias"], **scales}
        arguments += ["", "", "ws", "wz", "ws", "wz"]
    outputs = ["y", "last", "cells"] if kind == "LSTM" else ["y", "last"]
    declared = ", ".join(f"{name}[{','.join('pqrs'[: 4 - (k > 0)])}] {o}" for k, o in enumerate(outputs))
    text = (
        f"g ({', '.join(inputs)}) => ({declared}) {{ {', '.join(outputs)} = {op} <hidden_size={hidden}"
        f"{', ' + attributes if attributes else ''}> ({', '.join(arguments)}) }}"
    )
    proto = model(text, opset=18, domains=domains)
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(np.ascontiguousarray(a), n) for n, a in weights.items())

    def feeds(length: int, draw: np.random.Generator) -> dict[str, Any]:
        rows = batch + length if other.get("open") else batch
        shape = (rows, length, INPUTS) if other.get("layout") else (length, rows, INPUTS)
        made = {"x": draw.normal(0, 1, shape).astype(dtype)}
        if other.get("lengths"):
            made["lengths"] = draw.integers(0, length + 1, rows).astype(np.int32)
        if other.get("state"):
            made["h"] = draw.normal(0, 1, (count, rows, hidden)).astype(dtype)
        return made

    return proto.SerializeToString(), feeds


@pytest.mark.parametrize("case", CASES)
def test_few_plans_serve_sequences_of_every_length(
    open_session: Open, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, feeds = layer(case)
    session, draw = open_session(data, fallback="error"), np.random.default_rng(0)
    alone = CASES[case][2].get("alone") or CASES[case][2].get("dtype")  # ONNX Runtime does not run these
    peer = None if alone else cpu_session(data)
    plans = noted(monkeypatch, Planner, "plan", lambda *_, **__: 1)
    runs = [(given, session.run(None, given)) for length in LENGTHS for given in [feeds(length, draw)]]
    assert len(plans) <= 3
    for given, results in runs[:: 1 if peer is not None else 3]:
        expected = peer.run(None, given) if peer is not None else open_session(data).run(None, given)
        for got, want in zip(results, expected, strict=True):
            np.testing.assert_allclose(
                got, want, rtol=2e-3 if alone else 1e-4, atol=2e-3 if alone else 1e-5, strict=True
            )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", CASES)
def test_a_plan_has_numbers_for_every_length_that_it_serves(case: str, device: str) -> None:
    sized = declared(load_model(layer(case)[0]), {"n": 5, "b": 130})
    program = sized.with_trace(Trace(), DEVICES[device])
    assert program.conditions is not None
    served = [
        n for n in range(1, 40) if program.conditions.hold([sized.sizes[k] if k != "n" else n for k in sized.places])
    ]
    assert set(range(5, 16)) <= set(served)
    for n in served:
        for step in program.steps:
            assert isinstance(step, IslandStep) and step.sizes is not None
            instance(step.plan, step.sizes, [sized.sizes[k] if k != "n" else n for k in sized.places])
