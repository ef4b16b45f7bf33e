"""OpenAI's API over HTTP: chat, completions, embeddings, transcriptions, models."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from vkep.serving.answers import card, error_of, event
from vkep.serving.embeddings import answer
from vkep.serving.http import answer_of, client_of, read_body, unless_gone
from vkep.serving.kserve import ProtocolError
from vkep.serving.language import Asked, Language
from vkep.serving.openai import Completion, Conversation, EmbeddingsRequest, parse_request, read
from vkep.serving.service import Service
from vkep.serving.speech import DESCRIBED, SpeechRequest, Spoken
from vkep.serving.speech import answer as transcription


def router(service: Service) -> APIRouter:
    """The paths below ``/v1``."""
    routes, started = APIRouter(prefix="/v1", tags=["OpenAI's API"]), int(time.time())

    def body_of(kind: Any) -> dict[str, Any]:
        return {
            "requestBody": {"content": {"application/json": {"schema": kind.model_json_schema()}}, "required": True}
        }

    def cards() -> dict[str, dict[str, Any]]:
        found = {name: card(name, started) for name in service.embedders}
        return found | {name: language.card() for name, language in service.languages.items()}

    @routes.get("/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": list(cards().values())}

    @routes.get("/models/{model:path}")
    async def model(model: str) -> dict[str, Any]:
        found = cards()
        if model not in found:
            raise ProtocolError(404, f"there is no model {model!r}; there are {sorted(found)}", "model")
        return found[model]

    @routes.post("/chat/completions", openapi_extra=body_of(Conversation))
    async def chat(request: Request) -> Response:
        return await _texts(service, request, chat=True)

    @routes.post("/completions", openapi_extra=body_of(Completion))
    async def completions(request: Request) -> Response:
        return await _texts(service, request, chat=False)

    @routes.post("/embeddings", openapi_extra=body_of(EmbeddingsRequest))
    async def embeddings(request: Request) -> Response:
        body, client = await _body(service, request), client_of(request)

        def read_tokens() -> Any:
            given = read(EmbeddingsRequest, body)
            embedder = service.embedder(given.model or "")
            return given, embedder, embedder.read(given)

        given, embedder, inputs = await service.turns(client, read_tokens)
        vectors = await unless_gone(request, embedder.embed(inputs, client))
        tokens = sum(map(len, inputs))
        return JSONResponse(await service.turns(client, answer, given, embedder.model.spec.name, vectors, tokens))

    @routes.post("/audio/transcriptions", openapi_extra=DESCRIBED)
    async def transcriptions(request: Request) -> Response:
        return await _speech(service, request, "transcribe")

    @routes.post("/audio/translations", openapi_extra=DESCRIBED)
    async def translations(request: Request) -> Response:
        return await _speech(service, request, "translate")

    return routes


async def _speech(service: Service, request: Request, task: str) -> Response:
    options, client = service.options, client_of(request)
    body = b"".join(await read_body(request, options.max_body, options.body_s, service.turns))

    def read_sound() -> tuple[Language, SpeechRequest, Spoken]:
        given = SpeechRequest.read(request.headers.get("content-type", ""), body, task)
        language = service.language(given.model)
        return language, given, Spoken(given, language.writer.generator)

    language, given, work = await service.turns(client, read_sound)
    segments = await unless_gone(request, language.transcribe(work, client))
    kind, content = transcription(given, segments, work.language, work.seconds)
    return Response(content, media_type=kind)


async def _body(service: Service, request: Request) -> bytes:
    return b"".join(await read_body(request, service.options.max_text, service.options.body_s, service.turns))


async def _texts(service: Service, request: Request, chat: bool) -> Response:
    body, client = await _body(service, request), client_of(request)
    name, status = "", 200
    try:
        # in a thread: reading JSON, a template and a tokenizer take longer than a step
        language, asked = await service.turns(client, _read, service, body, chat)
        if not language.is_compiled(asked):  # one at a time: the threads that read requests stay free
            await service.turns(client, language.compile, asked, threads=service.compiling)
        name = language.name
        if not asked.request.stream:
            return JSONResponse(await unless_gone(request, language.answer(asked, client)))
        events = language.stream(asked, client)
        first = await anext(events)  # errors in the prompt are known by now, and determine the request's status
        return StreamingResponse(_streamed(first, events), media_type="text/event-stream")
    except Exception as error:
        status = answer_of(error)[0]
        raise
    finally:
        service.measures.add("generation_requests", 1, model=name, status=str(status))


def _read(service: Service, body: bytes, chat: bool) -> tuple[Language, Asked]:
    """The model that a request names, and what is asked of it."""
    given = parse_request(body, chat)
    language = service.language(given.model)
    return language, language.read(given)


async def _streamed(first: bytes, events: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes]:
    async with contextlib.aclosing(events):
        yield first
        try:
            async for one in events:
                yield one
        except Exception as error:  # the status is already sent: the stream contains the error
            yield event(error_of(*answer_of(error)))
