"""``vkep view``: an HTML page of a model's run, or of two runs to compare."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vkep.cli import common
from vkep.cli.common import Progress, UsageError, say
from vkep.files import read_file

if TYPE_CHECKING:
    from vkep.cli.inputs import Sources

#: files that `vkep view` wrote before: a page, or the document alone
WRITTEN = (".html", ".json")


@common.with_options
def view_command(
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL",
            help="An .onnx, .pte or .vgf file, a language model's folder (with --prompt), an earlier page, "
            f"{common.HUB}.",
        ),
    ],
    texts: Any = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The file to write; default: MODEL's name with .html, here."),
    ] = None,
    open_: Annotated[bool, typer.Option("--open/--no-open", help="Show the page in the browser.")] = True,
    prompt: Annotated[
        str | None,
        typer.Option("--prompt", metavar="TEXT", help="MODEL is a language model's folder: show how it answers this."),
    ] = None,
    tokens: Annotated[int, typer.Option("--tokens", min=1, help="Most tokens of that answer.")] = 32,
    runs: Annotated[int, typer.Option("--runs", "-n", min=0, help="Runs that are timed; 0: show the plan alone.")] = 5,
    against: Annotated[
        Path | None,
        typer.Option("--against", help="Compare with a page (or its JSON) that was written before."),
    ] = None,
    options: Any = None,
    json_output: common.JsonFlag = False,
    verbose: common.VerboseOption = 0,
) -> None:
    """Write a page of a run, one HTML file: the graph with the delegate of each node, the timeline, dispatches, memory,
    contexts."""
    with common.command(json_output, verbose):
        from vkep.generation.published import local_folder

        target = output or Path(f"{model.stem}.html")
        model = common.located(model, local_folder if prompt is not None else None)
        with common.progress_bars(show=not json_output) as progress:
            from vkep.cli import measure
            from vkep.view.page import Page, show

            if not model.exists():
                raise UsageError(f"no such file: {model}")
            if not json_output or output is not None:
                if target.resolve() == model.resolve():
                    raise UsageError(f"{model}: the page would overwrite it; name another file with --output")
                measure.check_target("--output", target)
            other = _document(against) if against is not None else None
            if model.suffix in WRITTEN:
                document = _document(model)
            elif model.suffix == ".vgf":
                document = _vgf(model)
            elif prompt is not None:
                say(progress, "answering")
                document = _answer(model, options, prompt, tokens)
            else:
                document = measured(model, options, texts, runs, progress)
        page = Page([document] if other is None else [document, other])
        if json_output:
            if output is not None:
                page.save(target)
            common.print_json(page.document)
            return
        path = page.save(target)
        common.echo(f"written: {path}")
        if open_ and not show(path):
            common.echo("there is no browser here: open the file in one")


def _document(path: Path) -> dict[str, Any]:
    from vkep.view.page import read_document

    if not path.is_file():
        raise UsageError(f"no such file: {path}")
    try:
        return read_document(path)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _answer(folder: Path, options: dict[str, Any], prompt: str, tokens: int) -> dict[str, Any]:
    from vkep.generation import Generator

    if not folder.is_dir():
        raise UsageError(f"--prompt: {folder} is not a folder of a language model")
    with Generator(folder, **options) as generator:
        return generator.view(prompt, max_tokens=tokens).document


def _vgf(path: Path) -> dict[str, Any]:
    from vkep.vgf import decode
    from vkep.view.vgf import vgf_document

    return vgf_document(decode(read_file(path, error=UsageError)), str(path))


def measured(
    model: Path, options: dict[str, Any], texts: common.InputTexts, runs: int, progress: Progress | None
) -> dict[str, Any]:
    """Open the model, run it, and return the document of the page."""
    from vkep.cli import measure, sessions
    from vkep.cli.inputs import make_inputs, read_sources
    from vkep.session.reports.tracing import HostSpan

    sources: Sources = read_sources(*sessions.named_inputs(model, texts))
    spans = measure.Spans()
    say(progress, "opening the model")
    with spans.span("open"):
        session = sessions.open_session(model, options, spans.watch(progress))
    with session:
        feeds = make_inputs(session.get_inputs(), sources)
        say(progress, "running")
        document = session.view(feeds, runs).document
    depths = {"open": 0}
    opening = [HostSpan(s.name, s.start * 1e9, s.end * 1e9, depths.get(s.name, 1)) for s in spans.items]
    document["opening"] = [vars(span) for span in sorted(opening, key=lambda s: (s.depth, s.start))]
    return document
