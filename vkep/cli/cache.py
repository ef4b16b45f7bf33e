"""``vkep cache``: what vkep keeps on disk, how large it is, and removing it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from vkep.cli.common import JsonFlag, UsageError, VerboseOption, command, echo, print_json

#: what the folders below the root of the cache hold
KINDS: Mapping[str, str] = {
    "spirv": "compiled shaders",
    "pipelines": "the driver's pipeline caches",
    "plans": "plans of model files, with packed weights",
    "tuning": "tilings measured by vkep tune",
    "limits": "measured limits of devices",
    "vgf": "VGF files converted from regions of models",
    "ort": "the compiled library for ONNX Runtime",
    "tools": "copies of compilers",
    "models": "models that vkep.ray.ship sent here",
}

app = typer.Typer(
    name="cache",
    help="Show and remove what vkep keeps on disk: compiled shaders, plans, tilings.",
    no_args_is_help=True,
    add_completion=False,
)


@dataclass(frozen=True)
class Content:
    """The files of one kind."""

    kind: str
    what: str
    files: int
    bytes: int


def contents(root: Path) -> list[Content]:
    """The files of each kind below a cache's root, in the order of `KINDS`; kinds without files are left out."""
    found = []
    for kind, what in KINDS.items():
        sizes = [path.lstat().st_size for path in (root / kind).rglob("*") if path.is_file() and not path.is_symlink()]
        if sizes:
            found.append(Content(kind, what, len(sizes), sum(sizes)))
    return found


@app.command("list")
def list_command(json_output: JsonFlag = False, verbose: VerboseOption = 0) -> None:
    """Show where the cache is, what is in it, and its size."""
    with command(json_output, verbose):
        from vkep.arena.records import format_bytes
        from vkep.cache import cache_root

        root = cache_root()
        found = contents(root)
        total = sum(one.bytes for one in found)
        if json_output:
            print_json({"folder": str(root), "bytes": total, "contents": [asdict(one) for one in found]})
            return
        echo(f"{root}: {format_bytes(total, exact=False)}")
        for one in found:
            echo(f"  {one.kind:10s}{format_bytes(one.bytes, exact=False):>12s}  {one.files:6d} files  {one.what}")


@app.command("clear")
def clear_command(
    kinds: Annotated[
        list[str] | None, typer.Argument(metavar="[KIND...]", help="Kinds that `vkep cache list` shows; default: all.")
    ] = None,
    json_output: JsonFlag = False,
    verbose: VerboseOption = 0,
) -> None:
    """Remove what is in the cache, or some kinds of it. It is made again where it is needed; programs that run are not
    affected."""
    with command(json_output, verbose):
        from vkep.arena.records import format_bytes
        from vkep.cache import cache_root

        wanted: Sequence[str] = kinds or list(KINDS)
        unknown = [kind for kind in wanted if kind not in KINDS]
        if unknown:
            raise UsageError(f"no kind named {unknown[0]!r}; there are: {', '.join(KINDS)}")
        root = cache_root()
        removed = [one for one in contents(root) if one.kind in wanted]
        for one in removed:
            shutil.rmtree(root / one.kind)
        total = sum(one.bytes for one in removed)
        if json_output:
            print_json({"folder": str(root), "bytes": total, "removed": [asdict(one) for one in removed]})
        else:
            echo(
                f"{root}: removed {', '.join(one.kind for one in removed) or 'nothing'} ({format_bytes(total, exact=False)})"
            )
