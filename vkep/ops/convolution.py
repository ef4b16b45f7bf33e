"""Convolutions: Conv, ConvTranspose, DeformConv, and the windows that Col2Im undoes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from vkep.dtypes import DTYPES, DType
from vkep.graph.attributes import ConvAttributes, ConvTransposeAttributes
from vkep.graph.windows import Window, resolve_window
from vkep.ir.builder import Builder
from vkep.ir.tensor import Tensor
from vkep.kernels.col2im import Col2ImProblem
from vkep.kernels.conv import ConvProblem
from vkep.kernels.deform import DeformColumnsProblem
from vkep.ops.contraction import matrix_product
from vkep.ops.gather import padded
from vkep.ops.registry import FLOATS, operator
from vkep.sizes import cached

CONV_TYPES = (*FLOATS, "bfloat16", "float64")


def convolution(
    b: Builder, x: Tensor, w: Tensor, a: ConvAttributes, dtype: DType | None = None, exact: bool = False
) -> Tensor:
    """ONNX Conv without its bias, of any rank and element type; integers may be summed in a wider ``dtype``. ``exact``: the
    elements are whole numbers whose sums float32 holds, and so must the result be."""
    dtype = dtype or x.dtype
    if dtype.name == "bfloat16":  # sums are kept in float32
        x, w = b.cast(x, DTYPES["float32"]), b.cast(w, DTYPES["float32"])
    if x.rank < 3 or w.rank != x.rank:
        b.decline(f"convolution of {x.shape} with weights {w.shape}; both need a batch, channels and spatial axes")
    if x.shape[1] != w.shape[1] * a.group:
        b.decline(
            f"{x.shape[1]} input channels; the weights {w.shape} with {a.group} groups take {w.shape[1] * a.group}"
        )
    if a.group < 1 or w.shape[0] % a.group:
        b.decline(f"{w.shape[0]} output channels do not divide into {a.group} groups")
    window = a.window(x.shape, w.shape)
    if x.dtype.name not in FLOATS or w.dtype is not x.dtype or x.rank > 5 or min(window.pads) < 0:
        out = _by_columns(b, x, w, window, a.group, dtype if dtype.name != "bfloat16" else x.dtype)
    else:
        out = _by_kernel(b, x, w, window, a.group, exact)
    return b.cast(out, dtype)


def _by_kernel(b: Builder, x: Tensor, w: Tensor, window: Window, group: int, exact: bool) -> Tensor:
    try:
        problem = _conv_problem(x.shape, w.shape[0], window, group, x.dtype.name, w.storage.is_constant, exact)
    except ValueError as error:
        b.decline(str(error))
    weights, out = b.contiguous(w), b.empty(x.dtype, [x.shape[0], w.shape[0], *window.out])
    b.compute(problem, [b.contiguous(x), weights], [out])
    return out


def _by_columns(b: Builder, x: Tensor, w: Tensor, window: Window, group: int, dtype: DType) -> Tensor:
    """A product of the weights with the windows laid out as columns: for types and ranks without a specific kernel."""
    images, channels, spatial = x.shape[0], x.shape[1], len(window.kernel)
    half = len(window.pads) // 2
    wide = padded(b, x, window.pads[:half], window.pads[half:])
    steps = wide.strides[2:]
    taps = [s * d for s, d in zip(steps, window.dilations, strict=True)]
    moves = [s * d for s, d in zip(steps, window.strides, strict=True)]
    columns = wide.view((images, channels, *window.kernel, *window.out), (*wide.strides[:2], *taps, *moves))
    depth, pixels = channels // group * math.prod(window.kernel), math.prod(window.out)
    columns = b.reshape(columns, (images, group, depth, pixels))
    weights = b.reshape(w, (1, group, w.shape[0] // group, depth))
    out = matrix_product(b, weights, columns, dtype)
    return b.reshape(out, (images, w.shape[0], *window.out[:spatial]))


def with_bias(b: Builder, x: Tensor, bias: Tensor | None) -> Tensor:
    """``x`` plus a vector over its channels."""
    b.expect("bias", bias, x.shape[1:2])
    if bias is None:
        return x
    return b.pointwise("add", x, b.reshape(bias, (1, bias.size, *([1] * (x.rank - 2)))))


@operator("Conv", types={"T": CONV_TYPES})
def conv_(
    b: Builder,
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    *,
    a: ConvAttributes,
) -> Tensor:
    return with_bias(b, convolution(b, x, w, a), bias)


# Layers recur, and so do plans for other sizes: checked and derived values are cached.


@cached
def _conv_problem(
    x_shape: tuple[int, ...], oc: int, window: Window, group: int, dtype: str, w_constant: bool, exact: bool
) -> ConvProblem:
    """The window as three axes; one and two axes are three with leading axes of one element."""
    lead = 3 - len(window.kernel)
    (d, h, width), (kd, kh, kw) = (1,) * lead + x_shape[2:], (1,) * lead + window.kernel
    stride, dilation = (1,) * lead + window.strides, (1,) * lead + window.dilations
    half = len(window.pads) // 2
    begins, ends = (0,) * lead + window.pads[:half], (0,) * lead + window.pads[half:]
    return ConvProblem(
        n=x_shape[0],
        c=x_shape[1],
        h=h,
        w=width,
        oc=oc,
        kh=kh,
        kw=kw,
        stride=(stride[1], stride[2]),
        dilation=(dilation[1], dilation[2]),
        pads=(begins[1], begins[2], ends[1], ends[2]),
        groups=group,
        dtype=dtype,
        d=d,
        kd=kd,
        stride_d=stride[0],
        dilation_d=dilation[0],
        pads_d=(begins[0], ends[0]),
        w_constant=w_constant,
        exact=exact,
    )


def transposed_convolution(
    b: Builder,
    x: Tensor,
    w: Tensor,
    window: Window,
    group: int,
) -> Tensor:
    """The transpose of a convolution: a product gives each tap's contribution, which `col2im` adds up (ONNX ConvTranspose).

    ``window.out`` is the result's spatial shape; its strides move over the result.
    """
    images, channels, pixels = x.shape[0], x.shape[1], math.prod(x.shape[2:])
    out_channels, taps = w.shape[1] * group, math.prod(window.kernel)
    weights = b.reshape(w, (1, group, channels // group, w.shape[1] * taps)).transpose((0, 1, 3, 2))
    columns = matrix_product(b, weights, b.reshape(x, (images, group, channels // group, pixels)))
    return sum_of_windows(b, columns, (images, out_channels), x.shape[2:], window)


def sum_of_windows(b: Builder, columns: Tensor, lead: tuple[int, int], counts: Sequence[int], window: Window) -> Tensor:
    """Add up windows, [*lead, taps, windows], at their positions in ``lead + window.out`` (ONNX Col2Im)."""
    begins = window.pads[: len(window.out)]
    problem = Col2ImProblem(
        lead, window.out, tuple(counts), window.kernel, window.strides, window.dilations, begins, columns.dtype.name
    )
    return b.result(problem, columns)


@operator("ConvTranspose", types={"T": CONV_TYPES})
def conv_transpose(
    b: Builder,
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    *,
    a: ConvTransposeAttributes,
) -> Tensor:
    rank = x.rank - 2
    if rank < 1 or w.rank != x.rank or x.shape[1] != w.shape[0] or a.group < 1 or x.shape[1] % a.group:
        b.decline(f"input {x.shape}, weights {w.shape} and {a.group} groups do not fit together")
    window = a.window(x.shape, w.shape)
    dtype = x.dtype
    if dtype.name == "bfloat16":
        x, w = b.cast(x, DTYPES["float32"]), b.cast(w, DTYPES["float32"])
    return with_bias(b, b.cast(transposed_convolution(b, x, w, window, a.group), dtype), bias)


@operator("DeformConv", types={"T": CONV_TYPES})
def deform_conv(
    b: Builder,
    x: Tensor,
    w: Tensor,
    offset: Tensor,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    offset_group: int = 1,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:
    if x.rank != w.rank or x.rank < 3 or group < 1 or x.shape[1] != w.shape[1] * group or w.shape[0] % group:
        b.invalid(f"input {list(x.shape)}, weights {list(w.shape)} and {group} groups do not fit together")
    if kernel_shape is not None and tuple(kernel_shape) != w.shape[2:]:
        b.invalid(f"kernel_shape {list(kernel_shape)} for weights {list(w.shape)}")
    b.expect("bias", bias, w.shape[:1])
    if x.rank != 4:
        b.decline(f"a deformable convolution over {x.rank - 2} axes; the kernel takes 2")
    dtype = x.dtype
    if dtype.name == "bfloat16":
        x, w, offset = (b.cast(t, DTYPES["float32"]) for t in (x, w, offset))
        mask = None if mask is None else b.cast(mask, DTYPES["float32"])
    window = resolve_window(x.shape[2:], w.shape[2:], strides, pads, dilations)
    depth, pixels = w.shape[1] * math.prod(window.kernel), math.prod(window.out)
    columns = b.empty(x.dtype, (x.shape[0], group, depth, pixels))
    begins, masked = window.pads[:2], mask is not None
    problem = DeformColumnsProblem(
        x.shape, window.kernel, window.out, window.strides, window.dilations, begins, offset_group, masked, x.dtype.name
    )
    b.compute(problem, [b.contiguous(t) for t in (x, offset, mask) if t is not None], [columns])
    weights = b.reshape(w, (1, group, w.shape[0] // group, depth))
    out = b.reshape(matrix_product(b, weights, columns), (x.shape[0], w.shape[0], *window.out))
    return with_bias(b, b.cast(out, dtype), bias)
