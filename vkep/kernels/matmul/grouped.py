"""Products of rows by the matrix of each row's group: rows in blocks of one group (``shaders/group_rows.comp``), and a product
that looks up a block's matrix (``shaders/grouped_tiled.comp``, also of packed weights; ``shaders/grouped_subgroup.comp``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpu_shared.capabilities import DeviceCapabilities
from vkep.errors import InvalidNode
from vkep.kernels.kernel import Kernel, KernelCall
from vkep.kernels.launch import ceil_div, is_cpu, lanes
from vkep.kernels.matmul.matmul import pack_panels
from vkep.kernels.matmul.tiles import (
    OF_SUBGROUPS,
    STORAGE,
    TILED_DEFINES,
    no_shared_tile,
    no_subgroup_tile,
    panel_tile,
    shared_tiling,
    subgroup_tile,
    tile_grid,
)
from vkep.kernels.problem import Need, Problem, alignment_of
from vkep.kernels.reference import unpacked
from vkep.kernels.select import Candidate, Emission, implement
from vkep.sizes import divides

#: groups that a workgroup counts in its shared memory
MOST_GROUPS = 1024


def _rows_reach(call: KernelCall) -> Mapping[str, int]:
    rows, blocks = call["rows"], call["blocks"]
    return {"x": 8 * rows, "places": 4 * rows, "sources": 4 * blocks * call["block"], "owners": 4 * blocks}


GROUP_ROWS = Kernel("group_rows.comp", reach=_rows_reach)


@dataclass(frozen=True)
class GroupRowsProblem(Problem):
    """Rows in the order of their groups: each group's rows fill blocks of ``block`` slots.

    ``x`` [rows] (int64) is each row's group, of ``groups``. ``places`` [rows] is each row's slot, ``sources`` [blocks, block]
    each slot's row (0 where it has none), ``owners`` [blocks] each block's group (``groups`` where it has none); all int32.
    """

    rows: int
    groups: int
    block: int

    @property
    def blocks(self) -> int:
        """Blocks enough for any division of the rows."""
        return ceil_div(self.rows, self.block) + self.groups

    def needs(self) -> tuple[Need, ...]:
        return (Need("x", "int64", (self.rows,), flat=True),)

    def makes(self) -> tuple[Need, ...]:
        return (
            Need("places", "int32", (self.rows,), flat=True),
            Need("sources", "int32", (self.blocks, self.block)),
            Need("owners", "int32", (self.blocks,)),
        )

    def reference(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
        groups = np.clip(x, 0, self.groups - 1)
        counts = np.bincount(groups, minlength=self.groups)
        blocks = -(-counts // self.block)
        first = np.concatenate([[0], np.cumsum(blocks)])
        owners = np.full(self.blocks, self.groups)
        owners[: first[-1]] = np.repeat(np.arange(self.groups), blocks)
        places, sources = np.empty(self.rows, np.int64), np.zeros(self.blocks * self.block, np.int64)
        for group in range(self.groups):
            rows = np.flatnonzero(groups == group)
            places[rows] = first[group] * self.block + np.arange(len(rows))
        sources[places] = np.arange(self.rows)
        return places, sources.reshape(self.blocks, self.block), owners


def _too_many_groups(problem: GroupRowsProblem, caps: DeviceCapabilities) -> str:
    most = min(MOST_GROUPS, (caps.max_shared_memory_bytes - 64) // 8)
    return "" if 0 < problem.groups <= most else f"{problem.groups} groups, a workgroup counts 1 to {most}"


def _grouped_rows(problem: GroupRowsProblem, e: Emission) -> KernelCall:
    return GROUP_ROWS.call(
        grid=(1,),
        operands=e.operands,
        params={
            "rows": problem.rows,
            "groups": problem.groups,
            "block": problem.block,
            "blocks": problem.blocks,
        },
        spec={"MOST_GROUPS": problem.groups},
        local_size=(lanes(e.caps, 256),),
    )


implement(GroupRowsProblem, Candidate("a workgroup", _grouped_rows, when=_too_many_groups))


def block_of(rows: int, groups: int, caps: DeviceCapabilities) -> int:
    """Rows of a block that leave few of its slots empty."""
    if is_cpu(caps):
        return 16 if rows >= 16 * groups else 8
    return next((size for size in (128, 64, 32) if rows >= 2 * size * groups), 8 if rows < 16 * groups else 32)


_CODES = {"CODES": "1"}


def _reach(call: KernelCall) -> Mapping[str, int]:
    m, n, k, size, blocks, groups = call["m"], call["n"], call["k"], call.size_of("T"), call.groups[2], call["groups"]
    rows = {"a": blocks * m * k * size, "owners": 4 * blocks, "y": blocks * m * n * size}
    if "CODES" in call.defines:
        return {
            **rows,
            "b": groups * n * k * call["BITS"] // 8,
            "scales": groups * n * (k // call["BLOCK"]) * size,
            "zeros": (0, groups * n, groups)[call["ZEROS"]] * call["zero_bytes"],
        }
    panel = call["LANE_COLUMNS"] * call["LOCAL_X"] if call.spec.get("PACKED") else 1
    return {**rows, "b": groups * ceil_div(n, panel) * panel * k * size}


def _kernel(source: str, variants: Iterable[Mapping[str, str]]) -> Kernel:
    return Kernel(source, variants=tuple({**v, **codes} for codes in ({}, _CODES) for v in variants), reach=_reach)


GROUPED_TILED = _kernel("grouped_tiled.comp", TILED_DEFINES.values())
GROUPED_SUBGROUP = _kernel("grouped_subgroup.comp", OF_SUBGROUPS)


@dataclass(frozen=True)
class GroupedProductProblem(Problem):
    """``y`` [blocks, m, n]: the rows of block i of ``a`` [blocks, m, k] times the transpose of matrix ``owners[i]`` of
    ``b`` [groups, n, k]. Sums are float32. Blocks whose owner (int32 [blocks]) is ``groups`` or more are not written.
    """

    blocks: int
    m: int
    n: int
    k: int
    groups: int
    dtype: str
    b_constant: bool = False  #: b holds weights, which may be repacked
    alignment: int = 1  #: bytes, of a and b

    def needs(self) -> tuple[Need, ...]:
        return (
            Need("a", self.dtype, (self.blocks, self.m, self.k)),
            Need("b", self.dtype, (self.groups, self.n, self.k)),
            Need("owners", "int32", (self.blocks,)),
        )

    def makes(self) -> tuple[Need, ...]:
        return (Need("y", self.dtype, (self.blocks, self.m, self.n)),)

    @property
    def flops(self) -> int:
        return 2 * self.blocks * self.m * self.n * self.k

    def placed(self, operands: Mapping[str, Any]) -> GroupedProductProblem:
        return replace(self, alignment=alignment_of(operands["a"], operands["b"]))

    def reference(self, a: np.ndarray, b: np.ndarray, owners: np.ndarray) -> np.ndarray:
        owned = owners < self.groups
        y = np.ma.getdata(a) @ b[np.where(owned, owners, 0)].swapaxes(1, 2)
        undefined = ~owned[:, None, None] | np.ma.getmaskarray(a).any(axis=2, keepdims=True)
        return np.ma.array(y, mask=np.broadcast_to(undefined, y.shape))


def _no_type(problem: GroupedProductProblem) -> str:
    return "" if problem.dtype in STORAGE else f"element type is {problem.dtype!r}, expected one of {sorted(STORAGE)}"


def _no_subgroup(problem: GroupedProductProblem, caps: DeviceCapabilities) -> str:
    return _no_type(problem) or no_subgroup_tile(problem.m, problem.n, problem.blocks, caps, problem.b_constant)


def _params(problem: GroupedProductProblem | GroupedCodesProblem) -> dict[str, int]:
    return {"m": problem.m, "n": problem.n, "k": problem.k, "groups": problem.groups}


def _subgroup(problem: GroupedProductProblem, e: Emission) -> KernelCall:
    packed, b = problem.b_constant, e["b"]
    groups, n, k = problem.groups, problem.n, problem.k
    tag_of = lambda columns: f"grouped-{groups}-{n}-{k}-{columns}"  # noqa: E731
    tile, tag = panel_tile(e, problem.m, n, problem.blocks, packed, b, tag_of)
    along_k = divides(2, k) and problem.alignment % 8 == 0
    tile = tile.in_pairs(e.caps, problem.dtype, along_k, packed and divides(2, n), along_k and not packed)
    if packed:

        def panels(flat: np.ndarray) -> np.ndarray:
            matrices = flat.reshape(-1)[: groups * n * k].reshape(groups, n * k)
            return np.stack([pack_panels(matrix, k, n, 1, k, tile.columns) for matrix in matrices])

        b = e.target.prepack(b, panels, tag)
    return GROUPED_SUBGROUP.call(
        grid=tile_grid(ceil_div(problem.m, tile.rows), ceil_div(problem.n, tile.columns), problem.blocks, e.caps),
        operands={**e.operands, "b": b},
        params=_params(problem),
        spec={**tile.spec, "PACKED": int(packed)},
        defines=tile.defines(problem.dtype),
        local_size=(tile.lanes,),
        subgroup_size=tile.required_subgroup_size,
        flops=problem.flops,
    )


def _no_tiles(problem: GroupedProductProblem, caps: DeviceCapabilities) -> str:
    return _no_type(problem) or no_shared_tile(caps)


def _tiled(problem: GroupedProductProblem, e: Emission) -> KernelCall:
    tile = shared_tiling(problem.m, problem.n, 1, problem.blocks, e.caps, e.target.tuned).tile
    wide = (
        tile.loads_wide and divides(4, problem.k) and problem.alignment % (16 if problem.dtype == "float32" else 8) == 0
    )
    return GROUPED_TILED.call(
        grid=(ceil_div(problem.n, tile.n), ceil_div(problem.m, tile.m), problem.blocks),
        operands=e.operands,
        params=_params(problem),
        spec={**tile.spec, "A_ALONG_K": 1, "B_ALONG_K": 1, "A_WIDE": int(wide), "B_WIDE": int(wide)},
        defines=TILED_DEFINES[problem.dtype],
        local_size=(tile.lanes,),
        flops=problem.flops,
    )


@dataclass(frozen=True)
class GroupedCodesProblem(Problem):
    """`GroupedProductProblem` for weights ``(code - zero) * scale``: ``b`` [groups, n, k * bits / 8] (uint8) holds codes of
    2, 4 or 8 bits, the first in the lowest bits.

    ``scales`` [groups, n, k / block] are of ``dtype``. ``zeros`` (uint8) are packed codes too: of "blocks" [groups, n,
    ceil(k / block * bits / 8)], of "rows" [groups, ceil(n * bits / 8)], or absent ("") for ``2**(bits - 1)``.
    """

    blocks: int
    m: int
    n: int
    k: int
    groups: int
    bits: int
    block: int
    dtype: str
    zeros: str = ""
    alignment: int = 1  #: bytes, of a

    def __post_init__(self) -> None:
        if self.k % self.block:
            raise InvalidNode(f"rows of {self.k} codes in blocks of {self.block}")

    @property
    def zero_bytes(self) -> int:
        """Bytes of a row's, or of a group's zero points."""
        return ceil_div((self.k // self.block if self.zeros == "blocks" else self.n) * self.bits, 8)

    def needs(self) -> tuple[Need, ...]:
        rows = (self.groups, self.n)
        operands = (
            Need("a", self.dtype, (self.blocks, self.m, self.k)),
            Need("b", "uint8", (*rows, self.k * self.bits // 8), flat=True),
            Need("owners", "int32", (self.blocks,)),
            Need("scales", self.dtype, (*rows, self.k // self.block), flat=True),
        )
        of = {"": None, "blocks": (*rows, self.zero_bytes), "rows": (self.groups, self.zero_bytes)}[self.zeros]
        return operands if of is None else (*operands, Need("zeros", "uint8", of, flat=True))

    def makes(self) -> tuple[Need, ...]:
        return (Need("y", self.dtype, (self.blocks, self.m, self.n)),)

    @property
    def flops(self) -> int:
        return 2 * self.blocks * self.m * self.n * self.k

    def placed(self, operands: Mapping[str, Any]) -> GroupedCodesProblem:
        return replace(self, alignment=alignment_of(operands["a"]))

    def reference(
        self, a: np.ndarray, b: np.ndarray, owners: np.ndarray, scales: np.ndarray, zeros: np.ndarray | None = None
    ) -> np.ndarray:
        codes = unpacked(b, self.bits, self.k)
        if zeros is None:
            zero = np.full((self.groups, self.n, 1), 1 << (self.bits - 1))
        elif self.zeros == "rows":
            zero = unpacked(zeros, self.bits, self.n)[..., None]
        else:
            zero = np.repeat(unpacked(zeros, self.bits, self.k // self.block), self.block, axis=2)
        weights = (codes - zero) * np.repeat(scales, self.block, axis=2)
        whole = GroupedProductProblem(self.blocks, self.m, self.n, self.k, self.groups, self.dtype)
        return whole.reference(a, weights, owners)


def no_packed_product(problem: GroupedCodesProblem) -> str:
    """Why packed weights are not unpacked within the product; "" where they are."""
    if problem.dtype not in STORAGE:
        return f"element type is {problem.dtype!r}, expected one of {sorted(STORAGE)}"
    if problem.k * problem.bits % 32 or problem.groups * problem.n * problem.k >= 1 << 32:
        return f"rows of {problem.k} codes of {problem.bits} bits: the kernel takes whole words, and fewer than 2**32 codes"
    return "" if problem.block % 4 == 0 else f"blocks of {problem.block} codes, the kernel unpacks four at once"


def _codes_call(
    kernel: Kernel, problem: GroupedCodesProblem, e: Emission, spec: Mapping[str, int], **launch: Any
) -> KernelCall:
    return kernel.call(
        operands={**e.operands, "zeros": e.get("zeros")},
        params={**_params(problem), "zero_bytes": problem.zero_bytes},
        spec={
            **spec,
            "BITS": problem.bits,
            "BLOCK": problem.block,
            "ZEROS": ("", "blocks", "rows").index(problem.zeros),
        },
        flops=problem.flops,
        **launch,
    )


def _no_codes_subgroup(problem: GroupedCodesProblem, caps: DeviceCapabilities) -> str:
    return no_packed_product(problem) or no_subgroup_tile(problem.m, problem.n, problem.blocks, caps, False)


def _codes_subgroup(problem: GroupedCodesProblem, e: Emission) -> KernelCall:
    tile = subgroup_tile(problem.m, problem.n, problem.blocks, e.caps, False, e.target.tuned)
    tile = tile.in_pairs(e.caps, problem.dtype, problem.alignment % 8 == 0, False)  # blocks are of four codes
    return _codes_call(
        GROUPED_SUBGROUP,
        problem,
        e,
        {**tile.spec, "UNROLL": 4},
        grid=tile_grid(ceil_div(problem.m, tile.rows), ceil_div(problem.n, tile.columns), problem.blocks, e.caps),
        defines=tile.defines(problem.dtype) | _CODES,
        local_size=(tile.lanes,),
        subgroup_size=tile.required_subgroup_size,
    )


def _codes(problem: GroupedCodesProblem, e: Emission) -> KernelCall:
    tile = shared_tiling(problem.m, problem.n, 1, problem.blocks, e.caps, e.target.tuned).tile
    wide = tile.loads_wide and problem.alignment % (16 if problem.dtype == "float32" else 8) == 0
    return _codes_call(
        GROUPED_TILED,
        problem,
        e,
        {
            **tile.spec,
            "A_ALONG_K": 1,
            "B_ALONG_K": 1,
            "A_WIDE": int(wide and problem.k % 4 == 0),
            "B_WIDE": int(tile.loads_wide),
        },
        grid=(ceil_div(problem.n, tile.n), ceil_div(problem.m, tile.m), problem.blocks),
        defines={**TILED_DEFINES[problem.dtype], **_CODES},
        local_size=(tile.lanes,),
    )


implement(
    GroupedCodesProblem,
    Candidate("subgroups as vectors", _codes_subgroup, when=_no_codes_subgroup),
    Candidate("shared tiles", _codes, when=lambda problem, caps: no_packed_product(problem) or no_shared_tile(caps)),
)
implement(
    GroupedProductProblem,
    Candidate("subgroups as vectors", _subgroup, when=_no_subgroup),
    Candidate("shared tiles", _tiled, when=_no_tiles),
)
