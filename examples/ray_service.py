"""Two versions of a model as a service with Ray Serve, asked in the Open Inference protocol.

    python examples/ray_service.py [GPUS]

GPUS: replicas with a GPU each (0, the default: one on the CPU's driver). Needs Ray: pip install vkep[ray].
"""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from typing import Any

import onnx.parser

os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # a cluster of this process alone

import ray
from ray import serve

import vkep.ray

DOUBLE = '<ir_version: 8, opset_import: ["" : 17]> g (float[n, 2] x) => (float[n, 2] y) { y = Add(x, x) }'
SQUARE = '<ir_version: 8, opset_import: ["" : 17]> g (float[n, 2] x) => (float[n, 2] y) { y = Mul(x, x) }'
PORT = int(os.environ.get("PORT", "8000"))


def ask(path: str, request: Any = None) -> Any:
    """A GET, or a POST of JSON, and its answer."""
    body = None if request is None else json.dumps(request).encode()
    with urllib.request.urlopen(f"http://127.0.0.1:{PORT}{path}", body, timeout=60) as response:
        return json.loads(response.read())


def main(gpus: int) -> None:
    ray.init(
        address="local",
        num_cpus=None if gpus else 4,
        include_dashboard=False,
        logging_level="error",
        log_to_driver=False,
    )
    serve.start(http_options={"port": PORT}, logging_config={"enable_access_log": False, "log_level": "ERROR"})
    versions = {
        str(at): onnx.parser.parse_model(text).SerializeToString() for at, text in enumerate((DOUBLE, SQUARE), 1)
    }
    application = vkep.ray.deployment(
        {"numbers": versions},
        num_gpus=1 if gpus else 0,
        num_replicas=gpus or 1,
        options={"rows": 16, "wait_ms": 5},  # up to 16 rows share a run; the first waits 5 ms for others
    )
    serve.run(application)

    print("metadata:", ask("/v2/models/numbers"))
    request = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [3, 4]}]}
    for path in ("/v2/models/numbers/infer", "/v2/models/numbers/versions/1/infer"):
        answer = ask(path, request)
        print(f"version {answer['model_version']}: {answer['outputs'][0]['data']}")
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
