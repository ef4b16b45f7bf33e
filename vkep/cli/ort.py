"""``vkep ort``: registers vkep's provider for programs that use ONNX Runtime, without a change to them."""

from __future__ import annotations

import typer

from vkep.cli.common import JsonFlag, VerboseOption, command, echo, print_json

app = typer.Typer(
    name="ort",
    help="Have programs that use ONNX Runtime find VulkanExecutionProvider, where VKEP_ORT is set.",
    no_args_is_help=True,
    add_completion=False,
)


@app.command("enable")
def enable_command(json_output: JsonFlag = False, verbose: VerboseOption = 0) -> None:
    """Let VKEP_ORT=1 register the provider in every program of this Python that imports onnxruntime."""
    with command(json_output, verbose):
        from vkep.ort import programs

        path = programs.enable()
        if json_output:
            print_json({"file": str(path)})
        else:
            echo(f"{path}: with {programs.VARIABLE}=1, programs of this Python find the provider")


@app.command("disable")
def disable_command(json_output: JsonFlag = False, verbose: VerboseOption = 0) -> None:
    """Undo `enable`."""
    with command(json_output, verbose):
        from vkep.ort import programs

        removed = programs.disable()
        if json_output:
            print_json({"removed": [str(path) for path in removed]})
        else:
            echo("\n".join(f"{path}: removed" for path in removed) or "it was not enabled")


@app.command("status")
def status_command(json_output: JsonFlag = False, verbose: VerboseOption = 0) -> None:
    """Print whether it is enabled, the value of VKEP_ORT, and the devices that ONNX Runtime finds."""
    with command(json_output, verbose):
        import os

        from vkep.ort import programs

        files, wish = programs.enabled(), os.environ.get(programs.VARIABLE)
        devices, problem = programs.devices()
        if json_output:
            found = {"files": [str(f) for f in files], programs.VARIABLE: wish, "devices": devices, "problem": problem}
            print_json(found)
            return
        echo(f"enabled by {', '.join(map(str, files))}" if files else "not enabled: `vkep ort enable` does so")
        echo(f"{programs.VARIABLE} is {wish!r}" if wish else f"{programs.VARIABLE} is not set")
        echo(problem or f"the provider's devices: {', '.join(devices)}")
