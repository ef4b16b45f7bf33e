"""The recurrent kernel as a CPU driver and as a GPU would select it, against numpy."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from gpu_shared.capabilities import DeviceCapabilities
from tests.kernels.harness import Harness, Tensor
from vkep.errors import Decline
from vkep.kernels.recurrent import CELLS, RecurrentProblem, carries
from vkep.kernels.select import choose

ACTIVATIONS = (
    "float act_f(float x) { return 1.0 / (1.0 + exp(-x)); } float act_g(float x) { return tanh(x); } "
    "float act_h(float x) { return tanh(x); }"
)


def _sigmoid(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("hidden", [1, 7, 64, 150])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_cells(gpu: Harness, caps: DeviceCapabilities, cell: str, hidden: int, dtype: str) -> None:
    rng = np.random.default_rng(hidden)
    steps, batches, gates = 4, 3, CELLS[cell]
    x = rng.normal(size=(steps, batches, gates * hidden)).astype(dtype)
    w = rng.normal(0, 0.3, size=(hidden, gates * hidden)).astype(dtype)
    h0 = rng.normal(size=(batches, hidden)).astype(dtype)
    lengths = [4, 1, 0]
    y, h1, c1 = (
        Tensor.empty((steps, batches, hidden), dtype),
        *(Tensor.empty((batches, hidden), dtype) for _ in range(2)),
    )
    inputs = [Tensor(x), Tensor(w), Tensor(np.array(lengths, np.int32)), Tensor(h0)]
    strides = (batches * hidden, hidden, 1)
    given = frozenset(("lengths", "h0"))
    functions = (_sigmoid, np.tanh, np.tanh)
    problem = RecurrentProblem(cell, steps, batches, hidden, dtype, ACTIVATIONS, strides, given, functions=functions)
    gpu.compute(problem, caps, inputs, [y, h1, c1] if cell == "LSTM" else [y, h1])
    operands = {"gates": x, "weights": w, "h0": h0}
    wide = {name: operand.astype(np.float64) for name, operand in operands.items()}
    expected, last, *_ = problem.reference(**wide, lengths=np.array(lengths))
    near = 5e-3 if dtype == "float16" else 1e-5
    np.testing.assert_allclose(y.array, expected, atol=near)
    np.testing.assert_allclose(h1.array, last, atol=near)


def test_what_fits(gpu: Harness) -> None:
    cpu, discrete = (dataclasses.replace(gpu.caps, device_type=kind) for kind in ("cpu", "discrete"))

    def fits(batches: int, hidden: int, caps: DeviceCapabilities) -> bool:
        return carries(RecurrentProblem("LSTM", 1, batches, hidden, "float32", "", (1, 1, 1)), caps)

    assert fits(1, 128, cpu) and not fits(16, 128, cpu)
    assert fits(64, 256, discrete) and not fits(1, 1024, discrete)


def test_what_is_turned_down(caps: DeviceCapabilities) -> None:
    little = dataclasses.replace(caps, max_shared_memory_bytes=16384)
    for hidden, dtype, why in ((1024, "float32", "does not fit shared memory"), (1, "float64", "type is float64")):
        with pytest.raises(Decline, match=why):
            choose(RecurrentProblem("LSTM", 1, 1, hidden, dtype, "", (1, 1, 1)), little)
