"""Random numbers and the operators that draw them: RandomNormal, RandomUniform, Bernoulli, Multinomial, Dropout (ONNX
operators).

A seed and an element's position decide its value. With a seed attribute every run of a model gives the same numbers; two
nodes of one seed differ. Without one, each run draws 64 bits of its own, which the kernels read from the plan's argument
table.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import numpy as np

from vkep.dtypes import BOOL, FLOAT32, INT32, UINT32, DType
from vkep.ir import algebra as fn
from vkep.ir.builder import Builder
from vkep.ir.expr import Expr
from vkep.ir.tensor import Tensor
from vkep.kernels.random import RandomProblem
from vkep.kernels.reductions.cumsum import ScanProblem
from vkep.ops.allowed import ARITHMETIC, FLOATING, every
from vkep.ops.generators import numeric
from vkep.ops.microsoft import MICROSOFT, outputs
from vkep.ops.reduction import reduce_axes, scan
from vkep.ops.registry import FLOATS, operator

#: elements of the table in which Multinomial looks up its samples
MOST_COMPARED = 1 << 26


def draw(
    b: Builder, shape: Sequence[int], seed: float | None, shift: float = 0.0, scale: float = 1.0, normal: bool = False
) -> Tensor:
    """float32 numbers: see `vkep.kernels.random.RandomProblem`; different ones in each run where ``seed`` is None."""
    made = b.empty(FLOAT32, shape)
    if seed is None:
        chosen, inputs = len(b.ops), [b.fresh_bits()]  # two draws of one plan differ
    else:
        place = b.node.index if b.node is not None else 0
        chosen, inputs = struct.unpack("<I", struct.pack("<f", seed))[0] | place << 32, []
    b.compute(RandomProblem(made.size, chosen, shift, scale, normal, bool(inputs)), inputs, [made])
    return made


def _random(
    b: Builder, normal: bool, shape: Sequence[int], dtype: DType, seed: float | None, shift: float, scale: float
) -> Tensor:
    if dtype.name not in FLOATING:
        b.decline(f"random numbers of {dtype}, expected a float type")
    return b.cast(draw(b, shape, seed, shift, scale, normal), dtype)


def _declare_random(op_type: str, fresh: Callable[..., Tensor], like: Callable[..., Tensor]) -> None:
    operator(op_type, types={"T": every(op_type, among=FLOATING)})(fresh)
    operator(f"{op_type}Like", types={"T1": every(f"{op_type}Like", "T1", (*ARITHMETIC, "bool"))})(like)


def _uniform(
    b: Builder, *, shape: Sequence[int], dtype: int = 1, seed: float | None = None, low: float = 0.0, high: float = 1.0
) -> Tensor:
    return _random(b, False, shape, numeric(b, dtype, FLOAT32), seed, low, high - low)


def _uniform_like(
    b: Builder, x: Tensor, *, dtype: int | None = None, seed: float | None = None, low: float = 0.0, high: float = 1.0
) -> Tensor:
    return _random(b, False, x.shape, numeric(b, dtype, x.dtype), seed, low, high - low)


def _normal(
    b: Builder,
    *,
    shape: Sequence[int],
    dtype: int = 1,
    seed: float | None = None,
    mean: float = 0.0,
    scale: float = 1.0,
) -> Tensor:
    return _random(b, True, shape, numeric(b, dtype, FLOAT32), seed, mean, scale)


def _normal_like(
    b: Builder, x: Tensor, *, dtype: int | None = None, seed: float | None = None, mean: float = 0.0, scale: float = 1.0
) -> Tensor:
    return _random(b, True, x.shape, numeric(b, dtype, x.dtype), seed, mean, scale)


_declare_random("RandomUniform", _uniform, _uniform_like)
_declare_random("RandomNormal", _normal, _normal_like)


@operator("Bernoulli", types={"T1": every("Bernoulli", "T1", FLOATING)})
def bernoulli(b: Builder, x: Tensor, *, dtype: int | None = None, seed: float | None = None) -> Tensor:
    made = numeric(b, dtype, x.dtype)
    chance, compute = draw(b, x.shape, seed), made.glsl_compute
    drawn, probability = b.reads(chance, x)
    return b.store(fn.cast(drawn < fn.cast(probability, "float"), compute), made, shape=x.shape)


@operator("Multinomial", types={"T1": every("Multinomial", "T1", FLOATING)})
def multinomial(b: Builder, x: Tensor, *, dtype: int = 6, sample_size: int = 1, seed: float | None = None) -> Tensor:
    """Classes drawn by their log-probabilities [batch, classes], which need not be normalised, as in ONNX Runtime."""
    made = numeric(b, dtype, INT32)
    if x.rank != 2 or made.name not in ("int32", "int64"):
        b.decline(f"log-probabilities of shape {x.shape} to {made}; expected a matrix to int32 or int64")
    batch, classes = x.shape
    if not classes or sample_size < 0 or batch * sample_size * classes > MOST_COMPARED:
        b.decline(f"{batch} x {sample_size} samples of {classes} classes; expected a table of 1 to {MOST_COMPARED}")
    logits = b.cast(x, FLOAT32)
    greatest = reduce_axes(b, "max", logits, [1], keepdims=True)
    weights = b.contiguous(b.pointwise(lambda v, most: fn.exp(v - most), logits, greatest))
    # for each class the sum of the weights up to and including it
    below = scan(b, weights, ScanProblem(batch, classes, 1, "float32"))
    total = below.slice(1, classes - 1, 1)

    def below_total(drawn: Expr, whole: Expr) -> Expr:
        return fn.minimum(drawn * whole, fn.from_float_bits(fn.float_bits(whole) - 1))

    at = b.pointwise(below_total, draw(b, [batch, sample_size], seed), total)
    passed = b.pointwise(
        lambda v, place: fn.cast(v <= place, "int"),
        b.reshape(below, [batch, 1, classes]),
        b.reshape(at, [batch, sample_size, 1]),
        dtype=INT32,
    )
    return b.cast(reduce_axes(b, "sum", passed, [2], keepdims=False), made)


# ---- dropout


def dropped(b: Builder, x: Tensor, rate: float, seed: int | None) -> list[Tensor]:
    """``x`` with each element kept at random and scaled by ``1 / (1 - rate)``, or set to 0; and the mask (ONNX
    Dropout)."""
    if not 0 <= rate < 1:
        b.decline(f"ratio is {rate}, expected at least 0 and below 1")
    mask = b.pointwise("ge", draw(b, x.shape, seed), float(rate), dtype=BOOL, shape=x.shape)
    factor = b.constant(np.array(1 / (1 - rate), np.float64 if x.dtype.name == "float64" else np.float32))
    return [b.pointwise(lambda v, kept, by: fn.where(kept, v * by, 0), x, mask, factor), mask]


def training_rate(b: Builder, ratio: Tensor | None, training_mode: Tensor | None) -> float:
    """The dropout rate: 0 outside of training."""
    if ratio is not None and ratio.size != 1:
        b.invalid(f"ratio has shape {list(ratio.shape)}, expected one element")
    if training_mode is None or not b.number(training_mode, "training_mode"):
        return 0.0
    return 0.5 if ratio is None else float(b.number(ratio, "ratio"))


# For inference only: the mask's content is not specified, and ONNX Runtime leaves it 0.
@operator("Dropout", since=7, until=11, types={"T": every("Dropout", among=FLOATING)})
def dropout_7(b: Builder, x: Tensor, *, opset: int, ratio: float = 0.5) -> list[Tensor]:
    return [x, b.full(x.shape, 0, x.dtype if opset < 10 else BOOL)]


@operator("Dropout", since=1, until=6, types={"T": every("Dropout", among=FLOATING)})
def dropout_1(
    b: Builder, x: Tensor, *, ratio: float = 0.5, is_test: int = 0, consumed_inputs: list[int] | None = None
) -> list[Tensor]:
    if is_test or not ratio:
        return [x, b.full(x.shape, 1, x.dtype)]
    y, mask = dropped(b, x, ratio, None)
    return [y, b.cast(mask, x.dtype)]


@operator("Dropout", since=12, types={"T": every("Dropout"), "T2": ("bool",)})
def dropout(
    b: Builder, x: Tensor, ratio: Tensor | None = None, training_mode: Tensor | None = None, *, seed: int | None = None
) -> list[Tensor]:
    rate = training_rate(b, ratio, training_mode)
    if not rate:
        return [x, b.full(x.shape, True, BOOL)]
    if x.dtype.name not in FLOATING:
        b.decline(f"training with {x.dtype}")
    return dropped(b, x, rate, seed)


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
    total, mask = b.expr("add", data, bias), b.full(data.shape, True, BOOL)
    if rate:
        kept, mask = dropped(b, b.store(total, data.dtype, shape=data.shape), rate, seed)
        total = b.expr("same", kept)
    if residual is not None:
        total = b.expr("add", total, residual)
    return outputs(b, b.store(total, data.dtype, shape=data.shape), mask)


def _bitmask(b: Builder, mask: Tensor | None, size: int) -> Tensor:
    """uint32 words of a mask's bits, the first one lowest; all are set where there is none."""
    words = -(-size // 32)
    if mask is None:
        return b.full((words,), 0xFFFFFFFF, UINT32)
    padded = b.empty(BOOL, (32 * words,))
    b.copy(b.reshape(mask, (size,)), out=padded.slice(0, 0, size))
    b.copy(b.full((32 * words - size,), False, BOOL), out=padded.slice(0, size, 32 * words - size))
    place = b.constant(np.arange(32, dtype=np.uint32))
    bits = b.pointwise(
        lambda kept, at: fn.cast(kept, "uint") << at, b.reshape(padded, (words, 32)), place, dtype=UINT32
    )
    return reduce_axes(b, "sum", bits, [1], False)


@operator("BitmaskDropout", domain=MICROSOFT, types={"data": FLOATING})
def bitmask_dropout(
    b: Builder,
    data: Tensor,
    ratio: Tensor | None = None,
    training_mode: Tensor | None = None,
    *,
    seed: int | None = None,
) -> list[Tensor]:
    rate, mask = training_rate(b, ratio, training_mode), None
    if rate:
        data, mask = dropped(b, data, rate, seed)
    return outputs(b, data, _bitmask(b, mask, data.size))


@operator("BitmaskBiasDropout", domain=MICROSOFT, types={"data bias residual": FLOATING})
def bitmask_bias_dropout(
    b: Builder,
    data: Tensor,
    bias: Tensor,
    residual: Tensor | None = None,
    ratio: Tensor | None = None,
    training_mode: Tensor | None = None,
    *,
    seed: int | None = None,
) -> list[Tensor]:
    b.expect("bias", bias, data.shape[-1:], data.shape)
    b.expect("residual", residual, data.shape)
    rate, mask = training_rate(b, ratio, training_mode), None
    total = b.pointwise("add", data, bias, shape=data.shape)
    if rate:
        total, mask = dropped(b, total, rate, seed)
    if residual is not None:
        total = b.pointwise("add", total, residual)
    return outputs(b, total, _bitmask(b, mask, data.size))
