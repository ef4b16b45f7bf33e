"""Modules of `vkep.ray` that are in `vkep.serving` now are found under their old names, with a warning."""

from __future__ import annotations

import importlib
import sys

import pytest


@pytest.mark.parametrize("name", ["kserve", "loaded", "messages", "openai"])
def test_the_old_name_is_the_same_module(name: str) -> None:
    pytest.importorskip("pydantic")
    sys.modules.pop(f"vkep.ray.{name}", None)
    with pytest.warns(DeprecationWarning, match=rf"vkep\.ray\.{name} is vkep\.serving\.{name} now"):
        old = importlib.import_module(f"vkep.ray.{name}")
    assert old is importlib.import_module(f"vkep.serving.{name}")
