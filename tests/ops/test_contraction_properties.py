"""Random shapes, axes, dtypes and broadcasts for products, convolutions, quantisation and Einsum."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.ops.cases import assert_like, by_onnxruntime, model_of, on_vulkan

few = settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
Array = np.ndarray[Any, Any]


def _values(seed: int, dtype: str, *shape: int) -> Array:
    rng = np.random.default_rng(seed)
    if np.dtype(dtype).kind in "iu":
        return rng.integers(0 if dtype.startswith("u") else -9, 9, shape).astype(dtype)
    return rng.normal(0, 1, shape).astype(dtype)


@st.composite
def broadcast_pairs(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Batch shapes that broadcast, of different ranks, with dimensions of 0 and 1 among them."""
    full = draw(st.lists(st.integers(0, 3), max_size=3))

    def side() -> tuple[int, ...]:
        kept = full[draw(st.integers(0, len(full))) :]
        return tuple(1 if draw(st.booleans()) and d != 0 else d for d in kept)

    return side(), side()


@few
@given(
    batches=broadcast_pairs(),
    sizes=st.tuples(st.integers(1, 9), st.integers(0, 17), st.integers(1, 9)),
    dtype=st.sampled_from(["float32", "float16", "float64", "int32", "int64", "uint32", "uint64"]),
    constant=st.booleans(),
    seed=st.integers(0, 99),
)
def test_matmul(
    batches: tuple[tuple[int, ...], tuple[int, ...]], sizes: tuple[int, int, int], dtype: str, constant: bool, seed: int
) -> None:
    m, k, n = sizes
    x, w = _values(seed, dtype, *batches[0], m, k), _values(seed + 1, dtype, *batches[1], k, n)
    [y] = on_vulkan(model_of("MatMul", {"x": x, "w": w}, constants=("w",) if constant else ()), {"x": x, "w": w})
    wide = np.float64 if np.dtype(dtype).kind == "f" else dtype
    near = 2e-3 if dtype == "float16" else 1e-5
    assert_like([y], [np.matmul(x.astype(wide), w.astype(wide)).astype(dtype)], rtol=near, atol=5 * near)


@st.composite
def windows(draw: st.DrawFn) -> dict[str, Any]:
    rank = draw(st.integers(1, 3))
    kernel, dilations, strides = ([draw(st.integers(1, 3)) for _ in range(rank)] for _ in range(3))
    pads = [draw(st.integers(0, 2)) for _ in range(2 * rank)]
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    spatial = [draw(st.integers(max(1, r - pads[i] - pads[rank + i]), r + 5)) for i, r in enumerate(reach)]
    return {"kernel": kernel, "dilations": dilations, "strides": strides, "pads": pads, "spatial": spatial}


@few
@given(
    window=windows(),
    channels=st.tuples(st.integers(1, 3), st.integers(1, 9), st.sampled_from([1, 2, 3])),
    images=st.integers(1, 2),
    seed=st.integers(0, 99),
)
def test_conv(window: dict[str, Any], channels: tuple[int, int, int], images: int, seed: int) -> None:
    each, out, group = channels
    x = _values(seed, "float32", images, each * group, *window["spatial"])
    w = _values(seed + 1, "float32", out * group, each, *window["kernel"])
    values = {"x": x, "w": w, "b": _values(seed + 2, "float32", out * group)}
    attributes = {name: window[name] for name in ("dilations", "strides", "pads")}
    model = model_of("Conv", values, constants=("w", "b"), group=group, opset=21, **attributes)
    assert_like(on_vulkan(model, values), by_onnxruntime(model, values), rtol=1e-4, atol=1e-4)


@few
@given(
    window=windows(),
    channels=st.tuples(st.integers(1, 3), st.integers(1, 4), st.sampled_from([1, 2])),
    seed=st.integers(0, 99),
)
def test_conv_transpose(window: dict[str, Any], channels: tuple[int, int, int], seed: int) -> None:
    each, out, group = channels
    rank = len(window["kernel"])
    spatial = [s + 2 for s in window["spatial"]]
    sizes = zip(spatial, window["strides"], window["kernel"], window["dilations"], strict=True)
    full = [(s - 1) * t + (k - 1) * d + 1 for s, t, k, d in sizes]
    pads = [min(p, (f - 1) // 2) for p, f in zip(window["pads"], full * 2, strict=True)]
    extra = [min(1, s - 1) for s in window["strides"]]
    x = _values(seed, "float32", 2, each * group, *spatial)
    values = {"x": x, "w": _values(seed + 1, "float32", each * group, out, *window["kernel"])}
    attributes = {"pads": pads, "strides": window["strides"], "dilations": window["dilations"], "output_padding": extra}
    model = model_of("ConvTranspose", values, group=group, opset=21, **attributes)
    assert len(pads) == 2 * rank
    assert_like(on_vulkan(model, values), by_onnxruntime(model, values), rtol=1e-4, atol=1e-4)


@few
@given(
    shape=st.lists(st.integers(1, 7), min_size=1, max_size=4),
    axis=st.integers(-4, 3),
    kind=st.sampled_from(["int8", "uint8", "int16", "uint16"]),
    seed=st.integers(0, 99),
)
def test_quantize(shape: list[int], axis: int, kind: str, seed: int) -> None:
    axis = axis % len(shape)
    rng = np.random.default_rng(seed)
    x = rng.normal(0, 100, shape).astype(np.float32)
    scale = rng.uniform(0.1, 2, shape[axis]).astype(np.float32)
    zero = rng.integers(0, 100, shape[axis]).astype(kind)
    values = {"x": x, "s": scale, "z": zero}
    [q] = on_vulkan(model_of("QuantizeLinear", values, axis=axis), values)
    spread = [shape[axis] if i == axis else 1 for i in range(len(shape))]
    info = np.iinfo(kind)
    expected = np.clip(np.rint(x / scale.reshape(spread)) + zero.reshape(spread), info.min, info.max).astype(kind)
    np.testing.assert_array_equal(q, expected)
    values = {"q": q, "s": scale, "z": zero}
    [back] = on_vulkan(model_of("DequantizeLinear", values, axis=axis), values)
    exact = (q.astype(np.int32) - zero.reshape(spread).astype(np.int32)).astype(np.float32) * scale.reshape(spread)
    np.testing.assert_array_equal(back, exact)


@st.composite
def equations(draw: st.DrawFn) -> tuple[str, list[tuple[int, ...]]]:
    sizes = {c: draw(st.integers(1, 4)) for c in "abcde"}
    terms = [draw(st.lists(st.sampled_from("abcde"), max_size=3)) for _ in range(draw(st.integers(1, 3)))]
    used = sorted({c for t in terms for c in t})
    result = draw(st.permutations(draw(st.lists(st.sampled_from(used), unique=True)) if used else []))
    shapes = [tuple(sizes[c] for c in t) for t in terms]
    return ",".join("".join(t) for t in terms) + "->" + "".join(result), shapes


@few
@given(case=equations(), dtype=st.sampled_from(["float32", "int32", "float64"]), seed=st.integers(0, 99))
def test_einsum(case: tuple[str, list[tuple[int, ...]]], dtype: str, seed: int) -> None:
    equation, shapes = case
    values = {f"x{k}": _values(seed + k, dtype, *shape) for k, shape in enumerate(shapes)}
    [y] = on_vulkan(model_of("Einsum", values, equation=equation), values)
    assert_like([y], [np.asarray(np.einsum(equation, *values.values()), dtype)], rtol=1e-4, atol=1e-4)
