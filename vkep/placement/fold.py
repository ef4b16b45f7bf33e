"""Constant folding: nodes whose inputs are all known are evaluated once, by ONNX's reference evaluator or by numpy, and not in a
narrower type than kernels compute in."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from threading import Lock
from typing import Any

import numpy as np
import onnx
from onnx import helper

from vkep import dtypes
from vkep.errors import Decline, VkepError
from vkep.graph.model import Node
from vkep.graph.weights import ArrayWeight, Codes, Weight
from vkep.ir.infer import infer, tied_types
from vkep.placement.elements import ELEMENTS
from vkep.placement.fold_own import evaluate

#: Larger results are not folded: a model's size must not explode by folding.
MAX_FOLDED_BYTES = 1 << 30
#: Beyond this many bytes of results in total, plus this many times the bytes of the model's weights, no further nodes
#: are folded.
MAX_TOTAL_BYTES, MAX_TOTAL_OF_WEIGHTS = 4 << 30, 8
#: Nodes of more work (about two seconds) are not folded: elements for numpy's loops and for Python loops of the reference
#: implementation, multiplications for matrix products.
_MOST_WORK = {"plain": 1 << 31, "product": 1 << 35, "slow": 1 << 22}
#: Operators that are folded: those whose results in onnx's reference evaluator have been compared with the kernels' for every
#: type. Elementwise ones, of numpy's loops, are as large as their broadcast operands.
_ELEMENTWISE = """
    Abs Acos Acosh Add And Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor
    Ceil Celu Cos Cosh Div Elu Equal Erf Exp Floor Gelu Greater GreaterOrEqual HardSigmoid HardSwish IsInf IsNaN
    LeakyRelu Less LessOrEqual Log Max Min Mish Mod Mul Neg Not Or PRelu Pow Reciprocal Relu Round Selu Shrink Sigmoid
    Sign Sin Sinh Softplus Softsign Sqrt Sub Swish Tan Tanh ThresholdedRelu Xor
"""
#: sums of many elements, and operators of parameters of other types than the data's, which are computed in float64
_SUMS = """
    BatchNormalization CumProd CumSum LogSoftmax Mean ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMean ReduceProd
    ReduceSum ReduceSumSquare Softmax Sum
"""
_PRODUCTS = "Einsum Gemm MatMul"
#: operators that copy or choose elements, or change their type, whose own types are kept
_COPIES = """
    ArgMax ArgMin BitCast Cast CastLike Clip Compress DepthToSpace Flatten Hardmax Identity NonZero RegexFullMatch Reshape Shape
    Size Slice SpaceToDepth Split Squeeze StringConcat StringNormalizer TopK Transpose Trilu Unsqueeze Where
"""
#: others; ONNX's shape inference gives the size of their results
_GATHERS = "Gather GatherND"
_SLOW_COPIES = """
    CenterCropPad Concat Constant ConstantOfShape Expand EyeLike GatherElements OneHot Pad Range ReverseSequence
    ScatterElements ScatterND StringSplit Tile
"""
_PLAIN = frozenset(f"{_ELEMENTWISE} {_SUMS} {_COPIES} DequantizeLinear QuantizeLinear ReduceMax ReduceMin".split())
_INFERRED = frozenset(f"{_GATHERS} {_PRODUCTS}".split())
FOLDED = _PLAIN | _INFERRED | frozenset(_SLOW_COPIES.split())
_WIDEST = frozenset(f"{_SUMS} {_PRODUCTS}".split())
COPIES = frozenset(f"{_COPIES} {_GATHERS} {_SLOW_COPIES}".split())
#: operators whose results of integers differ between the evaluator and the kernels where they overflow or are rounded; or of no
#: elements (ReduceMean)
_NO_INTEGERS = frozenset({"Gemm", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMean"})
#: operators that the evaluator has from this version on, and whose earlier versions mean the same: models of opsets 10 to 18
#: dequantize their weights with these
_SINCE = {"DequantizeLinear": 19, "QuantizeLinear": 19}
_FLOATS = {dtypes.DTYPES[name].numpy for name in ("float16", "bfloat16", "float32")}
_GPU_DTYPES = {d.numpy for d in dtypes.DTYPES.values()}


class FoldError(VkepError):
    """The reference implementation could not evaluate a node; it is lowered like any other."""


def can_fold(node: Node) -> bool:
    """Whether a node of constant inputs may be computed when the model is planned."""
    if node.schema is None or node.captures or _has_body(node):
        return False
    return node.op_type in FOLDED if not node.domain else node.op_type == "LabelEncoder"


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
    codes = _codes(node, inputs)
    made = [
        ArrayWeight(name, result, codes) if name and result is not None else None
        for name, result in zip(node.outputs, results, strict=True)
    ]
    node.memo["folded"] = (tuple(inputs), tuple(made))
    return made


def _codes(node: Node, inputs: Sequence[Weight | None]) -> Codes | None:
    """What a DequantizeLinear's result is made of, unless its scales are of blocks."""
    if node.op_type != "DequantizeLinear" or node.attributes.get("block_size"):
        return None
    x, scale, zero = (*inputs, None)[:3]
    assert x is not None and scale is not None
    axis = node.attributes.get("axis", 1)
    return Codes(x, scale.array(), None if zero is None else zero.array(), axis if isinstance(axis, int) else 1)


def total_limit(known: Iterable[object]) -> int:
    """The largest number of bytes that folding may add to the known values."""
    return MAX_TOTAL_BYTES + MAX_TOTAL_OF_WEIGHTS * sum(value.nbytes for value in known if isinstance(value, Weight))


def fold(node: Node, inputs: Sequence[np.ndarray | None], opsets: Mapping[str, int]) -> list[np.ndarray | None]:
    """The node's outputs; None for an absent one. Raises `FoldError`."""
    first = inputs[0] if inputs else None
    if node.op_type in _NO_INTEGERS and first is not None and (first.dtype.kind in "iu" or not first.size):
        raise FoldError(f"{node.title}: of integers, or of no elements, it is computed by kernels")
    try:
        _check_cost(node, inputs, opsets)
        wide = [None if array is None else _widened(node, array) for array in inputs]
        named = {name: array for name, array in zip(node.inputs, wide, strict=True) if name and array is not None}
        # an integer divided by zero is undefined, and is left for the run to report
        integers = all(array.dtype.kind in "iu" for array in named.values())
        with np.errstate(all="ignore", divide="raise" if integers else "ignore"):
            own = evaluate(node, wide)
            results = [own] if own is not None else _by_reference(node, named, opsets)
    except (TypeError, ValueError, LookupError, ArithmeticError, Decline) as error:
        raise FoldError(f"{node.title}: {error}") from error
    if not all(isinstance(r, (np.ndarray, np.generic)) for r in results):
        raise FoldError(f"{node.title}: result is no tensor")
    wanted = [name for name in node.outputs if name]
    found = dict(zip(wanted, (np.asarray(r) for r in results), strict=True))
    types = dict(tied_types(node, [None if array is None else array.dtype for array in inputs]))
    if node.op_type == "DequantizeLinear" and not node.attributes.get("output_dtype") and inputs[1] is not None:
        types[0] = inputs[1].dtype  # the schema ties it to no input since version 23
    with np.errstate(all="ignore"):
        return [
            found[name].astype(types.get(k, found[name].dtype), copy=False) if name else None
            for k, name in enumerate(node.outputs)
        ]


def _by_reference(node: Node, named: Mapping[str, np.ndarray], opsets: Mapping[str, int]) -> Sequence[Any]:
    evaluator = node.memo.get("evaluator")
    opsets = {**opsets, "": max(opsets.get("", 1), _SINCE.get(node.op_type, 1))}
    try:
        if evaluator is None or evaluator.given != _types(named):
            wanted = [name for name in node.outputs if name]
            evaluator = node.memo["evaluator"] = _Evaluator(node, named, wanted, opsets)
        results: Sequence[Any] = evaluator(named)
    except Exception as error:  # the reference raises exceptions of any type
        raise FoldError(f"{node.title}: {error}") from error
    return results


def _widened(node: Node, array: np.ndarray) -> np.ndarray:
    """An input in the type that kernels compute in, or a wider one: evaluated in float16, sums overflow."""
    if node.op_type in COPIES or array.dtype not in _FLOATS:
        return array
    return array.astype(np.float64 if node.op_type in _WIDEST else np.promote_types(array.dtype, np.float32))


class _Evaluator:
    """A node for onnx's reference evaluator, which takes longer to construct than to run. Thread-safe."""

    def __init__(
        self, node: Node, named: Mapping[str, np.ndarray], wanted: Sequence[str], opsets: Mapping[str, int]
    ) -> None:
        from onnx.reference import ReferenceEvaluator

        self.given = _types(named)
        self._wanted = list(wanted)
        self._lock = Lock()
        proto = onnx.NodeProto()
        proto.CopyFrom(node.proto)
        del proto.input[:], proto.output[:]  # a node that was copied into another graph has other names there
        proto.input.extend(node.inputs)
        proto.output.extend(node.outputs)
        graph = helper.make_graph(
            [proto],
            "fold",
            [helper.make_tensor_value_info(n, _elem_type(a), a.shape) for n, a in named.items()],
            [onnx.ValueInfoProto(name=n) for n in wanted],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid(d, v) for d, v in opsets.items()])
        self._evaluator = ReferenceEvaluator(model)

    def __call__(self, named: Mapping[str, np.ndarray]) -> Any:
        with self._lock:
            return self._evaluator.run(self._wanted, dict(named))


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
        kind = "plain" if node.op_type in _INFERRED else "slow"
        if node.op_type in ("MatMul", "Gemm"):  # along one of A's two last dimensions
            kind, work = "product", count * max(arrays[0].shape[-2:], default=1)
        elif node.op_type == "Einsum":  # numpy iterates over all combinations of its labels
            kind, work = "product", math.prod(array.size for array in arrays)
    if count * 4 > MAX_FOLDED_BYTES and count > given:
        raise FoldError(f"{node.title}: would be {count} elements")
    if max(work, count + given) > _MOST_WORK[kind]:
        raise FoldError(f"{node.title}: would take {max(work, count + given)} steps")


def _types(named: Mapping[str, np.ndarray]) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
    return {name: (array.dtype, array.shape) for name, array in named.items()}


def _elem_type(array: np.ndarray) -> int:
    try:
        return dtypes.from_numpy(array.dtype).onnx
    except TypeError:
        return helper.np_dtype_to_tensor_dtype(array.dtype)


def _has_body(node: Node) -> bool:
    return any(isinstance(v, onnx.GraphProto) for v in node.attributes.values())
