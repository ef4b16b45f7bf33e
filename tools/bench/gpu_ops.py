"""Single operators on one GPU: vkep's kernels by GPU timestamps, against torch's (CUDA graph) and against the limits.

`python -m tools.bench.gpu_ops [--only NAME ...] [--elements N] [--no-torch] [--json FILE]`. Memory-bound operators are
reported as a share of the copy bandwidth measured in the same run (bytes read plus written), products in TFLOP/s.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tools.bench.gpu_timer import KernelTimer, Operand
from vkep.dtypes import DTYPES
from vkep.kernels.conv import ConvProblem, conv
from vkep.kernels.kernel import KernelCall
from vkep.kernels.matmul import MatMulProblem, matmul
from vkep.kernels.norm import layer_norm
from vkep.kernels.pointwise import PointwiseOperand, pointwise
from vkep.kernels.reduce import reduce
from vkep.kernels.softmax import softmax
from vkep.lowering.tensor import collapse

@dataclass
class Measured:
    name: str
    vkep_ms: float
    torch_ms: float = math.nan
    limit: float = math.nan  #: share of the copy bandwidth, or TFLOP/s
    unit: str = ""
    vkep_over_torch: float = math.nan  #: speed relative to torch


def torch_milliseconds(torch: Any, run: Callable[[], Any], repeats: int = 10) -> float:
    """GPU time of one call, by replays of a CUDA graph of ``repeats`` calls."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            run()
    graph.replay()
    times = []
    for _ in range(5):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / repeats)
    return statistics.median(times)


def import_torch() -> Any:
    """torch with float32 products in full precision (no TF32), or None where it or its GPU is not there."""
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    return torch


def measure(timer: KernelTimer, case: Case, torch: Any, bandwidth: float) -> Measured:
    """``bandwidth`` is that of the copy, in bytes a millisecond."""
    calls, operands = case.make(timer)
    result = Measured(case.name, timer.milliseconds(calls))
    timer.release(*operands)
    if torch is not None:
        with torch.no_grad():
            result.torch_ms = torch_milliseconds(torch, case.torch(torch))
        torch.cuda.empty_cache()
        result.vkep_over_torch = result.torch_ms / result.vkep_ms
    if case.nbytes:
        rate = case.nbytes / result.vkep_ms
        result.limit, result.unit = (rate / bandwidth, "of copy") if bandwidth else (rate / 1e9, "TB/s")
    else:
        result.limit, result.unit = case.flops / result.vkep_ms / 1e9, "TFLOP/s"
    return result


def main(arguments: list[str] | None = None) -> int:
    """Print a line for each operator. Exit code 1 when one failed."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.gpu_ops", description=__doc__)
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="NAME", help="operators whose name contains one of these"
    )
    parser.add_argument("--elements", type=int, default=1 << 26, help="size of memory-bound operators (default: 64 Mi)")
    parser.add_argument("--no-torch", action="store_true", help="measure vkep alone")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    given = parser.parse_args(arguments)
    if given.elements < _MIN_ELEMENTS:
        parser.error(f"--elements is {given.elements}, expected at least {_MIN_ELEMENTS}")
    timer = KernelTimer()
    torch = None if given.no_torch else import_torch()
    print(timer.caps.name, "" if torch is None else f"against torch {torch.__version__}", flush=True)
    results, failed, bandwidth = [], False, 0.0
    for case in cases(given.elements):
        if (
            given.only
            and not any(name in case.name for name in given.only)
            and not case.name.startswith("copy float32")
        ):
            continue
        try:
            for _ in range(0 if bandwidth else 3):
                measure(timer, case, torch, bandwidth)  # until clocks are up
            result = measure(timer, case, torch, bandwidth)
        except Exception as problem:
            print(f"{case.name}: {type(problem).__name__}: {problem}", flush=True)
            failed = True
            continue
        if not bandwidth:
            bandwidth = case.nbytes / min(t for t in (result.vkep_ms, result.torch_ms) if t == t)
            print(f"copy bandwidth {bandwidth / 1e9:.2f} TB/s", flush=True)
        results.append(result)
        against = (
            ""
            if result.torch_ms != result.torch_ms
            else f" torch {result.torch_ms:8.4f} ms, {result.vkep_over_torch:5.2f}x"
        )
        print(f"{result.name:44} {result.vkep_ms:8.4f} ms {result.limit:7.2f} {result.unit:8}{against}", flush=True)
    if given.json is not None:
        given.json.write_text(json.dumps([asdict(r) for r in results], indent=1) + "\n", encoding="utf-8")
    timer.close()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
