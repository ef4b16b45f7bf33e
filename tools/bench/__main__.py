"""Command line: `python -m tools.bench [--models ...] [--ops] [--peers ...] [--rounds N] [--check] [--json FILE]`, or
`python -m tools.bench --generate ...` (`tools.bench.generate`).
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
import tempfile
from contextlib import nullcontext
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path

from rich.console import Console

from tools.bench import generate
from tools.bench.gpu_ops import Measured, add_arguments, measure_kernels, plain
from tools.bench.kernel_cases import Sizes
from tools.bench.limits import limits_of_this_run
from tools.bench.machine import cold_environment, machine_info
from tools.bench.measure import Result, measure_model
from tools.bench.peers import DEFAULT_PEERS, PEERS
from tools.bench.table import markdown_table, terminal_table
from tools.bench.targets import PLAIN, PROVIDER, RIVAL, verdicts
from tools.models.catalog import BENCHMARKS, CATALOG, MICRO, Options, write_model
from vkep.device.measure.limits import DeviceLimits


def parser() -> argparse.ArgumentParser:
    """The command line's arguments."""
    made = argparse.ArgumentParser(
        prog="python -m tools.bench",
        description="Measure vkep and its peers side by side. "
        "--generate: language models, with options of its own (--generate --help).",
    )
    made.add_argument("--models", nargs="+", metavar="M", help=f"names ({', '.join(CATALOG)}) or .onnx files with .npz")
    made.add_argument("--ops", action="store_true", help="single operators instead of whole models: the one-operator "
                      "models on all peers, then the kernels alone by GPU timestamps (on a GPU against torch)")  # fmt: skip
    made.add_argument("--peers", nargs="+", choices=list(PEERS), default=list(DEFAULT_PEERS), metavar="P",
                      help=f"any of: {', '.join(PEERS)} (default: {', '.join(DEFAULT_PEERS)})")  # fmt: skip
    made.add_argument("--rounds", type=int, default=10, help="turns of every peer (default: 10)")
    made.add_argument("--folder", type=Path, default=Path("models"), help="where models are, or are made (models)")
    made.add_argument("--json", type=Path, help="write everything measured to this file")
    made.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    made.add_argument("--timeout", type=float, default=300, help="seconds to wait for a peer's answer (default: 300)")
    made.add_argument("--check", action="store_true", help="say what became of the promises for the ONNX Runtime provider "
                      f"(peers {PLAIN}, {PROVIDER}, {RIVAL}); exit code 1 where one is not held or not measured")  # fmt: skip
    add_arguments(made.add_argument_group("kernels, with --ops"))
    made.add_argument("--cold", action="store_true", help="workers get empty caches (XDG_CACHE_HOME and Mesa's)")
    return made


def find_models(names: list[str], folder: Path, console: Console) -> list[Path]:
    """Paths of the models; those of the catalog that are missing are made.

    Raises:
        ValueError: for a name that is neither in the catalog nor a file with an .npz beside it.
    """
    found = []
    for name in names:
        path = Path(name) if name.endswith(".onnx") else folder / f"{name}.onnx"
        if not (path.exists() and path.with_suffix(".npz").exists()):
            if name not in CATALOG:
                raise ValueError(f"{name} is no model of the catalog, and {path} with its .npz is not there")
            console.print(f"making {path}")
            write_model(name, folder, Options())
        found.append(path)
    return found


def main(arguments: list[str] | None = None) -> int:
    """Measure and print. Exit code 1 when a peer failed or nothing was measured, 2 for wrong arguments."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if "--generate" in arguments:
        return generate.main([a for a in arguments if a != "--generate"])
    given = parser().parse_args(arguments)
    console = Console(stderr=True)
    if given.rounds < 1:
        console.print(f"error: --rounds must be at least 1, got {given.rounds}")
        return 2
    try:
        names = given.models or list(MICRO if given.ops else BENCHMARKS)
        models = find_models(names, given.folder, console)
    except ValueError as problem:
        console.print(f"error: {problem}")
        return 2
    base = "vkep" if "vkep" in given.peers else given.peers[0]
    results: list[Result] = []
    kernels: list[Measured] = []
    machine = machine_info()
    limits: DeviceLimits | None = None
    with tempfile.TemporaryDirectory() if given.cold else nullcontext("") as cache, console.status("") as status:
        environment = {**os.environ, **(cold_environment(cache) if given.cold else {})}
        if any(peer.startswith("vkep") for peer in given.peers):
            status.update("measuring the device's limits")
            found = limits_of_this_run(environment, given.timeout)
            if isinstance(found, str):
                console.print(f"no limits of the device: {found}")
            else:
                limits = found
        for model in models:
            results += measure_model(
                model, given.peers, given.rounds, environment, given.timeout, status.update, limits
            )
            # after each model, since a long run may be stopped
            write_json(given.json, machine, vars(given), results, limits, kernels)
    # Wide enough for the table where the output is no terminal but a file or a log.
    out = Console() if sys.stdout.isatty() else Console(width=180)
    devices = "; ".join(machine["vulkan_devices"]) or machine["vulkan_error"]
    out.print(f"{machine['cpu']}, {machine['cores']} cores; {devices}", soft_wrap=True)
    if limits is not None:
        out.print(str(limits), soft_wrap=True, highlight=False)
    if given.markdown:
        print(markdown_table(results, base))
    else:
        out.print(terminal_table(results, base))
    broken = False
    if given.ops and limits is not None:
        sizes = Sizes.smallest() if given.smallest else None
        tell = functools.partial(out.print, soft_wrap=True, highlight=False)
        _, kernels = measure_kernels(sizes, given.only, given.elements, not given.no_torch, tell)
        write_json(given.json, machine, vars(given), results, limits, kernels)
        broken |= any(kernel.failed for kernel in kernels)
    if given.check:
        for verdict in verdicts(results):
            out.print(str(verdict), soft_wrap=True, highlight=False)
            broken |= verdict.held is not True
    measured = any(result.status == "measured" for result in results)
    return 0 if not broken and measured and all(result.status != "failed" for result in results) else 1


def write_json(
    path: Path | None,
    machine: dict[str, object],
    settings: dict[str, object],
    results: list[Result],
    limits: DeviceLimits | None,
    kernels: list[Measured],
) -> None:
    """Write what was measured so far, when a file was asked for."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": machine,
        "settings": {key: str(value) if isinstance(value, Path) else value for key, value in settings.items()},
        "limits": asdict(limits) if limits is not None else None,
        "results": [result.as_json() for result in results],
        "kernels": [plain(kernel) for kernel in kernels],
    }
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
