"""``vkep model``: writes a small model with random weights, to try the other commands on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vkep.cli import common
from vkep.cli.common import UsageError

#: the model that takes the options of an architecture
_DECODER = "decoder"


def model_command(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Which model; without it they are listed.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file or folder to write; default: NAME's own, here.")
    ] = None,
    architecture: Annotated[
        str | None, typer.Option("--architecture", help="Of decoder: llama (default), qwen3, gemma2, gpt2 ...")
    ] = None,
    precision: Annotated[
        str | None, typer.Option("--precision", help="Of decoder: fp32 (default), fp16, int4, int4-fp16.")
    ] = None,
    size: Annotated[
        list[str] | None,
        typer.Option("--size", metavar="NAME=N", help="Of decoder: layers=4, hidden=512 ...; repeatable."),
    ] = None,
    json_output: common.JsonFlag = False,
    verbose: common.VerboseOption = 0,
) -> None:
    """Write a small model with random weights, to try the other commands on."""
    with common.command(json_output, verbose):
        from vkep.models.starters import STARTERS

        if name is None:
            listed = {key: {"what": one.what, "path": one.path} for key, one in STARTERS.items()}
            if json_output:
                common.print_json({"models": listed})
            else:
                for key, one in STARTERS.items():
                    common.echo(f"{key:12s}{one.what}")
            return
        if name not in STARTERS:
            raise UsageError(f"no model named {name!r}; there are: {', '.join(STARTERS)}")
        if name != _DECODER and (architecture or precision or size):
            raise UsageError(f"--architecture, --precision and --size are for {_DECODER}, not for {name}")
        path = output or Path(STARTERS[name].path)
        if not path.parent.is_dir():
            raise UsageError(f"--output {path}: there is no folder {path.parent}")
        if name == _DECODER:
            _write_decoder(path, architecture or "llama", precision or "fp32", size or [])
        else:
            STARTERS[name].write(path)
        if json_output:
            common.print_json({"written": str(path), "what": STARTERS[name].what})
        else:
            common.echo(f"written: {path}: {STARTERS[name].what}")


def _write_decoder(folder: Path, architecture: str, precision: str, texts: list[str]) -> None:
    from dataclasses import asdict

    from vkep.cli.inputs import parse_sizes
    from vkep.models.language import Language, write_language

    known = [name for name, value in asdict(Language()).items() if type(value) is int]
    sizes = parse_sizes(texts, "--size", "NAME=N")
    unknown = [name for name in sizes if name not in known]
    if unknown:
        raise UsageError(f"--size: no size named {unknown[0]!r}; there are: {', '.join(known)}")
    try:
        write_language(folder, architecture, precision, **sizes)
    except ValueError as error:
        raise UsageError(str(error)) from error
