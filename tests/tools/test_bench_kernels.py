"""The bench's smallest form runs to its end: limits, a model and every kind of kernel. No time is asserted."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from tools.bench import decode, tiles
from tools.bench.__main__ import main
from tools.bench.gpu_ops import Measured, measure_kernels
from tools.bench.kernel_cases import Sizes, cases
from tools.bench.measure import Result
from tools.bench.table import markdown_table


def test_the_smallest_bench(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    arguments = ["--models", "op_add_2x3", "--rounds", "1", "--peers", "vkep", "--folder", str(tmp_path)]
    assert main([*arguments, "--json", str(report)]) == 0
    found = json.loads(report.read_text())
    (result,) = found["results"]
    assert result["status"] == "measured"
    assert result["relative_error"] == 0
    assert result["limit_ms"] == pytest.approx(3 * 24 / found["limits"]["copy_rate"] / 1e6)
    assert result["of_limit"] == pytest.approx(result["limit_ms"] / result["median_ms"])
    assert min(found["limits"][key] for key in ("copy_rate", "float32_flops", "float16_flops", "int8_ops")) > 0


def test_single_operators_are_one_command(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    arguments = ["--ops", "--models", "op_add_2x3", "--rounds", "1", "--peers", "vkep", "--folder", str(tmp_path)]
    assert main([*arguments, "--smallest", "--only", "add", "matmul", "--json", str(report)]) == 0
    kernels = json.loads(report.read_text())["kernels"]
    assert [k["name"] for k in kernels] == ["add float32 256Ki", "matmul 64x64x64 float32"]
    assert all(k["vkep_ms"] > 0 and k["of_limit"] > 0 and k["torch_ms"] is None and not k["failed"] for k in kernels)


def test_every_tiling_of_the_smallest_operators(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "tiles.json"
    assert tiles.main(["--smallest", "--only", "matmul", "--json", str(report)]) == 0
    found = json.loads(report.read_text())
    assert {t["name"] for t in found} == {"matmul 64x64x64 float32"}
    for tilings in found:
        times = [ms for _, ms in tilings["candidates"]]
        assert len(times) > 1 and min(times) > 0 and tilings["chosen_ms"] > 0
        choices = [tuple(choice) for choice, _ in tilings["candidates"]]
        assert len(set(choices)) == len(choices)
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == len(found) + 1 and "on average" in printed[-1]


def test_every_kernel_of_the_bench_runs() -> None:
    lines: list[str] = []
    limits, results = measure_kernels(Sizes.smallest(), with_torch=False, tell=lines.append)
    assert [r.failed for r in results] == [""] * len(results)
    assert len(lines) == len(results) + 1
    assert lines[0] == str(limits)
    assert all(r.vkep_ms > 0 and r.rate > 0 for r in results)
    kinds = {r.name.split()[0] for r in results}
    assert kinds == {"copy", "add", "gelu", "chain", "transpose", "reduce", "softmax", "layer", "matmul", "attention",
                     "conv", "depthwise", "choose"}  # fmt: skip


def test_a_large_device_gets_large_operators() -> None:
    names = [case.name for case in cases(Sizes.of("discrete"))]
    assert len(set(names)) == len(names)
    assert {"copy float16 64Mi", "matmul 8192x8192x8192 float16", "conv 32x64x56x56 64 3x3/1 float16"} <= set(names)


def test_a_kernel_that_fails_says_so() -> None:
    assert str(Measured("copy", failed="GpuError: lost")) == "copy: GpuError: lost"
    assert "torch" not in str(Measured("copy", 1.0, rate=2.0, unit="TB/s", of_limit=0.5))


def test_the_share_of_the_limit_is_in_the_table() -> None:
    results = [Result("m", "vkep", samples_ms=[2.0], limit_ms=0.5), Result("m", "other", samples_ms=[5.0])]
    lines = markdown_table(results, "vkep").splitlines()
    assert lines[0].split(" | ")[5] == "of limit"
    assert [line.split(" | ")[5] for line in lines[2:]] == ["0.250", "-"]
    assert math.isnan(results[1].of_limit)


@pytest.mark.parametrize("elements", ["1000", "many"])
def test_too_few_elements_are_refused(elements: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--ops", "--elements", elements])
    assert "--elements" in capsys.readouterr().err


def test_the_smallest_decoders_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.json"
    assert decode.main(["--smallest", "--json", str(report)]) == 0
    found = json.loads(report.read_text())
    assert {"1 by 256 by 64, 4 bits, float16", "attention of 4 heads by 2, 100 keys of 64, 4 bits"} <= {
        m["name"] for m in found
    }
    assert all(m["microseconds"] > 0 and m["side_by_side"] > 0 for m in found)
    assert "next to no work" in capsys.readouterr().out
