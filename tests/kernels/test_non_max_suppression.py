"""NonMaxSuppression: lists of boxes, sorted at once and in portions, against the reference."""

from __future__ import annotations

import numpy as np
import pytest

from gpu_shared.capabilities import DeviceCapabilities
from tests.kernels.harness import Harness, Tensor
from vkep.kernels.indexing.selection import NonMaxSuppressionProblem


def check(
    gpu: Harness, caps: DeviceCapabilities, boxes: np.ndarray, scores: np.ndarray, most: int, least: float | None
) -> np.ndarray:
    batches, classes, box_count = scores.shape
    counts = np.empty(batches * classes, np.int64)
    for overlap, centered in ((0.0, False), (0.4, False), (0.4, True), (1.0, True)):
        problem = NonMaxSuppressionProblem(batches, classes, box_count, most, overlap, least, centered)
        outputs = [Tensor.empty((problem.pairs * most, 3), np.int64), Tensor.empty((1,), np.int64)]
        gpu.compute(problem, caps, [Tensor(boxes), Tensor(scores)], outputs, compare=False)
        rows, count = problem.reference(boxes, scores)
        assert outputs[1].array == count
        np.testing.assert_array_equal(outputs[0].array[: int(count[0])], rows[: int(count[0])])
        pairs = rows[: int(count[0]), 0] * classes + rows[: int(count[0]), 1]
        counts = np.bincount(pairs.astype(np.int64), minlength=problem.pairs)
    return counts


@pytest.mark.parametrize("box_count", [1, 3, 33, 257, 1025, 2500])
@pytest.mark.parametrize("least", [None, 0.5, 0.99])
def test_lists_shorter_and_longer_than_a_workgroup(
    gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator, box_count: int, least: float | None
) -> None:
    corner = rng.integers(0, 60, (2, box_count, 2)).astype(np.float32)
    boxes = np.concatenate([corner, corner + rng.integers(-9, 20, corner.shape)], 2).astype(np.float32)
    scores = rng.random((2, 3, box_count), np.float32)
    for most in {1, min(7, box_count), min(box_count, 300)}:
        check(gpu, caps, boxes, scores, most, least)


def test_equal_scores_and_scores_that_are_never_selected(
    gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator
) -> None:
    corner = rng.integers(0, 300, (1, 600, 2)).astype(np.float32)
    boxes = np.concatenate([corner, corner + 20], 2)
    scores = rng.integers(0, 4, (1, 2, 600)).astype(np.float32)
    scores[0, 1] = np.where(scores[0, 1] < 2, -np.inf, scores[0, 1])
    for least in (None, 2.0, -1.0):
        check(gpu, caps, boxes, scores, 600, least)
    assert not check(gpu, caps, boxes, np.full((1, 1, 600), -np.inf, np.float32), 5, None).any()


def test_boxes_of_later_portions_overlap_those_of_earlier_ones(
    gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator
) -> None:
    """Scores close to each other, of many orders of magnitude, negative, and infinite: any may be bounded by one bin."""
    corner = rng.integers(0, 200, (1, 1500, 2)).astype(np.float32)
    boxes = np.concatenate([corner, corner + 9], 2)
    near = rng.random(1500) * 1e-4 + 0.9
    signed = rng.random(1500) * 1e-4 - 5e-5
    scores = np.stack([near, signed, np.exp(-40 * rng.random(1500)), np.where(near > 0.90005, np.inf, near)])
    assert check(gpu, caps, boxes, scores.astype(np.float32)[None], 1500, None).min() > 256


def test_portions_that_the_best_of_parts_do_not_bound_at_once(
    gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator
) -> None:
    """The highest scores are of few parts of the list: the first bound leaves more boxes than a workgroup sorts."""
    corner = rng.integers(0, 2000, (1, 9000, 2)).astype(np.float32)
    boxes = np.concatenate([corner, corner + 30], 2)
    scores = rng.random((1, 1, 9000), np.float32)
    scores[..., np.arange(9000) % 1024 < 400] += 2
    assert check(gpu, caps, boxes, scores, 700, 0.1).min() > 256
