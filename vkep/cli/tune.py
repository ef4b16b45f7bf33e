"""``vkep tune``: measures which tilings are fastest on this device, and saves them for later sessions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vkep.cli import common
from vkep.text import one_line

if TYPE_CHECKING:
    from vkep.session import InferenceSession
    from vkep.session.planning.tune import Tuned


@common.with_options
def tune_command(
    models: Annotated[list[Path], typer.Argument(metavar="MODEL...", help=f"One or more .onnx files, {common.HUB}.")],
    runs: Annotated[int, typer.Option("--runs", "-n", min=1, help="Profiled runs of each candidate.")] = 5,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Measure, but keep nothing.")] = False,
    texts: Any = None,
    device: common.DeviceOption = None,
    json_output: common.JsonFlag = False,
    verbose: common.VerboseOption = 0,
) -> None:
    """Measure the candidate tilings of the models' products and convolutions on this device; save those that are
    faster.

    The choices apply to devices of the same model with the same driver, and every later session uses them.
    """
    with common.command(json_output, verbose), common.progress_bars(show=not json_output) as progress:
        from vkep.cli.inputs import make_inputs, read_sources
        from vkep.device.tuning import save_choices, tuning_path
        from vkep.session.options import SessionOptions
        from vkep.session.planning.tune import tune

        sources = read_sources(*texts)
        results: dict[str, list[Tuned]] = {}
        caps: Any = None

        def feeds(session: InferenceSession) -> dict[str, Any]:
            nonlocal caps
            caps = session.context.capabilities
            return make_inputs(session.get_inputs(), sources)

        for model in models:
            model = common.located(model)
            if not model.is_file():
                raise common.UsageError(f"no such file: {model}")
            common.say(progress, f"tuning {model.name}")
            # the progress of tuning, not that of each session
            report = None if progress is None else lambda done, total, what: progress("candidates", done, total, what)
            results[str(model)] = tune(model, feeds, SessionOptions(device=device), runs, report)
            if not dry_run:
                save_choices(caps, {one.problem: one.choice for one in results[str(model)]})
    kept = None if dry_run else str(tuning_path(caps))
    if json_output:
        plain = {model: [one.to_dict() for one in found] for model, found in results.items()}
        common.print_json({"device": caps.name, "kept_in": kept, "models": plain})
    else:
        for name, found in results.items():
            print_tuned(name, found)
        common.echo(f"on {caps.name}; " + (f"kept in {kept}" if kept else "nothing kept (--dry-run)"))


def print_tuned(model: str, found: Sequence[Tuned]) -> None:
    """Print the choices for a model's problems."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("default us", "tuned us", "candidates"):
        table.add_column(name, justify="right")
    for name in ("problem", "choice", "nodes"):
        table.add_column(name, overflow="fold")
    for one in sorted(found, key=lambda t: t.chosen_ns - t.default_ns):
        choice = "default" if one.choice is None else " ".join(map(str, one.choice))
        label = one.labels[0] if len(one.labels) == 1 else f"{len(one.labels)} times"
        times = (f"{one.default_ns / 1e3:.1f}", f"{one.chosen_ns / 1e3:.1f}")
        table.add_row(*times, str(one.candidates), one.problem, choice, one_line(label[:60]))
    common.echo(f"{model}: {len(found)} problems")
    common.print_table(table)
    before, after = sum(t.default_ns for t in found), sum(t.chosen_ns for t in found)
    if found:
        common.echo(f"  {before / 1e3:.1f} us of GPU time in these, {after / 1e3:.1f} us tuned")
