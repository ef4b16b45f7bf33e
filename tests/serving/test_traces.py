"""Spans of requests, where OpenTelemetry is installed."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("fastapi")

from vkep.serving.app import Front
from vkep.serving.measures import Prometheus
from vkep.serving.options import ServiceOptions
from vkep.serving.traces import span

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


async def answered(front: Front) -> None:
    headers = [(b"traceparent", f"00-{TRACE}-{SPAN}-01".encode())]
    scope = {"type": "http", "method": "GET", "path": "/v1/models", "headers": headers, "client": ("127.0.0.1", 9)}
    await front(scope, None, _ignored)


async def _ignored(message: Any) -> None:
    pass


async def _teapot(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 418, "headers": []})


def test_a_request_is_a_span_below_the_callers() -> None:
    pytest.importorskip("prometheus_client")
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    from opentelemetry import trace
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    kept, provider = InMemorySpanExporter(), sdk.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    trace.set_tracer_provider(provider)
    service: Any = SimpleNamespace(options=ServiceOptions(), measures=Prometheus())
    asyncio.run(answered(Front(_teapot, service)))
    [found] = kept.get_finished_spans()
    assert found.name == "GET /v1/models" and found.attributes["http.response.status_code"] == 418
    assert f"{found.context.trace_id:032x}" == TRACE and f"{found.parent.span_id:016x}" == SPAN


def test_without_opentelemetry_nothing_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vkep.serving.traces._tracing", lambda: None)
    with span("GET /health", {}, attribute=1) as one:
        assert one is None
