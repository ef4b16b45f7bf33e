"""`deployment`: models as a Ray Serve application that speaks the Open Inference protocol over HTTP and gRPC.

Queues of requests, back-pressure, health checks, updates and metrics are Serve's.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import re
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import grpc
from ray import serve
from ray.serve.config import BackpressureConfig
from ray.util import metrics
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

import vkep
from gpu_shared.timeline import set_polling
from vkep.ray.models import local, open_session
from vkep.serving import kserve, messages
from vkep.serving.http import answer_of, read_body, retry_after
from vkep.serving.kserve import HEADER_LENGTH, ProtocolError
from vkep.serving.loaded import LoadedModel, Models
from vkep.serving.streams import in_order

if TYPE_CHECKING:
    from vkep.ray.models import Source

_MODEL = r"/v2/models/(?P<name>[^/]+)(?:/versions/(?P<version>[^/]+))?"
#: a run's thread needs the interpreter several times, and waits up to so long for the thread that reads requests; Python's
#: default, 5 ms, is more than a run takes
_SWITCH_S = 0.0001
#: seconds between reports of counts to Ray: a report for each request would take as long as reading its JSON
_COUNT_S = 1.0
#: bytes of JSON that are read, or of results that are written, without leaving the event loop
_LONG_TEXT = 1 << 16
_EXTENSIONS = ["binary_tensor_data", "model_configuration", "model_repository"]
#: HTTP's statuses as gRPC's
_GRPC_STATUS = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    404: grpc.StatusCode.NOT_FOUND,
    413: grpc.StatusCode.INVALID_ARGUMENT,
    503: grpc.StatusCode.UNAVAILABLE,
}


@dataclass(frozen=True)
class ServiceOptions:
    """Options of a replica.

    rows: the most rows of one run. independent: models whose rows are independent, whatever is proved of them (True: all).
    examples: the inputs of a request by model, for the runs before the first request. wait_ms: how long the first request of a
    run waits for others (the latency budget) while a run could start: less where no request came for a millisecond and none is
    arriving, longer where all runs are in progress. runs: runs in progress at once. max_body: bytes of a request, also once it
    is decompressed. body_s: seconds within which a request's body must be there. retry_after_s: sent to clients while the
    service is overloaded.
    session: as `vkep.SessionOptions`.
    """

    rows: int = 32
    independent: bool | Sequence[str] = False
    examples: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    wait_ms: float = 5.0
    runs: int = 2
    max_body: int = 64 << 20
    body_s: float = 30.0
    retry_after_s: float = 1.0
    session: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, least in (
            ("rows", 1),
            ("wait_ms", 0),
            ("runs", 1),
            ("max_body", 1),
            ("body_s", 0),
            ("retry_after_s", 0),
        ):
            if not getattr(self, name) >= least:
                raise ValueError(f"{name} is {getattr(self, name)!r}, expected at least {least}")

    def says_independent(self, model: str) -> bool:
        """Whether rows of a model are independent, as the deployment says."""
        return self.independent if isinstance(self.independent, bool) else model in self.independent


def deployment(
    models: Source | Mapping[str, Source | Mapping[str, Source]],
    *,
    name: str = "vkep",
    num_gpus: float = 0,
    max_ongoing_requests: int = 256,
    max_queued_requests: int = 1024,
    options: Mapping[str, Any] | None = None,
    **serve_options: Any,
) -> serve.Application:
    """A Ray Serve application for ``serve.run``.

    Args:
        models: a model (named ``model``), models by name, or versions by name by version. Each is a path that all nodes have or
            what `vkep.ray.ship` returned. All of a replica's models share one device context.
        name: of the deployment.
        num_gpus: GPUs of a replica: 1, a part of one, or 0 for CPU drivers.
        max_ongoing_requests: requests that one replica works on at once; more wait at the proxies.
        max_queued_requests: how many of them, at each proxy; more are answered with 503 and Retry-After.
        options: the fields of `ServiceOptions`.
        serve_options: of ``ray.serve.deployment``, such as ``num_replicas`` or ``autoscaling_config``.

    A model that cannot be opened fails the deployment; the status has the reason. Raises ``ValueError`` and
    ``TypeError`` for options that are not allowed.
    """
    chosen = ServiceOptions(**(options or {}))
    serve_options = {
        "ray_actor_options": {"num_gpus": num_gpus, **serve_options.pop("ray_actor_options", {})},
        "max_ongoing_requests": max_ongoing_requests,
        "max_queued_requests": max_queued_requests,
        "backpressure_config": BackpressureConfig(retry_after_s=chosen.retry_after_s),
        "health_check_period_s": 2,
        "max_constructor_retry_count": 3,
        **serve_options,
    }
    return serve.deployment(Service).options(name=name, **serve_options).bind(by_version(models), asdict(chosen))


def by_version(models: Any) -> dict[str, dict[str, Any]]:
    """Models by name and version. Raises ``ValueError`` where there are none."""
    if not isinstance(models, Mapping):
        models = {"model": models}
    found = {name: dict(one) if isinstance(one, Mapping) else {"1": one} for name, one in models.items()}
    if not found or not all(found.values()):
        raise ValueError(f"models is {models!r}, expected at least one model, each with at least one version")
    return found


def application(arguments: dict[str, Any]) -> serve.Application:
    """`deployment` with ``arguments``, for Serve's configuration files: ``import_path: vkep.ray.service:application``."""
    return deployment(**arguments)


def grpc_method(method: Callable[[Any, Any], Awaitable[Any]]) -> Callable[[Any, bytes, Any], Awaitable[Any]]:
    """A method of a gRPC service in the form that Serve calls: with a request's bytes and a context for the status of a
    failure (a raised exception would be logged with its traceback, for each client's mistake)."""
    name = method.__name__

    @functools.wraps(method)
    async def call(self: Service, request: bytes, grpc_context: Any) -> Any:
        try:
            answer = await method(self, self._read(f"{name}Request", request))
            return messages.message(f"{name}Response", **answer) if isinstance(answer, dict) else answer
        except Exception as error:
            status, text = answer_of(error)
            grpc_context.set_code(_GRPC_STATUS.get(status, grpc.StatusCode.INTERNAL))
            grpc_context.set_details(text)
            return messages.message(f"{name}Response")

    # Serve inspects the signature to see whether a method takes the context
    call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in ("self", "request", "grpc_context")]
    )
    return call


class Service:
    """A replica. Its methods are called by Serve."""

    def __init__(self, models: Mapping[str, Mapping[str, Source]], options: Mapping[str, Any]) -> None:
        self.options = ServiceOptions(**options)
        sys.setswitchinterval(_SWITCH_S)
        set_polling(0)  # a thread that asks takes the interpreter from the one that reads requests
        self._pool = ThreadPoolExecutor(self.options.runs, thread_name_prefix="vkep-runs")
        tags = ("model", "version")
        self._requests = metrics.Counter("vkep_requests", "Inference requests by status.", (*tags, "status"))
        self._counts: Counter[tuple[str, str, int]] = Counter()  # that Ray does not know yet
        self._rows = metrics.Histogram("vkep_run_rows", "Rows of a run.", [2.0**k for k in range(12)], tags)
        self._shared = metrics.Histogram(
            "vkep_run_requests", "Requests that share a run.", [2.0**k for k in range(10)], tags
        )
        self._seconds = metrics.Histogram(
            "vkep_run_seconds", "Seconds of a run.", [0.001 * 2**k for k in range(14)], tags
        )
        session = {"concurrency": self.options.runs, **self.options.session}
        loaded: dict[str, dict[str, LoadedModel]] = {}
        self.models = Models(loaded)
        try:
            for name, versions in models.items():
                for version, source in versions.items():
                    one = LoadedModel(
                        name,
                        version,
                        local(source),
                        session,
                        pool=self._pool,
                        rows=self.options.rows,
                        wait_s=self.options.wait_ms / 1000,
                        runs=self.options.runs,
                        observe=self._observe,
                        independent=self.options.says_independent(name),
                        example=self.options.examples.get(name),
                        open_session=open_session,
                    )
                    loaded.setdefault(name, {})[version] = one
        except BaseException:
            self.models.close()
            raise
        self._routes: list[tuple[str, re.Pattern[str], Callable[..., Awaitable[Response]]]] = [
            ("POST", re.compile(_MODEL + "/infer"), self._infer),
            ("GET", re.compile(r"/v2/?"), self._server),
            ("GET", re.compile(r"/v2/health/(live|ready)"), self._healthy),
            ("GET", re.compile(_MODEL), self._model),
            ("GET", re.compile(_MODEL + "/ready"), self._model_ready),
            ("GET", re.compile(_MODEL + "/config"), self._config),
            ("POST", re.compile(r"/v2/repository/index"), self._index),
        ]

    def check_health(self) -> None:
        """Raise ``RuntimeError`` where a device is lost for good: Serve then starts another replica."""
        gone = self.models.gone()
        if gone:
            raise RuntimeError(f"the device is lost for good: {', '.join(gone)}")

    def _observe(self, model: str, version: str, rows: int, requests: int, seconds: float) -> None:
        tags = {"model": model, "version": version}
        self._rows.observe(max(rows, 1), tags)
        self._shared.observe(requests, tags)
        self._seconds.observe(seconds, tags)

    def count(self, model: str, version: str, status: int) -> None:
        """Count a request. Called in the event loop."""
        if not self._counts:
            asyncio.get_running_loop().call_later(_COUNT_S, self._report_counts)
        self._counts[model, version, status] += 1

    def _report_counts(self) -> None:
        for (model, version, status), count in self._counts.items():
            self._requests.inc(count, {"model": model, "version": version, "status": str(status)})
        self._counts.clear()

    # ---- HTTP

    async def __call__(self, request: Request) -> Response:
        """One HTTP request."""
        path, allowed = request.scope["path"].removeprefix(request.scope.get("root_path", "")), []
        for method, pattern, handler in self._routes:
            found = pattern.fullmatch(path)
            if found is not None:
                if request.method == method:
                    try:
                        return await handler(request, **found.groupdict())
                    except Exception as error:
                        return self._failed(*answer_of(error))
                allowed.append(method)
        if allowed:
            return JSONResponse(
                {"error": f"{path} takes {allowed}, got {request.method}"}, 405, {"Allow": ", ".join(allowed)}
            )
        return self._failed(404, f"there is no {path}")

    def _failed(self, status: int, text: str) -> Response:
        return JSONResponse({"error": text}, status, retry_after(status, self.options.retry_after_s))

    async def _server(self, request: Request) -> Response:
        return JSONResponse({"name": "vkep", "version": vkep.__version__, "extensions": _EXTENSIONS})

    async def _healthy(self, request: Request) -> Response:
        self._check_ready()
        return Response()

    async def _model(self, request: Request, name: str, version: str | None) -> Response:
        spec = self.models.find(name, version or "").spec
        return JSONResponse(spec.metadata(self.models.versions(name)))

    async def _model_ready(self, request: Request, name: str, version: str | None) -> Response:
        if self.models.find(name, version or "").renewed.gone:
            raise ProtocolError(503, f"model {name!r}: its device is lost")
        return Response()

    async def _config(self, request: Request, name: str, version: str | None) -> Response:
        return JSONResponse(self.models.find(name, version or "").spec.config())

    async def _index(self, request: Request) -> Response:
        return JSONResponse(self.models.index())

    async def _infer(self, request: Request, name: str, version: str | None) -> Response:
        model = self.models.find(name, version or "")
        with model.batcher.arriving():
            body = await read_body(request, self.options.max_body, self.options.body_s)
        with Counted(self, model):
            length = request.headers.get(HEADER_LENGTH)
            text = sum(map(len, body)) if length is None or len(length) > 4 else 0
            given = await away(text, kserve.parse_infer, body, length, model.spec)
            results = await model.infer(given.feeds)
            nbytes = sum(results[name].nbytes for name, as_bytes in given.outputs.items() if not as_bytes)
            answer = await away(nbytes, kserve.infer_response, model.spec, given, results)
        headers = {HEADER_LENGTH: str(answer.json_size)} if answer.json_size else {}
        kind = "application/octet-stream" if answer.json_size else "application/json"
        return Response(b"".join(answer.pieces), headers=headers, media_type=kind)

    # ---- gRPC: bytes in, messages out

    @grpc_method
    async def ServerLive(self, given: Any) -> dict[str, Any]:
        return {"live": True}

    @grpc_method
    async def ServerReady(self, given: Any) -> dict[str, Any]:
        return {"ready": not self.models.gone()}

    @grpc_method
    async def ServerMetadata(self, given: Any) -> dict[str, Any]:
        return {"name": "vkep", "version": vkep.__version__, "extensions": _EXTENSIONS}

    @grpc_method
    async def ModelReady(self, given: Any) -> dict[str, Any]:
        return {"ready": not self.models.find(given.name, given.version).renewed.gone}

    @grpc_method
    async def ModelMetadata(self, given: Any) -> dict[str, Any]:
        spec = self.models.find(given.name, given.version).spec
        return spec.metadata(self.models.versions(given.name))

    @grpc_method
    async def ModelConfig(self, given: Any) -> Any:
        return messages.config_response(self.models.find(given.name, given.version).spec)

    @grpc_method
    async def RepositoryIndex(self, given: Any) -> dict[str, Any]:
        return {"models": self.models.index()}

    @grpc_method
    async def ModelInfer(self, given: Any) -> Any:
        return await self._infer_message(given)

    def _read(self, name: str, request: bytes) -> Any:
        """A message within the limit of bytes. Raises `ProtocolError`."""
        most = self.options.max_body
        if len(request) > most:
            raise ProtocolError(413, f"the request has {len(request)} bytes, and {most} are allowed")
        return messages.read(name, request)

    async def _infer_message(self, given: Any) -> Any:
        """The ModelInferResponse to a ModelInferRequest."""
        model = self.models.find(given.model_name, given.model_version)
        with Counted(self, model):
            raw = len(given.raw_input_contents)
            request = await away(0 if raw else given.ByteSize(), messages.parse_infer, given, model.spec)
            return messages.infer_response(model.spec, request, await model.infer(request.feeds))

    async def ModelStreamInfer(self, request_stream: AsyncIterator[bytes]) -> AsyncIterator[Any]:
        """Answers in the order of the requests, with as many in progress as a run has rows. A request that fails gets
        an error text as its answer, and the stream continues."""
        async for answer in in_order(request_stream, self._answer_in_stream, self.options.rows):
            yield answer

    async def _answer_in_stream(self, request: bytes) -> Any:
        identity = ""
        try:
            given = self._read("ModelInferRequest", request)
            identity = given.id
            found = await self._infer_message(given)
            return messages.message("ModelStreamInferResponse", infer_response=found)
        except Exception as error:
            failed = messages.message("ModelInferResponse", id=identity)
            return messages.message(
                "ModelStreamInferResponse", error_message=answer_of(error)[1], infer_response=failed
            )

    # ---- both

    def _check_ready(self) -> None:
        gone = self.models.gone()
        if gone:
            raise ProtocolError(503, f"the device is lost for good: {', '.join(gone)}")


async def away(nbytes: int, work: Callable[..., Any], *args: Any) -> Any:
    """The result of work on so many bytes of text: in a thread where it takes longer than to change threads."""
    if nbytes < _LONG_TEXT:
        return work(*args)
    return await asyncio.get_running_loop().run_in_executor(None, work, *args)


class Counted:
    """A ``with`` block around one request to a model, counted by its status."""

    def __init__(self, service: Service, model: LoadedModel) -> None:
        self._service, self._spec = service, model.spec

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._service.count(self._spec.name, self._spec.version, 200 if error is None else answer_of(error)[0])
