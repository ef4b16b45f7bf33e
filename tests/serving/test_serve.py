"""`vkep serve` over HTTP and gRPC: both protocols, limits of clients, keys, metrics, logs, and how it ends."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.serving.conftest import Running, serving, write_models
from vkep.cli import app
from vkep.serving.kserve import ProtocolError
from vkep.serving.limits import Limits

X = np.arange(6, dtype=np.float32).reshape(2, 3)
LONG = {"prompt": "Hello", "max_tokens": 200, "ignore_eos": True}

#: an index that lies outside its axis, which the device finds
FAR = {"name": "i", "datatype": "INT64", "shape": [2, 1], "data": [2, 7]}


def asked(running: Running, path: str, body: Any = None, method: str = "", **headers: str) -> tuple[int, Any, Any]:
    """Status, headers and body of an answer."""
    connection = http.client.HTTPConnection(urlsplit(running.url).netloc, timeout=60)
    raw = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method or ("GET" if body is None else "POST"), path, raw, named)
    response = connection.getresponse()
    text = response.read()
    connection.close()
    kind = response.headers.get("content-type", "")
    return response.status, response.headers, json.loads(text) if text and "json" in kind else text


def tensor(x: np.ndarray[Any, Any] = X) -> dict[str, Any]:
    return {"inputs": [{"name": "x", "datatype": "FP32", "shape": list(x.shape), "data": x.ravel().tolist()}]}


def test_the_open_inference_protocol(running: Running) -> None:
    assert running.get("/v2")["name"] == "vkep" and running.get("/v2/")["version"]
    assert asked(running, "/v2/health/ready")[0] == asked(running, "/health")[0] == 200
    assert running.get("/v2/models/square")["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, -1]}]
    assert running.get("/v2/models/square/versions/1/config")["platform"] == "onnx_vkep"
    assert asked(running, "/v2/models/square/ready")[0] == 200
    index = asked(running, "/v2/repository/index", {})[2]
    assert {one["name"] for one in index} == {"square", "pick", "encoder"}
    status, _, found = asked(running, "/v2/models/square/infer", tensor())
    assert status == 200 and found["outputs"][0]["data"] == (X * X).ravel().tolist()
    given = {"name": "x", "datatype": "FP32", "shape": [2, 3], "parameters": {"binary_data_size": 24}}
    text = json.dumps({"inputs": [given]}).encode()
    headers = {"Inference_Header_Content_Length": str(len(text)), "Content_Encoding": "gzip"}
    status, _, answer = asked(running, "/v2/models/square/infer", gzip.compress(text + X.tobytes()), **headers)
    assert status == 200 and answer["outputs"][0]["data"] == (X * X).ravel().tolist()


def test_tritonclient(running: Running) -> None:
    module = pytest.importorskip("tritonclient.http")
    with contextlib.closing(module.InferenceServerClient(urlsplit(running.url).netloc)) as client:
        given = module.InferInput("x", list(X.shape), "FP32")
        given.set_data_from_numpy(X)
        np.testing.assert_array_equal(client.infer("square", [given]).as_numpy("y"), X * X)


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v2/models/none/infer", {}, 404),
        ("/v2/models/square/infer", {"inputs": []}, 400),
        ("/v2/models/square/infer", b"{", 400),
        ("/v2/models/pick/infer", {"inputs": [*tensor()["inputs"], FAR]}, 400),
        ("/v2/models/square", {}, 405),
        ("/v2/nothing", None, 404),
        ("/v1/nothing", None, 404),
        ("/v1/chat/completions", None, 405),
        ("/v1/completions", b"[" * (5 << 20), 413),
        ("/v1/completions", {"model": "llama", "prompt": [999999]}, 400),
        ("/v1/embeddings", {"model": "encoder", "input": [[]]}, 400),
        ("/elsewhere", None, 404),
    ],
)  # fmt: skip
def test_errors_have_the_form_of_the_protocol(running: Running, path: str, body: Any, status: int) -> None:
    got, headers, error = asked(running, path, body)
    assert got == status
    message = error["error"]["message"] if path.startswith("/v1") else error["error"]
    assert isinstance(message, str) and message
    assert status != 405 or headers["Allow"]
    assert status != 404 or path.split("/")[-1] in message or "none" in message


def test_requests_share_runs_and_get_their_own_rows(running: Running) -> None:
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal((1 + k % 3, 3)).astype(np.float32) for k in range(40)]
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda x: asked(running, "/v2/models/square/infer", tensor(x)), inputs))
    for x, (status, _, answer) in zip(inputs, found, strict=True):
        assert status == 200
        np.testing.assert_allclose(np.reshape(answer["outputs"][0]["data"], x.shape), x * x, rtol=1e-6)


def test_metrics_pages_and_logs(running: Running) -> None:
    asked(running, "/v1/completions", {"model": "llama", "prompt": "x", "max_tokens": 2})
    asked(running, "/v2/models/square/infer", tensor())
    asked(running, "/v2/models/square/infer", b"{")
    text = running.get("/metrics")
    for expected in (
        'vkep_requests_total{model="square",status="200",version="1"}',
        'vkep_requests_total{model="square",status="400",version="1"}',
        'vkep_generation_tokens_total{model="llama"}',
        'vkep_errors_total{kind="ProtocolError"}',
        'vkep_run_rows_count{model="square",version="1"}',
        'vkep_http_requests_total{path="/v1/completions",status="200"}',
        'vkep_queue_seconds_count{model="square",version="1"}',
        "process_resident_memory_bytes",
    ):
        assert expected in text, expected
    paths = running.get("/openapi.json")["paths"]
    assert {"/v1/chat/completions", "/v1/embeddings", "/v2/models/{name}/infer", "/metrics"} <= paths.keys()
    assert "messages" in json.dumps(paths["/v1/chat/completions"]["post"]["requestBody"])
    lines = [json.loads(line) for line in running.log.read_text().splitlines()]
    requests = [line for line in lines if line["message"] == "request"]
    assert {"method", "path", "status", "ms", "client", "time"} <= requests[-1].keys()


def test_a_client_that_goes_away_leaves_its_place(running: Running) -> None:
    for stream in (True, False) * 4:  # more than there are places
        connection = socket.create_connection((urlsplit(running.url).hostname, urlsplit(running.url).port))
        body = json.dumps({"model": "llama", **LONG, "stream": stream}).encode()
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        if stream:
            connection.recv(100)
        connection.close()
    started = time.monotonic()
    assert asked(running, "/v1/completions", {"model": "llama", "prompt": "Hello", "max_tokens": 2})[0] == 200
    deadline = started + 30
    while 'vkep_generation_answers{model="llama"} 0.0' not in running.get("/metrics"):
        assert time.monotonic() < deadline
        asked(running, "/v1/completions", {"model": "llama", "prompt": "Hello", "max_tokens": 1})


@pytest.fixture(scope="module")
def guarded(vulkan: object, running: Running, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server with keys, narrow limits, and gRPC where it is installed."""
    folder = tmp_path_factory.mktemp("guarded")
    write_models(folder)
    limits = ("--client-requests", "3", "--max-requests", "5", "--stop-s", "2", "--max-sequences", "4")
    with serving(
        folder, ("llama", "square=square.onnx"), *limits, "--api-key", "first", "--api-key", "second"
    ) as found:
        yield found


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_requests_need_a_key(guarded: Running) -> None:
    body = {"prompt": "x", "max_tokens": 1}
    for headers in ({}, bearer("third"), bearer(""), {"Authorization": "first"}, {"Authorization": "Bearer \xff"}):
        status, _, error = asked(guarded, "/v1/completions", body, **headers)
        assert status == 401 and error["error"]["code"] == "invalid_api_key"
    assert asked(guarded, "/v1/completions", body, **bearer("second"))[0] == 200
    assert asked(guarded, "/v2/models/square/infer", tensor())[0] == 401
    assert asked(guarded, "/health")[0] == asked(guarded, "/metrics")[0] == 200


def test_a_client_has_so_many_requests_and_others_go_on(guarded: Running) -> None:
    with ThreadPoolExecutor(8) as pool:
        long = [pool.submit(asked, guarded, "/v1/completions", LONG, **bearer("first")) for _ in range(3)]
        status, deadline = 200, time.monotonic() + 30
        while status == 200 and time.monotonic() < deadline and not all(one.done() for one in long):
            status, headers, error = asked(guarded, "/v1/models", **bearer("first"))
        assert status == 429 and error["error"]["code"] == "rate_limit_exceeded" and headers["Retry-After"]
        other = asked(guarded, "/v1/completions", {"prompt": "x", "max_tokens": 2}, **bearer("second"))
        assert other[0] == 200 and not all(one.done() for one in long)
        assert [one.result()[0] for one in long] == [200] * 3
    assert asked(guarded, "/v1/models", **bearer("first"))[0] == 200


def test_the_limits_count_what_is_in_progress() -> None:
    limits = Limits(2, 3)
    with contextlib.ExitStack() as stack:
        for client in ("a", "a", "b"):
            stack.enter_context(limits.request(client))
        for client, status in (("a", 429), ("b", 503)):
            with pytest.raises(ProtocolError) as raised, limits.request(client):
                pass
            assert raised.value.status == status
    with limits.request("a"), limits.request("a"), limits.request("b"):
        pass


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM to handle")
def test_sigterm_ends_requests_within_the_bound(guarded: Running) -> None:
    """The last test of this server."""
    done: list[float] = []

    def ask() -> None:
        with contextlib.suppress(OSError, http.client.HTTPException):
            asked(guarded, "/v1/completions", {**LONG, "prompt": "x", "n": 100, "max_tokens": 240}, **bearer("first"))
        done.append(time.monotonic())

    thread = threading.Thread(target=ask)
    thread.start()
    time.sleep(1)
    started = time.monotonic()
    guarded.process.send_signal(signal.SIGTERM)
    assert guarded.process.wait(20) == 0
    thread.join()
    assert done[0] - started < 15 and time.monotonic() - started < 20
    assert "Traceback" not in guarded.log.read_text()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nothing.onnx"], "no such file"),
        (["a=square.onnx", "a=square.onnx"], "a name of its own"),
        (["square.onnx", "--log", "xml"], "--log"),
    ],
)
def test_wrong_usage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], says: str) -> None:
    (tmp_path / "square.onnx").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    found = CliRunner().invoke(app, ["serve", *arguments])
    assert found.exit_code == 2 and says in found.output


def test_only_who_reads_nothing_is_disconnected() -> None:
    """The connection is closed where a minute passes in which the client reads nothing of what was written."""
    pytest.importorskip("uvicorn")
    from vkep.serving.server import Protocol

    later: list[Any] = []
    left = [900, 500, 500]
    events: list[str] = []
    protocol = Protocol.__new__(Protocol)
    protocol.flow = SimpleNamespace(pause_writing=lambda: None)
    protocol.loop = SimpleNamespace(call_later=lambda seconds, call, *args: later.append((call, args)))
    protocol.transport = SimpleNamespace(get_write_buffer_size=lambda: left[0], abort=lambda: events.append("closed"))
    protocol.pause_writing()
    while later:
        left.pop(0)
        call, args = later.pop()
        call(*args)
        assert bool(events) == (len(left) == 1)
