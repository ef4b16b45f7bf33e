"""The next token from logits and settings, against numpy, as each kind of device selects it."""

from __future__ import annotations

import numpy as np
import pytest

from gpu_shared.capabilities import DeviceCapabilities
from tests.generation.test_sampling import chosen
from tests.kernels.harness import Harness, Tensor
from vkep.generation.choices import settings_of
from vkep.generation.sampling import Sampling
from vkep.kernels.tokens.choose_token import ChooseTokenProblem

EACH = [
    Sampling(),
    Sampling(temperature=1.0),
    Sampling(temperature=0.5, top_k=20, repetition_penalty=1.5),
    Sampling(temperature=2.0, top_p=0.7),
    Sampling(temperature=1.5, top_k=300, top_p=0.6, min_p=0.01),
    Sampling(temperature=1.0, min_p=0.2),
]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("vocabulary", [1, 5000])  # 5000: three blocks of tokens on a GPU
@pytest.mark.parametrize("changed", [False, True])
def test_it_is_numpys(gpu: Harness, caps: DeviceCapabilities, dtype: str, vocabulary: int, changed: bool) -> None:
    rng = np.random.default_rng(vocabulary)
    rows, stride = len(EACH), vocabulary + 3
    x = rng.normal(0, 4, (rows, stride)).astype(dtype)
    chances = rng.random(rows).astype(np.float32)
    settings = np.array([settings_of(s, float(c)) for s, c in zip(EACH, chances, strict=True)], np.float32)
    seen = rng.integers(0, vocabulary, (rows, 5))
    seen[:, 0] = x[:, :vocabulary].argmax(1)  # a penalty changes the choice
    never = np.array([3, 4700, vocabulary, -1], np.int64)  # the last two are no tokens
    given = [Tensor(x.reshape(-1)[: rows * stride - 3]), Tensor(settings)]
    given += [Tensor(seen), Tensor(never)] if changed else []
    made = [Tensor.empty((rows,), np.int64), Tensor.empty((rows,), np.int32)]
    problem = ChooseTokenProblem(rows, vocabulary, stride, dtype, *((5, 4) if changed else (0, 0)), changed)
    shares = [Tensor.empty((rows, vocabulary), np.float32)] if changed else []
    gpu.compute(problem, caps, given, [*made, *shares])
    if shares:
        expected = problem.reference(x[:, :vocabulary].astype(np.float64), settings, seen, never)[2]
        np.testing.assert_allclose(shares[0].array, expected, rtol=1e-3, atol=1e-6)
    for row, s in enumerate(EACH):
        logits = x[row, :vocabulary].astype(np.float64)
        if changed:
            for token in {int(t) for t in seen[row]}:
                logits[token] *= s.repetition_penalty if logits[token] < 0 else 1 / s.repetition_penalty
            logits[[t for t in never if 0 <= t < vocabulary]] = -np.inf
        wanted = chosen(
            logits, Sampling(s.temperature, min(s.top_k, vocabulary), s.top_p, s.min_p), float(chances[row]), []
        )
        assert made[0].array[row] == made[1].array[row] == wanted, s


def test_a_logit_that_is_no_number_is_not_chosen(gpu: Harness) -> None:
    x = np.array([[np.nan, 1, np.nan, 0.5]], np.float32)
    settings = np.array([settings_of(Sampling(temperature=1.0, top_k=2), 0.9)], np.float32)
    made = [Tensor.empty((1,), np.int64), Tensor.empty((1,), np.int32)]
    gpu.compute(ChooseTokenProblem(1, 4, 4, "float32"), gpu.caps, [Tensor(x), Tensor(settings)], made)
    assert made[1].array.tolist() == [3]
