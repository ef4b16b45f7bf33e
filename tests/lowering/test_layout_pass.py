"""The pass that decides how images lie: what it leaves is legal, computes the same, and copies no more than it must."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tests.devices import GPU
from tools.plan_devices import DEVICES
from vkep.dtypes import DTYPES
from vkep.graph.attributes import ConvAttributes, PoolAttributes
from vkep.ir import expr as ex
from vkep.ir.builder import Builder
from vkep.ir.ops import KernelOp, Op, Pointwise, reads
from vkep.ir.tensor import Storage, Tensor, contiguous_strides
from vkep.kernels.conv.problem import NCHW, NHWC, ConvProblem
from vkep.kernels.images.pool import PoolProblem
from vkep.kernels.matmul.problem import MatMulProblem
from vkep.kernels.reductions.reduce import ReduceProblem
from vkep.kernels.select import choose
from vkep.ops.contraction import matrix_product
from vkep.ops.convolution import convolution
from vkep.ops.movement import concat
from vkep.ops.pooling import max_pool
from vkep.ops.reduction import reduce_axes
from vkep.passes.layout import lay_out, relaid

HALF = DTYPES["float16"]


def image(*shape: int, dtype: str = "float16") -> Tensor:
    """An input of the plan."""
    size = math.prod(shape) * DTYPES[dtype].itemsize
    return Tensor.contiguous(DTYPES[dtype], shape, Storage(size, port=0, label="x"))


def conv(b: Builder, x: Tensor, channels: int = 16, group: int = 1, size: int = 1) -> Tensor:
    made = np.random.default_rng(channels).standard_normal((channels, x.shape[1] // group, *[size] * (x.rank - 2)))
    weights = b.constant((np.round(made * 4) / 4).astype(x.dtype.numpy))
    return convolution(b, x, weights, ConvAttributes(group=group, pads=[size // 2] * 2 * (x.rank - 2)))


def problems(ops: Sequence[Op], kind: type) -> list[Any]:
    return [op.problem for op in ops if isinstance(op, KernelOp) and isinstance(op.problem, kind)]


def copies(ops: Sequence[Op]) -> int:
    return sum(isinstance(op, Pointwise) and isinstance(op.expr, ex.Leaf) for op in ops)


# ---- views


def places(view: Tensor) -> np.ndarray:
    """The element of the storage that each of a view's is."""
    found = np.full(view.shape, view.offset)
    for axis, (size, stride) in enumerate(zip(view.shape, view.strides, strict=True)):
        found += (np.arange(size) * stride).reshape([-1 if a == axis else 1 for a in range(view.rank)])
    return found


def last(shape: Sequence[int]) -> Tensor:
    return Tensor.contiguous(HALF, [shape[a] for a in (0, 2, 3, 1)]).transpose((0, 3, 1, 2))


def walk(x: Tensor, rng: np.random.Generator, steps: int = 3) -> Tensor:
    """A view after random slices, transposes, splits and merges of axes, and broadcasts."""
    for _ in range(steps):
        axis, kind = int(rng.integers(x.rank)), rng.integers(5)
        size = x.shape[axis]
        if kind == 0 and size > 1:
            start, step = int(rng.integers(size - 1)), int(rng.choice([-1, 1, 2]))
            x = x.slice(axis, start, start + 1 if step < 0 else (size - start + step - 1) // step, step)
        elif kind == 1:
            x = x.transpose(rng.permutation(x.rank).tolist())
        elif kind == 2 and size % 2 == 0:
            x = x.reshape((*x.shape[:axis], size // 2, 2, *x.shape[axis + 1 :])) or x
        elif kind == 3 and axis:
            x = x.reshape((*x.shape[: axis - 1], x.shape[axis - 1] * size, *x.shape[axis + 1 :])) or x
        elif kind == 4 and size == 1:
            x = x.expand((*x.shape[:axis], 3, *x.shape[axis + 1 :]))
    return x


def test_views_of_tensors_in_another_memory_order() -> None:
    """Over thousands of views: the same elements, or none where they have no strides."""
    rng, said = np.random.default_rng(3), 0
    for _ in range(3000):
        shape = tuple(int(d) for d in rng.choice([1, 2, 3, 4], 4))
        whole, moved = Tensor.contiguous(HALF, shape), last(shape)
        view = walk(whole, rng)
        found = relaid(view, whole, moved)
        if found is not None:
            said += 1
            assert found.shape == view.shape and found.storage is moved.storage
            to_new = np.empty(whole.size, int)
            to_new[places(whole).reshape(-1)] = places(moved).reshape(-1)
            np.testing.assert_array_equal(places(found), to_new[places(view)])
    assert said > 2000, said


@pytest.mark.parametrize(
    ("shape", "strides", "offset"),
    [((24,), (1,), 0), ((3, 8), (8, 1), 0), ((2, 4), (5, 1), 0), ((2, 3), (1, 1), 2), ((2,), (3,), 1)],
    ids=["flat", "across channels", "diagonal", "over the edge of a plane", "beyond a plane"],
)
def test_views_without_strides_in_another_memory_order(
    shape: tuple[int, ...], strides: tuple[int, ...], offset: int
) -> None:
    whole = Tensor.contiguous(HALF, (1, 6, 2, 2))
    assert relaid(whole.view(shape, strides, offset), whole, last((1, 6, 2, 2))) is None


def test_a_view_of_another_type_has_none() -> None:
    whole = Tensor.contiguous(HALF, (1, 2, 2, 2))
    assert relaid(Tensor(DTYPES["int16"], (8,), whole.storage, (1,)), whole, last(whole.shape)) is None


# ---- decisions


_COOPERATIVE, _SMALL = "gpu with cooperative matrices", "small gpu"


@pytest.mark.parametrize(
    ("device", "dtype", "some_last"),
    [
        (_COOPERATIVE, "float16", True),
        (_COOPERATIVE, "float32", False),
        ("cpu", "float16", False),
        (_SMALL, "float32", False),
    ],
)
def test_its_decisions_are_legal(device: str, dtype: str, some_last: bool) -> None:
    caps = DEVICES[device]
    b = Builder(caps)
    x = conv(b, conv(b, conv(b, image(2, 3, 8, 8, dtype=dtype), size=3), group=16, size=3), 12)
    max_pool(b, conv(b, x, 16), a=PoolAttributes(kernel_shape=[2, 2]))
    reduce_axes(b, "mean", conv(b, image(2, 16, 8, 8, dtype=dtype)), [2, 3], keepdims=True)
    convolution(
        b, image(2, 16, 8, dtype=dtype), b.constant(np.ones((16, 16, 1), DTYPES[dtype].numpy)), ConvAttributes()
    )
    assert {p.layout for p in problems(b.ops, ConvProblem)} == {""}
    ops = lay_out(b.ops, caps)
    for op in ops:
        if isinstance(op, KernelOp):
            assert choose(op.problem, caps).candidate
    layouts = [p.layout for p in problems(ops, ConvProblem)]
    assert all(layouts) and (NHWC in layouts) == some_last
    assert layouts[-1] == (NHWC if some_last else NCHW), "one spatial axis"


def test_the_operations_that_it_is_given_stay_as_they_are() -> None:
    b = Builder(GPU)
    b.pointwise("add", conv(b, image(1, 16, 4, 4)), 1.0)
    before = [(op.problem, *reads(op)) if isinstance(op, KernelOp) else (op.expr, op.out) for op in b.ops]
    assert len(lay_out(b.ops, GPU)) == len(b.ops) + 1
    after = [(op.problem, *reads(op)) if isinstance(op, KernelOp) else (op.expr, op.out) for op in b.ops]
    assert before == after


def test_convolutions_share_the_copy_of_their_image() -> None:
    b = Builder(GPU)
    x = image(1, 16, 4, 4)
    turned = image(2, 4, 4, 16).transpose((0, 3, 1, 2))  # lowering makes a dense copy for each: none is read
    for source in (x, x, turned, turned):
        conv(b, source, size=3)
    ops = lay_out(b.ops, GPU)
    read = [op.inputs[0].storage for op in ops if isinstance(op, KernelOp)]
    assert read[0] is read[1] is not read[2] is read[3]
    assert [op.inputs for op in ops if isinstance(op, Pointwise) and op.out.storage is read[2]] == [
        [turned.transpose((0, 2, 3, 1))]
    ]


def test_a_copy_in_another_shape_or_type_is_an_image_of_its_own() -> None:
    b = Builder(GPU)
    copied = b.contiguous(image(2, 4, 4, 16).transpose((0, 3, 1, 2)))
    conv(b, b.reshape(copied, (2, 32, 2, 4)))
    single = b.store(ex.leaf(conv(b, copied)), DTYPES["float32"])
    reduce_axes(b, "sum", single, [1], keepdims=True)
    ops = lay_out(b.ops, GPU)
    assert [p.c for p in problems(ops, ConvProblem)] == [32, 16]
    [reduction] = [op for op in ops if isinstance(op, KernelOp) and isinstance(op.problem, ReduceProblem)]
    assert reduction.inputs == [single]


def test_kernels_that_want_channels_second_share_a_copy() -> None:
    b = Builder(GPU)
    y = conv(b, image(1, 16, 4, 4))
    for axes in ([1], [3]):
        reduce_axes(b, "sum", y, axes, keepdims=True)
    ops = lay_out(b.ops, GPU)
    assert copies(ops) == 2, "to the convolution and from it"
    assert [op.inputs[0] for op in ops if isinstance(op, KernelOp)][1] == y


def test_all_elements_are_reduced_in_any_order() -> None:
    b = Builder(GPU)
    y = conv(b, image(2, 16, 4, 4))
    reduce_axes(b, "max", y, [0, 1, 2, 3], keepdims=False)
    ops = lay_out(b.ops, GPU)
    assert copies(ops) == 1, "to the convolution"
    [*_, reduction] = [op for op in ops if isinstance(op, KernelOp)]
    assert reduction.inputs[0].shape == (2, 4, 4, 16)


def test_results_of_channels_last_operands_are_channels_last() -> None:
    b = Builder(GPU)
    y = conv(b, image(2, 16, 4, 4))
    total = b.pointwise("add", b.pointwise("add", y, 1.0), y)
    concat(b, total, total, axis=1)  # its parts are no images of their own
    conv(b, max_pool(b, total, a=PoolAttributes(kernel_shape=[2, 2]))[0], group=16, size=3)
    reduce_axes(b, "mean", total, [2, 3], keepdims=True)
    ops = lay_out(b.ops, GPU)
    assert copies(ops) == 1 + 2
    adds = [op for op in ops if isinstance(op, Pointwise) and op.expr.op == "add"]
    assert [op.out.shape for op in adds] == [(2, 4, 4, 16)] * 2
    assert [p.channels_last for p in problems(ops, PoolProblem)] == [True]
    assert [(p.outer, p.axis, p.inner) for p in problems(ops, ReduceProblem)] == [(2, 16, 16)]
    [*_, depthwise] = problems(ops, ConvProblem)
    assert choose(depthwise, GPU).candidate.name == "depthwise, channels last"


def test_a_product_reads_pixels_where_they_lie() -> None:
    b = Builder(GPU)
    y = conv(b, image(2, 16, 4, 4))
    tokens = b.reshape(y, (2, 16, 16)).transpose((0, 2, 1))
    matrix_product(b, tokens, b.constant(np.ones((16, 8), np.float16)))
    b.pointwise("add", b.contiguous(tokens), 1.0)
    assert problems(b.ops, MatMulProblem)[0].a_strides == (0, 256, 1, 16)
    ops = lay_out(b.ops, GPU)
    [product] = [op for op in ops if isinstance(op, KernelOp) and isinstance(op.problem, MatMulProblem)]
    assert isinstance(product.problem, MatMulProblem)
    assert product.problem.a_strides == (0, 256, 16, 1)
    assert copies(ops) == 1, "tokens are dense now"


# ---- the same results


def run(ops: Sequence[Op], x: Tensor, values: np.ndarray) -> dict[Storage, np.ndarray]:
    """What the operations leave in each storage."""
    memory = {x.storage: values}

    def at(view: Tensor) -> np.ndarray:
        if view.storage.weight is not None:
            memory[view.storage] = view.storage.weight.array().reshape(-1).astype(np.float64)
        found: np.ndarray = memory[view.storage][places(view)]
        return found

    def value(expr: ex.Expr) -> np.ndarray | float:
        if isinstance(expr, ex.Leaf):
            assert expr.tensor is not None
            return at(expr.tensor)
        if isinstance(expr, ex.Const):
            return expr.value
        assert expr.op == "add", expr.op
        return value(expr.args[0]) + value(expr.args[1])

    def put(view: Tensor, result: np.ndarray | float) -> None:
        place = memory.setdefault(view.storage, np.full(view.storage.nbytes // view.dtype.itemsize, np.nan))
        place[places(view)] = result if np.isscalar(result) else np.asarray(result).reshape(view.shape)

    for op in ops:
        put(
            op.outputs[0], value(op.expr) if isinstance(op, Pointwise) else computed(op, [at(t) for t in op.inputs], at)
        )
    return memory


def computed(op: KernelOp, inputs: list[np.ndarray], at: Callable[[Tensor], np.ndarray]) -> np.ndarray:
    p = op.problem
    if isinstance(p, ConvProblem):  # 1x1
        x, w = inputs[0], inputs[1].reshape(p.oc, p.c)
        if p.layout == NHWC:
            return x.reshape(-1, p.c) @ w.T
        y = np.einsum("oc,ncp->nop", w, x.reshape(p.n, p.c, p.pixels))
        return y.transpose(0, 2, 1) if p.lies_last else y
    if isinstance(p, PoolProblem):  # 2x2
        x = inputs[0].transpose((0, 3, 1, 2)) if p.channels_last else inputs[0]
        y = np.max([x[:, :, i : x.shape[2] - 1 + i, j : x.shape[3] - 1 + j] for i in (0, 1) for j in (0, 1)], axis=0)
        return y.transpose((0, 2, 3, 1)) if p.channels_last else y
    if isinstance(p, ReduceProblem):
        return inputs[0].reshape(p.outer, p.axis, p.inner).sum(1)
    assert isinstance(p, MatMulProblem)
    needs = zip(op.inputs, p.needs(), strict=True)
    a, b = (at(Tensor(t.dtype, need.shape, t.storage, need.strides or (), t.offset)) for t, need in needs)
    return a @ b


@pytest.mark.parametrize("seed", range(160))
def test_random_operations_compute_the_same(seed: int) -> None:
    rng, b = np.random.default_rng(seed), Builder(GPU)
    spatial = [int(rng.choice([1, 2, 4])), int(rng.choice([1, 3, 4]))][: int(rng.integers(1, 3))]
    x = image(int(rng.choice([1, 2])), int(rng.choice([3, 8, 16])), *spatial)
    made = [x, conv(b, x)]
    for _ in range(8):
        y = made[int(rng.integers(max(len(made) - 3, 0), len(made)))]
        kind = rng.integers(9)
        if kind == 0 and y.rank in (3, 4):
            made.append(conv(b, y, int(rng.choice([8, 12, 16]))))
        elif kind == 1:
            made.append(b.pointwise("add", y, 1.0 if rng.random() < 0.5 else y))
        elif kind == 2 and y.rank == 4 and min(y.shape[2:]) > 1:
            made += max_pool(b, y, a=PoolAttributes(kernel_shape=[2, 2]))
        elif kind == 3:
            drawn = [[int(rng.integers(y.rank))], [*range(y.rank)], [*range(2, y.rank)]]
            axes = drawn[int(rng.integers(3 if y.rank in (3, 4) else 2))]
            made.append(reduce_axes(b, "sum", y, axes, keepdims=True))
        elif kind == 4:
            made.append(walk(y, rng))
        elif kind in (5, 6):  # a copy, of which more is read than the whole
            made.append(b.contiguous(walk(y, rng, 2)))
            part = made[-1].slice(0, 0, 1)
            made.append(conv(b, part, 8) if part.rank in (3, 4) else part)
        elif kind == 7:  # what is read before it is written again, and after
            whole = conv(b, y) if y.rank in (3, 4) and rng.random() < 0.5 else b.copy(y)
            part = whole.slice(0, 0, 1)
            made.append(b.copy(whole))
            read = [conv(b, part, 8), conv(b, made[-1], 8)] if y.rank in (3, 4) else []
            b.pointwise("add", part, 1.0, out=part)
            made += [
                whole,
                *read,
                *([conv(b, part, 8), conv(b, made[-1], 16), conv(b, whole)] if y.rank in (3, 4) else []),
            ]
        elif kind == 8 and y.rank > 1 and min(y.strides) >= 0:
            made.append(matrix_product(b, y, b.constant(np.ones((y.shape[-1], 8), np.float16))))
    results: list[Any] = []
    for tensor in made[1:]:
        results.append(Tensor.contiguous(HALF, tensor.shape, Storage(tensor.nbytes, port=len(results) + 1)))
        b.copy(tensor, out=results[-1])
    values = rng.integers(-4, 5, x.size).astype(np.float64)
    before, ops = run(b.ops, x, values), lay_out(b.ops, GPU)
    after = run(ops, x, values)
    assert len(problems(ops, ConvProblem)) == len(problems(b.ops, ConvProblem))
    for result in results:
        np.testing.assert_array_equal(after[result.storage], before[result.storage])
    assert all(t.strides == contiguous_strides(t.shape) for t in results)
