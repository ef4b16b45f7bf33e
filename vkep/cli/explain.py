"""``vkep explain``: where each node runs and why, the plan's dispatches, and where the GPU's time goes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vkep.cli import common
from vkep.text import one_line

if TYPE_CHECKING:
    from vkep.cli.inputs import Sources
    from vkep.cli.plans import DispatchTime
    from vkep.placement.rows import RowProof
    from vkep.placement.size_report import SizeState
    from vkep.session import InferenceSession, Report

#: sizes that a plan is explained for where the command line gives none, and conditions of one that are printed
_USUAL_SIZE, _CONDITIONS = 64, 12


@common.with_options
def explain_command(
    model: common.ModelArgument,
    texts: Any = None,
    nodes: Annotated[bool, typer.Option("--nodes", help="List every node.")] = False,
    plan: Annotated[
        bool, typer.Option("--plan", help="List every dispatch: kernel, grid, constants, addresses.")
    ] = False,
    rows: Annotated[
        bool, typer.Option("--rows", help="Say whether rows are independent, so that requests may share a run.")
    ] = False,
    sizes: Annotated[
        bool, typer.Option("--sizes", help="Say for each open dimension which sizes a plan serves, and what fixes it.")
    ] = False,
    time: Annotated[
        bool,
        typer.Option("--time", help="Rank the dispatches by the GPU time that they take beyond the device's limits."),
    ] = False,
    runs: Annotated[int, typer.Option("--runs", "-n", min=1, help="Profiled runs; each dispatch's median counts.")] = 3,
    top: Annotated[int, typer.Option("--top", min=0, help="Print that many dispatches of --time; 0: all.")] = 20,
    options: Any = None,
    json_output: common.JsonFlag = False,
    verbose: common.VerboseOption = 0,
) -> None:
    """Explain a model: where its nodes run and why, what is dispatched, where the GPU's time goes."""
    with common.command(json_output, verbose):
        model = common.located(model)
        with common.progress_bars(show=not json_output) as progress:
            from vkep.cli import plans, sessions
            from vkep.cli.inputs import make_inputs, read_sources
            from vkep.view.dispatches import describe_plan

            sessions.refuse(model, {"--plan": plan, "--time": time, "--nodes": nodes, "--rows": rows, "--sizes": sizes})
            sources = read_sources(*sessions.named_inputs(model, texts))
            common.say(progress, "opening the model")
            with sessions.open_session(model, options, progress) as session:
                times: list[DispatchTime] | None = None
                if time:
                    common.say(progress, "measuring dispatches")
                    times = plans.profile(session, make_inputs(session.get_inputs(), sources), runs)
                elif not sessions.is_program(model):
                    common.say(progress, "planning")
                    plan_for(session, sources, needed=not (rows or sizes) or plan or nodes)
                report = session.report()
                proof = row_proof(session, sources) if rows else None
                states = states_of_sizes(session, sources) if sizes else None
                described = [describe_plan(i.plan) for i in session.islands()] if plan else None
        if json_output:
            data = to_json(report, described, times)
            if proof is not None:
                data["rows"] = {"independent": not proof.reason, "reason": proof.reason}
            if states is not None:
                data["sizes"] = [state.to_dict() for state in states]
            common.print_json(data)
        else:
            print_explanation(report, nodes, described, times, top)
            if proof is not None:
                common.echo("rows: " + (f"not proved independent: {proof.reason}" if proof.reason else "independent"))
            for state in states or ():
                print_size(state)


def plan_for(session: InferenceSession, sources: Sources, needed: bool) -> None:
    """Plan a dynamic model for the shapes that the command line gives. Raises `UsageError` where they are ``needed`` and it gives
    none."""
    from vkep.cli.inputs import resolve_shapes

    if needed or sources.arrays or sources.shapes or sources.dims or sources.generated:
        session.plan(resolve_shapes(session.get_inputs(), sources))


def row_proof(session: InferenceSession, sources: Sources) -> RowProof:
    """Whether the model's rows are independent, for sizes like the given ones."""
    from vkep.cli.inputs import resolve_shapes
    from vkep.placement.rows import independent, prove

    caps = session.context.capabilities
    try:
        shapes = resolve_shapes(session.get_inputs(), sources)
    except common.UsageError:  # no sizes are given
        return independent(session.model, caps)
    return prove(session.model, caps, shapes)


def states_of_sizes(session: InferenceSession, sources: Sources) -> list[SizeState]:
    """What each open dimension is for a plan with sizes: for the given ones, or `_USUAL_SIZE` each where none is given."""
    from vkep.cli.inputs import resolve_shapes
    from vkep.placement.size_report import size_name, size_states

    infos = session.model.graph.inputs
    given = sources.arrays or sources.shapes or sources.dims
    shapes = resolve_shapes(session.get_inputs(), sources) if given else {}
    sizes = {
        size_name(info.name, axis, dim): shapes[info.name][axis] if shapes else _USUAL_SIZE
        for info in infos
        for axis, dim in enumerate(info.shape or ())
    }
    return size_states(session.model, session.context.capabilities, sizes)


def print_size(state: SizeState) -> None:
    """Print what a dimension is for a plan: a line, and one for each condition."""
    kinds = {"open": "open", "conditional": "open under conditions", "fixed": f"fixed at {state.value}"}
    most = f"{state.least} or more" if state.most is None else f"{state.least} to {state.most}"
    common.echo(f"size {state.name}: {kinds[state.state]}" + f" ({most})" * (state.state != "fixed"))
    near = [condition for condition in state.conditions if condition.near]
    for condition in near[:_CONDITIONS]:
        common.echo(f"    {condition}")
    rest = len(state.conditions) - len(near[:_CONDITIONS])
    if rest:
        common.echo(f"    {rest} further conditions, most of them limits of memory and counters (--json has all)")


def to_json(
    report: Report, described: Sequence[Sequence[dict[str, Any]]] | None, times: Sequence[DispatchTime] | None
) -> dict[str, Any]:
    """The report, with each island's dispatches as ``plan`` (``--plan``), and ``times``, sorted by the time to gain
    (``--time``)."""
    data = report.to_dict()
    if described is not None:
        data["islands"] = [
            {**island, "plan": list(plan)} for island, plan in zip(data["islands"], described, strict=True)
        ]
    if times is not None:
        data["times"] = [t.to_dict() for t in ranked(times)]
        data["total_ns"] = sum(t.nanoseconds for t in times)
    return data


def ranked(times: Sequence[DispatchTime]) -> list[DispatchTime]:
    """The dispatches sorted by the time beyond their limit, largest first."""
    return sorted(times, key=lambda t: -t.lost_ns)


def print_explanation(
    report: Report,
    nodes: bool,
    described: Sequence[Sequence[dict[str, Any]]] | None,
    times: Sequence[DispatchTime] | None,
    top: int,
) -> None:
    """Print the report, and the plans and times where they are given."""
    from vkep.cli.plans import format_dispatch

    common.echo(str(report))
    if nodes:
        common.print_nodes(report, node_times(times or ()))
    for index, dispatches in enumerate(described or ()):
        common.echo(f"island {index}: the plan")
        for dispatch in dispatches:
            for line in format_dispatch(dispatch):
                common.echo(line)
    if times is not None:
        print_times(times, top)


def node_times(times: Sequence[DispatchTime]) -> dict[str, float]:
    """Nanoseconds of each node by name: a dispatch's time is divided equally among the nodes that it computes."""
    found: dict[str, float] = {}
    for time in times:
        names = time.label.split(" + ")
        for name in names:
            found[name] = found.get(name, 0.0) + time.nanoseconds / len(names)
    return found


def print_times(times: Sequence[DispatchTime], top: int) -> None:
    """Print a table of the dispatches, sorted by the time beyond the limit, largest first."""
    from rich.table import Table

    from vkep.text import counted

    total = sum(t.nanoseconds for t in times)
    shown = ranked(times)[: top or None]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("beyond us ↓", "us", "share", "limit us", "of limit", "GFLOP/s", "GB/s"):
        table.add_column(name, justify="right")
    for name in ("dispatch", "kernel", "nodes"):
        table.add_column(name, overflow="fold")
    for t in shown:
        label = one_line(t.label) if len(t.label) < 80 else one_line(t.label[:77]) + "..."
        table.add_row(
            f"{t.lost_ns / 1e3:.1f}",
            f"{t.nanoseconds / 1e3:.1f}",
            f"{t.share:6.1%}",
            f"{t.limit_ns / 1e3:.1f}",
            f"{t.of_limit:.2f}",
            f"{t.gflops_per_s:.2f}",
            f"{t.gbytes_per_s:.2f}",
            f"{t.island}.{t.index}",
            t.kernel,
            label,
        )
    common.print_table(table)
    rest = len(times) - len(shown)
    if rest:
        more = total - sum(t.nanoseconds for t in shown)
        common.echo(f"and {rest} more: {more / 1e3:.1f} us")
    common.echo(
        f"{total / 1e3:.1f} us of GPU time in {counted(len(times), 'dispatch')}, each waiting for the one before"
        f"; by the device's limits at least {sum(t.limit_ns for t in times) / 1e3:.1f} us\n"
        "(GFLOP/s and GB/s count what the plan needs at least; limits: a copy and multiply-adds, measured on this device)"
    )
