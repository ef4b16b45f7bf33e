"""``vkep bench``: latency of vkep alone. Comparisons with other engines are made by ``python -m tools.bench``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vkep.cli import common, generation
from vkep.errors import one_line

if TYPE_CHECKING:
    from vkep.cli.measure import Latency
    from vkep.device.measure.limits import DeviceLimits


@dataclass(frozen=True)
class BenchResult:
    """One model's times, in milliseconds."""

    model: str
    shapes: dict[str, list[int]]
    device: str
    placement: dict[str, int]
    open_ms: float
    first_run_ms: float
    latency: Latency
    limit_ms: float  #: the least possible time of the model's dispatches, by the device's measured limits

    @property
    def of_limit(self) -> float:
        """The limit divided by the median: 1 means that nothing is lost to the host, the transfers and slow kernels."""
        return self.limit_ms / self.latency.median_ms

    def to_dict(self) -> dict[str, Any]:
        """For ``--json``: latencies in milliseconds."""
        return {**vars(self), "latency": self.latency.to_dict(), "of_limit": self.of_limit}


@common.with_session_options
def bench_command(
    models: Annotated[
        list[Path], typer.Argument(metavar="MODEL...", help="One or more .onnx files, or folders of language models.")
    ],
    runs: Annotated[int, typer.Option("--runs", "-n", min=1, help="Timed runs of each model.")] = 20,
    warmup: Annotated[int, typer.Option("--warmup", min=1, help="Runs before them; the first is reported.")] = 3,
    prompt: Annotated[int, typer.Option("--prompt", "-p", min=1, help="Of a folder: tokens of the prompt.")] = 512,
    answer: Annotated[int, typer.Option("--answer", "-g", min=1, help="Of a folder: tokens of the answer.")] = 64,
    sequences: Annotated[int, typer.Option("--sequences", min=1, help="Of a folder: answers at once.")] = 1,
    inputs: common.InputOption = None,
    shape: common.ShapeOption = None,
    dim: common.DimOption = None,
    seed: common.SeedOption = 0,
    options: Any = None,
    json_output: common.JsonFlag = False,
    verbose: common.VerboseOption = 0,
) -> None:
    """Measure latency of vkep alone, numpy in and out: median, 90th percentile, minimum, first run, time to open.

    Of folders with language models: tokens a second of a prompt (pp512) and of an answer (tg64).

    To compare with other engines in one run: python -m tools.bench (in a checkout).
    """
    with common.command(json_output, verbose):
        folders = [model for model in models if model.is_dir()]
        if folders:
            if len(folders) < len(models):
                raise common.UsageError("folders and .onnx files are measured by different tests: name one kind")
            sizes = prompt, answer, sequences, min(runs, 5), warmup
            generation.print_rates(
                [r for f in folders for r in generation.bench_folder(f, options, *sizes)], json_output
            )
            return
        results = []
        limits: Any = None
        for index, model in enumerate(models):
            with common.progress_bars(show=not json_output) as progress:
                result, limits = bench_model(model, options, runs, warmup, (inputs, shape, dim, seed), progress, index)
                results.append(result)
        if json_output:
            common.print_json({"results": [r.to_dict() for r in results], "limits": asdict(limits)})
        else:
            print_results(results)
            common.echo(f"limits measured on this device: {limits}")


def bench_model(
    model: Path,
    options: Mapping[str, Any],
    runs: int,
    warmup: int,
    given: tuple[Sequence[str] | None, Sequence[str] | None, Sequence[str] | None, int],
    progress: common.Progress | None = None,
    index: int = 0,
) -> tuple[BenchResult, DeviceLimits]:
    """Open a model, warm it up and time it. ``limits`` are the device's.

    Raises `UsageError` and the errors of `vkep.InferenceSession`.
    """
    from vkep.cli import sessions
    from vkep.cli.inputs import make_inputs, read_sources
    from vkep.cli.measure import Latency, Spans, time_runs
    from vkep.device.measure.limits import device_limits

    inputs, shapes, dims, seed = given
    sources = read_sources(inputs, shapes, dims, seed)
    spans = Spans()
    common.say(progress, f"opening {model.name}")
    with spans.span("open"):
        session = sessions.open_session(model, options, progress)
    with session:
        feeds = make_inputs(session.get_inputs(), sources)

        def run() -> object:
            return session.run(None, feeds)

        common.say(progress, "first runs")
        time_runs(run, warmup, spans, "warmup")
        common.say(progress, f"{runs} runs")
        time_runs(run, runs, spans)
        report = session.report()
        latency = Latency.of(spans.ms("run"))
        assert latency is not None
        common.say(progress, "measuring the device's limits")
        limits = device_limits(session.context.capabilities, again=not index)
        result = BenchResult(
            str(model),
            {name: list(value.shape) for name, value in feeds.items()},
            report.device,
            report.counts,
            spans.ms("open")[0],
            spans.ms("warmup")[0],
            latency,
            limits.of_plans(island.plan for island in session.islands()) / 1e6,
        )
        return result, limits


def print_results(results: Sequence[BenchResult]) -> None:
    """Print the table of results."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("model")
    for name in ("median ms", "p90", "min", "of limit", "first run", "open"):
        table.add_column(name, justify="right")
    table.add_column("nodes")
    for r in results:
        times = (r.latency.median_ms, r.latency.p90_ms, r.latency.min_ms, r.of_limit, r.first_run_ms, r.open_ms)
        nodes = ", ".join(f"{count} {where}" for where, count in r.placement.items())
        table.add_row(one_line(Path(r.model).stem), *(f"{t:.2f}" for t in times), nodes)
    common.print_table(table)
    common.echo(f"{results[0].latency.runs} runs each, numpy in and out, on {results[0].device}")
