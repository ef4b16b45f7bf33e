"""``vkep chat``: a conversation with a language model in the terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vkep.cli import common

if TYPE_CHECKING:
    from vkep.generation import Generator

_NEW = "/new"


@common.with_options
def chat_command(
    folder: common.FolderArgument,
    system: Annotated[str | None, typer.Option("--system", help="The system's message.")] = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", "-n", min=1, help="Tokens of each answer.")] = 1024,
    temperature: Annotated[
        float | None, typer.Option("--temperature", "-t", help="0: the most probable token.")
    ] = None,
    top_p: Annotated[float | None, typer.Option("--top-p", help="The most probable tokens of this share.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="The same seed gives the same answers.")] = None,
    options: Any = None,
    json_output: common.JsonFlag = False,
    verbose: common.VerboseOption = 0,
) -> None:
    """Talk with a language model: a line is a message; /new begins again, Ctrl-C ends an answer, Ctrl-D the conversation."""
    with common.command(json_output, verbose):
        from vkep.generation import Generator
        from vkep.generation.published import local_folder

        folder = common.located(folder, local_folder)
        given = {"temperature": temperature, "top_p": top_p, "seed": seed}
        settings = {"max_tokens": max_tokens, **{name: value for name, value in given.items() if value is not None}}
        before = [{"role": "system", "content": system}] if system is not None else []
        with (
            common.progress_bars(show=not json_output) as progress,
            Generator(folder, max_sequences=1, progress=progress, **options) as generator,
        ):
            generator.text.template  # noqa: B018  # a folder without one is refused before the first message
            messages = list(before)
            for line in _lines(json_output):
                if line == _NEW:
                    messages = list(before)
                    continue
                messages.append({"role": "user", "content": line})
                messages.append({"role": "assistant", "content": _answer(generator, messages, settings, json_output)})


def _lines(quiet: bool) -> Iterator[str]:
    """The messages: of the terminal after a mark, or of standard input."""
    terminal = sys.stdin.isatty() and not quiet
    while True:
        try:
            line = input("> ") if terminal else sys.stdin.readline()
        except (EOFError, KeyboardInterrupt):
            common.echo()
            return
        if not line and not terminal:
            return
        if line.strip():
            yield line.strip()


def _answer(generator: Generator, messages: list[dict[str, str]], settings: dict[str, Any], quiet: bool) -> str:
    """Print an answer as it is made, and its rate; returns its text."""
    from vkep.generation import Sampling

    prompt = generator.text.chat(messages)
    sampling: Sampling = generator.sampling(**settings)
    batch = generator.batch(1)
    started, first, tokens = time.perf_counter(), 0.0, 0
    try:
        answer = batch.add(prompt, sampling)
        while not answer.ended:
            for event in batch.step():
                first = first or time.perf_counter()
                tokens += event.token is not None
                if not quiet:
                    common.print_piece(event.text)
    except KeyboardInterrupt:
        batch.cancel(answer)
    finally:
        batch.close()
    if answer.error is not None:
        raise answer.error
    ended = time.perf_counter()
    rate = (tokens - 1) / (ended - first) if tokens > 1 and ended > first else 0.0
    waited = (first or ended) - started
    if quiet:
        common.print_json(
            {
                "text": answer.text,
                "reason": answer.reason,
                "prompt_tokens": len(prompt),
                "tokens": tokens,
                "first_token_ms": waited * 1e3,
                "tokens_per_second": rate,
            }
        )
    else:
        common.echo()
        common.echo(f"[{len(prompt)} tokens read in {waited:.2f} s, {tokens} written, {rate:.1f} tokens/s]", err=True)
    return answer.text
