"""`vkep.ray.deployment` on Ray Serve: tritonclient as it is, hostile requests, overload, killed replicas, updates."""

from __future__ import annotations

import gzip
import http.client
import json
import os
import queue
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import vkep.ray
from tests.ray.conftest import KILL, Ports, replicas
from tests.session.models import model

pytestmark = pytest.mark.slow

SQUARE = model("g (float[n,s] x) => (float[n,s] y) { y = Mul(x, x) }").SerializeToString()
NEGATIVE = model("g (float[n,s] x) => (float[n,s] y) { y = Neg(x) }").SerializeToString()
PICK = model(
    "g (float[n,3] x, int64[n,1] i) => (float[n,1] y) { y = GatherElements <axis = 1> (x, i) }"
).SerializeToString()
UPPER = model(
    'g (string[n] s) => (string[n] u) { u = StringNormalizer <case_change_action = "UPPER"> (s) }'
).SerializeToString()
X = np.arange(6, dtype=np.float32).reshape(2, 3)
INFER = "/v2/models/square/infer"


def request_of(x: np.ndarray[Any, Any] = X) -> dict[str, Any]:
    return {"inputs": [{"name": "x", "datatype": "FP32", "shape": list(x.shape), "data": x.ravel().tolist()}]}


@pytest.fixture(scope="module")
def service(serving: Ports) -> Iterator[Ports]:
    from ray import serve

    models = {"square": {"1": NEGATIVE, "2": SQUARE}, "pick": PICK, "upper": UPPER, "shipped": vkep.ray.ship(SQUARE)}
    options = {"rows": 8, "independent": ["upper"], "max_body": 1 << 20, "body_s": 3, "retry_after_s": 2}
    serve.run(vkep.ray.deployment(models, options=options, ray_actor_options={"num_cpus": 0.5}), name="vkep")
    yield serving
    serve.delete("vkep")


class Answer:
    """An HTTP answer."""

    def __init__(self, ports: Ports, path: str, body: Any = None, method: str = "", **headers: str) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", ports.http, timeout=60)
        raw = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method or ("GET" if body is None else "POST"), path, raw, named)
        response = connection.getresponse()
        self.status, self.headers, self.body = response.status, response.headers, response.read()
        connection.close()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@pytest.fixture(params=["http", "grpc"])
def triton(request: pytest.FixtureRequest, service: Ports) -> Iterator[tuple[Any, Any]]:
    """tritonclient's module for a protocol, and a client of it."""
    module = pytest.importorskip(f"tritonclient.{request.param}")
    client = module.InferenceServerClient(f"127.0.0.1:{getattr(service, request.param)}")
    yield module, client
    client.close()


def tensor(module: Any, name: str, array: np.ndarray[Any, Any]) -> Any:
    given = module.InferInput(name, list(array.shape), "FP32" if array.dtype == np.float32 else "INT64")
    given.set_data_from_numpy(array)
    return given


def test_tritonclient_works_unchanged(triton: tuple[Any, Any]) -> None:
    module, client = triton
    assert client.is_server_live() and client.is_server_ready()
    assert client.is_model_ready("square") and client.is_model_ready("square", "1")
    server = client.get_server_metadata()
    assert "vkep" in str(server) and "binary_tensor_data" in str(server)
    metadata = client.get_model_metadata("square")
    assert (
        "FP32" in str(metadata) and "['1', '2']" in str(metadata).replace('"', "'").replace("\n", "")
    ) or "2" in str(metadata)
    assert "TYPE_FP32" in str(client.get_model_config("square"))
    index = client.get_model_repository_index()
    assert len(index if isinstance(index, list) else index.models) == 5 and "READY" in str(index)
    np.testing.assert_array_equal(client.infer("square", [tensor(module, "x", X)]).as_numpy("y"), X * X)
    np.testing.assert_array_equal(client.infer("shipped", [tensor(module, "x", X)]).as_numpy("y"), X * X)
    asked = [module.InferRequestedOutput("y")]
    result = client.infer("square", [tensor(module, "x", X)], model_version="1", outputs=asked, request_id="seven")
    np.testing.assert_array_equal(result.as_numpy("y"), -X)
    assert "seven" in str(result.get_response())
    given = [tensor(module, "x", X), tensor(module, "i", np.array([[2], [0]], np.int64))]
    found = client.infer("pick", given)
    np.testing.assert_array_equal(found.as_numpy("y"), [[2], [3]])


@pytest.mark.parametrize(
    ("name", "inputs", "says"),
    [
        ("nothing", {"x": X}, "there is no model 'nothing'"),
        ("square", {"q": X}, "no input 'q'"),
        ("square", {"x": X[0]}, r"got shape \[3\]"),
        ("square", {"x": X.astype(np.int64)}, "got datatype 'INT64'"),
        ("pick", {"x": X, "i": np.array([[2], [7]])}, "pick|index|GatherElements"),
        ("pick", {"x": X, "i": np.array([[2], [0], [1]])}, "GatherElements"),
    ],
)
def test_tritonclient_gets_the_error(triton: tuple[Any, Any], name: str, inputs: Any, says: str) -> None:
    from tritonclient.utils import InferenceServerException

    module, client = triton
    with pytest.raises(InferenceServerException, match=says) as raised:
        client.infer(name, [tensor(module, key, array) for key, array in inputs.items()])
    status = str(raised.value.status())
    assert (
        status in ("404", "StatusCode.NOT_FOUND")
        if name == "nothing"
        else status in ("400", "StatusCode.INVALID_ARGUMENT")
    )


def test_tritonclients_other_ways_of_sending(service: Ports) -> None:
    module = pytest.importorskip("tritonclient.http")
    client = module.InferenceServerClient(f"127.0.0.1:{service.http}")
    for encoding in ("gzip", "deflate"):
        result = client.infer("square", [tensor(module, "x", X)], request_compression_algorithm=encoding)
        np.testing.assert_array_equal(result.as_numpy("y"), X * X)
    plain = module.InferInput("x", [2, 3], "FP32")
    plain.set_data_from_numpy(X, binary_data=False)
    result = client.infer("square", [plain], outputs=[module.InferRequestedOutput("y", binary_data=False)])
    np.testing.assert_array_equal(result.as_numpy("y"), X * X)
    answers = [client.async_infer("square", [tensor(module, "x", X)]) for _ in range(20)]
    assert all(np.array_equal(answer.get_result().as_numpy("y"), X * X) for answer in answers)
    client.close()


def test_tritonclients_streams(service: Ports) -> None:
    module = pytest.importorskip("tritonclient.grpc")
    heard: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with module.InferenceServerClient(f"127.0.0.1:{service.grpc}") as client:
        client.start_stream(lambda result, error: heard.put((result, error)))
        for at in range(12):
            client.async_stream_infer(
                "nothing" if at == 5 else "square", [tensor(module, "x", X + at)], request_id=str(at)
            )
        found = [heard.get(timeout=60) for _ in range(12)]
        client.stop_stream()
    for at, (result, error) in enumerate(found):
        if at == 5:
            assert result is None and "there is no model 'nothing'" in str(error)
        else:
            assert error is None and result.get_response().id == str(at)
            np.testing.assert_array_equal(result.as_numpy("y"), (X + at) ** 2)


def test_tritonclients_strings(triton: tuple[Any, Any]) -> None:
    module, client = triton
    given = module.InferInput("s", [2], "BYTES")
    given.set_data_from_numpy(np.array(["a", "bc"], object))
    assert client.infer("upper", [given]).as_numpy("u").tolist() == [b"A", b"BC"]


def test_metrics_are_at_rays_endpoint(service: Ports) -> None:
    import ray

    port = ray._private.worker._global_node.address_info["metrics_export_port"]
    assert Answer(service, INFER, request_of()).status == 200
    assert Answer(service, INFER, b"").status == 400
    wanted = {"vkep_requests_total{", "vkep_run_rows_bucket{", "vkep_run_seconds_count{", 'status="400"'}
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        text = http_get(f"http://127.0.0.1:{port}/metrics")
        if all(name in text for name in wanted):
            return
        time.sleep(1)  # workers report every few seconds
    pytest.fail(f"none of {[name for name in wanted if name not in text]} among the metrics")


def http_get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as response:
        return str(response.read().decode())


def test_hostile_requests_are_answered_with_4xx(service: Ports) -> None:
    big = b"[" * (1 << 20 | 1)
    expected: list[tuple[int, Answer]] = [
        (404, Answer(service, "/v2/models/none/infer", request_of())),
        (404, Answer(service, "/v2/models/square/versions/9/infer", request_of())),
        (404, Answer(service, "/elsewhere")),
        (405, Answer(service, INFER)),
        (405, Answer(service, "/v2", b"x")),
        (400, Answer(service, INFER, b"")),
        (400, Answer(service, INFER, b"\xff" * 50)),
        (400, Answer(service, INFER, b"[" * 100_000)),
        (
            400,
            Answer(
                service,
                INFER,
                {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1 << 30, 1 << 30], "data": [1]}]},
            ),
        ),
        (400, Answer(service, INFER, request_of(), inference_header_content_length="9999")),
        (400, Answer(service, INFER, b"no gzip", content_encoding="gzip")),
        (413, Answer(service, INFER, gzip.compress(b"x" * (2 << 20)), content_encoding="gzip")),
        (415, Answer(service, INFER, b"x", content_encoding="br")),
        (413, Answer(service, INFER, big)),
    ]
    assert [answer.status for _, answer in expected] == [status for status, _ in expected]
    assert all(answer.json["error"] for _, answer in expected)
    assert Answer(service, INFER, request_of()).status == 200


def test_hostile_messages_are_refused_and_a_stream_goes_on(service: Ports) -> None:
    import grpc

    from vkep.serving import messages

    good = messages.message("ModelInferRequest", model_name="square", id="7", raw_input_contents=[X.tobytes()])
    good.inputs.add(name="x", datatype="FP32", shape=X.shape)
    whole = good.SerializeToString()
    bad = [b"\xff" * 20, whole[:-9], bytes(2 << 20)]  # no message, half of one, more bytes than are allowed
    with grpc.insecure_channel(f"127.0.0.1:{service.grpc}") as channel:
        infer = channel.unary_unary(f"/{messages.SERVICE}/ModelInfer")
        for request in bad:
            with pytest.raises(grpc.RpcError) as raised:
                infer(request, timeout=60)
            assert raised.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        stream = channel.stream_stream(f"/{messages.SERVICE}/{messages.STREAM}")(iter([*bad, whole]), timeout=60)
        *failed, last = [messages.read("ModelStreamInferResponse", answer) for answer in stream]
    assert len(failed) == 3 and all(answer.error_message for answer in failed)
    assert last.infer_response.id == "7" and last.infer_response.raw_output_contents[0] == (X * X).tobytes()


def test_half_a_body_and_slow_senders_hold_nothing_up(service: Ports) -> None:
    head = f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", service.http)) as gone:
        gone.sendall(head + b"{")
    with socket.create_connection(("127.0.0.1", service.http), timeout=30) as slow:
        slow.sendall(head + b"{")
        assert Answer(service, INFER, request_of()).status == 200  # meanwhile
        assert slow.recv(4096).startswith(b"HTTP/1.1 408")


def test_a_noisy_connection(service: Ports) -> None:
    with socket.create_connection(("127.0.0.1", service.http), timeout=30) as noise:
        noise.sendall(b"\x00\xff" * 500 + b"\r\n\r\n")
        assert noise.recv(4096).startswith(b"HTTP/1.1 400")
    with socket.create_connection(("127.0.0.1", service.grpc), timeout=30) as noise:
        noise.sendall(b"\x00\xff" * 500)
    assert Answer(service, INFER, request_of()).status == 200


def test_a_model_that_does_not_load_says_why(serving: Ports) -> None:
    from ray import serve

    with pytest.raises(RuntimeError):
        serve.run(
            vkep.ray.deployment(b"no model", max_constructor_retry_count=1, ray_actor_options={"num_cpus": 0.1}),
            name="broken",
            route_prefix="/broken",
        )
    status = serve.status().applications["broken"]
    assert status.status == "DEPLOY_FAILED"
    assert "InvalidModelError" in status.message + "".join(d.message for d in status.deployments.values())
    serve.delete("broken")


def test_overload_is_503_with_retry_after_and_nothing_is_lost(serving: Ports) -> None:
    from ray import serve

    application = vkep.ray.deployment(
        SQUARE,
        name="narrow",
        max_ongoing_requests=2,
        max_queued_requests=4,
        options={"wait_ms": 300, "rows": 64, "retry_after_s": 3},
        ray_actor_options={"num_cpus": 0.1},
    )
    serve.run(application, name="narrow", route_prefix="/narrow")
    with ThreadPoolExecutor(40) as pool:
        path = "/narrow/v2/models/model/infer"
        answers = list(pool.map(lambda at: Answer(serving, path, request_of(X + at)), range(40)))
    serve.delete("narrow")
    statuses = {answer.status for answer in answers}
    assert statuses == {200, 503}
    for at, answer in enumerate(answers):
        if answer.status == 200:
            assert answer.json["outputs"][0]["data"] == ((X + at) ** 2).ravel().tolist()
        else:
            assert answer.headers["Retry-After"] == "3"


class Clients:
    """Clients that ask without end, each for shapes and values of its own, and what they were answered."""

    def __init__(self, ports: Ports, path: str, count: int, wrong: Callable[[float], bool] = lambda _: False) -> None:
        self.statuses: list[int] = []
        self.wrong: list[str] = []
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(count)
        self._all = [self._pool.submit(self._ask, ports, path, at) for at in range(count)]

    def _ask(self, ports: Ports, path: str, at: int) -> None:
        rng = np.random.default_rng(at)
        while not self._stop.is_set():
            x = rng.integers(0, 100, (rng.integers(1, 4), rng.integers(1, 6))).astype(np.float32)
            answer = Answer(ports, path, request_of(x))
            self.statuses.append(answer.status)
            if answer.status == 200 and answer.json["outputs"][0]["data"] != (x * x).ravel().tolist():
                self.wrong.append(f"{x.tolist()}: {answer.body!r}")

    def stop(self) -> None:
        self._stop.set()
        for one in self._all:
            one.result(timeout=90)
        self._pool.shutdown()


def test_killed_replicas_and_an_update_during_requests(serving: Ports) -> None:
    from ray import serve

    def run(retry_after_s: float) -> None:
        application = vkep.ray.deployment(
            SQUARE,
            name="two",
            num_replicas=2,
            options={"retry_after_s": retry_after_s},
            ray_actor_options={"num_cpus": 0.1},
            graceful_shutdown_timeout_s=20,
        )
        serve.run(application, name="two", route_prefix="/two")

    run(1)
    clients = Clients(serving, "/two/v2/models/model/infer", 8)
    time.sleep(1)
    before = replicas("two")
    os.kill(next(iter(before.values())), KILL)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not len(set(replicas("two")) - set(before)):
        time.sleep(0.5)
    after_kill = len(clients.statuses)
    killed = [status for status in clients.statuses if status != 200]
    run(2)  # replicas are replaced one after another, each once it has answered what it had
    time.sleep(1)
    clients.stop()
    serve.delete("two")
    assert clients.wrong == []
    assert set(killed) <= {500, 503} and len(killed) <= 16  # those that the killed replica had
    assert set(clients.statuses[after_kill:]) == {200}
