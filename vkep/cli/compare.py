"""``vkep compare``: a model against the CPU, against another model or against stored results, value by value; names the
first value that differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vkep.cli import common
from vkep.cli.common import FAILED, Progress, UsageError, say
from vkep.text import one_line

if TYPE_CHECKING:
    from vkep.cli.measure import Comparison

#: most values that are printed
_SHOWN = 20


@dataclass(frozen=True)
class Difference:
    """The comparisons of two runs. ``values`` are in the order of the first model's nodes; ``nodes`` has the operator and
    name of the node that computes each."""

    against: str
    outputs: list[Comparison]
    values: list[Comparison]
    nodes: Mapping[str, tuple[str, str]]

    @property
    def first(self) -> Comparison | None:
        """The first value beyond its tolerance."""
        return next((one for one in self.values if not one.ok), None)

    @property
    def ok(self) -> bool:
        """Whether outputs and values are within their tolerances."""
        return self.first is None and all(one.ok for one in self.outputs)

    def to_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        first = self.first
        described = [
            {**one.to_dict(), "operator": self.nodes[one.name][0], "node": self.nodes[one.name][1]}
            for one in self.values
        ]
        return {
            "ok": self.ok,
            "against": self.against,
            "first": first.name if first is not None else None,
            "outputs": [one.to_dict() for one in self.outputs],
            "values": described,
        }


@common.with_options
def compare_command(
    model: Annotated[Path, typer.Argument(metavar="A", help=f"An .onnx file, {common.HUB}; it runs on Vulkan.")],
    other: Annotated[
        Path | None,
        typer.Argument(
            metavar="[B]", help="Another .onnx file, run on Vulkan too, or an .npz file; default: A on the CPU."
        ),
    ] = None,
    outputs_only: Annotated[
        bool, typer.Option("--outputs-only", help="Compare the models' outputs alone, not the values between nodes.")
    ] = False,
    tolerance: Annotated[
        float | None,
        typer.Option("--tolerance", min=0.0, help="Relative error allowed; default: 1e-4 (float32), 1e-2 (float16)."),
    ] = None,
    texts: Any = None,
    options: Any = None,
    json_output: common.JsonFlag = False,
    verbose: common.VerboseOption = 0,
) -> None:
    """Compare a model's outputs and every value between its nodes with the CPU, another model or stored results, and name
    the first value that differs.

    Values with the same name are compared, in the order of A's nodes. The exit status is 1 if one differs.
    """
    with common.command(json_output, verbose):
        model, other = common.located(model), other and common.located(other)
        with common.progress_bars(show=not json_output) as progress:
            found = compare_models(model, other, options, texts, tolerance, outputs_only, progress)
        if json_output:
            common.print_json(found.to_dict())
        else:
            print_difference(found)
        if not found.ok:
            raise typer.Exit(FAILED)


def compare_models(
    model: Path,
    other: Path | None,
    options: Mapping[str, Any],
    texts: common.InputTexts,
    tolerance: float | None,
    outputs_only: bool,
    progress: Progress | None = None,
) -> Difference:
    """Run both, with the inputs of ``texts``, and compare.
    Raises `UsageError` and the errors of `vkep.InferenceSession`."""
    from vkep.cli import measure, sessions
    from vkep.cli.inputs import make_inputs, read_archive, read_sources

    for path in (model, other):
        if path is not None and not path.is_file():
            raise UsageError(f"no such file: {path}")
        if path is not None and sessions.is_program(path):
            raise UsageError(f"{path} is an ExecuTorch program, expected an .onnx file")
    archive = read_archive(other) if other is not None and other.suffix == ".npz" else None
    sources = read_sources(*texts, archive)
    say(progress, f"running {model.name}")
    with sessions.open_session(model, options, progress) as session:
        feeds = make_inputs(session.get_inputs(), sources)
        names = [o.name for o in session.get_outputs()]
        outputs = dict(zip(names, session.run(None, feeds), strict=True))
    marked, ours = b"", {}
    nodes: dict[str, tuple[str, str]] = {}
    if not outputs_only:
        marked, nodes = with_all_values(model)
        say(progress, "running for every value")
        ours = _on_vulkan(marked, model, options, feeds, [*nodes])
    if archive is not None:
        reference, against = measure.reference_outputs(archive), str(other)
        theirs = reference
    elif other is None:
        say(progress, "running on the CPU")
        reference, engine = measure.cpu_reference(model, names, feeds)
        theirs = measure.cpu_reference(marked, [*ours], feeds, model.parent)[0] if ours else {}
        against = f"{engine} on the CPU"
    else:
        say(progress, f"running {other.name}")
        reference, theirs, against = *_other_model(other, options, feeds, outputs_only), str(other)
    shared = {name: value for name, value in ours.items() if name in theirs}
    return Difference(
        against,
        measure.compare(outputs, reference, against, tolerance),
        measure.compare(shared, theirs, against, tolerance) if shared else [],
        nodes,
    )


def with_all_values(model: Path) -> tuple[bytes, dict[str, tuple[str, str]]]:
    """A model whose outputs are all values that its nodes compute, without those of inner graphs, as bytes that name
    external data; and by value, in order, the operator and name of its node. For a file that a session has opened."""
    import onnx

    proto = onnx.load_model(model, load_external_data=False)
    nodes = {name: (node.op_type, node.name) for node in proto.graph.node for name in node.output if name}
    known = {value.name for value in proto.graph.output}
    types = {value.name: value for value in proto.graph.value_info}
    for name in nodes:
        if name not in known:
            proto.graph.output.append(types.get(name) or onnx.ValueInfoProto(name=name))
    return proto.SerializeToString(), nodes


def _on_vulkan(
    marked: bytes, model: Path, options: Mapping[str, Any], feeds: Mapping[str, Any], names: Sequence[str]
) -> dict[str, Any]:
    """The tensors among a model's values, by name."""
    import numpy as np

    from vkep.session import InferenceSession

    with InferenceSession(marked, **{"base_dir": model.parent, **options}) as session:
        results = dict(zip(names, session.run(list(names), dict(feeds)), strict=True))
    return {name: value for name, value in results.items() if isinstance(value, np.ndarray)}


def _other_model(
    path: Path, options: Mapping[str, Any], feeds: Mapping[str, Any], outputs_only: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The outputs of the second model, and its values. Inputs take the type that it has for them."""
    from vkep.cli import sessions
    from vkep.cli.inputs import dtype_of

    with sessions.open_session(path, options) as session:
        arguments = {argument.name: argument for argument in session.get_inputs()}
        if arguments.keys() != feeds.keys():
            raise UsageError(f"{path} has the inputs {', '.join(arguments)}, the first model {', '.join(feeds)}")
        feeds = {name: value.astype(dtype_of(arguments[name])) for name, value in feeds.items()}
        outputs = dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True))
    if outputs_only:
        return outputs, {}
    marked, nodes = with_all_values(path)
    return outputs, _on_vulkan(marked, path, options, feeds, [*nodes])


def print_difference(found: Difference) -> None:
    """Print outputs, then the values that differ, and the first of them."""
    from vkep.text import counted

    for one in found.outputs:
        common.echo(f"output {one_line(one.name)}: {_verdict(one)}")
    wrong = [one for one in found.values if not one.ok]
    for one in wrong[:_SHOWN]:
        operator, node = found.nodes[one.name]
        common.echo(f"value {one_line(one.name)} of {operator} {one_line(node)}: {_verdict(one)}")
    if len(wrong) > _SHOWN:
        common.echo(f"and {len(wrong) - _SHOWN} more")
    if found.values:
        common.echo(
            f"{len(found.values) - len(wrong)} of {counted(len(found.values), 'value')} within tolerance, against {found.against}"
        )
    if found.first is not None:
        operator, node = found.nodes[found.first.name]
        common.echo(f"first value that differs: {one_line(found.first.name)}, computed by {operator} {one_line(node)}")
    elif found.values and not found.ok:
        common.echo(
            "Outputs differ, and no value does: with every value an output, nodes are not fused. "
            "The difference comes from fused nodes, or from values of inner graphs."
        )


def _verdict(one: Comparison) -> str:
    if one.problem:
        return one.problem
    return f"relative error {one.relative_error:.2e}, {'within' if one.ok else 'NOT within'} {one.tolerance:g}"
