"""Convolutions: Conv, ConvTranspose, DeformConv, and the windows that Col2Im undoes; of domain com.microsoft those with
channels last, an activation, pads as an input, a state, or words as input.

Semantics: ONNX; the operators' schemas in ONNX Runtime (docs/ContribOperators.md), and its kernels where those say no more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from vkep.dtypes import BOOL, DTYPES, FLOAT16, FLOAT32, INT8, INT32, DType
from vkep.graph.attributes import ConvAttributes, ConvTransposeAttributes
from vkep.graph.windows import Window, resolve_window
from vkep.ir import algebra as fn
from vkep.ir.algebra import where
from vkep.ir.builder import Builder
from vkep.ir.tensor import Tensor, channels_first, channels_last
from vkep.kernels.conv.col2im import Col2ImProblem
from vkep.kernels.conv.conv import ConvProblem
from vkep.kernels.conv.deform import DeformColumnsProblem
from vkep.kernels.select import supports
from vkep.ops.allowed import FLOATING, SINGLE
from vkep.ops.codes import operands, per_column
from vkep.ops.contraction import matrix_product
from vkep.ops.gather import gathered, padded
from vkep.ops.generators import positions
from vkep.ops.microsoft import MICROSOFT, activated, outputs
from vkep.ops.packed import Packed, with_history
from vkep.ops.reduction import reduce_axes
from vkep.ops.registry import FLOATS, operator
from vkep.sizes import cached


def convolution(
    b: Builder,
    x: Tensor,
    w: Tensor,
    a: ConvAttributes,
    dtype: DType | None = None,
    exact: bool = False,
    zero: int = 0,
) -> Tensor:
    """ONNX Conv without its bias, of any rank and element type; integers may be summed in a wider ``dtype``, and float16 and int8
    in float32. ``exact``: the elements are whole numbers whose sums float32 holds, and so must the result be. ``zero``: the
    images are less by this, of int8 that `takes_wide`."""
    dtype = dtype or x.dtype
    if dtype.name == "bfloat16":  # sums are kept in float32
        x, w = b.cast(x, FLOAT32), b.cast(w, FLOAT32)
    if x.rank < 3 or w.rank != x.rank:
        b.decline(f"convolution of {x.shape} with weights {w.shape}; both need a batch, channels and spatial axes")
    if x.shape[1] != w.shape[1] * a.group:
        b.decline(
            f"{x.shape[1]} input channels; the weights {w.shape} with {a.group} groups take {w.shape[1] * a.group}"
        )
    if a.group < 1 or w.shape[0] % a.group:
        b.decline(f"{w.shape[0]} output channels do not divide into {a.group} groups")
    window = a.window(x.shape, w.shape)
    wide = dtype is FLOAT32 and x.dtype in (FLOAT16, INT8)
    packs = w.dtype is x.dtype and w.storage.may_be_packed
    if wide and not (packs and takes_wide(b, x.shape, w.shape, a, exact, x.dtype)):
        assert not zero
        x, w, wide = b.cast(x, FLOAT32), b.cast(w, FLOAT32), False
    if (x.dtype.name not in FLOATS and not wide) or w.dtype is not x.dtype or x.rank > 5 or min(window.pads) < 0:
        out = _by_columns(b, x, w, window, a.group, dtype if dtype.name != "bfloat16" else x.dtype)
    else:
        by = _by_planes if x.rank == 5 else _by_kernel
        out = by(b, x, w, window, a.group, exact, wide, zero)
    return b.cast(out, dtype)


def takes_wide(
    b: Builder,
    x: tuple[int, ...],
    w: tuple[int, ...],
    a: ConvAttributes,
    exact: bool = False,
    dtype: DType = FLOAT16,
) -> bool:
    """Whether a kernel gives float32 results of float16 or int8 images of shape ``x`` by constant weights of shape ``w``."""
    if len(x) not in (3, 4) or len(w) != len(x) or x[1] != w[1] * a.group or a.group < 1 or w[0] % a.group:
        return False
    window = a.window(x, w)
    return min(window.pads) >= 0 and supports(
        _problem(b, x, w[0], window, a.group, dtype.name, True, exact, True, 0), b.caps
    )


def _problem(b: Builder, *given: Any) -> ConvProblem:
    """`_conv_problem`; declines where the numbers are no such problem."""
    try:
        return _conv_problem(*given)
    except ValueError as error:
        b.decline(str(error))


def _by_kernel(
    b: Builder, x: Tensor, w: Tensor, window: Window, group: int, exact: bool, wide: bool, zero: int
) -> Tensor:
    is_weight = w.storage.may_be_packed
    problem = _problem(b, x.shape, w.shape[0], window, group, x.dtype.name, is_weight, exact, wide, zero)
    weights, out = b.contiguous(w), b.empty(DTYPES[problem.results], [x.shape[0], w.shape[0], *window.out])
    b.compute(problem, [b.contiguous(x), weights], [out])
    return out


def _by_planes(
    b: Builder, x: Tensor, w: Tensor, window: Window, group: int, exact: bool, wide: bool, zero: int
) -> Tensor:
    """A convolution over three axes as one over planes: what a window sees along the first axis are further channels."""
    (images, channels), kernel, depth = x.shape[:2], window.kernel[0], window.out[0]
    x = padded(b, x, (window.pads[0], 0, 0), (window.pads[3], 0, 0))
    batch, channel, plane, *rest = x.strides
    steps = (batch, plane * window.strides[0], channel, plane * window.dilations[0], *rest)
    seen = b.contiguous(x.view((images, depth, channels, kernel, *x.shape[3:]), steps))
    planes = b.reshape(seen, (images * depth, channels * kernel, *x.shape[3:]))
    flat = replace(
        window,
        kernel=window.kernel[1:],
        strides=window.strides[1:],
        dilations=window.dilations[1:],
        pads=(*window.pads[1:3], *window.pads[4:]),
        out=window.out[1:],
    )
    weights = b.reshape(w, (w.shape[0], w.shape[1] * kernel, *w.shape[3:]))
    out = _by_kernel(b, planes, weights, flat, group, exact, wide, zero)
    return b.reshape(out, (images, depth, w.shape[0], *flat.out)).transpose((0, 2, 1, 3, 4))


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


@operator("Conv", types={"T": FLOATING})
def conv_(
    b: Builder,
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    *,
    a: ConvAttributes,
) -> Tensor:
    for of in operands(b, x, w, axis=0):
        if takes_wide(b, of.x.shape, of.w.shape, a, dtype=of.x.dtype):
            sums = convolution(b, of.x, of.w, a, FLOAT32, zero=of.zero)
            return with_bias(b, per_column(b, sums, of.factor, axis=1), bias)
    return with_bias(b, convolution(b, x, w, a), bias)


# Layers recur, and so do plans for other sizes: checked and derived values are cached.


@cached
def _conv_problem(
    x_shape: tuple[int, ...],
    oc: int,
    window: Window,
    group: int,
    dtype: str,
    w_constant: bool,
    exact: bool,
    wide: bool,
    zero: int,
) -> ConvProblem:
    """The window over an image, which has one row where it has one axis."""
    lead = (1,) * (2 - len(window.kernel))
    (h, width), (kh, kw) = lead + x_shape[2:], lead + window.kernel
    stride, dilation = lead + window.strides, lead + window.dilations
    half = len(window.pads) // 2
    none = (0,) * len(lead)
    begins, ends = none + window.pads[:half], none + window.pads[half:]
    return ConvProblem(
        n=x_shape[0],
        c=x_shape[1],
        h=h,
        w=width,
        oc=oc,
        kh=kh,
        kw=kw,
        stride=(stride[0], stride[1]),
        dilation=(dilation[0], dilation[1]),
        pads=(begins[0], begins[1], ends[0], ends[1]),
        groups=group,
        dtype=dtype,
        w_constant=w_constant,
        exact=exact,
        to="float32" if wide else "",
        zero=zero,
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


@operator("ConvTranspose", types={"T": FLOATING})
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
        x, w = b.cast(x, FLOAT32), b.cast(w, FLOAT32)
    return with_bias(b, b.cast(transposed_convolution(b, x, w, window, a.group), dtype), bias)


@operator("DeformConv", types={"T": FLOATING})
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
        x, w, offset = (b.cast(t, FLOAT32) for t in (x, w, offset))
        mask = None if mask is None else b.cast(mask, FLOAT32)
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


@operator("FusedConv", domain=MICROSOFT, types={"x w bias z": FLOATS})
def fused_conv(
    b: Builder,
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    z: Tensor | None = None,
    *,
    a: ConvAttributes,
    activation: str = "",
    activation_params: Sequence[float] = (),
) -> Tensor:
    return _finished(b, conv_(b, x, w, bias, a=a), z, activation, activation_params)


def _finished(b: Builder, out: Tensor, z: Tensor | None, activation: str, parameters: Sequence[float]) -> Tensor:
    """The activation of a convolution's result plus ``z``."""
    if z is not None:
        out = b.pointwise("add", out, z)
    return activated(b, out, activation, *parameters)


@operator("NhwcConv", domain=MICROSOFT, types={"x w bias": FLOATS})
def nhwc_conv(b: Builder, x: Tensor, w: Tensor, bias: Tensor | None = None, *, a: ConvAttributes) -> Tensor:
    """Input and result have channels last, and so have the weights [m, kh, kw, c]."""
    return channels_last(conv_(b, channels_first(x), channels_first(w), bias, a=a))


@operator("NhwcFusedConv", domain=MICROSOFT, types={"x w bias z": FLOATS})
def nhwc_fused_conv(
    b: Builder,
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    z: Tensor | None = None,
    *,
    a: ConvAttributes,
    activation: str = "",
    activation_params: Sequence[float] = (),
) -> Tensor:
    out = channels_last(conv_(b, channels_first(x), w, bias, a=a))
    b.expect("Z", z, out.shape)
    return _finished(b, out, z, activation, activation_params)


@operator("ConvTransposeWithDynamicPads", domain=MICROSOFT, types={"x w bias": FLOATING, "pads": ("int64",)})
def conv_transpose_with_dynamic_pads(
    b: Builder,
    x: Tensor,
    w: Tensor,
    pads: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    output_padding: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:
    edges = b.ints(pads, "Pads")
    if x.rank < 3 or w.rank != x.rank or min(edges or [0]) < 0:
        b.invalid(f"an input of shape {list(x.shape)}, weights of {list(w.shape)}, pads {edges}")
    a = ConvTransposeAttributes(
        auto_pad=auto_pad,
        dilations=dilations,
        group=group,
        kernel_shape=kernel_shape,
        output_padding=output_padding,
        strides=strides,
        pads=edges,
    )
    return conv_transpose(b, x, w, bias, a=a)


@operator(
    "CausalConvWithState",
    domain=MICROSOFT,
    types={"x weight bias past": SINGLE},
    fixed={
        "input_channel_offset": 0,
        "input_channels": 0,
        "state_channels_last": -1,
        "state_length": 0,
        "state_update_capacity": 0,
        "state_window": 0,
    },
)
def causal_conv_with_state(
    b: Builder,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    past: Tensor | None = None,
    *,
    activation: str = "none",
    channels_last: int = 0,
    dilation: int = 1,
    ndim: int = 1,
) -> list[Tensor]:
    """A depthwise convolution over the past's positions and the input's; the last positions are the next past."""
    if ndim != 1:
        b.decline(f"{ndim} spatial axes; the kernels take 1")
    if activation not in ("none", "silu", "swish"):
        b.invalid(f"activation is {activation!r}, expected 'none', 'silu' or 'swish'")
    if channels_last and x.rank != 3:
        b.decline(f"channels in {x.rank - 2} axes")
    if x.rank != 3 or weight.rank != 3 or dilation < 1:
        b.invalid(f"an input of shape {list(x.shape)}, weights of {list(weight.shape)}, dilation {dilation}")
    if channels_last:
        x = x.transpose((0, 2, 1))
        past = None if past is None else past.transpose((0, 2, 1))
    batch, channels, steps = x.shape
    reach = (weight.shape[2] - 1) * dilation
    b.expect("weight", weight, (channels, 1, weight.shape[2]))
    b.expect("past_state", past, (batch, channels, reach))
    whole = b.empty(x.dtype, (batch, channels, reach + steps))
    b.copy(b.full((batch, channels, reach), 0, x.dtype) if past is None else past, out=whole.slice(2, 0, reach))
    b.copy(x, out=whole.slice(2, reach, steps))
    a = ConvAttributes(group=channels, dilations=[dilation])
    y = conv_(b, whole, weight, bias, a=a)
    if activation != "none":
        y = b.pointwise(fn.swish, y)
    present = whole.slice(2, steps, reach)
    return outputs(b, *((t.transpose((0, 2, 1)) for t in (y, present)) if channels_last else (y, present)))


@operator(
    "VarlenCausalConvWithState",
    domain=MICROSOFT,
    types={"x weight bias first": SINGLE, "starts capture_count": ("int32",)},
    fixed={"delta_offset": 0, "group_size": 1},
)
def varlen_causal_conv_with_state(
    b: Builder,
    x: Tensor,
    weight: Tensor,
    starts: Tensor,
    bias: Tensor | None,
    first: Tensor,
    capture_count: Tensor | None = None,
    *,
    activation: str = "none",
    dilation: int = 1,
    state_update_capacity: int = 0,
) -> list[Tensor]:
    """The same for concatenated sequences without padding: [tokens, channels]."""
    if activation not in ("none", "silu", "swish"):
        b.invalid(f"activation is {activation!r}, expected 'none', 'silu' or 'swish'")
    if x.rank != 2 or weight.rank != 3 or dilation < 1 or not x.shape[0]:
        b.invalid(f"an input of shape {list(x.shape)}, weights of {list(weight.shape)}, dilation {dilation}")
    tokens, channels = x.shape
    taps = weight.shape[2]
    reach = (taps - 1) * dilation
    packed = Packed.of(b, starts, tokens)
    b.expect("weight", weight, (channels, 1, taps))
    b.expect("bias", bias, (channels,))
    b.expect("initial_state", first, (packed.batch, channels, reach))
    table = with_history(b, x, first.transpose((0, 2, 1)))
    rows = [
        packed.rows(b, table, packed.owner, b.expr("sub", packed.place, k * dilation), reach, (tokens,))
        for k in range(1, taps)
    ]
    by_tap = b.reshape(weight, (channels, taps)).transpose((1, 0))
    total = b.expr("mul", x, by_tap.slice(0, taps - 1, 1))
    for k, row in enumerate(rows, 1):
        total = total + b.expr("mul", row, by_tap.slice(0, taps - 1 - k, 1))
    if bias is not None:
        total = b.expr("add", total, bias)
    if activation != "none":
        total = fn.swish(total)
    y = b.store(total, x.dtype, shape=x.shape)
    each = b.reshape(positions(b, packed.batch), (packed.batch, 1))
    length, back, place = b.reads(b.reshape(packed.lengths, (packed.batch, 1)), reach, positions(b, reach))
    last = length - back + place
    state = packed.rows(b, table, each, last, reach, (packed.batch, reach)) if reach else first.transpose((0, 2, 1))
    update = None
    if state_update_capacity:
        if capture_count is None:
            b.invalid(f"state_update_capacity is {state_update_capacity}, without capture_count")
        b.expect("capture_count", capture_count, (packed.batch,))
        slot = b.reshape(positions(b, state_update_capacity), (1, state_update_capacity))
        shape = (packed.batch, state_update_capacity)
        found = packed.rows(b, table, each, slot, reach, shape)
        ends = [b.reshape(t, (packed.batch, 1, 1)) for t in (capture_count, packed.lengths)]
        value, at, count, length = b.reads(found, b.reshape(slot, (1, state_update_capacity, 1)), *ends)
        update = b.store(where((at < count) & (at < length), value, 0.0), x.dtype, shape=found.shape)
    return outputs(b, y, state.transpose((0, 2, 1)), update)


@operator("WordConvEmbedding", domain=MICROSOFT, types={"words": ("int32",), "w bias table": ("float32",)})
def word_conv_embedding(
    b: Builder,
    words: Tensor,
    w: Tensor,
    bias: Tensor,
    table: Tensor,
    *,
    char_embedding_size: int | None = None,
    conv_window_size: int | None = None,
    embedding_size: int | None = None,
) -> Tensor:
    """A word [characters] of ``words`` becomes the greatest tanh over windows of its characters' rows of ``table``."""
    if words.rank != 2 or w.rank != 4 or table.rank != 2 or w.shape[1] != 1 or w.shape[3] != table.shape[1]:
        b.invalid(f"words {list(words.shape)}, weights {list(w.shape)} and a table of {list(table.shape)}")
    count, length = words.shape
    filters, window, width = w.shape[0], w.shape[2], w.shape[3]
    b.expect("B", bias, (filters,))
    told = {"char_embedding_size": (char_embedding_size, width), "conv_window_size": (conv_window_size, window)}
    for name, (said, is_) in {**told, "embedding_size": (embedding_size, filters)}.items():
        if said not in (None, -1, is_):
            b.invalid(f"{name} is {said}, the weights have {is_}")
    if not 0 < window <= length:
        b.invalid(f"windows of {window} in words of {length} characters")
    word, entries = b.reads(words, table.shape[0])
    known = (word >= 0) & (word < entries)
    rows = gathered(b, table, b.store(where(known, word, 0), INT32, shape=words.shape))
    # length of a word: its positive characters, none where the first is not positive
    positive = b.store(fn.cast(word > 0, "int"), INT32, shape=words.shape)
    total = reduce_axes(b, "sum", positive, [1], True)
    lengths = b.pointwise(lambda first, sum_: where(first > 0, sum_, 0), positive.slice(1, 0, 1), total)
    at, characters, least = b.reads(positions(b, length), lengths, window)
    kept = b.store(known & (at < fn.maximum(characters, least)), BOOL, shape=words.shape)
    rows = b.pointwise(lambda v, keep: where(keep, v, 0.0), rows, b.reshape(kept, (count, length, 1)))
    places = length - window + 1
    spread = rows.view((count, places, window * width), (length * width, width, 1))
    product = matrix_product(b, spread, b.reshape(w, (filters, window * width)).transpose((1, 0)))
    place, ends = b.reshape(positions(b, places), (places, 1)), b.reshape(lengths, (count, 1, 1))
    at, characters, least, sum_, added = b.reads(place, ends, window, product, bias)
    value = where(at <= fn.maximum(characters, least) - least, fn.tanh(sum_ + added), -1e12)
    best = reduce_axes(b, "max", b.store(value, FLOAT32, shape=product.shape), [1], False)
    # ONNX Runtime leaves the row of an empty word as its memory was
    return b.pointwise(lambda v, characters: where(characters > 0, v, 0.0), best, b.reshape(lengths, (count, 1)))
