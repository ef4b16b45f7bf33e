"""Matrix products against numpy in float64, in both kernel families, and the choice of tilings without a device."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gpu_shared.capabilities import DeviceCapabilities
from tests.kernels.harness import Harness, NumpyWorkspace, Tensor
from vkep.errors import Decline
from vkep.kernels.epilogue import Epilogue
from vkep.kernels.kernel import KernelCall
from vkep.kernels.matmul.matmul import MatMulProblem, pack_panels
from vkep.kernels.matmul.tiles import SHARED_TILES, is_cpu_driver, shared_tiling, subgroup_tile
from vkep.kernels.select import choose, emit
from vkep.shaders.interface import Operand

CPU = DeviceCapabilities(
    "imagined CPU driver", device_type="cpu", subgroup_size=8, features=frozenset({"subgroup_ballot"})
)
GPU = DeviceCapabilities("imagined GPU", device_type="discrete", max_shared_memory_bytes=49152)
TOLERANCE = {"float32": 2e-6, "float16": 1e-3}


@pytest.fixture(params=["cpu", "discrete"])
def family(request: pytest.FixtureRequest, gpu: Harness) -> DeviceCapabilities:
    return dataclasses.replace(gpu.caps, device_type=request.param)


@dataclasses.dataclass
class Case:
    """Random operands of a problem; ``a_t`` and ``b_t`` store an operand transposed, ``b_shared`` broadcasts one b."""

    m: int
    n: int
    k: int
    batch: tuple[int, int] = (1, 1)
    a_t: bool = False
    b_t: bool = False
    b_shared: bool = False
    b_constant: bool = False
    dtype: str = "float32"
    alpha: float = 1.0
    y_gap: int = 0  # elements between the rows of y
    alignment: int = 1
    calls: list[KernelCall] = dataclasses.field(default_factory=list, repr=False)

    def run(
        self,
        gpu: Harness,
        caps: DeviceCapabilities,
        rng: np.random.Generator,
        epilogue: Epilogue | None = None,
        after: Callable[[np.ndarray], np.ndarray] = lambda y: y,
        **run_options: bool,
    ) -> int:
        """Checks the result against numpy; returns the number of dispatches."""
        m, n, k, (outer, inner) = self.m, self.n, self.k, self.batch
        a = rng.standard_normal((outer, inner, m, k)).astype(self.dtype)
        b = rng.standard_normal((1, 1, k, n) if self.b_shared else (outer, inner, k, n)).astype(self.dtype)
        stored_a, stored_b = (
            np.ascontiguousarray(v.swapaxes(2, 3) if t else v) for v, t in ((a, self.a_t), (b, self.b_t))
        )
        pitch = n + self.y_gap
        problem = MatMulProblem(
            m,
            n,
            k,
            a_strides=(inner * m * k, m * k, *((1, m) if self.a_t else (k, 1))),
            b_strides=(*((0, 0) if self.b_shared else (inner * k * n, k * n)), *((1, k) if self.b_t else (n, 1))),
            y_strides=(inner * m * pitch, m * pitch, pitch, 1) if self.y_gap else None,
            batch=self.batch,
            dtype=self.dtype,
            b_constant=self.b_constant,
            alpha=self.alpha,
            alignment=self.alignment,
        )
        y = Tensor.empty((outer, inner, m, pitch), self.dtype)
        untouched = y.array[..., n:].copy()
        calls = emit(problem, NumpyWorkspace(caps), [Tensor(stored_a), Tensor(stored_b)], [y], epilogue)
        self.calls = calls
        gpu.run(calls, **run_options)
        expected = after(self.alpha * (a.astype(np.float64) @ b.astype(np.float64)))
        error = np.abs(y.array[..., :n].astype(np.float64) - expected).max() / max(np.abs(expected).max(), 1e-30)
        assert error < TOLERANCE[self.dtype], f"relative error {error:.2g}"
        assert y.array[..., n:].tobytes() == untouched.tobytes(), "wrote between the rows of y"
        return len(calls)


@pytest.mark.parametrize("size", [(1, 1, 1), (5, 7, 9), (33, 65, 17), (3, 130, 64), (130, 3, 40), (70, 70, 5)])
@pytest.mark.parametrize("transposed", [(False, False), (False, True), (True, False), (True, True)])
def test_odd_sizes_and_transposes(
    size: tuple[int, int, int],
    transposed: tuple[bool, bool],
    gpu: Harness,
    family: DeviceCapabilities,
    rng: np.random.Generator,
) -> None:
    Case(*size, a_t=transposed[0], b_t=transposed[1]).run(gpu, family, rng)


@pytest.mark.parametrize(
    "case",
    [
        Case(20, 30, 40, batch=(2, 3)),
        Case(20, 30, 40, batch=(2, 3), b_t=True, b_shared=True),
        Case(20, 30, 40, batch=(1, 4), y_gap=5, alpha=0.125),
        Case(33, 65, 18, dtype="float16", batch=(1, 2)),
        Case(40, 50, 60, b_constant=True),
        Case(40, 50, 60, b_constant=True, b_t=True, dtype="float16"),
        Case(40, 50, 60, b_constant=True, b_shared=True, batch=(2, 2)),
        Case(128, 128, 64, b_t=True, batch=(1, 4)),
    ],
    ids=str,
)
def test_batches_slices_types_and_constants(
    case: Case, gpu: Harness, family: DeviceCapabilities, rng: np.random.Generator
) -> None:
    case.run(gpu, family, rng)


@pytest.mark.parametrize(
    ("case", "rows", "columns"),
    [
        (Case(33, 70, 20, alignment=8), 1, 1),
        (Case(33, 70, 21, alignment=8), 0, 1),
        (Case(33, 71, 22, alignment=8), 1, 0),
        (Case(33, 70, 20, b_t=True, alignment=8), 1, 2),
        (Case(33, 71, 22, b_t=True, alignment=16), 1, 2),
        (Case(20, 30, 40, a_t=True, alignment=8, y_gap=3), 0, 1),
        (Case(40, 130, 60, batch=(1, 2), b_constant=True, b_shared=True, alignment=8), 1, 1),
        (Case(40, 131, 62, b_constant=True, b_shared=True, alignment=8), 1, 0),
        (Case(40, 130, 63, b_constant=True, b_shared=True), 0, 1),
        (Case(17, 10, 2, alignment=8), 1, 1),
        (Case(20, 3, 40, b_t=True, alignment=8), 1, 2),
        (Case(20, 30, 40, alignment=4), 0, 0),
        (Case(20, 30, 40, alignment=8, dtype="float16"), 0, 0),
    ],
    ids=str,
)
def test_neighbours_in_pairs_on_a_cpu_driver(
    case: Case, rows: int, columns: int, gpu: Harness, rng: np.random.Generator
) -> None:
    if not is_cpu_driver(gpu.caps):
        pytest.skip(f"subgroups of {gpu.caps.name} are no vectors of a CPU")
    for features in (gpu.caps.features, gpu.caps.features - {"int64"}):
        case.run(gpu, dataclasses.replace(gpu.caps, device_type="cpu", features=features), rng)
        [call] = case.calls
        expected = (rows, columns) if "int64" in features else (0, 0)
        assert (call.spec.get("ROW_PAIRS", 0), call.spec.get("COLUMN_PAIRS", 0)) == expected
        assert ("PAIRS" in call.defines) == any(expected)


@pytest.mark.parametrize(
    "case", [Case(9, 200, 900), Case(12, 70, 513, dtype="float16"), Case(40, 36, 700, batch=(1, 2))], ids=str
)
def test_a_long_product_of_few_results_is_split(
    case: Case, gpu: Harness, family: DeviceCapabilities, rng: np.random.Generator
) -> None:
    tiled = dataclasses.replace(family, cooperative_matrix_shapes=())  # cooperative matrices have splits of their own
    assert case.run(gpu, tiled, rng) == (1 if is_cpu_driver(tiled) else 2)
    assert case.run(gpu, family, rng) in (1, 2)  # whichever kernels the device has, the result is right


def test_zero_k_gives_zeros_and_empty_results_give_no_dispatch(
    gpu: Harness, family: DeviceCapabilities, rng: np.random.Generator
) -> None:
    Case(20, 30, 0).run(gpu, family, rng)
    for m, n, batch in ((0, 4, 1), (4, 0, 1), (4, 4, 0)):
        problem = MatMulProblem(m, n, 3, (0, 3, 1), (0, n, 1), batch=batch)
        assert emit(problem, NumpyWorkspace(family), [None, None], [None]) == []


@pytest.mark.parametrize("indirect", [False, True])
@pytest.mark.parametrize("size", [(21, 37, 16), (4, 37, 600)])
def test_epilogue_sees_row_column_and_flat_index(
    size: tuple[int, int, int], indirect: bool, gpu: Harness, family: DeviceCapabilities, rng: np.random.Generator
) -> None:
    m, n, k = size
    bias, residual = rng.standard_normal(n).astype(np.float32), rng.standard_normal((2, 1, m, n)).astype(np.float32)
    epilogue = Epilogue(
        "v = max(v + E(operand(args.e0, EXTRA_BASE + 0u)).v[col] + E(operand(args.e1, EXTRA_BASE + 1u)).v[o], 0.0)"
        " + args.slope * float(row);",
        "TENSOR(float, E)",
        ((Operand("e0"), Tensor(bias)), (Operand("e1"), Tensor(residual))),
        (("slope", "float", 0.5),),
    )
    rows = np.arange(m)[:, None]
    case = Case(m, n, k, batch=(2, 1), y_gap=3)
    case.run(gpu, family, rng, epilogue, lambda y: np.maximum(y + bias + residual, 0) + 0.5 * rows, indirect=indirect)


@pytest.mark.parametrize("case", [Case(150, 70, 20), Case(40, 170, 20, batch=(1, 2), b_constant=True)], ids=str)
def test_tiles_folded_at_the_devices_limit(case: Case, gpu: Harness, rng: np.random.Generator) -> None:
    case.run(gpu, dataclasses.replace(gpu.caps, device_type="cpu", max_workgroup_count=(7, 65535, 65535)), rng)


def test_values_outside_a_result_do_not_reach_it(gpu: Harness, family: DeviceCapabilities) -> None:
    """A NaN in one row of a and one column of b stays in that row and column, tile edges included."""
    a, b = np.ones((19, 37), np.float32), np.ones((37, 45), np.float32)
    a[18], b[:, 44] = np.nan, np.inf
    y = Tensor.empty((19, 45), np.float32)
    gpu.compute(MatMulProblem(19, 45, 37, (0, 37, 1), (0, 45, 1)), family, [Tensor(a), Tensor(b)], [y])
    assert (y.array[:18, :44] == 37).all()
    assert np.isnan(y.array[18]).all()
    assert np.isposinf(y.array[:18, 44]).all()


def test_batches_beyond_the_devices_limit(gpu: Harness, family: DeviceCapabilities, rng: np.random.Generator) -> None:
    """Grids are folded on every axis: 65535 workgroups are what this driver, and every device, runs along one."""
    Case(2, 2, 3, batch=(1, 70000)).run(gpu, family, rng)


@pytest.mark.parametrize("limits", [(5, 65535, 65535), (65535, 1, 3)], ids=str)
@pytest.mark.parametrize("case", [Case(150, 70, 20), Case(5, 70, 300, batch=(2, 3)), Case(9, 200, 900)], ids=str)
def test_grids_folded_on_every_axis(
    limits: tuple[int, int, int], case: Case, gpu: Harness, family: DeviceCapabilities, rng: np.random.Generator
) -> None:
    case.run(gpu, dataclasses.replace(family, max_workgroup_count=limits), rng)


def calls_of(problem: MatMulProblem, caps: DeviceCapabilities) -> list[KernelCall]:
    return emit(problem, NumpyWorkspace(caps), ["a", "b"], ["y"])


class TestWithoutDevice:
    def test_family_is_chosen_by_capabilities(self) -> None:
        assert is_cpu_driver(CPU)
        assert not is_cpu_driver(GPU)
        assert not is_cpu_driver(dataclasses.replace(CPU, subgroup_size=1))
        problem = MatMulProblem(64, 64, 64, (0, 64, 1), (0, 64, 1))
        (on_cpu,), (on_gpu,) = calls_of(problem, CPU), calls_of(problem, GPU)
        assert on_cpu.variant.source == "matmul_subgroup.comp"
        assert on_gpu.variant.source == "matmul_tiled.comp"
        assert on_cpu.spec["LOCAL_X"] == 8
        assert on_cpu.flops == on_gpu.flops == 2 * 64**3

    def test_subgroup_size_is_required_only_where_it_can_be(self) -> None:
        control = {"subgroup_size_control", "compute_full_subgroups"}
        controlled = dataclasses.replace(CPU, features=CPU.features | control)
        assert subgroup_tile(64, 64, 1, CPU, packed=True).required_subgroup_size is None
        assert subgroup_tile(64, 64, 1, controlled, packed=True).required_subgroup_size == 8

    @pytest.mark.parametrize("lanes", [4, 8, 16, 32])
    def test_subgroup_tiles_fit_the_shape_in_few_kinds(self, lanes: int) -> None:
        caps = dataclasses.replace(CPU, subgroup_size=lanes)
        kinds = {
            subgroup_tile(m, n, 1, caps, packed=True)
            for m in (*range(1, 70), 512)
            for n in (1, 7, 10, 33, 100, 512, 1000)
        }
        assert len({(t.rows, t.lane_columns, t.unroll) for t in kinds}) <= 20
        assert all(t.rows <= 16 and t.columns <= max(64, lanes) for t in kinds)
        assert subgroup_tile(512, 100, 1, caps, packed=True).columns == (
            64 if lanes >= 8 else 32
        )  # both make 128 of them
        assert subgroup_tile(512, 96, 1, caps, packed=True).columns == 32
        assert subgroup_tile(512, 512, 1, caps, packed=True).rows == 16
        assert subgroup_tile(1, 512, 1, caps, packed=True).rows == 1
        assert (
            subgroup_tile(512, 96, 1, caps, packed=False).unroll < subgroup_tile(512, 96, 1, caps, packed=True).unroll
        )

    def test_few_tiles_are_made_smaller_to_use_all_cores(self) -> None:
        assert subgroup_tile(32, 32, 1, CPU, packed=True).rows < subgroup_tile(32, 32, 16, CPU, packed=True).rows == 16

    def test_shared_tile_grows_with_the_problem(self) -> None:
        sizes = [shared_tiling(n, n, n, 1, GPU) for n in (16, 64, 256, 1024, 4096)]
        assert [t.tile.m for t in sizes] == sorted(t.tile.m for t in sizes)
        assert sizes[-1].tile == SHARED_TILES[0]
        assert sizes[-1].splits == 1

    @pytest.mark.parametrize(
        ("m", "n", "k"), [(1, 4096, 4096), (64, 49, 4608), (512, 49, 4608), (8, 8, 300), (7, 7, 7)]
    )
    def test_splits_cover_k_once(self, m: int, n: int, k: int) -> None:
        tiling = shared_tiling(m, n, k, 1, GPU)
        assert tiling.split_k % tiling.tile.k == 0
        assert (tiling.splits - 1) * tiling.split_k < k <= tiling.splits * tiling.split_k

    def test_tiles_respect_small_devices(self) -> None:
        small = dataclasses.replace(GPU, max_shared_memory_bytes=16384, max_workgroup_invocations=128)
        tile = shared_tiling(4096, 4096, 64, 1, small).tile
        assert tile.lanes <= 128
        assert tile.shared_bytes <= 16384
        with pytest.raises(Decline, match="no matrix tile fits"):
            choose(
                MatMulProblem(64, 64, 64, (0, 64, 1), (0, 64, 1)),
                dataclasses.replace(GPU, max_shared_memory_bytes=1024),
            )

    def test_panels(self) -> None:
        b = np.arange(6 * 5, dtype=np.float32).reshape(6, 5)
        for stored, row, col in ((b, 5, 1), (np.ascontiguousarray(b.T), 1, 6)):
            panels = pack_panels(stored, 6, 5, row, col, 4)
            assert panels.shape == (2, 6, 4)
            np.testing.assert_array_equal(panels.transpose(1, 0, 2).reshape(6, 8)[:, :5], b)
            assert not panels[1, :, 1:].any()

    def test_prepack_tags_tell_transformations_apart(self) -> None:
        tags: list[str] = []

        class Target(NumpyWorkspace):
            def prepack(self, weight: Tensor, transform: Callable[[np.ndarray], np.ndarray], tag: str) -> str:  # type: ignore[override]
                tags.append(tag)
                return tag

        for b_strides in ((0, 96, 1), (0, 1, 64)):
            problem = MatMulProblem(64, 96, 64, (0, 64, 1), b_strides, b_constant=True)
            (call,) = emit(problem, Target(CPU), ["a", "b"], ["y"])
            assert {o.name: v for o, v in call.operands}["b"] == tags[-1]
        assert len(set(tags)) == 2

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"m": -1}, "must not be negative"),
            ({"a_strides": (0, -8, 1)}, "a_strides must not be negative"),
            ({"a_strides": (8, 1)}, "expected batch strides"),
        ],
    )
    def test_bad_problems(self, change: dict[str, Any], message: str) -> None:
        good: dict[str, Any] = {"m": 8, "n": 8, "k": 8, "a_strides": (0, 8, 1), "b_strides": (0, 8, 1)}
        with pytest.raises(ValueError, match=message):
            MatMulProblem(**{**good, **change})

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"dtype": "int32"}, "no matrix kernel for dtype 'int32'"),
            ({"b_strides": (0, 2**31, 1)}, "b has"),
            ({"n": 1, "b_strides": (0, 1, 2**32)}, "strides"),
        ],
    )
    def test_tensors_beyond_a_kernels_reach_are_declined(self, change: dict[str, Any], message: str) -> None:
        good: dict[str, Any] = {"m": 8, "n": 8, "k": 8, "a_strides": (0, 8, 1), "b_strides": (0, 8, 1)}
        for caps in (CPU, GPU):
            with pytest.raises(Decline, match=message):
                choose(MatMulProblem(**{**good, **change}), caps)
