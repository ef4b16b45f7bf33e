"""Tilings of products on cooperative matrices, of float16 and of 8-bit codes: which tile, and in how many parts k is split."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from functools import partial

from gpu_shared.capabilities import CooperativeMatrixShape, DeviceCapabilities
from vkep.kernels.launch import ceil_div, is_cpu
from vkep.kernels.tuning import Choice, Tuned, estimated
from vkep.sizes import at_hand

#: elements in the 16 bytes that a lane loads at a time
UNITS = {"float16": 8, "int8": 16}
VECTOR = UNITS["float16"]
#: the type of the sums
SUMS = {"float16": "float32", "int8": "int32"}


@dataclass(frozen=True)
class CooperativeTile:
    """``m`` by ``n`` results per workgroup, ``sub_m`` by ``sub_n`` per subgroup, ``k`` steps of float16 per stage, of int8 twice
    as many; ``prefetch`` stages are loaded ahead into registers, or (``parts`` 2) one of 64 steps that is stored to shared memory
    and multiplied in two halves."""

    m: int
    n: int
    k: int
    sub_m: int
    sub_n: int
    parts: int = 1
    prefetch: int = 1

    @property
    def subgroups(self) -> int:
        """Subgroups of a workgroup."""
        return (self.m // self.sub_m) * (self.n // self.sub_n)

    def steps(self, shape: CooperativeMatrixShape) -> int:
        """Steps of k per stage, for a shape of matrices of either type."""
        return self.k // VECTOR * UNITS[shape.a_type]

    def shared_bytes(self, shape: CooperativeMatrixShape, b_along_k: bool) -> int:
        """As the GLSL computes ``SHARED_UNITS``."""
        k = self.k // self.parts
        staged = self.m * (k // VECTOR + 1) + (self.n * (k // VECTOR + 1) if b_along_k else k * (self.n // VECTOR + 1))
        out_n = 32 if self.sub_n % 32 == 0 and 32 % shape.n == 0 else self.sub_n
        return 16 * max(staged, self.subgroups * shape.m * (out_n // 4 + 2))

    def workgroups_a_core(self, caps: DeviceCapabilities, shape: CooperativeMatrixShape, b_along_k: bool) -> int:
        """How many run on a core at once. A core's shared memory is assumed to be one workgroup's limit, as
        measured."""
        lane = _LANE_REGISTERS + 3 * self.sub_m * self.sub_n // (2 * caps.subgroup_size)
        by_registers = _CORE_REGISTERS // (self.subgroups * caps.subgroup_size * lane)
        by_memory = caps.max_shared_memory_bytes // self.shared_bytes(shape, b_along_k)
        return max(1, min(by_registers, by_memory))

    def runs_on(self, caps: DeviceCapabilities, shape: CooperativeMatrixShape, b_along_k: bool) -> bool:
        """Whether the device has the lanes, shared memory and matrix shape for it."""
        lanes = self.subgroups * caps.subgroup_size
        vectors = (self.m * self.k // VECTOR, self.n * self.k // VECTOR)
        halved = self.k == 8 * VECTOR and self.prefetch == 1 and lanes % 32 == 0
        return (
            lanes <= min(caps.max_workgroup_invocations, caps.max_workgroup_size[0])
            and self.shared_bytes(shape, b_along_k) <= caps.max_shared_memory_bytes
            and not (self.sub_m % shape.m or self.sub_n % shape.n or (self.steps(shape) // self.parts) % shape.k)
            and not any(count % (lanes * self.parts) for count in vectors)
            and (self.parts == 1 or halved)
        )

    def spec(self, shape: CooperativeMatrixShape, subgroup_size: int) -> dict[str, int]:
        """Its spec constants by name."""
        return {
            "TILE_M": self.m,
            "TILE_N": self.n,
            "TILE_K": self.steps(shape),
            "SUB_M": self.sub_m,
            "SUB_N": self.sub_n,
            "MAT_M": shape.m,
            "MAT_N": shape.n,
            "MAT_K": shape.k,
            "PARTS": self.parts,
            "PREFETCH": self.prefetch,
            "SUBGROUP_LANES": subgroup_size,
        }


@dataclass(frozen=True)
class TileCost:
    """The cost of a tile: the ``speed`` of a core that is full of its workgroups (1: `_RATE`), and the minimum
    microseconds of a ``stage``, however few workgroups share a core. ``codes``: of products of 8-bit codes, by halves of their
    steps (`cooperative_tiling`), where it is another one."""

    speed: float
    stage: float = 0.5
    codes: TileCost | None = None


#: Fitted, as the constants below, to the time of every tile and split of 56 products and convolutions, most of
#: ResNet-50 and BERT, on a device of 132 cores; the tiles are the best of two hundred (docs/design-log/gpu-speed.md). The
#: costs of codes are fitted to those of a quantized ResNet-50 at batch 1 and 16 and BERT at 16, with their epilogues
MATMUL_TILES = {
    CooperativeTile(128, 128, 64, 64, 64, parts=2): TileCost(1.05, 1.68, TileCost(1.05, 2.79)),
    CooperativeTile(96, 128, 64, 48, 64, parts=2): TileCost(0.86, 1.31, TileCost(0.6, 1.48)),
    CooperativeTile(96, 128, 64, 48, 64): TileCost(0.741, 0.396, TileCost(0.636, 0.396)),
    CooperativeTile(64, 128, 64, 64, 32): TileCost(0.596, 0.155, TileCost(0.458, 0.155)),
    CooperativeTile(128, 64, 32, 64, 32): TileCost(0.771, 0.774, TileCost(0.936, 0.672)),
    CooperativeTile(96, 64, 64, 48, 64, parts=2): TileCost(1.05, 1.6, TileCost(1.05, 2.0)),
    CooperativeTile(64, 64, 64, 32, 32, prefetch=2): TileCost(0.464, 0.374, TileCost(0.311, 0.374)),
    CooperativeTile(32, 64, 64, 16, 32): TileCost(0.405, 0.326, TileCost(0.564, 0.372)),
    CooperativeTile(64, 32, 32, 32, 32): TileCost(0.39, 0.786),
    CooperativeTile(32, 32, 128, 16, 16): TileCost(0.228, 0.166, TileCost(0.295, 0.166)),
}
#: convolutions with channels last, which gather rows in vectors, take as long as products; one more tile is for them alone
CONV_LAST_TILES = MATMUL_TILES | {
    CooperativeTile(96, 128, 32, 48, 64): TileCost(0.941, 0.726, TileCost(0.941, 0.787)),
}
_TABLES = {"matmul": MATMUL_TILES, "conv_last": CONV_LAST_TILES}
#: where the driver does not report it: large GPUs have around a hundred cores, small ones around ten
_COMPUTE_UNITS = {"discrete": 128, "virtual": 128}
_COMPUTE_UNITS_SMALL = 12
#: registers of a core, and of a lane besides its sums (one and a half times, with the operands)
_CORE_REGISTERS, _LANE_REGISTERS = 65536, 50
#: minimum length of a split of k: below it adding the parts costs more than the split gains
_MIN_SPLIT_K = 128
_SPLITS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
#: multiply-adds of a core a microsecond; microseconds of a workgroup's start, of a result's store, of the dispatch that adds
#: the parts of a split, and of a float of partial sums, written and read again by the whole device
_RATE = 1.25e6
_START, _STORE = 3.2, 3.62e-5
_REDUCE, _PARTIAL = 2.11, 3.06e-6


def compute_units(caps: DeviceCapabilities) -> int:
    """The number of a device's cores, a guess where the driver does not report it."""
    return caps.compute_units or _COMPUTE_UNITS.get(caps.device_type, _COMPUTE_UNITS_SMALL)


_NEEDS = {"float16": ("float16", "storage_16bit"), "int8": ("int8", "storage_8bit", "float16")}


def float16_shape(caps: DeviceCapabilities) -> CooperativeMatrixShape | None:
    """The shape to multiply float16 matrices with float32 sums (`matrix_shape`)."""
    return matrix_shape(caps, "float16")


def matrix_shape(caps: DeviceCapabilities, dtype: str) -> CooperativeMatrixShape | None:
    """The shape to multiply matrices of a type with the sums of `SUMS`: the largest that the device lists, or None.

    None also where subgroups cannot be required to be full and of a known size, on which the positions of results
    depend.
    """
    fixed = caps.min_subgroup_size == caps.max_subgroup_size or caps.has("subgroup_size_control")
    if not (fixed and caps.has("cooperative_matrix", "compute_full_subgroups", *_NEEDS[dtype])):
        return None
    sums = SUMS[dtype]
    usable = [
        s
        for s in caps.cooperative_matrix_shapes
        if s.scope == "subgroup"
        and (s.a_type, s.b_type, s.c_type, s.result_type) == (dtype, dtype, sums, sums)
        and not (s.m % 8 or s.n % 8 or s.k % 8 or s.saturating)
        and max(s.m, s.n, s.k) <= 32
    ]
    return max(usable, key=lambda s: (s.m * s.n * s.k, s.m), default=None)


def codes_are_faster(caps: DeviceCapabilities) -> bool:
    """Whether matrices of int8 are expected to multiply codes faster than those of float16: at least twice the steps of k in an
    instruction, for the same bytes."""
    codes, halves = matrix_shape(caps, "int8"), float16_shape(caps)
    if codes is None or halves is None:
        return False
    return codes.m * codes.n * codes.k >= 2 * halves.m * halves.n * halves.k


def no_cooperative_tile(
    caps: DeviceCapabilities,
    b_along_k: bool,
    tiles: Mapping[CooperativeTile, TileCost] = MATMUL_TILES,
    dtype: str = "float16",
) -> str:
    """Why products of a type on cooperative matrices do not run on a device; "" where they do."""
    shape = matrix_shape(caps, dtype)
    if shape is None:
        return f"the device has no cooperative matrices of {dtype} with {SUMS[dtype]} sums"
    if is_cpu(caps):
        return "a driver on the CPU takes minutes to compile for cooperative matrices"
    return (
        ""
        if any(t.runs_on(caps, shape, b_along_k) for t in tiles)
        else "no tile of cooperative matrices fits the device"
    )


@dataclass(frozen=True)
class CooperativeTiling:
    """A tile, and the number of parts that k is split into."""

    tile: CooperativeTile
    shape: CooperativeMatrixShape
    splits: int
    split_k: int  #: a multiple of ``tile.steps``


def cooperative_tiling(
    m: int,
    n: int,
    k: int,
    batch: int,
    caps: DeviceCapabilities,
    b_along_k: bool,
    tuned: Tuned = estimated,
    tiles: Mapping[CooperativeTile, TileCost] = MATMUL_TILES,
    dtype: str = "float16",
) -> CooperativeTiling:
    """The tile for ``batch`` products of m by n by k and the parts that k is split into.

    The choice is the least estimated time (`_fastest`), or the tuned tiling of the problem. Some tile must fit the
    device (`no_cooperative_tile`). Products of int8 take as long as those of half the steps of float16: the same bytes,
    multiplied at twice the rate.
    """
    shape = matrix_shape(caps, dtype)
    assert shape is not None
    halves = ceil_div(k, UNITS[dtype] // VECTOR)
    choice = _choice(m, n, halves, batch, caps, shape, b_along_k, tuned, tiles)
    return tiling_of(CooperativeTile(*choice[:-1]), shape, k, choice[-1])


@at_hand
def _choice(
    m: int,
    n: int,
    k: int,
    batch: int,
    caps: DeviceCapabilities,
    shape: CooperativeMatrixShape,
    b_along_k: bool,
    tuned: Tuned,
    tiles: Mapping[CooperativeTile, TileCost],
) -> Choice:
    kind = next((name for name, table in _TABLES.items() if table is tiles), "own")
    candidates = partial(cooperative_candidates, k, caps, shape, b_along_k, tiles)
    of = () if shape.a_type == "float16" else (shape.a_type,)
    choice = tuned(candidates, "cooperative", kind, *of, m, n, k, batch, int(b_along_k))
    if choice is None:
        choice = _fastest(m, n, k, batch, caps, shape, b_along_k, tiles)
    return choice


def _fastest(
    m: int,
    n: int,
    k: int,
    batch: int,
    caps: DeviceCapabilities,
    shape: CooperativeMatrixShape,
    b_along_k: bool,
    tiles: Mapping[CooperativeTile, TileCost],
) -> Choice:
    """The candidate of the least estimated time: waves of as many workgroups as the cores take at once, each as long as
    its stages, with padding, and its stores; and the cost of adding the parts. On another device all times scale alike.
    """
    units = compute_units(caps)
    best: tuple[float, CooperativeTile, int] | None = None
    for tile, cost in tiles.items():
        if not tile.runs_on(caps, shape, b_along_k):
            continue
        if shape.a_type == "int8":
            cost = cost.codes or cost
        at_once = tile.workgroups_a_core(caps, shape, b_along_k)
        groups = batch * ceil_div(m, tile.m) * ceil_div(n, tile.n)
        stage, store = tile.m * tile.n * tile.k / (_RATE * cost.speed), _STORE * tile.m * tile.n
        for splits in _splits(tile, k):
            stages = ceil_div(ceil_div(k, splits), tile.k)
            full, rest = divmod(groups * splits, units * at_once)
            time = full * (stages * max(at_once * stage, cost.stage) + _START + at_once * store)
            if rest:
                on_a_core = ceil_div(rest, units)
                time += stages * max(on_a_core * stage, cost.stage) + _START + on_a_core * store
            if splits > 1:
                time += _REDUCE + _PARTIAL * batch * m * n * splits
            if best is None or time < best[0]:
                best = (time, tile, splits)
    assert best is not None
    return (*astuple(best[1]), best[2])


def _splits(tile: CooperativeTile, k: int) -> list[int]:
    """The numbers of `_SPLITS` that divide k into that many parts of whole stages."""
    if k < 2 * _MIN_SPLIT_K:
        return [1]
    stages = ceil_div(k, tile.k)
    enough = [s for s in _SPLITS if k >= s * _MIN_SPLIT_K]
    return [s for s in enough if ceil_div(stages, ceil_div(ceil_div(k, s), tile.k)) == s]


def cooperative_candidates(
    k: int,
    caps: DeviceCapabilities,
    shape: CooperativeMatrixShape,
    b_along_k: bool,
    tiles: Mapping[CooperativeTile, TileCost],
) -> list[Choice]:
    """The fields of a `CooperativeTile`, and splits, of every tiling that may be chosen for a problem."""
    fitting = [t for t in tiles if t.runs_on(caps, shape, b_along_k)]
    return [(*astuple(tile), splits) for tile in fitting for splits in _splits(tile, k)]


def tiling_of(tile: CooperativeTile, shape: CooperativeMatrixShape, k: int, splits: int) -> CooperativeTiling:
    """``tile`` with k in at most ``splits`` parts, none of them empty."""
    stage = tile.steps(shape)
    split_k = ceil_div(ceil_div(max(k, 1), splits), stage) * stage
    return CooperativeTiling(tile, shape, ceil_div(max(k, 1), split_k) if splits > 1 else 1, split_k)
