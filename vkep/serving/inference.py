"""The Open Inference protocol (KServe v2) over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

import vkep
from vkep.serving import kserve
from vkep.serving.http import answer_of, client_of, read_body
from vkep.serving.kserve import HEADER_LENGTH, MOST_DIGITS, ProtocolError
from vkep.serving.loaded import LoadedModel
from vkep.serving.service import Service

#: bytes of JSON that are read, or of results that are written, without leaving the event loop
_LONG_TEXT = 1 << 16
EXTENSIONS = ["binary_tensor_data", "model_configuration", "model_repository"]
_TAG = "Open Inference protocol"
#: a request's JSON, for the OpenAPI page; `kserve.parse_infer` reads it
_TENSOR = {
    "type": "object",
    "required": ["name", "shape", "datatype"],
    "properties": {
        "name": {"type": "string"},
        "shape": {"type": "array", "items": {"type": "integer", "minimum": 0}},
        "datatype": {"enum": list(kserve.DATATYPES)},
        "data": {"type": "array", "items": {}},
        "parameters": {"type": "object", "properties": {"binary_data_size": {"type": "integer"}}},
    },
}
_REQUEST = {
    "type": "object",
    "required": ["inputs"],
    "properties": {
        "id": {"type": "string"},
        "inputs": {"type": "array", "items": _TENSOR},
        "outputs": {
            "type": "array",
            "items": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}},
        },
        "parameters": {"type": "object", "properties": {"binary_data_output": {"type": "boolean"}}},
    },
}
_INFER = ("/v2/models/{name}/infer", "/v2/models/{name}/versions/{version}/infer")


def described() -> dict[str, Any]:
    """The paths of `router` that FastAPI does not describe, as OpenAPI has them."""
    return {
        path: {
            "post": {
                "tags": [_TAG],
                "summary": "Infer",
                "parameters": [
                    {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
                    for name in ("name", "version")
                    if f"{{{name}}}" in path
                ],
                "requestBody": {"content": {"application/json": {"schema": _REQUEST}}},
                "responses": {"200": {"description": "The outputs, as JSON or with binary tensors."}},
            }
        }
        for path in _INFER
    }


def server() -> dict[str, Any]:
    """The server's metadata."""
    return {"name": "vkep", "version": vkep.__version__, "extensions": EXTENSIONS}


def ready(service: Service) -> None:
    """Raise `ProtocolError` (503) where a device is lost for good."""
    if gone := service.gone():
        raise ProtocolError(503, f"the device is lost for good: {', '.join(gone)}")


def router(service: Service) -> APIRouter:
    """The paths below ``/v2``."""
    routes = APIRouter(tags=[_TAG])

    @routes.get("/v2")
    @routes.get("/v2/", include_in_schema=False)
    async def server_metadata() -> dict[str, Any]:
        return server()

    @routes.get("/v2/health/live")
    @routes.get("/v2/health/ready")
    async def healthy() -> Response:
        ready(service)
        return Response()

    @routes.get("/v2/models/{name}")
    @routes.get("/v2/models/{name}/versions/{version}")
    async def metadata(name: str, version: str = "") -> dict[str, Any]:
        return service.models.find(name, version).spec.metadata(service.models.versions(name))

    @routes.get("/v2/models/{name}/ready")
    @routes.get("/v2/models/{name}/versions/{version}/ready")
    async def model_ready(name: str, version: str = "") -> Response:
        if service.models.find(name, version).renewed.gone:
            raise ProtocolError(503, f"model {name!r}: its device is lost")
        return Response()

    @routes.get("/v2/models/{name}/config")
    @routes.get("/v2/models/{name}/versions/{version}/config")
    async def config(name: str, version: str = "") -> dict[str, Any]:
        return service.models.find(name, version).spec.config()

    @routes.post("/v2/repository/index")
    async def index() -> list[dict[str, str]]:
        return service.models.index()

    async def infer(request: Request) -> Response:
        given = request.path_params
        return await _infer(service, request, service.models.find(given["name"], given.get("version", "")))

    for path in _INFER:  # not FastAPI's own kind of route, which takes 50 microseconds of each request
        routes.add_route(path, infer, methods=["POST"])
    return routes


async def _infer(service: Service, request: Request, model: LoadedModel) -> Response:
    length, most, client = request.headers.get(HEADER_LENGTH), service.options.max_body, client_of(request)
    with model.batcher.arriving():
        head = int(length) if length is not None and length.isdecimal() and len(length) <= MOST_DIGITS else most
        pieces = await read_body(request, most, service.options.body_s, service.turns, head)
    with Counted(service, model):
        text = sum(map(len, pieces)) if length is None or len(length) > 4 else 0
        given = await away(service, client, text, kserve.parse_infer, pieces, length, model.spec)
        results = await model.infer(given.feeds, client)
        nbytes = sum(results[name].nbytes for name, as_bytes in given.outputs.items() if not as_bytes)
        answer = await away(service, client, nbytes, kserve.infer_response, model.spec, given, results)
    headers = {HEADER_LENGTH: str(answer.json_size)} if answer.json_size else {}
    kind = "application/octet-stream" if answer.json_size else "application/json"
    return Response(b"".join(answer.pieces), headers=headers, media_type=kind)


async def away(service: Service, client: str, nbytes: int, work: Callable[..., Any], *args: Any) -> Any:
    """The result of a client's work on so many bytes of text: in a thread where it takes longer than to change threads."""
    return await service.turns(client, work, *args) if nbytes >= _LONG_TEXT else work(*args)


class Counted:
    """A ``with`` block around one request to a model, counted by its status."""

    def __init__(self, service: Service, model: LoadedModel) -> None:
        self._service, self._spec = service, model.spec

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        status = 200 if error is None else answer_of(error)[0]
        self._service.measures.add("requests", 1, model=self._spec.name, version=self._spec.version, status=str(status))
