"""Sums of products of 8-bit integers are exact: at and beyond what float32 holds, with all forms of zero points."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.ops.cases import model_of, on_vulkan

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
