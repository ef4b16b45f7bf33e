"""Calls of portable kernels: the operator's name and its arguments, without outputs. What torch makes of them is in
``data/portable.npz``, written by ``python -m tools.executorch_data.portable``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Case = tuple[str, tuple[Any, ...]]
_SMOOTH = ("asinh", "atan", "cos", "cosh", "erf", "exp", "exp2", "expm1", "sigmoid", "sin", "sinh", "tan", "tanh")


def cases() -> list[Case]:
    """The same calls every time: their position is their name in the data file."""
    r = np.random.default_rng(7)

    def f(*shape: int) -> Any:
        return r.standard_normal(shape).astype(np.float32)

    def n(low: int, high: int, *shape: int) -> Any:
        return r.integers(low, high, shape)

    x, y, i = f(2, 3, 4), f(3, 1), n(-5, 6, 2, 3)
    unit, positive = np.tanh(f(3, 4)) * np.float32(0.9), np.abs(f(3, 4)) + np.float32(0.1)
    mask = f(3, 4) > 0
    odd = np.array([0.5, 1.5, 2.5, -0.5, -1.5, np.nan, np.inf, -np.inf], np.float32)
    half = f(3, 4).astype(np.float16)
    found: list[Case] = []

    def add(names: str | Sequence[str], *arguments: Any) -> None:
        found.extend((name, arguments) for name in ([names] if isinstance(names, str) else names))

    for name in ["acos", "asin", "atanh", "logit"]:
        add(f"{name}.out", unit, *([None] if name == "logit" else []))
    add("logit.out", unit, 0.05)
    for name in ["acosh", "log", "log10", "log1p", "log2", "rsqrt", "sqrt", "reciprocal"]:
        add(f"{name}.out", positive + np.float32(1))
    for name in [
        "asinh",
        "atan",
        "cos",
        "cosh",
        "erf",
        "exp",
        "exp2",
        "expm1",
        "sigmoid",
        "sin",
        "sinh",
        "tan",
        "tanh",
        "silu",
        "hardsigmoid",
        "hardswish",
        "mish",
    ]:
        add(f"{name}.out", x)
        add(f"{name}.out", half)
    for name in ["abs", "neg", "sign", "relu", "ceil", "floor", "round", "trunc", "isinf", "isnan", "logical_not"]:
        add(f"{name}.out", odd)
        if name not in ("ceil", "floor", "round", "trunc"):
            add(f"{name}.out", i)
    add("bitwise_not.out", i)
    for name in ["eq", "ne", "lt", "le", "gt", "ge"]:
        add(f"{name}.Tensor_out", i, n(-5, 6, 2, 3))
        add(f"{name}.Scalar_out", i, 2)
        add(f"{name}.Scalar_out", x, 0.5)
    for name in ["fmod", "remainder"]:
        add(f"{name}.Tensor_out", f(3, 4) * 5, f(4))
        add(f"{name}.Tensor_out", i, np.array([3, -2, 5]))
        add(f"{name}.Scalar_out", x * 3, -1.5)
    for name in ["bitwise_and", "bitwise_or", "bitwise_xor"]:
        add(f"{name}.Tensor_out", i, np.array([3, 6, 5]))
        add(f"{name}.Scalar_out", i, 6)
        add(f"{name}.Tensor_out", mask, ~mask[:1])
    for name in ["bitwise_left_shift", "bitwise_right_shift"]:
        add(f"{name}.Tensor_out", i, np.array([1, 2, 3]))
    for name in ["maximum", "minimum", "atan2"]:
        add(f"{name}.out", x, f(3, 1))
    for name in ["logical_and", "logical_or", "logical_xor"]:
        add(f"{name}.out", i, np.array([0, 1, 2]))
    for name in ["add", "sub"]:
        add(f"{name}.out", x, y, 1)
        add(f"{name}.out", x, y, 2.5)
        add(f"{name}.Scalar_out", i, 3, 2)
        add(f"{name}.out", half, half[0], 1)
    add("rsub.Scalar_out", x, 2.0, 3)
    add("mul.out", x, y)
    add("mul.Scalar_out", i, 300)
    add("mul.Scalar_out", np.array([1, 2, 3], np.uint8), 2)
    add("div.out", x, y)
    add("div.Scalar_out", i, 4)
    for mode in ("trunc", "floor", None):
        add("div.out_mode", x * 5, y, mode)
        add("div.Scalar_mode_out", x * 5, 1.5, mode)
    add("floor_divide.out", i, np.array([2, -3, 4]))
    add("pow.Tensor_Tensor_out", positive, f(4))
    add("pow.Tensor_Scalar_out", positive, 0.5)
    add("pow.Tensor_Scalar_out", i, 3)
    add("pow.Scalar_out", 2.0, x)
    add("where.self_out", mask, f(3, 4), f(4))
    add("clamp.out", x, -0.5, None)
    add("clamp.out", i, None, 3)
    add("clamp.Tensor_out", x, np.float32(-0.2) * np.ones(4, np.float32), np.ones(4, np.float32))
    add("hardtanh.out", x, -0.5, 0.75)
    add("leaky_relu.out", x, 0.1)
    add("elu.out", x, 1.5, 1.1, 0.9)
    add("gelu.out", x, "none")
    add("gelu.out", x, "tanh")
    add("glu.out", f(2, 6), -1)
    add("softplus.out", x * 10, 2.0, 5.0)
    add("round.decimals_out", x, 2)
    add("masked_fill.Scalar_out", f(3, 4), mask, 2.5)

    for dims in ([1], [0, -1], []):
        for keep in (False, True):
            add("sum.IntList_out", x, dims, keep, None)
            add("mean.out", x, dims, keep, None)
            add(["amax.out", "amin.out"], x, dims, keep)
            add("var.correction_out", x, dims or None, 0, keep)
            add("any.dims_out", i, dims[:1], keep)
    add("sum.IntList_out", i, [0], False, None)
    add("sum.IntList_out", mask, [1], False, None)
    add(["var.correction_out", "std.correction_out"], x, [1], None, False)
    add("var.out", x, [0, 2], True, False)
    add("var_mean.correction_out", x, [2], 1, True)
    add(["prod.int_out"], x, 1, True, None)
    add("prod.out", positive, None)
    add(["any.out", "all.out"], i, 1, True)
    add(["any.all_out", "all.all_out", "max.unary_out", "min.unary_out"], i)
    for keep in (False, True):
        add(["argmax.out", "argmin.out"], x, 2, keep)
        add(["argmax.out", "argmin.out"], x, None, keep)
        add("max.dim_max", x, 1, keep)
        add("min.dim_min", i, -1, keep)
    add("cumsum.out", x, 1, None)
    add("cumsum.out", i, 0, None)
    add("topk.values", x, 2, -1, True, True)
    add("topk.values", x, 2, 1, False, True)
    add("sort.values", x, 1, True)
    add("sort.values_stable", i, True, 1, True)
    add("nonzero.out", n(0, 2, 3, 4))

    add("permute_copy.out", x, [2, 0, -2])
    add("transpose_copy.int_out", x, 0, -1)
    add("t_copy.out", y)
    add("view_copy.out", x, [4, -1])
    add("unsqueeze_copy.out", x, -2)
    add("squeeze_copy.dim_out", y, 1)
    add("squeeze_copy.dim_out", y, 0)
    add("squeeze_copy.dims_out", f(1, 3, 1), [0, 1, 2])
    add("expand_copy.out", y, [2, -1, 4], False)
    add("select_copy.int_out", x, 1, -1)
    add("slice_copy.Tensor_out", x, 2, 1, 9223372036854775807, 2)
    add("slice_copy.Tensor_out", x, 1, -2, None, 1)
    add("slice_copy.Tensor_out", x, 1, 2, 1, 1)
    add("narrow_copy.out", x, 2, 1, 2)
    add("split_copy.Tensor_out", f(5, 2), 2, 0)
    add("split_with_sizes_copy.out", f(5, 2), [1, 4], 0)
    add("unbind_copy.int_out", x, 1)
    add("cat.out", [x, f(2, 3, 1)], -1)
    add("cat.out", [np.zeros(0, np.float32), f(2, 2)], 0)
    add("stack.out", [f(2, 3), f(2, 3)], 1)
    add("repeat.out", y, [2, 1, 3])
    add("repeat_interleave.Tensor_out", np.array([2, 0, 3]), None)
    add("flip.out", x, [0, 2])
    add("roll.out", x, [1, -2], [0, 2])
    add("roll.out", i, [2], [])
    add("constant_pad_nd.out", x, [1, 2, -1, 1], 3.5)
    add("reflection_pad1d.out", x, [2, 1])
    add("reflection_pad2d.out", f(1, 2, 4, 5), [1, 2, 3, 0])
    add("replication_pad1d.out", x, [2, 1])
    add("replication_pad2d.out", f(1, 2, 4, 5), [1, 2, 3, 0])
    add("replication_pad3d.out", f(1, 2, 2, 4, 5), [1, 2, 3, 0, 1, 1])
    add("pixel_shuffle.out", f(2, 8, 3, 2), 2)
    add("pixel_unshuffle.out", f(2, 2, 6, 4), 2)
    add("diagonal_copy.out", x, 1, 1, 2)
    add("unfold_copy.out", x, 2, 2, 1)
    add("as_strided_copy.out", f(12), [3, 2], [2, 5], 1)
    add(["tril.out", "triu.out"], f(3, 4), 1)

    add("index_select.out", x, 1, np.array([2, 0, 0]))
    add("gather.out", x, 1, n(0, 3, 2, 5, 4), False)
    add("embedding.out", f(6, 3), n(0, 6, 2, 2), -1, False, False)
    add("index.Tensor_out", x, [np.array([0, 1, 1]), None, np.array([3, 0, 2])])
    add("index.Tensor_out", x, [None, n(0, 3, 2, 2)])
    add("index.Tensor_out", f(3, 4), [mask])
    add("index_put.out", f(3, 4), [np.array([0, 2])], f(2, 4), False)
    add("index_put.out", f(3, 4), [np.array([1, 1]), np.array([2, 2])], f(2), True)
    add("scatter.src_out", f(3, 4), 1, np.array([[0, 2], [1, 3]]), f(2, 2))
    add("scatter.value_out", f(3, 4), 0, np.array([[0, 2, 1]]), 2.5)
    add("scatter_add.out", f(3, 4), 0, np.array([[0, 0, 1], [0, 2, 1]]), f(2, 3))
    add("select_scatter.out", x, f(2, 4), 1, -1)
    add("slice_scatter.out", x, f(2, 3, 2), 2, 0, 4, 2)
    add("masked_scatter.out", f(3, 4), mask, f(12))
    add("masked_select.out", f(3, 4), mask)

    add("full.out", [2, 3], 2.5)
    add("full_like.out", x, 3.0, None)
    add(["zeros.out", "ones.out"], [2, 3])
    add("arange.out", 5)
    add("arange.start_out", 1.0, 3.0, 0.25)
    add("scalar_tensor.out", 2.5)
    add("fill.Scalar_out", x, 2.0)

    for stride, padding, dilation, groups in (([1, 1], [0, 0], [1, 1], 1), ([2, 1], [1, 2], [1, 2], 2)):
        add(
            "convolution.out",
            f(2, 4, 7, 8),
            f(6, 4 // groups, 3, 3),
            f(6),
            stride,
            padding,
            dilation,
            False,
            [0, 0],
            groups,
        )
        add(
            "convolution.out",
            f(2, 4, 5, 4),
            f(4, 6 // groups, 3, 3),
            f(6),
            stride,
            padding,
            dilation,
            True,
            [0, 0],
            groups,
        )
    add("convolution.out", f(1, 4, 5, 4), f(4, 3, 3, 2), None, [2, 2], [1, 0], [1, 1], True, [1, 1], 1)
    add("convolution.out", f(2, 4, 9), f(6, 4, 3), f(6), [2], [1], [1], False, [0], 1)
    add(
        "convolution.out",
        f(1, 2, 4, 5, 6),
        f(3, 2, 2, 3, 2),
        None,
        [1, 1, 1],
        [1, 0, 1],
        [1, 1, 1],
        False,
        [0, 0, 0],
        1,
    )
    add("mm.out", f(3, 4), f(4, 5))
    add("bmm.out", f(2, 3, 4), f(2, 4, 5))
    add("addmm.out", f(5), f(3, 4), f(4, 5), 0.5, 2.0)
    add("_cdist_forward.out", f(2, 3, 4), f(2, 5, 4), 2.0, None)
    add("_native_batch_norm_legit_no_training.out", f(2, 3, 4), f(3), f(3), f(3), np.abs(f(3)), 0.1, 1e-5)
    add("_native_batch_norm_legit.no_stats_out", f(4, 3, 5), f(3), f(3), True, 0.1, 1e-5)
    add("native_layer_norm.out", x, [4], f(4), f(4), 1e-5)
    add("native_layer_norm.out", x, [3, 4], None, None, 1e-5)
    add("native_group_norm.out", f(2, 4, 3, 2), f(4), f(4), 2, 4, 6, 2, 1e-5)
    add(["_softmax.out", "_log_softmax.out"], x, 1, False)
    add("max_pool2d_with_indices.out", f(1, 2, 7, 8), [3, 2], [2, 2], [1, 1], [1, 2], False)
    add("max_pool2d_with_indices.out", f(2, 7, 8), [3, 3], [2, 2], [1, 1], [1, 1], True)
    add("avg_pool2d.out", f(1, 2, 7, 8), [3, 2], [2, 2], [1, 1], False, True, None)
    add("avg_pool2d.out", f(1, 2, 7, 8), [3, 3], [2, 2], [1, 1], True, False, None)
    add("avg_pool2d.out", f(1, 2, 7, 8), [3, 3], [2, 2], [1, 1], True, True, None)
    add("avg_pool2d.out", f(1, 2, 7, 8), [2, 2], [], [0, 0], False, True, 3)
    add("_adaptive_avg_pool2d.out", f(1, 2, 7, 8), [3, 5])
    add("upsample_nearest2d.vec_out", f(1, 2, 3, 4), None, [2.0, 1.5])
    add("upsample_nearest2d.vec_out", f(1, 2, 3, 4), [7, 5], None)
    for corners in (False, True):
        add("upsample_bilinear2d.vec_out", f(1, 2, 3, 4), [7, 5], corners, None)
        for method in (0, 1, 2):
            for padding_mode in (0, 1, 2):
                add(
                    "grid_sampler_2d.out", f(2, 2, 4, 5), f(2, 3, 3, 2) * np.float32(0.8), method, padding_mode, corners
                )
    add("upsample_bilinear2d.vec_out", f(1, 2, 3, 4), None, False, [2.0, 1.5])
    return found + _more()


def _more() -> list[Case]:
    """Gradients, complex numbers and what else came later: with random numbers of their own, which leaves those above."""
    r = np.random.default_rng(11)

    def f(*shape: int) -> Any:
        return r.standard_normal(shape).astype(np.float32)

    found: list[Case] = [
        ("_native_batch_norm_legit.out", (f(2, 3, 4), f(3), f(3), f(3), np.abs(f(3)), False, 0.1, 1e-5)),
        ("_native_batch_norm_legit.out", (f(2, 3), None, None, f(3), np.abs(f(3)), False, 0.1, 1e-5)),
        *(("_pdist_forward.out", (f(5, 3), p)) for p in (0.0, 1.0, 2.0, 3.5, float("inf"))),
        ("_pdist_forward.out", (f(1, 3), 2.0)),
    ]
    for size in ([3, 9], [12, 2], [1, 1], [8, 5]):
        for corners in (False, True):
            found.append(("_upsample_bilinear2d_aa.out", (f(2, 3, 8, 5), size, corners, None, None)))
    found.append(("_upsample_bilinear2d_aa.out", (f(1, 2, 9, 7), [4, 10], False, 0.45, 1.5)))
    found.append(("_upsample_bilinear2d_aa.out", (f(1, 2, 9, 7), [4, 10], False, 0.45, 1.5)))
    made = f(2, 3, 4) + np.complex64(1j) * f(2, 3, 4)
    found += [("view_as_real_copy.out", (made,)), ("_conj_physical.out", (made,))]
    for dims, normalization in (([2], 0), ([1, 2], 1), ([2, 0], 2)):
        found += [("_fft_r2c.out", (f(4, 3, 6), dims, normalization, onesided)) for onesided in (True, False)]
    found += [("_fft_c2r.out", (made, [2], 0, 6)), ("_fft_c2r.out", (made, [1, 2], 1, 7))]
    found.append(("_fft_c2r.out", (made, [0, 2], 2, 6)))
    for k, s, p, d in (([2, 2], [2, 2], [0, 0], [1, 1]), ([3, 2], [1, 2], [1, 0], [1, 2])):
        x = f(2, 3, 6, 7)
        places = _largest(x, k, s, p, d)
        arguments = (f(*places.shape), x, k, s, p, d, False, places)
        found.append(("max_pool2d_with_indices_backward.grad_input", arguments))
    for stride, padding, dilation, groups, mask in (
        ([1, 1], [1, 1], [1, 1], 1, [True, True, True]),
        ([2, 3], [1, 0], [2, 1], 2, [True, True, False]),
        ([2, 1], [0, 1], [1, 1], 1, [False, True, True]),
    ):
        x, w = f(2, 4, 8, 9), f(6, 4 // groups, 3, 2)
        room = [n + 2 * a - b * (m - 1) - 1 for n, a, b, m in zip((8, 9), padding, dilation, (3, 2), strict=True)]
        out = [n // s + 1 for n, s in zip(room, stride, strict=True)]
        call = (f(2, 6, *out), x, w, [6], stride, padding, dilation, False, [0, 0], groups, mask)
        found.append(("convolution_backward.out", call))
        w, extra = f(4, 6 // groups, 3, 2), [1 if n > 1 else 0 for n in stride]
        out = [
            (n - 1) * s - 2 * a + b * (m - 1) + 1 + e
            for n, s, a, b, m, e in zip((8, 9), stride, padding, dilation, (3, 2), extra, strict=True)
        ]
        call = (f(2, 6, *out), x, w, [6], stride, padding, dilation, True, extra, groups, mask)
        found.append(("convolution_backward.out", call))
    return found


def _largest(x: Any, k: list[int], s: list[int], p: list[int], d: list[int]) -> Any:
    """Where each window of a max pool has its largest element, numbered in its plane."""
    numbers = np.arange(x.shape[2] * x.shape[3]).reshape(1, 1, *x.shape[2:])
    edges = [(0, 0), (0, 0), (p[0], p[0]), (p[1], p[1])]
    both = [np.pad(a, edges, constant_values=c) for a, c in ((x, -np.inf), (np.broadcast_to(numbers, x.shape), -1))]
    reach = [b * (n - 1) + 1 for n, b in zip(k, d, strict=True)]
    cut = (..., slice(None, None, s[0]), slice(None, None, s[1]), slice(None, None, d[0]), slice(None, None, d[1]))
    windows, places = (np.lib.stride_tricks.sliding_window_view(a, reach, (2, 3))[cut] for a in both)
    flat, where = (a.reshape(*a.shape[:4], -1) for a in (windows, places))
    return np.take_along_axis(where, flat.argmax(-1)[..., None], -1)[..., 0]
