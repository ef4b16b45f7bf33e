"""What is claimed is emitted: random products and convolutions, on imagined devices, wherever their operands lie."""

from __future__ import annotations

import dataclasses
import random
import re
from pathlib import Path
from typing import Any

import pytest

from gpu_shared.capabilities import DeviceCapabilities
from tests.kernels.harness import NumpyWorkspace
from tools.plan_devices import DEVICES
from vkep.dtypes import DTYPES
from vkep.errors import Decline
from vkep.ir.ops import BaseTarget
from vkep.ir.tensor import Storage, Tensor, contiguous_strides
from vkep.kernels.conv.problem import NCHW, ConvProblem
from vkep.kernels.matmul.generic import GenericProductProblem
from vkep.kernels.matmul.matmul import MatMulProblem
from vkep.kernels.matmul.nbits_problem import MatMulNBitsProblem
from vkep.kernels.problem import Need, Problem, extent
from vkep.kernels.select import bind, choose, emit, supports

CAPS = {
    **DEVICES,
    "generic": DeviceCapabilities.generic(),
    "a GPU with little": dataclasses.replace(
        DEVICES["small gpu"],
        max_workgroup_invocations=128,
        max_workgroup_size=(128, 128, 64),
        max_shared_memory_bytes=16384,
    ),
    "a GPU with almost nothing": dataclasses.replace(
        DEVICES["small gpu"],
        max_workgroup_invocations=64,
        max_workgroup_size=(64, 64, 64),
        max_shared_memory_bytes=4096,
    ),
}
SHADERS = Path(__file__).parents[2] / "shaders"


class Target(BaseTarget):
    def prepack(self, weight: Tensor, transform: Any, tag: str) -> Tensor:
        """A weight of whatever size: what is packed is not looked at here."""
        return Tensor.contiguous(weight.dtype, (1 << 31,))


def product(rng: random.Random) -> MatMulProblem:
    def size() -> int:
        return rng.choice([1, 2, 5, 8, 16, 49, 64, 100, 257, 4096])

    m, n, k = size(), size(), rng.choice([0, size(), size(), 2048])
    batch = rng.choice([(1, 1), (1, 1), (2, 3), (1, 70000), (70000, 2), (1, 1 << 25)])
    if batch[1] > 3:
        m, n, k = (rng.choice([1, 2, 5, 16]) for _ in range(3))
    strides = []
    for rows, columns in ((m, k), (k, n)):
        inner = rng.choice([(columns, 1), (1, rows), (columns + rng.choice([0, 3, 8]), 1)])
        one = extent((rows, columns), inner)
        strides.append((*rng.choice([(0, 0), (batch[1] * one, one)]), *inner))
    a, b = strides
    return MatMulProblem(
        m, n, k, a, b, batch=batch, dtype=rng.choice(["float32", "float16"]), b_constant=rng.random() < 0.5
    )


def convolution(rng: random.Random) -> ConvProblem:
    if rng.random() < 0.5:  # of the kinds that models have
        c, oc, size, kernel = (
            rng.choice([3, 16, 32, 64]),
            rng.choice([16, 64]),
            rng.choice([14, 28, 57]),
            rng.choice([1, 3]),
        )
        groups = rng.choice([1, 1, 1, c])
        return ConvProblem(
            *(rng.choice([1, 2, 64]), c, size, size, c if groups > 1 else oc, kernel, kernel),
            stride=rng.choice([(1, 1), (1, 1), (2, 2)]),
            pads=(kernel // 2,) * 4,
            groups=groups,
            dtype=rng.choice(["float32", "float16"]),
            w_constant=rng.random() < 0.9,
            x_last=rng.random() < 0.5,
            layout=rng.choice(["", "", NCHW]),
        )
    groups = rng.choice([1, 1, 1, 2, 8])
    c, oc = (groups * rng.choice([1, 3, 4, 8, 64]) for _ in range(2))
    c = rng.choice([c, c, groups])
    kh, kw = (rng.choice([1, 3, 3, 5, 7]) for _ in range(2))
    h, w = (rng.choice([0, 1, 7, 8, 14, 33, 224, 4096, 70000]) for _ in range(2))
    n = rng.choice([1, 2, 70000]) if h * w < 100 else 1
    return ConvProblem(
        *(n, c, h, w, oc, kh, kw),
        stride=(rng.choice([1, 1, 2]), rng.choice([1, 1, 2, 4])),
        dilation=(rng.choice([1, 1, 2]), 1),
        pads=(rng.choice([kh // 2, 12]), rng.choice([kw // 2, 0, 7]), 12, kw),
        groups=groups,
        dtype=rng.choice(["float32", "float16"]),
        w_constant=rng.random() < 0.7,
        x_last=rng.random() < 0.5,
    )


def generic(rng: random.Random) -> GenericProductProblem:
    like = product(rng)
    types = rng.choice([("int8", "uint8", "int32"), ("float64",) * 3, ("bfloat16",) * 3, ("uint64",) * 3])
    return GenericProductProblem(like.batches, like.m, like.n, like.k, like.strides("a"), like.strides("b"), types)


def few_bits(rng: random.Random) -> MatMulNBitsProblem:
    sizes = (rng.choice([1, 3, 8, 70000]), rng.choice([1, 70000]), rng.choice([1, 16, 300]))
    return MatMulNBitsProblem(
        *sizes, rng.choice([2, 3, 4, 8]), rng.choice([8, 16, 32]), "float16", rng.choice(["", "packed", "float16"])
    )


def lying(need: Need, offset: int) -> Tensor:
    """An operand of the smallest storage that a need allows, so many elements from its start."""
    dtype = DTYPES[need.dtype]
    storage = Storage((offset + need.extent) * dtype.itemsize)
    return Tensor(dtype, need.shape, storage, need.strides or contiguous_strides(need.shape), offset)


def part(need: Need, offset: int, rng: random.Random) -> Tensor:
    """A view of a larger tensor for a result, as passes may choose it: a part of a concatenation along any axis, its axes in any
    order. The storage ends with the view."""
    dtype, order = DTYPES[need.dtype], rng.sample(range(len(need.shape)), len(need.shape))
    order = order if rng.random() < 0.2 else sorted(order)
    whole = [need.shape[axis] for axis in order]
    whole[rng.randrange(len(whole))] += rng.choice([0, 1, 7, 8])
    strides = dict(zip(order, contiguous_strides(tuple(whole)), strict=True))
    steps = tuple(strides[axis] for axis in range(len(need.shape)))
    return Tensor(dtype, need.shape, Storage((offset + extent(need.shape, steps)) * dtype.itemsize), steps, offset)


@pytest.mark.parametrize("make", [product, convolution, generic, few_bits])
@pytest.mark.parametrize("device", CAPS)
def test_claimed_problems_are_emitted_at_every_alignment(device: str, make: Any) -> None:
    """No candidate that takes a problem refuses it later, its grid is one that the device runs, and its lanes stay inside."""
    caps, rng = CAPS[device], random.Random(f"{device} {make.__name__}")
    taken = parts = 0
    for _ in range(150):
        problem: Problem = make(rng)
        if any(need.extent == 0 for need in problem.makes()):
            continue
        try:
            choice = choose(problem, caps)
        except Decline:
            continue
        if isinstance(problem, ConvProblem):
            problem = dataclasses.replace(problem, layout=choice.candidate.layout)
        for alignment in (1, 2, 4, 8, 16):
            inputs = [
                lying(need, alignment // DTYPES[need.dtype].itemsize if problem.can_load(need.name, alignment) else 0)
                for need in problem.needs()
            ]
            [need] = problem.makes()
            y = part(need, alignment // DTYPES[need.dtype].itemsize, rng)
            stored = problem.stored_in(y)
            if stored is None or not supports(stored, caps):
                stored, y = problem, lying(need, alignment // DTYPES[need.dtype].itemsize)
            parts += not y.is_contiguous
            placed = stored.placed(bind(stored, inputs, [y]))
            calls = emit(placed, Target(caps), inputs, [y])
            assert calls and calls[-1].candidate
            written: set[int] = set()
            for call in calls:
                assert all(g <= most for g, most in zip(call.grid, caps.max_workgroup_count, strict=True)), problem
                for operand, tensor in call.operands:
                    if tensor is None:
                        continue
                    start, reach = tensor.offset * tensor.dtype.itemsize, call.reaches()[operand.name]
                    assert start + reach <= tensor.storage.nbytes, (
                        f"{call.kernel.source} touches {reach} bytes of {operand.name}: {placed}"
                    )
                    written |= {start + reach} if tensor is y else set()
            assert max(written) == y.storage.nbytes, f"{choice.candidate.name} stores another view than {y}: {placed}"
        taken += 1
    assert parts or make in (generic, few_bits)
    assert taken >= 20 or (device == "a GPU with almost nothing" and make is product)  # which needs tiles


def test_products_that_no_device_takes_say_why() -> None:
    with pytest.raises(Decline, match="no generic kernel for bfloat16"):
        choose(GenericProductProblem((1, 1), 1, 1, 1, (0, 0, 1, 1), (0, 0, 1, 1), ("bfloat16",) * 3), CAPS["cpu"])


def test_folded_grids_have_room_for_every_workgroup() -> None:
    problem = MatMulProblem(4, 2, 3, (12, 3, 1), (6, 2, 1), batch=70000)
    (call,) = emit(problem, NumpyWorkspace(CAPS["generic"]), ["a", "b"], ["y"])
    assert call.groups == (1, 1, 70000) and call.grid == (35000, 2, 1)
    assert call.folded((65535, 65535, 65535)) is call


def test_kernels_ask_workgroup_glsl_where_they_are() -> None:
    """What reads the grid itself would be wrong where the grid is folded."""
    own = re.compile(r"gl_WorkGroupID|gl_NumWorkGroups|gl_GlobalInvocationID")
    files = {path.name for path in SHADERS.iterdir() if own.search(path.read_text(encoding="utf-8"))}
    assert files == {"workgroup.glsl"}
