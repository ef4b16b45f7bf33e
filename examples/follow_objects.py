"""Follow an object through a video by a point in its first frame.

    vkep model objects                                      # a small model with random weights: its masks mean nothing
    python examples/follow_objects.py objects [VIDEO X Y]

A real model: ``python examples/export_sam2.py facebook/sam2.1-hiera-tiny sam2``. VIDEO is any file that OpenCV reads (``pip
install opencv-python-headless``), and X and Y are a point of the object in the pixels of its first frame; without them a square
moves over noise.
"""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path

import numpy as np
from video import frames  # type: ignore[import-not-found]  # the file beside this one

from vkep.generation.images import Processor
from vkep.video_objects import Prompt, VideoObjects

MOST_FRAMES = 300


def main() -> None:
    if len(sys.argv) not in (2, 5):
        raise SystemExit("usage: python examples/follow_objects.py FOLDER [VIDEO X Y]")
    folder, given = sys.argv[1], sys.argv[2:]
    with VideoObjects(folder) as video:
        height, width = video.size
        processor = Processor.of(Path(folder))
        for number, frame in enumerate(islice(frames(given[0] if given else None, 240, 320), MOST_FRAMES)):
            x, y = (float(given[1]), float(given[2])) if given else (20.0, 20.0)
            point = x * width / frame.shape[1], y * height / frame.shape[0]
            pixels = processor.pixels(np.ascontiguousarray(frame)).values
            mask = video.frame(pixels, {"object": Prompt([point])} if number == 0 else None)["object"]
            rows, columns = np.nonzero(mask[0, 0] > 0)
            where = f", x {columns.min()} to {columns.max()}, y {rows.min()} to {rows.max()}" if len(rows) else ""
            print(f"frame {number}: {len(rows)} of {mask.size} pixels{where}")


if __name__ == "__main__":
    main()
