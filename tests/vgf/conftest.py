"""One context that runs data graphs for the whole session."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.vgf.harness import Bench, need_vgf


@pytest.fixture(scope="session")
def graph_context(vulkan: Any) -> Iterator[Any]:
    """A context with data graphs. With VKEP_VALIDATION=1 the validation layers watch it, below the emulation layers."""
    need_vgf()
    from vkep.device.datagraph.context import create_graph_context

    with create_graph_context({"gpu_shared_context_token": "vgf tests"}, device=vulkan) as context:
        yield context


@pytest.fixture(scope="session")
def bench(graph_context: Any) -> Iterator[Bench]:
    made = Bench(graph_context)
    yield made
    made.close()
