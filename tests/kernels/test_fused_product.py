"""Products of a row's RMS norm, two products of the same rows, and those of a token's queries, keys and values, as a GPU
selects them."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_shared.capabilities import DeviceCapabilities
from tests.kernels.harness import Harness, Tensor
from tests.kernels.test_products import packed
from vkep.dtypes import DTYPES
from vkep.errors import Decline
from vkep.ir.tensor import Tensor as TensorView
from vkep.kernels.attention.cache_update import CacheUpdateProblem
from vkep.kernels.epilogue import Epilogue
from vkep.kernels.matmul.cooperative_tiles import float16_shape
from vkep.kernels.matmul.form import Form
from vkep.kernels.matmul.fused import FusedProductProblem
from vkep.kernels.matmul.nbits_problem import MatMulNBitsProblem
from vkep.kernels.matmul.problem import MatMulProblem
from vkep.kernels.matmul.tiles import STORAGE
from vkep.kernels.select import choose
from vkep.shaders.interface import Operand

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(7)
pytestmark = pytest.mark.wide
EPSILON = 1e-3


@pytest.fixture(scope="module")
def discrete(gpu: Harness) -> DeviceCapabilities:
    """The device, with the kernels of a discrete GPU."""
    caps = dataclasses.replace(gpu.caps, device_type="discrete")
    if not caps.has("integer_dot_product"):
        pytest.skip("the device has no dot products of packed bytes")
    return caps


def normed(a: Array, gain: Array) -> Array:
    wide = a.astype(np.float64)
    return wide / np.sqrt((wide**2).mean() + EPSILON) * gain.astype(np.float64)


@dataclasses.dataclass
class Weights:
    """Operands, and the matrix that they are, float64 [k, n]."""

    operands: list[Array]
    matrix: Array

    @classmethod
    def packed(cls, n: int, k: int, bits: int, block: int, dtype: str, zeros: str) -> Weights:
        """Codes with scales and zero points, as `MatMulNBitsProblem` has them."""
        blocks = -(-k // block)
        codes, scales = RNG.integers(0, 1 << bits, (n, blocks * block)), RNG.uniform(0.1, 1, (n, blocks)).astype(dtype)
        points: Array = np.full((n, blocks), 1 << (bits - 1))
        operands = [packed(codes, bits), scales]
        if zeros == "packed":
            points = RNG.integers(0, 1 << bits, (n, blocks))
            operands.append(packed(points, bits))
        elif zeros:
            points = RNG.uniform(0, 1 << bits, (n, blocks)).astype(dtype)
            operands.append(points)
        wide = (codes - np.repeat(points.astype(np.float64), block, 1)) * np.repeat(scales.astype(np.float64), block, 1)
        return cls(operands, wide[:, :k].T)

    @classmethod
    def dense(cls, n: int, k: int, dtype: str) -> Weights:
        """Floats [k, n]."""
        b = RNG.normal(size=(k, n)).astype(dtype)
        return cls([b], b.astype(np.float64))


def compare(gpu: Harness, caps: DeviceCapabilities, problem: FusedProductProblem, *weights: Weights) -> None:
    """Run a problem with rows and a gain that are random. Two products are multiplied, and a column's number is added."""
    dtype, m, (k, n) = problem.product.dtype, problem.product.m, weights[0].matrix.shape
    a, gain = RNG.normal(2, 3, (m, k)).astype(dtype), RNG.uniform(-2, 2, k).astype(dtype)
    read, before = a.astype(np.float64), [a]
    if problem.form.epsilon is not None:
        read, before = normed(a, gain), [a, gain]
    products = [read @ each.matrix for each in weights]
    expected, epilogue = products[0], None
    if problem.form.paired:
        scale = float(np.abs(products[0]).max()) or 1.0  # within the range of float16
        more = RNG.uniform(-1, 1, n).astype(dtype)
        expected = products[0] / scale * products[1] + more
        body = "v = v / args.scale * w + E(operand(args.e0, EXTRA_BASE + 0u)).v[col];"
        operand = (Operand("e0"), Tensor(more))
        epilogue = Epilogue(body, f"TENSOR({STORAGE[dtype]}, E)", (operand,), (("scale", "float", scale),))
    y = Tensor.empty((m, n), dtype)
    inputs = [*before, *(operand for each in weights for operand in each.operands)]
    gpu.compute(problem, caps, list(map(Tensor, inputs)), [y], epilogue=epilogue)
    rtol = 2e-3 if dtype == "float16" else 1e-4
    np.testing.assert_allclose(y.array, expected, rtol=rtol, atol=np.abs(expected).max() * rtol / 2)


def packed_problem(m: int, n: int, k: int, bits: int, block: int, dtype: str, zeros: str) -> MatMulNBitsProblem:
    return MatMulNBitsProblem(m, n, k, bits, block, dtype, zeros, at_a=16, at_b=16, at_y=16)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    ("n", "k", "bits", "block", "paired"),
    [(70, 2048, 4, 32, False), (33, 1000, 8, 128, False), (35, 2048, 4, 32, True)],
)
def test_packed_weights_of_a_norm(
    gpu: Harness, discrete: DeviceCapabilities, n: int, k: int, bits: int, block: int, paired: bool, dtype: str
) -> None:
    sizes = (n, k, bits, block, dtype, "packed")
    problem = FusedProductProblem(packed_problem(1, *sizes), Form(EPSILON, paired))
    compare(gpu, discrete, problem, *[Weights.packed(*sizes) for _ in range(1 + paired)])


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("n", "k"), [(257, 640), (4096, 64)])
def test_dense_weights_of_a_norm(gpu: Harness, discrete: DeviceCapabilities, n: int, k: int, dtype: str) -> None:
    product = MatMulProblem(1, n, k, (0, k, 1), (0, n, 1), (0, n, 1), dtype=dtype, b_constant=True, alignment=16)
    compare(gpu, discrete, FusedProductProblem(product, Form(EPSILON)), Weights.dense(n, k, dtype))


@pytest.mark.parametrize(
    ("bits", "block", "dtype", "zeros", "m", "epsilon"),
    [
        (4, 32, "float16", "", 1, EPSILON),
        (4, 128, "float32", "packed", 1, EPSILON),
        (8, 32, "float16", "float16", 1, None),
        (2, 64, "float16", "packed", 1, None),
        (4, 32, "float16", "packed", 3, None),
    ],
)
@settings(max_examples=6)
@given(n=st.integers(1, 300), k=st.integers(1, 256))
def test_two_packed_products(
    gpu: Harness,
    discrete: DeviceCapabilities,
    bits: int,
    block: int,
    dtype: str,
    zeros: str,
    m: int,
    epsilon: float | None,
    n: int,
    k: int,
) -> None:
    sizes = (n, k, bits, block, dtype, zeros)
    problem = FusedProductProblem(packed_problem(m, *sizes), Form(epsilon, paired=True))
    compare(gpu, discrete, problem, Weights.packed(*sizes), Weights.packed(*sizes))


@pytest.mark.parametrize(("m", "n", "k"), [(16, 70, 300), (5, 33, 1024), (32, 16, 96)])
def test_two_packed_products_on_cooperative_matrices(
    gpu: Harness, discrete: DeviceCapabilities, monkeypatch: pytest.MonkeyPatch, m: int, n: int, k: int
) -> None:
    shape = float16_shape(discrete)
    if shape is None:
        pytest.skip("the device has no cooperative matrices")
    known = (shape.m, shape.n, shape.k, discrete.subgroup_size)
    monkeypatch.setattr("vkep.kernels.matmul.codes_fragments._KNOWN", known)
    sizes = (n, k, 4, 32, "float16", "packed")
    problem = packed_problem(m, *sizes)
    assert choose(problem, discrete).candidate.name == "fragments"
    compare(gpu, discrete, FusedProductProblem(problem, Form(paired=True)), *[Weights.packed(*sizes) for _ in range(2)])


@pytest.mark.parametrize(
    ("dtype", "step", "m", "epsilon"),
    [("float16", 8, 1, EPSILON), ("float16", 1, 1, None), ("float32", 4, 1, EPSILON), ("float16", 8, 2, None)],
)
@settings(max_examples=6)
@given(columns=st.integers(2, 60), k=st.integers(2, 1500))
def test_two_dense_products(
    gpu: Harness,
    discrete: DeviceCapabilities,
    dtype: str,
    step: int,
    m: int,
    epsilon: float | None,
    columns: int,
    k: int,
) -> None:
    """``step``: 1 has no loads of 16 bytes."""
    n = columns * step
    strides = ((0, k, 1), (0, n, 1), (0, n, 1))
    product = MatMulProblem(m, n, k, *strides, dtype=dtype, b_constant=True, alignment=16)
    problem = FusedProductProblem(product, Form(epsilon, paired=True))
    compare(gpu, discrete, problem, Weights.dense(n, k, dtype), Weights.dense(n, k, dtype))


@pytest.mark.parametrize("packs", [True, False])
@pytest.mark.parametrize(("dtype", "epsilon", "ids"), [("float16", EPSILON, False), ("float32", None, True)])
@settings(max_examples=6)
@given(half=st.sampled_from([4, 12, 32]), heads=st.integers(1, 5), kv_heads=st.integers(1, 3), place=st.integers(0, 8))
def test_queries_keys_and_values(
    gpu: Harness,
    discrete: DeviceCapabilities,
    packs: bool,
    dtype: str,
    epsilon: float | None,
    ids: bool,
    half: int,
    heads: int,
    kv_heads: int,
    place: int,
) -> None:
    """A bias is added, both halves of each head of queries and keys turn, and keys and values go to a row of the caches."""
    k, room, rows, size = 96, 9, 20, 2 * half
    heads *= kv_heads
    n = (heads + 2 * kv_heads) * size
    weights = Weights.packed(n, k, 4, 32, dtype, "") if packs else Weights.dense(n, k, dtype)
    product: Any = packed_problem(1, n, k, 4, 32, dtype, "")
    if not packs:
        product = MatMulProblem(1, n, k, (0, k, 1), (0, n, 1), dtype=dtype, b_constant=True, alignment=16)
    strides = (0, size, 0)
    sizes = (1, heads, kv_heads, 1, size, size, room, room, 0)
    update = CacheUpdateProblem(
        *sizes, strides, strides, strides, dtype, half=half, table_rows=rows, ids=ids, fault="outside", over=True
    )
    a, gain = RNG.normal(size=k).astype(dtype), RNG.uniform(-1, 1, k).astype(dtype)
    bias, angles = RNG.normal(size=n).astype(dtype), RNG.uniform(-3, 3, (rows, half))
    tables = [np.cos(angles).astype(dtype), np.sin(angles).astype(dtype)]
    position = 13 if ids else place
    positions = [Tensor(np.array([position]))] if ids else []
    given = [*([a, gain] if epsilon else [a]), *weights.operands, *tables, np.array([place], np.int32)]
    caches = [Tensor(RNG.normal(size=(kv_heads, room, size)).astype(dtype)) for _ in range(2)]
    before = [cache.array.astype(np.float64) for cache in caches]
    turned = Tensor.empty((heads, size), dtype)
    epilogue = Epilogue(
        "v += E(operand(args.e0, EXTRA_BASE + 0u)).v[col];",
        f"TENSOR({STORAGE[dtype]}, E)",
        ((Operand("e0"), Tensor(bias)),),
    )
    problem = FusedProductProblem(product, Form(epsilon, update=update))
    gpu.compute(problem, discrete, [*map(Tensor, given), *positions], [turned, *caches], epilogue=epilogue)

    rows_of = ((normed(a, gain) if epsilon else a.astype(np.float64)) @ weights.matrix + bias).reshape(-1, 2, half)
    cosine, sine = (table[position].astype(np.float64) for table in tables)
    first, second = rows_of[:, 0], rows_of[:, 1]
    expected = np.concatenate([first * cosine - second * sine, second * cosine + first * sine], 1)
    expected[heads + kv_heads :] = rows_of.reshape(-1, size)[heads + kv_heads :]
    for cache, new in zip(before, (expected[heads : heads + kv_heads], expected[heads + kv_heads :]), strict=True):
        cache[:, place] = new
    rtol = 2e-3 if dtype == "float16" else 1e-4
    for got, want in zip((turned, *caches), (expected[:heads], *before), strict=True):
        np.testing.assert_allclose(got.array, want, rtol=rtol, atol=np.abs(expected).max() * rtol)


def test_the_less_aligned_of_two_weights_counts() -> None:
    product = packed_problem(1, 8, 64, 4, 32, "float16", "")
    row, codes = (TensorView.contiguous(DTYPES[dtype], (64,)) for dtype in ("float16", "uint8"))
    views = {"a": row, "b": codes, "y": row, "b2": codes.slice(0, 4, 32)}
    placed = FusedProductProblem(product, Form(paired=True)).placed(views)
    assert isinstance(placed.product, MatMulNBitsProblem) and placed.product.at_b == 4


def test_other_products_are_refused(discrete: DeviceCapabilities, gpu: Harness) -> None:
    rows = MatMulProblem(2, 8, 8, (0, 8, 1), (0, 8, 1))
    with pytest.raises(ValueError, match="2 rows, expected 1"):
        FusedProductProblem(rows, Form(EPSILON))
    with pytest.raises(ValueError, match="neither a norm nor two products"):
        FusedProductProblem(rows, Form())
    step = (0, 4, 0)
    update = CacheUpdateProblem(1, 2, 1, 1, 4, 4, 9, 9, 0, step, step, step, "float32", half=2, over=True)
    with pytest.raises(ValueError, match="8 columns of float32, the update takes 16"):
        FusedProductProblem(MatMulProblem(1, 8, 8, (0, 8, 1), (0, 8, 1)), Form(update=update))
    with pytest.raises(ValueError, match="not both halves"):
        Form(update=dataclasses.replace(update, half=1))
    with pytest.raises(ValueError, match="the update reads k_gain, q_gain"):
        Form(update=dataclasses.replace(update, epsilon=EPSILON))
    along_k = MatMulProblem(1, 64, 64, (0, 64, 1), (0, 1, 64), alignment=16)
    with pytest.raises(Decline, match="along k"):
        choose(FusedProductProblem(along_k, Form(EPSILON)), discrete)
