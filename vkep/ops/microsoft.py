"""ONNX Runtime's common operators outside of the ONNX standard (domain com.microsoft): activations, norms, products.

Semantics: ONNX Runtime, docs/ContribOperators.md.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vkep.dtypes import DTYPES
from vkep.graph.attributes import ConvAttributes, GemmAttributes, LayerNormAttributes
from vkep.ir import algebra as fn
from vkep.ir.builder import Builder
from vkep.ir.tensor import Tensor
from vkep.ops.contraction import gemm, matrix_product, scaled
from vkep.ops.convolution import conv_
from vkep.ops.elementwise import gelu
from vkep.ops.gather import rows_at
from vkep.ops.normalization import row_norm, row_norm_of_two_types
from vkep.ops.random import dropped, training_rate
from vkep.ops.reduction import reduce_axes
from vkep.ops.registry import FLOATS, at_version, operator

MICROSOFT = "com.microsoft"
_FLOAT32, _INT32, _BOOL = DTYPES["float32"], DTYPES["int32"], DTYPES["bool"]


def wants_output(b: Builder, index: int) -> bool:
    """Whether the node being lowered names its output ``index``."""
    return b.node is None or (len(b.node.outputs) > index and bool(b.node.outputs[index]))


def outputs(b: Builder, *made: Tensor | None) -> list[Tensor]:
    """The results in order up to the last that the node names; None means an output that the node must not name."""
    count = len(b.node.outputs) if b.node is not None else len(made)
    result = []
    for index, tensor in enumerate(made[:count]):
        if tensor is None and wants_output(b, index):
            b.decline(f"output {index} is not computed")
        result.append(tensor if tensor is not None else b.full((), 0, _FLOAT32))
    return result


def in_float32(function: Callable[..., Any]) -> Callable[..., Any]:
    """An operator function that computes bfloat16 in float32, since no kernel of products stores it."""

    @functools.wraps(function)
    def lower(b: Builder, *inputs: Tensor | None, **attributes: Any) -> Any:
        narrow = DTYPES["bfloat16"]
        if all(t is None or t.dtype is not narrow for t in inputs):
            return function(b, *inputs, **attributes)
        wide = [b.cast(t, _FLOAT32) if t is not None and t.dtype is narrow else t for t in inputs]
        made = function(b, *wide, **attributes)
        results = made if isinstance(made, list) else [made]
        results = [b.cast(t, narrow) if t.dtype is _FLOAT32 else t for t in results]
        return results if isinstance(made, list) else results[0]

    return lower


# ---- activations


@operator("Gelu", domain=MICROSOFT, types={"x": FLOATS})
def gelu_(b: Builder, x: Tensor) -> Tensor:
    return gelu(b, x)


@operator("BiasGelu", domain=MICROSOFT, types={"x bias": FLOATS})
def bias_gelu(b: Builder, x: Tensor, bias: Tensor) -> Tensor:
    b.expect("bias", bias, x.shape[-1:])
    return gelu(b, b.pointwise("add", x, bias, shape=x.shape))


@operator("FastGelu", domain=MICROSOFT, types={"x bias": FLOATS})
def fast_gelu(b: Builder, x: Tensor, bias: Tensor | None = None) -> Tensor:
    b.expect("bias", bias, x.shape[-1:])
    if bias is not None:
        x = b.pointwise("add", x, bias, shape=x.shape)
    return gelu(b, x, approximate="tanh")


@operator("QuickGelu", domain=MICROSOFT, types={"x": FLOATS})
def quick_gelu(b: Builder, x: Tensor, *, alpha: float = 1.702) -> Tensor:
    return b.pointwise(fn.swish, x, alpha)


@operator("BiasDropout", domain=MICROSOFT, types={"data bias residual": FLOATS})
def bias_dropout(
    b: Builder,
    data: Tensor,
    bias: Tensor,
    residual: Tensor | None = None,
    ratio: Tensor | None = None,
    training_mode: Tensor | None = None,
    *,
    seed: int | None = None,
) -> list[Tensor]:
    rate = training_rate(b, ratio, training_mode)
    total, mask = b.expr("add", data, bias), b.full(data.shape, True, _BOOL)
    if rate:
        kept, mask = dropped(b, b.store(total, data.dtype, shape=data.shape), rate, seed)
        total = b.expr("same", kept)
    if residual is not None:
        total = b.expr("add", total, residual)
    return outputs(b, b.store(total, data.dtype, shape=data.shape), mask)


# ---- norms


@operator("SimplifiedLayerNormalization", types={"x": FLOATS, "scale": FLOATS}, schema=False)
def simplified_layer_normalization(b: Builder, x: Tensor, scale: Tensor, *, a: LayerNormAttributes) -> list[Tensor]:
    wanted = wants_output(b, 1)
    out, _, inv_std = row_norm_of_two_types(b, x, scale, axis=a.axis, epsilon=a.epsilon, rms=True, inv_std=wanted)
    return outputs(b, out, inv_std)


operator("SimplifiedLayerNormalization", domain=MICROSOFT, types={"x": FLOATS, "scale": FLOATS})(
    simplified_layer_normalization
)


def with_skip(
    b: Builder, x: Tensor, skip: Tensor, bias: Tensor | None, epsilon: float, **factors: Tensor | None
) -> Tensor:
    """``x`` plus ``skip`` plus ``bias``. Raises `InvalidNode` where they, or a norm's ``factors``, do not fit."""
    if x.rank not in (2, 3):
        b.invalid(f"the input has shape {list(x.shape)}, expected 2 or 3 axes")
    b.expect("skip", skip, x.shape, *([(1, *x.shape[1:]), x.shape[1:]] if x.rank == 3 else []))
    for what, tensor in {"bias": bias, **factors}.items():
        b.expect(what, tensor, x.shape[-1:])
    if not epsilon >= 0:
        b.invalid(f"epsilon is {epsilon}")
    total = b.expr("add", x, skip)
    if bias is not None:
        total = b.expr("add", total, bias)
    return b.store(total, x.dtype, shape=x.shape)


@operator("SkipLayerNormalization", domain=MICROSOFT, types={"x skip gamma beta bias": FLOATS})
def skip_layer_normalization(
    b: Builder,
    x: Tensor,
    skip: Tensor,
    gamma: Tensor,
    beta: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    epsilon: float = 1e-12,
) -> list[Tensor]:
    total = with_skip(b, x, skip, bias, epsilon, gamma=gamma, beta=beta)
    stats = {"mean": wants_output(b, 1), "inv_std": wants_output(b, 2)}
    out, mean, inv_std = row_norm(b, total, gamma, beta, epsilon=epsilon, **stats)
    return outputs(b, out, mean, inv_std, total)


@operator("SkipSimplifiedLayerNormalization", domain=MICROSOFT, types={"x skip gamma bias": FLOATS})
def skip_simplified_layer_normalization(
    b: Builder, x: Tensor, skip: Tensor, gamma: Tensor, bias: Tensor | None = None, *, epsilon: float = 1e-12
) -> list[Tensor]:
    total = with_skip(b, x, skip, bias, epsilon, gamma=gamma)
    out, _, inv_std = row_norm(b, total, gamma, epsilon=epsilon, rms=True, inv_std=wants_output(b, 2))
    return outputs(b, out, None, inv_std, total)


@operator(
    "EmbedLayerNormalization",
    domain=MICROSOFT,
    types={
        "word_embedding position_embedding segment_embedding gamma beta": FLOATS,
        "input_ids segment_ids mask position_ids": ("int32",),
    },
)
def embed_layer_normalization(
    b: Builder,
    input_ids: Tensor,
    segment_ids: Tensor | None,
    word_embedding: Tensor,
    position_embedding: Tensor,
    segment_embedding: Tensor | None = None,
    gamma: Tensor | None = None,
    beta: Tensor | None = None,
    mask: Tensor | None = None,
    position_ids: Tensor | None = None,
    *,
    epsilon: float = 1e-12,
    mask_index_type: int = 0,
) -> list[Tensor]:
    if gamma is None or beta is None:
        b.invalid("the layer norm's scale or bias is missing")
    tables = [t for t in (word_embedding, position_embedding, segment_embedding) if t is not None]
    if input_ids.rank != 2 or any(t.rank != 2 or t.shape[1:] != gamma.shape for t in tables) or not epsilon >= 0:
        b.invalid(f"ids of shape {list(input_ids.shape)}, tables of {[list(t.shape) for t in tables]}, gamma of "
                  f"{list(gamma.shape)}, epsilon {epsilon}")  # fmt: skip
    b.expect("beta", beta, gamma.shape)
    for what, ids in {"segment_ids": segment_ids, "mask": mask}.items():
        b.expect(what, ids, input_ids.shape)
    b.expect("position_ids", position_ids, input_ids.shape, (1, input_ids.shape[1]))
    batch, length = input_ids.shape
    total = b.expr("same", rows_at(b, word_embedding, input_ids, "an input id"))
    if position_ids is not None:
        positions = rows_at(b, position_embedding, position_ids, "a position id")
    else:
        if length > position_embedding.shape[0]:
            b.invalid(f"{length} positions; the table holds {position_embedding.shape[0]}")
        positions = position_embedding.slice(0, 0, length)
    total = b.expr("add", total, positions)
    if segment_ids is not None and segment_embedding is not None:
        total = b.expr("add", total, rows_at(b, segment_embedding, segment_ids, "a segment id"))
    summed = b.store(total, word_embedding.dtype, shape=(batch, length, word_embedding.shape[1]))
    out, _, _ = row_norm(b, summed, gamma, beta, epsilon=epsilon)
    index = b.full((batch,), 0, _INT32)
    if mask is not None and wants_output(b, 1):
        index = reduce_axes(b, "sum", b.cast(mask, _INT32), [1], False)
    return outputs(b, out, index, summed)


# ---- products


@operator("FusedMatMul", domain=MICROSOFT, types={"x y": (*FLOATS, "bfloat16", "float64")})
def fused_matmul(
    b: Builder,
    x: Tensor,
    y: Tensor,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
) -> Tensor:
    if (transBatchA or transBatchB) and (x.rank != y.rank or x.rank < 3):
        b.invalid(f"batches of {list(x.shape)} and {list(y.shape)}; expected the same number of axes, at least 3")
    x, y = _oriented(x, transA, transBatchA), _oriented(y, transB, transBatchB)
    product = matrix_product(b, x, y)
    return product if alpha == 1.0 else scaled(b, product, alpha)


def _oriented(x: Tensor, swap: int, batch: int) -> Tensor:
    if batch and x.rank > 2:  # move the first axis behind the batch axes
        x = x.transpose((*range(1, x.rank - 1), 0, x.rank - 1))
    if swap and x.rank >= 2:
        x = x.transpose((*range(x.rank - 2), x.rank - 1, x.rank - 2))
    return x


@operator("FusedGemm", domain=MICROSOFT, types={"x y c": FLOATS})
def fused_gemm(
    b: Builder,
    x: Tensor,
    y: Tensor,
    c: Tensor | None = None,
    *,
    a: GemmAttributes,
    activation: str = "",
    activation_alpha: float | None = None,
    activation_beta: float | None = None,
    activation_gamma: float | None = None,
) -> Tensor:
    given = {"alpha": activation_alpha, "beta": activation_beta, "gamma": activation_gamma}
    return activated(b, gemm(b, x, y, c, a=a), activation, **given)


#: ONNX's operators that fused ones name, and the opset by which they take numbers as attributes
_ACTIVATIONS, _ACTIVATIONS_OPSET = (
    (
        "Clip",
        "Elu",
        "HardSigmoid",
        "LeakyRelu",
        "Relu",
        "Selu",
        "Sigmoid",
        "Softplus",
        "Softsign",
        "Tanh",
        "ThresholdedRelu",
    ),
    10,
)


def activated(b: Builder, x: Tensor, activation: str, *values: float, **named: float | None) -> Tensor:
    """The activation that a fused operator names, with its attributes in the order of ONNX's (Clip: the lower bound first) or by
    name; those that are None, or that the activation does not have, are left out."""
    if not activation:
        return x
    if activation not in _ACTIVATIONS:
        b.decline(f"activation {activation!r}; the kernels take {', '.join(_ACTIVATIONS)}")
    definition = at_version("", activation, _ACTIVATIONS_OPSET)
    names = ("min", "max") if activation == "Clip" else tuple(definition.signature.attributes)
    given = {name: value for name, value in named.items() if name in names and value is not None}
    result: Tensor = definition.function(b, x, **dict(zip(names, values, strict=False)), **given)
    return result


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
    out = conv_(b, x, w, bias, a=a)
    if z is not None:
        out = b.pointwise("add", out, z)
    return activated(b, out, activation, *activation_params)


def channels_first(x: Tensor) -> Tensor:
    """A view of [n, ..., c] as [n, c, ...]."""
    return x.transpose((0, x.rank - 1, *range(1, x.rank - 1)))


def channels_last(x: Tensor) -> Tensor:
    """A view of [n, c, ...] as [n, ..., c]."""
    return x.transpose((0, *range(2, x.rank), 1))


def unpacked_codes(b: Builder, packed: Tensor, bits: int) -> Tensor:
    """uint8 codes [..., n * 8 / bits] from bytes [..., n]; the first code is in the lowest bits."""
    each = 8 // bits
    if each == 1:
        return packed
    wide = packed.view((*packed.shape, each), (*packed.strides, 0))
    codes, shifts = b.reads(wide, b.constant(np.arange(0, 8, bits, dtype=np.int32)))
    code = (codes >> shifts) & (1 << bits) - 1
    return b.reshape(b.store(code, packed.dtype), (*packed.shape[:-1], packed.shape[-1] * each))
