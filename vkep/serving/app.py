"""The application of a service: its routes, and what holds for each request before and after them."""

from __future__ import annotations

import contextlib
import logging
import time
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

import vkep
from gpu_shared.errors import DeviceLostError
from vkep.errors import VkepError
from vkep.serving import inference, texts
from vkep.serving.answers import error_of
from vkep.serving.http import answer_of, retry_after
from vkep.serving.kserve import ProtocolError
from vkep.serving.logs import access
from vkep.serving.service import Service
from vkep.serving.traces import span

logger = logging.getLogger("vkep.serving")

#: paths that need no key and count for no client: those of watchers
_WATCHED = ("/health", "/metrics", "/v2/health/live", "/v2/health/ready")
#: requests are measured by the first parts of their paths, which are not the client's choice
_KINDS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
    "/v1/models",
    "/v2/models",
    "/v2",
    *_WATCHED[:2],
)
_RAISED = (HTTPException, ProtocolError, VkepError, DeviceLostError, MemoryError, Exception)


def application(service: Service) -> Front:
    """The ASGI application of a service, for a server of one event loop. The service is not closed with it."""
    app = FastAPI(title="vkep", version=vkep.__version__, description="Models on Vulkan.", redoc_url=None)
    app.include_router(texts.router(service))
    app.include_router(inference.router(service))

    @app.get("/health", tags=["Service"])
    async def health() -> Response:
        inference.ready(service)
        return Response()

    @app.get("/metrics", tags=["Service"])
    async def metrics() -> Response:
        found = service.measures.exposition()
        if found is None:
            raise ProtocolError(404, "the metrics of this service are at Ray's Prometheus endpoint")
        return Response(found[0], media_type=found[1])

    async def failed(request: Request, error: Exception) -> Response:
        service.measures.add("errors", 1, kind=type(error).__name__)
        path, headers = request.scope["vkep.path"], {}
        if isinstance(error, HTTPException):  # of routes
            headers = dict(error.headers or {})
            takes = f"{path[:200]} takes {headers.get('Allow')}, got {request.method}"
            error = ProtocolError(error.status_code, takes if "Allow" in headers else f"there is no {path[:200]}")
        return failure(path, error, service.options.retry_after_s, headers)

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            found = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
            app.openapi_schema = {**found, "paths": {**found["paths"], **inference.described()}}
        return app.openapi_schema

    app.openapi = openapi  # as FastAPI's page on extending it has it
    for kind in _RAISED:
        app.add_exception_handler(kind, failed)
    return Front(app, service)


def failure(path: str, error: Exception, retry_s: float, headers: Any = ()) -> Response:
    """The response for an error, in the form of the path's protocol."""
    status, text = answer_of(error)
    param = getattr(error, "param", None)
    body = error_of(status, text, param) if path.startswith("/v1") else {"error": text}
    return JSONResponse(body, status, {**dict(headers), **retry_after(status, retry_s)})


class Front:
    """Admits requests, and logs, measures and traces them. An ASGI application around ``app``."""

    def __init__(self, app: FastAPI, service: Service) -> None:
        self.app, self._service = app, service

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """As ASGI says."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        started, status = time.perf_counter(), 0

        async def sending(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        kind = next((kind for kind in _KINDS if path == kind or path.startswith(f"{kind}/")), "other")
        address = (scope.get("client") or ("",))[0]
        scope["vkep.path"] = path
        with span(f"{scope['method']} {kind}", headers, **{"url.path": path[:1000]}) as one:
            try:
                with contextlib.ExitStack() as stack:
                    if path not in _WATCHED:
                        address = self._service.limits.client(address, headers.get("authorization"))
                        stack.enter_context(self._service.limits.request(address))
                    scope["vkep.client"] = address
                    await self.app(scope, receive, sending)
            except Exception as error:
                if not status:  # of what is not admitted; others were answered, and are raised for servers to log
                    self._service.measures.add("errors", 1, kind=type(error).__name__)
                    await failure(path, error, self._service.options.retry_after_s)(scope, receive, sending)
            finally:
                seconds = time.perf_counter() - started
                self._service.measures.add("http_requests", 1, path=kind, status=str(status))
                self._service.measures.add("http_seconds", seconds, path=kind)
                if one is not None:
                    one.set_attribute("http.response.status_code", status)
                if access.isEnabledFor(logging.INFO) and path not in _WATCHED:
                    fields = {
                        "method": scope["method"],
                        "path": path[:1000],
                        "status": status,
                        "ms": round(seconds * 1000, 2),
                        "client": address,
                    }
                    access.info("request", extra={"fields": fields})
