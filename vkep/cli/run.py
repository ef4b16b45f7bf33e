"""``vkep run``: runs one model and reports where each node ran, the latency and the error against a reference."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vkep.cli import common
from vkep.cli.common import FAILED, Progress, UsageError, say
from vkep.text import finite, one_line

if TYPE_CHECKING:
    from vkep.cli.measure import Comparison, Latency, Spans
    from vkep.session import Report


@dataclass(frozen=True)
class Request:
    """The files that a run reads and writes."""

    runs: int = 1
    check: Path | None = None
    check_cpu: bool = False
    tolerance: float | None = None
    profile: Path | None = None


@dataclass(frozen=True)
class Outcome:
    """The results of a run. Times in milliseconds."""

    outputs: dict[str, Any]
    input_shapes: dict[str, list[int]]
    report: Report
    open_ms: float
    first_ms: float
    latency: Latency | None  #: of the runs except the first
    comparisons: list[Comparison]
    spans: Spans
    document: dict[str, Any] | None  #: of the traced runs (`vkep.view.document`), where a profile was requested

    @property
    def ok(self) -> bool:
        """Whether all comparisons are within their tolerance."""
        return all(c.ok for c in self.comparisons)

    def to_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        from vkep.cli.measure import statistics_of

        return {
            "report": self.report.to_dict(),
            "inputs": self.input_shapes,
            "outputs": {name: statistics_of(value) for name, value in self.outputs.items()},
            "open_ms": self.open_ms,
            "first_run_ms": self.first_ms,
            "latency": self.latency.to_dict() if self.latency else None,
            "check": {"ok": self.ok, "outputs": [c.to_dict() for c in self.comparisons]} if self.comparisons else None,
        }


@common.with_options
def run_command(
    model: common.ModelArgument,
    texts: Any = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the outputs: an .npz file, or a folder of .npy files.")
    ] = None,
    runs: Annotated[int, typer.Option("--runs", "-n", min=1, help="Runs; those after the first are timed.")] = 1,
    options: Any = None,
    check: Annotated[
        Path | None,
        typer.Option("--check", help="Compare with an .npz file: keys NAME or out_NAME; in_NAME are taken as inputs."),
    ] = None,
    check_cpu: Annotated[
        bool, typer.Option("--check-cpu", help="Compare with onnxruntime on the CPU (else onnx's evaluator).")
    ] = False,
    tolerance: Annotated[
        float | None,
        typer.Option("--tolerance", min=0.0, help="Relative error allowed; default: 1e-4 (float32), 1e-2 (float16)."),
    ] = None,
    report: Annotated[bool, typer.Option("--report", help="List every node, and where it runs.")] = False,
    profile: Annotated[
        Path | None,
        typer.Option("--profile", metavar="TRACE.json", help="Write GPU and host times for Perfetto."),
    ] = None,
    json_output: common.JsonFlag = False,
    verbose: common.VerboseOption = 0,
) -> None:
    """Run a model and print where each node ran, the latency, and the outputs' shapes and ranges."""
    with common.command(json_output, verbose):
        model = common.located(model)
        with common.progress_bars(show=not json_output) as progress:
            from vkep.cli import measure, sessions

            sessions.refuse(model, {"--check-cpu": check_cpu})
            if output is not None:
                measure.check_target("--output", output, folder=output.suffix != ".npz")
            if profile is not None:
                measure.check_target("--profile", profile)
            request = Request(runs, check, check_cpu, tolerance, profile)
            outcome = execute(model, options, request, sessions.named_inputs(model, texts), progress)
        if not json_output:
            print_outcome(outcome, report)  # first, so that it is written even where an output cannot be
        written = measure.save_outputs(outcome.outputs, output) if output else []
        if profile is not None:
            write_trace(outcome, profile, str(model))
        if json_output:
            files = {"written": [str(p) for p in written], "trace": str(profile) if profile else None}
            common.print_json({**outcome.to_dict(), **files})
        else:
            for path in [*written, *([profile] if profile else [])]:
                common.echo(f"written: {path}")
        if not outcome.ok:
            raise typer.Exit(FAILED)


def execute(
    model: Path,
    options: Mapping[str, Any],
    request: Request,
    texts: common.InputTexts,
    progress: Progress | None = None,
) -> Outcome:
    """Open, run, compare. Raises `UsageError`
    and the errors of `vkep.InferenceSession`.
    """
    from vkep.cli import measure, sessions
    from vkep.cli.inputs import make_inputs, read_archive, read_sources

    archive = read_archive(request.check) if request.check else None
    sources = read_sources(*texts, archive)
    spans = measure.Spans()
    say(progress, "opening the model")
    with spans.span("open"):
        session = sessions.open_session(model, options, spans.watch(progress))
    with session:
        feeds = make_inputs(session.get_inputs(), sources)
        names = [o.name for o in session.get_outputs()]
        say(progress, "running")
        results = measure.time_runs(lambda: session.run(None, feeds), 1, spans, "first run")
        if request.runs > 1:
            results = measure.time_runs(lambda: session.run(None, feeds), request.runs - 1, spans)
        outputs = dict(zip(names, results, strict=True))
        document = None
        if request.profile is not None:
            say(progress, "tracing")
            document = session.view(feeds, request.runs).document
        comparisons = []
        if archive is not None:
            expected = measure.reference_outputs(archive)
            comparisons += measure.compare(outputs, expected, str(request.check), request.tolerance)
        if request.check_cpu:
            say(progress, "running on the CPU")
            expected, engine = measure.cpu_reference(model, names, feeds)
            comparisons += measure.compare(outputs, expected, f"{engine} on the CPU", request.tolerance)
        return Outcome(
            outputs,
            {name: list(value.shape) for name, value in feeds.items()},
            session.report(),
            spans.ms("open")[0],
            spans.ms("first run")[0],
            measure.Latency.of(spans.ms("run")),
            comparisons,
            spans,
            document,
        )


def write_trace(outcome: Outcome, path: Path, model: str) -> None:
    """Write the traced runs and the host's spans as a Chrome trace. Raises `UsageError` for an unwritable path."""
    from vkep.cli.trace import chrome_trace

    assert outcome.document is not None, "it was asked for"
    trace = chrome_trace(outcome.spans.items, outcome.document, model)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(finite(trace), allow_nan=False), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--profile {path}: {error.strerror}") from error


def print_outcome(outcome: Outcome, every_node: bool) -> None:
    """Print report, times and outputs; with ``every_node`` the list of nodes."""
    from vkep.cli.measure import statistics_of

    common.echo(str(outcome.report))
    if every_node:
        common.print_nodes(outcome.report)
    times = [f"open {outcome.open_ms:.2f} ms", f"first run {outcome.first_ms:.2f} ms"]
    if outcome.latency is not None:
        found = outcome.latency
        slow = f"p90 {found.p90_ms:.2f}, p99 {found.p99_ms:.2f}"
        times.append(f"then median {found.median_ms:.2f} ms, {slow}, min {found.min_ms:.2f} of {found.runs}")
    common.echo(", ".join(times))
    for name, value in outcome.outputs.items():
        found_statistics = statistics_of(value)
        numbers = ", ".join(f"{k} {found_statistics[k]:.6g}" for k in ("min", "max", "mean") if k in found_statistics)
        bad = found_statistics.get("not_finite", 0)
        what = f"{found_statistics.get('dtype')} {found_statistics.get('shape')} {numbers}"
        if "type" in found_statistics:  # not a tensor
            length = found_statistics.get("length")
            what = found_statistics["type"] + (f" of {length}" if length is not None else "")
        common.echo(f"output {one_line(name)}: {what}" + (f", {bad} not finite" * bool(bad)))
    for comparison in outcome.comparisons:
        verdict = "within" if comparison.ok else "NOT within"
        common.echo(
            f"check {one_line(comparison.name)}: "
            + (
                comparison.problem
                or f"relative error {comparison.relative_error:.2e}, {verdict} {comparison.tolerance:g}"
            )
            + f" (against {comparison.against})"
        )
