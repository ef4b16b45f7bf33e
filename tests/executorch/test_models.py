"""Exported models, each by every partitioner: within the tolerance that its cases name of eager float32."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.executorch.cases import DATA
from tests.vgf.harness import need_vgf
from vkep.executorch import Program

Load = Callable[..., Program]
FILES = sorted(p for p in DATA.glob("*/*.pte") if (p.parent / "cases.json").exists())
#: their data graphs take seconds to compile in the emulation layers
SMALL_GRAPHS = {"rfc", "mlp", "embedding", "upsample_nearest", "aliases", "channels_last"}


def _case(path: Path) -> Any:
    slow = path.stem not in ("vulkan", "portable") and path.parent.name not in SMALL_GRAPHS
    return pytest.param(path, id=f"{path.parent.name}-{path.stem}", marks=[pytest.mark.slow] if slow else [])


@pytest.mark.parametrize("path", [_case(path) for path in FILES])
def test_a_model_gives_what_torch_gives(load: Load, request: pytest.FixtureRequest, path: Path) -> None:
    data = path.with_suffix(".ptd")
    program = load(path, [data] if data.exists() else [])
    if program.has_graphs:
        need_vgf()
        program = load(path, [data] if data.exists() else [], context=request.getfixturevalue("graph_context"))
    described: Any = json.loads((path.parent / "cases.json").read_text())
    arrays = np.load(path.parent / "cases.npz")
    for number, case in enumerate(described["cases"]):
        inputs = [arrays[f"case{number}_input{k}"] for k in range(case["inputs"])]
        wanted = [arrays[f"case{number}_expected{k}"] for k in range(case["outputs"])]
        outputs = program.load_method(case["method"]).execute(inputs)
        assert len(outputs) == len(wanted)
        for got, want in zip(outputs, wanted, strict=True):
            assert got.shape == want.shape and got.dtype == want.dtype
            if want.size:
                scale = max(1.0, float(np.abs(want).max()))
                assert float(np.abs(got.astype(np.float64) - want).max()) <= described["tolerance"] * scale
    for method in {case["method"] for case in described["cases"]}:
        report = program.load_method(method).report()
        assert [line for delegate in report.delegates for line in delegate.on_cpu] == []


def test_the_models_are_there() -> None:
    """At least twelve, by the Vulkan and VGF partitioners alone and by the unified one in both orders."""
    found: dict[str, set[str]] = {}
    for path in FILES:
        found.setdefault(path.parent.name, set()).add(path.stem)
    full = [name for name, variants in found.items() if {"vulkan", "vgf", "vgf_first", "vulkan_first"} <= variants]
    assert len(full) >= 12
