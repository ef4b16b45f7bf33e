"""`vkep serve --grpc-port`: tritonclient's gRPC client, as it is."""

from __future__ import annotations

import queue
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.ray.conftest import free_ports
from tests.serving.conftest import serving, write_models

X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.gpu
def test_tritonclient_over_grpc(vulkan: object, tmp_path: Path) -> None:
    module = pytest.importorskip("tritonclient.grpc")
    pytest.importorskip("fastapi")
    [port] = free_ports(1)
    write_models(tmp_path)
    with serving(tmp_path, ["square.onnx"], "--grpc-port", str(port)):
        client = module.InferenceServerClient(f"127.0.0.1:{port}")
        assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("square")
        assert client.get_model_metadata("square").inputs[0].name == "x"
        given = module.InferInput("x", list(X.shape), "FP32")
        given.set_data_from_numpy(X)
        np.testing.assert_array_equal(client.infer("square", [given]).as_numpy("y"), X * X)
        with pytest.raises(Exception, match="there is no model"):
            client.infer("none", [given])
        found: queue.Queue[Any] = queue.Queue()
        client.start_stream(callback=lambda result, error: found.put((result, error)))
        for _ in range(3):
            client.async_stream_infer("square", [given])
        for _ in range(3):
            result, error = found.get(timeout=60)
            assert error is None
            np.testing.assert_array_equal(result.as_numpy("y"), X * X)
        client.stop_stream()
        client.close()
