"""Tilings of float16 products on cooperative matrices: which tile, and in how many parts k is split."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from functools import partial

from gpu_shared.capabilities import CooperativeMatrixShape, DeviceCapabilities
from vkep.kernels.tiles import ceil_div
from vkep.kernels.tuning import Choice, chosen

#: halves in the 16 bytes that a lane loads at a time
VECTOR = 8


@dataclass(frozen=True)
class CooperativeTile:
    """``m`` by ``n`` results a workgroup, ``sub_m`` by ``sub_n`` a subgroup, ``k`` steps a stage; 1 or 2 stages in
    shared memory, and ``prefetch`` on their way in registers.
    """

    m: int
    n: int
    k: int
    sub_m: int
    sub_n: int
    stages: int = 1
    prefetch: int = 1

    @property
    def subgroups(self) -> int:
        return (self.m // self.sub_m) * (self.n // self.sub_n)

    def shared_bytes(self, shape: CooperativeMatrixShape, b_along_k: bool) -> int:
        """As the GLSL computes ``SHARED_UNITS``."""
        line = self.n * (self.k // VECTOR + 1) if b_along_k else self.k * (self.n // VECTOR + 1)
        staged = self.stages * (self.m * (self.k // VECTOR + 1) + line)
        return 16 * max(staged, self.subgroups * shape.m * (self.sub_n // 4 + 1))

    def runs_on(self, caps: DeviceCapabilities, shape: CooperativeMatrixShape, b_along_k: bool) -> bool:
        lanes = self.subgroups * caps.subgroup_size
        vectors = (self.m * self.k // VECTOR, self.n * self.k // VECTOR)
        return (
            lanes <= min(caps.max_workgroup_invocations, caps.max_workgroup_size[0])
            and self.shared_bytes(shape, b_along_k) <= caps.max_shared_memory_bytes
            and not (self.sub_m % shape.m or self.sub_n % shape.n or self.k % shape.k)
            and not any(count % lanes for count in vectors)
        )

    def spec(self, shape: CooperativeMatrixShape, subgroup_size: int) -> dict[str, int]:
        return {
            "TILE_M": self.m,
            "TILE_N": self.n,
            "TILE_K": self.k,
            "SUB_M": self.sub_m,
            "SUB_N": self.sub_n,
            "MAT_M": shape.m,
            "MAT_N": shape.n,
            "MAT_K": shape.k,
            "STAGES": self.stages,
            "PREFETCH": self.prefetch,
            "SUBGROUP_LANES": subgroup_size,
        }


@dataclass(frozen=True)
class TileCost:
    """What a tile costs, in multiply-adds that the fastest tile's workgroup does meanwhile: ``speed`` relative to that
    one on a full device, and the least that a ``stage`` takes, however few workgroups share a core.
    """

    speed: float
    stage: float = 5.5e5


#: Fitted to every tile's time on 46 products of ResNet-50 and BERT on a device of 132 cores
#: (docs/performance-gpu-notes.md): the choice is within 4% of the best tile.
MATMUL_TILES = {
    CooperativeTile(128, 128, 32, 64, 64, prefetch=2): TileCost(1.0, 3e3),
    CooperativeTile(128, 128, 64, 64, 32): TileCost(0.99, 6.6e4),
    CooperativeTile(96, 128, 32, 48, 64, prefetch=2): TileCost(0.9, 3e3),
    CooperativeTile(128, 64, 32, 64, 32, prefetch=2): TileCost(0.64, 1.4e6),
    CooperativeTile(96, 64, 32, 48, 64, prefetch=2): TileCost(0.69, 1.4e6),
    CooperativeTile(64, 64, 64, 64, 32): TileCost(0.64, 8.5e5),
    CooperativeTile(64, 64, 64, 32, 32, prefetch=2): TileCost(0.48, 2e4),
    CooperativeTile(32, 64, 64, 16, 32): TileCost(0.24, 1e3),
}
#: convolutions that gather their columns one element at a time: tall tiles gather fewer for the same arithmetic
CONV_TILES = {
    CooperativeTile(128, 64, 64, 32, 32): TileCost(0.82),
    CooperativeTile(128, 64, 32, 64, 32): TileCost(0.8),
    CooperativeTile(64, 128, 32, 32, 32): TileCost(0.7),
    CooperativeTile(64, 64, 32, 32, 32): TileCost(0.6),
    CooperativeTile(32, 64, 32, 16, 32): TileCost(0.4),
}
#: convolutions with channels last, which gather rows in vectors
CONV_LAST_TILES = {
    CooperativeTile(128, 128, 64, 64, 32): TileCost(0.8),
    CooperativeTile(128, 64, 64, 32, 32): TileCost(0.51),
    CooperativeTile(64, 64, 64, 32, 32): TileCost(0.5),
    CooperativeTile(32, 64, 64, 16, 32): TileCost(0.42),
}
_TABLES = {"matmul": MATMUL_TILES, "conv": CONV_TILES, "conv_last": CONV_LAST_TILES}
#: workgroups that fill a device: large GPUs have around a hundred cores, small ones around ten
_WORKGROUPS_TO_FILL = {"discrete": 128, "virtual": 128}
_WORKGROUPS_TO_FILL_SMALL = 24
#: a split of k is at least this long, else adding the parts costs more than it brings
_MIN_SPLIT_K = 128
_SPLITS = (1, 2, 4, 8, 16)
#: what adding the parts costs, in multiply-adds that one of the workgroups would do in that time: a dispatch (measured
#: 4.5 us, at 1.1 million a microsecond), and a float of partial sums written and read again
_REDUCE_COST = 5e6
_PARTIAL_COST = 6.0


def float16_shape(caps: DeviceCapabilities) -> CooperativeMatrixShape | None:
    """The shape to multiply float16 matrices with float32 sums: the largest that the device lists, or None.

    None too where subgroups cannot be made full and of a known size, which positions of results depend on.
    """
    fixed = caps.min_subgroup_size == caps.max_subgroup_size or caps.has("subgroup_size_control")
    needed = ("cooperative_matrix", "float16", "storage_16bit", "compute_full_subgroups")
    if not (fixed and caps.has(*needed)):
        return None
    usable = [
        s
        for s in caps.cooperative_matrix_shapes
        if s.scope == "subgroup"
        and (s.a_type, s.b_type, s.c_type, s.result_type) == ("float16", "float16", "float32", "float32")
        and not (s.m % 8 or s.n % 8 or s.k % 8 or s.saturating)
        and max(s.m, s.n, s.k) <= 32
    ]
    return max(usable, key=lambda s: (s.m * s.n * s.k, s.m), default=None)


@dataclass(frozen=True)
class CooperativeTiling:
    tile: CooperativeTile
    shape: CooperativeMatrixShape
    splits: int
    split_k: int  #: a multiple of ``tile.k``


def cooperative_tiling(
    m: int,
    n: int,
    k: int,
    batch: int,
    caps: DeviceCapabilities,
    b_along_k: bool,
    may_split: bool,
    tiles: Mapping[CooperativeTile, TileCost] = MATMUL_TILES,
) -> CooperativeTiling | None:
    """The tile for ``batch`` products of m by n by k and the parts that k is split into; None where no tile runs.

    The choice is the least estimated time: arithmetic of all workgroups, padding included, over a tile's speed, on a
    device that takes so many workgroups at once (fewer leave it idle), and the cost of adding the parts.
    """
    shape = float16_shape(caps)
    if shape is None:
        return None
    kind = next((name for name, table in _TABLES.items() if table is tiles), "own")
    candidates = partial(cooperative_candidates, k, caps, b_along_k, may_split, tiles)
    tuned = chosen(caps, candidates, "cooperative", kind, m, n, k, batch, int(b_along_k))
    if tuned is not None:
        return tiling_of(CooperativeTile(*tuned[:-1]), shape, k, tuned[-1])
    target = _WORKGROUPS_TO_FILL.get(caps.device_type, _WORKGROUPS_TO_FILL_SMALL)
    best: tuple[float, CooperativeTile, int] | None = None
    for tile, cost in tiles.items():
        if not tile.runs_on(caps, shape, b_along_k):
            continue
        groups = batch * ceil_div(m, tile.m) * ceil_div(n, tile.n)
        for splits in _SPLITS if may_split else (1,):
            if splits > 1 and k < splits * _MIN_SPLIT_K:
                break
            stage = max(groups * splits / target, 1.0) * tile.m * tile.n * tile.k / cost.speed
            time = ceil_div(ceil_div(k, splits), tile.k) * max(stage, cost.stage)
            if splits > 1:
                time += _REDUCE_COST + _PARTIAL_COST * batch * m * n * splits
            if best is None or time < best[0]:
                best = (time, tile, splits)
    if best is None:
        return None
    _, tile, splits = best
    return tiling_of(tile, shape, k, splits)


def cooperative_candidates(
    k: int, caps: DeviceCapabilities, b_along_k: bool, may_split: bool, tiles: Mapping[CooperativeTile, TileCost]
) -> list[Choice]:
    """The fields of a `CooperativeTile`, and splits, of every tiling that may be chosen for a problem."""
    shape = float16_shape(caps)
    fitting = [t for t in tiles if shape is not None and t.runs_on(caps, shape, b_along_k)]
    splits = [s for s in _SPLITS if s == 1 or (may_split and k >= s * _MIN_SPLIT_K)]
    return [(*astuple(t), s) for t in fitting for s in splits]


def tiling_of(tile: CooperativeTile, shape: CooperativeMatrixShape, k: int, splits: int) -> CooperativeTiling:
    """``tile`` with k in at most ``splits`` parts, none of them empty."""
    split_k = ceil_div(ceil_div(max(k, 1), splits), tile.k) * tile.k
    return CooperativeTiling(tile, shape, ceil_div(max(k, 1), split_k), split_k)
