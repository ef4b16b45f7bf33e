"""Programs on a context that runs data graphs, once for the session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.executorch.cases import GIVEN
from tests.vgf.conftest import graph_context
from vkep.executorch import Program

__all__ = ["graph_context"]
Load = Callable[..., Program]


@pytest.fixture
def load(vulkan: object) -> Iterator[Load]:
    """Loads programs, by the name of a given one or by path, and closes them."""
    made: list[Program] = []

    def load_(source: Any, *arguments: Any, **options: Any) -> Program:
        path = GIVEN / f"{source}.pte" if isinstance(source, str) else source
        made.append(Program.load(path, *arguments, **options))
        return made[-1]

    yield load_
    for program in made:
        program.close()
