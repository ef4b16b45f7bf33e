"""The manual page: it is what the parser has now, and troff reads it."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command

from tools.manual import PAGE, manual
from vkep.cli import app


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == manual(), "run python -m tools.manual"


def test_every_command_and_option_is_in_it() -> None:
    text = manual().replace("\\-", "-")

    def commands(words: str, command: Any) -> Iterator[tuple[str, Any]]:
        yield words, command
        for name, one in getattr(command, "commands", {}).items():
            yield from commands(f"{words} {name}", one)

    found = dict(commands("vkep", get_command(app)))
    assert len(found) > 20
    for words, command in found.items():
        assert hasattr(command, "commands") or f"\n.SS {words}" in text
        for parameter in command.params:
            if parameter.param_type_name == "option":
                assert all(re.search(rf"^\.B .*{re.escape(name)}\b", text, re.MULTILINE) for name in parameter.opts)
    assert "VKEP_CACHE_DIR" in text and "interrupted (Ctrl-C)" in text and "disabled|lookup_only" in text


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_troff_has_nothing_to_say() -> None:
    done = subprocess.run(["groff", "-man", "-ww", "-Tutf8", PAGE], capture_output=True, text=True, check=True)
    assert done.stderr == "" and "Examples:" in done.stdout
