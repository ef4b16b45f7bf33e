"""ONNX's own cases through ONNX Runtime with the provider: no wrong answer, and what ran wholly on Vulkan goes on doing so.

A part of them here; the whole, which takes some minutes, by ``python -m tools.backend_suite --through ort --check``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.nightly import nightly
from tools.backend_suite import baseline, through_ort
from tools.backend_suite.cases import load_cases
from tools.backend_suite.outcome import CPU, DECLINED, FAILED, VULKAN, Outcome, counts

ROOT = Path(__file__).resolve().parents[2]
#: prime, so that a stride meets every kind of case
EVERY = {"ort": 43, "ort-kernels": 67} if nightly() else {"ort": 89, "ort-kernels": 83}
#: what the provider promises of the whole suite
TARGET = 1650


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("through", EVERY)
def test_a_part_of_onnx_s_cases(tmp_path: Path, through: str) -> None:
    results = tmp_path / "results.jsonl"
    command = [sys.executable, "-W", "ignore", "-m", "tools.backend_suite", "--through", through, "--check"]
    command += ["--every", str(EVERY[through]), "--results", str(results)]
    path = os.pathsep.join(filter(None, [str(ROOT), str(ROOT / "registry"), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "VKEP_VALIDATION": "0"}  # only results are compared
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    outcomes = [Outcome(**json.loads(line)) for line in results.read_text().splitlines()]
    found = counts(outcomes)
    assert len(outcomes) > 20
    assert found[FAILED] == 0
    assert found[DECLINED] < len(outcomes) / 4
    assert all(o.reasons for o in outcomes if o.state == DECLINED)


#: cases that once went wrong, and what is to come of them: elements narrower than a byte (two types have other numbers in ONNX
#: Runtime than in ONNX), attributes that its interface does not give, functions that it expands, operators in two parts
TRICKY = {
    "node/test_castlike_FLOAT_to_INT4": VULKAN,
    "node/test_castlike_UINT4_to_FLOAT": VULKAN,
    "node/test_castlike_UINT2_to_FLOAT": VULKAN,
    "node/test_castlike_FLOAT16_to_INT2": VULKAN,
    "node/test_nonmaxsuppression_two_classes": VULKAN,
    "node/test_center_crop_pad_crop_expanded": VULKAN,
    "node/test_affine_grid_2d_expanded": VULKAN,
    "node/test_if_opt": CPU,
    "node/test_ai_onnx_ml_label_encoder_tensor_mapping": CPU,
    "node/test_sequence_map_add_1_sequence_1_tensor": CPU,
}


@pytest.mark.parametrize("name", TRICKY)
def test_earlier_faults(registered: Any, name: str) -> None:
    case = load_cases().get(name)
    if case is None:
        pytest.skip("this onnx package does not have the case")
    outcome = through_ort.run_case(case)
    assert outcome.state == TRICKY[name], outcome.reasons


def test_the_baseline_keeps_what_was_promised() -> None:
    names = baseline.read(baseline.PATHS["ort"])
    assert len(names) == len(set(names))
    assert len(names) >= TARGET
    assert sum(n.startswith("light/") for n in names) == 9
