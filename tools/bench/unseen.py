"""Networks at their published sizes, against PyTorch on the same GPU.

    python -m tools.bench.unseen [--only NAME ...] [--types float16:1 float16:16 float32:1] [--compile] [--quick]
                                 [--seconds 1500] [--jobs 6] [--json FILE]

Each network, type and batch is a process of its own: it exports the network with torch's exporter, opens it in vkep, and captures
the module as a CUDA graph (with --compile also what `torch.compile` makes of it). While one process measures, no other uses the
GPU; others build and export meanwhile. Times are medians, from data on the device to data on the device, with the wait for the
result. A ratio above 1 is in vkep's favour. The error is the root mean square of the difference from float32 on the CPU, relative
to that of the result, for the first element of the batch; torch's own in brackets. A process that fails or takes longer than its
limit is a line with the reason. Networks whose times are not looked at while kernels are chosen (`HELD_BACK`) are a group of
their own.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tools.half_precision.__main__ import relative_error

#: seconds of one process, and with torch.compile, where it waits until others have compiled
LIMIT, LIMIT_COMPILED = 150, 600
_RUNS, _LEAST_SECONDS = 30, 0.4
_TYPES = ("float16:1", "float16:16", "float32:1")
#: what a first look is for, in this order
_QUICK = (
    "vit_b16", "bert_base_128", "whisper_base_enc", "wav2vec2_base_5s", "detr_r50_800", "convnext_t", "resnet50", "dinov2_s_518",
    "clip_text_77", "sd_vae_dec",
)  # fmt: skip
#: smaller batches where 16 take gigabytes
_BATCHES = {"detr_r50_800": 8, "depth_anything_s": 8, "sd_vae_dec": 4, "sd_unet": 2}


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """To measure: while no other process uses the GPU. Those that ask for it later wait at the gate."""
    with open(lock.with_suffix(".gate"), "w") as gate, open(lock, "w") as held:
        fcntl.flock(gate, fcntl.LOCK_EX)
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


@contextmanager
def _together(lock: Path) -> Iterator[None]:
    """To open, capture or compile: while no other process measures."""
    with open(lock, "w") as held:
        with open(lock.with_suffix(".gate"), "w") as gate:
            fcntl.flock(gate, fcntl.LOCK_EX)
            fcntl.flock(held, fcntl.LOCK_SH)
        yield


def _median_ms(run: Callable[[], object]) -> float:
    """The median of runs, after a fifth of a second that raises the clock."""
    end = time.perf_counter() + _LEAST_SECONDS / 2
    while time.perf_counter() < end:
        run()
    times: list[float] = []
    while len(times) < _RUNS or (sum(times) < _LEAST_SECONDS and len(times) < 1000):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
        if sum(times) > 4 * _LEAST_SECONDS:
            break
    return statistics.median(times) * 1e3


def _vkep(model: Path, feeds: dict[str, np.ndarray], lock: Path) -> tuple[np.ndarray, dict[str, Any]]:
    """The first result, and what there is to report."""
    import vkep
    from vkep.device.measure.limits import device_limits

    with _together(lock):
        began = time.perf_counter()
        session = vkep.InferenceSession(model)
        [first, *_] = session.run(None, feeds)
        opened = time.perf_counter() - began
        binding = session.io_binding()
        for name, value in feeds.items():
            binding.bind_ortvalue_input(name, vkep.OrtValue.ortvalue_from_numpy(value, "gpu"))
        for output in session.get_outputs():
            binding.bind_output(output.name, "gpu")
        session.run_with_iobinding(binding)
    for output, made in zip(session.get_outputs(), binding.get_outputs(), strict=True):
        binding.bind_ortvalue_output(output.name, made)

    def run() -> None:
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()

    with _alone(lock):
        limits = device_limits(session.context.capabilities)
        found: dict[str, Any] = {"vkep_ms": _median_ms(run), "open_s": opened}
        profile = session.profile(feeds)
    kernels: dict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0.0])
    lines: dict[tuple[str, str, str], list[float]] = defaultdict(lambda: [0, 0.0])
    for island, times in zip(session.islands(), profile, strict=True):
        for dispatch, taken in zip(island.plan.dispatches, times, strict=True):
            source = island.plan.pipelines[dispatch.pipeline].shader.source.removesuffix(".comp")
            kernel = kernels[source]
            kernel[0] += 1
            kernel[1] += taken / 1e6
            kernel[2] += limits.of_dispatch(island.plan, dispatch) / 1e6
            line = lines[(source, "x".join(map(str, dispatch.grid)), dispatch.candidate)]
            line[0] += 1
            line[1] += taken / 1e3
    found["kernels"] = {
        name: [count, round(ms, 4), round(least, 4)]
        for name, (count, ms, least) in sorted(kernels.items(), key=lambda item: -item[1][1])
    }
    found["lines"] = [
        [*key, *map(float, line)] for key, line in sorted(lines.items(), key=lambda item: -item[1][1])[:16]
    ]
    found["elsewhere"] = [node.op_type for node in session.report().nodes if node.where not in ("vulkan", "folded")][:8]
    return np.asarray(first), found


def _captured(module: Any, given: list[Any]) -> tuple[Callable[[], object], Any]:
    """A module as a CUDA graph: its replay with the wait, and its result."""
    import torch

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            module(*given)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = module(*given)

    def run() -> None:
        graph.replay()
        torch.cuda.synchronize()

    return run, result


def measure(name: str, dtype: str, batch: int, compiled: bool, lock: Path, folder: Path) -> dict[str, Any]:
    """One network in this process. Raises what its parts raise."""
    import torch

    from tools.bench.networks import NETWORKS, Positional

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(0)
    began = time.perf_counter()
    inputs = NETWORKS[name].inputs(batch)
    module = Positional(NETWORKS[name].build(), list(inputs)).eval()
    kind = getattr(torch, dtype)
    found: dict[str, Any] = {}
    with torch.inference_mode():
        expected = module(*(value[:1] for value in inputs.values())).numpy()
    module = module.to(kind)
    given = [value.to(kind) if value.is_floating_point() else value for value in inputs.values()]
    model = folder / f"{name}.onnx"
    with torch.no_grad():
        program = torch.onnx.export(module, tuple(given), dynamo=True, verbose=False)
    program.save(str(model))
    names = [value.name for value in program.model.graph.inputs]
    del program
    found["export_s"] = time.perf_counter() - began
    feeds = {key: value.numpy() for key, value in zip(names, given, strict=True)}
    first, report = _vkep(model, feeds, lock)
    found |= report
    found["error"] = relative_error([first[:1].reshape(expected.shape)], [expected])
    if not torch.cuda.is_available():
        return found
    try:
        with torch.inference_mode():
            with _together(lock):
                module, given = module.to("cuda"), [value.to("cuda") for value in given]
                run, result = _captured(module, given)
            with _alone(lock):
                found["graph_ms"] = _median_ms(run)
            found["torch_error"] = relative_error(
                [result[:1].float().cpu().numpy().reshape(expected.shape)], [expected]
            )
            if compiled:
                with _together(lock):
                    run, _ = _captured(torch.compile(module), given)
                with _alone(lock):
                    found["compile_ms"] = _median_ms(run)
    except RuntimeError as failure:  # of torch: what vkep did stays
        found["torch_failed"] = str(failure).splitlines()[0]
    return found


def _in_process(name: str, dtype: str, batch: int, compiled: bool, lock: Path, end: float) -> dict[str, Any]:
    """`measure` in a process of its own, or the reason why there is no result."""
    left = min(LIMIT_COMPILED if compiled else LIMIT, end - time.monotonic())
    if left < 10:
        return {"failed": "no time was left"}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tools.bench.unseen", "--one", name, dtype, str(batch), str(lock), folder]
        environment = {**os.environ, "OMP_NUM_THREADS": "3", "HF_HUB_OFFLINE": "1"}
        try:
            done = subprocess.run(
                [*command, *(["--compile"] if compiled else [])],
                capture_output=True, text=True, timeout=left, env=environment, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return {"failed": f"no answer in {left:.0f} s"}
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        return {"failed": (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1][:200]}
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def _row(name: str, dtype: str, batch: int, found: dict[str, Any]) -> str:
    if "failed" in found:
        return f"| {name} | {dtype}, {batch} | {found['failed']} |"
    ms = [found.get(key, math.nan) for key in ("vkep_ms", "graph_ms", "compile_ms")]
    kernels = ", ".join(
        f"{k}: {n:.0f} x, {t:.2f} ({least:.2f})" for k, (n, t, least) in list(found["kernels"].items())[:6]
    )
    return (
        f"| {name} | {dtype}, {batch} | {ms[0]:.2f} | {ms[1]:.2f} | {ms[1] / ms[0]:.2f} | {ms[2]:.2f} | {ms[2] / ms[0]:.2f} | "
        f"{found['error']:.1e} ({found.get('torch_error', math.nan):.1e}) | {kernels} {found.get('torch_failed', '')}|"
    )


def _means(rows: list[dict[str, Any]]) -> str:
    """Geometric means and worst of the ratios."""
    said = []
    for label, key in (("CUDA graph", "graph_ms"), ("torch.compile", "compile_ms")):
        ratios = [row[key] / row["vkep_ms"] for row in rows if row.get(key) and row.get("vkep_ms")]
        if ratios:
            said.append(
                f"over {label} {statistics.geometric_mean(ratios):.2f}, worst {min(ratios):.2f} ({len(ratios)})"
            )
    return "; ".join(said) or "nothing measured"


def main(arguments: list[str] | None = None) -> int:
    """Print a table as its rows come, and the means of each group."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.unseen", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--one", nargs=5, help=argparse.SUPPRESS)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--types", nargs="+", default=list(_TYPES), metavar="TYPE:BATCH")
    parser.add_argument("--compile", action="store_true", help="torch.compile in a graph beside it")
    parser.add_argument("--quick", action="store_true", help="ten networks in float16, within 300 s")
    parser.add_argument("--seconds", type=float, default=1500, help="no process starts or goes on after them")
    parser.add_argument("--jobs", type=int, default=6, help="processes at a time")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    if options.one:
        name, dtype, batch, lock, folder = options.one
        print(json.dumps(measure(name, dtype, int(batch), options.compile, Path(lock), Path(folder))))
        return 0
    try:
        from tools.bench.networks import HELD_BACK, MEASURED
    except ImportError as missing:
        print(f"nothing is measured: {missing}")
        return 0
    names = options.only or (_QUICK if options.quick else [*MEASURED, *HELD_BACK])
    types = options.types if options.types != list(_TYPES) or not options.quick else list(_TYPES[:2])
    end = time.monotonic() + (min(options.seconds, 290) if options.quick else options.seconds)
    cases: list[tuple[str, str, int]] = []
    for name in names:
        for dtype, batch in (text.split(":") for text in types):
            cases.append((name, dtype, min(int(batch), _BATCHES.get(name, int(batch)))))
    rows: dict[tuple[str, str, int], dict[str, Any]] = {}
    print(
        "| network | type, batch | vkep ms | graph | ratio | compile | ratio | error (torch) | kernels: dispatches, ms (limit) |"
    )
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs) as pool:
        lock = Path(folder) / "gpu"
        waiting = {pool.submit(_in_process, *case, options.compile, lock, end): case for case in cases}
        for done in as_completed(waiting):
            case = waiting[done]
            rows[case] = done.result()
            print(_row(*case, rows[case]), flush=True)
            if options.json:
                options.json.write_text(json.dumps([[*key, row] for key, row in rows.items()]))
    for label, group in (("measured before", MEASURED), ("held back", HELD_BACK)):
        for text in types:
            dtype, batch = text.split(":")
            chosen = [
                row for (name, t, n), row in rows.items() if name in group and t == dtype and (n == 1) == (batch == "1")
            ]
            if chosen:
                print(f"{label}, {dtype} batch {batch}: {_means(chosen)}")
    return int(any("failed" in row for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
