"""`vkep serve --grpc-port`: tritonclient's gRPC client, as it is; keys, limits and attacks."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.ray.conftest import free_ports
from tests.serving.conftest import serving, write_models
from vkep.serving.limits import Limits

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


class Context:
    """What Serve gives to a method of a gRPC service."""

    def __init__(self, **metadata: str) -> None:
        self.metadata, self.code = tuple(metadata.items()), ""

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return self.metadata

    def set_code(self, code: Any) -> None:
        self.code = code.name

    def set_details(self, details: str) -> None:
        assert "Bearer" in details


def test_requests_over_grpc_need_the_key_on_ray_too() -> None:
    pytest.importorskip("grpc")
    from vkep.serving.servicer import Servicer

    servicer = Servicer()
    servicer.service = SimpleNamespace(limits=Limits(0, 0, ["one"]), options=SimpleNamespace(max_body=100))  # type: ignore[assignment]
    none, right, watcher, stream = Context(), Context(authorization="Bearer one"), Context(), Context()

    async def no_requests() -> AsyncIterator[bytes]:
        yield b""

    async def answers() -> list[Any]:
        await servicer.ServerMetadata(b"", none)
        await servicer.ServerMetadata(b"", right)
        await servicer.ServerLive(b"", watcher)
        return [answer async for answer in servicer.ModelStreamInfer(no_requests(), stream)]

    assert asyncio.run(answers()) == []
    assert [c.code for c in (none, right, watcher, stream)] == ["UNAUTHENTICATED", "", "", "UNAUTHENTICATED"]


@pytest.mark.gpu
def test_requests_over_grpc_need_the_key_and_attacks_change_no_answer(vulkan: object, tmp_path: Path) -> None:
    pytest.importorskip("grpc")
    pytest.importorskip("fastapi")
    from tools.fuzz.service_grpc import INFER, STREAM, Channel, infer
    from tools.fuzz.services import GRPC_KINDS, attack_for

    [port] = free_ports(1)
    write_models(tmp_path)
    request, address = infer(x=X).SerializeToString(), f"127.0.0.1:{port}"
    with serving(tmp_path, ["square.onnx"], "--grpc-port", str(port), "--api-key", "one"):
        channel = Channel(address)
        assert channel.send(INFER, request) == channel.send(STREAM, request) == "UNAUTHENTICATED"
        assert channel.send("/inference.GRPCInferenceService/ServerReady", b"") == "OK"
        assert (X * X).tobytes() in channel.ask(request, metadata=[("authorization", "Bearer one")])
        channel.close()
    with serving(tmp_path, ["square.onnx", "pick.onnx"], "--grpc-port", str(port)):
        channel = Channel(address)
        answer = channel.ask(request)
        for kind in GRPC_KINDS:
            sent = attack_for(address, kind, 1, 20, 10, threads=2)
            assert sum(sent.values()) >= 1 and "INTERNAL" not in sent, sent
            assert channel.ask(request) == answer
        channel.close()
