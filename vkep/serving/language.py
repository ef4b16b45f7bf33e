"""A language model of a service: reads requests for texts, and makes the answers."""

from __future__ import annotations

import contextlib
import copy
import functools
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vkep.errors import InvalidInputError
from vkep.generation.templates import MissingPackageError
from vkep.serving.answers import Answering, Choice, card
from vkep.serving.kserve import ProtocolError
from vkep.serving.openai import ChatRequest
from vkep.serving.tools import Form
from vkep.serving.writer import Writer

if TYPE_CHECKING:
    from vkep.generation import Event, Generator, Sampling
    from vkep.generation.speech import Segment
    from vkep.serving.measures import Measures
    from vkep.serving.speech import Spoken


def open_generator(
    folder: Path, max_sequences: int, session: Mapping[str, Any], adapters: Mapping[str, str | Path] | None = None
) -> Generator:
    """The generator of a folder, with its tokenizer and adapters by name. Raises as `vkep.generation.Generator`, `Text` and
    `Generator.load_adapter`."""
    from vkep.generation import Generator

    generator = Generator(folder, max_sequences=max_sequences, **session)
    try:
        generator.text  # noqa: B018  # a service needs the tokenizer: what is wrong with it is said now
        for name, path in (adapters or {}).items():
            generator.load_adapter(path, name)
    except BaseException:
        generator.close()
        raise
    return generator


@dataclass(frozen=True)
class Asked:
    """A request for texts, ready for its answers: the tokens and the settings of each, and the calls that it may have."""

    request: ChatRequest
    prompts: Sequence[tuple[Sequence[int], Sampling]]
    form: Form | None
    texts: Sequence[str]  #: of prompts, where the answers begin with them

    @property
    def grammar(self) -> str:
        """That the answers follow, if any."""
        return self.prompts[0][1].grammar

    @property
    def prompt_tokens(self) -> int:
        """Of all prompts; several answers to one count it once."""
        return sum(len(tokens) for tokens, _ in self.prompts[:: self.request.n])


class Language:
    """A language model by its name. Close it at the end."""

    def __init__(
        self, name: str, opened: Callable[[], Generator], max_sequences: int, client_answers: int, measures: Measures
    ) -> None:
        """``opened``: opens the generator, also again. ``max_sequences``, ``client_answers``: as in `ServiceOptions`. Raises as
        ``opened``."""
        self.name, self.created, self._measures = name, int(time.time()), measures
        self.writer = Writer(opened, self._observe, max_sequences, client_answers)
        self.base = ""  #: of a model with an adapter, whose name it has: the name of the model

    def adapted(self, name: str) -> Language:
        """The model with an adapter of its generator, by that name. It shares the model's batch, and ends with it."""
        made = copy.copy(self)
        made.name, made.base = name, self.name
        return made

    def _observe(self, answers: int, tokens: int, seconds: float) -> None:
        self._measures.set("generation_answers", answers, model=self.name)
        if tokens:
            self._measures.add("generation_tokens", tokens, model=self.name)
        self._measures.add("generation_step_seconds", seconds, model=self.name)

    def card(self) -> dict[str, Any]:
        """The model in OpenAI's form."""
        return card(self.name, self.created) | ({"parent": self.base} if self.base else {})

    def read(self, given: ChatRequest) -> Asked:
        """A request's tokens and settings: takes as long as its template and tokenizer do. Raises `ProtocolError`,
        `InvalidInputError`."""
        generator = self.writer.generator
        settings, form = dict(given.settings), None
        if given.tools:
            form = Form.of(generator.text.template)
            if form is None:
                raise ProtocolError(400, f"the chat template of model {self.name!r} takes no tools", "tools")
            if given.tool:
                settings["grammar"] = form.grammar(given.tools, given.tool)
        sampling = generator.sampling(**settings, adapter=self.name if self.base else "")
        if given.messages is not None:
            more: dict[str, Any] = {"tools": list(given.tools)} if given.tools else {}
            try:
                prompts: list[Sequence[int]] = [generator.chat_tokens(given.messages, **more)]
            except InvalidInputError as error:
                raise ProtocolError(400, str(error), "messages") from None
        else:
            prompts = [generator.text.encode(p) if isinstance(p, str) else p for p in given.prompts]
        texts = [p if isinstance(p, str) else generator.text.decode(p) for p in given.prompts] if given.echo else []
        several = [
            (tokens, sampling if at == 0 or sampling.seed is None else _with_seed(sampling, at))
            for tokens in prompts
            for at in range(given.n)
        ]
        return Asked(given, several, form, [text for text in texts for _ in range(given.n)])

    def compile(self, asked: Asked) -> None:
        """Compile the grammar of a request's answers, which takes long. Raises `ProtocolError`."""
        try:
            self.writer.generator.grammars.compiled(asked.grammar)
        except (InvalidInputError, MissingPackageError) as error:
            raise ProtocolError(400, str(error), "tools" if asked.form is not None else "response_format") from None

    def is_compiled(self, asked: Asked) -> bool:
        """Whether `compile` has nothing to do."""
        return not asked.grammar or self.writer.generator.grammars.knows(asked.grammar)

    async def answer(self, asked: Asked, client: str) -> dict[str, Any]:
        """The whole answer. Raises as `Writer.stream`."""
        choices, count = self._choices(asked), 0
        async with contextlib.aclosing(self._events(asked, client)) as events:
            async for index, event in events:
                choices[index].take(event)
                count += len(event.answer.tokens) if event.reason else 0
        return Answering(asked.request, self.name).whole([c.whole() for c in choices], asked.prompt_tokens, count)

    async def stream(self, asked: Asked, client: str) -> AsyncGenerator[bytes, None]:
        """The events of the answers as they are made. Raises as `Writer.stream`, what is wrong with a prompt before the first."""
        choices, count, answering = self._choices(asked), 0, Answering(asked.request, self.name)
        async with contextlib.aclosing(self._events(asked, client)) as events:
            async for index, event in events:
                count += len(event.answer.tokens) if event.reason else 0
                chunk = choices[index].chunk(event)
                if chunk is not None:
                    yield answering.chunk(chunk)
        yield answering.end(asked.prompt_tokens, count)

    def _choices(self, asked: Asked) -> list[Choice]:
        self._measures.add("generation_prompt_tokens", asked.prompt_tokens, model=self.name)
        text = self.writer.generator.text
        return [
            Choice(
                index,
                asked.request,
                asked.form,
                asked.texts[index] if asked.texts else "",
                functools.partial(text.of_token, before=tokens[-1]),
            )
            for index, (tokens, _) in enumerate(asked.prompts)
        ]

    async def transcribe(self, work: Spoken, client: str) -> list[Segment]:
        """The segments of a sound. Raises as `Writer.run`."""
        async with contextlib.aclosing(self.writer.run([work], client)) as found:
            return [segment async for _, segment in found]

    async def _events(self, asked: Asked, client: str) -> AsyncGenerator[tuple[int, Event], None]:
        """The events of all answers, with their indices, as they come."""
        started = time.perf_counter()
        first = True
        async with contextlib.aclosing(self.writer.stream(asked.prompts, client)) as events:
            async for one in events:
                if first:
                    self._measures.add("generation_first_token_seconds", time.perf_counter() - started, model=self.name)
                    first = False
                yield one

    def close(self) -> None:
        """End the answers in progress, and close the model; of a model with an adapter the model does so."""
        if not self.base:
            self.writer.close()


def _with_seed(sampling: Sampling, at: int) -> Sampling:
    return replace(
        sampling, seed=(sampling.seed or 0) + at if (sampling.seed or 0) < 2**63 else (sampling.seed or 0) - at
    )
