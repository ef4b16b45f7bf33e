"""The same context as the VGF tests, and sessions on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from examples import mixed_delegates as example
from tests.vgf.conftest import bench, graph_context
from tests.vgf.harness import need_vgf
from vkep import InferenceSession

__all__ = ["bench", "graph_context", "opened"]


@pytest.fixture(autouse=True)
def _extra() -> None:
    need_vgf()


@pytest.fixture
def opened(graph_context: Any) -> Iterator[Callable[..., InferenceSession]]:
    """Opens sessions on the context of these tests, and closes them."""
    made: list[InferenceSession] = []

    def open_(proto: Any = None, **options: Any) -> InferenceSession:
        session = InferenceSession(proto or example.build_model(), context=graph_context, **options)
        made.append(session)
        return session

    yield open_
    for session in made:
        session.close()
