"""Shared by the commands: options, errors as exit status and one paragraph, JSON, logging, progress bars."""

from __future__ import annotations

import functools
import inspect
import json
import logging
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from gpu_shared.compile_spec import ContextMode, SyncMode
from vkep.text import finite, one_line, printable

if TYPE_CHECKING:
    from rich.table import Table

    from vkep.executorch.report import MethodReport
    from vkep.session.reports.report import Report


FAILED, USAGE = 1, 2
#: ``progress(phase, done, total, what)``, as `vkep.SessionOptions` takes it
Progress = Callable[[str, int, int, str], None]
#: the phase of `progress_bars` whose text describes the current work
STEP = "step"
#: columns of printed tables where standard output is no terminal
PLAIN_WIDTH = 160

#: groups of options in the help texts
SESSION, INPUTS, COMMON = "Device and session", "Inputs", "Output"

logger = logging.getLogger("vkep.cli")


class Fallback(str, Enum):
    """Where nodes run that Vulkan declines."""

    CPU = "cpu"
    ERROR = "error"


class Prefer(str, Enum):
    """Which delegate is offered a node first, where data graphs are available."""

    AUTO = "auto"
    VGF_FIRST = "vgf_first"
    VULKAN_FIRST = "vulkan_first"


JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.", rich_help_panel=COMMON)]
VerboseOption = Annotated[
    int,
    typer.Option(
        "--verbose", "-v", count=True, help="Log to standard error; twice for debug messages.", rich_help_panel=COMMON
    ),
]
#: of the texts of arguments
HUB = "or hf:OWNER/NAME of the Hugging Face hub"
ModelArgument = Annotated[
    Path, typer.Argument(metavar="MODEL", help=f"An .onnx file, an ExecuTorch program (.pte), {HUB}.")
]
FolderArgument = Annotated[
    Path, typer.Argument(metavar="FOLDER", help=f"A folder of onnxruntime-genai's builder or optimum, {HUB}.")
]
DeviceOption = Annotated[
    str | None,
    typer.Option(
        "--device",
        metavar="D",
        help="Index, UUID or part of a name; default: $VKEP_DEVICE or the best.",
        rich_help_panel=SESSION,
    ),
]
TokenOption = Annotated[
    str | None, typer.Option("--token", metavar="T", help="Token of the shared context.", rich_help_panel=SESSION)
]
GroupOption = Annotated[
    int, typer.Option("--group", metavar="G", min=0, help="Group id of the shared context.", rich_help_panel=SESSION)
]
ModeOption = Annotated[
    ContextMode, typer.Option("--mode", help="How the session gets its context.", rich_help_panel=SESSION)
]
SyncOption = Annotated[
    SyncMode, typer.Option("--sync", help="What is waited for between delegates' regions.", rich_help_panel=SESSION)
]
CheckDataOption = Annotated[
    bool,
    typer.Option(
        help="Refuse indices, lengths and integer divisors in the data that ONNX does not allow.",
        rich_help_panel=SESSION,
    ),
]
FallbackOption = Annotated[
    Fallback, typer.Option("--fallback", help="For nodes that Vulkan declines.", rich_help_panel=SESSION)
]
PreferOption = Annotated[
    Prefer, typer.Option("--prefer", help="The delegate that is offered a node first.", rich_help_panel=SESSION)
]
InputOption = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        "-i",
        metavar="NAME=WHAT",
        help="WHAT is a .npy file, an .npz file (key NAME or in_NAME), random, ones or zeros; repeatable. "
        "FILE.npz without NAME= gives every input. Default: random.",
        rich_help_panel=INPUTS,
    ),
]
ShapeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--shape",
        "-s",
        metavar="NAME=1x3x224x224",
        help="Shape of a generated input; repeatable.",
        rich_help_panel=INPUTS,
    ),
]
DimOption = Annotated[
    list[str] | None,
    typer.Option("--dim", metavar="SYMBOL=N", help="Size of a symbolic dimension; repeatable.", rich_help_panel=INPUTS),
]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="Seed of random inputs.", rich_help_panel=INPUTS)]
#: the texts of ``--input``, ``--shape`` and ``--dim``, and the seed
InputTexts = tuple[Sequence[str] | None, Sequence[str] | None, Sequence[str] | None, int]


def _imported(modules: list[str] | None) -> list[str] | None:
    """Import modules that declare operators, also from the current folder. Raises ``typer.BadParameter``."""
    import importlib
    import os

    if modules and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    for name in modules or ():
        try:
            importlib.import_module(name)
        except Exception as error:  # a user's module may raise anything
            raise typer.BadParameter(f"importing {name} raises {type(error).__name__}: {error}") from error
    return modules


ImportOption = Annotated[
    list[str] | None,
    typer.Option(
        "--import",
        metavar="MODULE",
        callback=_imported,
        help="Import a module that declares operators, installed or in the current folder; repeatable.",
        rich_help_panel=SESSION,
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="OPTION=VALUE",
        help="Any other option of vkep.SessionOptions by its name: --set plan_cache_size=64; repeatable.",
        rich_help_panel=SESSION,
    ),
]


def located(model: Path, find: Callable[[Path], Path] | None = None) -> Path:
    """The path that an argument gives, or where ``find`` (default: `vkep.hub.model_file`) downloads ``hf:OWNER/NAME``. Raises
    as ``find``."""
    from vkep import hub

    if not hub.is_hub_name(model):
        return model
    if not sys.stderr.isatty():
        hub.without_progress()
    return (find or hub.model_file)(model)


class UsageError(Exception):
    """The command line's arguments do not fit together or do not fit the model: exit status 2."""


def session_options(
    device: DeviceOption = None,
    token: TokenOption = None,
    group: GroupOption = 0,
    mode: ModeOption = ContextMode.LOOKUP_OR_CREATE,
    sync: SyncOption = SyncMode.TIMELINE,
    fallback: FallbackOption = Fallback.CPU,
    prefer: PreferOption = Prefer.AUTO,
    check_data: CheckDataOption = True,
    imports: ImportOption = None,
    settings: SetOption = None,
) -> dict[str, Any]:
    """The options that commands with a session have, as keyword arguments of `vkep.InferenceSession`. ``imports`` has its
    effect where the option is read. Raises ``typer.BadParameter`` for a setting that is not OPTION=VALUE."""
    return {
        "device": device,
        "token": token,
        "group_id": group,
        "context_mode": mode.value,
        "sync_mode": sync.value,
        "fallback": fallback.value,
        "prefer": prefer.value,
        "check_data": check_data,
        **_settings(settings or ()),
    }


def _settings(texts: Sequence[str]) -> dict[str, Any]:
    """Values as JSON has them (``64``, ``true``, ``{"N": 4}``); others are texts."""
    found: dict[str, Any] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise typer.BadParameter(f"--set {text}: expected OPTION=VALUE, such as plan_cache_size=64")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    if found:
        from vkep.session.session import options_of

        try:
            options_of(**found)
        except (TypeError, ValueError) as error:
            raise typer.BadParameter(f"--set: {error}") from error
    return found


def input_texts(
    inputs: InputOption = None, shape: ShapeOption = None, dim: DimOption = None, seed: SeedOption = 0
) -> InputTexts:
    """The options for a run's inputs, as `vkep.cli.inputs.read_sources` takes them."""
    return inputs, shape, dim, seed


def with_options(function: Callable[..., None]) -> Callable[..., None]:
    """Decorates a command that takes ``options`` or ``texts``: in their places the command line has the options of
    `session_options` and of `input_texts`."""
    signature = inspect.signature(function, eval_str=True)
    groups = {n: f for n, f in _GROUPS.items() if n in signature.parameters}
    ours = {name: inspect.signature(group, eval_str=True).parameters for name, group in groups.items()}

    @functools.wraps(function)
    def command(**given: Any) -> None:
        made = {name: group(**{n: given.pop(n) for n in ours[name]}) for name, group in groups.items()}
        function(**given, **made)

    parameters = [q for p in signature.parameters.values() for q in (ours[p.name].values() if p.name in ours else (p,))]
    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command


_GROUPS: Mapping[str, Callable[..., Any]] = {"options": session_options, "texts": input_texts}


def print_json(value: Any) -> None:
    """Print standard JSON: NaN and infinities become null."""
    typer.echo(json.dumps(finite(value), indent=2, allow_nan=False))


def print_table(table: Table) -> None:
    """Print a rich table. Where standard output is no terminal it is wide, so that no cell is wrapped."""
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH, markup=False, emoji=False, highlight=False)
    console.print(table)


def echo(text: str = "", err: bool = False, nl: bool = True) -> None:
    """Print a text, in which names may be a file's (`printable`)."""
    typer.echo(printable(text), err=err, nl=nl)


def print_piece(text: str) -> None:
    """Print a piece of an answer: a file gets it as it is, a terminal without sequences that it obeys."""
    typer.echo(printable(text) if sys.stdout.isatty() else text, nl=False)


def print_nodes(report: Report | MethodReport, nanoseconds: Mapping[str, float] | None = None) -> None:
    """Print every node of a report, what matters first: nodes on the CPU with their reasons, then the slowest on the
    GPU (where ``nanoseconds`` has their times by name). Folded constants are only counted, at the end."""
    from vkep.session.reports.report import by_importance
    from vkep.text import counted

    times, folded = nanoseconds or {}, 0
    if times:
        echo("    place           us ↓  operator               node (a dispatch's time is divided among its nodes)")
    for node in by_importance(report.nodes, times):
        if node.where == "folded":
            folded += 1
            continue
        reason = "; ".join(
            filter(None, [node.reason, *(f"declined by {w}: {why}" for w, why in node.declined.items())])
        )
        took = (f"{times[node.name] / 1e3:10.1f}  " if node.name in times else " " * 12) * bool(times)
        echo(
            f"    {node.where:8s}{took} {one_line(node.op_type):22s} {one_line(node.name)}"
            + f"  ({reason})" * bool(reason)
        )
    if folded:
        echo(f"    folded   {counted(folded, 'constant node')}")


class _Printable(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


@contextmanager
def logging_to_stderr(verbose: int) -> Iterator[None]:
    """Send log messages to standard error: warnings, with ``-v`` information, with ``-vv`` debug messages. The loggers
    are restored at the end."""
    level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)]
    handler = logging.StreamHandler()
    handler.setFormatter(_Printable("%(levelname)s %(name)s: %(message)s"))
    # The shader library logs every shader that fails and raises the first: the command prints that one as its error.
    library = logging.getLogger("vkep.shaders.library")
    packages = [logging.getLogger(name) for name in ("vkep", "gpu_shared")]
    before = [(one, one.level, one.handlers, one.propagate) for one in (*packages, library)]
    for package in packages:
        package.setLevel(level)
        package.handlers, package.propagate = [handler], False
    if not verbose:
        library.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for one, old_level, handlers, propagate in before:
            one.setLevel(old_level)
            one.handlers, one.propagate = handlers, propagate


@contextmanager
def command(json_output: bool, verbose: int = 0) -> Iterator[None]:
    """Context of a command's work: prints an expected error as one paragraph and exits with its status.

    With ``-v`` the traceback is logged too. An unexpected error is a bug and keeps its traceback.
    """
    with logging_to_stderr(verbose):
        try:
            yield
        except UsageError as error:
            fail(error, json_output, USAGE)
        except Exception as error:
            status = exit_status(error)
            if status is None:
                raise
            logger.info("%s", type(error).__name__, exc_info=error)
            fail(error, json_output, status)


def exit_status(error: BaseException) -> int | None:
    """Return the exit status for an error that a user can act on; None for one that only a bug can raise."""
    from gpu_shared.errors import GpuError
    from vkep.errors import InvalidInputError, VkepError

    if isinstance(error, BrokenPipeError):
        return None  # the reader closed the pipe: the command line's framework ends quietly
    if isinstance(error, (InvalidInputError, FileNotFoundError, NotADirectoryError, IsADirectoryError)):
        return USAGE
    if isinstance(error, (GpuError, VkepError, MemoryError, OSError)):
        return FAILED
    return None


def fail(error: BaseException, json_output: bool, status: int) -> NoReturn:
    """Print the error (with ``--json`` as JSON on standard output too) and exit."""
    message = str(error).strip() or type(error).__name__
    if json_output:
        print_json({"error": {"kind": type(error).__name__, "message": message}})
    text = f"error: {message}"
    # A log or a pipe gets one line, so that a search finds the text whatever the length of the paths in it.
    echo(paragraph(text) if sys.stderr.isatty() else text, err=True)
    raise typer.Exit(status)


def paragraph(text: str, width: int = 100) -> str:
    """Wrap text at words. A text of several lines (a list, quoted source) is unchanged."""
    if "\n" in text:
        return text
    return textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False)


@contextmanager
def progress_bars(show: bool) -> Iterator[Progress | None]:
    """A progress callback that draws on standard error: a line with the current work (`say`) and its elapsed time, and
    bars while shaders are compiled and weights uploaded. None without a terminal or where ``show`` is False."""
    if not show or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    names = {"shaders": "compiling shaders", "weights": "uploading weights"}
    text = functools.partial(TextColumn, markup=False)
    columns = (text("{task.description:18s}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Bars(*columns, text("{task.fields[what]}"), console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, Any] = {STEP: bars.add_task("starting", total=None, what="")}

        def advance(phase: str, done: int, total: int, what: str) -> None:
            what = one_line(what)
            if phase == STEP:
                bars.update(tasks[STEP], description=what)
                return
            if phase not in tasks:
                tasks[phase] = bars.add_task(names.get(phase, phase), total=total or None, what="")
            bars.update(tasks[phase], completed=done, total=total or None, what=what)  # 0: not known yet

        yield advance


def say(progress: Progress | None, text: str) -> None:
    """Set the text of the current work on the line of `progress_bars`."""
    if progress is not None:
        progress(STEP, 0, 0, text)


def file_name(name: str) -> str:
    """Return an output's name as a file name: characters that a file name cannot have become underscores, and it is shortened."""
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in name).lstrip(".")[:80] or "_"
