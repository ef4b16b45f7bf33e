"""``vkep bench``: latency and throughput of vkep, and of the CPU. GPU engines are compared by ``python -m tools.bench``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vkep.cli import common, generation
from vkep.text import one_line

if TYPE_CHECKING:
    from vkep.cli.measure import Latency
    from vkep.device.measure.limits import DeviceLimits


#: most timed runs of a folder's tests
_RUNS_OF_FOLDER = 5


class Peer(str, Enum):
    """Engines that ``--vs`` measures in the same command."""

    CPU = "cpu"


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
    runs_per_second: float
    concurrency: int
    limit_ms: float  #: the least possible time of the model's dispatches, by the device's measured limits
    peer: PeerResult | None = None

    @property
    def of_limit(self) -> float:
        """The limit divided by the median: 1 means that nothing is lost to the host, the transfers and slow kernels."""
        return self.limit_ms / self.latency.median_ms

    def to_dict(self) -> dict[str, Any]:
        """For ``--json``: latencies in milliseconds."""
        peer = self.peer.to_dict() if self.peer is not None else None
        return {**vars(self), "latency": self.latency.to_dict(), "of_limit": self.of_limit, "peer": peer}


@dataclass(frozen=True)
class PeerResult:
    """The same model in another engine, with the same inputs and number of threads that call it. Times in milliseconds."""

    engine: str
    first_run_ms: float
    latency: Latency
    runs_per_second: float

    def to_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {**vars(self), "latency": self.latency.to_dict()}


@dataclass(frozen=True)
class Measurement:
    """What ``vkep bench`` measures of each model."""

    runs: int = 20
    warmup: int = 3
    concurrency: int = 1
    peer: Peer | None = None


@common.with_options
def bench_command(
    models: Annotated[
        list[Path],
        typer.Argument(
            metavar="MODEL...", help=f"One or more .onnx files, or folders of language models, {common.HUB}."
        ),
    ],
    runs: Annotated[int, typer.Option("--runs", "-n", min=1, help="Timed runs of each model.")] = 20,
    warmup: Annotated[int, typer.Option("--warmup", min=1, help="Runs before them; the first is reported.")] = 3,
    concurrency: Annotated[
        int, typer.Option("--concurrency", "-c", min=1, help="Threads that run the model at the same time.")
    ] = 1,
    vs: Annotated[
        Peer | None, typer.Option("--vs", help="Also measure onnxruntime on the CPU (else onnx's evaluator).")
    ] = None,
    prompt: Annotated[
        int | None,
        typer.Option(
            "--prompt",
            "-p",
            min=1,
            help="Of a folder: tokens of the prompt; default: 512, or half of the model's context.",
        ),
    ] = None,
    answer: Annotated[int, typer.Option("--answer", "-g", min=1, help="Of a folder: tokens of the answer.")] = 64,
    sequences: Annotated[int, typer.Option("--sequences", min=1, help="Of a folder: answers at once.")] = 1,
    texts: Any = None,
    options: Any = None,
    json_output: common.JsonFlag = False,
    verbose: common.VerboseOption = 0,
) -> None:
    """Measure latency and throughput, numpy in and out: median, 90th and 99th percentile, minimum, runs per second, first
    run, time to open.

    Of folders with language models: tokens a second of a prompt (pp512) and of an answer (tg64).

    To compare with GPU engines in one run: python -m tools.bench (in a checkout).
    """
    with common.command(json_output, verbose):
        from vkep.generation.published import measured

        models = [common.located(model, measured) for model in models]
        folders = [model for model in models if model.is_dir()]
        if folders:
            if len(folders) < len(models):
                raise common.UsageError("folders and .onnx files are measured by different tests: name one kind")
            if vs is not None or concurrency > 1:
                raise common.UsageError("--vs and --concurrency are for .onnx files; --sequences is for folders")
            sizes = prompt, answer, sequences, min(runs, _RUNS_OF_FOLDER), warmup
            generation.print_rates(
                [r for f in folders for r in generation.bench_folder(f, options, *sizes)], json_output
            )
            return
        results = []
        limits: Any = None
        wanted = Measurement(runs, warmup, concurrency, vs)
        if concurrency > 1:
            options.setdefault("concurrency", concurrency)
        for index, model in enumerate(models):
            with common.progress_bars(show=not json_output) as progress:
                result, limits = bench_model(model, options, wanted, texts, progress, again=not index)
                results.append(result)
        if json_output:
            common.print_json({"results": [r.to_dict() for r in results], "limits": asdict(limits)})
        else:
            print_results(results)
            common.echo(f"limits measured on this device: {limits}")


def bench_model(
    model: Path,
    options: Mapping[str, Any],
    wanted: Measurement,
    texts: common.InputTexts,
    progress: common.Progress | None = None,
    again: bool = False,
) -> tuple[BenchResult, DeviceLimits]:
    """Open a model, warm it up and time it. ``limits`` are the device's, with ``again`` measured again.

    Raises `UsageError` and the errors of `vkep.InferenceSession`.
    """
    from vkep.cli import sessions
    from vkep.cli.inputs import make_inputs, read_sources
    from vkep.cli.measure import Spans, time_concurrent_runs, time_runs
    from vkep.device.measure.limits import device_limits

    sources = read_sources(*texts)
    if wanted.peer is not None:
        sessions.refuse(model, {"--vs": True})
    spans = Spans()
    common.say(progress, f"opening {model.name}")
    with spans.span("open"):
        session = sessions.open_session(model, options, progress)
    with session:
        feeds = make_inputs(session.get_inputs(), sources)

        def run() -> object:
            return session.run(None, feeds)

        common.say(progress, "first runs")
        time_runs(run, wanted.warmup, spans, "warmup")
        if wanted.concurrency > 1:  # each thread's first run allocates temporary memory
            time_concurrent_runs(run, wanted.warmup * wanted.concurrency, wanted.concurrency)
        common.say(progress, f"{wanted.runs} runs")
        latency, rate = time_concurrent_runs(run, wanted.runs, wanted.concurrency)
        report = session.report()
        common.say(progress, "measuring the device's limits")
        limits = device_limits(session.context.capabilities, max_age_s=0 if again else math.inf)
        names = [o.name for o in session.get_outputs()]
        plans = [island.plan for island in session.islands()]
    result = BenchResult(
        str(model),
        {name: list(value.shape) for name, value in feeds.items()},
        report.device,
        report.counts,
        spans.ms("open")[0],
        spans.ms("warmup")[0],
        latency,
        rate,
        wanted.concurrency,
        limits.of_plans(plans) / 1e6,
        _peer(model, names, feeds, wanted, progress) if wanted.peer is not None else None,
    )
    return result, limits


def _peer(
    model: Path, names: list[str], feeds: Mapping[str, Any], wanted: Measurement, progress: common.Progress | None
) -> PeerResult:
    from vkep.cli.measure import Spans, cpu_engine, time_concurrent_runs, time_runs

    common.say(progress, "running on the CPU")
    engine, name = cpu_engine(model)

    def run() -> object:
        return engine(names, feeds)

    spans = Spans()
    time_runs(run, wanted.warmup, spans, "warmup")
    return PeerResult(
        f"{name} on the CPU", spans.ms("warmup")[0], *time_concurrent_runs(run, wanted.runs, wanted.concurrency)
    )


def print_results(results: Sequence[BenchResult]) -> None:
    """Print the table of results."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("model")
    for name in ("median ms", "p90 ms", "p99 ms", "min ms", "runs/s", "of limit", "first ms", "open ms"):
        table.add_column(name, justify="right")
    table.add_column("nodes")
    for r in results:
        nodes = ", ".join(f"{count} {where}" for where, count in r.placement.items())
        last = (r.of_limit, r.first_run_ms, r.open_ms)
        table.add_row(one_line(Path(r.model).stem), *_columns(r), *(f"{t:.2f}" for t in last), nodes)
        if r.peer is not None:
            ratio = r.peer.latency.median_ms / r.latency.median_ms
            compared = (
                f"vkep takes 1/{ratio:.2f} of its median"
                if ratio >= 1
                else f"vkep takes {1 / ratio:.2f} times its median"
            )
            table.add_row(f"  {r.peer.engine}", *_columns(r.peer), "", f"{r.peer.first_run_ms:.2f}", "", compared)
    common.print_table(table)
    first = results[0]
    threads = f" from {first.concurrency} threads" if first.concurrency > 1 else ""
    common.echo(f"{first.latency.runs} runs each{threads}, numpy in and out, on {first.device}")


def _columns(result: BenchResult | PeerResult) -> list[str]:
    latency = result.latency
    times = (latency.median_ms, latency.p90_ms, latency.p99_ms, latency.min_ms)
    return [*(f"{t:.2f}" for t in times), f"{result.runs_per_second:.1f}"]
