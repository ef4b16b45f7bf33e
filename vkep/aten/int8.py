"""Operators on int8 activations with per-tensor scales (``q8ta``) and weights with a scale for each output channel (``q8csw``).

They compute in float32 over dequantized values, and quantize the result: this is what the reference functions of
ExecuTorch's ``custom_ops_lib`` do. Weights and per-channel values may be longer than the result needs (rows are padded
to multiples of four). The sums of the weights that these operators carry serve integer kernels and are not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vkep.aten.arguments import Arguments, Convolution
from vkep.aten.builder import FLOAT, INT8, MICROSOFT, UINT8, GraphBuilder, Val
from vkep.aten.convolution import convolution
from vkep.aten.quantization import dequantized, quantized
from vkep.aten.registry import aten


@dataclass(frozen=True)
class Scale(Arguments):
    """The quantization of an int8 activation: ``(value - zero point) * scale``."""

    prefixed = True
    scale: float
    zero_point: int

    def real(self, b: GraphBuilder, x: Val) -> Val:
        """An activation in float32: dequantized, or, for a floating-point one, rounded to the values that int8 can
        represent."""
        if x.is_float:
            x = quantized(b, x, self.scale, self.zero_point, -128, 127)
        return dequantized(b, x, self.scale, self.zero_point)

    def stored(self, b: GraphBuilder, x: Val, activation: str = "none") -> Val:
        """Quantize a float32 result to int8, after an activation."""
        if activation not in ("none", "relu"):
            b.decline(f"activation {activation!r}; expected 'none' or 'relu'")
        x = b.op("Relu", x) if activation == "relu" else x
        return quantized(b, x, self.scale, self.zero_point, -128, 127, INT8)


@dataclass(frozen=True)
class Weights(Arguments):
    """Weights in int8, and a scale for each output channel."""

    weights: Val
    weight_sums: object
    weight_scales: Val


@dataclass(frozen=True)
class Window(Arguments):
    """The window of a convolution that is not transposed."""

    kernel_size: Sequence[int]
    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    groups: int

    @property
    def convolution(self) -> Convolution:
        """Return the arguments in the form of a floating-point convolution."""
        return Convolution(self.stride, self.padding, self.dilation, False, (), self.groups)


def cut(b: GraphBuilder, x: Val, axis: int, length: int) -> Val:
    """Return the first ``length`` elements of an axis."""
    return x if x.dims[axis] == length else b.slice(x, axis, 0, length)


def real_bias(b: GraphBuilder, bias: Val | None, count: int, given: Scale, scales: Val) -> Val | None:
    """Return the first ``count`` elements of a bias. An integer bias is scaled by the product of the input's and each
    weight's scale."""
    if bias is None:
        return None
    bias = cut(b, bias, 0, count)
    if bias.is_float:
        return bias
    each = b.op("Mul", b.cast(cut(b, scales, 0, count), FLOAT), b.number(given.scale, FLOAT))
    return b.op("Mul", b.cast(bias, FLOAT), each)


def packed_product(b: GraphBuilder, x: Val, codes: Val, scales: Val, bits: int) -> Val:
    """``x`` times the weights of packed ``codes`` [out, blocks, bytes of a block] with ``scales`` [out, blocks]."""
    count, blocks, size = codes.shape
    size = size * 8 // bits
    attributes = {"K": blocks * size, "N": count, "bits": bits, "block_size": size}
    return b.op("MatMulNBits", x, codes, scales, domain=MICROSOFT, dims=[*x.dims[:-1], count], **attributes)


def linear8(b: GraphBuilder, x: Val, weights: Val, scales: Val, bias: Val | None) -> Val:
    """``x @ (weights * scales).T + bias`` with int8 weights [out, in]; ``x`` is float32.

    Constant weights whose rows divide into blocks of 16 and more stay bytes on the device.
    """
    count, width = b.results[0].shape[-1], b.fixed(x, -1)
    dims = [*x.dims[:-1], count]
    scales = b.cast(cut(b, scales, 0, count), FLOAT)
    if weights.rank != 2:
        b.decline(f"weights of {weights.rank} axes, expected 2")
    if width % 16 == 0 and weights.weight is not None and weights.elem == INT8 and x.rank > 1:
        size = min(width & -width, 256)
        shape = (count, width // size, size)
        # com.microsoft.MatMulNBits takes codes around 128
        codes = b.derived(weights, "codes", lambda a: (a[:count, :width] ^ -128).view(np.uint8), shape, UINT8)
        each = b.op("Expand", b.unsqueeze(scales, [1]), b.ints(shape[:2]), dims=shape[:2])
        out = packed_product(b, x, codes, each, 8)
    else:
        weights = cut(b, cut(b, weights, 0, count), 1, width)
        out = b.op("MatMul", x, b.transpose(b.cast(weights, FLOAT), (1, 0)), dims=dims)
        out = b.op("Mul", out, scales)
    return out if bias is None else b.op("Add", out, b.cast(cut(b, bias, 0, count), FLOAT))


@aten("aten._weight_int8pack_mm.default")
def weight_int8pack_mm(b: GraphBuilder, x: Val, mat2: Val, scales: Val) -> Val:
    return linear8(b, b.cast(x, FLOAT), mat2, b.reshape(scales, [-1]), None)


def _linear(b: GraphBuilder, x: Val, given: Scale, of: Weights, bias: Val | None) -> Val:
    bias = real_bias(b, bias, b.results[0].shape[-1], given, of.weight_scales)
    return linear8(b, given.real(b, x), of.weights, of.weight_scales, bias)


@aten("et_vk.linear_q8ta_q8csw.default")
def linear_q8ta_q8csw(b: GraphBuilder, x: Val, given: Scale, of: Weights, bias: Val | None = None) -> Val:
    return _linear(b, x, given, of, bias)


@aten("et_vk.q8ta_linear.default", "et_vk.q8ta_linear_gemv.default")
def q8ta_linear(
    b: GraphBuilder, x: Val, given: Scale, of: Weights, made: Scale, bias: Val | None = None, activation: str = "none"
) -> Val:
    return made.stored(b, _linear(b, x, given, of, bias), activation)


def _kernel(b: GraphBuilder, rows: Val, scales: Val, per_group: int, size: Sequence[int]) -> Val:
    """A float32 kernel [channels, per group, height, width] from rows of int8 [channels, height * width * per group]."""
    channels = b.results[0].shape[1]
    rows = cut(b, cut(b, rows, 0, channels), 1, per_group * size[0] * size[1])
    scaled = b.op("Mul", b.cast(rows, FLOAT), b.unsqueeze(b.cast(cut(b, scales, 0, channels), FLOAT), [1]))
    return b.transpose(b.reshape(scaled, [channels, *size, per_group]), (0, 3, 1, 2))


@aten("et_vk.q8ta_conv2d.default", "et_vk.q8ta_conv2d_pw.default")
def q8ta_conv2d(
    b: GraphBuilder, x: Val, given: Scale, of: Weights, made: Scale, bias: Val | None, window: Window, activation: str
) -> Val:
    kernel = _kernel(b, of.weights, of.weight_scales, b.fixed(x, 1) // window.groups, window.kernel_size)
    bias = real_bias(b, bias, b.results[0].shape[1], given, of.weight_scales)
    return made.stored(b, convolution(b, given.real(b, x), kernel, bias, window.convolution), activation)


@aten("et_vk.q8ta_conv2d_dw.default")
def q8ta_conv2d_dw(
    b: GraphBuilder, x: Val, given: Scale, of: Weights, made: Scale, bias: Val | None, window: Window, activation: str
) -> Val:
    """Depthwise convolution; the weights have the order [height, width, channels]."""
    taps = window.kernel_size[0] * window.kernel_size[1]
    rows = b.transpose(b.reshape(of.weights, [taps, of.weights.shape[-1]]), (1, 0))
    kernel = _kernel(b, rows, of.weight_scales, 1, window.kernel_size)
    bias = real_bias(b, bias, b.results[0].shape[1], given, of.weight_scales)
    return made.stored(b, convolution(b, given.real(b, x), kernel, bias, window.convolution), activation)


@aten("et_vk.q8ta_conv2d_transposed.default")
def q8ta_conv2d_transposed(
    b: GraphBuilder,
    x: Val,
    given: Scale,
    of: Weights,
    made: Scale,
    bias: Val | None,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    output_padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    activation: str,
) -> Val:
    channels, inputs = b.results[0].shape[1], b.fixed(x, 1)
    kernel = _kernel(b, of.weights, of.weight_scales, inputs // groups, kernel_size)
    if groups > 1:  # move the output channels to the second axis, within their group
        each, per_group = channels // groups, inputs // groups
        kernel = b.transpose(b.reshape(kernel, [groups, each, per_group, *kernel_size]), (0, 2, 1, 3, 4))
        kernel = b.reshape(kernel, [inputs, each, *kernel_size])
    else:
        kernel = b.transpose(kernel, (1, 0, 2, 3))
    bias = real_bias(b, bias, channels, given, of.weight_scales)
    how = Convolution(stride, padding, dilation, True, output_padding, groups)
    return made.stored(b, convolution(b, given.real(b, x), kernel, bias, how), activation)


@aten("et_vk.q8ta_add.default")
def q8ta_add(
    b: GraphBuilder, input_a: Val, input_b: Val, given_a: Scale, given_b: Scale, made: Scale, alpha: float
) -> Val:
    left, right = given_a.real(b, input_a), given_b.real(b, input_b)
    right = right if alpha == 1 else b.op("Mul", right, b.number(alpha, FLOAT))
    return made.stored(b, b.op("Add", left, right))


@aten("et_vk.q8ta_relu.default")
def q8ta_relu(b: GraphBuilder, x: Val, given: Scale, made: Scale) -> Val:
    return made.stored(b, given.real(b, x), "relu")


@aten("et_vk.q8ta_pixel_shuffle.default")
def q8ta_pixel_shuffle(
    b: GraphBuilder, x: Val, given: Scale, output_inv_scale: float, output_zero_point: int, upscale_factor: int
) -> Val:
    out = b.op("DepthToSpace", given.real(b, x), blocksize=upscale_factor, mode="CRD", dims=[None] * x.rank)
    return Scale(1.0 / output_inv_scale, output_zero_point).stored(b, out)
