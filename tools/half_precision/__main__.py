"""How far whole networks in float16 are from float32: vkep's float16 beside torch's.

    python -m tools.half_precision                                   # all networks, on the default device
    python -m tools.half_precision --models resnet18 bert --device cpu
    python -m tools.half_precision --seconds 120 --jobs 8 --json half.json

Networks of torchvision, transformers and timm with random weights are exported to ONNX in float32, and in float16 as torch's
``half()`` makes them. All errors are relative to torch's float32 results on the CPU: the norm of the difference over the norm, of
the worst output. Weights and inputs are the same. vkep's float16 may be 1.5 times as far as torch's. The exit status is 1 if a
network is farther, if its float32 results are wrong or if vkep fails. Networks that cannot be built, exported or measured in time
are listed with the reason.

The exporter's optimizer multiplies batch norms into float16 weights, which rounds them once more than torch's own runs do. The
errors of vkep without that are those of ``--unoptimized``.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import functools
import io
import json
import logging
import math
import os
import sys
import time
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tools.half_precision.networks import NETWORKS, prepare
from tools.worker_pool import run_tasks

Array = np.ndarray[Any, Any]
#: the largest ratio of vkep's float16 error to torch's, and the largest relative error of float32
RATIO, FLOAT32 = 1.5, 1e-3


@dataclass
class Row:
    """One network: relative errors against torch's float32, and why there are none."""

    name: str
    vkep32: float = math.nan
    vkep16: float = math.nan
    torch16: float = math.nan
    on_cpu: list[str] = field(default_factory=list)  #: operators of the float16 network that Vulkan does not run
    seconds: float = 0.0
    note: str = ""  #: why it was not measured, or how it was
    fault: str = ""  #: what is wrong in vkep

    @property
    def ratio(self) -> float:
        """vkep's float16 error by torch's; NaN where one of them is missing."""
        return self.vkep16 / self.torch16 if self.torch16 else math.nan

    def judged(self) -> Row:
        """With the fault that the errors show."""
        if not self.fault and self.vkep32 > FLOAT32:
            self.fault = f"float32 is {self.vkep32:.2g} off, more than {FLOAT32:g}"
        if not self.fault and self.ratio > RATIO:
            self.fault = f"float16 is {self.ratio:.2f} times as far as torch's, more than {RATIO:g}"
        return self


def relative_error(results: Iterable[Any], expected: Sequence[Array]) -> float:
    """The norm of the difference over the norm, of the worst output; infinity for other shapes and NaN."""
    worst = 0.0
    for result, want in zip(map(np.asarray, results), expected, strict=True):
        if result.shape != want.shape:
            return math.inf
        off = float(np.linalg.norm((result.astype(np.float64) - want.astype(np.float64)).ravel()))
        norm = float(np.linalg.norm(want.astype(np.float64).ravel()))
        error = off / norm if norm else (math.inf if off else 0.0)
        worst = max(worst, error if math.isfinite(error) else math.inf)
    return worst


def exported(model: Any, x: Any, optimize: bool) -> tuple[Any, str]:
    """The ONNX model, and a note if only torch's older exporter takes the network."""
    import onnx
    import torch

    try:
        program = torch.onnx.export(model, (x,), dynamo=True, verbose=False, optimize=optimize)
        return program.model_proto, ""
    except Exception as error:
        buffer = io.BytesIO()
        more = {} if isinstance(error, TypeError) and "dynamo" in str(error) else {"dynamo": False}
        torch.onnx.export(model, (x,), buffer, opset_version=17, **more)
        return onnx.load_from_string(buffer.getvalue()), f"older exporter ({type(error).__name__})"


def vkep_results(proto: Any, x: Any, device: str) -> tuple[list[Array], list[str]]:
    """vkep's results in float32, and the operators that it leaves to the CPU."""
    import gpu_shared
    import vkep

    selector = None
    if device:
        usable = [d for d in gpu_shared.list_devices() if not d.problems]
        fitting = [d for d in usable if (d.capabilities.device_type == "cpu") == (device == "cpu")]
        selector = gpu_shared.select_device(fitting or usable)
        if not fitting:
            raise RuntimeError(f"no Vulkan device is a {device}: there are {', '.join(d.name for d in usable)}")
    with vkep.InferenceSession(proto, device=selector.index if selector else None, save_plans=False) as session:
        results = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        left = sorted({node.op_type for node in session.report().nodes if node.where == "cpu"})
    return [np.asarray(r, np.float32) for r in results], left


def measure(name: str, *, device: str, peer: str, optimize: bool) -> Row:
    """Build, export and run one network. No exception leaves it: the row has the reason."""
    began, row, step = time.monotonic(), Row(name), "building"
    try:
        import torch

        logging.disable(logging.WARNING)
        warnings.simplefilter("ignore")
        torch.set_num_threads(2)
        with contextlib.redirect_stdout(io.StringIO()), torch.no_grad():
            model, x = prepare(name)
            expected = [r.numpy() for r in model(x)]
            half, half_x = copy.deepcopy(model).half(), x.half() if x.is_floating_point() else x
            step = "exporting"
            single, row.note = exported(model, x, optimize)
            narrow, row.note = exported(half, half_x, optimize)
            step = "torch's float16"
            on = "cuda" if peer == "cuda" or (not peer and torch.cuda.is_available()) else "cpu"
            torch16 = [r.float().cpu().numpy() for r in half.to(on)(half_x.to(on))]
            row.torch16 = relative_error(torch16, expected)
            if not 0 < row.torch16 < math.inf:
                raise ValueError(f"the relative error is {row.torch16}")
            step = "vkep"
            results, _ = vkep_results(single, x, device)
            row.vkep32 = relative_error(results, expected)
            results, row.on_cpu = vkep_results(narrow, half_x, device)
            row.vkep16 = relative_error(results, expected)
    except Exception as error:
        reason = " ".join(f"{step}: {type(error).__name__}: {error}".split())[:300]
        row.fault, row.note = (reason, row.note) if step == "vkep" else (row.fault, reason)
    row.seconds = time.monotonic() - began
    return row.judged()


def lost(name: str, why: str) -> Row:
    """The row of a network whose process ended, or which took too long: vkep need not be the cause of that."""
    return Row(name, note=why) if why.startswith("hung") else Row(name, fault=why)


def table(rows: Sequence[Row]) -> str:
    """The rows in Markdown, then the ratios' mean and worst, what was not measured, and the faults."""

    def number(value: float) -> str:
        return "-" if math.isnan(value) else f"{value:.2e}"

    lines = [
        "| network | vkep float32 | vkep float16 | torch float16 | ratio | on the CPU | note |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        ratio = "-" if math.isnan(row.ratio) else f"{row.ratio:.2f}"
        errors = " | ".join(map(number, (row.vkep32, row.vkep16, row.torch16)))
        note = (row.fault or row.note).replace("|", "\\|")
        lines.append(f"| {row.name} | {errors} | {ratio} | {' '.join(row.on_cpu) or '-'} | {note} |")
    measured = [row for row in rows if not math.isnan(row.ratio)]
    lines.append(f"\n{len(measured)} of {len(rows)} networks measured.")
    if measured:
        worst = max(measured, key=lambda row: row.ratio)
        mean = sum(row.ratio for row in measured) / len(measured)
        lines.append(
            f"vkep's float16 error by torch's: mean {mean:.2f}, worst {worst.ratio:.2f} ({worst.name}); allowed {RATIO:g}."
        )
    lines += [f"FAULT {row.name}: {row.fault}" for row in rows if row.fault]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table. 1 if a network has a fault or none was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--models", nargs="+", metavar="NAME", choices=NETWORKS, default=NETWORKS, help="by default all"
    )
    parser.add_argument(
        "--device", choices=("cpu", "gpu"), default="", help="kind of Vulkan device; by default as VKEP_DEVICE"
    )
    parser.add_argument(
        "--torch", choices=("cpu", "cuda"), default="", help="torch's float16; by default CUDA where available"
    )
    parser.add_argument("--unoptimized", action="store_true", help="export without the exporter's optimizer")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) // 2), help="networks at a time")
    parser.add_argument("--seconds", type=float, default=100, help="no network begins later")
    parser.add_argument("--timeout", type=float, default=45, help="seconds for one network")
    parser.add_argument("--json", type=Path, help="also writes the rows to this file")
    args = parser.parse_args(arguments)
    run = functools.partial(measure, device=args.device, peer=args.torch, optimize=not args.unoptimized)
    rows: dict[str, Row] = {}
    until = time.monotonic() + args.seconds
    for row in run_tasks(args.models, run, lost, jobs=args.jobs, timeout=args.timeout, until=until):
        rows[row.name] = row
        print(f"{row.name}: {row.seconds:.0f} s {row.fault or row.note}", file=sys.stderr, flush=True)
    ordered = [rows.get(n) or Row(n, note=f"not begun in {args.seconds:g} s") for n in args.models]
    print(table(ordered))
    if args.json:
        args.json.write_text(json.dumps([asdict(row) | {"ratio": row.ratio} for row in ordered], indent=1))
    return int(any(row.fault for row in ordered) or all(math.isnan(row.ratio) for row in ordered))


if __name__ == "__main__":
    sys.exit(main())
