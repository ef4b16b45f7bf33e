"""``vkep generate``, and ``vkep bench`` of folders: language models."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vkep.cli import common
from vkep.cli.common import UsageError
from vkep.text import one_line

if TYPE_CHECKING:
    from vkep.generation import Batch, Generator

#: tokens of a measured prompt, where the model takes twice as many
_PROMPT = 512


@dataclass(frozen=True)
class Rate:
    """The rate of one test. ``test`` has the names of llama-bench: pp512 is a prompt of 512 tokens, tg64 an answer of
    64 tokens, @16 means 16 sequences at once. Rates count the tokens of all sequences."""

    model: str
    device: str
    test: str
    tokens_per_second: float
    deviation: float
    first_ms: float  #: of the first run, which includes planning and compiling

    @classmethod
    def of(cls, model: str, device: str, test: str, tokens: int, seconds: Sequence[float]) -> Rate:
        """Return the mean rate of all runs except the first."""
        import statistics

        rates = [tokens / s for s in seconds[1:]]
        deviation = statistics.stdev(rates) if len(rates) > 1 else 0.0
        return cls(model, device, test, statistics.fmean(rates), deviation, seconds[0] * 1e3)


@common.with_options
def generate_command(
    folder: common.FolderArgument,
    prompt: Annotated[
        list[str] | None, typer.Option("--prompt", "-p", help="The prompt; repeatable. -: standard input.")
    ] = None,
    image: Annotated[
        list[Path] | None, typer.Option("--image", help="An image of the prompt, in its order; repeatable.")
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="The prompt is a user's message: the folder's chat template.")
    ] = False,
    system: Annotated[str | None, typer.Option("--system", help="With --chat: the system's message.")] = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", "-n", min=1, help="Tokens of the answer.")] = 256,
    temperature: Annotated[
        float | None, typer.Option("--temperature", "-t", help="0: the most probable token.")
    ] = None,
    top_k: Annotated[int | None, typer.Option("--top-k", help="The k most probable tokens; 0: all.")] = None,
    top_p: Annotated[float | None, typer.Option("--top-p", help="The most probable tokens of this share.")] = None,
    min_p: Annotated[float | None, typer.Option("--min-p", help="Tokens of this share of the best one's.")] = None,
    repetition_penalty: Annotated[
        float | None, typer.Option(help="Divides the logits of tokens that occurred.")
    ] = None,
    stop: Annotated[list[str] | None, typer.Option("--stop", help="Text that ends the answer; repeatable.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="The same seed gives the same answer.")] = None,
    options: Any = None,
    json_output: common.JsonFlag = False,
    verbose: common.VerboseOption = 0,
) -> None:
    """Answer prompts with a language model; the text is printed as it is generated."""
    with common.command(json_output, verbose):
        from vkep.generation import Generator
        from vkep.generation.published import local_folder

        folder = common.located(folder, local_folder)
        prompts = [sys.stdin.read() if p == "-" else p for p in prompt or ["-"]]
        if system is not None and not chat:
            raise UsageError("--system belongs to --chat")
        if image and len(prompts) > 1:
            raise UsageError(f"--image belongs to one --prompt, and there are {len(prompts)}")
        given = {
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "min_p": min_p,
            "repetition_penalty": repetition_penalty,
            "seed": seed,
        }
        settings: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        settings |= {"max_tokens": max_tokens, "stop": tuple(stop or ())}
        with (
            common.progress_bars(show=not json_output) as progress,
            Generator(folder, progress=progress, **options) as made,
        ):
            if image and not chat and _answered_task(made, prompts[0], image, settings, json_output):
                return
            before = [{"role": "system", "content": system}] if system is not None else []
            parts = [{"type": "image", "image": path} for path in image or ()]

            def read(prompt: str) -> Sequence[int]:
                if not chat:
                    return made.tokens(prompt, image or ())
                content = [*parts, {"type": "text", "text": prompt}] if parts else prompt
                return made.chat_tokens([*before, {"role": "user", "content": content}])

            asked = [read(p) for p in prompts]
            if json_output or len(asked) > 1:
                answers = made.generate(asked, **settings)
                if json_output:
                    keys = ("text", "tokens", "reason")
                    common.print_json(
                        {
                            "answers": [
                                {k: getattr(a, k) for k in keys} | {"prompt_tokens": len(a.prompt)} for a in answers
                            ]
                        }
                    )
                else:
                    for text, answer in zip(prompts, answers, strict=True):
                        common.echo(f"{text}\n  {answer.text}\n")
                return
            for piece in made.stream(asked[0], **settings):
                common.print_piece(piece)
            common.echo()


def _answered_task(
    made: Any, prompt: str, images: Sequence[Path], settings: Mapping[str, Any], json_output: bool
) -> bool:
    """Answer a prompt that is a task about an image, where the model has tasks, with the regions that the answer names."""
    from vkep.generation.regions import TASKS

    task = next((name for name in TASKS if name in prompt), "") if made.has_tasks else ""
    if not task:
        return False
    if len(images) > 1:
        raise UsageError(f"the task {task} is about one --image, and there are {len(images)}")
    answer = made.vision_task(task, images[0], prompt.replace(task, "").strip(), **settings)
    if json_output:
        regions = [asdict(region) for region in answer.regions]
        common.print_json({"answers": [{"text": answer.text, "tokens": list(answer.tokens), "regions": regions}]})
        return True
    common.echo(answer.text)
    for region in answer.regions:
        shapes = [f"box {region.box}"] if region.box else [f"polygon {polygon}" for polygon in region.polygons]
        common.echo(f"  {region.label or 'region'}: {'; '.join(shapes)}")
    return True


def bench_folder(
    folder: Path,
    options: Mapping[str, Any],
    prompt: int | None,
    answer: int,
    sequences: int,
    runs: int,
    warmup: int = 1,
) -> list[Rate]:
    """Rates of prompts (None: of up to 512 tokens) and answers of random tokens. Raises as `vkep.generation.Generator`."""
    from vkep.generation import Generator

    with Generator(folder, max_sequences=sequences, **options) as generator:
        half = generator.decoder.folder.context // 2 or _PROMPT
        return rates(generator, prompt or min(_PROMPT, half), answer, sequences, runs, warmup)


def rates(
    generator: Generator,
    prompt: int,
    answer: int,
    sequences: int,
    runs: int,
    warmup: int = 1,
    sampling: Mapping[str, Any] | None = None,
) -> list[Rate]:
    """Measure the rates of a generator. The time of each test's first run is the row's ``first_ms``. ``sampling``: settings of
    the answers; greedy without any."""
    from vkep.generation import Sampling
    from vkep.generation.pace import LEAST_CHUNK

    decoder = generator.decoder
    device = decoder.session.context.capabilities.name
    chooses = _chooser_of_tokens(decoder.vocabulary or 256)
    at_once = f"@{sequences}" if sequences > 1 else ""
    filled: list[float] = []
    answered: list[float] = []
    with_batch: Batch = generator.batch(sequences)
    try:
        for run in range(runs + warmup):
            # the first sequences make tokens while others' prompts are processed; none ends before the last step that counts
            most = answer + 1 + sequences * -(-prompt // LEAST_CHUNK)
            settings = Sampling(max_tokens=most, ignore_end=True, **(sampling or {}))
            start = time.perf_counter()
            made = [with_batch.add(chooses(prompt), settings) for _ in range(sequences)]
            while any(not a.tokens for a in made):
                with_batch.step()
                for error in (a.error for a in made if a.error is not None):
                    raise error
            between = time.perf_counter()
            done = sum(len(a.tokens) for a in made)
            for _ in range(answer):
                with_batch.step()
            seconds = time.perf_counter() - between
            tokens = sum(len(a.tokens) for a in made) - done
            for one in made:
                with_batch.cancel(one)
            if run == 0 or run >= warmup:
                filled.append(between - start)
                answered.append(seconds * answer * sequences / tokens)  # fewer tokens where the context is full
    finally:
        with_batch.close()
    name = decoder.folder.path.name
    return [
        Rate.of(name, device, f"pp{prompt}{at_once}", prompt * sequences, filled),
        Rate.of(name, device, f"tg{answer}{at_once}", answer * sequences, answered),
    ]


def _chooser_of_tokens(vocabulary: int) -> Callable[[int], list[int]]:
    """Prompts of random tokens, each different: no prompt shares a prefix with an earlier one."""
    import numpy as np

    generator = np.random.default_rng(0)
    return lambda count: [int(t) for t in generator.integers(0, vocabulary, count)]


def print_rates(found: Sequence[Rate], json_output: bool) -> None:
    """A table as llama-bench prints it, or JSON."""
    if json_output:
        common.print_json({"results": [asdict(rate) for rate in found]})
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("model", "device", "test"):
        table.add_column(name)
    for name in ("t/s", "first run ms"):
        table.add_column(name, justify="right")
    for rate in found:
        each = f"{rate.tokens_per_second:.2f} ± {rate.deviation:.2f}"
        table.add_row(one_line(rate.model), rate.device, rate.test, each, f"{rate.first_ms:.0f}")
    common.print_table(table)
