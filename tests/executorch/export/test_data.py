"""The exported programs that are kept: each has its cases, and together they stay small."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

DATA = Path(__file__).resolve().parents[1] / "data"
MODELS = sorted(path.parent.name for path in DATA.glob("*/cases.json"))


def test_there_are_the_models_that_the_runtime_is_tested_with() -> None:
    assert {"rfc", "cnn_maxpool", "mobilenet_v2", "resnet18", "transformer_block", "lstm_cell"} <= set(MODELS)
    assert {"upsample_nearest", "upsample_bilinear", "group_norm", "embedding", "two_methods"} <= set(MODELS)
    assert len(MODELS) >= 12
    assert sum(path.stat().st_size for path in DATA.rglob("*") if path.is_file()) < 2_500_000


@pytest.mark.parametrize("model", MODELS)
def test_a_model_has_programs_and_the_arrays_of_its_cases(model: str) -> None:
    folder = DATA / model
    programs = sorted(folder.glob("*.pte"))
    assert programs
    for program in programs:
        assert program.read_bytes()[4:6] == b"ET"  # the file identifier of executorch's schema
    described = json.loads((folder / "cases.json").read_text(encoding="utf-8"))
    assert 0 < described["tolerance"] <= 1e-2
    with np.load(folder / "cases.npz") as arrays:
        names = {
            f"case{index}_{kind}{k}"
            for index, case in enumerate(described["cases"])
            for kind, count in (("input", case["inputs"]), ("expected", case["outputs"]))
            for k in range(count)
        }
        assert set(arrays.files) == names
        assert all(np.isfinite(arrays[name]).all() for name in names)
