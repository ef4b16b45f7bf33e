"""ai.onnx.ml's tree ensembles against onnxruntime's CPU provider, drawn at random and made by scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.ops.cases import assert_like, by_onnxruntime, on_vulkan
from tests.ops.test_ml import FEATURES, check_ml, check_texts, ml_model
from vkep import InferenceSession
from vkep.errors import InvalidModelError, UnsupportedModelError

pytestmark = pytest.mark.usefixtures("vulkan")
Array = np.ndarray[Any, Any]
MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")


def drawn(
    seed: int, trees: int, targets: int, what: str, modes: tuple[str, ...] = MODES[:1], each: bool = True
) -> dict[str, Any]:
    """Attributes of trees of up to five levels; ``what`` is "class" or "target", whose lists say what leaves weigh. ``each``:
    each leaf has a weight of each target.
    """
    rng = np.random.default_rng(seed)
    names = ("treeids", "nodeids", "featureids", "modes", "values", "truenodeids", "falsenodeids")
    nodes: dict[str, list[Any]] = {f"nodes_{name}": [] for name in (*names, "missing_value_tracks_true")}
    weights: dict[str, list[Any]] = {f"{what}_{n}": [] for n in ("treeids", "nodeids", "ids", "weights")}

    def grow(tree: int, number: int, level: int) -> int:
        """Adds the node ``number`` and those below it; the next free number."""
        row = len(nodes["nodes_modes"])
        leaf = level == 5 or (level > 1 and rng.random() < 0.3)
        mode = "LEAF" if leaf else str(rng.choice(modes))
        feature = int(rng.integers(4))
        entry = (
            tree,
            number,
            -2 if leaf else feature,  # scikit-learn's number for none
            mode,
            float(np.round(rng.normal(0, 2))),
            0,
            0,
            int(rng.integers(2)),
        )
        for column, value in zip(nodes.values(), entry, strict=True):
            column.append(value)
        if leaf:
            for target in rng.permutation(targets)[: targets if each else rng.integers(1, targets + 1)]:
                said = (tree, number, int(target), float(np.float32(rng.normal())))
                for column, value in zip(weights.values(), said, strict=True):
                    column.append(value)
            return number + 1
        nodes["nodes_truenodeids"][row] = number + 1
        following = grow(tree, number + 1, level + 1)
        nodes["nodes_falsenodeids"][row] = following
        return grow(tree, following, level + 1)

    for tree in range(trees):
        grow(tree * 3, 0, 0)
    return nodes | weights


def rows(dtype: Any = np.float32, count: int = 37) -> Array:
    x = np.round(np.random.default_rng(5).normal(0, 3, (count, 4))).astype(dtype)
    if np.issubdtype(dtype, np.floating):
        x[3, 1] = x[7, 2] = np.nan
    return x


@pytest.mark.parametrize("dtype", FEATURES[:2])
@pytest.mark.parametrize("each", [True, False])
@pytest.mark.parametrize("targets", [1, 3])
def test_regressor(dtype: Any, targets: int, each: bool) -> None:
    attributes = drawn(1, 7, targets, "target", each=each)
    check_ml("TreeEnsembleRegressor", {"x": rows(dtype)}, n_targets=targets, **attributes)


@pytest.mark.parametrize("dtype", FEATURES[2:])
def test_regressor_of_integers(dtype: Any) -> None:
    """onnxruntime has none."""
    x, attributes = rows(dtype), drawn(1, 7, 3, "target") | {"n_targets": 3}
    model = ml_model("TreeEnsembleRegressor", {"x": x}, **attributes)
    real = ml_model("TreeEnsembleRegressor", {"x": x.astype(np.float32)}, **attributes)
    assert_like(on_vulkan(model, {"x": x}), by_onnxruntime(real, {"x": x.astype(np.float32)}))


@pytest.mark.parametrize("mode", [*MODES, ""])
def test_comparisons(mode: str) -> None:
    attributes = drawn(2, 9, 1, "target", (mode,) if mode else MODES)
    check_ml("TreeEnsembleRegressor", {"x": rows()}, n_targets=1, **attributes)


def test_a_base_value_counts_without_a_weight() -> None:
    """onnxruntime gives 0 where no leaf says something of one target of several; ONNX adds base values to the prediction."""
    attributes = drawn(3, 5, 3, "target", each=False) | {"n_targets": 3}
    (plain,) = on_vulkan(ml_model("TreeEnsembleRegressor", {"x": rows()}, **attributes), {"x": rows()})
    model = ml_model("TreeEnsembleRegressor", {"x": rows()}, **attributes, base_values=[0.5, -1.0, 2.0])
    np.testing.assert_allclose(
        on_vulkan(model, {"x": rows()})[0], plain + np.array([0.5, -1, 2], np.float32), rtol=1e-6
    )
    assert (plain == 0).any()


def test_classes_that_are_texts() -> None:
    attributes = drawn(4, 5, 3, "class") | {"classlabels_strings": ["no", "", "perhaps"]}
    check_texts(ml_model("TreeEnsembleClassifier", {"x": rows()}, ("label", "scores"), **attributes), rows())


@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize("targets", [1, 3])
@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"])
def test_aggregates(aggregate: str, targets: int, transform: str) -> None:
    attributes = drawn(3, 5, targets, "target") | {"aggregate_function": aggregate, "post_transform": transform}
    attributes |= {"base_values": [0.5, -1.0, 2.0][:targets], "n_targets": targets}
    if targets == 1 and transform != "NONE":
        with pytest.raises(UnsupportedModelError, match=f"post_transform {transform} of 1 targets"):
            on_vulkan(ml_model("TreeEnsembleRegressor", {"x": rows()}, **attributes), {"x": rows()})
    else:
        check_ml("TreeEnsembleRegressor", {"x": rows()}, **attributes)


@pytest.mark.parametrize("dtype", FEATURES)
@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"])
@pytest.mark.parametrize("base", [[], [0.25, -0.5, 1.0, 0.0]])
def test_classifier(dtype: Any, transform: str, base: list[float]) -> None:
    attributes = drawn(4, 6, 4, "class") | ({"base_values": base} if base else {})
    labels = [3, -1, 2**33, 8]
    check_ml(
        "TreeEnsembleClassifier",
        {"x": rows(dtype)},
        ("label", "scores"),
        classlabels_int64s=labels,
        post_transform=transform,
        **attributes,
    )


@pytest.mark.parametrize("weighed", [0, 1])
@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC"])
@pytest.mark.parametrize("sign", ["mixed", "positive"])
@pytest.mark.parametrize("base", [[], [0.25]])
def test_two_classes(weighed: int, transform: str, sign: str, base: list[float]) -> None:
    attributes = drawn(5, 3, 1, "class") | ({"base_values": base} if base else {})
    attributes["class_ids"] = [weighed] * len(attributes["class_ids"])
    if sign == "positive":
        attributes["class_weights"] = [abs(w) / 3 for w in attributes["class_weights"]]
    attributes |= {"classlabels_int64s": [5, 9], "post_transform": transform}
    if weighed and base:
        with pytest.raises(UnsupportedModelError, match="two classes with weights or base values of both"):
            on_vulkan(ml_model("TreeEnsembleClassifier", {"x": rows()}, ("l", "s"), **attributes), {"x": rows()})
    else:
        check_ml("TreeEnsembleClassifier", {"x": rows()}, ("label", "scores"), **attributes)


def test_thresholds_and_weights_as_tensors() -> None:
    attributes = drawn(6, 4, 2, "target")
    for name in ("nodes_values", "target_weights"):
        attributes[f"{name}_as_tensor"] = numpy_helper.from_array(np.array(attributes.pop(name), np.float64))
    check_ml("TreeEnsembleRegressor", {"x": rows(np.float64)}, n_targets=2, **attributes)


def of_version_5(dtype: Any, member: bool) -> dict[str, Any]:
    """Two trees of TreeEnsemble; the first asks whether feature 1 is in {1, 3, -2}."""

    def tensor(values: list[Any], kind: Any = dtype) -> onnx.TensorProto:
        return numpy_helper.from_array(np.array(values, kind))

    return {
        "n_targets": 2,
        "tree_roots": [0, 2],
        "nodes_featureids": [1, 0, 2],
        "nodes_modes": tensor([6 if member else 0, 1, 5], np.uint8),
        "nodes_splits": tensor([0.0, 1.0, -1.0]),
        "nodes_truenodeids": [0, 1, 3],
        "nodes_falsenodeids": [1, 2, 0],
        "nodes_trueleafs": [1, 1, 1],
        "nodes_falseleafs": [0, 1, 1],
        "leaf_targetids": [0, 1, 0, 1],
        "leaf_weights": tensor([0.5, -1.0, 2.0, 4.0]),
        **({"membership_values": tensor([1.0, 3.0, -2.0, np.nan])} if member else {}),
    }


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("member", [False, True])
@pytest.mark.parametrize("aggregate", [0, 1, 2, 3])
def test_version_5(dtype: Any, member: bool, aggregate: int) -> None:
    attributes = of_version_5(dtype, member) | {"aggregate_function": aggregate}
    check_ml("TreeEnsemble", {"x": rows(dtype)}, version=5, **attributes)


def test_broken_trees_are_refused() -> None:
    attributes = drawn(7, 1, 1, "target")
    attributes["nodes_truenodeids"] = [0] * len(attributes["nodes_modes"])
    with pytest.raises(InvalidModelError, match="the nodes of a tree form a circle"):
        on_vulkan(ml_model("TreeEnsembleRegressor", {"x": rows()}, n_targets=1, **attributes), {"x": rows()})
    attributes["nodes_truenodeids"] = [999] * len(attributes["nodes_modes"])
    with pytest.raises(InvalidModelError, match="nodes_truenodeids names node 999 of tree 0"):
        on_vulkan(ml_model("TreeEnsembleRegressor", {"x": rows()}, n_targets=1, **attributes), {"x": rows()})
    model = ml_model("TreeEnsembleRegressor", {"x": rows()[:, :2]}, n_targets=1, **drawn(7, 1, 1, "target"))
    with pytest.raises(InvalidModelError, match="the input has 2 features, expected at least 4"):
        on_vulkan(model, {"x": rows()[:, :2]})


# ---- models of scikit-learn


def converted(name: str) -> tuple[onnx.ModelProto, Array]:
    sklearn = pytest.importorskip("sklearn")
    skl2onnx = pytest.importorskip("skl2onnx")
    from sklearn import compose, datasets, ensemble, linear_model, pipeline, preprocessing, svm, tree

    assert sklearn and compose
    regression = name.endswith("regression")
    x, y = (datasets.load_diabetes if regression else datasets.load_iris)(return_X_y=True)
    if "two" in name:
        x, y = x[:100], y[:100]
    x = x.astype(np.float32)
    models: dict[str, Any] = {
        "tree": tree.DecisionTreeClassifier(random_state=0),
        "forest": ensemble.RandomForestClassifier(12, random_state=0),
        "forest of two": ensemble.RandomForestClassifier(12, max_depth=2, random_state=0),
        "boosted": ensemble.GradientBoostingClassifier(n_estimators=9, random_state=0),
        "boosted of two": ensemble.GradientBoostingClassifier(n_estimators=9, random_state=0),
        "logistic": pipeline.make_pipeline(preprocessing.StandardScaler(), linear_model.LogisticRegression()),
        "logistic of two": pipeline.make_pipeline(preprocessing.Normalizer(), linear_model.LogisticRegression()),
        "forest regression": ensemble.RandomForestRegressor(12, random_state=0),
        "boosted regression": ensemble.GradientBoostingRegressor(n_estimators=9, random_state=0),
        "ridge regression": linear_model.Ridge(),
        "support vector regression": svm.SVR(),
    }
    fitted = models[name].fit(x, y)
    options = {} if regression else {id(fitted): {"zipmap": False}}
    return skl2onnx.to_onnx(fitted, x[:1], options=options, target_opset={"": 18, "ai.onnx.ml": 3}), x


@pytest.mark.parametrize(
    "name",
    [
        "tree",
        "forest",
        "forest of two",
        "boosted",
        "boosted of two",
        "logistic",
        "logistic of two",
        "forest regression",
        "boosted regression",
        "ridge regression",
        "support vector regression",
    ],
)
def test_scikit_learn(name: str) -> None:
    model, x = converted(name)
    feeds = {model.graph.input[0].name: x}
    assert_like(on_vulkan(model, feeds), by_onnxruntime(model, feeds), 1e-4, 1e-4)


def test_a_zip_map_runs_on_the_cpu() -> None:
    """Its maps are no tensors; the classifier before it runs on Vulkan."""
    attributes = drawn(4, 6, 3, "class") | {"classlabels_int64s": [0, 1, 2]}
    model = ml_model("TreeEnsembleClassifier", {"x": rows()}, ("label", "scores"), **attributes)
    made = onnx.helper.make_node("ZipMap", ["scores"], ["maps"], domain="ai.onnx.ml", classlabels_int64s=[0, 1, 2])
    model.graph.node.append(made)
    kind = onnx.helper.make_map_type_proto(onnx.TensorProto.INT64, onnx.helper.make_tensor_type_proto(1, []))
    model.graph.output[1].CopyFrom(onnx.helper.make_value_info("maps", onnx.helper.make_sequence_type_proto(kind)))
    with InferenceSession(model) as session:
        label, maps = session.run(None, {"x": rows()})
        where = {n.op_type: n.where for n in session.report().nodes}
    assert where == {"TreeEnsembleClassifier": "vulkan", "ZipMap": "cpu"}
    expected = by_onnxruntime(model, {"x": rows()})
    np.testing.assert_array_equal(label, expected[0])
    assert len(maps) == len(expected[1])
    np.testing.assert_allclose([list(m.values()) for m in maps], [list(m.values()) for m in expected[1]], rtol=1e-5)
