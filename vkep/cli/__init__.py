"""The command line: ``vkep devices | run | bench | explain | shaders``.

Exit status: 0 it worked, 1 it failed (model, driver, device, or a result out of tolerance), 2 wrong usage.
Starting must stay light: modules here import numpy, onnx and Vulkan only inside the functions that need them.
"""

from __future__ import annotations

from typing import Annotated

import typer

from vkep.cli import bench, devices, explain, run, shaders

app = typer.Typer(
    name="vkep",
    help="Run ONNX models with Vulkan compute shaders.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("devices")(devices.devices_command)
app.command("run")(run.run_command)
app.command("bench")(bench.bench_command)
app.command("explain")(explain.explain_command)
app.add_typer(shaders.app)


def _print_version(wanted: bool) -> None:
    if wanted:
        from vkep import __version__

        typer.echo(f"vkep {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """What the console script ``vkep`` calls."""
    app(prog_name="vkep")
