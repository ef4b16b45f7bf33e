"""LSTM, GRU and RNN in every direction, with every option, against onnxruntime (and ONNX's reference for layout 1)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.cases import check

RNG = np.random.default_rng(5)


@pytest.fixture(autouse=True, params=["carried", "stepwise"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways: all steps in one dispatch, and a product for each step."""
    if request.param == "stepwise":
        monkeypatch.setattr("vkep.ops.recurrent_layer.carries", lambda *_: False)


STEPS, BATCH, INPUTS, HIDDEN = 5, 3, 4, 6
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def _normal(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.normal(0, 0.6, shape).astype(np.float32)


def _inputs(
    op_type: str, directions: int, *, bias: bool, lengths: bool, initial: bool, peep: bool = False
) -> dict[str, Any]:
    gates = GATES[op_type]
    inputs: dict[str, Any] = {
        "x": _normal(STEPS, BATCH, INPUTS),
        "w": _normal(directions, gates * HIDDEN, INPUTS),
        "r": _normal(directions, gates * HIDDEN, HIDDEN),
        "b": _normal(directions, 2 * gates * HIDDEN) if bias else None,
        "len": np.array([5, 2, 4], np.int32) if lengths else None,
        "h0": _normal(directions, BATCH, HIDDEN) if initial else None,
    }
    if op_type == "LSTM":
        inputs["c0"] = _normal(directions, BATCH, HIDDEN) if initial else None
        inputs["p"] = _normal(directions, 3 * HIDDEN) if peep else None
    return inputs


def _outputs(op_type: str) -> tuple[str, ...]:
    return ("y", "y_h", "y_c") if op_type == "LSTM" else ("y", "y_h")


@pytest.mark.parametrize("op_type", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(
    "options", [(False, False, False), (True, False, True), (True, True, False), (True, True, True)]
)
def test_directions(op_type: str, direction: str, options: tuple[bool, bool, bool]) -> None:
    bias, lengths, initial = options
    inputs = _inputs(op_type, 2 if direction == "bidirectional" else 1, bias=bias, lengths=lengths, initial=initial)
    check(
        op_type,
        inputs,
        outputs=_outputs(op_type),
        against="onnxruntime",
        opset=21,
        atol=1e-5,
        constants=("w", "r"),
        direction=direction,
        hidden_size=HIDDEN,
    )


@pytest.mark.parametrize("op_type", ["RNN", "GRU", "LSTM"])
def test_known_lengths(op_type: str) -> None:
    for lengths in ([0, 0, 0], [0, 5, 3]):
        inputs = _inputs(op_type, 1, bias=False, lengths=True, initial=True)
        inputs["len"] = np.array(lengths, np.int32)
        outputs = ("y", "y_h", "y_c")[: 3 if op_type == "LSTM" else 2]
        for constants in ((), ("len",)):
            rest: dict[str, Any] = {"opset": 21, "hidden_size": HIDDEN, "constants": constants, "outputs": outputs}
            y, *last = check(op_type, inputs, against="onnxruntime", **rest)
            assert not y[:, 0, 0].any() and not any(state[0, 0].any() for state in last)


@pytest.mark.parametrize("initial", [False, True])
@pytest.mark.parametrize("reset", [0, 1])
def test_gru_reset(reset: int, initial: bool) -> None:
    inputs = _inputs("GRU", 1, bias=True, lengths=False, initial=initial)
    check(
        "GRU",
        inputs,
        outputs=("y", "y_h"),
        against="onnxruntime",
        opset=21,
        hidden_size=HIDDEN,
        linear_before_reset=reset,
    )


@pytest.mark.parametrize("forget", [0, 1])
def test_lstm_peepholes(forget: int) -> None:
    inputs = _inputs("LSTM", 2, bias=True, lengths=True, initial=True, peep=True)
    attributes: dict[str, Any] = {"direction": "bidirectional", "hidden_size": HIDDEN, "input_forget": forget}
    check("LSTM", inputs, outputs=("y", "y_h", "y_c"), against="onnxruntime", opset=21, **attributes)


@pytest.mark.parametrize("op_type", ["RNN", "GRU", "LSTM"])
def test_clip(op_type: str) -> None:
    inputs = _inputs(op_type, 1, bias=True, lengths=False, initial=True)
    check(op_type, inputs, outputs=_outputs(op_type), against="onnxruntime", opset=21, hidden_size=HIDDEN, clip=0.3)


@pytest.mark.parametrize(
    "activations",
    [
        ["Relu", "Softsign", "Softplus"],
        ["HardSigmoid", "ScaledTanh", "LeakyRelu"],
        ["Elu", "Affine", "ThresholdedRelu"],
    ],
)
def test_activations(activations: list[str]) -> None:
    drawn = _inputs("LSTM", 1, bias=True, lengths=False, initial=True)
    # where gates have no upper bound the state overflows within a few steps of larger numbers
    inputs = {name: None if values is None else np.float32(0.5) * values for name, values in drawn.items()}
    alpha = {
        "HardSigmoid": 0.3,
        "ScaledTanh": 0.7,
        "LeakyRelu": 0.1,
        "Elu": 0.4,
        "Affine": 0.6,
        "ThresholdedRelu": 0.05,
    }
    beta = {"HardSigmoid": 0.4, "ScaledTanh": 0.9, "Affine": 0.2}
    values = {
        "activation_alpha": [alpha[a] for a in activations if a in alpha],
        "activation_beta": [beta[a] for a in activations if a in beta],
    }
    given = {name: v for name, v in values.items() if v}
    outputs = ("y", "y_h", "y_c")
    attributes = {"activations": activations, "hidden_size": HIDDEN, **given}
    check("LSTM", inputs, outputs=outputs, against="onnxruntime", opset=21, atol=1e-4, rtol=1e-4, **attributes)


@pytest.mark.parametrize("op_type", ["RNN", "GRU", "LSTM"])
def test_batch_first_layout(op_type: str) -> None:
    inputs = _inputs(op_type, 1, bias=True, lengths=False, initial=True)
    for name in ("x", "h0", "c0"):
        if inputs.get(name) is not None:
            inputs[name] = np.ascontiguousarray(inputs[name].transpose(1, 0, 2))
    from tests.ops.cases import assert_like, by_onnxruntime, model_of, on_vulkan

    values = {name: v for name, v in inputs.items() if v is not None}
    outputs = _outputs(op_type)
    got = on_vulkan(model_of(op_type, inputs, outputs=outputs, hidden_size=HIDDEN, layout=1), values)
    # onnxruntime has layout 0 only
    turned = {n: v.transpose(1, 0, 2) if n in ("x", "h0", "c0") else v for n, v in values.items()}
    full = {name: turned.get(name) for name in inputs}
    y, *states = by_onnxruntime(model_of(op_type, full, outputs=outputs, hidden_size=HIDDEN, opset=21), turned)
    assert_like(got, [y.transpose(2, 0, 1, 3), *(s.transpose(1, 0, 2) for s in states)])


@pytest.mark.parametrize("op_type", ["RNN", "GRU", "LSTM"])
def test_float16(op_type: str) -> None:
    inputs = _inputs(op_type, 1, bias=True, lengths=False, initial=False)
    half = {n: v.astype(np.float16) if v is not None else None for n, v in inputs.items()}
    check(op_type, half, outputs=("y",), opset=22, atol=5e-3, rtol=1e-2, hidden_size=HIDDEN)
