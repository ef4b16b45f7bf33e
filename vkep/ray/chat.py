"""`generation`: a language model as a Ray Serve application that speaks OpenAI's chat form and streams tokens."""

from __future__ import annotations

import asyncio
import functools
import os
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ray import serve
from ray.serve.config import BackpressureConfig
from ray.util import metrics
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from vkep.ray.devices import assigned_device
from vkep.serving.http import answer_of, read_body, retry_after
from vkep.serving.kserve import ProtocolError
from vkep.serving.openai import Answering, ChatRequest, error_of, event, parse_request
from vkep.serving.writer import Writer

if TYPE_CHECKING:
    from vkep.generation import Event, Generator, Sampling

#: how many requests a replica reads at once for each answer
_BODIES = 4
_PATHS = {"/v1/chat/completions": True, "/v1/completions": False}


def generation(
    folder: str | os.PathLike[str],
    *,
    name: str = "generation",
    model: str = "",
    num_gpus: float = 0,
    max_sequences: int = 16,
    max_queued_requests: int = 256,
    max_body: int = 4 << 20,
    body_s: float = 30.0,
    retry_after_s: float = 1.0,
    session: Mapping[str, Any] | None = None,
    **serve_options: Any,
) -> serve.Application:
    """A Ray Serve application with a language model: ``/v1/chat/completions``, ``/v1/completions``, ``/v1/models``, ``/health``.

    Args:
        folder: as `vkep.Generator` takes it, on all nodes.
        name: of the deployment. model: the name that requests give; the folder's by default.
        num_gpus: GPUs of a replica.
        max_sequences: answers that a replica makes at the same time. It reads four times as many requests, which wait in the
            order of their arrival; others wait at the proxies.
        max_queued_requests: how many of them, at each proxy; more are answered with 503 and Retry-After.
        max_body, body_s: maximum bytes of a request, and seconds within which it must have arrived.
        session: of `vkep.SessionOptions`.
        serve_options: of ``ray.serve.deployment``.

    Streams are server-sent events. A replica generates answers in one batch, which they join and leave at any step. A
    client that goes away ends its answer. Raises ``ValueError`` and ``TypeError`` for options that are not allowed.
    """
    serve_options = {
        "ray_actor_options": {"num_gpus": num_gpus, **serve_options.pop("ray_actor_options", {})},
        # more than answers: a body that does not arrive takes the place of no answer
        "max_ongoing_requests": _BODIES * max_sequences,
        "max_queued_requests": max_queued_requests,
        "backpressure_config": BackpressureConfig(retry_after_s=retry_after_s),
        "health_check_period_s": 2,
        "max_constructor_retry_count": 3,
        **serve_options,
    }
    limits = {"max_sequences": max_sequences, "max_body": max_body, "body_s": body_s, "retry_after_s": retry_after_s}
    called = model or os.path.basename(os.path.normpath(folder))
    return (
        serve.deployment(ChatService)
        .options(name=name, **serve_options)
        .bind(os.fspath(folder), called, limits, dict(session or {}))
    )


class ChatService:
    """A replica. Its methods are called by Serve."""

    def __init__(self, folder: str, model: str, limits: Mapping[str, Any], session: Mapping[str, Any]) -> None:
        self._model, self._limits = model, limits
        self._requests = metrics.Counter("vkep_generation_requests", "Requests by status.", ("status",))
        self._tokens = metrics.Counter("vkep_generation_tokens", "Tokens of answers.")
        self._answers = metrics.Gauge("vkep_generation_answers", "Answers in progress.")
        steps = [0.001 * 2**k for k in range(14)]
        self._steps = metrics.Histogram("vkep_generation_step_seconds", "Seconds of a step.", steps)
        self._first = metrics.Histogram(
            "vkep_generation_first_token_seconds", "Seconds to an answer's first token.", steps
        )
        self._writer = Writer(
            functools.partial(open_generator, folder, limits["max_sequences"], session),
            self._observe,
            limits["max_sequences"],
        )
        self._started = int(time.time())

    def _observe(self, answers: int, tokens: int, seconds: float) -> None:
        self._answers.set(answers)
        if tokens:
            self._tokens.inc(tokens)
        self._steps.observe(seconds)

    def check_health(self) -> None:
        """Raise ``RuntimeError`` where the device is lost for good: Serve then starts another replica."""
        if self._writer.gone:
            raise RuntimeError("the device is lost for good")

    async def __call__(self, request: Request) -> Response:
        """One HTTP request."""
        path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
        try:
            response = await self._answer(request, path)
        except Exception as error:
            status, text = answer_of(error)
            response = JSONResponse(error_of(status, text), status, retry_after(status, self._limits["retry_after_s"]))
        if path in _PATHS:
            self._requests.inc(1, {"status": str(response.status_code)})
        return response

    async def _answer(self, request: Request, path: str) -> Response:
        expected = "POST" if path in _PATHS else "GET"
        if path not in (*_PATHS, "/v1/models", "/health"):
            raise ProtocolError(404, f"there is no {path}")
        if request.method != expected:
            raise ProtocolError(405, f"{path} takes {expected}, got {request.method}")
        if path == "/health":
            self.check_health()
            return Response()
        if path == "/v1/models":
            card = {"id": self._model, "object": "model", "created": self._started, "owned_by": "vkep"}
            return JSONResponse({"object": "list", "data": [card]})
        body = await read_body(request, self._limits["max_body"], self._limits["body_s"])
        # in a thread: reading JSON, a template and a tokenizer take longer than a step
        run = asyncio.get_running_loop().run_in_executor
        given, prompt, sampling = await run(None, self._read, b"".join(body), _PATHS[path])
        answering = Answering(given, self._model)
        events = self._timed(self._writer.stream(prompt, sampling))
        first = await anext(events)  # errors in the prompt are known by now, and determine the request's status
        if given.stream:
            return StreamingResponse(
                self._streamed(first, events, answering, len(prompt)), media_type="text/event-stream"
            )
        texts, last = [first.text], first
        async for last in events:
            texts.append(last.text)
        return JSONResponse(answering.whole("".join(texts), last.reason, len(prompt), len(last.answer.tokens)))

    def _read(self, body: bytes, chat: bool) -> tuple[ChatRequest, Sequence[int], Sampling]:
        """A request, with its tokens and settings. Raises `ProtocolError`, `InvalidInputError`."""
        given = parse_request(body, chat)
        if given.model not in ("", self._model):
            raise ProtocolError(404, f"there is no model {given.model!r}; there is {self._model!r}")
        generator = self._writer.generator
        sampling = generator.sampling(**given.settings)
        if given.messages is not None:
            return given, generator.text.chat(given.messages), sampling
        prompt = generator.text.encode(given.prompt) if isinstance(given.prompt, str) else given.prompt or []
        return given, prompt, sampling

    async def _timed(self, events: AsyncIterator[Event]) -> AsyncIterator[Event]:
        started: float | None = time.perf_counter()
        async for one in events:
            if started is not None:
                self._first.observe(time.perf_counter() - started)
                started = None
            yield one

    async def _streamed(
        self, first: Event, events: AsyncIterator[Event], answering: Answering, prompt: int
    ) -> AsyncIterator[bytes]:
        last = first
        yield answering.chunk(first.text, first.reason)
        try:
            async for last in events:
                if last.text or last.reason:
                    yield answering.chunk(last.text, last.reason)
            yield answering.end(prompt, len(last.answer.tokens))
        except Exception as error:  # the status is already sent: the stream contains the error
            yield event(error_of(*answer_of(error)))


def open_generator(folder: str, max_sequences: int, session: Mapping[str, Any]) -> Generator:
    """The generator, on the device that Ray assigned. Raises as `vkep.generation.Generator`."""
    from vkep.generation import Generator

    options = dict(session)
    if options.get("device") is None and (device := assigned_device()) is not None:
        options["device"] = device
    generator = Generator(folder, max_sequences=max_sequences, **options)
    try:
        generator.text  # noqa: B018  # a service needs the tokenizer: what is wrong with it is said now
    except BaseException:
        generator.close()
        raise
    return generator
