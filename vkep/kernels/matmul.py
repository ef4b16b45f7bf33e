"""Matrix products: kernel declarations, and the choice of kernel and tiling for a shape and a device."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpu_shared.capabilities import DeviceCapabilities
from vkep.kernels.cooperative import matmul_cooperative
from vkep.kernels.epilogue import Epilogue, call_arguments
from vkep.kernels.kernel import Kernel, KernelCall, Operand
from vkep.kernels.matmul_rows import matmul_rows
from vkep.kernels.split_k import reduce_partials
from vkep.kernels.tiles import (
    STORAGE,
    TILED_DEFINES,
    Prepack,
    Scratch,
    SubgroupTile,
    ceil_div,
    check_grid,
    is_cpu_driver,
    rows_first,
    shared_tiling,
    storage_type,
    subgroup_tile,
    tile_grid,
)

_A_B_Y = (Operand("a"), Operand("b"), Operand("y", writes=True))
_VARIANTS = tuple({"T": t} for t in STORAGE.values())
_BATCH_STRIDES = ("a_batch0", "a_batch1", "b_batch0", "b_batch1", "y_batch0", "y_batch1")


def _uints(*names: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, "uint") for name in names)


MATMUL_SUBGROUP = Kernel(
    "matmul_subgroup.comp",
    operands=_A_B_Y,
    params=(
        *_uints("m", "n", "k", "batch1", "a_row", "a_col", "b_row", "b_col", "b_panel", "y_row", "y_col"),
        *_uints(*_BATCH_STRIDES, "rows_first"),
        ("alpha", "float"),
    ),
    spec={"ROWS": 16, "LANE_COLUMNS": 4, "UNROLL": 4},
    variants=_VARIANTS,
)
MATMUL_TILED = Kernel(
    "matmul_tiled.comp",
    operands=_A_B_Y,
    params=(
        *_uints("m", "n", "k", "batch1", "splits", "split_k", "a_row", "a_col", "b_row", "b_col", "y_row", "y_col"),
        *_uints(*_BATCH_STRIDES),
        ("alpha", "float"),
    ),
    spec={
        "TILE_M": 64,
        "TILE_N": 64,
        "TILE_K": 16,
        "MICRO_M": 4,
        "MICRO_N": 4,
        "A_ALONG_K": 1,
        "B_ALONG_K": 0,
        "PARTIAL": 0,
        "A_WIDE": 0,
        "B_WIDE": 0,
    },
    variants=tuple(TILED_DEFINES.values()),
)
#: elements of an operand must be addressable with a signed 32-bit index
_MAX_ELEMENTS = 2**31


@dataclass(frozen=True)
class MatMulProblem:
    """``y[batch] = alpha * a[batch] @ b[batch]``: a is m by k, b is k by n, y is m by n.

    ``batch`` is one size or two (outer, inner). Strides are in elements, (batch, row, column), or (outer batch, inner
    batch, row, column) with two batch sizes; 0 broadcasts. ``y_strides`` defaults to a contiguous result. ``dtype`` is
    float32 or float16 (sums are float32). ``b_constant`` says that b holds weights, which may be repacked.
    ``alignment`` (bytes) divides the addresses of a, b and y. Raises `ValueError` for anything that the kernels cannot
    address.
    """

    m: int
    n: int
    k: int
    a_strides: tuple[int, ...]
    b_strides: tuple[int, ...]
    y_strides: tuple[int, ...] | None = None
    batch: int | tuple[int, int] = 1
    dtype: str = "float32"
    b_constant: bool = False
    alpha: float = 1.0
    alignment: int = 1

    def __post_init__(self) -> None:
        storage_type(self.dtype)
        if min(self.m, self.n, self.k, *self.batches) < 0:
            raise ValueError(
                f"matmul: sizes must not be negative, got batch {self.batch}, m {self.m}, n {self.n}, k {self.k}"
            )
        for name, rows, columns in (("a", self.m, self.k), ("b", self.k, self.n), ("y", self.m, self.n)):
            strides = self._strides_of(name)
            if min(strides) < 0:
                raise ValueError(f"matmul: {name}_strides must not be negative, got {strides}")
            extent = sum(
                (size - 1) * stride
                for size, stride in zip((*self.batches, rows, columns), strides, strict=True)
                if size
            )
            if extent >= _MAX_ELEMENTS:
                raise ValueError(
                    f"matmul: {name} spans {extent + 1} elements, the kernels address at most {_MAX_ELEMENTS}"
                )
        if self.batches[0] * self.batches[1] * self.m * self.n >= _MAX_ELEMENTS:
            raise ValueError(
                f"matmul: the result has {self.batch} x {self.m} x {self.n} elements, expected fewer than {_MAX_ELEMENTS}"
            )

    @property
    def batches(self) -> tuple[int, int]:
        """(outer, inner) batch sizes."""
        return self.batch if isinstance(self.batch, tuple) else (1, self.batch)

    def strides(self, operand: str) -> tuple[int, int, int, int]:
        """(outer batch, inner batch, row, column) strides of ``"a"``, ``"b"`` or ``"y"``."""
        return self._strides[operand]

    @functools.cached_property
    def _strides(self) -> dict[str, tuple[int, int, int, int]]:
        return {operand: self._strides_of(operand) for operand in "aby"}

    def _strides_of(self, operand: str) -> tuple[int, int, int, int]:
        inner = self.batches[1]
        strides = {"a": self.a_strides, "b": self.b_strides, "y": self.y_strides}[operand]
        if strides is None:
            return inner * self.m * self.n, self.m * self.n, self.n, 1
        if len(strides) != (4 if isinstance(self.batch, tuple) else 3):
            raise ValueError(
                f"matmul: {operand}_strides is {strides}, expected batch strides, row stride, column stride"
            )
        return (0, *strides) if len(strides) == 3 else strides  # type: ignore[return-value]

    @functools.cached_property
    def flops(self) -> int:
        return 2 * self.batches[0] * self.batches[1] * self.m * self.n * self.k


def matmul(
    problem: MatMulProblem,
    caps: DeviceCapabilities,
    a: Any,
    b: Any,
    y: Any,
    epilogue: Epilogue | None = None,
    scratch: Scratch | None = None,
    prepack: Prepack | None = None,
) -> list[KernelCall]:
    """The dispatches that compute a product; none for an empty result.

    ``scratch`` allows a long product of few results to be split along k. ``prepack`` allows a constant b to be
    repacked; its transformation gets the constant's elements from b's address on, in memory order. The epilogue sees
    ``row``, ``col`` and ``o``, the flat index in a contiguous [batch, m, n]. Raises `ValueError` when the device cannot
    run such a grid.
    """
    if problem.m == 0 or problem.n == 0 or 0 in problem.batches:
        return []
    if is_cpu_driver(caps):
        return [_subgroup(problem, caps, a, b, y, epilogue, prepack)]
    calls = matmul_rows(problem, caps, a, b, y, epilogue)
    if calls is None:
        calls = matmul_cooperative(problem, caps, a, b, y, epilogue, scratch)
    return _tiled(problem, caps, a, b, y, epilogue, scratch) if calls is None else calls


def _params(problem: MatMulProblem, operands: str, names: tuple[str, ...]) -> dict[str, int]:
    strides = {
        f"{operand}_{axis}": stride
        for operand in operands
        for axis, stride in zip(("batch0", "batch1", "row", "col"), problem.strides(operand), strict=True)
    }
    sizes = {"m": problem.m, "n": problem.n, "k": problem.k, "batch1": problem.batches[1]}
    return {name: value for name, value in {**sizes, **strides}.items() if name in names}


def _names(kernel: Kernel) -> tuple[str, ...]:
    return tuple(name for name, _ in kernel.params)


def _subgroup(
    problem: MatMulProblem,
    caps: DeviceCapabilities,
    a: Any,
    b: Any,
    y: Any,
    epilogue: Epilogue | None,
    prepack: Prepack | None,
) -> KernelCall:
    batch = problem.batches[0] * problem.batches[1]
    b_batch0, b_batch1, b_row, b_col = problem.strides("b")
    packed = problem.b_constant and prepack is not None and b_batch0 == b_batch1 == 0 and problem.k > 0
    tile = subgroup_tile(problem.m, problem.n, batch, caps, packed)
    if prepack is not None and packed:
        b = prepack(
            lambda flat: pack_panels(flat, problem.k, problem.n, b_row, b_col, tile.columns),
            f"matmul-{problem.k}-{problem.n}-{b_row}-{b_col}-{tile.columns}",
        )
    row_tiles, column_tiles = ceil_div(problem.m, tile.rows), ceil_div(problem.n, tile.columns)
    return MATMUL_SUBGROUP.call(
        grid=tile_grid(row_tiles, column_tiles, batch, caps, "matmul"),
        operands={"a": a, "b": b, "y": y},
        params=_subgroup_params(problem, tile, packed),
        spec=tile.spec,
        local_size=(tile.lanes, 1, 1),
        subgroup_size=tile.required_subgroup_size,
        flops=problem.flops,
        **call_arguments(epilogue, {"T": storage_type(problem.dtype)}),
    )


@functools.lru_cache(1024)
def _subgroup_params(problem: MatMulProblem, tile: SubgroupTile, packed: bool) -> Mapping[str, int | float]:
    params: dict[str, int | float] = {**_params(problem, "aby", _names(MATMUL_SUBGROUP)), "alpha": problem.alpha}
    params["b_panel"] = tile.columns * int(params["b_col"])
    if packed:
        params.update(b_row=tile.columns, b_col=1, b_panel=problem.k * tile.columns)
    row_tiles, column_tiles = ceil_div(problem.m, tile.rows), ceil_div(problem.n, tile.columns)
    params["rows_first"] = int(rows_first(row_tiles, column_tiles, problem.m * problem.k, problem.n * problem.k))
    return params


def pack_panels(flat: np.ndarray, k: int, n: int, row: int, col: int, columns: int) -> np.ndarray:
    """[ceil(n / columns), k, columns] panels of a k by n matrix with these strides in ``flat``, zero past column n."""
    flat = np.ascontiguousarray(flat).reshape(-1)
    matrix = np.lib.stride_tricks.as_strided(flat, (k, n), (row * flat.itemsize, col * flat.itemsize), writeable=False)
    panels = np.zeros((ceil_div(n, columns), k, columns), flat.dtype)
    for i, panel in enumerate(panels):
        block = matrix[:, i * columns : (i + 1) * columns]
        panel[:, : block.shape[1]] = block
    return panels


def _tiled(
    problem: MatMulProblem,
    caps: DeviceCapabilities,
    a: Any,
    b: Any,
    y: Any,
    epilogue: Epilogue | None,
    scratch: Scratch | None,
) -> list[KernelCall]:
    batch = problem.batches[0] * problem.batches[1]
    tiling = shared_tiling(problem.m, problem.n, problem.k, batch, caps, may_split=scratch is not None)
    partials = scratch(4 * tiling.splits * batch * problem.m * problem.n) if scratch and tiling.splits > 1 else None
    defines = TILED_DEFINES[problem.dtype]
    a_along_k = problem.strides("a")[3] == 1
    b_along_k = problem.strides("b")[2] == 1 and problem.strides("b")[3] != 1
    grid = (ceil_div(problem.n, tiling.tile.n), ceil_div(problem.m, tiling.tile.m), batch * tiling.splits)
    product = MATMUL_TILED.call(
        grid=check_grid(grid, caps, "matmul"),
        operands={"a": a, "b": b, "y": y if partials is None else partials},
        params={
            **_params(problem, "aby", _names(MATMUL_TILED)),
            "splits": tiling.splits,
            "split_k": tiling.split_k,
            "alpha": problem.alpha,
        },
        spec={
            **tiling.tile.spec,
            "A_ALONG_K": int(a_along_k),
            "B_ALONG_K": int(b_along_k),
            "A_WIDE": int(tiling.tile.loads_wide and _in_fours(problem, "a", 3 if a_along_k else 2)),
            "B_WIDE": int(tiling.tile.loads_wide and _in_fours(problem, "b", 2 if b_along_k else 3)),
            "PARTIAL": int(partials is not None),
        },
        local_size=(tiling.tile.lanes, 1, 1),
        flops=problem.flops,
        **(call_arguments(epilogue, defines) if partials is None else {"defines": defines}),
    )
    if partials is None:
        return [product]
    sizes = (problem.m, problem.n, batch, problem.batches[1])
    y_strides = _params(problem, "y", ("y_row", "y_col", "y_batch0", "y_batch1"))
    return [
        product,
        reduce_partials(sizes, y_strides, tiling.splits, problem.alpha, problem.dtype, caps, partials, y, epilogue),
    ]


def _in_fours(problem: MatMulProblem, operand: str, axis: int) -> bool:
    """Whether a or b can be read in aligned groups of four along an axis (2: rows, 3: columns) of its strides."""
    strides = problem.strides(operand)
    length = {("a", 2): problem.m, ("a", 3): problem.k, ("b", 2): problem.k, ("b", 3): problem.n}[operand, axis]
    itemsize = 4 if problem.dtype == "float32" else 2
    others = (s for i, s in enumerate(strides) if i != axis)
    aligned = problem.alignment % (4 * itemsize) == 0
    return aligned and strides[axis] == 1 and length % 4 == 0 and all(s % 4 == 0 for s in others)
