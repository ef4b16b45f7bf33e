"""Detect objects in a video: the next frame is decoded and uploaded while the device works on the last one.

    vkep model detector                           # a small model with random weights: its boxes mean nothing
    python examples/video.py detector.onnx [VIDEO]

A real model: ``yolo export model=yolo11n.pt format=onnx`` (YOLOv8 to 12 without NMS in the model). VIDEO is any file that OpenCV
reads (``pip install opencv-python-headless``); without it a square moves over noise.

A frame has one of two slots: a tensor of the device that the host writes, one that the model writes and the host sees, and a
binding of both. A run is submitted and not waited for (`run_ahead`: nor does the next run wait for it), so the host writes one
slot and reads the other while the device works. The last line compares it with one slot. A CPU driver works on the host's cores,
where it makes little difference.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from itertools import islice

import numpy as np
from detect import moving_square, objects  # type: ignore[import-not-found]  # the file beside this one

import vkep

MOST_FRAMES = 300


class Slot:
    """Tensors for a frame and its results on the device, and what the model reads and writes."""

    def __init__(self, session: vkep.InferenceSession, shape: tuple[int, ...]) -> None:
        (image,), output = session.get_inputs(), session.get_outputs()[0]
        self.session, self.binding = session, session.io_binding()
        self.frame = session.empty_device_tensor(shape, "float32")
        self.binding.bind_input(image.name, self.frame)
        self.binding.bind_output(output.name)
        self.submit(np.zeros(shape, np.float32))
        first = self.binding.get_outputs()[0]  # the first run says its shape: later ones write there
        self.found = session.empty_device_tensor(first.shape, first.dtype.name, host_visible=True)
        self.binding.bind_output(output.name, self.found)

    def submit(self, pixels: np.ndarray) -> None:
        """Upload a frame, after the run that read the last one of this slot, and begin its run."""
        self.frame.write(pixels)
        self.session.run_with_iobinding(self.binding)

    def results(self) -> np.ndarray:
        """Wait for the run, and for no later one. The array is valid until the slot's next run."""
        return self.found.host_view()[0]


def frames(path: str | None, height: int, width: int) -> Iterator[np.ndarray]:
    """uint8 [height, width, 3] in RGB."""
    if path is None:
        for _ in range(3):
            yield from moving_square(height, width)
        return
    import cv2  # type: ignore[import-not-found]

    video = cv2.VideoCapture(path)
    while (read := video.read())[0]:
        yield read[1][..., ::-1]


def pixels(frame: np.ndarray, height: int, width: int) -> np.ndarray:
    """float32 [1, 3, height, width] of 0 to 1: the nearest pixels of a frame of any size."""
    rows = np.arange(height) * frame.shape[0] // height
    columns = np.arange(width) * frame.shape[1] // width
    return np.ascontiguousarray(frame[rows][:, columns].transpose(2, 0, 1)[None], np.float32) / 255


def detect(session: vkep.InferenceSession, slots: list[Slot], source: list[np.ndarray], say: bool) -> float:
    """Milliseconds of a frame. As many runs are submitted as there are slots before the oldest one is waited for."""
    height, width = slots[0].frame.shape[2:]
    waiting: list[Slot] = []
    start = time.perf_counter()
    for number in range(len(source) + len(slots) - 1):
        if number < len(source):
            waiting.append(slots[number % len(slots)])
            waiting[-1].submit(pixels(source[number], height, width))
        if len(waiting) == len(slots) or number >= len(source):
            found = objects(waiting.pop(0).results())
            if say:
                print(
                    f"frame {number - len(slots) + 1}: {len(found)} objects, classes {[kind for kind, _, _ in found[:5]]}"
                )
    return 1e3 * (time.perf_counter() - start) / len(source)


def main() -> None:
    if len(sys.argv) < 2:
        raise SystemExit("usage: python examples/video.py MODEL.onnx [VIDEO]")
    with vkep.InferenceSession(sys.argv[1], run_ahead=True) as session:
        height, width = (d if isinstance(d, int) else 640 for d in (session.get_inputs()[0].shape or [])[2:])
        slots = [Slot(session, (1, 3, height, width)) for _ in range(2)]
        source = list(islice(frames(sys.argv[2] if len(sys.argv) > 2 else None, height, width), MOST_FRAMES))
        detect(session, slots, source[:4], say=False)  # the driver's first runs
        alone, beside = detect(session, slots[:1], source, say=False), detect(session, slots, source, say=True)
        print(f"{len(source)} frames: {beside:.2f} ms a frame; {alone:.2f} ms where each waits for the one before")


if __name__ == "__main__":
    main()
