"""Rules of operators for `vkep.placement.rows`: where the rows lie in an operator's results.

A rule reads a `NodeView` and returns the axis of rows of the results, or raises `Mixes`. Operators without a rule
count as mixing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vkep.graph.model import Node
from vkep.graph.weights import Weight
from vkep.sizes import is_size


class Mixes(Exception):
    """A result may depend on other rows; the text says why."""


@dataclass(frozen=True)
class RowAxis:
    """Where the rows lie: axis ``axis`` has ``before * rows * each`` elements, as if these were three axes."""

    axis: int
    before: Any = 1
    each: Any = 1

    def at(self, axis: int) -> RowAxis:
        """The same on another axis."""
        return RowAxis(axis, self.before, self.each)


@dataclass(frozen=True)
class Value:
    """An input: its shape, and where its rows lie (None: it is the same for all rows)."""

    shape: tuple[Any, ...]
    rows: RowAxis | None
    weight: Weight | None = None  #: where the content is known

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)


@dataclass(frozen=True)
class NodeView:
    """A node, its inputs (None: absent) and the shapes of its results; ``count`` is the number of rows, and ``depends`` tells
    whether a size depends on it."""

    node: Node
    inputs: Sequence[Value | None]
    results: Sequence[tuple[Any, ...]]
    count: Any
    depends: Callable[[Any], bool]

    def input(self, position: int) -> Value | None:
        """An input, None where it is absent."""
        return self.inputs[position] if position < len(self.inputs) else None

    def numbers(self, position: int, attribute: str, default: Sequence[int] | None = None) -> list[Any] | None:
        """The integers of an input or an attribute. Raises `Mixes` where they are not known."""
        value = self.input(position) if position >= 0 else None
        if value is not None:
            if value.weight is None:
                raise Mixes(f"{attribute} is computed")
            return list(value.weight.array().reshape(-1).tolist())
        given = self.node.attributes.get(attribute, default)
        return None if given is None else list(given) if isinstance(given, (list, tuple)) else [given]

    def first(self, *others: int) -> tuple[Value, RowAxis]:
        """The first input and its axis of rows. Raises `Mixes` where an input has rows that is neither it nor in ``others``."""
        value = self.inputs[0]
        if value is None or value.rows is None:
            raise Mixes("another input than the first has rows")
        if any(v is not None and v.rows is not None for k, v in enumerate(self.inputs) if k and k not in others):
            raise Mixes("several inputs have rows")
        return value, value.rows


def same(a: Any, b: Any) -> bool:
    """Whether two sizes are equal for all sizes of a run."""
    rest = a - b
    return not is_size(rest) and bool(rest == 0)


def quotient(a: Any, b: Any) -> Any | None:
    """``a / b`` where that is an integer for all sizes of a run."""
    if not is_size(b) and b == 0:
        return None
    found = a // b
    return found if same(found * b, a) else None


# ---- rules of movement


def _reshaped(view: NodeView) -> RowAxis:
    """The same elements in row-major order under another shape."""
    value, rows = view.first()
    before, shape = math.prod(value.shape[: rows.axis]) * rows.before, view.results[0]
    for axis, size in enumerate(shape):
        inner = quotient(before, math.prod(shape[:axis]))
        each = None if inner is None else quotient(size, inner * view.count)
        if each is not None:
            return RowAxis(axis, inner, each)
    raise Mixes("a new shape divides rows")


def _transposed(view: NodeView) -> RowAxis:
    value, rows = view.first()
    perm = view.numbers(-1, "perm", list(reversed(range(value.rank)))) or []
    return rows.at(perm.index(rows.axis))


def _broadcast(view: NodeView) -> RowAxis:
    """Elementwise operators: equal axes of rows, aligned from the last axis; what has no rows is repeated along it."""
    rank = len(view.results[0])
    axes = {v.rows.at(v.rows.axis + rank - v.rank) for v in view.inputs if v is not None and v.rows is not None}
    if len(axes) != 1:
        raise Mixes("the rows of its inputs lie on different axes")
    rows = axes.pop()
    for value in view.inputs:
        axis = rows.axis - rank + value.rank if value is not None else -1
        if value is not None and value.rows is None and axis >= 0 and not _is_one(value.shape[axis]):
            raise Mixes("an input has a value for each row")
    return rows


def _repeated(view: NodeView) -> RowAxis:
    """Expand, ConstantOfShape and Tile: a value without rows is the same in all rows that the result has."""
    value = view.inputs[0]
    assert value is not None
    (shape,) = view.results
    if value.rows is not None:
        rows = value.rows.at(value.rows.axis + len(shape) - value.rank)
        if not same(shape[rows.axis], value.shape[value.rows.axis]):
            raise Mixes("rows are repeated")
        return rows
    known = (
        (1,) * len(shape) if view.node.op_type == "ConstantOfShape" else (1,) * (len(shape) - value.rank) + value.shape
    )
    for axis, (size, old) in enumerate(zip(shape, known, strict=True)):
        each = quotient(size, view.count)
        if each is not None and _is_one(old):
            return RowAxis(axis, 1, each)
    raise Mixes("its shape depends on the number of rows")


def _gathered(view: NodeView) -> RowAxis:
    data, indices = view.inputs[0], view.inputs[1]
    assert data is not None and indices is not None
    axis = int(view.node.attributes.get("axis", 0)) % max(data.rank, 1)
    if data.rows is None:
        assert indices.rows is not None
        return indices.rows.at(indices.rows.axis + axis)
    if indices.rows is not None or data.rows.axis == axis:
        raise Mixes("it selects among rows")
    return data.rows.at(data.rows.axis + (indices.rank - 1 if data.rows.axis > axis else 0))


def _element_wise_gathered(view: NodeView) -> RowAxis:
    """GatherElements and ScatterElements: all inputs have the same rows, on another axis than the indexed one."""
    rows = {v.rows for v in view.inputs if v is not None}
    value = view.inputs[0]
    assert value is not None
    one = rows.pop()
    if rows or one is None or one.axis == int(view.node.attributes.get("axis", 0)) % value.rank:
        raise Mixes("it selects among rows")
    return one


def _gathered_nd(view: NodeView) -> RowAxis:
    data, indices = view.inputs[0], view.inputs[1]
    assert data is not None and indices is not None
    if data.rows is None or data.rows != indices.rows or data.rows.axis >= view.node.attributes.get("batch_dims", 0):
        raise Mixes("it selects among rows")
    return data.rows


def _joined(view: NodeView) -> RowAxis:
    rows = {value.rows for value in view.inputs if value is not None}
    one = rows.pop()
    if rows or one is None:
        raise Mixes("not all its inputs have the same rows")
    if one.axis == int(view.node.attributes["axis"]) % len(view.results[0]):
        raise Mixes("it adds rows")
    return one


def _one_hot(view: NodeView) -> RowAxis:
    value, rows = view.first()
    axis = int(view.node.attributes.get("axis", -1)) % (value.rank + 1)
    return rows.at(rows.axis + (axis <= rows.axis))


# ---- rules of products


def _product(view: NodeView, a: Value, b: Value) -> RowAxis:
    """The product of the last two axes; those before them are broadcast."""
    if a.rank < 2 or b.rank < 2:
        raise Mixes("a product of vectors")
    rank = len(view.results[0])
    axes = set()
    for value, other, summed, kept in ((a, b, 1, 2), (b, a, 2, 1)):
        if value.rows is None:
            continue
        behind = value.rank - value.rows.axis
        if behind == summed:
            raise Mixes("it adds over rows")
        axes.add(value.rows.at(rank - behind))
        if behind == kept:
            if other.rows is not None:
                raise Mixes("each row meets all others")
        elif other.rows is None and behind <= other.rank and not _is_one(other.shape[-behind]):
            raise Mixes("an input has a value for each row")
    if len(axes) != 1:
        raise Mixes("the rows of its inputs lie on different axes")
    return axes.pop()


def _matmul(view: NodeView) -> RowAxis:
    attributes = view.node.attributes
    if any(attributes.get(name) for name in ("transA", "transB", "transBatchA", "transBatchB")):
        raise Mixes("it has turned operands")
    second = 3 if view.node.op_type == "QLinearMatMul" else 1
    if any(v is not None and v.rows is not None for k, v in enumerate(view.inputs) if k not in (0, second)):
        raise Mixes("scales have rows")
    a, b = view.inputs[0], view.inputs[second]
    assert a is not None and b is not None
    return _product(view, a, b)


def _gemm(view: NodeView) -> RowAxis:
    _, rows = view.first(2)
    bias = view.input(2)
    if rows.axis != (1 if view.node.attributes.get("transA") else 0):
        raise Mixes("it adds over rows")
    if bias is not None and bias.rank == 2 and bias.rows is None and not _is_one(bias.shape[0]):
        raise Mixes("an input has a value for each row")
    if bias is not None and bias.rows not in (None, rows.at(0)):
        raise Mixes("the rows of its inputs lie on different axes")
    if bias is not None and bias.rows is not None and bias.rank != 2:
        raise Mixes("the rows of its inputs lie on different axes")
    return rows.at(0)


def _einsum(view: NodeView) -> RowAxis:
    text = str(view.node.attributes["equation"]).replace(" ", "")
    terms, arrow, result = text.partition("->")
    named = list(zip(terms.split(","), view.inputs, strict=True))
    if not arrow or "." in text or any(len(set(letters)) != len(letters) for letters, _ in named):
        raise Mixes("an equation without names for all axes")
    letters = {(t[v.rows.axis], v.rows.at(0)) for t, v in named if v is not None and v.rows is not None}
    if len(letters) != 1:
        raise Mixes("each row meets all others")
    ((letter, rows),) = letters
    if letter not in result or any(letter in t for t, v in named if v is not None and v.rows is None):
        raise Mixes("it adds over rows")
    return rows.at(result.index(letter))


# ---- rules of operators that work on whole axes: rows on another one stay apart

Axes = Callable[[NodeView, int], Iterable[int]]


def _axis(default: int) -> Axes:
    return lambda view, rank: [int(view.node.attributes.get("axis", default))]


def _softmax_axes(view: NodeView, rank: int) -> Iterable[int]:
    if view.node.since_version >= 13:
        return [int(view.node.attributes.get("axis", -1))]
    return range(int(view.node.attributes.get("axis", 1)) % max(rank, 1), rank)


def _reduced_axes(view: NodeView, rank: int) -> Iterable[int]:
    axes = view.numbers(1, "axes")
    if not axes:
        return [] if view.node.attributes.get("noop_with_empty_axes") else range(rank)
    return axes


def _scale_axes(view: NodeView, rank: int) -> Iterable[int]:
    scale = view.input(1)
    return [] if scale is None or all(map(_is_one, scale.shape)) else [int(view.node.attributes.get("axis", 1))]


def _padded_axes(view: NodeView, rank: int) -> Iterable[int]:
    pads, axes = view.numbers(1, "pads") or [], view.numbers(3, "axes", range(rank)) or []
    half = len(pads) // 2
    return [
        axis for axis, *both in zip(axes, pads[:half], pads[half:], strict=True) if any(is_size(p) or p for p in both)
    ]


def _sliced_axes(view: NodeView, rank: int) -> Iterable[int]:
    starts, ends = view.numbers(1, "starts") or [], view.numbers(2, "ends") or []
    axes, steps = view.numbers(3, "axes", range(len(starts))) or [], view.numbers(4, "steps", [1] * len(starts)) or []
    shape = view.inputs[0].shape if view.inputs[0] is not None else ()
    parts = [
        (axis, start, end)
        for start, end, axis, step in zip(starts, ends, axes, steps, strict=True)
        if not (
            same(start, 0) and same(step, 1) and (same(end, shape[axis]) or (not is_size(end) and end >= 2**31 - 1))
        )
    ]
    if any(view.depends(place) for _, *places in parts for place in places):
        raise Mixes("the number of rows says which elements are taken")
    return [axis for axis, *_ in parts]


def _resized_axes(view: NodeView, rank: int) -> Iterable[int]:
    if view.node.attributes.get("coordinate_transformation_mode") == "tf_crop_and_resize":
        return range(rank)
    shape = view.inputs[0].shape if view.inputs[0] is not None else ()
    return [axis for axis, (old, new) in enumerate(zip(shape, view.results[0], strict=True)) if not same(old, new)]


def _whole_axes(axes: Axes) -> Callable[[NodeView], RowAxis]:
    def rule(view: NodeView) -> RowAxis:
        value, rows = view.first()
        mixed = {axis % value.rank for axis in axes(view, value.rank)}
        if rows.axis in mixed:
            raise Mixes(f"it works along axis {rows.axis}, where the rows are")
        if view.node.attributes.get("keepdims", 1):
            return rows
        return rows.at(rows.axis - sum(axis < rows.axis for axis in mixed))

    return rule


# ---- rules of operators whose batch has a place


def _batch_first(view: NodeView) -> RowAxis:
    """Rows on axis 0 of all inputs that have rows."""
    rows = {value.rows for value in view.inputs if value is not None and value.rows is not None}
    if len(rows) != 1 or (one := rows.pop()).axis:
        raise Mixes("the rows of its inputs do not lie on axis 0")
    return one


def _attention(view: NodeView) -> RowAxis:
    mask = view.input(3)
    if mask is not None and mask.rows is not None and mask.rank != 4:
        raise Mixes("its mask has rows on another axis than the batch")
    return _batch_first(view)


def _table(view: NodeView) -> RowAxis:
    value, rows = view.first()
    if value.rank != 2 or rows.axis:
        raise Mixes("its input is no table of rows")
    return rows


def _recurrent(view: NodeView) -> Sequence[RowAxis]:
    batch = 0 if view.node.attributes.get("layout") else 1
    places = {0: batch, 4: 0, 5: batch, 6: batch}
    for position, value in enumerate(view.inputs):
        if value is not None and value.rows is not None and value.rows != RowAxis(places.get(position, -1)):
            raise Mixes("the rows of its inputs do not lie on the axis of the batch")
    return [RowAxis(0 if batch == 0 else 2), RowAxis(batch), RowAxis(batch)]


def _batch_normalized(view: NodeView) -> RowAxis:
    if view.node.since_version < 7 or view.node.attributes.get("training_mode"):
        raise Mixes("it may take a mean over rows")
    return _BY_ROW(view)


def _only_first_result(rule: Callable[[NodeView], RowAxis]) -> Callable[[NodeView], RowAxis]:
    """For operators whose further results count over all rows, or that train."""

    def checked(view: NodeView) -> RowAxis:
        if len([name for name in view.node.outputs if name]) > 1:
            raise Mixes("a further result counts over all rows")
        return rule(view)

    return checked


def _dropout(view: NodeView) -> RowAxis:
    training = view.input(2)
    trains = training is not None and (training.weight is None or training.weight.array().any())
    if trains or view.node.since_version < 7:
        raise Mixes("it draws random numbers")
    return view.first()[1]


def _is_one(size: Any) -> bool:
    return not is_size(size) and size == 1


Rule = Callable[[NodeView], RowAxis | Sequence[RowAxis]]


def _all(names: str, rule: Rule, domain: str = "") -> dict[tuple[str, str], Rule]:
    return {(domain, name): rule for name in names.split()}


_BY_ROW = _whole_axes(lambda view, rank: range(1, rank))
#: by domain and operator
RULES: Mapping[tuple[str, str], Rule] = {
    **_all(
        "Abs Acos Acosh Add And Asin Asinh Atan Atanh BitCast BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast CastLike "
        "Ceil Celu Clip Cos Cosh Div Elu Equal Erf Exp Floor Gelu Greater GreaterOrEqual HardSigmoid HardSwish Identity IsInf "
        "IsNaN LeakyRelu Less LessOrEqual Log Max Mean Min Mish Mod Mul Neg Not Or PRelu Pow Reciprocal Relu Round Selu Shrink "
        "Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Sub Sum Swish Tan Tanh ThresholdedRelu Where Xor",
        _broadcast,
    ),
    **_all("BiasGelu FastGelu Gelu QuickGelu", _broadcast, "com.microsoft"),
    **_all("Flatten Reshape Squeeze Unsqueeze", _reshaped),
    **_all("Transpose", _transposed),
    **_all("ConstantOfShape Expand Tile", _repeated),
    **_all("Gather", _gathered),
    **_all("GatherElements ScatterElements", _element_wise_gathered),
    **_all("GatherND", _gathered_nd),
    **_all("Concat", _joined),
    **_all("OneHot", _one_hot),
    **_all("MatMul MatMulInteger QLinearMatMul", _matmul),
    **_all("FusedMatMul", _matmul, "com.microsoft"),
    **_all("Gemm", _gemm),
    **_all("Einsum", _einsum),
    **_all("Softmax LogSoftmax Hardmax", _whole_axes(_softmax_axes)),
    **_all("LpNormalization TopK", _whole_axes(_axis(-1))),
    **_all("ArgMax ArgMin Split", _whole_axes(_axis(0))),
    **_all(
        "LayerNormalization RMSNormalization SimplifiedLayerNormalization",
        _whole_axes(lambda view, rank: range(int(view.node.attributes.get("axis", -1)) % rank, rank)),
    ),
    **_all("MatMulNBits", _whole_axes(_axis(-1)), "com.microsoft"),
    **_all("SkipLayerNormalization SkipSimplifiedLayerNormalization", _batch_first, "com.microsoft"),
    **_all(
        "MeanVarianceNormalization", _whole_axes(lambda view, rank: view.numbers(-1, "axes", (0, 2, 3)) or range(rank))
    ),
    **_all("CumProd CumSum", _whole_axes(lambda view, rank: view.numbers(1, "axis") or range(rank))),
    **_all(
        "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare",
        _whole_axes(_reduced_axes),
    ),
    **_all("DequantizeLinear QuantizeLinear", _whole_axes(_scale_axes)),
    **_all("Pad", _whole_axes(_padded_axes)),
    **_all("Slice", _whole_axes(_sliced_axes)),
    **_all("Resize Upsample", _whole_axes(_resized_axes)),
    **_all("Trilu", _whole_axes(lambda view, rank: (-2, -1))),
    **_all(
        "AveragePool Conv ConvInteger ConvTranspose DepthToSpace GlobalAveragePool GlobalLpPool GlobalMaxPool GroupNormalization "
        "InstanceNormalization LRN LpPool QLinearConv SpaceToDepth",
        _BY_ROW,
    ),
    **_all("FusedConv", _BY_ROW, "com.microsoft"),
    **_all("BatchNormalization", _only_first_result(_batch_normalized)),
    **_all("MaxPool", _only_first_result(_BY_ROW)),
    **_all("Dropout", _dropout),
    **_all("Attention", _attention),
    **_all("DeformConv GridSample RotaryEmbedding", _batch_first),
    **_all("EmbedLayerNormalization MultiHeadAttention RotaryEmbedding", _batch_first, "com.microsoft"),
    **_all("GRU LSTM RNN", _recurrent),
    **_all(
        "Binarizer Imputer LinearClassifier LinearRegressor Normalizer SVMClassifier SVMRegressor Scaler TreeEnsemble "
        "TreeEnsembleClassifier TreeEnsembleRegressor",
        _table,
        "ai.onnx.ml",
    ),
}
