"""Cases of quantization, and of products and convolutions on quantized values.

Where ExecuTorch's Python functions only stand in for its kernels (activations that are not rounded, weights whose order is
that of the kernels' memory), the expected values are computed here from what the export passes write.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.aten.values import Array, Case, Const, Dtype, positive, wave, whole

X = wave(3, 32)
IMAGE = whole(1, 8, 5, 6, low=-128, high=128, dtype=np.int8)


def int8(*shape: int, k: int = 0, low: int = -127) -> Array:
    return whole(*shape, low=low, high=128, k=k, dtype=np.int8)


def int4(*shape: int, k: int = 0) -> Array:
    return whole(*shape, low=-8, high=8, k=k, dtype=np.int8)


def packed(codes: Array, low_first: bool = True) -> Array:
    """Two codes, each plus 8, a byte."""
    shifted = (codes + 8).astype(np.uint8)
    first, second = shifted[:, ::2], shifted[:, 1::2]
    return first | second << 4 if low_first else first << 4 | second


def padded(x: Array, length: int) -> Array:
    return np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, length - x.shape[-1])])


def rounded(x: Array, scale: Any, zero: Any) -> Array:
    """What int8 keeps of ``x``."""
    codes = np.clip(np.round(x * (np.float32(1) / np.float32(scale))) + zero, -128, 127)
    return ((codes - zero) * np.float32(scale)).astype(np.float32)


def to_int8(x: Array, scale: float, zero: int) -> Array:
    return np.clip(np.round(x * np.float32(1 / scale)) + zero, -128, 127).astype(np.int8)


def value(x: Array, scale: float, zero: int) -> Array:
    return (x.astype(np.float32) - zero) * np.float32(scale)


# ---- linear layers of 8 bits

W8, S8, BIAS = int8(6, 32), positive(6) * 0.01, wave(6)
SUMS = W8.sum(1).astype(np.int32)


def linear8(x: Array, weights: Array, scales: Array, bias: Array | None) -> Array:
    count = 6
    out = x @ (weights[:count].astype(np.float32) * scales[:count, None]).T
    return out if bias is None else out + bias[:count]


def q8ta_q8csw(x: Array, scale: float, zero: int, w: Array, _: Array, scales: Array, bias: Array | None) -> Array:
    return linear8(rounded(x, scale, zero), w, scales, bias)


def q8ta_linear(x, scale, zero, w, _, scales, out_scale, out_zero, bias, activation) -> Array:  # type: ignore[no-untyped-def]
    out = linear8(value(x, scale, zero), w, scales, bias)
    return to_int8(np.maximum(out, 0) if activation == "relu" else out, out_scale, out_zero)


Q8 = (int8(3, 32, k=5), 0.03, 4, Const(W8), Const(SUMS), Const(S8), 0.2, -5, Const(BIAS))
# the export pads scales, sums and biases to a multiple of four
PADDED = (Const(padded(SUMS, 8)), Const(padded(S8, 8)), 0.2, -5, Const(padded(BIAS, 8)))
LINEAR8 = [
    Case("aten._weight_int8pack_mm.default", (X, Const(W8), Const(S8)), lambda x, w, s: linear8(x, w, s, None)),
    Case(
        "aten._weight_int8pack_mm.default",
        (wave(2, 9), Const(int8(6, 9)), Const(S8)),
        lambda x, w, s: linear8(x, w, s, None),
        "short rows",
    ),
    Case("et_vk.linear_q8ta_q8csw.default", (X, 0.02, 3, Const(W8), Const(SUMS), Const(S8), Const(BIAS)), q8ta_q8csw),
    Case("et_vk.q8ta_linear.default", (*Q8, "none"), q8ta_linear, tolerance=1),
    Case("et_vk.q8ta_linear.default", (*Q8[:4], *PADDED, "relu"), q8ta_linear, "padded", 1),
    Case("et_vk.q8ta_linear_gemv.default", (int8(1, 32, k=5), *Q8[1:], "relu"), q8ta_linear, tolerance=1),
]

# ---- linear layers of 4 bits

W4 = int4(6, 32)
S4 = positive(2, 6) * 0.1  # [groups, out]


def grouped(scales: Array, codes: Array, size: int) -> Array:
    """Weights [out, in] from codes and scales [groups, out]."""
    rows, width = codes.shape
    return codes.astype(np.float32) * np.repeat(scales[: width // size, :rows].T, size, axis=1)


def q4gsw(codes: Array) -> Any:
    def expected(x: Array, w: Array, scales: Array, size: int, bias: Array | None) -> Array:
        out = x @ grouped(scales, codes, size).T
        return out if bias is None else out + bias[: out.shape[-1]]

    return expected


def dq8ca(x, scales, zeros, w, _, w_scales, size, bias) -> Array:  # type: ignore[no-untyped-def]
    kept = rounded(x, scales.reshape(-1, 1), zeros.reshape(-1, 1))
    return kept @ grouped(w_scales, W4, size).T + bias


def requantized(latent: Array, scales: Array, size: int) -> Array:
    codes = np.clip(np.round(latent / np.repeat(scales.T, size, axis=1)), -8, 7)
    return packed(codes.astype(np.int8))


ODD = int4(6, 12)
TABLE, TABLE_SCALES, ROWS = int4(9, 32), positive(9, 2) * 0.1, whole(2, 3, low=0, high=9)


def rows_of_table(w: Array, scales: Array, size: int, indices: Array, linear: bool) -> Array:
    return (TABLE.astype(np.float32) * np.repeat(scales, size, axis=1))[indices]


LINEAR4 = [
    Case("et_vk.linear_q4gsw.default", (X, Const(packed(W4)), Const(S4), 16, Const(BIAS)), q4gsw(W4), tolerance=1e-4),
    Case(
        "et_vk.linear_q4gsw.default",
        (wave(2, 3, 12), Const(packed(padded(ODD, 16))), Const(padded(positive(3, 6), 8)), 4, None),
        q4gsw(ODD),
        "small groups, padded",
        1e-4,
    ),
    Case(
        "et_vk.linear_q4gsw.default",
        (wave(1, 3, 32), Const(packed(W4)), Const(padded(S4, 8)), 16, Const(padded(BIAS, 8))),
        q4gsw(W4),
        "padded",
        1e-4,
    ),
    Case(
        "et_vk.linear_dq8ca_q4gsw.default",
        (X, positive(3) * 0.02, int8(3), Const(packed(W4)), Const(SUMS), Const(S4), 16, Const(BIAS)),
        dq8ca,
        tolerance=1e-4,
    ),
    Case(
        "et_vk.linear_qcs4w.default",
        (X, Const(packed(W4, False)), Const(S8)),
        lambda x, w, s: x @ (W4.astype(np.float32) * s[:, None]).T,
        tolerance=1e-4,
    ),
    Case(
        "et_vk.linear_qcs4w.default",
        (wave(2, 12), Const(packed(ODD, False)), Const(S8)),
        lambda x, w, s: x @ (ODD.astype(np.float32) * s[:, None]).T,
        "short rows",
        1e-4,
    ),
    Case(
        "et_vk.linear_q4gsw_backward.default",
        (wave(3, 6), Const(packed(W4)), Const(S4), 16),
        lambda d, w, s, size: d @ grouped(s, W4, size),
    ),
    Case("et_vk.q4gsw_requant.default", (wave(6, 32), Const(S4 * 2), 16), requantized),
    Case("et_vk.embedding_q4gsw.default", (Const(packed(TABLE)), Const(TABLE_SCALES), 16, ROWS, True), rows_of_table),
    Case(
        "et_vk.embedding_q4gsw.default",
        (Const(packed(TABLE, False)), Const(TABLE_SCALES), 16, ROWS, False),
        rows_of_table,
        "its own order",
    ),
    Case(
        "quantized_decomposed.embedding_4bit.dtype",
        (Const(packed(TABLE, False)), Const(TABLE_SCALES), None, -8, 7, ROWS, Dtype("float32")),
        lambda w, s, z, low, high, i, _: rows_of_table(w, s, 16, i, False),
    ),
]

# ---- convolutions of 8 bits

CONV_SCALE, CONV_BIAS = positive(6) * 0.01, wave(6)
KERNEL, DEPTHWISE, TURNED = int8(6, 4, 3, 2), int8(8, 1, 3, 3), int8(8, 3, 2, 3)  # the last: [in, out / groups, ...]


def conv(x: Array, w: Array, stride: list[int], padding: list[int], groups: int) -> Array:
    """A convolution by its definition, in float64."""
    x = np.pad(x.astype(np.float64), [(0, 0), (0, 0), (padding[0],) * 2, (padding[1],) * 2])
    count, per_group, height, width = w.shape
    windows = np.lib.stride_tricks.sliding_window_view(x, (height, width), (2, 3))[:, :, :: stride[0], :: stride[1]]
    parts = [
        np.einsum(
            "nchwij,ocij->nohw",
            windows[:, g * per_group : (g + 1) * per_group],
            w[g * (count // groups) :][: count // groups],
        )
        for g in range(groups)
    ]
    return np.concatenate(parts, 1)


def deconv(x: Array, w: Array, stride: list[int], padding: list[int], output_padding: list[int], groups: int) -> Array:
    """Its transpose: ``w`` is [in, out / groups, height, width]."""
    batch, inputs, rows, columns = x.shape
    each, (height, width) = w.shape[1], w.shape[2:]
    size = [
        (n - 1) * s + k + o for n, s, k, o in zip((rows, columns), stride, (height, width), output_padding, strict=True)
    ]
    out = np.zeros((batch, each * groups, *size))
    for c in range(inputs):
        g = c // (inputs // groups)
        for i in range(rows):
            for j in range(columns):
                top, left = i * stride[0], j * stride[1]
                window = out[:, g * each : (g + 1) * each, top : top + height, left : left + width]
                window += x[:, c, i, j].reshape(-1, 1, 1, 1) * w[c]
    return out[:, :, padding[0] : size[0] - padding[0] or None, padding[1] : size[1] - padding[1] or None]


def conv_case(name: str, weights: Array, groups: int, kind: str = "", activation: str = "none") -> Case:
    """``weights`` as PyTorch has them; the blob has them in the kernels' order."""
    size = list(weights.shape[2:])
    if kind == "transposed":
        per_in, each = weights.shape[0] // groups, weights.shape[1]
        count = each * groups
        rows = weights.reshape(groups, per_in, each, *size).transpose(0, 2, 3, 4, 1).reshape(count, -1)
    else:
        count = weights.shape[0]
        rows = weights.transpose(0, 2, 3, 1).reshape(count, -1)
    scales, bias = positive(count) * 0.01, wave(count)
    memory = (
        weights.transpose(2, 3, 1, 0).reshape(*size, count)
        if kind == "dw"
        else padded(rows, -(-rows.shape[1] // 4) * 4)
    )
    up = -(-count // 4) * 4
    stride, padding = ([1, 1], [0, 0]) if size == [1, 1] else ([2, 1], [1, 0])

    def expected(x, scale, zero, w, _, s, out_scale, out_zero, b, *rest) -> Array:  # type: ignore[no-untyped-def]
        real = value(x, scale, zero)
        if kind == "transposed":
            wide = np.repeat(scales.reshape(groups, 1, each), per_in, axis=1).reshape(groups * per_in, each)
            out = deconv(real, weights * wide[:, :, None, None].astype(np.float64), stride, padding, [1, 0], groups)
        else:
            out = conv(real, weights * scales[:, None, None, None].astype(np.float64), stride, padding, groups)
        out = (out + bias[:, None, None]).astype(np.float32)
        return to_int8(np.maximum(out, 0) if activation == "relu" else out, out_scale, out_zero)

    args = (IMAGE, 0.02, -3, Const(memory), Const(np.zeros(up, np.int32)), Const(padded(scales, up)), 0.15, 7)
    shape = (size, stride, padding, *([[1, 0]] if kind == "transposed" else []), [1, 1], groups, activation)
    return Case(name, (*args, Const(padded(bias, up)), *shape), expected, f"{groups} groups {activation}", 1)


CONVOLUTIONS = [
    conv_case("et_vk.q8ta_conv2d.default", KERNEL, 2),
    conv_case("et_vk.q8ta_conv2d.default", int8(4, 8, 3, 3), 1, activation="relu"),
    conv_case("et_vk.q8ta_conv2d_pw.default", int8(6, 8, 1, 1), 1),
    conv_case("et_vk.q8ta_conv2d_dw.default", DEPTHWISE, 8, "dw"),
    conv_case("et_vk.q8ta_conv2d_transposed.default", TURNED, 1, "transposed"),
    conv_case("et_vk.q8ta_conv2d_transposed.default", TURNED, 2, "transposed", "relu"),
]

Q = int8(2, 3, 4, low=-128)
INT8 = Dtype("int8")
RANGE = (-128, 127, INT8)
OTHERS = [
    Case("et_vk.q8ta_add.default", (Q, int8(2, 3, 4, k=9), 0.03, 2, 0.05, -4, 0.1, 1, 0.5), tolerance=1),
    Case("et_vk.q8ta_relu.default", (Q, 0.03, 2, 0.04, -3), tolerance=1),
    Case("et_vk.q8ta_pixel_shuffle.default", (IMAGE, 0.03, 2, 1 / 0.04, -3, 2), tolerance=1),
    Case("quantized_decomposed.quantize_per_tensor.default", (X, 0.02, 3, *RANGE)),
    Case("quantized_decomposed.quantize_per_tensor.default", (X, 0.02, 128, 0, 255, Dtype("uint8")), label="uint8"),
    Case(
        "quantized_decomposed.quantize_per_tensor.tensor",
        (X, np.array(0.02, np.float32), np.array(3, np.int32), *RANGE),
    ),
    Case("quantized_decomposed.dequantize_per_tensor.default", (Q, 0.02, 3, *RANGE, None)),
    Case(
        "quantized_decomposed.dequantize_per_tensor.tensor",
        (Q, np.array(0.02, np.float32), np.array(3, np.int32), *RANGE, None),
    ),
    Case(
        "quantized_decomposed.quantize_per_channel.default", (X, Const(positive(32) * 0.1), Const(whole(32)), 1, *RANGE)
    ),
    Case(
        "quantized_decomposed.dequantize_per_channel.default",
        (Q, Const(positive(3) * 0.1), Const(whole(3)), 1, *RANGE, None),
    ),
    Case("quantized_decomposed.quantize_per_token.default", (X, positive(3, 1) * 0.1, whole(3, 1), *RANGE)),
    Case(
        "quantized_decomposed.dequantize_per_token.default",
        (int8(3, 32), positive(3, 1) * 0.1, whole(3, 1), *RANGE, Dtype("float32")),
    ),
    Case("quantized_decomposed.choose_qparams.tensor", (X, -128, 127, 1e-6, INT8)),
    Case("quantized_decomposed.choose_qparams_per_token_asymmetric.default", (X, INT8)),
    *(
        Case(
            "torchao.choose_qparams_affine.default",
            (X, mapping, block, INT8, -128, 127, 1e-6, Dtype("float32"), Dtype("int32"), keepdim),
            label=f"{mapping} {block}",
        )
        for mapping, block, keepdim in (
            ("ASYMMETRIC", [1, 32], False),
            ("SYMMETRIC", [1, 8], False),
            ("SYMMETRIC_NO_CLIPPING_ERR", [3, 16], True),
        )
    ),
    *(
        Case("torchao.quantize_affine.default", (X, block, scale, zero, INT8, -128, 127), label=str(block))
        for block, scale, zero in (
            ([1, 32], positive(3) * 0.1, whole(3)),
            ([1, 8], positive(3, 4) * 0.1, whole(3, 4)),
        )
    ),
    *(
        Case(
            "torchao.dequantize_affine.default",
            (int8(3, 32), block, scale, zero, INT8, -128, 127, Dtype("float32")),
            label=str(block),
        )
        for block, scale, zero in (
            ([1, 32], positive(3) * 0.1, whole(3)),
            ([1, 8], Const(positive(3, 4) * 0.1), None),
        )
    ),
]
CASES = [*LINEAR8, *LINEAR4, *CONVOLUTIONS, *OTHERS]
