"""Calls that the specification does not allow, and that ONNX Runtime refuses: no engine gives a result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.ops.cases import by_onnxruntime
from vkep import InferenceSession, InvalidInputError, InvalidModelError

pytestmark = pytest.mark.usefixtures("vulkan")
Array = np.ndarray[Any, Any]
MICROSOFT = "com.microsoft"


def f(*shape: int) -> Array:
    return np.linspace(-1, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape)


def u8(*shape: int) -> Array:
    return np.arange(int(np.prod(shape)), dtype=np.uint8).reshape(shape)


def i64(*values: int) -> Array:
    return np.array(values, np.int64)


def scalar(value: float, dtype: Any = np.float32) -> Array:
    return np.array(value, dtype)


def blocks(data: Array, scales: Array, zeros: Array | None = None, **attributes: Any) -> tuple[Any, ...]:
    inputs = [data, np.array([[0, 1]], np.int32), scales, *([] if zeros is None else [zeros])]
    return ("GatherBlockQuantized", inputs, {"block_size": 16, "quantize_axis": 1, **attributes}, 1, MICROSOFT)


def nbits(*operands: Array | None, **attributes: Any) -> tuple[Any, ...]:
    return ("MatMulNBits", list(operands), {"K": 32, "N": 6, "bits": 8, "block_size": 16, **attributes}, 1, MICROSOFT)


_W, _S = u8(6, 2, 16), f(6, 2)
#: operator, inputs (None: absent), attributes, version of its operator set, its domain
CASES: dict[str, tuple[Any, ...]] = {
    "reshape to another size": ("Reshape", [f(2, 3), i64(7)], {}, 21),
    "reshape by a matrix": ("Reshape", [f(2, 3), i64(2, 3).reshape(1, 2)], {}, 21),
    "reshape with an open size beside 0": ("Reshape", [f(1, 0), i64(1, 0, -1)], {}, 21),
    "squeeze an axis of two": ("Squeeze", [f(2, 3), i64(0)], {}, 21),
    "unsqueeze an axis twice": ("Unsqueeze", [f(2, 3), i64(1, 1)], {}, 21),
    "transpose by no permutation": ("Transpose", [f(2, 3)], {"perm": [0, 0]}, 21),
    "concat": ("Concat", [f(2, 3), f(3, 3)], {"axis": 1}, 21),
    "split sizes": ("Split", [f(2, 4), i64(1, 2)], {"axis": 1}, 21, "", 2),
    "split into none": ("Split", [f(2, 4)], {"num_outputs": 0}, 21),
    "slice with fewer axes": ("Slice", [f(2, 3), i64(0, 0), i64(1, 1), i64(0)], {}, 21),
    "slice by 0": ("Slice", [f(2, 3), i64(0), i64(1), i64(0), i64(0)], {}, 21),
    "tile": ("Tile", [f(2, 3), i64(2)], {}, 21),
    "tile by a matrix": ("Tile", [f(2, 3), i64(2, 1).reshape(1, 2)], {}, 21),
    "expand": ("Expand", [f(2, 3), i64(2, 2)], {}, 21),
    "rotary table of half a head": (
        "RotaryEmbedding",
        [f(1, 2, 3, 8), i64(0, 1, 2).reshape(1, 3), f(5, 2), f(5, 2)],
        {},
        1,
        MICROSOFT,
    ),
    "heads beyond 32 bits": (
        "RotaryEmbedding", [np.zeros((0, 32768, 1, 65536), np.float32), i64(0), f(1, 32768), f(1, 32768)], {}, 1, MICROSOFT,
    ),
    "heads beyond 32 bits, of the standard": (
        "RotaryEmbedding",
        [np.zeros((0, 32768, 1, 65536), np.float32), np.zeros((0, 1, 32768), np.float32), np.zeros((0, 1, 32768), np.float32)],
        {},
        23,
    ),
    "depth to space": ("DepthToSpace", [f(1, 6, 2, 2)], {"blocksize": 2}, 21),
    "flatten": ("Flatten", [f(2, 3)], {"axis": 3}, 21),
    "softmax axis": ("Softmax", [f(2, 3)], {"axis": 2}, 21),
    "reduce axis": ("ReduceSum", [f(2, 3), i64(2)], {}, 21),
    "pad more than is reflected": ("Pad", [f(2, 3), i64(0, 3, 0, 0)], {"mode": "reflect"}, 21),
    "pads of one axis": ("Pad", [f(2, 3), i64(1, 1)], {}, 21),
    "resize an axis twice": ("Resize", [f(1, 1, 4, 4), None, None, i64(6, 6)], {"axes": [2, 2]}, 21),
    "resize sizes": ("Resize", [f(1, 1, 4, 4), None, None, i64(6, 6)], {}, 21),
    "affine grid of one size": ("AffineGrid", [f(2, 2, 3), i64(2, 1, 4)], {}, 21),
    "affine grid batch": ("AffineGrid", [f(2, 2, 3), i64(3, 1, 4, 4)], {}, 21),
    "columns": ("Col2Im", [f(1, 5, 4), i64(4, 4), i64(2, 2)], {}, 21),
    "one-hot values": ("OneHot", [i64(0, 1), scalar(3), f(3)], {}, 21),
    "one-hot of a scalar": ("OneHot", [scalar(0, np.int64), scalar(3), f(2)], {}, 21),
    "top k of 0": ("TopK", [f(2, 4)], {"k": 0}, 9, "", 2),
    "top k of more than there are": ("TopK", [f(2, 4), i64(5)], {}, 21, "", 2),
    "matrices": ("MatMul", [f(2, 3), f(2, 3)], {}, 21),
    "bias of a product": ("Gemm", [f(2, 3), f(3, 4), f(3)], {}, 21),
    "bias of a convolution": ("Conv", [f(1, 2, 4, 4), f(3, 2, 1, 1), f(2)], {}, 21),
    "bias of a transposed convolution": ("ConvTranspose", [f(1, 2, 4, 4), f(2, 3, 1, 1), f(2)], {}, 21),
    "output padding": ("ConvTranspose", [f(1, 1, 3, 3), f(1, 1, 3, 3)], {"strides": [2, 2], "output_padding": [2, 2]}, 21),
    "scale of a norm": ("RMSNormalization", [f(2, 3, 4), f(3)], {}, 23),
    "scale of a layer norm": ("LayerNormalization", [f(2, 3, 4), f(3)], {}, 21),
    "clip by a list": ("Clip", [f(2, 3), f(3)], {}, 21),
    "order of indices": ("MaxPool", [f(1, 1, 4, 4)], {"kernel_shape": [2, 2], "storage_order": 2}, 12),
    "global pool of a matrix": ("GlobalAveragePool", [f(2, 3)], {}, 21),
    "an input of another type": ("Add", [f(2, 3), i64(1)], {}, 21),
    "an index that is a float": ("Reshape", [f(2, 3), f(1)], {}, 21),
    "scales of a quantized axis": ("QuantizeLinear", [f(2, 3), f(2) + 2], {"axis": 1}, 21),
    "sampling ratio": ("RoiAlign", [f(1, 1, 5, 5), f(1, 4), i64(0)], {"sampling_ratio": -1}, 16),
    "batches of a fused product": ("FusedMatMul", [f(2, 3, 4), f(4, 5)], {"transBatchA": 1}, 1, MICROSOFT),
    "batches of matrices": ("FusedMatMul", [f(3, 4), f(4, 5)], {"transBatchA": 1}, 1, MICROSOFT),
    "bias of an integer product": (
        "MatMulIntegerToFloat", [u8(2, 4), u8(4, 8), f(1), f(1), None, None, f(1)], {}, 1, MICROSOFT,
    ),
    "bias of a dynamic product": ("DynamicQuantizeMatMul", [f(2, 4), u8(4, 8), f(1), None, f(1)], {}, 1, MICROSOFT),
    "bias of gelu": ("BiasGelu", [f(2, 3), f(1)], {}, 1, MICROSOFT),
    "skip": ("SkipLayerNormalization", [f(2, 3, 4), f(2, 2, 4), f(4)], {}, 1, MICROSOFT),
    "epsilon": ("SkipLayerNormalization", [f(2, 3, 4), f(2, 3, 4), f(4)], {"epsilon": -1.0}, 1, MICROSOFT),
    "tables of an embedding": (
        "EmbedLayerNormalization", [np.zeros((1, 2), np.int32), None, f(3, 4), f(2, 3), None, f(4), f(4)], {}, 1, MICROSOFT,
    ),
    "scale of a": ("QGemm", [u8(2, 4), f(2), scalar(0, np.uint8), u8(4, 3), f(1), u8(1)], {}, 1, MICROSOFT),
    "an output's zero point": (
        "QLinearAdd", [u8(2, 3), f(1), u8(1), u8(2, 3), f(1), u8(1), f(1), u8(3)], {}, 1, MICROSOFT,
    ),
    "blocks of 8": blocks(u8(4, 32), f(4, 4), block_size=8, bits=8),
    "blocks of 17": blocks(u8(4, 34), f(4, 2), block_size=17, bits=8),
    "codes of 3 bits": blocks(u8(4, 32), f(4, 2), bits=3),
    "scales of blocks": blocks(u8(4, 32), f(4, 3), bits=8),
    "scales of rows": blocks(u8(4, 32), f(3, 2), bits=8),
    "zero points of blocks": blocks(u8(4, 32), f(4, 2), u8(4, 1), bits=8),
    "zero points of another type": blocks(u8(4, 32), f(4, 2), np.zeros((4, 2), np.int8), bits=8),
    "bytes gathered by columns": blocks(u8(4, 32), f(1, 32), bits=8, gather_axis=1, quantize_axis=0),
    "the axis in blocks gathered": blocks(u8(4, 32), f(4, 2), bits=8, gather_axis=1),
    "weights of other blocks": nbits(f(2, 32), u8(6, 3, 16), _S),
    "scales of other blocks": nbits(f(2, 32), _W, f(6, 3)),
    "zero points of other blocks": nbits(f(2, 32), _W, _S, u8(6, 3)),
    "zero points of a convolution": (
        "QLinearConv",
        [u8(1, 1, 4, 4), scalar(1), scalar(0, np.uint8), u8(2, 1, 1, 1), f(2) + 2, u8(3), scalar(1), scalar(0, np.uint8)],
        {},
        21,
    ),
    "bias of a quantized convolution": (
        "QLinearConv",
        [u8(1, 1, 4, 4), scalar(1), scalar(0, np.uint8), u8(2, 1, 1, 1), f(2) + 2, u8(2), scalar(1), scalar(0, np.uint8),
         np.zeros(3, np.int32)],
        {},
        21,
    ),
    "a running sum of a scalar": ("CumSum", [scalar(1.0), scalar(0, np.int64)], {}, 21),
    "an axis that is a list": ("CumSum", [f(2, 3), i64(0, 0)], {}, 21),
    "a negative sample rate": (
        "MelWeightMatrix", [*(scalar(v, np.int64) for v in (8, 16, -8192)), scalar(0.0), scalar(1e3)], {}, 17,
    ),
    "pads below 0": (
        "ConvTransposeWithDynamicPads", [f(1, 1, 3, 3), f(1, 1, 3, 3), i64(-1, 0, 0, 0)], {"strides": [2, 2]}, 1, MICROSOFT,
    ),
    "weights of no axes": ("ConvTransposeWithDynamicPads", [f(1, 1, 3, 3), scalar(1), i64(0, 0, 0, 0)], {}, 1, MICROSOFT),
    "groups": nbits(f(2, 32), _W, _S, None, np.zeros(31, np.int32)),
    "bias of blocks": nbits(f(2, 32), _W, _S, None, None, f(5)),
    "strings of no column": ("StringNormalizer", [np.zeros((1, 0), object)], {"case_change_action": "NONE"}, 10),
    "columns of the input": nbits(f(2, 31), _W, _S),
    "blocks of 12": nbits(f(2, 32), _W, _S, block_size=12),
}  # fmt: skip


def _model(case: tuple[Any, ...], dynamic: bool) -> tuple[onnx.ModelProto, dict[str, Array]]:
    op_type, inputs, attributes, version, *rest = case
    domain, outputs = rest + ["", 1][len(rest) :]
    names = ["" if value is None else f"x{k}" for k, value in enumerate(inputs)]
    values = {name: value for name, value in zip(names, inputs, strict=True) if value is not None}

    def shape(name: str, value: Array) -> Sequence[int | str]:
        return [f"{name}_{axis}" for axis in range(value.ndim)] if dynamic else value.shape

    graph = helper.make_graph(
        [helper.make_node(op_type, names, [f"y{k}" for k in range(outputs)], domain=domain, **attributes)],
        "must fail",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), shape(name, value))
            for name, value in values.items()
        ],
        [onnx.ValueInfoProto(name=f"y{k}") for k in range(outputs)],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(domain, version)] if domain else None
    model = helper.make_model(graph, opset_imports=opsets or [helper.make_opsetid("", version)], ir_version=10)
    return model, values


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_it_is_refused(case: tuple[Any, ...], dynamic: bool) -> None:
    model, values = _model(case, dynamic)
    with pytest.raises((InvalidModelError, InvalidInputError)), InferenceSession(model, save_plans=False) as session:
        session.run(None, values)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_onnx_runtime_refuses_it_too(case: tuple[Any, ...]) -> None:
    model, values = _model(case, dynamic=False)
    with pytest.raises(Exception, match="ONNXRuntimeError"):
        by_onnxruntime(model, values)
