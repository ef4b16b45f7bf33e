"""Operators of a user's package: ``--import``, and entry points of the group ``vkep.operators``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import pytest

from vkep.ops import registry

Run = Callable[..., Any]
pytestmark = pytest.mark.gpu
MODULE = """
from vkep.ops import operator


@operator("Halve", domain="{domain}", types={{"x": ("float32",)}})
def halve(b, x):
    return b.pointwise(lambda v: v * 0.5, x)
"""


def model(folder: Path, domain: str) -> Path:
    text = '<ir_version: 8, opset_import: ["" : 17, "%s" : 1]> g (float[4] x) => (float[4] y) { y = %s.Halve(x) }'
    onnx.save(onnx.parser.parse_model(text % (domain, domain)), folder / "halve.onnx")
    return folder / "halve.onnx"


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Neither modules nor operators of a test stay."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(registry, "_OPERATORS", {**registry._OPERATORS})
    registry.load_plugins.cache_clear()
    before = set(sys.modules)
    yield
    registry.load_plugins.cache_clear()
    for name in set(sys.modules) - before:
        if name.startswith("made_"):
            del sys.modules[name]


def test_a_module_of_the_current_folder_is_imported(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "made_here.py").write_text(MODULE.format(domain="org.here"))
    path = model(tmp_path, "org.here")
    refused = run("run", path, "--fallback", "error")
    assert refused.exit_code == 1 and "Halve" in refused.stderr
    found = run("run", path, "--import", "made_here", "--json")
    assert found.exit_code == 0 and json.loads(found.stdout)["report"]["counts"] == {"vulkan": 1}


def test_a_module_that_raises_is_a_usage_error(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "made_wrong.py").write_text("1 / 0")
    for name, kind in (("made_wrong", "ZeroDivisionError"), ("made_nowhere", "ModuleNotFoundError")):
        found = run("run", "m.onnx", "--import", name, "--json")
        assert found.exit_code == 2
        assert f"importing {name} raises {kind}" in json.loads(found.stdout)["error"]["message"]


def installed(folder: Path, module: str, source: str) -> None:
    """A package in a folder of the path, with an entry point."""
    (folder / f"{module}.py").write_text(source)
    about = folder / f"{module}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[vkep.operators]\nones = {module}\n")
    sys.path.insert(0, str(folder))


def test_an_installed_package_declares_operators_by_an_entry_point(run: Run, tmp_path: Path) -> None:
    installed(tmp_path, "made_plugin", MODULE.format(domain="org.plugin"))
    found = run("run", model(tmp_path, "org.plugin"), "--fallback", "error", "--json")
    assert found.exit_code == 0 and json.loads(found.stdout)["report"]["counts"] == {"vulkan": 1}


def test_a_package_that_cannot_be_loaded_is_named(run: Run, tmp_path: Path) -> None:
    installed(tmp_path, "made_broken", "1 / 0")
    found = run("run", model(tmp_path, "org.broken"))
    assert found.exit_code == 1
    assert "'ones' of the package made_broken (group vkep.operators) cannot be loaded" in found.stderr


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("plan_cache_sise=3", "did you mean 'plan_cache_size'"),
        ("plan_cache_size", "expected OPTION=VALUE"),
        ("fallback=gpu", "expected one of"),
        ("run_ahead=1", "expected True or False"),
    ],
)
def test_a_wrong_setting_is_refused(run: Run, tmp_path: Path, given: str, message: str) -> None:
    found = run("run", tmp_path / "m.onnx", "--set", given, "--json")
    assert found.exit_code == 2 and message in json.loads(found.stdout)["error"]["message"]


def test_settings_reach_the_session(run: Run, models: Path) -> None:
    sizes = 'free_dimensions={"batch": 2, "length": 3}'
    found = run("run", models / "dynamic.onnx", "--set", sizes, "--set", "run_ahead=true")
    assert found.exit_code == 0, found.output
