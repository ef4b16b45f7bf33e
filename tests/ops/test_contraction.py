"""Matrix products, convolutions and Einsum in every rank and element type, against ONNX's reference or onnxruntime."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.ops.cases import assert_like, check, model_of, on_vulkan
from tests.ops.microsoft import MS, normal

RNG = np.random.default_rng(11)


def _normal(*shape: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    return RNG.normal(0, 1, shape).astype(dtype)


def _values(dtype: Any, *shape: int) -> np.ndarray[Any, Any]:
    if np.dtype(dtype).kind in "iu":
        return RNG.integers(0 if np.dtype(dtype).kind == "u" else -9, 9, shape).astype(dtype)
    return _normal(*shape, dtype=dtype)


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32", "uint64", "float64", "float16"])
@pytest.mark.parametrize("shapes", [((5, 7), (7, 6)), ((2, 3, 5, 7), (3, 7, 1)), ((7,), (2, 7, 4)), ((4, 7), (7,))])
def test_products(dtype: str, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    x, y = (_values(dtype, *s) for s in shapes)
    [got] = on_vulkan(model_of("MatMul", {"x": x, "w": y}, outputs=("z",)), {"x": x, "w": y})
    wide = np.matmul(x.astype(np.float64), y.astype(np.float64)) if dtype == "float16" else np.matmul(x, y)
    assert_like(
        [got], [wide.astype(dtype)], rtol=1e-3 if dtype == "float16" else 1e-12, atol=1e-2 if dtype == "float16" else 0
    )


def test_more_matrices_than_a_grid_has_workgroups_along_an_axis() -> None:
    x, y = _normal(70000, 2, 4), _normal(70000, 4, 3)
    [got] = on_vulkan(model_of("MatMul", {"x": x, "w": y}), {"x": x, "w": y})
    np.testing.assert_allclose(got, np.matmul(x, y), rtol=1e-4, atol=1e-5)


def test_more_images_than_a_grid_has_workgroups_along_an_axis() -> None:
    x, w = _normal(70000, 1, 2, 2), _normal(8, 1, 2, 2)
    [got] = on_vulkan(model_of("Conv", {"x": x, "w": w}), {"x": x, "w": w})
    np.testing.assert_allclose(got.reshape(70000, 8), x.reshape(70000, 4) @ w.reshape(8, 4).T, rtol=1e-4, atol=1e-5)


def test_integer_products_wrap() -> None:
    x, y = np.full((1, 3), 2**30, np.int32), np.full((3, 1), 3, np.int32)
    check("MatMul", {"x": x, "w": y})


def test_bfloat16_product_rounds_once() -> None:
    x, y = _normal(9, 33, dtype=ml_dtypes.bfloat16), _normal(33, 5, dtype=ml_dtypes.bfloat16)
    [got] = on_vulkan(model_of("MatMul", {"x": x, "w": y}), {"x": x, "w": y})
    expected = (x.astype(np.float64) @ y.astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(got.astype(np.float32), expected, rtol=2**-8, atol=1e-3)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "uint32"])
@pytest.mark.parametrize("factors", [(1.0, 1.0), (2.0, 3.0)])
def test_gemm(dtype: str, factors: tuple[float, float]) -> None:
    inputs = {"a": _values(dtype, 7, 5), "b": _values(dtype, 6, 7), "c": _values(dtype, 6)}
    [got] = on_vulkan(model_of("Gemm", inputs, alpha=factors[0], beta=factors[1], transA=1, transB=1), inputs)
    expected = factors[0] * (inputs["a"].T.astype(np.float64) @ inputs["b"].T) + factors[1] * inputs["c"]
    assert_like([got], [expected.astype(dtype)])


EQUATIONS = [
    ("ij,jk->ik", (3, 4), (4, 5)),
    ("ij,jk", (3, 4), (4, 5)),
    ("...ij,...jk->...ik", (2, 1, 3, 4), (5, 4, 6)),
    ("ii->i", (4, 4)),
    ("ii", (4, 4)),
    ("iji->j", (3, 4, 3)),
    ("i,j->ij", (3,), (4,)),
    ("bij,bij->b", (2, 3, 4), (2, 3, 4)),
    ("bhqd,bhkd->bhqk", (2, 3, 4, 5), (2, 3, 6, 5)),
    ("abc->cb", (2, 3, 4)),
    ("ab,bc,cd->ad", (2, 3), (3, 4), (4, 5)),
    ("a,b,ab->", (2,), (3,), (2, 3)),
    ("...->...", (2, 3)),
    ("i...->...", (2, 3, 4)),
    ("ab,cd->", (2, 3), (4, 5)),
    ("bi,oi->bo", (1, 4), (5, 4)),
]


@pytest.mark.parametrize("case", EQUATIONS, ids=lambda c: c[0])
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_einsum(case: tuple[Any, ...], dtype: str) -> None:
    equation, *shapes = case
    inputs = {f"x{k}": _values(dtype, *s) for k, s in enumerate(shapes)}
    [got] = on_vulkan(model_of("Einsum", inputs, equation=equation), inputs)
    assert_like([got], [np.einsum(equation, *inputs.values()).astype(dtype)], atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("group", [1, 2])
def test_convolution(dtype: str, rank: int, group: int) -> None:
    spatial, kernel = (9, 8, 7)[:rank], (3, 2, 3)[:rank]
    inputs = {
        "x": _normal(2, 4, *spatial, dtype=dtype),
        "w": _normal(6, 4 // group, *kernel, dtype=dtype),
        "b": _normal(6, dtype=dtype),
    }
    window: dict[str, Any] = {
        "strides": [2, 1, 1][:rank],
        "dilations": [1, 2, 1][:rank],
        "pads": [1, 0, 2][:rank] + [0, 1, 1][:rank],
    }
    got = on_vulkan(model_of("Conv", inputs, group=group, **window), inputs)
    exact = {k: v.astype(np.float32) for k, v in inputs.items()}
    from tests.ops.cases import by_onnxruntime

    [expected] = by_onnxruntime(model_of("Conv", exact, group=group, opset=21, **window), exact)
    near = 2e-2 if dtype == "float16" else 1e-4
    assert_like(got, [expected.astype(dtype)], rtol=near, atol=near)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize(
    "how", [{}, {"auto_pad": "SAME_UPPER"}, {"auto_pad": "SAME_LOWER"}, {"auto_pad": "VALID"}, {"padded": 1}]
)
def test_transposed_convolution(rank: int, group: int, how: dict[str, Any]) -> None:
    spatial, kernel = (5, 4, 3)[:rank], (3, 2, 3)[:rank]
    inputs = {"x": _normal(2, 4, *spatial), "w": _normal(4, 3, *kernel), "b": _normal(3 * group)}
    window: dict[str, Any] = {"strides": [2, 3, 1][:rank], "dilations": [1, 2, 1][:rank], "group": group}
    if how.get("padded"):
        window |= {"pads": [1, 0, 1][:rank] + [0, 1, 1][:rank], "output_padding": [1, 1, 0][:rank]}
    else:
        window |= how
    check("ConvTranspose", inputs, against="onnxruntime", opset=21, atol=1e-4, **window)


def test_transposed_convolution_with_output_shape() -> None:
    inputs = {"x": _normal(1, 2, 5, 5), "w": _normal(2, 3, 3, 3)}
    check("ConvTranspose", inputs, against="onnxruntime", opset=21, atol=1e-4, strides=[3, 2], output_shape=[16, 12])


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_transposed_convolution_types(dtype: str) -> None:
    inputs = {"x": _normal(1, 2, 5, 5, dtype=dtype), "w": _normal(2, 3, 3, 3, dtype=dtype)}
    got = on_vulkan(model_of("ConvTranspose", inputs, strides=[2, 2]), inputs)
    from tests.ops.cases import by_onnxruntime

    exact = {k: v.astype(np.float32) for k, v in inputs.items()}
    [expected] = by_onnxruntime(model_of("ConvTranspose", exact, strides=[2, 2], opset=21), exact)
    assert_like(got, [expected.astype(dtype)], rtol=1e-2 if dtype == "float16" else 1e-4, atol=1e-2)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("group", "offset_group"), [(1, 1), (2, 1), (1, 2), (2, 2)])
def test_deformable_convolution(masked: bool, group: int, offset_group: int) -> None:
    inputs: dict[str, Any] = {
        "x": _normal(2, 4, 6, 5),
        "w": _normal(2, 4 // group, 3, 2),
        "o": _normal(2, offset_group * 12, 4, 4),
        "b": _normal(2),
        "m": _normal(2, offset_group * 6, 4, 4) if masked else None,
    }
    check("DeformConv", inputs, kernel_shape=[3, 2], group=group, offset_group=offset_group, opset=22, atol=1e-4)


@pytest.mark.parametrize("transposed", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_fused_matmul(transposed: tuple[int, int]) -> None:
    a = normal(3, 7, 5) if transposed[0] else normal(3, 5, 7)
    b = normal(3, 6, 7) if transposed[1] else normal(3, 7, 6)
    check("FusedMatMul", {"a": a, "b": b}, transA=transposed[0], transB=transposed[1], alpha=0.5, **MS)


def test_fused_matmul_with_batch_transposed() -> None:
    check("FusedMatMul", {"a": normal(5, 3, 7), "b": normal(7, 3, 6)}, transBatchA=1, transBatchB=1, **MS)


@pytest.mark.parametrize("activation", ["Relu", "LeakyRelu", "Tanh", "Sigmoid"])
def test_fused_convolution_and_gemm(activation: str) -> None:
    inputs = {"a": normal(4, 5), "b": normal(5, 6), "c": normal(6)}
    slope: dict[str, Any] = {"activation_alpha": 0.2} if activation == "LeakyRelu" else {}
    check("FusedGemm", inputs, activation=activation, **slope, **MS)
    more: dict[str, Any] = {"activation_params": [0.2]} if activation == "LeakyRelu" else {}
    inputs = {"x": normal(1, 2, 6, 6), "w": normal(3, 2, 3, 3), "b": normal(3)}
    check("FusedConv", inputs, activation=activation, atol=1e-4, **more, **MS)


def test_echo_and_old_product() -> None:
    check("SampleOp", {"x": normal(3, 4)}, **MS)
    check("TransposeMatMul", {"x": normal(2, 4, 3), "v": normal(2, 5, 4)}, transA=1, transB=1, alpha=0.5, **MS)
