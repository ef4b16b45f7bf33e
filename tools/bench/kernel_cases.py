"""Single operators as kernel calls, and the same in torch: what `python -m tools.bench --ops` times on a device."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vkep.device.measure.kernel_timer import KernelTimer, Operand
from vkep.dtypes import DTYPES
from vkep.ir.tensor import collapse
from vkep.kernels.attention.attention import gains_by_attention
from vkep.kernels.attention.problem import AttentionProblem
from vkep.kernels.conv.problem import ConvProblem
from vkep.kernels.kernel import KernelCall
from vkep.kernels.matmul.problem import MatMulProblem
from vkep.kernels.pointwise import PointwiseOperand, pointwise
from vkep.kernels.problem import Problem
from vkep.kernels.reductions.norm import LayerNormProblem, SoftmaxProblem
from vkep.kernels.reductions.reduce import ReduceProblem
from vkep.kernels.select import emit
from vkep.kernels.tokens.choose_token import ChooseTokenProblem
from vkep.ops.registry import load_own

load_own()  # every kind of problem has its candidates

#: ResNet-50's convolutions: (channels, size, out channels, kernel, stride)
RESNET50_CONVS = (
    (3, 224, 64, 7, 2),
    (64, 56, 64, 1, 1),
    (64, 56, 64, 3, 1),
    (64, 56, 256, 1, 1),
    (256, 56, 64, 1, 1),
    (128, 56, 128, 3, 2),
    (128, 28, 128, 3, 1),
    (128, 28, 512, 1, 1),
    (512, 28, 128, 1, 1),
    (256, 14, 256, 3, 1),
    (256, 14, 1024, 1, 1),
    (1024, 14, 256, 1, 1),
    (512, 7, 512, 3, 1),
    (512, 7, 2048, 1, 1),
    (2048, 7, 512, 1, 1),
)

#: MobileNetV2's: (channels, size, out channels, kernel, stride), depthwise where both channels are the same
MOBILENETV2_CONVS = (
    (32, 112, 32, 3, 1),
    (96, 112, 96, 3, 2),
    (144, 56, 144, 3, 1),
    (576, 14, 576, 3, 1),
    (960, 7, 960, 3, 1),
    (24, 56, 144, 1, 1),
    (96, 14, 576, 1, 1),
    (160, 7, 960, 1, 1),
)

#: of Llama 3
VOCABULARY = 128256

#: heads, length, size: vision transformers, a text encoder, diffusion, and language models' prompts
_ATTENTION = (
    (12, 197, 64), (384, 128, 64), (192, 512, 64), (96, 1370, 64), (8, 4096, 40), (64, 1024, 80), (16, 2048, 64), (16, 4096, 64),
    (16, 2048, 128), (16, 2048, 160),
)  # fmt: skip

#: fewer elements make no shape of every memory-bound operator
MIN_ELEMENTS = 1 << 18


@dataclass(frozen=True)
class Sizes:
    """The sizes of operators: elements of memory-bound ones, sides of square products, batch sizes, element types."""

    elements: int
    products: tuple[int, ...]
    batches: tuple[int, ...]
    dtypes: tuple[str, ...] = ("float32", "float16")
    convolutions: int | None = None  #: maximum number of layers of each network, from the first
    attention: tuple[tuple[int, int, int], ...] = ()  #: heads, length, size: in one dispatch, and with scores in memory

    @classmethod
    def of(cls, device_type: str) -> Sizes:
        """Sizes that keep a large GPU busy, or that take a CPU not too long."""
        if device_type == "cpu":
            return cls(1 << 22, (256, 512, 1024), (1,), ("float32",))
        return cls(1 << 26, (1024, 2048, 4096, 8192), (1, 32), attention=_ATTENTION)

    @classmethod
    def smallest(cls) -> Sizes:
        """Small sizes, which only show that everything runs."""
        return cls(MIN_ELEMENTS, (64,), (1,), ("float32",), convolutions=1)


@dataclass
class Case:
    """One operator: vkep's computation, the bytes or operations that it requires, and the same computation in torch."""

    name: str
    make: Callable[[KernelTimer], tuple[list[KernelCall], list[Operand]]]
    torch: Callable[[Any], Callable[[], Any]] | None  #: None where it has none on a GPU
    nbytes: int = 0  #: bytes that a memory-bound operator reads and writes
    flops: int = 0


def cases(sizes: Sizes) -> Iterator[Case]:
    """Memory-bound operators, products, attention, the convolutions of ResNet-50 and MobileNetV2, and the choice of a token;
    products and ResNet-50's convolutions of 8-bit codes where float16 is among the types."""
    for dtype in sizes.dtypes:
        yield from _memory_bound(dtype, sizes.elements)
    for dtype in sizes.dtypes:
        for size in sizes.products:
            yield matmul_case(size, size, size, dtype)
    if "float16" in sizes.dtypes:
        for size in sizes.products:
            yield matmul_case(size, size, size, "int8")
        for batch in sizes.batches:
            for c, size, oc, kernel, stride in RESNET50_CONVS[1 : sizes.convolutions]:
                yield conv_case(batch, c, size, oc, kernel, stride, "int8")
    for dtype in reversed(sizes.dtypes):
        for shape in sizes.attention:
            for in_memory in (False, True):
                yield attention_case(*shape, dtype, in_memory)
            yield attention_case(*shape, dtype, False, causal=True)
        for batch in sizes.batches:
            yield attention_case(12 * batch, 128, 64, dtype)
            for c, size, oc, kernel, stride in RESNET50_CONVS[: sizes.convolutions]:
                yield conv_case(batch, c, size, oc, kernel, stride, dtype)
                if dtype == "float16":
                    yield conv_case(batch, c, size, oc, kernel, stride, dtype, torch_channels_last=True)
            for c, size, oc, kernel, stride in MOBILENETV2_CONVS[: sizes.convolutions]:
                yield conv_case(batch, c, size, oc, kernel, stride, dtype, groups=c if c == oc else 1)
        for rows in (1, 16):
            yield choice_case(rows, min(VOCABULARY, sizes.elements // 64), dtype)


def _memory_bound(dtype: str, elements: int) -> Iterator[Case]:
    kind = DTYPES[dtype]
    rows, axis = elements // 1024, 1024
    both = 2 * elements * kind.itemsize

    def data(timer: KernelTimer, copies: int = 1) -> list[Operand]:
        values = np.random.default_rng(0).standard_normal(elements, np.float32).astype(kind.numpy)
        return [*(timer.operand(values) for _ in range(copies)), timer.operand(nbytes=values.nbytes)]

    def tensor(torch: Any) -> Any:
        return torch.randn(elements, device="cuda", dtype=getattr(torch, dtype))

    def elementwise(body: str, inputs: int) -> Callable[[KernelTimer], tuple[list[KernelCall], list[Operand]]]:
        def make(timer: KernelTimer) -> tuple[list[KernelCall], list[Operand]]:
            *xs, y = data(timer, inputs)
            flat = [PointwiseOperand(t, kind, (1,), 0) for t in (y, *xs)]
            params = ", ".join(f"float x{k}" for k in range(inputs))
            function = f"{kind.glsl} compute({params}) {{ return {kind.glsl}({body}); }}"
            return pointwise([elements], flat[0], flat[1:], function, (), timer.caps), [*xs, y]

        return make

    def transpose(shape: tuple[int, ...], perm: tuple[int, ...]) -> Callable[[KernelTimer], Any]:
        def make(timer: KernelTimer) -> tuple[list[KernelCall], list[Operand]]:
            x, y = data(timer)
            strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
            out_shape = [shape[p] for p in perm]
            out_strides = [math.prod(out_shape[i + 1 :]) for i in range(len(shape))]
            dims, (ys, xs) = collapse(out_shape, [out_strides, [strides[p] for p in perm]])
            function = f"{kind.glsl} compute(float x0) {{ return {kind.glsl}(x0); }}"
            y_operand, x_operand = (PointwiseOperand(t, kind, tuple(s), 0) for t, s in ((y, ys), (x, xs)))
            return pointwise(dims, y_operand, [x_operand], function, (), timer.caps), [x, y]

        return make

    def over_rows(problem: Problem) -> Callable[[KernelTimer], Any]:
        def make(timer: KernelTimer) -> tuple[list[KernelCall], list[Operand]]:
            x, y = data(timer)
            return emit(problem, timer, [x], [y]), [x, y]

        return make

    side = 1 << (elements.bit_length() - 1) // 2
    square, heads = (side, elements // side), (elements // (128 * 12 * 64), 128, 12, 64)
    heads = (heads[0] or 1, *heads[1:])
    label = f"{dtype} {elements >> 20}Mi" if elements >> 20 else f"{dtype} {elements >> 10}Ki"
    chain = "((x0 + x1) / (1.0 + exp(-1.702 * (x0 + x1))) + x0) * x1"
    yield Case(f"copy {label}", elementwise("x0", 1), lambda t: _copier(t, tensor(t)), both)
    yield Case(f"add {label}", elementwise("x0 + x1", 2), lambda t: _binary(t, tensor(t), tensor(t)), both * 3 // 2)
    yield Case(f"gelu {label}", elementwise("gelu_tanh(x0)", 1), lambda t: _gelu(t, tensor(t)), both)
    yield Case(f"chain {label}", elementwise(chain, 2), lambda t: _chain(t, tensor(t), tensor(t)), both * 3 // 2)

    def transposition(name: str, shape: tuple[int, ...], perm: tuple[int, ...]) -> Case:
        size = math.prod(shape)
        run = lambda t: _transpose(tensor(t)[:size].view(shape), perm)  # noqa: E731
        return Case(f"transpose {name} {label}", transpose(shape, perm), run, 2 * size * kind.itemsize)

    yield transposition("2-D", square, (1, 0))
    yield transposition("heads", heads, (0, 2, 1, 3))
    yield transposition("NCHW-NHWC", (16, 64, elements // 1024), (0, 2, 1))

    def reduction(name: str, shape: tuple[int, int, int]) -> Case:
        make = over_rows(ReduceProblem(*shape, dtype, "sum", alignment=16))
        return Case(f"reduce {name} {label}", make, lambda t: _reducer(tensor(t).view(shape), 1), both // 2)

    yield reduction("rows", (rows, axis, 1))
    yield reduction("columns", (1, rows, axis))
    yield reduction("all", (1, elements, 1))

    def row_kernel(name: str, n: int, problem: Problem, peer: Callable[..., Any]) -> Case:
        return Case(f"{name} {n} {label}", over_rows(problem), lambda t: peer(t, tensor(t).view(-1, n)), both)

    for n in (1024, 8192):
        yield row_kernel("softmax", n, SoftmaxProblem(elements // n, n, 1, dtype, alignment=16), _softmax)
        norm = LayerNormProblem(elements // n, n, dtype, scale=False, bias=False, alignment=16)
        yield row_kernel("layer norm", n, norm, _norm)


def _copier(torch: Any, x: Any) -> Callable[[], Any]:
    y = torch.empty_like(x)
    return lambda: y.copy_(x)


def _binary(torch: Any, x: Any, z: Any) -> Callable[[], Any]:
    y = torch.empty_like(x)
    return lambda: torch.add(x, z, out=y)


def _gelu(torch: Any, x: Any) -> Callable[[], Any]:
    return lambda: torch.nn.functional.gelu(x, approximate="tanh")


def _chain(torch: Any, x: Any, z: Any) -> Callable[[], Any]:
    return lambda: ((x + z) * torch.sigmoid(1.702 * (x + z)) + x) * z


def _transpose(x: Any, perm: tuple[int, ...]) -> Callable[[], Any]:
    return lambda: x.permute(perm).contiguous()


def _reducer(x: Any, axis: int) -> Callable[[], Any]:
    return lambda: x.sum(axis)


def _softmax(torch: Any, x: Any) -> Callable[[], Any]:
    return lambda: torch.softmax(x, -1)


def _norm(torch: Any, x: Any) -> Callable[[], Any]:
    return lambda: torch.nn.functional.layer_norm(x, x.shape[-1:])


def matmul_case(m: int, n: int, k: int, dtype: str) -> Case:
    """A product of random matrices, both row-major."""
    kind = DTYPES[dtype].numpy

    def make(timer: KernelTimer) -> tuple[list[KernelCall], list[Operand]]:
        a, b = (timer.operand(_normal(seed, s, kind)) for seed, s in enumerate(((m, k), (k, n))))
        y = timer.operand(nbytes=m * n * np.dtype(kind).itemsize)
        strides, codes = ((m * k, k, 1), (0, n, 1)), dtype == "int8"
        problem = MatMulProblem(m, n, k, *strides, dtype=dtype, b_constant=codes, alignment=16)
        return emit(problem, timer, [a, b], [y]), [a, b, y]

    def torch_run(torch: Any) -> Callable[[], Any]:
        if dtype == "int8":
            codes = [torch.randint(-128, 128, s, device="cuda", dtype=torch.int8) for s in ((m, k), (n, k))]
            return lambda: torch._int_mm(codes[0], codes[1].t())
        a, b = (torch.randn(s, device="cuda", dtype=getattr(torch, dtype)) for s in ((m, k), (k, n)))
        y = torch.empty((m, n), device="cuda", dtype=a.dtype)
        return lambda: torch.mm(a, b, out=y)

    return Case(f"matmul {m}x{n}x{k} {dtype}", make, torch_run, flops=2 * m * n * k)


@functools.lru_cache(2)
def _normal(seed: int, shape: tuple[int, ...], kind: Any) -> np.ndarray:
    """Random data. The latest arrays are kept, so that another tiling of the same operator gets the same data."""
    values = np.random.default_rng(seed).standard_normal(shape, np.float32)
    return (values * 30 if kind == np.int8 else values).astype(kind)


def attention_case(
    heads: int, length: int, size: int, dtype: str, in_memory: bool | None = None, causal: bool = False
) -> Case:
    """q, k and v [heads, length, size], no mask: the dispatches that `vkep.ops.attention.sdpa` chooses, or
    (``in_memory``) those with all scores in memory, or (not) the one without. ``causal``: a query sees the keys up to its own, in
    the one without scores.
    """
    kind, itemsize = DTYPES[dtype].numpy, DTYPES[dtype].itemsize
    alpha, row = 1 / math.sqrt(size), (0, length * size, size)
    fused = AttentionProblem(
        *(1, heads, heads, length, length, size, size), row, row, row, row[1:], scale=alpha, dtype=dtype, alignment=16,
        end=1 if causal else None,
    )  # fmt: skip
    scores = MatMulProblem(
        length, length, size, (length * size, size, 1), (length * size, 1, size), batch=heads, dtype=dtype, alignment=16
    )
    scores = replace(scores, alpha=alpha)
    strides = ((length * length, length, 1), (length * size, size, 1))
    mixture = MatMulProblem(length, size, length, *strides, batch=heads, dtype=dtype, alignment=16)

    def make(timer: KernelTimer) -> tuple[list[KernelCall], list[Operand]]:
        values = np.random.default_rng(3).standard_normal((3, heads, length, size), np.float32).astype(kind)
        q, k, v = (timer.operand(part) for part in values)
        y = timer.operand(nbytes=values[0].nbytes)
        if gains_by_attention(fused, timer.caps) if in_memory is None else not in_memory:
            return emit(fused, timer, [q, k, v], [y]), [q, k, v, y]
        s, p = (timer.operand(nbytes=heads * length * length * itemsize) for _ in range(2))
        calls = [
            *emit(scores, timer, [q, k], [s]),
            *emit(SoftmaxProblem(heads * length, length, 1, dtype, alignment=16), timer, [s], [p]),
            *emit(mixture, timer, [p, v], [y]),
        ]
        return calls, [q, k, v, s, p, y]

    def torch_run(torch: Any) -> Callable[[], Any]:
        q, k, v = torch.randn((3, 1, heads, length, size), device="cuda", dtype=getattr(torch, dtype))
        return lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    way = {None: "", False: ", one dispatch", True: ", scores in memory"}[in_memory] + ", causal" * causal
    flops = (scores.flops + mixture.flops) // (2 if causal else 1)
    return Case(f"attention {heads}x{length}x{size} {dtype}{way}", make, torch_run, flops=flops)


def conv_case(
    batch: int,
    c: int,
    size: int,
    oc: int,
    kernel: int,
    stride: int,
    dtype: str,
    groups: int = 1,
    torch_channels_last: bool = False,
) -> Case:
    """A convolution of random data, padded to keep the size (over the stride); vkep's and torch's layouts may differ."""
    kind, pad = DTYPES[dtype].numpy, kernel // 2
    problem = ConvProblem(
        batch,
        c,
        size,
        size,
        oc,
        kernel,
        kernel,
        (stride,) * 2,
        pads=(pad,) * 4,
        groups=groups,
        dtype=dtype,
        alignment=16,
        w_constant=True,
        x_last=True,
    )

    def make(timer: KernelTimer) -> tuple[list[KernelCall], list[Operand]]:
        shapes = ((batch, c, size, size), (oc, c // groups, kernel, kernel))
        x, w = (timer.operand(_normal(seed, s, kind)) for seed, s in enumerate(shapes))
        y = timer.operand(nbytes=batch * problem.y_batch * np.dtype(kind).itemsize)
        return emit(problem, timer, [x, w], [y]), [x, w, y]

    def torch_run(torch: Any) -> Callable[[], Any]:
        layout = torch.channels_last if torch_channels_last else torch.contiguous_format
        x = torch.randn((batch, c, size, size), device="cuda", dtype=getattr(torch, dtype)).to(memory_format=layout)
        w = torch.randn((oc, c // groups, kernel, kernel), device="cuda", dtype=x.dtype).to(memory_format=layout)
        return lambda: torch.nn.functional.conv2d(x, w, stride=stride, padding=pad, groups=groups)

    moved = batch * (c * size**2 + problem.y_batch) * DTYPES[dtype].itemsize
    name = "conv" if groups == 1 else "depthwise"
    title = f"{name} {batch}x{c}x{size}x{size} {oc} {kernel}x{kernel}/{stride} {dtype}"
    if torch_channels_last:
        title += " (torch: NHWC)"
    return Case(title, make, None if dtype == "int8" else torch_run, moved if groups > 1 else 0, problem.flops)


def choice_case(rows: int, vocabulary: int, dtype: str) -> Case:
    """The next token of each row of logits, with a temperature, top-k and top-p."""
    heat, top_k, top_p = 0.8, 40, 0.9
    kind = DTYPES[dtype]

    def make(timer: KernelTimer) -> tuple[list[KernelCall], list[Operand]]:
        x = timer.operand(_normal(5, (rows, vocabulary), kind.numpy))
        settings = timer.operand(np.array([(heat, top_k, top_p, 0.0, 1.0, 0.5)] * rows, np.float32))
        tokens, chosen = timer.operand(nbytes=8 * rows), timer.operand(nbytes=4 * rows)
        problem = ChooseTokenProblem(rows, vocabulary, vocabulary, dtype)
        return emit(problem, timer, [x, settings], [tokens, chosen]), [x, settings, tokens, chosen]

    def torch_run(torch: Any) -> Callable[[], Any]:
        x = torch.randn((rows, vocabulary), device="cuda", dtype=getattr(torch, dtype))

        def run() -> Any:  # the filters of the package transformers
            z = x.float() / heat
            z = z.masked_fill(z < torch.topk(z, top_k).values[:, -1:], -math.inf)
            ordered, places = torch.sort(z)
            left = ordered.softmax(-1).cumsum(-1) > 1 - top_p
            p = ordered.masked_fill(~left, -math.inf).softmax(-1)
            return places.gather(-1, (p / torch.empty_like(p).exponential_()).argmax(-1, keepdim=True))

        return run

    return Case(f"choose token {rows}x{vocabulary} {dtype}", make, torch_run, rows * vocabulary * kind.itemsize)
