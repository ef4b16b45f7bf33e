"""Detect objects in the frames of a video with a YOLO model.

    vkep model detector                           # a small model with random weights: its boxes mean nothing
    python examples/detect.py detector.onnx [FRAMES.npy]

A real model: ``yolo export model=yolov8n.pt format=onnx`` (YOLOv8 to 12 without NMS in the model). FRAMES.npy is uint8 [frames,
height, width, 3] in the model's size; without it a square moves over noise.
"""

from __future__ import annotations

import sys
import time

import numpy as np

import vkep

LEAST_SCORE, MOST_OVERLAP = 0.25, 0.45


def overlap(box: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The intersection of a box (x0, y0, x1, y1) with others [n, 4], as parts of their union."""
    low, high = np.maximum(box[:2], others[:, :2]), np.minimum(box[2:], others[:, 2:])
    shared = np.clip(high - low, 0, None).prod(axis=1)
    return shared / ((box[2:] - box[:2]).prod() + (others[:, 2:] - others[:, :2]).prod(axis=1) - shared)


def objects(output: np.ndarray) -> list[tuple[int, float, np.ndarray]]:
    """Class, score and box of each object, from float32 [4 + classes, anchors]: centres and sizes, then scores."""
    centre, size, scores = output[:2].T, output[2:4].T, output[4:]
    boxes = np.concatenate([centre - size / 2, centre + size / 2], axis=1)
    kinds, best = scores.argmax(axis=0), scores.max(axis=0)
    left = [k for k in np.argsort(-best) if best[k] >= LEAST_SCORE]
    found = []
    while left:
        first, *left = left
        found.append((int(kinds[first]), float(best[first]), boxes[first]))
        near = overlap(boxes[first], boxes[left])
        left = [k for k, o in zip(left, near, strict=True) if o < MOST_OVERLAP or kinds[k] != kinds[first]]
    return found


def moving_square(height: int, width: int) -> np.ndarray:
    """Ten frames."""
    frames = np.random.default_rng(0).integers(0, 60, (10, height, width, 3)).astype(np.uint8)
    for k, frame in enumerate(frames):
        frame[height // 4 : height // 2, k * width // 20 : k * width // 20 + width // 4] = 230
    return frames


def main() -> None:
    if len(sys.argv) < 2:
        raise SystemExit("usage: python examples/detect.py MODEL.onnx [FRAMES.npy]")
    with vkep.InferenceSession(sys.argv[1]) as session:
        (image,) = session.get_inputs()
        height, width = (d if isinstance(d, int) else 640 for d in (image.shape or [])[2:])
        frames = np.load(sys.argv[2]) if len(sys.argv) > 2 else moving_square(height, width)
        for number, frame in enumerate(frames):
            start = time.perf_counter()
            pixels = np.ascontiguousarray(frame.transpose(2, 0, 1)[None], np.float32) / 255
            found = objects(session.run(None, {image.name: pixels})[0][0])
            spent = 1e3 * (time.perf_counter() - start)
            print(f"frame {number}: {len(found)} objects, {spent:.1f} ms")
            for kind, score, box in found[:3]:
                print(f"  class {kind}, {score:.2f}, at {np.round(box).astype(int).tolist()}")


if __name__ == "__main__":
    main()
