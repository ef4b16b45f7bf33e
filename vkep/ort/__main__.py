"""``python -m vkep.ort [options] PROGRAM [arguments]``: runs a program that uses ONNX Runtime, with vkep's provider
registered."""

from __future__ import annotations

import argparse
import os
import sys

from vkep.ort.compile_library import LibraryError
from vkep.ort.programs import VARIABLE, Request, found, run_module, run_program


def main() -> None:
    """Run the program. Exit status 2 for wrong usage, and 1 where the program does not exist or the provider cannot be
    registered."""
    parser = argparse.ArgumentParser(
        prog="python -m vkep.ort",
        usage="%(prog)s [--default] [--as NAME] (PROGRAM | -m MODULE) [arguments]",
        description="Run a program with VulkanExecutionProvider registered in ONNX Runtime. PROGRAM is a file, or a command "
        "that is written in Python.",
    )
    parser.add_argument(
        "--default", action="store_true", help="sessions that name no provider get Vulkan, then the CPU"
    )
    parser.add_argument(
        "--as",
        dest="instead_of",
        action="append",
        default=[],
        metavar="NAME",
        help="sessions that name this provider get Vulkan (CPUExecutionProvider: Vulkan, then the CPU)",
    )
    parser.add_argument("-m", dest="module", help="run a module, as python -m does")
    mine, rest = _split(sys.argv[1:])
    wanted = parser.parse_args(mine)
    if wanted.module is None and not rest:
        parser.error("expected a PROGRAM or -m MODULE")
    request = Request(wanted.default, tuple(wanted.instead_of))
    try:
        path = None if wanted.module is not None else found(rest.pop(0))
        request.apply()
    except (OSError, ValueError, LibraryError, ImportError) as error:
        parser.exit(1, f"python -m vkep.ort: {error}\n")
    os.environ.setdefault(VARIABLE, str(request))  # for child processes, where the file is installed
    if path is None:
        run_module(wanted.module, rest)
    else:
        run_program(path, rest)


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Split the arguments into this command's options and the rest: the program (or nothing, after ``-m MODULE``) and
    its arguments."""
    at = 0
    while at < len(arguments) and arguments[at].startswith("-"):
        takes_one = arguments[at] in ("-m", "--as")
        at += 1 + takes_one
        if arguments[at - 1 - takes_one] == "-m":
            break
    return arguments[:at], arguments[at:]


if __name__ == "__main__":
    main()
