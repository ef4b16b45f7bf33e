"""Tilings of matrix products: which of the two kernel families a device runs, and the tile of a given problem.

Two families, chosen by `DeviceCapabilities` only:

- *subgroup* (``shaders/register_tile.glsl``), for drivers that run a subgroup as one CPU vector: a subgroup computes
  a tile in registers, and broadcasts one operand from lane to lane. No shared memory, no barriers.
- *tiled* (``shaders/shared_tile.glsl``), for GPUs: a workgroup stages both operands through shared memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from typing import TYPE_CHECKING, Any

from gpu_shared.capabilities import DeviceCapabilities
from vkep.kernels.launch import ceil_div, gathers_pairs, in_lines
from vkep.kernels.tuning import Choice, Tuned, estimated
from vkep.sizes import at_hand, cached, largest, serves_others

if TYPE_CHECKING:
    from vkep.kernels.select import Emission

#: GLSL storage type of each element type that these kernels support; they compute and accumulate in float32
STORAGE = {"float32": "float", "float16": "float16_t"}
#: definitions for each of them
OF_STORAGE = tuple({"T": t} for t in STORAGE.values())
#: those of the kernels of `SubgroupTile`
OF_SUBGROUPS = (*OF_STORAGE, {"T": STORAGE["float32"], "PAIRS": "1"})

#: ``small_div`` (shaders/register_tile.glsl) divides numbers below this
EXACT_DIVISION_LIMIT = 2**24

#: definitions of the shared-memory kernels (``shaders/shared_tile.glsl``) for each element type
TILED_DEFINES = {
    "float32": {"T": "float", "WIDE_T": "vec4"},
    "float16": {"T": "float16_t", "WIDE_T": "f16vec4"},
}


def is_cpu_driver(caps: DeviceCapabilities) -> bool:
    """Whether a driver runs shaders on the CPU, with subgroups as wide as a SIMD register whose lanes share values."""
    return caps.device_type == "cpu" and 4 <= caps.subgroup_size <= 32 and caps.has("subgroup_ballot")


def _padded(size: int, multiple: int) -> int:
    return ceil_div(size, multiple) * multiple


@dataclass(frozen=True)
class SubgroupTile:
    """A tile of ``rows`` by ``lanes * lane_columns`` results per subgroup; ``unroll`` steps of k per iteration. ``row_pairs`` and
    ``column_pairs``: the spec constants of the shader's variant that loads two neighbours as one word."""

    rows: int
    lane_columns: int
    unroll: int
    lanes: int
    required_subgroup_size: int | None
    row_pairs: int = 0
    column_pairs: int = 0

    @property
    def columns(self) -> int:
        """Columns of a tile."""
        return self.lanes * self.lane_columns

    @property
    def spec(self) -> dict[str, int]:
        """Its spec constants by name."""
        pairs = {"ROW_PAIRS": self.row_pairs, "COLUMN_PAIRS": self.column_pairs}
        sizes = {"ROWS": self.rows, "LANE_COLUMNS": self.lane_columns, "UNROLL": self.unroll}
        return sizes | {name: kind for name, kind in pairs.items() if kind}

    def defines(self, dtype: str) -> dict[str, str]:
        """The definitions of its kernel's variant for elements of ``dtype``."""
        return {"T": STORAGE[dtype]} | ({"PAIRS": "1"} if self.row_pairs or self.column_pairs else {})

    def in_pairs(
        self, caps: DeviceCapabilities, dtype: str, rows: bool, columns: bool, columns_along_k: bool = False
    ) -> SubgroupTile:
        """The tile that loads pairs where the device gains by it and the elements of an operand of ``dtype`` lie in aligned
        pairs: of ``rows`` along k, of ``columns`` along the columns, whose number is even, or along k."""
        if dtype != "float32" or not gathers_pairs(caps):
            return self
        kind = 1 if columns and self.lane_columns % 2 == 0 else 2 if columns_along_k else 0
        return replace(self, row_pairs=int(rows), column_pairs=kind)


#: results of one subgroup: 16 rows by 32 columns
_SUBGROUP_ROWS, _SUBGROUP_COLUMNS = 16, 32
#: this width where there are enough tiles and less than a seventh more padding: a fifth faster
_SUBGROUP_COLUMNS_WIDE = 64
#: this height where it leaves less of the last tile empty: 49 pixels of 7x7 are 3.5 of these
_SUBGROUP_ROWS_TIGHT = 14
#: fewer tiles than this leave cores idle: smaller tiles are used instead
_SUBGROUP_MIN_TILES = 16


@at_hand
def subgroup_tile(
    m: int, n: int, batch: int, caps: DeviceCapabilities, packed: bool, tuned: Tuned = estimated, least: int = 0
) -> SubgroupTile:
    """The tile for ``batch`` products of m by n: of a few sizes only, so that shapes share pipelines. Unless it was measured, it
    has ``least`` columns or more.

    With ``packed`` the column operand is stored in panels. Otherwise it is read in steps of a whole row: long
    iterations measured a third slower than short ones, while with panels they are a tenth faster.
    """
    lanes = caps.subgroup_size
    countable = lambda: [c for c in subgroup_candidates(m, lanes) if _countable(m, n, c[0], c[1] * lanes)]  # noqa: E731
    choice = tuned(countable, "subgroup", m, n, batch, int(packed))
    if choice is not None:
        return SubgroupTile(choice[0], choice[1], choice[2], lanes, _required_size(caps))
    return _estimated_tile(m, n, batch, packed, lanes, _required_size(caps), least)


@cached
def _estimated_tile(
    m: int, n: int, batch: int, packed: bool, lanes: int, required_size: int | None, least: int
) -> SubgroupTile:
    rows = min(_SUBGROUP_ROWS, 1 << max(m - 1, 0).bit_length())
    if 10 * _padded(m, _SUBGROUP_ROWS_TIGHT) <= 9 * _padded(m, rows):
        rows = _SUBGROUP_ROWS_TIGHT
    columns, wide = _SUBGROUP_COLUMNS, _SUBGROUP_COLUMNS_WIDE
    tight = 20 * _padded(n, wide) <= 23 * _padded(n, columns)
    if tight and lanes >= 8 and batch * ceil_div(m, rows) * ceil_div(n, wide) >= 2 * _SUBGROUP_MIN_TILES:
        columns = wide
    columns = max(columns, least)
    lane_columns = max(1, min(columns // lanes, 1 << (ceil_div(n, lanes) - 1).bit_length()))
    while rows > 4 and batch * ceil_div(m, rows) * ceil_div(n, lanes * lane_columns) < _SUBGROUP_MIN_TILES:
        rows = 8 if rows > 8 else rows // 2
    return SubgroupTile(
        rows=rows,
        lane_columns=lane_columns,
        # a longer iteration of a wide tile gains nothing, and takes the driver longer to compile
        unroll=8 if packed and columns < wide else 4,
        lanes=lanes,
        required_subgroup_size=required_size,
    )


def panel_tile(
    e: Emission, m: int, n: int, batch: int, packed: bool, weight: Any, tag: Callable[[int], str]
) -> tuple[SubgroupTile, str]:
    """`subgroup_tile` for ``batch`` products of m by n, and the ``tag`` of the panels of its columns that the weight is
    ``packed`` in. A plan for many sizes takes wide panels that an earlier plan has made: the weights in narrow ones would take
    as much memory again.
    """
    tile = subgroup_tile(m, n, batch, e.caps, packed, e.target.tuned)
    wide = _SUBGROUP_COLUMNS_WIDE
    if packed and tile.columns < wide and (serves_others(m) or serves_others(batch)):
        other = subgroup_tile(m, n, batch, e.caps, packed, e.target.tuned, wide)
        if other.columns == wide and e.target.has_packed(weight, tag(wide)) and _countable(m, n, other.rows, wide):
            tile = other
    return tile, tag(tile.columns) if packed else ""


def no_subgroup_tile(m: int, n: int, batch: int, caps: DeviceCapabilities, packed: bool) -> str:
    """Why the subgroup family does not compute ``batch`` products of m by n on a device; "" where they do."""
    if not is_cpu_driver(caps):
        return "its subgroups are no vectors of a CPU"
    tile = subgroup_tile(m, n, batch, caps, packed)
    if _countable(m, n, tile.rows, tile.columns) and batch < EXACT_DIVISION_LIMIT:
        return ""
    return f"{batch} products of {m} by {n}, the kernel counts fewer than {EXACT_DIVISION_LIMIT} products and tiles"


def _countable(m: int, n: int, rows: int, columns: int) -> bool:
    return ceil_div(m, rows) * ceil_div(n, columns) < EXACT_DIVISION_LIMIT


def subgroup_candidates(m: int, lanes: int) -> list[Choice]:
    """(rows, lane_columns, unroll) of every `SubgroupTile` that may be chosen for products of m rows."""
    heights = [rows for rows in (1, 2, 4, 8, _SUBGROUP_ROWS_TIGHT, _SUBGROUP_ROWS) if rows < 2 * max(m, 1)]
    columns = [c for c in (1, 2, 4, 8, 16) if lanes * c <= 2 * _SUBGROUP_COLUMNS]
    most = _SUBGROUP_ROWS * _SUBGROUP_COLUMNS_WIDE
    return [(r, c, unroll) for r in heights for c in columns for unroll in (4, 8) if r * c * lanes <= most]


def _required_size(caps: DeviceCapabilities) -> int | None:
    return caps.subgroup_size if caps.has("subgroup_size_control", "compute_full_subgroups") else None


@at_hand
def rows_first(row_tiles: int, column_tiles: int, row_bytes: int, column_bytes: int) -> bool:
    """Whether consecutive workgroups step along the rows: the operand that is read repeatedly should be the smaller
    one."""
    return column_tiles == 1 or (row_tiles > 1 and row_bytes <= column_bytes)


@dataclass(frozen=True)
class SharedTile:
    """A tile of ``m`` by ``n`` results per workgroup, staged ``k`` steps at a time; a lane computes micro_m by
    micro_n."""

    m: int
    n: int
    k: int
    micro_m: int
    micro_n: int

    @property
    def lanes(self) -> int:
        """Lanes of a workgroup."""
        return (self.m // self.micro_m) * (self.n // self.micro_n)

    @property
    def loads_wide(self) -> bool:
        """Whether lanes can share the loads of a stage four elements at a time."""
        return self.m * self.k % (4 * self.lanes) == 0 and self.n * self.k % (4 * self.lanes) == 0

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory, rows padded against bank conflicts."""
        return 4 * self.k * (self.m + 4 + self.n + 4)

    @property
    def spec(self) -> dict[str, int]:
        """Its spec constants by name."""
        return {
            "TILE_M": self.m,
            "TILE_N": self.n,
            "TILE_K": self.k,
            "MICRO_M": self.micro_m,
            "MICRO_N": self.micro_n,
        }


#: sorted from the most arithmetic per loaded byte to the most workgroups
SHARED_TILES = (
    SharedTile(256, 128, 16, 16, 8),
    SharedTile(128, 128, 16, 8, 8),
    SharedTile(64, 64, 32, 8, 4),
    SharedTile(64, 64, 16, 4, 4),
    SharedTile(32, 64, 32, 4, 4),
)
#: the same for convolutions, whose addressing needs more registers
CONV_SHARED_TILES = (SharedTile(64, 128, 16, 4, 8), SharedTile(64, 64, 16, 4, 4), SharedTile(32, 64, 32, 4, 4))
#: for products of few rows
SHARED_TILE_FEW_ROWS = SharedTile(8, 128, 16, 2, 4)

#: results that a lane keeps in registers without spilling: Vulkan does not report the number of registers, large GPUs
#: have the most
_RESULTS_A_LANE = {"discrete": 128, "virtual": 128}
_RESULTS_A_LANE_SMALL = 64
#: workgroups that fill a device: large GPUs have around a hundred cores, small ones around ten
_WORKGROUPS_TO_FILL = {"discrete": 128, "virtual": 128}
_WORKGROUPS_TO_FILL_SMALL = 24
#: minimum length of a split of k: below it adding the parts costs more than the split gains
_MIN_SPLIT_K = 128
_MAX_SPLITS = 32


@dataclass(frozen=True)
class SharedTiling:
    """A tile, and the number of parts that k is split into."""

    tile: SharedTile
    splits: int
    split_k: int  #: a multiple of ``tile.k``


def shared_tiling(
    m: int,
    n: int,
    k: int,
    batch: int,
    caps: DeviceCapabilities,
    tuned: Tuned = estimated,
    tiles: tuple[SharedTile, ...] = SHARED_TILES,
) -> SharedTiling:
    """The tile for ``batch`` products of m by n by k, and the number of parts that k is split into to fill the device.

    Expects a device that some tile fits (`no_shared_tile`).
    """
    tile, splits = _shared_choice(m, n, k, batch, caps, tuned, tiles)
    return _shared_tiling_of(tile, k, splits)


@at_hand
def _shared_choice(
    m: int, n: int, k: int, batch: int, caps: DeviceCapabilities, tuned: Tuned, tiles: tuple[SharedTile, ...]
) -> tuple[SharedTile, int]:
    fitting = _fitting(tiles, caps)
    kind = "matmul" if tiles is SHARED_TILES else "conv"
    choice = tuned(lambda: shared_candidates(k, caps, tiles), "shared", kind, m, n, k, batch)
    if choice is not None:
        return SharedTile(*choice[:-1]), choice[-1]
    target = _WORKGROUPS_TO_FILL.get(caps.device_type, _WORKGROUPS_TO_FILL_SMALL)
    if m <= 8 and SHARED_TILE_FEW_ROWS in fitting:
        tile = SHARED_TILE_FEW_ROWS
    else:
        large = [t for t in fitting if t is not SHARED_TILE_FEW_ROWS] or fitting
        # A tile that is mostly padding computes nothing; one that leaves the device idle gains nothing.
        tile = next(
            (t for t in large if _workgroups(t, m, n, batch) >= target and t.m < 2 * m and t.n < 2 * n),
            next((t for t in large[-2:] if t.m < 2 * m and t.n < 2 * n), large[-1]),
        )
    splits = 1
    if k >= 2 * _MIN_SPLIT_K:
        splits = max(1, min(target // max(_workgroups(tile, m, n, batch), 1), k // _MIN_SPLIT_K, _MAX_SPLITS))
    return tile, splits


def _shared_tiling_of(tile: SharedTile, k: int, splits: int) -> SharedTiling:
    split_k = ceil_div(ceil_div(max(k, 1), splits), tile.k) * tile.k
    return SharedTiling(tile, ceil_div(max(k, 1), split_k) if splits > 1 else 1, split_k)


def no_shared_tile(caps: DeviceCapabilities, tiles: tuple[SharedTile, ...] = SHARED_TILES) -> str:
    """Why no shared tile fits a device; "" where one does."""
    if _fitting(tiles, caps):
        return ""
    return (
        f"no matrix tile fits {caps.name}: {caps.max_shared_memory_bytes} bytes of shared memory, "
        f"{caps.max_workgroup_invocations} lanes a workgroup"
    )


def _fitting(tiles: tuple[SharedTile, ...], caps: DeviceCapabilities) -> list[SharedTile]:
    return [t for t in (*tiles, SHARED_TILE_FEW_ROWS) if _fits(t, caps)]


def shared_candidates(k: int, caps: DeviceCapabilities, tiles: tuple[SharedTile, ...] = SHARED_TILES) -> list[Choice]:
    """The fields of a `SharedTile`, and splits, of every tiling that may be chosen for a problem."""
    splits = [s for s in (1, 2, 4, 8, 16) if s == 1 or k >= s * _MIN_SPLIT_K]
    return [(*astuple(t), s) for t in _fitting(tiles, caps) for s in splits]


def _fits(tile: SharedTile, caps: DeviceCapabilities) -> bool:
    lanes_limit = min(caps.max_workgroup_invocations, caps.max_workgroup_size[0])
    results = _RESULTS_A_LANE.get(caps.device_type, _RESULTS_A_LANE_SMALL)
    return (
        tile.shared_bytes <= caps.max_shared_memory_bytes
        and tile.lanes <= lanes_limit
        and tile.micro_m * tile.micro_n <= results
    )


def _workgroups(tile: SharedTile, m: int, n: int, batch: int) -> int:
    return batch * ceil_div(m, tile.m) * ceil_div(n, tile.n)


def tile_grid(row_tiles: int, column_tiles: int, batch: int, caps: DeviceCapabilities) -> tuple[int, int, int]:
    """The grid of a kernel that numbers its tiles itself: along x, continued along y beyond the limit of x
    (``workgroup_tile`` and ``find_tile`` in the GLSL)."""
    return *in_lines(row_tiles * column_tiles, caps.max_workgroup_count[0]), batch


def flat_grid(lanes: int, local: int, caps: DeviceCapabilities) -> tuple[int, int, int]:
    """A grid of at least ``lanes`` lanes in workgroups of ``local``, continued along y beyond the limit of x
    (``flat_lane`` in the GLSL). Kernels check the bound."""
    return *in_lines(largest(1, ceil_div(lanes, local)), caps.max_workgroup_count[0]), 1
