"""The Open Inference protocol over gRPC: the methods of a service, for grpcio's server and for Ray's."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextvars import ContextVar
from typing import Any
from urllib.parse import unquote

import grpc

from vkep.serving import messages
from vkep.serving.http import answer_of
from vkep.serving.inference import Counted, away, server
from vkep.serving.kserve import ProtocolError
from vkep.serving.service import Service
from vkep.serving.streams import in_order

#: HTTP's statuses as gRPC's
_STATUS = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    404: grpc.StatusCode.NOT_FOUND,
    413: grpc.StatusCode.INVALID_ARGUMENT,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    503: grpc.StatusCode.UNAVAILABLE,
}
#: methods that need no key and count for no client: those of watchers
_WATCHED = ("ServerLive", "ServerReady")
#: who sent the request that is answered; "": not known, as behind Ray's proxies
_client: ContextVar[str] = ContextVar("client", default="")


def grpc_method(method: Callable[[Any, Any], Awaitable[Any]]) -> Callable[[Any, bytes, Any], Awaitable[Any]]:
    """A method of a gRPC service in the form that Serve calls: with a request's bytes and a context for the status of a
    failure (a raised exception would be logged with its traceback, for each client's mistake)."""
    name = method.__name__

    @functools.wraps(method)
    async def call(self: Servicer, request: bytes, grpc_context: Any) -> Any:
        try:
            if name not in _WATCHED:
                self.service.limits.client("", _authorization(grpc_context))
            answer = await method(self, self._read(f"{name}Request", request))
            return messages.message(f"{name}Response", **answer) if isinstance(answer, dict) else answer
        except Exception as error:
            _fail(grpc_context, error)
            return messages.message(f"{name}Response")

    # Serve inspects the signature to see whether a method takes the context
    call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in ("self", "request", "grpc_context")]
    )
    return call


def _authorization(context: Any) -> str | None:
    return dict(context.invocation_metadata() or ()).get("authorization")


def _fail(context: Any, error: Exception) -> None:
    status, text = answer_of(error)
    context.set_code(_STATUS.get(status, grpc.StatusCode.INTERNAL))
    context.set_details(text)


class Servicer:
    """The methods, with bytes in and messages out. ``service`` is set before the first call."""

    service: Service

    @grpc_method
    async def ServerLive(self, given: Any) -> dict[str, Any]:
        return {"live": True}

    @grpc_method
    async def ServerReady(self, given: Any) -> dict[str, Any]:
        return {"ready": not self.service.gone()}

    @grpc_method
    async def ServerMetadata(self, given: Any) -> dict[str, Any]:
        return server()

    @grpc_method
    async def ModelReady(self, given: Any) -> dict[str, Any]:
        return {"ready": not self.service.models.find(given.name, given.version).renewed.gone}

    @grpc_method
    async def ModelMetadata(self, given: Any) -> dict[str, Any]:
        spec = self.service.models.find(given.name, given.version).spec
        return spec.metadata(self.service.models.versions(given.name))

    @grpc_method
    async def ModelConfig(self, given: Any) -> Any:
        return messages.config_response(self.service.models.find(given.name, given.version).spec)

    @grpc_method
    async def RepositoryIndex(self, given: Any) -> dict[str, Any]:
        return {"models": self.service.models.index()}

    @grpc_method
    async def ModelInfer(self, given: Any) -> Any:
        return await self._infer(given)

    def _read(self, name: str, request: bytes) -> Any:
        """A message within the limit of bytes. Raises `ProtocolError`."""
        most = self.service.options.max_body
        if len(request) > most:
            raise ProtocolError(413, f"the request has {len(request)} bytes, and {most} are allowed")
        return messages.read(name, request)

    async def _infer(self, given: Any) -> Any:
        """The ModelInferResponse to a ModelInferRequest."""
        model = self.service.models.find(given.model_name, given.model_version)
        with Counted(self.service, model):
            raw = len(given.raw_input_contents)
            nbytes = 0 if raw else given.ByteSize()
            request = await away(self.service, _client.get(), nbytes, messages.parse_infer, given, model.spec)
            return messages.infer_response(model.spec, request, await model.infer(request.feeds, _client.get()))

    async def ModelStreamInfer(self, request_stream: AsyncIterator[bytes], grpc_context: Any) -> AsyncIterator[Any]:
        """Answers in the order of the requests, with as many in progress as a run has rows. A request that fails gets
        an error text as its answer, and the stream continues."""
        try:
            self.service.limits.client("", _authorization(grpc_context))
        except ProtocolError as error:
            _fail(grpc_context, error)
            return
        async for answer in in_order(request_stream, self._answer_in_stream, self.service.options.rows):
            yield answer

    async def _answer_in_stream(self, request: bytes) -> Any:
        identity = ""
        try:
            given = self._read("ModelInferRequest", request)
            identity = given.id
            found = await self._infer(given)
            return messages.message("ModelStreamInferResponse", infer_response=found)
        except Exception as error:
            failed = messages.message("ModelInferResponse", id=identity)
            return messages.message(
                "ModelStreamInferResponse", error_message=answer_of(error)[1], infer_response=failed
            )


class _Direct:
    """A `Servicer` as grpcio calls it: answers as bytes, streams with a context, requests within the limits of their clients."""

    def __init__(self, servicer: Servicer) -> None:
        for name in messages.METHODS:
            setattr(self, name, functools.partial(self._unary, name, getattr(servicer, name)))
        self._servicer = servicer

    @contextlib.contextmanager
    def _admitted(self, context: Any) -> Iterator[None]:
        """A ``with`` block around a request, or a stream of them. Raises as `Limits`."""
        limits = self._servicer.service.limits
        address = unquote(context.peer()).partition(":")[2].rpartition(":")[0].strip("[]")
        client = limits.client(address, _authorization(context))
        with limits.request(client):
            _client.set(client)
            yield

    async def _unary(
        self, name: str, method: Callable[[bytes, Any], Awaitable[Any]], request: bytes, context: Any
    ) -> bytes:
        try:
            with contextlib.nullcontext() if name in _WATCHED else self._admitted(context):
                answer = await method(request, context)
        except ProtocolError as error:
            return await self._refused(context, error)
        return bytes(answer.SerializeToString())

    @staticmethod
    async def _refused(context: Any, error: ProtocolError) -> Any:
        await context.abort(_STATUS.get(error.status, grpc.StatusCode.INTERNAL), str(error))

    async def ModelStreamInfer(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        """As `Servicer.ModelStreamInfer`."""
        try:
            with self._admitted(context):
                async for answer in self._servicer.ModelStreamInfer(requests, context):
                    yield answer.SerializeToString()
        except ProtocolError as error:
            await self._refused(context, error)


def grpc_server(service: Service, address: str) -> Any:
    """A server of grpcio at an address, not started. Raises ``RuntimeError`` where it cannot be used."""
    servicer = Servicer()
    servicer.service = service
    most = service.options.max_body + (1 << 16)
    options = [("grpc.max_receive_message_length", most), ("grpc.max_send_message_length", -1)]
    made = grpc.aio.server(options=options, maximum_concurrent_rpcs=service.options.max_requests or None)
    messages.add_to_server(_Direct(servicer), made)
    made.add_insecure_port(address)
    return made
