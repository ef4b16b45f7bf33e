"""Kernels whose result's length is data: they fill a buffer of the greatest length and count."""

from __future__ import annotations

from typing import Any

from gpu_shared.capabilities import DeviceCapabilities
from vkep.kernels.kernel import Kernel, KernelCall, Operand
from vkep.kernels.launch import ceil_div, element_count, floor_power_of_two, grid, lanes

COMPACT = Kernel(
    "compact.comp",
    operands=(Operand("place"), Operand("positions", writes=True), Operand("count", writes=True)),
    params=(("total", "uint"),),
)
NMS = Kernel(
    "nms.comp",
    operands=(
        Operand("boxes"),
        Operand("scores"),
        Operand("live", writes=True),
        Operand("picks", writes=True),
        Operand("counts", writes=True),
    ),
    params=(
        ("pairs", "uint"),
        ("classes", "uint"),
        ("box_count", "uint"),
        ("most", "uint"),
        ("iou_threshold", "float"),
        ("score_threshold", "float"),
    ),
    spec={"CENTERED": 0, "HAS_THRESHOLD": 0},
)


def compact(total: int, caps: DeviceCapabilities, place: Any, positions: Any, count: Any) -> list[KernelCall]:
    """``positions`` int64 [total] and ``count`` int64 [1] of the set elements of a mask.

    ``place`` int32 [total] is the mask's inclusive running sum.
    """
    if not element_count("compact input", total):
        raise ValueError("compact: the mask is empty, expected at least one element")
    local = lanes(caps, total)
    return [
        COMPACT.call(
            grid=grid(ceil_div(total, local)),
            operands={"place": place, "positions": positions, "count": count},
            params={"total": total},
            local_size=(local,),
        )
    ]


def non_max_suppression(
    batches: int,
    classes: int,
    box_count: int,
    most: int,
    iou_threshold: float,
    score_threshold: float | None,
    centered: bool,
    caps: DeviceCapabilities,
    boxes: Any,
    scores: Any,
    live: Any,
    picks: Any,
    counts: Any,
) -> list[KernelCall]:
    """ONNX NonMaxSuppression of ``boxes`` float32 [batches, box_count, 4] by ``scores`` [batches, classes, box_count].

    ``picks`` int64 [batches * classes, most, 3] holds ``counts`` [batches * classes] rows a pair; ``live`` is scratch as
    large as ``scores``. Equal scores: the lower box first.
    """
    pairs = batches * classes
    element_count("non-max suppression scores", pairs, box_count)
    element_count("non-max suppression picks", pairs, most, 3)
    local = floor_power_of_two(min(64, caps.max_workgroup_invocations))
    return [
        NMS.call(
            grid=grid(pairs),
            operands={"boxes": boxes, "scores": scores, "live": live, "picks": picks, "counts": counts},
            params={
                "pairs": pairs,
                "classes": classes,
                "box_count": box_count,
                "most": most,
                "iou_threshold": iou_threshold,
                "score_threshold": 0.0 if score_threshold is None else score_threshold,
            },
            spec={"CENTERED": int(centered), "HAS_THRESHOLD": int(score_threshold is not None)},
            local_size=(local,),
            flops=12 * pairs * most * box_count,
        )
    ]
