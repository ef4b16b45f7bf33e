"""What the export tests share: nets as edge programs, and how they were shared out."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

MISSING = [name for name in ("torch", "executorch", "torchao") if importlib.util.find_spec(name) is None]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that export are slow, and need what only the extra brings."""
    for item in items:
        if "exporting" in getattr(item, "fixturenames", ()):
            item.add_marker("slow")
            item.add_marker(pytest.mark.timeout(900))
            if MISSING:
                item.add_marker(pytest.mark.skip(reason=f"needs {', '.join(MISSING)}: pip install 'vkep[executorch]'"))


@pytest.fixture
def exporting() -> Any:
    """Helpers that import torch; asked for by every test that exports."""
    from tests.executorch.export import helpers

    return helpers
