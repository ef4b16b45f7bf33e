"""The command line: `vkep.cli.examples.PANELS` lists the commands.

Exit status: 0 it worked, 1 it failed (model, driver, device, or a result out of tolerance), 2 wrong usage.
Starting must stay light: modules here import numpy, onnx and Vulkan only inside the functions that need them.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from vkep.cli import cache, common, ort, shaders, vgf
from vkep.cli.bench import bench_command
from vkep.cli.chat import chat_command
from vkep.cli.compare import compare_command
from vkep.cli.devices import devices_command
from vkep.cli.doctor import doctor_command
from vkep.cli.examples import add_examples
from vkep.cli.explain import explain_command
from vkep.cli.generation import generate_command
from vkep.cli.model import model_command
from vkep.cli.run import run_command
from vkep.cli.serve import serve_command
from vkep.cli.transcribe import transcribe_command
from vkep.cli.tune import tune_command
from vkep.cli.view import view_command


class Commands(TyperGroup):
    """The commands. With ``--json`` an error of usage is an object on standard output too."""

    def make_context(self, info_name: str | None, args: list[str], *more: Any, **extra: Any) -> Any:
        """As click. Raises its errors."""
        self._json = "--json" in args
        with self._reported():
            return super().make_context(info_name, args, *more, **extra)

    def invoke(self, ctx: Any) -> Any:
        """As click. Raises its errors."""
        with self._reported():
            return super().invoke(ctx)

    @contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except _UsageError as error:
            if self._json:
                common.print_json({"error": {"kind": "UsageError", "message": error.format_message()}})
            raise


#: click's, or the one of Typer's own copy of click
_UsageError: Any = typer.BadParameter.__bases__[0]
app = typer.Typer(
    name="vkep",
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Run ONNX models with Vulkan compute shaders.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command("devices")(devices_command)
app.command("doctor")(doctor_command)
app.command("model")(model_command)
app.command("run")(run_command)
app.command("generate")(generate_command)
app.command("transcribe")(transcribe_command)
app.command("chat")(chat_command)
app.command("serve")(serve_command)
app.command("bench")(bench_command)
app.command("compare")(compare_command)
app.command("explain")(explain_command)
app.command("view")(view_command)
app.command("tune")(tune_command)
app.add_typer(cache.app)
app.add_typer(ort.app)
app.add_typer(shaders.app)
app.add_typer(vgf.app)
add_examples(app)


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
    """The entry point of the console script ``vkep``."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name may have characters that the terminal does not
    app(prog_name="vkep")
