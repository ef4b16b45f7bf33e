"""A model over a dataset with Ray Data, one actor a device.

    python examples/ray_batch.py [GPUS]

GPUS: actors with a GPU each (0, the default: two actors on the CPU's driver). Needs Ray: pip install vkep[ray].
"""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
import onnx.parser

os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # a cluster of this process alone

import ray

import vkep.ray

MODEL = '<ir_version: 8, opset_import: ["" : 17]> scores (float[n, 64] x) => (float[n, 64] y) { y = Softmax(x) }'


class Labels(vkep.ray.Predictor):
    """The label of each row in place of its scores."""

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        found = self.predict(batch)
        return {"id": found["id"], "label": found["y"].argmax(1)}


def main(gpus: int) -> None:
    ray.init(
        address="local",
        num_cpus=None if gpus else 4,
        include_dashboard=False,
        logging_level="error",
        log_to_driver=False,
    )
    ray.data.DataContext.get_current().enable_progress_bars = False
    model = vkep.ray.ship(onnx.parser.parse_model(MODEL))  # to each node once

    def rows(batch: dict[str, Any]) -> dict[str, Any]:
        return {"id": batch["id"], "x": np.eye(64, dtype=np.float32)[batch["id"] % 64]}

    dataset = ray.data.range(1000, override_num_blocks=8).map_batches(rows)
    labels = dataset.map_batches(
        Labels,
        fn_constructor_args=[model],
        fn_constructor_kwargs={"warm": 64},
        batch_size=64,
        num_gpus=1 if gpus else 0,
        compute=ray.data.ActorPoolStrategy(size=gpus or 2),
    )
    found = labels.take_all()
    print(f"{len(found)} rows, {sum(row['label'] == row['id'] % 64 for row in found)} of them right")
    ray.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
