"""Rates of language models: each engine's rows, and llama-bench's output."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tools.bench.__main__ import main as bench
from vkep.models.language import write_language

ROWS = [
    {"n_prompt": 8, "n_gen": 0, "avg_ts": 10.5, "stddev_ts": 0.5, "backends": "Vulkan", "gpu_info": "llvmpipe"},
    {"n_prompt": 0, "n_gen": 3, "avg_ts": 2.5, "stddev_ts": 0.1, "backends": "Vulkan", "gpu_info": "llvmpipe"},
]


@pytest.mark.gpu
@pytest.mark.skipif(sys.platform == "win32", reason="the program is a script")
def test_every_engine_has_its_rows(tmp_path: Path) -> None:
    write_language(tmp_path / "tiny", layers=1)
    program = tmp_path / "llama-bench"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nassert sys.argv[1:7:2] == ['-m', '-p', '-n']\nprint({json.dumps(ROWS)!r})\n"
    )
    program.chmod(0o755)
    asked = [
        "--generate",
        tmp_path / "tiny",
        "--prompt",
        8,
        "--answer",
        3,
        "--runs",
        1,
        "--sampling",
        "--json",
        tmp_path / "rates.json",
    ]
    assert bench([str(a) for a in [*asked, "--llama-bench", program, "--gguf", tmp_path / "tiny.gguf"]]) == 0
    rates = json.loads((tmp_path / "rates.json").read_text())
    plain = ["pp8", "tg3"]
    assert [r["test"] for r in rates] == [*plain, "tg3 temperature", "tg3 all filters", *plain, *plain]
    assert rates[4]["device"] == "ONNX Runtime, CPU"
    assert (rates[6]["device"], rates[6]["tokens_per_second"]) == ("llama.cpp Vulkan, llvmpipe", 10.5)
    assert all(r["tokens_per_second"] > 0 for r in rates)
