"""Matrix products and convolutions in float16 on cooperative matrices, where a device has them.

Selection is by capability: the device must list a subgroup-scope shape of float16 operands and float32 sums
(VK_KHR_cooperative_matrix, "VkCooperativeMatrixPropertiesKHR"), and have room for a tile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gpu_shared.capabilities import DeviceCapabilities
from vkep.kernels.conv_problem import ConvProblem, window_params
from vkep.kernels.cooperative_tiles import CONV_TILES, VECTOR, CooperativeTiling, cooperative_tiling
from vkep.kernels.epilogue import Epilogue, call_arguments
from vkep.kernels.fastdiv import magic_fields, magic_params
from vkep.kernels.kernel import Kernel, KernelCall, Operand
from vkep.kernels.split_k import partial_sums, reduce_partials
from vkep.kernels.tiles import Prepack, Scratch, ceil_div, check_grid, tile_grid

if TYPE_CHECKING:
    from vkep.kernels.matmul import MatMulProblem

HALVES = {"T": "float16_t"}
COOPERATIVE_SPEC = {
    "TILE_M": 128,
    "TILE_N": 128,
    "TILE_K": 32,
    "SUB_M": 64,
    "SUB_N": 32,
    "MAT_M": 16,
    "MAT_N": 16,
    "MAT_K": 16,
    "PARTS": 1,
    "B_ALONG_K": 0,
    "PARTIAL": 0,
    "SUBGROUP_LANES": 32,
    "STORE_VECTOR": 0,
    "WHOLE_K": 0,
    "PREFETCH": 1,
}


def uints(*names: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, "uint") for name in names)


MATMUL_COOPERATIVE = Kernel(
    "matmul_coop.comp",
    operands=(Operand("a"), Operand("b"), Operand("y", writes=True)),
    params=(
        *uints("m", "n", "k", "batch1", "splits", "split_k", "a_row", "a_col", "b_row", "b_col", "y_row", "y_col"),
        *uints("a_batch0", "a_batch1", "b_batch0", "b_batch1", "y_batch0", "y_batch1"),
        ("alpha", "float"),
    ),
    spec={**COOPERATIVE_SPEC, "A_VECTOR": 1, "B_VECTOR": 1, "BAND": 16},
    variants=(HALVES,),
)
CONV_COOPERATIVE = Kernel(
    "conv_coop.comp",
    operands=(Operand("x"), Operand("w"), Operand("y", writes=True)),
    params=(
        *uints("channels", "height", "width", "out_channels", "groups", "columns"),
        *magic_fields("pixels", "out_width", "padded", "kernel_w"),
        *uints("stride_h", "stride_w", "dilation_h", "dilation_w", "pad_top", "pad_left"),
        *uints("k_size", "splits", "split_k", "y_batch"),
    ),
    spec={**COOPERATIVE_SPEC, "B_ALONG_K": 1, "WHOLE_TAPS": 1, "ONE_TAP": 0},
    variants=(HALVES,),
)


#: fewer rows or columns than this leave most of a matrix unused
MIN_EDGE = 8


def matmul_cooperative(
    problem: MatMulProblem,
    caps: DeviceCapabilities,
    a: Any,
    b: Any,
    y: Any,
    epilogue: Epilogue | None = None,
    scratch: Scratch | None = None,
    tiling: CooperativeTiling | None = None,
) -> list[KernelCall] | None:
    """The dispatches of `matmul` on cooperative matrices; None where the device or the product has no use for them.

    ``tiling`` overrides the choice of a tile. Arguments and errors otherwise as `vkep.kernels.matmul.matmul`.
    """
    if problem.dtype != "float16" or min(problem.m, problem.n) < MIN_EDGE or problem.k == 0:
        return None
    batch = problem.batches[0] * problem.batches[1]
    stride_a, stride_b, stride_y = (problem.strides(name) for name in "aby")
    b_along_k = stride_b[2] == 1 and stride_b[3] != 1
    tiling = tiling or cooperative_tiling(
        problem.m, problem.n, problem.k, batch, caps, b_along_k, may_split=scratch is not None
    )
    if tiling is None:
        return None
    aligned = problem.alignment % (2 * VECTOR) == 0
    partials = partial_sums(scratch, tiling.splits, batch * problem.m * problem.n, "matmul")
    store_vector = problem.n % VECTOR == 0 and (partials is not None or (aligned and _in_vectors(stride_y, 3)))
    tile = tiling.tile
    product = MATMUL_COOPERATIVE.call(
        grid=tile_grid(ceil_div(problem.m, tile.m), ceil_div(problem.n, tile.n), batch * tiling.splits, caps, "matmul"),
        operands={"a": a, "b": b, "y": y if partials is None else partials},
        params={
            "m": problem.m,
            "n": problem.n,
            "k": problem.k,
            "batch1": problem.batches[1],
            "alpha": problem.alpha,
            "splits": tiling.splits,
            "split_k": tiling.split_k,
            **{
                f"{name}_{axis}": stride
                for name, strides in (("a", stride_a), ("b", stride_b), ("y", stride_y))
                for axis, stride in zip(("batch0", "batch1", "row", "col"), strides, strict=True)
            },
        },
        spec={
            **tile.spec(tiling.shape, caps.subgroup_size),
            "B_ALONG_K": int(b_along_k),
            "A_VECTOR": int(aligned and problem.k % VECTOR == 0 and _in_vectors(stride_a, 3)),
            "B_VECTOR": _b_vector(problem, stride_b, b_along_k),
            "STORE_VECTOR": int(store_vector),
            "PARTIAL": int(partials is not None),
            "WHOLE_K": int(problem.k % tile.k == 0),
        },
        local_size=(tile.subgroups * caps.subgroup_size, 1, 1),
        subgroup_size=caps.subgroup_size,
        flops=problem.flops,
        **(call_arguments(epilogue, HALVES) if partials is None else {"defines": HALVES}),
    )
    if partials is None:
        return [product]
    strides = dict(zip(("y_batch0", "y_batch1", "y_row", "y_col"), stride_y, strict=True))
    sizes = (problem.m, problem.n, batch, problem.batches[1])
    return [
        product,
        reduce_partials(sizes, strides, tiling.splits, problem.alpha, "float16", caps, partials, y, epilogue),
    ]


def _b_vector(problem: MatMulProblem, strides: tuple[int, ...], along_k: bool) -> int:
    """How b is read: 1 in groups of eight, 2 in groups of four (along columns only), 0 one by one."""
    along, length = (2, problem.k) if along_k else (3, problem.n)
    for code, group in ((1, VECTOR), (2, VECTOR // 2)):
        fits = strides[along] == 1 and all(s % group == 0 for axis, s in enumerate(strides) if axis != along)
        if fits and length % group == 0 and problem.alignment % (2 * group) == 0 and not (code == 2 and along_k):
            return code
    return 0


def _in_vectors(strides: tuple[int, ...], along: int) -> bool:
    """Whether elements are dense along one axis and every other stride keeps groups of eight aligned."""
    return strides[along] == 1 and all(s % VECTOR == 0 for axis, s in enumerate(strides) if axis != along)


def conv_cooperative(
    problem: ConvProblem,
    caps: DeviceCapabilities,
    x: Any,
    w: Any,
    y: Any,
    epilogue: Epilogue | None = None,
    scratch: Scratch | None = None,
    prepack: Prepack | None = None,
    tiling: CooperativeTiling | None = None,
) -> list[KernelCall] | None:
    """The dispatches of `conv` on cooperative matrices; None where the device or the convolution has no use for them.

    Weights must be constant (``prepack``). ``tiling`` overrides the choice of a tile. Arguments and errors otherwise
    as `vkep.kernels.conv.conv`.
    """
    channels, out_channels, taps = problem.c // problem.groups, problem.oc // problem.groups, problem.kh * problem.kw
    flat = problem.d == problem.kd == problem.od == 1
    if problem.dtype != "float16" or prepack is None or not flat or channels == 0 or out_channels < MIN_EDGE:
        return None
    pixels = problem.oh * problem.ow
    in_place = taps == problem.groups == 1 and problem.stride == (1, 1) and max(problem.pads) == 0
    if tiling is None and in_place and channels % VECTOR == 0 and pixels % (VECTOR // 2) == 0:
        return _conv_as_product(problem, caps, x, w, y, epilogue, scratch)
    columns, padded = problem.n * pixels, ceil_div(channels, VECTOR) * VECTOR
    k_size = taps * padded
    tiling = tiling or cooperative_tiling(
        out_channels, columns, k_size, problem.groups, caps, True, may_split=scratch is not None, tiles=CONV_TILES
    )
    if tiling is None or ceil_div(columns, tiling.tile.n) > caps.max_workgroup_count[1]:
        return None
    tile = tiling.tile
    lanes = tile.subgroups * caps.subgroup_size
    if lanes % tile.n:
        raise ValueError(f"conv: {lanes} lanes cannot share {tile.n} columns evenly, expected a multiple")
    total = problem.n * problem.oc * pixels
    partials = partial_sums(scratch, tiling.splits, total, "conv")
    packed = prepack(
        lambda weights: pack_taps_first(weights, problem.groups, channels, taps),
        f"conv-taps-{problem.groups}-{channels}-{taps}",
    )
    stored = pixels % VECTOR == 0 and (partials is not None or problem.y_batch % VECTOR == 0)
    one_tap = taps == 1 and max(problem.pads) == 0
    product = CONV_COOPERATIVE.call(
        grid=check_grid(
            (ceil_div(out_channels, tile.m), ceil_div(columns, tile.n), problem.groups * tiling.splits), caps, "conv"
        ),
        operands={"x": x, "w": packed, "y": y if partials is None else partials},
        params={
            "channels": channels,
            "height": problem.h,
            "width": problem.w,
            "out_channels": out_channels,
            "groups": problem.groups,
            "columns": columns,
            **magic_params("pixels", pixels),
            **magic_params("out_width", problem.ow),
            **magic_params("padded", padded),
            **magic_params("kernel_w", problem.kw),
            **window_params(problem),
            "k_size": k_size,
            "splits": tiling.splits,
            "split_k": tiling.split_k,
            "y_batch": problem.y_batch,
        },
        spec={
            **tile.spec(tiling.shape, caps.subgroup_size),
            "B_ALONG_K": 1,
            "STORE_VECTOR": int(stored and problem.alignment % (2 * VECTOR) == 0),
            "PARTIAL": int(partials is not None),
            "WHOLE_K": int(k_size % tile.k == 0),
            "WHOLE_TAPS": int(channels % tile.k == 0),
            "ONE_TAP": int(one_tap),
        },
        local_size=(lanes, 1, 1),
        subgroup_size=caps.subgroup_size,
        flops=problem.flops,
        **(call_arguments(epilogue, HALVES) if partials is None else {"defines": HALVES}),
    )
    if partials is None:
        return [product]
    strides = {"y_row": pixels, "y_col": 1, "y_batch0": problem.y_batch, "y_batch1": 0}
    sizes = (problem.oc, pixels, problem.n, 1)
    return [product, reduce_partials(sizes, strides, tiling.splits, 1.0, "float16", caps, partials, y, epilogue)]


def _conv_as_product(
    problem: ConvProblem,
    caps: DeviceCapabilities,
    x: Any,
    w: Any,
    y: Any,
    epilogue: Epilogue | None,
    scratch: Scratch | None,
) -> list[KernelCall] | None:
    """A 1x1 convolution: for each image, weights [oc, c] by its pixels [c, oh * ow], read in vectors."""
    from vkep.kernels.matmul import MatMulProblem  # at run time: that module asks this one first

    pixels = problem.oh * problem.ow
    product = MatMulProblem(
        problem.oc,
        pixels,
        problem.c,
        a_strides=(0, problem.c, 1),
        b_strides=(problem.c * pixels, pixels, 1),
        y_strides=(problem.y_batch, pixels, 1),
        batch=problem.n,
        dtype=problem.dtype,
        alignment=problem.alignment,
    )
    return matmul_cooperative(product, caps, w, x, y, epilogue, scratch)


def pack_taps_first(weights: np.ndarray, groups: int, channels: int, taps: int) -> np.ndarray:
    """OIHW weights as [groups, out channels, taps, channels padded to a multiple of 8 with zeros]."""
    grouped = np.ascontiguousarray(weights).reshape(groups, -1, channels, taps)
    padded = np.zeros((*grouped.shape[:2], taps, ceil_div(channels, VECTOR) * VECTOR), grouped.dtype)
    padded[..., :channels] = grouped.transpose(0, 1, 3, 2)
    return padded
