"""ai.onnx.ml except its trees: linear models, scalers, encoders. Semantics: ONNX's ai.onnx.ml operators.

Not declared: ZipMap, DictVectorizer and CastMap, whose values are maps, and CategoryMapper, which converts texts to
numbers or back.
"""

from __future__ import annotations

import math

import numpy as np
import onnx

from vkep.dtypes import DTYPES, FLOAT32, INT32, INT64, DType
from vkep.ir import algebra as fn
from vkep.ir.algebra import equal, where
from vkep.ir.builder import Builder, Operand
from vkep.ir.tensor import Tensor
from vkep.kernels.ml.lookup import LookupProblem
from vkep.ops.allowed import every
from vkep.ops.contraction import matrix_product
from vkep.ops.gather import gathered
from vkep.ops.generators import positions
from vkep.ops.ml_scores import (
    FEATURES,
    ML,
    labels_at,
    matrix_of,
    one_of_two,
    rows_of,
    transformed,
    two_scores,
)
from vkep.ops.movement import concat
from vkep.ops.reduction import reduce_axes
from vkep.ops.registry import operator
from vkep.ops.trees import Floats, Ints, numbers

# ---- linear models


def _linear(b: Builder, x: Tensor, coefficients: Floats, intercepts: Floats, count: int) -> Tensor:
    """Scores [rows, count] of rows [rows, features]. Surplus coefficients are ignored, as in ONNX Runtime."""
    used = coefficients[: count * x.shape[1]]
    product = matrix_product(b, x, matrix_of(b, "coefficients", used, count, x.shape[1]).transpose((1, 0)))
    if not intercepts:
        return product
    return b.pointwise("add", product, matrix_of(b, "intercepts", intercepts, 1, count))


@operator("LinearRegressor", domain=ML, types={"T": FEATURES})
def linear_regressor(
    b: Builder,
    x: Tensor,
    *,
    coefficients: Floats = (),
    intercepts: Floats = (),
    targets: int = 1,
    post_transform: str = "NONE",
) -> Tensor:
    if targets == 1 and post_transform not in ("NONE", "PROBIT"):
        b.decline(f"post_transform {post_transform} of one target, which ONNX Runtime leaves out")
    return transformed(b, _linear(b, rows_of(b, x), coefficients, intercepts, targets), post_transform)


@operator("LinearClassifier", domain=ML, types={"T1": FEATURES})
def linear_classifier(
    b: Builder,
    x: Tensor,
    *,
    coefficients: Floats,
    intercepts: Floats = (),
    classlabels_ints: Ints = (),
    multi_class: int = 0,
    post_transform: str = "NONE",
) -> list[Tensor]:
    labels, rows = list(classlabels_ints), rows_of(b, x)
    count = len(intercepts) or len(labels)
    scores = _linear(b, rows, coefficients, intercepts, count)
    if count == len(labels):
        return [labels_at(b, labels, scores), transformed(b, scores, post_transform)]
    if count != 1 or len(labels) != 2:
        b.decline(f"{count} scores for {len(labels)} integer labels")
    holds = b.expr("gt", scores, 0.0)
    return [one_of_two(b, holds, labels, rows.shape[0]), two_scores(b, scores, post_transform, complement=True)]


# ---- features


@operator("Scaler", domain=ML, types={"T": FEATURES})
def scaler(b: Builder, x: Tensor, *, offset: Floats = (), scale: Floats = ()) -> Tensor:
    offsets, scales = (_per_feature(b, name, v, x) for name, v in (("offset", offset), ("scale", scale)))
    wide = b.cast(x, DTYPES["float64"]) if x.dtype.name == "float64" else b.cast(x, FLOAT32)
    return b.cast(b.pointwise(lambda v, less, by: (v - less) * by, wide, offsets, scales), FLOAT32)


def _per_feature(b: Builder, name: str, values: Floats | Ints, x: Tensor, dtype: DType = FLOAT32) -> Tensor:
    """An attribute's number for each feature (the last axis), or for all."""
    if x.rank not in (1, 2):
        b.decline(f"features of rank {x.rank}, expected 1 or 2")
    if len(values) not in (1, x.shape[-1]):
        b.invalid(f"{name} has {len(values)} values, expected 1 or {x.shape[-1]}")
    kind = x.dtype if x.dtype.name == "float64" else dtype
    return b.constant(np.array(values, dtype.numpy).astype(kind.numpy))


@operator("Imputer", domain=ML, types={"T": FEATURES})
def imputer(
    b: Builder,
    x: Tensor,
    *,
    imputed_value_floats: Floats = (),
    imputed_value_int64s: Ints = (),
    replaced_value_float: float = 0.0,
    replaced_value_int64: int = 0,
) -> Tensor:
    whole = x.dtype.kind == "int"
    values = imputed_value_int64s if whole else imputed_value_floats
    if not values:
        b.invalid(f"no imputed values for {x.dtype}")
    if len(values) != x.shape[-1]:
        values = values[:1]  # as ONNX Runtime does
    given = _per_feature(b, "imputed values", values, x, x.dtype if whole else FLOAT32)
    if not whole and math.isnan(replaced_value_float):
        return b.pointwise(lambda v, new: where(fn.isnan(v), new, v), x, given)
    out = b.scalar_like(replaced_value_int64 if whole else float(np.float32(replaced_value_float)), x)
    return b.pointwise(lambda v, old, new: where(equal(v, old), new, v), x, out, given)


@operator("Binarizer", domain=ML, types={"T": FEATURES})
def binarizer(b: Builder, x: Tensor, *, threshold: float = 0.0) -> Tensor:
    number: Operand = x
    below: float = float(np.float32(threshold))
    if x.dtype.kind == "int":  # an integer is greater than the threshold exactly where it is greater than its floor
        if not math.isfinite(threshold) or abs(below := math.floor(threshold)) >= 2**31:
            b.decline(f"threshold is {threshold}")
    else:
        number = b.require(x, lambda v: ~fn.isnan(v), "an element is NaN")
    kind = x.dtype.glsl_compute
    return b.pointwise(lambda v, least: fn.cast(v > least, kind), number, below, dtype=x.dtype, shape=x.shape)


@operator("Normalizer", domain=ML, types={"T": FEATURES})
def normalizer(b: Builder, x: Tensor, *, norm: str = "MAX") -> Tensor:
    if x.rank not in (1, 2):
        b.decline(f"features of rank {x.rank}, expected 1 or 2")
    sizes = {"MAX": "max", "L1": "l1", "L2": "l2"}
    if norm not in sizes:
        b.invalid(f"norm is {norm!r}, expected one of {sorted(sizes)}")
    rows = b.cast(x, FLOAT32)
    size = reduce_axes(b, sizes[norm], rows, [x.rank - 1], keepdims=True)
    return b.pointwise(lambda v, by: where(equal(by, 0.0), v, v / by), rows, size)


@operator("FeatureVectorizer", domain=ML, types={"T1": FEATURES})
def feature_vectorizer(b: Builder, *inputs: Tensor, inputdimensions: Ints = ()) -> Tensor:
    if len(inputdimensions) != len(inputs):
        b.invalid(f"inputdimensions has {len(inputdimensions)} values, expected {len(inputs)}")
    parts = []
    for x, count in zip(inputs, inputdimensions, strict=True):
        rows = x.shape[0] if x.rank > 1 else 1
        taken = b.cast(b.reshape(x, [rows, x.size // max(rows, 1)]), FLOAT32)
        kept = min(count, taken.shape[1])
        parts.append(taken.slice(1, 0, kept))
        if kept < count:
            parts.append(b.full([rows, count - kept], 0.0, FLOAT32))
    return concat(b, *parts, axis=1)


@operator("ArrayFeatureExtractor", domain=ML, types={"T": every("ArrayFeatureExtractor", domain=ML)})
def array_feature_extractor(b: Builder, x: Tensor, y: Tensor) -> Tensor:
    if not x.rank or not y.size:
        b.invalid(
            f"features of shape {list(x.shape)}, indices of shape {list(y.shape)}; expected one axis or more, and an index"
        )
    rows = b.reshape(x, [1, x.shape[0]]) if x.rank == 1 else x
    return gathered(b, rows, b.reshape(y, [y.size]), rows.rank - 1, "an index", False)


# ---- encoders


def places(b: Builder, x: Tensor, keys: np.ndarray) -> tuple[Tensor, np.ndarray]:
    """For each element of ``x`` (int32, its shape) an index into the sorted keys, or their number where it is not a
    key; and for each index the key's position in ``keys``. Of equal keys the first counts."""
    ordered, first = np.unique(keys, return_index=True)
    out = b.empty(INT32, x.shape)
    problem = LookupProblem(x.size, len(ordered), x.dtype.name)
    b.compute(problem, [b.contiguous(x), b.constant(ordered.astype(x.dtype.numpy))], [out])
    return out, first


@operator("OneHotEncoder", domain=ML, types={"T": FEATURES})
def one_hot_encoder(b: Builder, x: Tensor, *, cats_int64s: Ints = (), zeros: int = 1) -> Tensor:
    if not cats_int64s:
        b.invalid("cats_int64s is empty")
    keys = np.array(cats_int64s, np.int64)
    if len(np.unique(keys)) < len(keys):
        b.decline("cats_int64s has a category twice")
    found, first = places(b, b.cast(x, INT64), keys)
    at = gathered(b, b.constant(np.append(first, -1).astype(np.int32)), found)
    column: Operand = b.reshape(at, [*x.shape, 1])
    if not zeros:
        column = b.require(column, "ge", "an element is no category", 0)
    holds = b.expr("eq", column, positions(b, len(keys)), ctype="bool")
    return b.pointwise("cast", holds, dtype=FLOAT32, shape=[*x.shape, len(keys)])


def _encoded(b: Builder, x: Tensor, keys: np.ndarray, values: np.ndarray, default: object) -> Tensor:
    """The value of each element's key, ``default`` where the element is not a key."""
    if not keys.size or len(keys) != len(values):
        b.invalid(f"{len(keys)} keys for {len(values)} values")
    if keys.dtype != x.dtype.numpy:
        b.decline(f"keys of {keys.dtype} for elements of {x.dtype}")
    found, first = places(b, x, keys)
    table = np.append(values[first], np.array([default], values.dtype))
    return gathered(b, b.constant(table), found)


@operator("LabelEncoder", domain=ML, since=2, until=3, types={"T1": every("LabelEncoder", "T1", domain=ML)})
def label_encoder_2(
    b: Builder,
    x: Tensor,
    *,
    keys_floats: Floats = (),
    keys_int64s: Ints = (),
    values_floats: Floats = (),
    values_int64s: Ints = (),
    default_float: float = -0.0,
    default_int64: int = -1,
) -> Tensor:
    keys = np.array(keys_floats, np.float32) if keys_floats else np.array(keys_int64s, np.int64)
    if values_floats:
        return _encoded(b, x, keys, np.array(values_floats, np.float32), default_float)
    return _encoded(b, x, keys, np.array(values_int64s, np.int64), default_int64)


@operator("LabelEncoder", domain=ML, since=4, types={"T1": every("LabelEncoder", "T1", domain=ML)})
def label_encoder(
    b: Builder,
    x: Tensor,
    *,
    keys_floats: Floats = (),
    keys_int64s: Ints = (),
    keys_tensor: onnx.TensorProto | None = None,
    values_floats: Floats = (),
    values_int64s: Ints = (),
    values_tensor: onnx.TensorProto | None = None,
    default_float: float = -0.0,
    default_int64: int = -1,
    default_tensor: onnx.TensorProto | None = None,
) -> Tensor:
    if keys_tensor is None and values_tensor is None and default_tensor is None:
        return label_encoder_2(
            b,
            x,
            keys_floats=keys_floats,
            keys_int64s=keys_int64s,
            values_floats=values_floats,
            values_int64s=values_int64s,
            default_float=default_float,
            default_int64=default_int64,
        )
    keys = numbers(keys_floats or keys_int64s, keys_tensor)
    keys = keys if keys_tensor is not None else keys.astype(np.float32 if keys_floats else np.int64)
    values = numbers(values_floats or values_int64s, values_tensor)
    if values_tensor is None:
        values = values.astype(np.float32 if values_floats else np.int64)
    if values.dtype.kind not in "fi" or keys.dtype.kind not in "fi":
        b.decline("keys or values are texts")
    if default_tensor is not None:
        default = numbers((), default_tensor)[0]
    else:
        default = default_float if values.dtype.kind == "f" else default_int64
    return _encoded(b, x, keys, values, default)
