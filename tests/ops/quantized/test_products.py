"""Sums of products of 8-bit integers are exact: at and beyond what float32 holds, with all forms of zero points."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from onnx import TensorProto

from tests.ops.cases import check, model_of, on_vulkan
from tests.ops.microsoft import MS, RNG, against, codes, gelu, normal, scale

Array = np.ndarray[Any, Any]
KINDS = st.sampled_from(["int8", "uint8"])
#: values that make sums largest, and random ones
FILLS = st.sampled_from(["least", "most", "random"])
few = settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def _values(fill: str, kind: str, *shape: int) -> Array:
    low, high = np.iinfo(kind).min, np.iinfo(kind).max
    if fill == "random":
        return np.random.default_rng(1).integers(low, high + 1, shape).astype(kind)
    return np.full(shape, low if fill == "least" else high, kind)


@few
@given(
    sizes=st.tuples(st.integers(1, 5), st.sampled_from([1, 7, 258, 259, 520, 1040, 2100, 9000]), st.integers(1, 6)),
    kinds=st.tuples(KINDS, KINDS),
    fills=st.tuples(FILLS, FILLS),
    zeros=st.tuples(st.sampled_from(["none", "one", "each"]), st.sampled_from(["none", "one", "each"])),
    zero_fill=FILLS,
    constants=st.sampled_from([(), ("y",), ("y", "y_zero"), ("y", "x_zero", "y_zero"), ("x", "x_zero", "y_zero")]),
)
@example(
    (1, 259, 1), ("uint8", "uint8"), ("most", "most"), ("none", "none"), "least", ("y",)
)  # 2**24 + 57, in two parts
@example((3, 9000, 5), ("int8", "uint8"), ("least", "most"), ("each", "each"), "most", ())  # too many parts
def test_products(
    sizes: tuple[int, int, int],
    kinds: tuple[str, str],
    fills: tuple[str, str],
    zeros: tuple[str, str],
    zero_fill: str,
    constants: tuple[str, ...],
) -> None:
    m, k, n = sizes
    x, y = _values(fills[0], kinds[0], m, k), _values(fills[1], kinds[1], k, n)
    x[0, :: k // 2 + 1] //= 2
    zero_shapes = {"one": ((), ()), "each": ((m,), (n,))}
    given_: dict[str, Array | None] = {
        "x": x,
        "y": y,
        "x_zero": None if zeros[0] == "none" else _values(zero_fill, kinds[0], *zero_shapes[zeros[0]][0]),
        "y_zero": None if zeros[1] == "none" else _values(zero_fill, kinds[1], *zero_shapes[zeros[1]][1]),
    }
    known = [name for name in constants if given_[name] is not None]
    [got] = on_vulkan(model_of("MatMulInteger", given_, constants=known, outputs=("sums",)), given_)
    left, right = x.astype(np.int64), y.astype(np.int64)
    if given_["x_zero"] is not None:
        left = left - given_["x_zero"].astype(np.int64).reshape(-1, 1)
    if given_["y_zero"] is not None:
        right = right - given_["y_zero"].astype(np.int64)
    np.testing.assert_array_equal(got, (left @ right).astype(np.int32))


def _convolved(x: Array, w: Array, pad: int, groups: int) -> Array:
    padded = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, w.shape[2:], (2, 3))
    each = [
        np.einsum("nchwij,ocij->nohw", part, weights)
        for part, weights in zip(np.split(windows, groups, 1), np.split(w, groups, 0), strict=True)
    ]
    return np.concatenate(each, 1)


@few
@given(
    channels=st.sampled_from([(1, 1), (3, 16), (16, 16), (64, 16), (200, 24), (400, 8)]),
    side=st.sampled_from([5, 16]),
    window=st.sampled_from([1, 3]),
    images=st.integers(1, 2),
    grouped=st.booleans(),
    kinds=st.tuples(KINDS, KINDS),
    fills=st.tuples(FILLS, FILLS),
    zero_fill=FILLS,
    constants=st.sampled_from([(), ("w",), ("w", "w_zero"), ("w", "x_zero", "w_zero")]),
)
@example((64, 16), 16, 3, 1, False, ("uint8", "int8"), ("random", "random"), "random", ("w", "x_zero", "w_zero"))
@example((400, 8), 5, 3, 2, False, ("uint8", "int8"), ("most", "least"), "least", ("w", "x_zero", "w_zero"))
@example((400, 8), 5, 3, 1, True, ("uint8", "uint8"), ("most", "most"), "least", ("w", "x_zero", "w_zero"))
def test_convolutions(
    channels: tuple[int, int],
    side: int,
    window: int,
    images: int,
    grouped: bool,
    kinds: tuple[str, str],
    fills: tuple[str, str],
    zero_fill: str,
    constants: tuple[str, ...],
) -> None:
    inputs, outputs = channels
    groups = 2 if grouped and inputs % 2 == outputs % 2 == 0 else 1
    x = _values(fills[0], kinds[0], images, inputs, side, side)
    w = _values(fills[1], kinds[1], outputs, inputs // groups, window, window)
    x_zero, w_zero = _values(zero_fill, kinds[0]), _values(zero_fill, kinds[1], outputs)
    values: dict[str, Array | None] = {"x": x, "w": w, "x_zero": x_zero, "w_zero": w_zero}
    pad = window // 2
    model = model_of("ConvInteger", values, constants=constants, group=groups, pads=[pad] * 4, opset=10)
    [got] = on_vulkan(model, values)
    images_, weights = (
        x.astype(np.int64) - int(x_zero),
        w.astype(np.int64) - w_zero.astype(np.int64)[:, None, None, None],
    )
    np.testing.assert_array_equal(got, _convolved(images_, weights, pad, groups).astype(np.int32))


def test_integer_products_to_float() -> None:
    inputs = {
        "a": codes(np.uint8, 4, 9),
        "b": codes(np.int8, 9, 6),
        "as": np.array(0.02, np.float32),
        "bs": RNG.uniform(0.01, 0.02, 6).astype(np.float32),
        "az": np.array(120, np.uint8),
        "bz": np.zeros(6, np.int8),
        "c": normal(6),
    }
    check("MatMulIntegerToFloat", inputs, atol=1e-4, **MS)
    dynamic = {"a": normal(4, 9), "b": inputs["b"], "bs": inputs["bs"], "bz": inputs["bz"], "c": inputs["c"]}
    check("DynamicQuantizeMatMul", dynamic, atol=1e-3, **MS)


def test_quantized_gemm() -> None:
    inputs = {
        "a": codes(np.uint8, 4, 9),
        "as": np.array(0.02, np.float32),
        "az": np.array(120, np.uint8),
        "b": codes(np.int8, 6, 9),
        "bs": RNG.uniform(0.01, 0.02, 6).astype(np.float32),
        "bz": np.zeros(6, np.int8),
        "c": RNG.integers(-100, 100, 6).astype(np.int32),
        "ys": np.array(0.05, np.float32),
        "yz": np.array(120, np.uint8),
    }
    check("QGemm", inputs, transB=1, alpha=1.0, **MS)
    for absent in ("yz", "ys"):  # float32 in units of its scale, and without one
        del inputs[absent]
        check("QGemm", inputs, transB=1, alpha=1.0, **MS)


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("columns", [True, False])
def test_quantized_convolution_of_words(last: int, columns: bool) -> None:
    shape, many = ((2, 6, 5, 4) if last else (2, 4, 6, 5)), (6,) if columns else ()
    inputs = {
        "x": codes(np.uint8, *shape), "xs": scale(0.02), "xz": np.array(120, np.uint8), "w": codes(np.int8, 6, 2, 3, 3),
        "ws": RNG.uniform(0.01, 0.02, many).astype(np.float32), "wz": np.zeros(many, np.int8), "ys": scale(0.3),
        "yz": np.array(128, np.uint8), "b": RNG.integers(-900, 900, 6).astype(np.int32),
    }  # fmt: skip
    constants = [n for n in inputs if n != "x"]
    check("QLinearConv", inputs, constants=constants, group=2, pads=[1, 0, 1, 1], channels_last=last, **MS)


@pytest.mark.parametrize("activation", ["NONE", "RELU", "GELU"])
def test_products_of_8_bit_floats(activation: str) -> None:
    x, y = normal(3, 16).astype(ml_dtypes.float8_e4m3fn), normal(5, 16).astype(ml_dtypes.float8_e5m2)
    c = normal(5)
    total = 0.5 * 2 * 3 * (x.astype(float) @ y.astype(float).T) + 0.25 * c
    made = {"NONE": total, "RELU": np.maximum(total, 0), "GELU": gelu(total)}[activation]
    inputs = {"x": x, "v": y, "c": c, "xs": scale(2), "vs": scale(3)}
    against(
        lambda **_: made,
        "GemmFloat8",
        inputs,
        alpha=0.5,
        beta=0.25,
        transB=1,
        activation=activation,
        dtype=TensorProto.FLOAT,
    )


@pytest.mark.parametrize("types", [(np.int16, np.int16), (np.uint16, np.uint16)])
def test_products_of_shorts(types: tuple[Any, Any]) -> None:
    a, y = (codes(t, *shape) for t, shape in zip(types, [(3, 5), (5, 4)], strict=True))
    wide = np.int64 if types[0] == np.int16 else np.uint64
    inputs = {"a": a, "b": y}
    got = on_vulkan(model_of("MatMulInteger16", inputs, domain="com.microsoft"), inputs)[0]
    np.testing.assert_array_equal(got, (a.astype(wide) @ y.astype(wide)).astype(got.dtype))
    assert got.dtype == (np.int32 if types[0] == np.int16 else np.uint32)
