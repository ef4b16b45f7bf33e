"""Kernels whose result has a length that depends on data: they fill a buffer of the maximum length, and count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from vkep.kernels.kernel import Kernel, KernelCall
from vkep.kernels.launch import ceil_div, floor_power_of_two, grid, is_cpu
from vkep.kernels.problem import Need, Problem
from vkep.kernels.reference import undefined
from vkep.kernels.select import Candidate, Emission, implement
from vkep.sizes import hint


def _nms_reach(call: KernelCall) -> Mapping[str, int]:
    pairs, count = call["pairs"], call["box_count"]
    return {
        "boxes": ceil_div(pairs, call["classes"]) * count * 16,  # four floats
        "scores": pairs * count * 4,
        "listed": pairs * count * 8,  # a score and an index
        "picks": pairs * call["most"] * 4,
        "counts": pairs * 4,
    }


def _rows_reach(call: KernelCall) -> Mapping[str, int]:
    pairs, places = call["pairs"], call["pairs"] * call["most"]
    return {"picks": places * 4, "counts": pairs * 4, "rows": places * 24, "count": 8}


NMS = Kernel("nms.comp", reach=_nms_reach)
NMS_ROWS = Kernel("nms_rows.comp", reach=_rows_reach)
#: the most boxes that a workgroup sorts at a time
_SORTED = 1024


@dataclass(frozen=True)
class NonMaxSuppressionProblem(Problem):
    """ONNX NonMaxSuppression: ``rows`` int64 [batches * classes * most, 3] (batch, class, box), of which the first ``count``
    [1] are written.

    ``boxes`` float32 [batches, box_count, 4] are ranked by ``scores`` [batches, classes, box_count]. Equal scores: the lower
    box first.
    """

    batches: int
    classes: int
    box_count: int
    most: int
    iou_threshold: float
    score_threshold: float | None
    centered: bool

    @property
    def pairs(self) -> int:
        """Pairs of a batch and a class."""
        return self.batches * self.classes

    def needs(self) -> tuple[Need, ...]:
        return (
            Need("boxes", "float32", (self.batches, self.box_count, 4)),
            Need("scores", "float32", (self.batches, self.classes, self.box_count)),
        )

    def makes(self) -> tuple[Need, ...]:
        return Need("rows", "int64", (self.pairs * self.most, 3)), Need("count", "int64", (1,))

    @property
    def flops(self) -> int:
        return 12 * self.pairs * self.most * self.box_count

    def reference(self, boxes: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, ...]:
        rows, count = undefined((self.pairs * self.most, 3)), 0
        low, high = boxes[..., :2], boxes[..., 2:]
        if self.centered:
            low, high = low - high / 2, low + high / 2
        else:
            low, high = np.minimum(low, high), np.maximum(low, high)
        areas = np.prod(high - low, axis=2)
        for batch, kind in np.ndindex(self.batches, self.classes):
            live = scores[batch, kind].copy()
            if self.score_threshold is not None:
                live[~(live > self.score_threshold)] = -np.inf
            most = count + self.most
            while count < most and live.max(initial=-np.inf) > -np.inf:
                best = int(live.argmax())
                rows[count] = batch, kind, best
                count += 1
                sides = np.minimum(high[batch], high[batch, best]) - np.maximum(low[batch], low[batch, best])
                both = np.prod(np.maximum(sides, 0.0), axis=1)
                some = (areas[batch] > 0) & (areas[batch, best] > 0) & (both > 0)
                union = np.where(some, areas[batch] + areas[batch, best] - both, 1.0)
                live[np.where(some, both, 0.0) / union > self.iou_threshold] = -np.inf
                live[best] = -np.inf
        return rows, np.array([count])


def _non_max_suppression(problem: NonMaxSuppressionProblem, e: Emission) -> list[KernelCall]:
    threshold = problem.score_threshold
    # a CPU driver's lanes beyond a subgroup only wait for others
    local = floor_power_of_two(min(e.caps.subgroup_size if is_cpu(e.caps) else 256, e.caps.max_workgroup_invocations))
    chosen = {
        "picks": e.target.scratch("uint32", (problem.pairs, problem.most)),
        "counts": e.target.scratch("uint32", (problem.pairs,)),
    }
    params = {"pairs": problem.pairs, "classes": problem.classes, "most": problem.most}
    # a score and an index of each in two lists, and a kibibyte beside them
    sorted_at_once = floor_power_of_two((e.caps.max_shared_memory_bytes - 1024) // 16)
    select = NMS.call(
        grid=grid(problem.pairs),
        operands={
            "boxes": e["boxes"],
            "scores": e["scores"],
            "listed": e.target.scratch("uint32", (problem.pairs, problem.box_count, 2)),
            **chosen,
        },
        params={
            **params,
            "box_count": problem.box_count,
            "iou_threshold": problem.iou_threshold,
            "score_threshold": 0.0 if threshold is None else threshold,
        },
        spec={
            "CENTERED": int(problem.centered),
            "HAS_THRESHOLD": int(threshold is not None),
            "SIZE": min(_SORTED, sorted_at_once),
        },
        local_size=(local,),
        flops=hint(problem.flops),
    )
    rows = NMS_ROWS.call(
        grid=grid(problem.pairs),
        operands={**chosen, "rows": e["rows"], "count": e["count"]},
        params=params,
        local_size=(min(local, 64),),
    )
    return [select, rows]


implement(NonMaxSuppressionProblem, Candidate("non-max suppression", _non_max_suppression))
