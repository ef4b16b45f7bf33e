"""Constant folding: nodes whose inputs are all known are evaluated once, with ONNX's reference implementation."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from threading import Lock
from typing import Any

import numpy as np
import onnx
from onnx import helper

from gpu_shared.signals import pass_on_signals
from vkep import dtypes
from vkep.errors import Decline, VkepError
from vkep.graph.model import Node
from vkep.graph.weights import ArrayWeight, Weight
from vkep.graph.windows import slice_span
from vkep.ir.infer import infer, shape_of
from vkep.placement.elements import ELEMENTS

#: Operators whose result is not a function of their inputs.
_IMPURE = {
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
    "Bernoulli",
    "Multinomial",
    "Dropout",
}
#: Operators that are constants by their own functions, which cover more than the reference does.
_MADE = {"HannWindow", "HammingWindow", "BlackmanWindow", "MelWeightMatrix"}
#: Operators whose work, or temporary memory, far exceeds their operands and results.
_COSTLY = {"Attention", "DeformConv", "LinearAttention", "MaxRoiPool", "NonMaxSuppression", "RoiAlign"}
#: Operators whose reference differs between versions of onnx, or from what the kernels compute. No plan needs their values.
_DIFFERENT = {
    "AffineGrid", "AveragePool", "Conv", "ConvTranspose", "Det", "DynamicQuantizeLinear", "GlobalAveragePool", "GlobalLpPool",
    "GlobalMaxPool", "GridSample", "LpNormalization", "LpPool", "LRN", "MaxPool", "MaxUnpool", "NegativeLogLikelihoodLoss",
    "Resize", "SoftmaxCrossEntropyLoss", "Unique", "Upsample",
}  # fmt: skip
_NOT_FOLDED = _IMPURE | _MADE | _COSTLY | _DIFFERENT
#: Larger results are not folded: a model's size must not explode by folding.
MAX_FOLDED_BYTES = 1 << 30
#: Beyond this many bytes of results in total, plus this many times the bytes of the model's weights, no further nodes
#: are folded.
MAX_TOTAL_BYTES, MAX_TOTAL_OF_WEIGHTS = 4 << 30, 8
#: Nodes of more work (about two seconds) are not folded: elements for numpy's loops and for Python loops of the reference
#: implementation, multiplications for matrix products.
_MOST_WORK = {"plain": 1 << 31, "product": 1 << 36, "slow": 1 << 22}
#: operators whose results are no larger than their broadcast operands, computed by numpy's loops
_NAMES = """
    Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh BatchNormalization BitShift BitwiseAnd BitwiseNot
    BitwiseOr BitwiseXor Cast CastLike Ceil Clip Compress Cos Cosh CumSum DepthToSpace DequantizeLinear Div Elu
    Equal Erf Exp Flatten Floor Gelu Greater GreaterOrEqual Hardmax HardSigmoid Identity IsInf IsNaN
    LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax Max Mean Min Mod Mul Neg NonZero Not Or Pow PRelu
    QuantizeLinear Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin
    ReduceProd ReduceSum ReduceSumSquare RegexFullMatch Relu Reshape Round Selu Shape Sigmoid Sign Sin Sinh Size
    Slice Softmax Softplus Softsign SpaceToDepth Split Sqrt Squeeze StringConcat StringNormalizer Sub Sum Tan Tanh
    TopK Transpose Trilu Unique Unsqueeze Where Xor
"""
_PLAIN = frozenset(_NAMES.split())
#: others that numpy's loops compute; ONNX's shape inference gives the size of their results
_TOLD = frozenset({"Gather", "GatherND", "MatMul", "Gemm", "Einsum"})
_GPU_DTYPES = {d.numpy for d in dtypes.DTYPES.values()}


class FoldError(VkepError):
    """The reference implementation could not evaluate a node; it is lowered like any other."""


def can_fold(node: Node) -> bool:
    """Whether a node of constant inputs may be computed when the model is planned."""
    return node.schema is not None and node.op_type not in _NOT_FOLDED and not node.captures and not _has_body(node)


def fold_weights(
    node: Node, inputs: Sequence[Weight | None], opsets: Mapping[str, int]
) -> list[ArrayWeight | None] | None:
    """The node's outputs as constants; None where no kernel takes their types. Raises `FoldError`.

    For the same weights it returns the same results, so that everything derived from them (digests, packed forms, other
    folded nodes) is not computed again for each plan of a model.
    """
    kept = node.memo.get("folded")
    if kept is not None and len(kept[0]) == len(inputs) and all(map(operator.is_, kept[0], inputs)):
        return list(kept[1])
    results = fold(node, [w.array() if w is not None else None for w in inputs], opsets)
    if any(r is not None and r.dtype not in _GPU_DTYPES for r in results):
        return None
    made = [
        ArrayWeight(name, result) if name and result is not None else None
        for name, result in zip(node.outputs, results, strict=True)
    ]
    node.memo["folded"] = (tuple(inputs), tuple(made))
    return made


def total_limit(known: Iterable[object]) -> int:
    """The largest number of bytes that folding may add to the known values."""
    return MAX_TOTAL_BYTES + MAX_TOTAL_OF_WEIGHTS * sum(value.nbytes for value in known if isinstance(value, Weight))


def fold(node: Node, inputs: Sequence[np.ndarray | None], opsets: Mapping[str, int]) -> list[np.ndarray | None]:
    """The node's outputs; None for an absent one. Raises `FoldError`."""
    try:
        _check_cost(node, inputs, opsets)
        quick = _quick(node, inputs)
    except (TypeError, ValueError, LookupError, ArithmeticError, Decline) as error:
        raise FoldError(f"{node.title}: {error}") from error
    if quick is not None:
        return [quick]
    named = {name: array for name, array in zip(node.inputs, inputs, strict=True) if name and array is not None}
    wanted = [name for name in node.outputs if name]
    evaluate = node.memo.get("evaluator")
    try:
        if evaluate is None or evaluate.given != _types(named):
            evaluate = node.memo["evaluator"] = _Evaluator(node, named, wanted, opsets)
        # an integer divided by zero is undefined, and is left for the run to report
        integers = all(array.dtype.kind in "iu" for array in named.values())
        with np.errstate(divide="raise" if integers else "ignore"):
            results = evaluate(named)
    except Exception as error:  # the reference raises exceptions of any type
        pass_on_signals(error)
        raise FoldError(f"{node.title}: {error}") from error
    if not all(isinstance(r, (np.ndarray, np.generic)) for r in results):
        raise FoldError(f"{node.title}: result is no tensor")
    found = dict(zip(wanted, (np.asarray(r) for r in results), strict=True))
    return [found.get(name) for name in node.outputs]


class _Evaluator:
    """A node for onnx's reference evaluator, which takes longer to construct than to run. Thread-safe."""

    def __init__(
        self, node: Node, named: Mapping[str, np.ndarray], wanted: Sequence[str], opsets: Mapping[str, int]
    ) -> None:
        from onnx.reference import ReferenceEvaluator

        self.given = _types(named)
        self._wanted = list(wanted)
        self._lock = Lock()
        graph = helper.make_graph(
            [node.proto],
            "fold",
            [helper.make_tensor_value_info(n, _elem_type(a), a.shape) for n, a in named.items()],
            [onnx.ValueInfoProto(name=n) for n in wanted],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid(d, v) for d, v in opsets.items()])
        self._evaluator = ReferenceEvaluator(model)

    def __call__(self, named: Mapping[str, np.ndarray]) -> Any:
        with self._lock:
            return self._evaluator.run(self._wanted, dict(named))


def _quick(node: Node, inputs: Sequence[np.ndarray | None]) -> np.ndarray | None:
    """The most frequent shape arithmetic, without the cost of an evaluator for each node."""
    first = inputs[0] if inputs else None
    if first is None or node.domain:
        return None
    if node.op_type == "ConstantOfShape":
        value = node.attributes.get("value")
        fill = onnx.numpy_helper.to_array(value) if value is not None else np.zeros(1, np.float32)
        return np.full([int(d) for d in first], fill.reshape(-1)[0], fill.dtype)
    if node.op_type == "Identity":
        return first
    if node.op_type in ("Shape", "Size"):
        return shape_of(node, "", first.shape).array()
    if node.op_type in ("Unsqueeze", "Squeeze"):
        axes = inputs[1] if len(inputs) > 1 and inputs[1] is not None else node.attributes.get("axes")
        if axes is None:
            return np.squeeze(first)
        axes = tuple(int(a) for a in axes)
        return np.expand_dims(first, axes) if node.op_type == "Unsqueeze" else np.squeeze(first, axes)
    if node.op_type == "Slice" and len(inputs) > 2:
        return _sliced(first, [None if given is None else given.reshape(-1).tolist() for given in inputs[1:]])
    return None


def _check_cost(node: Node, inputs: Sequence[np.ndarray | None], opsets: Mapping[str, int]) -> None:
    """Raise `FoldError` before more than `MAX_FOLDED_BYTES` of memory are allocated, or more than `_MOST_WORK` is
    computed."""
    arrays = [array for array in inputs if array is not None]
    if not arrays or node.domain:
        return
    given = sum({id(array): array.size for array in arrays}.values())
    kind, work = "plain", 0
    if node.op_type in ELEMENTS:
        count = ELEMENTS[node.op_type](*arrays)
    elif node.op_type in _PLAIN:  # number of elements that each operand is repeated over, where operands are
        try:
            count = math.prod(np.broadcast_shapes(*(array.shape for array in arrays)))
        except ValueError:
            count = given
    else:
        known = {name: ArrayWeight(name, a) for name, a in zip(node.inputs, inputs, strict=True) if a is not None}
        specs = [spec for name, spec in zip(node.outputs, infer(node, known, opsets), strict=True) if name]
        if None in specs:
            raise FoldError(f"{node.title}: how large its results are cannot be told")
        count = sum(math.prod(spec.shape) for spec in specs if spec is not None)
        kind = "plain" if node.op_type in _TOLD else "slow"
        if node.op_type in ("MatMul", "Gemm"):  # along one of A's two last dimensions
            kind, work = "product", count * max(arrays[0].shape[-2:], default=1)
        elif node.op_type == "Einsum":  # numpy iterates over all combinations of its labels
            kind, work = "product", math.prod(array.size for array in arrays)
    if count * 4 > MAX_FOLDED_BYTES and count > given:
        raise FoldError(f"{node.title}: would be {count} elements")
    if max(work, count + given) > _MOST_WORK[kind]:
        raise FoldError(f"{node.title}: would take {max(work, count + given)} steps")


def _sliced(array: np.ndarray, given: Sequence[list[int] | None]) -> np.ndarray | None:
    """ONNX's Slice; the reference evaluator uses Python's semantics."""
    starts, ends, axes, steps = [*given, None, None][:4]
    if starts is None or ends is None:
        return None
    for start, end, axis, step in zip(
        starts, ends, axes or range(len(starts)), steps or [1] * len(starts), strict=True
    ):
        begin, count = slice_span(array.shape[axis], start, end, step)
        array = array.take(range(begin, begin + count * step, step), axis)
    return array


def _types(named: Mapping[str, np.ndarray]) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
    return {name: (array.dtype, array.shape) for name, array in named.items()}


def _elem_type(array: np.ndarray) -> int:
    try:
        return dtypes.from_numpy(array.dtype).onnx
    except TypeError:
        return helper.np_dtype_to_tensor_dtype(array.dtype)


def _has_body(node: Node) -> bool:
    return any(isinstance(v, onnx.GraphProto) for v in node.attributes.values())
