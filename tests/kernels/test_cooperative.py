"""Float16 products on cooperative matrices: selection on imagined devices, results where a device can."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy as np
import pytest

from gpu_shared.capabilities import FEATURE_NAMES, DeviceCapabilities
from tests.devices import GPU, HALF
from tests.kernels.harness import Harness, NumpyWorkspace, Tensor
from vkep.dtypes import DTYPES
from vkep.ir import algebra as fn
from vkep.ir import expr as ex
from vkep.ir import tensor as ir
from vkep.ir.ops import KernelOp
from vkep.kernels.matmul.cooperative import matmul_cooperative
from vkep.kernels.matmul.cooperative_tiles import (
    CONV_LAST_TILES,
    MATMUL_TILES,
    CooperativeTile,
    cooperative_tiling,
    float16_shape,
    no_cooperative_tile,
    tiling_of,
)
from vkep.kernels.matmul.matmul import MatMulProblem
from vkep.kernels.select import Emission, emit
from vkep.passes.epilogues import epilogue_of


class PureTarget(NumpyWorkspace):
    """For dispatches that do not run: operands are no arrays."""

    def prepack(self, weight: Any, transform: Any, tag: str) -> Any:
        return tag

    def scratch(self, dtype: str, shape: tuple[int, ...]) -> Any:
        return shape


def emission(caps: DeviceCapabilities, **operands: Tensor) -> Emission:
    return Emission(NumpyWorkspace(caps), operands)


def product(m: int, n: int, k: int, **changes: Any) -> MatMulProblem:
    return MatMulProblem(m, n, k, (0, k, 1), (0, n, 1), **{"dtype": "float16", "alignment": 16, **changes})


def sources(problem: MatMulProblem, caps: DeviceCapabilities) -> list[str]:
    return [c.variant.source for c in emit(problem, PureTarget(caps), ["a", "b"], ["y"])]


class TestSelection:
    def test_the_largest_float32_accumulating_shape_is_taken(self) -> None:
        small = dataclasses.replace(HALF, n=8)
        half_sums = dataclasses.replace(HALF, c_type="float16", result_type="float16")
        wide_scope = dataclasses.replace(HALF, m=64, scope="workgroup")
        caps = dataclasses.replace(GPU, cooperative_matrix_shapes=(half_sums, small, wide_scope, HALF))
        assert float16_shape(caps) == HALF

    @pytest.mark.parametrize(
        "changes",
        [
            {"cooperative_matrix_shapes": ()},
            {"features": FEATURE_NAMES - {"cooperative_matrix"}},
            {"features": FEATURE_NAMES - {"compute_full_subgroups"}},
        ],
    )
    def test_other_devices_take_the_tiled_kernel(self, changes: dict[str, Any]) -> None:
        caps = dataclasses.replace(GPU, **changes)
        assert sources(product(256, 256, 256), caps)[0] == "matmul_tiled.comp"

    def test_a_tile_fits_the_shared_memory(self) -> None:
        small = dataclasses.replace(GPU, max_shared_memory_bytes=8800)
        assert cooperative_tiling(256, 256, 256, 1, small, False).tile.shared_bytes(HALF, False) <= 8800
        assert no_cooperative_tile(small, False) == ""
        none = dataclasses.replace(GPU, max_shared_memory_bytes=5000)
        assert "no tile" in no_cooperative_tile(none, False)

    def test_float16_products_take_it_and_others_do_not(self) -> None:
        assert sources(product(256, 256, 256), GPU)[0] == "matmul_coop.comp"
        assert sources(product(256, 256, 256, dtype="float32"), GPU)[0] == "matmul_tiled.comp"
        assert sources(product(4, 256, 256), GPU) == ["matmul_rows.comp"]

    @pytest.mark.parametrize("tiles", [MATMUL_TILES, CONV_LAST_TILES])
    @pytest.mark.parametrize("along_k", [False, True])
    def test_every_tile_runs_on_a_large_gpu(self, tiles: Any, along_k: bool) -> None:
        assert all(tile.runs_on(GPU, HALF, along_k) for tile in tiles)

    def test_tiles_grow_with_the_product_and_long_small_ones_are_split(self) -> None:
        tilings = [cooperative_tiling(n, n, n, 1, GPU, False) for n in (64, 512, 4096)]
        areas = [t.tile.m * t.tile.n for t in tilings]
        assert areas == sorted(areas) and areas[-1] == 128 * 128
        deep = cooperative_tiling(512, 49, 2048, 1, GPU, True)
        assert deep.splits > 1 and deep.split_k % deep.tile.k == 0
        assert deep.splits * deep.split_k >= 2048 > (deep.splits - 1) * deep.split_k
        assert cooperative_tiling(4096, 256, 256, 1, GPU, False).splits == 1

    def test_the_number_of_cores_decides_which_tiles_fill_the_last_wave(self) -> None:
        rows = {
            units: cooperative_tiling(25088, 128, 512, 1, dataclasses.replace(GPU, compute_units=units), False)
            for units in (98, 132)
        }  # 196 tiles of 128 rows, 262 of 96: two on every core of either
        assert [t.tile.m for t in rows.values()] == [128, 96]
        splits = cooperative_tiling(1568, 512, 4608, 1, GPU, False, tiles=CONV_LAST_TILES)
        assert (splits.tile.m, splits.splits) == (128, 5)  # 260 workgroups for 264 places

    def test_devices_that_do_not_tell_their_cores_are_taken_for_their_kind(self) -> None:
        large, small = (dataclasses.replace(GPU, device_type=t, compute_units=None) for t in ("discrete", "integrated"))
        told = dataclasses.replace(GPU, compute_units=128)
        problem = (784, 128, 4608, 1)
        chosen = [cooperative_tiling(*problem, caps, False) for caps in (large, told, small)]
        assert chosen[0] == chosen[1] != chosen[2]

    def test_halved_stages_are_of_64_and_whole_pairs_of_loads(self) -> None:
        tile = next(t for t in MATMUL_TILES if t.parts == 2)
        assert tile.runs_on(GPU, HALF, True)
        assert not dataclasses.replace(tile, k=32).runs_on(GPU, HALF, True)
        assert not dataclasses.replace(tile, prefetch=2).runs_on(GPU, HALF, True)
        assert not dataclasses.replace(tile, m=16, n=64, sub_m=16, sub_n=16).runs_on(GPU, HALF, True)
        assert tile.shared_bytes(HALF, True) == 16 * 2 * 128 * 5

    def test_a_core_has_room_for_what_its_registers_and_memory_hold(self) -> None:
        large, small = CooperativeTile(128, 128, 32, 64, 64), CooperativeTile(32, 64, 64, 16, 32)
        assert large.workgroups_a_core(GPU, HALF, False) == 2
        assert small.workgroups_a_core(GPU, HALF, False) == 3
        assert small.workgroups_a_core(dataclasses.replace(GPU, max_shared_memory_bytes=16384), HALF, False) == 1

    @pytest.mark.parametrize(
        ("n", "alignment", "expected"), [(64, 16, (1, 1)), (60, 16, (2, 0)), (63, 16, (0, 0)), (64, 2, (0, 0))]
    )
    def test_vectors_need_aligned_groups(self, n: int, alignment: int, expected: tuple[int, int]) -> None:
        e = Emission(PureTarget(GPU), {"a": "a", "b": "b", "y": "y"})
        calls = matmul_cooperative(product(64, n, 64, alignment=alignment), e)
        assert (calls[0].spec["B_VECTOR"], calls[0].spec["STORE_VECTOR"]) == expected


@pytest.fixture
def matrices(gpu: Harness) -> DeviceCapabilities:
    if float16_shape(gpu.caps) is None:
        pytest.skip(f"{gpu.caps.name} lists no cooperative matrix of float16 with float32 sums")
    return gpu.caps


def relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(found.astype(np.float64) - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("size", [(64, 64, 64), (200, 136, 72), (77, 50, 33), (49, 512, 2048), (130, 60, 520)])
@pytest.mark.parametrize("transposed", [(False, False), (False, True), (True, False)])
@pytest.mark.parametrize("wide", [False, True])
def test_products(
    size: tuple[int, int, int],
    transposed: tuple[bool, bool],
    wide: bool,
    gpu: Harness,
    matrices: DeviceCapabilities,
    rng: np.random.Generator,
) -> None:
    m, n, k = size
    a, b = rng.standard_normal((m, k)).astype(np.float16), rng.standard_normal((k, n)).astype(np.float16)
    y = Tensor.empty((m, n), np.float32 if wide else np.float16)
    a_strides = (0, 1, m) if transposed[0] else (0, k, 1)
    b_strides = (0, 1, k) if transposed[1] else (0, n, 1)
    problem = MatMulProblem(m, n, k, a_strides, b_strides, dtype="float16", alignment=16, to="float32" if wide else "")
    stored = [Tensor(np.ascontiguousarray(t.T if flip else t)) for t, flip in zip((a, b), transposed, strict=True)]
    gpu.run(matmul_cooperative(problem, emission(matrices, a=stored[0], b=stored[1], y=y)))
    assert relative_error(y.array, a.astype(np.float64) @ b.astype(np.float64)) < (1e-6 if wide else 1e-3)


#: more matrices than this a subgroup take a driver that compiles for the CPU minutes
_MOST_ON_A_CPU = 16


@pytest.mark.parametrize("tile", [*MATMUL_TILES, CooperativeTile(32, 32, 64, 16, 16, parts=2)], ids=str)
@pytest.mark.parametrize(("k", "splits", "along_k"), [(448, 1, False), (448, 2, True), (64, 1, True), (104, 1, False)])
def test_every_tile(
    tile: CooperativeTile,
    k: int,
    splits: int,
    along_k: bool,
    gpu: Harness,
    matrices: DeviceCapabilities,
    rng: np.random.Generator,
) -> None:
    shape = float16_shape(matrices)
    assert shape is not None
    if not tile.runs_on(matrices, shape, along_k):
        pytest.skip("the tile does not fit this device")
    if matrices.device_type == "cpu" and tile.sub_m * tile.sub_n > _MOST_ON_A_CPU * shape.m * shape.n:
        pytest.skip("the driver compiles this tile for minutes")
    m, n = 296, 264
    a, b = rng.standard_normal((m, k)).astype(np.float16), rng.standard_normal((k, n)).astype(np.float16)
    y = Tensor.empty((m, n), np.float16)
    problem = MatMulProblem(m, n, k, (0, k, 1), (0, 1, k) if along_k else (0, n, 1), dtype="float16", alignment=16)
    stored = Tensor(np.ascontiguousarray(b.T) if along_k else b)
    tiling = tiling_of(tile, shape, k, splits)
    gpu.run(matmul_cooperative(problem, emission(matrices, a=Tensor(a), b=stored, y=y), tiling))
    assert relative_error(y.array, a.astype(np.float64) @ b.astype(np.float64)) < 1e-3


def _with_epilogue(n: int, step: int) -> tuple[KernelOp, dict[str, ir.Tensor]]:
    """A product of 77 by n, whose epilogue adds numbers of columns, rows and single results, which begin at element ``step``."""
    problem = product(77, n, 64)
    y = ir.Tensor.contiguous(DTYPES["float16"], (1, 1, 77, n))
    kinds = {
        "columns": ("float32", (1, 1, 1, n)),
        "halves": ("float16", (1, 1, 77, n)),
        "codes": ("int8", (1, 1, 77, n)),
    }
    kinds["rows"] = ("float32", (1, 1, 77, 1))
    stored = {
        name: ir.Tensor.contiguous(DTYPES[of], (step + int(np.prod(shape)),), label=name)
        for name, (of, shape) in kinds.items()
    }
    value: ex.Expr = ex.leaf(y)
    for name, (_, shape) in kinds.items():
        view = stored[name].slice(0, step, int(np.prod(shape))).reshape(shape)
        assert view is not None
        value = ex.Expr("float", "add", (value, fn.cast(ex.leaf(view.expand(y.shape)), "float")))
    operands = [ir.Tensor.contiguous(DTYPES["float16"], shape) for shape in ((77, 64), (64, n))]
    return KernelOp(problem, operands, [y], epilogue=value, epilogue_of=(y,)), stored


@pytest.mark.parametrize(
    ("n", "step", "vectors"),
    [(136, 0, ["E4_float32", "E4_float16", "E4_int8"]), (136, 4, ["E4_float32"]), (136, 3, [])],
)
def test_an_epilogue_reads_what_lies_in_vectors(n: int, step: int, vectors: list[str]) -> None:
    epilogue = epilogue_of(_with_epilogue(n, step)[0])
    assert re.findall(r"= (E4_\w+)\(", epilogue.eight_reads) == vectors
    assert bool(epilogue.eight_body) == bool(vectors)


@pytest.mark.parametrize(("n", "step"), [(136, 0), (136, 4), (136, 3), (140, 0)])
def test_an_epilogue_of_vectors(
    n: int, step: int, gpu: Harness, matrices: DeviceCapabilities, rng: np.random.Generator
) -> None:
    op, stored = _with_epilogue(n, step)
    arrays = {name: rng.integers(-9, 9, t.shape).astype(t.dtype.numpy) for name, t in stored.items()}
    epilogue = epilogue_of(op)
    places = {t.storage: Tensor(arrays[name][step:], step * t.dtype.itemsize) for name, t in stored.items()}
    operands = tuple((operand, places[t.storage]) for operand, t in epilogue.operands)
    a, b = rng.standard_normal((77, 64)).astype(np.float16), rng.standard_normal((64, n)).astype(np.float16)
    y = Tensor.empty((77, n), np.float16)
    shape = float16_shape(matrices)
    assert shape is not None
    e = dataclasses.replace(
        emission(matrices, a=Tensor(a), b=Tensor(b), y=y), epilogue=dataclasses.replace(epilogue, operands=operands)
    )
    gpu.run(matmul_cooperative(product(77, n, 64), e, tiling_of(CooperativeTile(32, 32, 64, 16, 16), shape, 64, 1)))
    expected = a.astype(np.float64) @ b.astype(np.float64)
    for name, more in arrays.items():
        expected += more[step:].astype(np.float64).reshape({"columns": (1, n), "rows": (77, 1)}.get(name, (77, n)))
    assert relative_error(y.array, expected) < 1e-3


def test_more_tiles_than_workgroups_along_an_axis(
    gpu: Harness, matrices: DeviceCapabilities, rng: np.random.Generator
) -> None:
    shape = float16_shape(matrices)
    assert shape is not None
    m, n, k = 200, 100, 96
    a, b = rng.standard_normal((m, k)).astype(np.float16), rng.standard_normal((k, n)).astype(np.float16)
    y = Tensor.empty((m, n), np.float16)
    narrow = dataclasses.replace(matrices, max_workgroup_count=(5, 65535, 65535))
    tiling = tiling_of(CooperativeTile(32, 32, 64, 16, 16), shape, k, 1)
    problem = MatMulProblem(m, n, k, (0, k, 1), (0, n, 1), dtype="float16", alignment=16)
    calls = matmul_cooperative(problem, emission(narrow, a=Tensor(a), b=Tensor(b), y=y), tiling)
    assert calls[0].grid[:2] == (5, 6)
    gpu.run(calls)
    assert relative_error(y.array, a.astype(np.float64) @ b.astype(np.float64)) < 1e-3
