"""Log messages get the text of an exception. The exception itself would stay with the record, and with it, by its traceback, the
frames of all callers with their sessions and contexts. Records with a traceback (`logger.exception`, ``exc_info``) do keep it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}


def kept(source: str) -> Iterator[int]:
    """Lines of log calls that get the exception of a surrounding ``except`` as an argument of their message."""
    for handler in ast.walk(ast.parse(source)):
        if not isinstance(handler, ast.ExceptHandler) or handler.name is None:
            continue
        for call in ast.walk(handler):
            if (
                not isinstance(call, ast.Call)
                or not isinstance(call.func, ast.Attribute)
                or call.func.attr not in LEVELS
            ):
                continue
            if any(isinstance(one, ast.Name) and one.id == handler.name for one in call.args):
                yield call.lineno


def test_messages_get_the_text_of_an_exception() -> None:
    files = [*ROOT.glob("vkep/**/*.py"), *ROOT.glob("registry/gpu_shared/**/*.py")]
    assert len(files) > 100
    assert [f"{file.relative_to(ROOT)}:{line}" for file in files for line in kept(file.read_text("utf-8"))] == []


def test_the_check_finds_an_exception() -> None:
    source = "try:\n    f()\nexcept OSError as error:\n    log.{}\n"
    assert list(kept(source.format("warning('%s', error)"))) == [4]
    assert list(kept(source.format("warning('%s', str(error))"))) == []
    assert list(kept(source.format("error('failed', exc_info=error)"))) == []  # the traceback is what is logged
