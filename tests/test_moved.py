"""Modules that other programs import by the names that they had are found under these, with a warning."""

from __future__ import annotations

import importlib
import re
import sys

import pytest

MOVED = {f"vkep.ray.{name}": f"vkep.serving.{name}" for name in ("kserve", "loaded", "messages", "openai")}
MOVED["vkep.session.planner"] = "vkep.session.planning.planner"


@pytest.mark.parametrize("old", MOVED)
def test_the_old_name_is_the_same_module(old: str) -> None:
    pytest.importorskip("pydantic")
    sys.modules.pop(old, None)
    with pytest.warns(DeprecationWarning, match=re.escape(f"{old} is {MOVED[old]} now")):
        found = importlib.import_module(old)
    assert found is importlib.import_module(MOVED[old])
