"""Quantized convolutions, reductions, embeddings and products of small floats, against onnxruntime or numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from tests.ops.cases import Array, by_onnxruntime, check, graph_of, model_of, on_vulkan
from tests.ops.microsoft import MS, RNG, against, codes, scale
from vkep.errors import InvalidModelError

pytestmark = pytest.mark.usefixtures("vulkan")


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_integers(dtype: Any) -> None:
    x, y = codes(dtype, 3, 4, 5), codes(dtype, 4, 1)
    zero = np.array(7, dtype)
    against(lambda x, z, v: (x.astype(int) - 7) * v.astype(int), "MulInteger", {"x": x, "z": zero, "v": y})
    for axes, keep in (([1], 1), ([0, 2], 0)):
        against(
            lambda x, axes=axes, keep=keep: x.astype(int).sum(tuple(axes), keepdims=bool(keep)), "ReduceSumInteger",
            {"x": x}, axes=axes, keepdims=keep,
        )  # fmt: skip

        def mean(x: Array, axes: Any = axes, keep: int = keep, **_: Array) -> Array:
            real = ((x.astype(int) - 7) * 0.1).mean(tuple(axes), keepdims=bool(keep))
            info = np.iinfo(dtype)
            return np.clip(np.round(real / 0.0473) + 9, info.min, info.max)

        inputs = {"x": x, "s": scale(0.1), "z": zero, "ys": scale(0.0473), "yz": np.array(9, dtype)}
        against(mean, "QLinearReduceMean", inputs, axes=axes, keepdims=keep, atol=1)


@pytest.mark.parametrize("op_type", ["QLinearAdd", "QLinearMul"])
def test_quantized_arithmetic(op_type: str) -> None:
    inputs = {
        "x": codes(np.uint8, 4, 9),
        "xs": np.array(0.02, np.float32),
        "xz": np.array(120, np.uint8),
        "w": codes(np.uint8, 9),
        "ws": np.array(0.03, np.float32),
        "wz": np.array(110, np.uint8),
        "zs": np.array(0.05, np.float32),
        "zz": np.array(100, np.uint8),
    }
    model = model_of(op_type, inputs, domain="com.microsoft", opset=21)
    # onnxruntime multiplies by reciprocals here: a tie may go the other way
    difference = on_vulkan(model, inputs)[0].astype(int) - by_onnxruntime(model, inputs)[0]
    assert np.abs(difference).max() <= 1 and (difference != 0).mean() < 0.1


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_qlinear_concat(dtype: Any) -> None:
    inputs = {"ys": scale(0.3), "yz": np.array(5, dtype)}
    for k, (step, zero) in enumerate([(0.3, 5), (0.11, 7)]):
        inputs |= {f"x{k}": codes(dtype, 2, 3 + k, 4), f"s{k}": scale(step), f"z{k}": np.array(zero, dtype)}
    check("QLinearConcat", inputs, constants=[n for n in inputs if n[0] != "x"], axis=1, **MS)
    other = np.int8 if dtype == np.uint8 else np.uint8
    for name in ("x0", "z1"):
        with pytest.raises(
            InvalidModelError, match=r"a part of u?int8 with a scale of float32 and a zero point of u?int8"
        ):
            check("QLinearConcat", inputs | {name: inputs[name].astype(other)}, axis=1, **MS)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_qlinear_where(dtype: Any) -> None:
    inputs: dict[str, Array] = {"c": RNG.integers(0, 2, (2, 1, 4)).astype(bool)}
    for name, shape, step, zero in (("a", (3, 4), 0.2, 3), ("b", (2, 3, 1), 0.05, 60)):
        inputs |= {name: codes(dtype, *shape), f"{name}s": scale(step), f"{name}z": np.array(zero, dtype)}
    inputs |= {"zs": scale(0.13), "zz": np.array(9, dtype)}
    check("QLinearWhere", inputs, constants=[n for n in inputs if len(n) == 2], **MS)


@pytest.mark.parametrize("opset", [11, 13])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_qlinear_softmax(dtype: Any, opset: int) -> None:
    zero = 0 if dtype == np.uint8 else -128
    inputs = {"x": codes(dtype, 2, 3, 4), "xs": scale(0.05), "xz": np.array(7, dtype)}
    inputs |= {"ys": scale(0.00326), "yz": np.array(zero, dtype)}
    attributes: dict[str, Any] = {"opset": opset, "axis": 1}
    node = helper.make_node("QLinearSoftmax", list(inputs), ["y"], domain="com.microsoft", **attributes)
    model = graph_of([node], inputs, ["y"], ["xs", "xz", "ys", "yz"], 21, "com.microsoft")
    [got], [wanted] = on_vulkan(model, inputs), by_onnxruntime(model, inputs)
    assert got.dtype == wanted.dtype
    np.testing.assert_array_equal(got, wanted)


def _quantized(dtype: Any, *shape: int, out: float) -> dict[str, Array]:
    zeros = np.array(7, dtype), np.array(3, dtype)
    return {"x": codes(dtype, *shape), "xs": scale(0.05), "xz": zeros[0], "ys": scale(out), "yz": zeros[1]}


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("channels_last", [0, 1])
def test_qlinear_average_pools(channels_last: int, dtype: Any) -> None:
    inputs = _quantized(dtype, 2, 6, 7, 5, out=0.0431)
    rest: dict[str, Any] = {"constants": ["xs", "xz", "ys", "yz"], "channels_last": channels_last, **MS}
    check("QLinearGlobalAveragePool", inputs, **rest)
    for include in (0, 1):
        window: dict[str, Any] = {
            "kernel_shape": [3, 2],
            "strides": [2, 1],
            "pads": [1, 0, 1, 1],
            "count_include_pad": include,
        }
        check("QLinearAveragePool", inputs, auto_pad="", **window, **rest)
        ties = inputs | {"ys": inputs["xs"]}  # a mean of two lies between two steps
        check("QLinearAveragePool", ties, kernel_shape=[1, 2], count_include_pad=include, **rest)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize(
    ("op_type", "attributes", "out"), [("QLinearSigmoid", {}, 1 / 256), ("QLinearLeakyRelu", {"alpha": 0.3}, 0.04)]
)
def test_qlinear_activations(op_type: str, attributes: dict[str, Any], out: float, dtype: Any) -> None:
    check(op_type, _quantized(dtype, 3, 40, out=out), constants=["xs", "xz", "ys", "yz"], **attributes, **MS)
