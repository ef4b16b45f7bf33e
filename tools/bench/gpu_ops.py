"""The kernels of single operators on one device: vkep's by GPU timestamps, against torch's (CUDA graph) and the limits.

A part of `python -m tools.bench --ops`; also by itself: `python -m tools.bench.gpu_ops [--only NAME ...] [--elements N]
[--smallest] [--no-torch] [--json FILE]`. Limits are measured first, in the same run: memory-bound operators are reported
as a share of the copy bandwidth (bytes read plus written), products and convolutions in TFLOP/s and as a share of the
arithmetic rate.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tools.bench.kernel_cases import MIN_ELEMENTS, RESNET50_CONVS, Case, Sizes, cases, conv_case, matmul_case
from vkep.device.measure.kernel_timer import KernelTimer
from vkep.device.measure.limits import DeviceLimits, measure_limits

__all__ = ["RESNET50_CONVS", "Case", "Measured", "conv_case", "import_torch", "matmul_case", "measure_kernels"]


@dataclass
class Measured:
    """One operator's times. ``failed`` is the reason where there are none."""

    name: str
    vkep_ms: float = math.nan
    torch_ms: float = math.nan
    rate: float = math.nan  #: TB/s of memory-bound operators, TFLOP/s of the others
    unit: str = ""
    of_limit: float = math.nan  #: share of the copy bandwidth or of the arithmetic rate, measured in this run
    vkep_over_torch: float = math.nan  #: speed relative to torch
    failed: str = ""

    def __str__(self) -> str:
        if self.failed:
            return f"{self.name}: {self.failed}"
        text = f"{self.name:44} {self.vkep_ms:8.4f} ms {self.rate:8.3f} {self.unit:8} {self.of_limit:5.2f} of limit"
        if math.isnan(self.torch_ms):
            return text
        return f"{text}  torch {self.torch_ms:8.4f} ms, {self.vkep_over_torch:5.2f}x"


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


def measure(timer: KernelTimer, case: Case, torch: Any, limits: DeviceLimits) -> Measured:
    """One operator, in vkep and (unless ``torch`` is None) in torch. Raises whatever either raises."""
    calls, operands = case.make(timer)
    result = Measured(case.name, timer.milliseconds(calls))
    timer.release(*operands)
    if torch is not None and case.torch is not None:
        with torch.no_grad():
            result.torch_ms = torch_milliseconds(torch, case.torch(torch))
        torch.cuda.empty_cache()
        result.vkep_over_torch = result.torch_ms / result.vkep_ms
    if case.nbytes:
        result.rate, result.unit = case.nbytes / result.vkep_ms / 1e9, "TB/s"
        least = limits.nanoseconds(0, case.nbytes)
    else:
        result.rate, result.unit = case.flops / result.vkep_ms / 1e9, "TFLOP/s"
        of = next((t for t in ("float32", "int8") if t in case.name), "float16")  # also of codes of four bits
        least = limits.nanoseconds(case.flops, 0, of)
    result.of_limit = least / 1e6 / result.vkep_ms
    return result


def measure_kernels(
    sizes: Sizes | None = None,
    only: Sequence[str] = (),
    elements: int | None = None,
    with_torch: bool = True,
    tell: Callable[[str], None] = print,
) -> tuple[DeviceLimits, list[Measured]]:
    """Measure the limits, then every operator whose name contains one of ``only`` (none: all).

    ``sizes`` default to those for the kind of device; ``elements`` replaces their size of memory-bound operators.
    ``tell`` gets a line for each result. Raises `DriverNotFoundError`, `DeviceNotFoundError`; an operator that fails
    says so in its result.
    """
    timer = KernelTimer()
    try:
        sizes = sizes or Sizes.of(timer.caps.device_type)
        sizes = replace(sizes, elements=elements) if elements else sizes
        torch = import_torch() if with_torch else None
        limits = measure_limits(timer)
        tell(str(limits) + ("" if torch is None else f"; against torch {torch.__version__}"))
        results = []
        for case in cases(sizes):
            if only and not any(name in case.name for name in only):
                continue
            try:
                results.append(measure(timer, case, torch, limits))
            except Exception as problem:  # a kernel that fails must not end the run of the others
                results.append(Measured(case.name, failed=f"{type(problem).__name__}: {problem}"))
            tell(str(results[-1]))
        return limits, results
    finally:
        timer.close()


def add_arguments(parser: argparse._ActionsContainer) -> None:
    """The options that select the measured kernels and their sizes."""
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="NAME", help="kernels whose name contains one of these"
    )
    parser.add_argument("--elements", type=_elements, metavar="N", help="elements of memory-bound kernels "
                        "(default: 64 Mi on a GPU, 4 Mi on a CPU)")  # fmt: skip
    parser.add_argument("--smallest", action="store_true", help="kernels at their smallest sizes, and few of them")
    parser.add_argument("--no-torch", action="store_true", help="kernels of vkep alone")


def _elements(text: str) -> int:
    value = int(text)
    if value < MIN_ELEMENTS:
        raise argparse.ArgumentTypeError(f"{value} elements, expected at least {MIN_ELEMENTS}")
    return value


def main(arguments: list[str] | None = None) -> int:
    """Print a line for each operator. Exit code 1 when one failed."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.gpu_ops", description=__doc__)
    add_arguments(parser)
    parser.add_argument("--json", type=Path, help="write the limits and the results to this file")
    given = parser.parse_args(arguments)
    limits, results = measure_kernels(
        Sizes.smallest() if given.smallest else None,
        given.only,
        given.elements,
        not given.no_torch,
        lambda line: print(line, flush=True),
    )
    if given.json is not None:
        content = {"limits": asdict(limits), "kernels": [plain(r) for r in results]}
        given.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return int(any(result.failed for result in results))


def plain(result: Measured) -> dict[str, Any]:
    """For JSON: null for NaN and infinities."""
    return {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in asdict(result).items()}


if __name__ == "__main__":
    sys.exit(main())
