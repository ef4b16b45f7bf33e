"""The generator of benchmark models: deterministic, valid, sane in range, and the options do what they say."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest

from tools.models.catalog import (
    CATALOG,
    MICRO,
    Options,
    build_model,
    reference_inputs,
    reference_outputs,
    write_model,
)
from tools.models.reference import evaluate
from tools.ort_cpu import cpu_session
from vkep.models.builder import Array, GraphBuilder


def run(model: onnx.ModelProto | Path, inputs: dict[str, Array]) -> list[Array]:
    return list(cpu_session(model).run(None, inputs))


def test_a_model_is_the_same_every_time() -> None:
    first, second = build_model("bert"), build_model("bert")
    assert first.SerializeToString(deterministic=True) == second.SerializeToString(deterministic=True)


def test_a_weight_depends_on_its_name_not_on_the_order() -> None:
    one, other = GraphBuilder("m"), GraphBuilder("m")
    a = one.weight("a", (3, 4), 1.0)
    other.weight("b", (5,), 1.0)
    np.testing.assert_array_equal(a, other.weight("a", (3, 4), 1.0))
    assert not np.array_equal(a, GraphBuilder("another").weight("a", (3, 4), 1.0))


@pytest.mark.parametrize(
    ("name", "operators"),
    [
        ("mobilenetv2", {"Conv": 52, "Clip": 35, "Add": 10, "ReduceMean": 1, "Reshape": 1, "Gemm": 1}),
        ("resnet18", {"Conv": 20, "Relu": 17, "Add": 8, "MaxPool": 1, "ReduceMean": 1, "Reshape": 1, "Gemm": 1}),
        (
            "bert",
            {
                "GatherElements": 1, "Gather": 3, "Add": 42, "LayerNormalization": 9, "Cast": 1, "GatherND": 1,
                "And": 1, "Where": 1, "MatMul": 32, "Reshape": 16,
                "Transpose": 16, "Mul": 12, "Softmax": 4, "Div": 4, "Erf": 4,
            },
        ),
    ],
)  # fmt: skip
def test_the_operators_are_those_of_an_exported_graph(name: str, operators: dict[str, int]) -> None:
    model = build_model(name)
    assert Counter(node.op_type for node in model.graph.node) == operators
    assert model.opset_import[0].version == 18


@pytest.mark.parametrize("name", ["mobilenetv2", "resnet18", "bert", "bert_enc", "gpt2step", *MICRO])
def test_outputs_stay_in_a_sane_range(name: str) -> None:
    model = build_model(name)
    outputs = reference_outputs(name, model, reference_inputs(name, model))
    for output, value in outputs.items():
        assert np.isfinite(value).all(), output
        assert 1e-3 < np.abs(value).max() < 1e3, output
        assert value.std() > 1e-3, f"{output} is all but constant: an engine that returns anything would pass"


def test_every_activation_of_a_convnet_is_calibrated() -> None:
    model = build_model("mobilenetv2")
    convolutions = [node.output[0] for node in model.graph.node if node.op_type == "Conv"]
    for name in convolutions:
        model.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    results = evaluate(model, reference_inputs("mobilenetv2", model))
    spread = [float(results[name].std()) for name in convolutions]
    assert min(spread) > 0.2
    assert max(spread) < 5


def test_the_mask_matters() -> None:
    model = build_model("bert")
    inputs = reference_inputs("bert", model)
    (masked,), (open_,) = run(model, inputs), run(model, inputs | {"mask": np.ones_like(inputs["mask"])})
    assert np.abs(masked - open_).max() > 1e-2


def test_dynamic_dimensions_take_other_sizes() -> None:
    model = build_model("bert", Options(dynamic=True))
    inputs = {"ids": np.arange(3 * 17).reshape(3, 17), "mask": np.ones((3, 17), np.int64)}
    inputs["mask"][:, 12:] = 0
    (batched,) = run(model, inputs)
    assert batched.shape == (3, 17, 256)
    (alone,) = run(model, {key: value[1:2] for key, value in inputs.items()})
    np.testing.assert_allclose(batched[1:2], alone, atol=1e-4)
    # The same numbers as the static model's, at its size.
    static = build_model("bert")
    feeds = reference_inputs("bert", static)
    np.testing.assert_allclose(run(model, feeds)[0], run(static, feeds)[0], atol=1e-4)


def test_a_decode_step_takes_a_shorter_past() -> None:
    model = build_model("gpt2step", Options(dynamic=True))
    inputs = reference_inputs("gpt2step", model)
    inputs["pk"], inputs["pv"] = inputs["pk"][:, :, :5], inputs["pv"][:, :, :5]
    logits, keys, values = run(model, inputs)
    assert logits.shape == (1, 1, 8192)
    assert keys.shape == values.shape == (6, 8, 6, 64)
    np.testing.assert_array_equal(keys[:, :, :5], inputs["pk"])


def test_float16_stores_halves_and_keeps_a_float32_reference(tmp_path: Path) -> None:
    path = write_model("conv3x3", tmp_path, Options(float16=True))
    model = onnx.load(path)
    assert {tensor.data_type for tensor in model.graph.initializer} == {onnx.TensorProto.FLOAT16}
    with np.load(path.with_suffix(".npz")) as stored:
        assert stored["in_x"].dtype == np.float16
        assert stored["out_y"].dtype == np.float32
        (result,) = run(path, {"x": stored["in_x"]})
        np.testing.assert_allclose(result.astype(np.float32), stored["out_y"], atol=2e-2)


def test_external_data_is_written_once_and_read_back(tmp_path: Path) -> None:
    inside = write_model("bert_enc", tmp_path / "inside")
    for _ in range(2):  # the second time must not append
        outside = write_model("bert_enc", tmp_path / "outside", Options(external_data=True))
    weights = outside.with_suffix(".weights")
    assert outside.stat().st_size < 100_000
    assert weights.stat().st_size == pytest.approx(inside.stat().st_size, rel=0.02)
    with np.load(inside.with_suffix(".npz")) as stored:
        np.testing.assert_allclose(run(outside, {"x": stored["in_x"]})[0], stored["out_y"], atol=1e-4)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("nothing", Options(), "no model named 'nothing'"),
        ("bert", Options(batch=0), "batch must be at least 1, got 0"),
        ("conv3x3", Options(batch=4), "conv3x3 has no batch dimension"),
        ("conv3x3", Options(dynamic=True), "conv3x3 has no dynamic dimensions"),
    ],
)
def test_wrong_options_are_refused(name: str, options: Options, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_model(name, options)


def test_onnx_agrees_with_the_reference_where_onnxruntime_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_model("op_layer_norm_128x256")
    inputs = reference_inputs("op_layer_norm_128x256", model)
    usual = evaluate(model, inputs)
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    np.testing.assert_allclose(evaluate(model, inputs)["y"], usual["y"], atol=1e-5)


def test_the_catalog_names_the_models_of_the_benchmarks() -> None:
    wanted = {"matmul1024", "conv3x3", "mobilenetv2", "resnet18", "resnet50", "bert", "bert_enc", "gpt2step", "elem16m"}
    assert wanted <= set(CATALOG)
