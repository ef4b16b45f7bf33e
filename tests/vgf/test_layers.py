"""Finding the emulation layers without the user's environment."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path

import pytest

from gpu_shared import layers
from tests.vgf.harness import need_vgf


def test_manifests_name_their_libraries_by_absolute_path(tmp_path: Path) -> None:
    need_vgf()
    found = layers.emulation_layers(tmp_path)
    assert found.names == ("VK_LAYER_ML_Graph_Emulation", "VK_LAYER_ML_Tensor_Emulation")
    for name in found.names:
        manifest = json.loads((found.folder / f"{name}.json").read_text())
        library = Path(manifest["layer"]["library_path"])
        assert manifest["layer"]["name"] == name and library.is_absolute() and library.is_file()
    times = [p.stat().st_mtime_ns for p in sorted(tmp_path.iterdir())]
    layers.emulation_layers(tmp_path)
    assert [p.stat().st_mtime_ns for p in sorted(tmp_path.iterdir())] == times


def test_the_environment_is_put_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("VK_ADD_LAYER_PATH", raising=False)
    with layers.layer_search([tmp_path]):
        assert os.environ["VK_ADD_LAYER_PATH"] == str(tmp_path)
    assert "VK_ADD_LAYER_PATH" not in os.environ
    monkeypatch.setenv("VK_ADD_LAYER_PATH", "theirs")
    with layers.layer_search([tmp_path]):
        assert os.environ["VK_ADD_LAYER_PATH"] == f"{tmp_path}{os.pathsep}theirs"
    assert os.environ["VK_ADD_LAYER_PATH"] == "theirs"


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(layers.LayersMissing, match="pip install ai-ml-emulation-layer-for-vulkan"):
        layers.emulation_layers(tmp_path)
