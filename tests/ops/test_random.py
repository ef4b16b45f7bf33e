"""Random operators: their distributions, what a seed keeps, and that runs without one differ."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from gpu_shared.capabilities import DeviceCapabilities
from tests.ops.cases import check, graph_of, model_of, on_vulkan
from tests.ops.microsoft import Inputs, normal
from vkep import InferenceSession
from vkep.ir.builder import Builder
from vkep.kernels.random import RANDOM
from vkep.plan.records import FRESH, Slot

pytestmark = pytest.mark.usefixtures("vulkan")

UNSEEDED: dict[str, dict[str, Any]] = {
    "RandomNormal": {"shape": [512]},
    "RandomUniform": {"shape": [512]},
    "RandomNormalLike": {},
    "RandomUniformLike": {},
    "Bernoulli": {},
    "Multinomial": {"sample_size": 256},
}


@pytest.mark.parametrize("op_type", UNSEEDED)
def test_runs_without_a_seed_differ_and_runs_with_one_repeat(op_type: str) -> None:
    attributes = UNSEEDED[op_type]
    shape = (2, 3) if op_type == "Multinomial" else (512,)
    values = {} if "shape" in attributes else {"x": np.full(shape, 0.5, np.float32)}
    seeds: tuple[dict[str, Any], ...] = ({}, {"seed": 4.0})
    for seed in seeds:
        model = model_of(op_type, values, opset=22, **attributes, **seed)
        with InferenceSession(model, fallback="error") as session:
            runs = [session.run(None, values)[0] for _ in range(3)]
            with InferenceSession(model, fallback="error") as other:
                elsewhere = other.run(None, values)[0]
        same = [np.array_equal(a, b) for a, b in zip(runs, [*runs[1:], elsewhere], strict=True)]
        assert same == [bool(seed)] * 3


def test_draws_of_one_plan_differ_and_share_a_slot() -> None:
    nodes = [helper.make_node("RandomNormal", [], [name], shape=[100]) for name in ("a", "b")]
    nodes += [helper.make_node("RandomNormal", [], [name], shape=[100], seed=1.0) for name in ("c", "d")]
    with InferenceSession(graph_of(nodes, {}, ["a", "b", "c", "d"]), fallback="error") as session:
        first, second = session.run(None, {}), session.run(None, {})
    assert not np.array_equal(first[0], first[1])
    assert not np.array_equal(first[2], first[3])
    assert [np.array_equal(a, b) for a, b in zip(first, second, strict=True)] == [False, False, True, True]


def test_other_plans_have_no_slot_to_fill() -> None:
    assert Slot(FRESH) != Slot(0)
    assert Builder(DeviceCapabilities.for_tests()).fresh_bits().storage.port == FRESH
    assert [o.name for o in RANDOM.interface({}).operands] == ["y", "fresh"]


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("made", [TensorProto.INT32, TensorProto.INT64])
def test_multinomial_follows_its_probabilities(dtype: Any, made: int) -> None:
    chances = np.array([[0.1, 0.2, 0.7], [0.5, 0.0, 0.5], [0.0, 1.0, 0.0]])
    with np.errstate(divide="ignore"):
        logits = (np.log(chances) + 3).astype(dtype)  # need not be normalised
    model = model_of("Multinomial", {"x": logits}, opset=22, sample_size=1 << 14, seed=2.0, dtype=made)
    got = on_vulkan(model, {"x": logits})[0]
    assert got.dtype == helper.tensor_dtype_to_np_dtype(made)
    assert got.shape == (3, 1 << 14)
    shares = np.stack([np.bincount(row, minlength=3) / row.size for row in got])
    np.testing.assert_allclose(shares, chances, atol=0.015)
    assert not shares[chances == 0].any()


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("seed", [None, 5])
def test_dropout_in_training(dtype: Any, seed: int | None) -> None:
    x = np.arange(1, 1 + (1 << 14)).astype(dtype) / dtype(1 << 14)
    values = {"x": x, "ratio": np.array(0.25, dtype), "training": np.array(True)}
    attributes: dict[str, Any] = {} if seed is None else {"seed": seed}
    model = model_of("Dropout", values, outputs=("y", "mask"), constants=("ratio", "training"), opset=22, **attributes)
    y, mask = on_vulkan(model, values)
    assert mask.dtype == np.bool_
    assert abs(mask.mean() - 0.75) < 0.02
    np.testing.assert_allclose(y, np.where(mask, x.astype(np.float64) / 0.75, 0), rtol=2 * np.finfo(dtype).eps)


def test_dropout_of_everything_is_declined() -> None:
    values = {"x": np.ones(3, np.float32), "ratio": np.array(1, np.float32), "training": np.array(True)}
    model = model_of("Dropout", values, constants=("ratio", "training"), opset=22)
    with pytest.raises(Exception, match=r"ratio is 1.0, expected at least 0 and below 1"):
        on_vulkan(model, values)


def test_bias_dropout_in_training() -> None:
    values = {
        "data": np.full((64, 64), 2, np.float32),
        "bias": np.ones(64, np.float32),
        "residual": np.full((64, 64), 10, np.float32),
        "ratio": np.array(0.5, np.float32),
        "training": np.array(True),
    }
    model = model_of(
        "BiasDropout", values, outputs=("y", "mask"), constants=("ratio", "training"), domain="com.microsoft", seed=3
    )
    y, mask = on_vulkan(model, values)
    np.testing.assert_array_equal(y, np.where(mask, 16, 10).astype(np.float32))
    assert abs(mask.mean() - 0.5) < 0.05


@pytest.mark.parametrize("opset", [7, 10, 12])
def test_dropout_outside_of_training_makes_the_mask_that_onnxruntime_makes(opset: int) -> None:
    x = np.ones((2, 3), np.float32)
    [_, mask] = check("Dropout", {"x": x}, outputs=("y", "mask"), opset=opset, against="onnxruntime")
    assert mask.dtype == (np.float32 if opset == 7 else np.bool_)


def test_bias_dropout_of_inference() -> None:
    inputs = {"x": normal(3, 8), "b": normal(8), "r": normal(3, 8)}
    model = model_of("BiasDropout", inputs, domain="com.microsoft", outputs=("y",))
    np.testing.assert_allclose(on_vulkan(model, inputs)[0], sum(inputs.values()), rtol=1e-6)


@pytest.mark.parametrize("op_type", ["BitmaskDropout", "BitmaskBiasDropout"])
@pytest.mark.parametrize("training", [False, True])
def test_bitmask_dropout(op_type: str, training: bool) -> None:
    x = normal(7, 11)
    inputs: Inputs = {"x": x}
    if op_type == "BitmaskBiasDropout":
        inputs |= {"c": normal(11), "r": normal(7, 11)}
    rates = {"ratio": np.array(0.25, np.float32), "training": np.array(training)}
    given = inputs | rates
    model = model_of(op_type, given, outputs=("y", "mask"), constants=tuple(rates), domain="com.microsoft", seed=3)
    y, mask = on_vulkan(model, given)
    assert mask.dtype == np.uint32
    assert mask.shape == (3,)
    kept = np.unpackbits(mask.view(np.uint8), bitorder="little")[:77].reshape(7, 11).astype(bool)
    assert kept.all() if not training else 30 < kept.sum() < 77
    total = x + given["c"] if "c" in given else x
    total = np.where(kept, total / (0.75 if training else 1), 0)
    np.testing.assert_allclose(y, total + given["r"] if "r" in given else total, rtol=1e-5, atol=1e-6)
