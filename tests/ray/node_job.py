"""A job on two Ray nodes of this machine, one of which ends during it: run by test_data.py in a process of its own.

    python -m tests.ray.node_job FOLDER

FOLDER gets a file for each batch, named after its first value: the job's driver ends a node once there are a few.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser

import vkep.ray

MODEL = '<ir_version: 9, opset_import: ["": 18]> g (float[n,3] x) => (float[n,3] y) { y = Mul(x, x) }'
ROWS = 2000


class Slow(vkep.ray.Predictor):
    """Notes its batches, and takes its time."""

    def __init__(self, model: Any, folder: str) -> None:
        super().__init__(model)
        self._folder = Path(folder)

    def __call__(self, batch: Any) -> Any:
        (self._folder / str(int(batch["x"][0, 0]))).touch()
        time.sleep(0.1)
        return self.predict(batch)


def main(folder: Path) -> None:
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 1, "object_store_memory": 100 << 20, "include_dashboard": False},
    )
    node = cluster.add_node(num_cpus=1, object_store_memory=100 << 20)
    ray.init(address=cluster.address, logging_level="error", log_to_driver=False)
    x = np.arange(ROWS * 3, dtype=np.float32).reshape(ROWS, 3)

    def end_node() -> None:
        while len(list(folder.iterdir())) < 20:
            time.sleep(0.1)
        cluster.remove_node(node, allow_graceful=False)
        print("a node ended", flush=True)

    threading.Thread(target=end_node, daemon=True).start()
    found = (
        ray.data.from_numpy(np.array_split(x, 20))
        .rename_columns({"data": "x"})
        .map_batches(
            Slow,
            fn_constructor_args=[vkep.ray.ship(onnx.parser.parse_model(MODEL)), str(folder)],
            batch_size=20,
            num_cpus=1,
            compute=ray.data.ActorPoolStrategy(min_size=1, max_size=2),
        )
        .take_all()
    )
    rows: list[np.ndarray[Any, Any]] = sorted((row["y"] for row in found), key=lambda y: float(y[0]))
    results = np.stack(rows)
    print("right" if np.array_equal(results, x * x) else f"wrong: {results.shape}", flush=True)
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
