"""ai.onnx.ml without its trees, against onnxruntime's CPU provider."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.ops.cases import assert_like, by_onnxruntime, by_reference, on_vulkan
from vkep import InferenceSession
from vkep.errors import InvalidInputError, UnsupportedModelError

pytestmark = pytest.mark.usefixtures("vulkan")
RNG = np.random.default_rng(18)
Array = np.ndarray[Any, Any]
FEATURES = [np.float32, np.float64, np.int64, np.int32]


def ml_model(
    op_type: str, inputs: dict[str, Array], outputs: tuple[str, ...] = ("y",), version: int = 3, **attributes: Any
) -> onnx.ModelProto:
    """One node of ai.onnx.ml. ``int64`` and NaN inputs are as given."""
    node = helper.make_node(op_type, list(inputs), list(outputs), domain="ai.onnx.ml", **attributes)
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for n, v in inputs.items()
    ]
    graph = helper.make_graph([node], "g", infos, [onnx.ValueInfoProto(name=name) for name in outputs])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", version)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def check_ml(
    op_type: str,
    inputs: dict[str, Array],
    outputs: tuple[str, ...] = ("y",),
    *,
    version: int = 3,
    reference: bool = False,
    rtol: float = 1e-5,
    **attributes: Any,
) -> list[Array]:
    """``reference``: against ONNX's evaluator, for what onnxruntime does not have."""
    model = ml_model(op_type, inputs, outputs, version, **attributes)
    got = on_vulkan(model, inputs)
    assert_like(got, (by_reference if reference else by_onnxruntime)(model, inputs), rtol, rtol)
    return got


def features(dtype: Any = np.float32, *shape: int) -> Array:
    return (RNG.normal(0, 3, shape or (5, 4))).astype(dtype)


@pytest.mark.parametrize("dtype", FEATURES)
@pytest.mark.parametrize("per_feature", [True, False])
def test_scaler(dtype: Any, per_feature: bool) -> None:
    count = 4 if per_feature else 1
    offset, scale = RNG.normal(0, 1, (2, count)).astype(np.float32).tolist()
    check_ml("Scaler", {"x": features(dtype)}, offset=offset, scale=scale)


@pytest.mark.parametrize("dtype", FEATURES)
@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
def test_normalizer(dtype: Any, norm: str) -> None:
    x = features(dtype)
    x[2] = 0
    check_ml("Normalizer", {"x": x}, norm=norm)
    check_ml("Normalizer", {"x": x[0]}, norm=norm)


@pytest.mark.parametrize("replaced", [np.nan, 2.0])
@pytest.mark.parametrize("count", [4, 1, 2])
def test_imputer(replaced: float, count: int) -> None:
    x = features()
    x[1, 2] = x[3, 0] = replaced
    values = [float(v) for v in range(10, 10 + count)]
    check_ml("Imputer", {"x": x}, imputed_value_floats=values, replaced_value_float=replaced)


def test_imputer_of_integers() -> None:
    x = RNG.integers(0, 3, (5, 4))
    check_ml("Imputer", {"x": x}, imputed_value_int64s=[7, 8, 9, 2**40], replaced_value_int64=1)


@pytest.mark.parametrize("threshold", [0.0, 0.3, -1.0])
def test_binarizer(threshold: float) -> None:
    check_ml("Binarizer", {"x": features()}, threshold=threshold)
    check_ml("Binarizer", {"x": features(np.int64)}, threshold=threshold, reference=True)


def test_binarizer_refuses_nan() -> None:
    model = ml_model("Binarizer", {"x": features()})
    with pytest.raises(InvalidInputError, match="an element is NaN"):
        on_vulkan(model, {"x": np.full((5, 4), np.nan, np.float32)})


@pytest.mark.parametrize("dtype", FEATURES)
def test_feature_vectorizer(dtype: Any) -> None:
    inputs = {"a": features(dtype, 3, 2), "b": features(dtype, 3, 4), "c": features(dtype, 3, 2, 2)}
    check_ml("FeatureVectorizer", inputs, inputdimensions=[2, 3, 6])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", FEATURES)
@pytest.mark.parametrize("shape", [(6,), (3, 6), (2, 3, 6)])
def test_array_feature_extractor(dtype: Any, shape: tuple[int, ...]) -> None:
    inputs = {"x": features(dtype, *shape), "i": np.array([[5, 0, 3]], np.int64)}
    check_ml("ArrayFeatureExtractor", inputs)
    with pytest.raises(InvalidInputError, match="an index is outside"):
        on_vulkan(ml_model("ArrayFeatureExtractor", inputs), {**inputs, "i": np.array([[5, 0, 6]], np.int64)})


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_one_hot_encoder(dtype: Any) -> None:
    x = np.array([[3, -2, 9], [2**31, 4, 0]]).astype(dtype)
    check_ml("OneHotEncoder", {"x": x}, cats_int64s=[9, 3, 0, -2, 2**31])
    known = ml_model("OneHotEncoder", {"x": x}, cats_int64s=[9, 3, 0, -2, 2**31, 4], zeros=0)
    assert_like(on_vulkan(known, {"x": x}), by_onnxruntime(known, {"x": x}))
    with pytest.raises(InvalidInputError, match="an element is no category"):
        on_vulkan(known, {"x": x + 1})


KEYS: dict[str, Any] = {"floats": [2.5, float("nan"), -1.0, 0.0, 2.5], "int64s": [7, -3, 2**40, 0, 7]}


@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("values", ["floats", "int64s"])
@pytest.mark.parametrize("version", [2, 4])
def test_label_encoder(keys: str, values: str, version: int) -> None:
    x = np.array([[2.5, np.nan, 0.1], [-0.0, -1, 7]], np.float32) if keys == "floats" else np.array([7, 2**40, 8, -3])
    given = [1.5, 2.5, -3.0, 4.0, 9.0] if values == "floats" else [1, 2, 2**41, 4, 9]
    if version == 2 and keys == "floats":
        x[0, 1] = 0.5  # NaN equals no key then
    attributes = {f"keys_{keys}": KEYS[keys], f"values_{values}": given}
    check_ml("LabelEncoder", {"x": x}, version=version, **attributes)
    default = {"default_float": 0.25} if values == "floats" else {"default_int64": 55}
    check_ml("LabelEncoder", {"x": x}, version=version, **attributes, **default)


@pytest.mark.parametrize("dtype", [np.int64, np.float32, np.float64, np.int32, np.int16])
def test_label_encoder_of_tensors(dtype: Any) -> None:
    keys, values = np.array([4, -1, 9], dtype), np.array([0.5, 7.0, 3.0], np.float32)
    check_ml(
        "LabelEncoder",
        {"x": np.array([9, 9, 2, 4], dtype)},
        version=4,
        reference=dtype in (np.int32, np.int16) or dtype is np.float64,
        keys_tensor=numpy_helper.from_array(keys),
        values_tensor=numpy_helper.from_array(values),
        default_tensor=numpy_helper.from_array(np.array([-2], np.float32)),
    )


def test_label_encoder_of_lists_with_a_default_that_is_a_tensor() -> None:
    default = numpy_helper.from_array(np.array([42], np.int64))
    lists: dict[str, Any] = {"keys_int64s": [1, 2], "values_int64s": [7, 8]}
    check_ml("LabelEncoder", {"x": np.array([2, 5], np.int64)}, version=4, default_tensor=default, **lists)


def test_texts_are_not_the_devices() -> None:
    model = ml_model("LabelEncoder", {"x": np.zeros(3, np.int64)}, keys_int64s=[0], values_strings=["a"])
    with pytest.raises(UnsupportedModelError, match=r"Gather .*no kernel takes"):
        on_vulkan(model, {"x": np.zeros(3, np.int64)})


# ---- linear models and support vectors


@pytest.mark.parametrize("dtype", FEATURES[:1])
@pytest.mark.parametrize("targets", [1, 3])
@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"])
def test_linear_regressor(dtype: Any, targets: int, transform: str) -> None:
    coefficients = (RNG.uniform(0, 0.2, 4 * targets)).astype(np.float32).tolist()
    attributes: dict[str, Any] = {"coefficients": coefficients, "targets": targets, "post_transform": transform}
    x = RNG.uniform(0.1, 0.9, (5, 4)).astype(dtype)
    if targets == 1 and transform not in ("NONE", "PROBIT"):
        with pytest.raises(UnsupportedModelError, match="of one target, which ONNX Runtime leaves out"):
            on_vulkan(ml_model("LinearRegressor", {"x": x}, **attributes), {"x": x})
        return
    check_ml("LinearRegressor", {"x": x}, **attributes)
    attributes["coefficients"] = [*coefficients, 99.0]  # what is too many is not read
    check_ml("LinearRegressor", {"x": x}, **attributes, intercepts=[0.05] * targets)


@pytest.mark.parametrize("dtype", FEATURES)
@pytest.mark.parametrize("classes", [1, 2, 4])
@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"])
def test_linear_classifier(dtype: Any, classes: int, transform: str) -> None:
    coefficients = RNG.normal(0, 1, 4 * classes).astype(np.float32).tolist()
    intercepts = RNG.normal(0, 1, classes).astype(np.float32).tolist()
    check_ml(
        "LinearClassifier",
        {"x": features(dtype)},
        ("label", "scores"),
        coefficients=coefficients,
        intercepts=intercepts,
        classlabels_ints=[5, -9, 7, 2**40][: max(classes, 2)],
        post_transform=transform,
    )


@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
@pytest.mark.parametrize("one_class", [0, 1])
def test_svm_regressor(kernel: str, one_class: int) -> None:
    check_ml(
        "SVMRegressor",
        {"x": features()},
        kernel_type=kernel,
        kernel_params=[0.1, 0.5, 3.0],
        n_supports=6,
        one_class=one_class,
        coefficients=RNG.normal(0, 1, 6).astype(np.float32).tolist(),
        support_vectors=RNG.normal(0, 1, 24).astype(np.float32).tolist(),
        rho=[0.25],
        rtol=1e-4,
    )


def test_svm_regressor_without_supports() -> None:
    attributes: dict[str, Any] = {"kernel_type": "LINEAR", "kernel_params": [0.0, 0.0, 0.0]}
    check_ml("SVMRegressor", {"x": features()}, coefficients=[0.5, -1.0, 2.0, 0.1], rho=[0.25], **attributes)


@pytest.mark.parametrize("dtype", FEATURES[:1])
@pytest.mark.parametrize(("kernel", "classes"), [("LINEAR", 2), ("RBF", 3), ("POLY", 4), ("SIGMOID", 2)])
@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX"])
def test_svm_classifier(dtype: Any, kernel: str, classes: int, transform: str) -> None:
    counts = [3, 1, 0, 2][:classes]
    check_ml(
        "SVMClassifier",
        {"x": features(dtype)},
        ("label", "scores"),
        kernel_type=kernel,
        kernel_params=[0.1, 0.5, 3.0],
        classlabels_ints=[5, -9, 7, 2**40][:classes],
        vectors_per_class=counts,
        coefficients=RNG.normal(0, 1, (classes - 1) * sum(counts)).astype(np.float32).tolist(),
        support_vectors=RNG.normal(0, 1, 4 * sum(counts)).astype(np.float32).tolist(),
        rho=RNG.normal(0, 0.1, classes * (classes - 1) // 2).astype(np.float32).tolist(),
        post_transform=transform,
        rtol=1e-4,
    )


@pytest.mark.parametrize("classes", [2, 3, 7])
@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX", "LOGISTIC"])
def test_svm_classifier_of_probabilities(classes: int, transform: str) -> None:
    pairs, vectors = classes * (classes - 1) // 2, 2 * classes
    check_ml(
        "SVMClassifier",
        {"x": features()},
        ("label", "scores"),
        kernel_type="RBF",
        kernel_params=[0.1, 0.5, 3.0],
        classlabels_ints=list(range(classes)),
        vectors_per_class=[2] * classes,
        coefficients=RNG.normal(0, 1, (classes - 1) * vectors).astype(np.float32).tolist(),
        support_vectors=RNG.normal(0, 1, 4 * vectors).astype(np.float32).tolist(),
        rho=RNG.normal(0, 0.1, pairs).astype(np.float32).tolist(),
        prob_a=RNG.uniform(-4, -1, pairs).astype(np.float32).tolist(),
        prob_b=RNG.normal(0, 0.3, pairs).astype(np.float32).tolist(),
        post_transform=transform,
        rtol=1e-4,
    )


@pytest.mark.parametrize(("classes", "least"), [(2, -1), (2, 0), (3, -1)])
def test_svm_classifier_without_supports(classes: int, least: float) -> None:
    coefficients = RNG.uniform(least, 1, 4 * classes).astype(np.float32).tolist()
    attributes: dict[str, Any] = {
        "classlabels_ints": [5, -9, 7][:classes],
        "coefficients": coefficients,
        "rho": [-0.25],
    }
    kernel: dict[str, Any] = {"kernel_type": "LINEAR", "kernel_params": [0.0, 0.0, 0.0]}
    check_ml("SVMClassifier", {"x": features()}, ("label", "scores"), **attributes, **kernel)


# ---- texts


TEXTS = ["no", "", "perhaps"]
OF_TEXTS: dict[str, tuple[str, dict[str, Any], int]] = {
    "linear": ("LinearClassifier", {"coefficients": [0.5, -1.0, 2.0, 0.1] * 3, "intercepts": [0.1, 0.9, -1.0]}, 3),
    "linear of one score": ("LinearClassifier", {"coefficients": [0.5, -1.0, 2.0, 0.1], "intercepts": [0.1]}, 2),
    "vectors": (
        "SVMClassifier",
        {
            "coefficients": [0.5, -1.0, 0.25],
            "rho": [0.1],
            "support_vectors": [0.1 * k for k in range(12)],
            "vectors_per_class": [1, 2],
            "kernel_type": "RBF",
            "kernel_params": [0.3, 0.0, 3.0],
        },
        2,
    ),
}


@pytest.mark.parametrize("which", OF_TEXTS)
def test_of_labels_that_are_texts_the_cpu_has_the_texts_alone(which: str) -> None:
    op_type, attributes, count = OF_TEXTS[which]
    x = features()
    model = ml_model(op_type, {"x": x}, ("label", "scores"), classlabels_strings=TEXTS[:count], **attributes)
    check_texts(model, x)


@pytest.mark.parametrize(
    ("version", "default"),
    [
        (2, {}),
        (2, {"default_string": "none"}),
        (4, {"default_tensor": numpy_helper.from_array(np.array(["nothing"], object), "d")}),
    ],
)
def test_a_label_encoder_from_numbers_to_texts(version: int, default: dict[str, Any]) -> None:
    x = np.array([[4, 7], [9, 4]], np.int64)
    lists: dict[str, Any] = {"keys_int64s": [4, 7, -1], "values_strings": TEXTS}
    check_texts(ml_model("LabelEncoder", {"x": x}, version=version, **lists, **default), x)


def check_texts(model: onnx.ModelProto, x: Array) -> None:
    with InferenceSession(model) as session:
        got = session.run(None, {"x": x})
        where = {n.op_type: n.where for n in session.report().nodes}
    for ours, expected in zip(got, by_onnxruntime(model, {"x": x}), strict=True):
        assert_like([ours], [np.asarray(expected)])
    assert where == {model.graph.node[0].op_type: "vulkan", "Gather": "cpu"}
