"""Writes the manual page `docs/man/vkep.1` from the command line's parser; the wheel installs it under share/man/man1.

    python -m tools.manual    # write it (tools.generated checks that it is current)

Exit statuses and environment variables are those of the tables of docs/cli.md.
"""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
import typing
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from typer.main import get_command

from vkep.cli import app
from vkep.cli.examples import EXAMPLES, PANELS

ROOT = Path(__file__).resolve().parents[1]
PAGE, TABLES = ROOT / "docs" / "man" / "vkep.1", ROOT / "docs" / "cli.md"
#: what stands for a value of a type, where an option names nothing
VALUES = {"int": "N", "float": "X", "Path": "PATH", "str": "TEXT"}


def manual() -> str:
    """The page, in the macros of man(7)."""
    group: Any = get_command(app)
    lines = [
        '.\\" Written by python -m tools.manual.',
        '.TH VKEP 1 "" "vkep" "User Commands"',
        ".SH NAME",
        f"vkep \\- {_text(str(app.info.help))[:1].lower()}{_text(str(app.info.help))[1:].rstrip('.')}",
        ".SH SYNOPSIS",
        ".B vkep",
        ".I COMMAND",
        "[OPTIONS] ...",
        ".SH DESCRIPTION",
        _text(
            'Every command prints its own options and examples with --help. The documentation\'s page is "Command line".'
        ),
    ]
    shared: dict[str, dict[str, Any]] = {}
    for panel, names in PANELS.items():
        lines.append(f".SH {_text(panel.upper())}")
        for name in names:
            for words, command in _commands(name, group.commands[name]):
                lines += _command(words, command, shared)
    for panel, options in shared.items():
        lines += [f".SH OPTIONS: {_text(panel.upper())}", "Commands name those that they take."]
        for text, parameter in options.items():
            lines += [".TP", text, _help(parameter)]
    lines += [".SH OPTIONS: VKEP ALONE"]
    for parameter in group.params:
        lines += [".TP", _option(parameter, None), _help(parameter)]
    for title, head in (("EXIT STATUS", "exit status"), ("ENVIRONMENT", "variable")):
        lines.append(f".SH {title}")
        for name, meaning in _table(head):
            lines += [".TP", f".B {_text(name)}", _text(meaning)]
    return "\n".join(lines) + "\n"


def _commands(words: str, command: Any) -> Iterator[tuple[str, Any]]:
    inside = getattr(command, "commands", None)
    if inside is None:
        yield words, command
    for name, one in (inside or {}).items():
        yield from _commands(f"{words} {name}", one)


def _command(words: str, command: Any, shared: dict[str, dict[str, Any]]) -> list[str]:
    """The lines of one command. Options of a panel go to ``shared``, by panel and name."""
    annotations = inspect.signature(command.callback, eval_str=True).parameters
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    named = " ".join(_argument(p) for p in arguments)
    lines = [f".SS vkep {_text(words)} {_text(named)}".rstrip(), _text(_flat(command.help or ""))]
    for parameter in arguments:
        lines += [".TP", f".I {_text(_argument(parameter))}", _help(parameter)]
    others: dict[str, list[str]] = {}
    for parameter in command.params:
        if parameter in arguments:
            continue
        option = _option(parameter, annotations.get(parameter.name))
        if panel := parameter.rich_help_panel:
            shared.setdefault(panel, {})[option] = parameter
            others.setdefault(panel, []).append(max(parameter.opts, key=len))
        else:
            lines += [".TP", option, _help(parameter)]
    for panel, names in others.items():
        lines += [".PP", _text(f"{panel}: {', '.join(names)}.")]
    if examples := EXAMPLES.get(words):
        lines += [".PP", "Examples:", ".RS 4", ".nf", *map(_text, examples), ".fi", ".RE"]
    return lines


def _argument(parameter: Any) -> str:
    name = str(parameter.metavar or parameter.name.upper())
    return name if parameter.required or name.startswith("[") else f"[{name}]"


def _option(parameter: Any, declared: inspect.Parameter | None) -> str:
    """The names of an option, and its value."""
    names = ", ".join(sorted(parameter.opts, key=len)) + "".join(f" / {name}" for name in parameter.secondary_opts)
    value = "" if parameter.is_flag or getattr(parameter, "count", False) else parameter.metavar or _value(declared)
    return f".B {_text(names)}" + (f" \\fI{_text(value)}\\fR" if value else "")


def _value(declared: inspect.Parameter | None) -> str:
    """What stands for the value: the choices of an enumeration, or a word for its type."""
    kinds: list[Any] = [declared.annotation] if declared is not None else []
    while kinds:
        kind = kinds.pop(0)
        if isinstance(kind, type) and issubclass(kind, Enum):
            return "|".join(str(one.value) for one in kind)
        if inner := typing.get_args(kind):
            kinds += [one for one in inner[: 1 if hasattr(kind, "__metadata__") else None] if one is not type(None)]
        elif kind.__name__ in VALUES:
            return VALUES[kind.__name__]
    return "VALUE"


def _help(parameter: Any) -> str:
    default = parameter.default.value if isinstance(parameter.default, Enum) else parameter.default
    text = _flat(parameter.help or "")
    shown = default not in (None, False, "") and not getattr(parameter, "is_flag", True) and not parameter.count
    return _text(f"{text} Default: {default}." if shown and "default" not in text.lower() else text)


def _flat(text: str) -> str:
    return " ".join(text.split())


def _table(head: str) -> list[tuple[str, str]]:
    """The rows of the table of docs/cli.md whose first column has this name, as plain text."""
    lines = TABLES.read_text(encoding="utf-8").splitlines()
    start = next(k for k, line in enumerate(lines) if line.startswith(f"| {head} |")) + 2
    rows = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        plain = re.sub(r"\s*\(\[[^\]]*\]\([^)]*\)\)|`", "", line)
        name, meaning = (cell.strip() for cell in plain.strip("|").split("|", 1))
        rows.append((name, meaning))
    return rows


def _text(text: str) -> str:
    """A text for troff: hyphens that can be copied, and no line that begins as a request."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    lines: Sequence[str] = textwrap.wrap(text, 118, break_long_words=False, break_on_hyphens=False)
    return "\n".join(f"\\&{line}" if line[:1] in (".", "'") else line for line in lines)


def main() -> int:
    """Write the page."""
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(manual(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
