"""ONNX's backend suite: a case that ran wholly on Vulkan must go on doing so, and no answer may be wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.nightly import nightly
from tools.backend_suite import baseline, table
from tools.backend_suite.cases import KINDS, _sources, load_cases
from tools.backend_suite.outcome import CPU, DECLINED, FAILED, VULKAN, Outcome, counts

ROOT = Path(__file__).resolve().parents[2]
#: what the project promises of the node cases
TARGET = 1150
#: of ONNX's cases, which part runs: all take five minutes of processor time. By default the interpreter runs the others
#: (tests/tools/test_passes.py), and tests of each operator its kernels (tests/ops).
EVERY = 1 if nightly() else 6


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.usefixtures("vulkan")
def test_no_case_of_the_baseline_is_lost(tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    kinds = [kind for kind in KINDS if kind != "light"]  # those are tests/session/test_models.py's
    command = [sys.executable, "-m", "tools.backend_suite", "--check", "--jobs", "2", "--results", str(results)]
    command += ["--every", str(EVERY), "--kinds", *kinds]
    path = os.pathsep.join(filter(None, [str(ROOT), str(ROOT / "registry"), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "VKEP_VALIDATION": "0"}  # only results are compared
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    outcomes = [Outcome(**json.loads(line)) for line in results.read_text().splitlines()]
    assert len(outcomes) == len([case for case in load_cases().values() if case.kind in kinds][::EVERY])
    assert counts(o for o in outcomes if o.name.startswith("node/"))[VULKAN] >= TARGET // EVERY


def test_the_baseline_keeps_what_was_promised() -> None:
    names = baseline.read()
    assert len(names) == len(set(names))
    assert sum(n.startswith("node/") for n in names) >= TARGET
    for kind, number in {"pytorch-converted": 82, "pytorch-operator": 35, "light": 9}.items():
        assert sum(n.startswith(f"{kind}/") for n in names) == number
    if json.loads(baseline.PATH.read_text())["onnx"] == onnx.__version__:
        assert set(names) <= set(load_cases())


def test_a_lost_case_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    kept, slower = Outcome("node/test_kept", "Abs", VULKAN), Outcome("node/test_moved", "Abs", VULKAN)
    new = Outcome("node/test_new", "Abs", DECLINED, ("no kernel",))
    baseline.write([kept, slower, new], path)
    assert baseline.read(path) == ["node/test_kept", "node/test_moved"]
    moved = Outcome("node/test_moved", "Abs", CPU, ("Abs: no Vulkan kernel",))
    assert baseline.regressions([kept, moved, new], path) == ["node/test_moved: cpu: Abs: no Vulkan kernel"]


def test_table_rows() -> None:
    page = table.render(
        [
            Outcome("node/test_abs", "Abs", VULKAN),
            Outcome("node/test_abs_2", "Abs", FAILED, ("wrong: a | b",)),
            Outcome("light/test_net", "(graphs)", VULKAN),
        ]
    )
    row = next(line for line in page.splitlines() if line.startswith("| Abs |"))
    assert row.endswith("| 1 | 0 | 0 | 1 | wrong: a \\| b (1) |")
    assert "| light | 1 | 1 | 0 | 0 | 0 |" in page
    assert "| Add |" in page  # declared operators have a row without cases too


def test_node_cases_are_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    some = [
        load_cases()[f"node/{name}"].source
        for name in ("test_abs", "test_castlike_FLOAT_to_INT4", "test_sequence_map_add_2_sequences")
    ]
    computed: list[str] = []

    def compute(kind: str) -> list[object]:
        computed.append(kind)
        return some

    monkeypatch.setenv("VKEP_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("onnx.backend.test.loader.load_model_tests", compute)
    assert _sources("node") == some
    for times in (1, 2):
        kept = _sources("node")
        assert computed == ["node"] * times
        for ours, theirs in zip(kept, some, strict=True):
            assert (ours.name, ours.model, ours.rtol) == (theirs.name, theirs.model, theirs.rtol)
            np.testing.assert_equal(ours.data_sets, theirs.data_sets)
        [file] = (tmp_path / "cache" / "onnx_cases").iterdir()
        file.write_bytes(file.read_bytes()[:-40])  # damaged: computed again
        assert _sources("node") == some
