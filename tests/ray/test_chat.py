"""`vkep.ray.generation` on Ray Serve: OpenAI's chat form, streams, answers made together, who goes away, what is wrong."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import vkep.ray
from tests.ray.conftest import KILL, Ports, replicas
from vkep.generation import Generator
from vkep.models.language import write_language

pytestmark = pytest.mark.slow
pytest.importorskip("tokenizers")

HELLO = [{"role": "user", "content": "Hello there"}]
ASKED = {"messages": HELLO, "max_tokens": 8, "ignore_eos": True, "temperature": 0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "llama"
    write_language(path)
    return path


@pytest.fixture(scope="module")
def service(serving: Ports, folder: Path) -> Iterator[Ports]:
    from ray import serve

    application = vkep.ray.generation(
        folder, max_sequences=4, max_queued_requests=100, ray_actor_options={"num_cpus": 0.5}, options={"body_s": 3}
    )
    serve.run(application, name="chat", route_prefix="/chat")
    yield serving
    serve.delete("chat")


def post(ports: Ports, path: str, body: Any, method: str = "POST") -> Any:
    """The connection, and the answer whose body is to be read."""
    connection = http.client.HTTPConnection("127.0.0.1", ports.http, timeout=60)
    connection.request(method, f"/chat{path}", body if isinstance(body, bytes) else json.dumps(body).encode())
    return connection, connection.getresponse()


def answer(ports: Ports, path: str, body: Any, method: str = "POST") -> tuple[int, Any]:
    connection, response = post(ports, path, body, method)
    found = response.status, json.loads(response.read() or b"null")
    connection.close()
    return found


def stream(ports: Ports, body: Any) -> list[Any]:
    connection, response = post(ports, "/v1/chat/completions", body)
    assert response.status == 200 and response.headers["content-type"].startswith("text/event-stream")
    found = [line.decode().strip().removeprefix("data: ") for line in response if line.strip()]
    connection.close()
    assert found[-1] == "[DONE]"
    return [json.loads(event) for event in found[:-1]]


def text_of(events: list[Any]) -> str:
    return "".join(choice["delta"].get("content", "") for event in events for choice in event["choices"])


def test_the_answer_is_the_generators_at_once_and_as_a_stream(service: Ports, folder: Path) -> None:
    with Generator(folder) as generator:
        generator.text  # noqa: B018
        expected = generator.chat(HELLO, max_tokens=8, ignore_end=True)
    status, whole = answer(service, "/v1/chat/completions", ASKED)
    assert status == 200 and whole["choices"][0]["message"] == {"role": "assistant", "content": expected.text}
    assert whole["choices"][0]["finish_reason"] == "length" and whole["usage"]["completion_tokens"] == 8
    events = stream(service, {**ASKED, "stream": True, "stream_options": {"include_usage": True}})
    assert text_of(events) == expected.text and len(events) > 3
    assert events[-1]["usage"] == whole["usage"]
    status, models = answer(service, "/v1/models", b"", "GET")
    assert status == 200 and [model["id"] for model in models["data"]] == ["llama"]


def test_many_clients_get_what_each_would_get_alone(service: Ports) -> None:
    asked = [
        {**ASKED, "messages": [{"role": "user", "content": f"Number {at}"}], "max_tokens": 4 + at} for at in range(6)
    ]
    alone = [answer(service, "/v1/chat/completions", one)[1]["choices"][0]["message"]["content"] for one in asked]
    with ThreadPoolExecutor(12) as pool:  # more than are answered at the same time
        together = list(pool.map(lambda one: text_of(stream(service, {**one, "stream": True})), asked * 2))
    assert together == alone * 2


def test_a_client_that_goes_away_leaves_its_place(service: Ports) -> None:
    for _ in range(6):  # more than there are places
        connection, response = post(service, "/v1/chat/completions", {**ASKED, "max_tokens": 100, "stream": True})
        response.read(10)
        connection.close()
    assert answer(service, "/v1/chat/completions", ASKED)[0] == 200


def test_a_replica_that_is_killed_during_a_stream_ends_it(service: Ports) -> None:
    connection, response = post(service, "/v1/chat/completions", {**ASKED, "max_tokens": 110, "stream": True})
    assert response.read(5) == b"data:"
    (process,) = replicas("generation").values()
    os.kill(process, KILL)
    with contextlib.suppress(http.client.HTTPException, OSError):  # cut, or closed with an error in its place
        assert b"[DONE]" not in response.read()
    connection.close()
    deadline = time.monotonic() + 60
    while answer(service, "/v1/chat/completions", ASKED)[0] != 200:  # Serve starts another
        assert time.monotonic() < deadline
        time.sleep(0.5)


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/chat/completions", b"{", 400),
        ("/v1/chat/completions", {"messages": []}, 400),
        ("/v1/chat/completions", {**ASKED, "temperature": -1}, 400),
        ("/v1/chat/completions", {**ASKED, "model": "other"}, 404),
        ("/v1/chat/completions", {**ASKED, "messages": [{"role": "user", "content": "x" * 100_000}]}, 400),
        ("/v1/completions", {"prompt": [99999]}, 400),
        ("/v1/completions", {"prompt": []}, 400),
        ("/v1/elsewhere", {}, 404),
        ("/v1/models", {}, 405),
        ("/v1/chat/completions", b"[" * (5 << 20), 413),
    ],
)
def test_wrong_requests_get_a_4xx(service: Ports, path: str, body: Any, status: int) -> None:
    got, error = answer(service, path, body)
    assert got == status and error["error"]["message"] and error["error"]["type"] == "invalid_request_error"


def test_a_folder_without_a_model_fails_the_deployment(serving: Ports, tmp_path: Path) -> None:
    from ray import serve

    with pytest.raises(RuntimeError):
        serve.run(
            vkep.ray.generation(tmp_path, max_constructor_retry_count=1, ray_actor_options={"num_cpus": 0.1}),
            name="empty",
            route_prefix="/empty",
        )
    status = serve.status().applications["empty"]
    assert "genai_config.json" in status.message + "".join(d.message for d in status.deployments.values())
    serve.delete("empty")
