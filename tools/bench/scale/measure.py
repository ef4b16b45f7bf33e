"""Measures `Rates` on this machine: a session alone, a Ray Data job, a service."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tools.bench.scale import capacity
from tools.bench.scale.capacity import Rates
from tools.bench.scale.clients import UNWATCHED, Array, Heard, ask_from
from tools.bench.scale.cluster import QUIET, Watched, cluster, environment, serving
from tools.models.bert import build_bert
from tools.models.catalog import Options, build_model
from vkep.models.bert import BertShape
from vkep.models.builder import GraphBuilder

TINY = '<ir_version: 9, opset_import: ["": 18]> g (float[n,4] x) => (float[n,4] y) { y = Mul(x, x) }'
SEQUENCE = 128
#: that a job's worker takes at once, so that what Ray does for each batch is done for several runs
RUNS_OF_A_BATCH = 4
BERT_BASE = BertShape(30522, 768, 12, 12, 3072, 512)
#: a session in a loop, in a process of its own as workers are; it starts after a line of input
_BARE = """
import json, sys, time, vkep
from vkep.serving.loaded import zeros
path, batch, seconds, device = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
with vkep.InferenceSession(path, device=device if device >= 0 else None) as session:
    feeds = zeros(session, {a.name: (batch, *a.shape[1:]) for a in session.get_inputs()})
    for _ in range(3):
        session.run(None, feeds)
    print(session.context.capabilities.name, flush=True)
    sys.stdin.readline()
    runs, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        session.run(None, feeds)
        runs += 1
    print(runs * batch / (time.perf_counter() - started))
"""


def main(arguments: argparse.Namespace) -> int:
    """Measure and write the rates."""
    with model_file(arguments) as path:
        rates = measure(path, arguments)
    print(rates)
    rates.write(Path(arguments.out))
    return 0


@contextlib.contextmanager
def model_file(arguments: argparse.Namespace) -> Iterator[Path]:
    """The file of ``--model``, which is a path or a name in the catalog."""
    if arguments.model.endswith(".onnx"):
        yield Path(arguments.model)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(catalog_model(arguments.model, arguments.float16).SerializeToString())
        yield path


def catalog_model(name: str, float16: bool) -> Any:
    """A model of the catalog (tools/models) with rows, or ``bert-base``: the catalog's ``bert`` in the published size."""
    if name == "bert-base":
        graph = GraphBuilder("bert", float16=float16)
        build_bert(graph, "batch", "sequence", BERT_BASE)
        return with_rows(graph.model())
    return with_rows(build_model(name, Options(dynamic=True, float16=float16)))


def bare(path: Path, batch: int, seconds: float, threads: int, devices: Sequence[int] = (-1,)) -> tuple[float, str]:
    """Rows per second of a session in a loop on each of the devices (by index; -1: as sessions choose) at once, and a
    device's name."""
    with contextlib.ExitStack() as stack:
        loops = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", _BARE, str(path), str(batch), str(seconds), str(device)],
                    env={**os.environ, **environment(threads)},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for device in devices
        ]
        names = [_line(loop) for loop in loops]
        for loop in loops:
            print(file=loop.stdin, flush=True)
        return sum(float(_line(loop)) for loop in loops), names[0]


def _line(loop: subprocess.Popen[str]) -> str:
    """The next line that a loop prints. Raises ``RuntimeError`` where it has ended."""
    line = loop.stdout.readline().strip() if loop.stdout else ""
    if not line:
        raise RuntimeError(f"a session in a loop ended with status {loop.wait()}")
    return line


def measure(path: Path, arguments: argparse.Namespace) -> Rates:
    """All rates of a model whose first axis is its batch and whose other axes are fixed."""
    import onnx

    batch, workers, seconds, served = arguments.batch, arguments.workers, arguments.seconds, arguments.served
    alone, device = bare(path, batch, seconds, arguments.threads)
    graph = onnx.load(path, load_external_data=False).graph
    rows = input_rows(graph)
    nbytes = sum(row.nbytes for row in (*rows.values(), *map(row_of, graph.output)))
    gpus = max(workers, served) if arguments.gpus else None
    slots = max(4, workers + 2, arguments.replicas + 2)
    print(f"a session alone: {alone:.1f} rows/s", flush=True)
    with cluster(slots, arguments.threads, gpus, haproxy=arguments.haproxy):
        data, start = job(path, rows, arguments, arguments.calls, int(alone * seconds))
        print(
            f"a job: {data:.1f} rows/s a worker ({data / alone:.3f} of it), first answers after {start:.1f} s",
            flush=True,
        )
        with serving() as port:
            service, _ = serve_one(
                str(path),
                rows,
                batch,
                arguments.replicas,
                port,
                arguments,
                resources(arguments, served),
                arguments.runs,
            )
            print(
                f"a service of {arguments.replicas} replicas on {served} GPUs or workers: {service.rows / seconds:.1f} "
                f"rows/s ({service.rows / seconds / alone:.3f} of one session alone), p50 "
                f"{service.percentile_ms(50):.1f} ms, p99 {service.percentile_ms(99):.1f} ms",
                flush=True,
            )
            proto = onnx.parser.parse_model(TINY).SerializeToString()
            row = {"x": np.zeros(4, np.float32)}
            tiny, _ = serve_one(
                proto, row, batch, arguments.replicas, port, arguments, {"num_cpus": 0.1}, arguments.runs
            )
    # the machine may be busier at one time than at another: before and after are taken together
    alone = (alone + bare(path, batch, seconds, arguments.threads)[0]) / 2
    return Rates(
        Path(arguments.model).stem + (" float16" if arguments.float16 else ""),
        device,
        batch,
        workers,
        alone,
        data,
        service.rows / seconds / served,
        len(service.seconds) / seconds / served,
        service.percentile_ms(99),
        len(tiny.seconds) / seconds,
        start,
        nbytes,
    )


def with_rows(proto: Any) -> Any:
    """A model of the catalog whose only symbolic axis is that of rows: sequences have one length."""
    for value in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param == "sequence":
                dim.dim_value = SEQUENCE
    return proto


def input_rows(graph: Any) -> dict[str, Array]:
    """A row of zeros of each input."""
    return {value.name: row_of(value) for value in graph.input}


def row_of(value: Any) -> Array:
    """A row of zeros of an input or output."""
    import onnx

    kind = value.type.tensor_type
    return np.zeros([dim.dim_value for dim in kind.shape.dim[1:]], onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type))


def resources(arguments: argparse.Namespace, workers: int) -> dict[str, float]:
    """What Ray reserves for as many workers."""
    return {"num_gpus" if arguments.gpus else "num_cpus": workers}


def jobs(arguments: argparse.Namespace) -> int:
    """Print a job's rates for each number of batches that a worker has in progress, beside the bare loop's."""
    import onnx

    seconds, workers = arguments.seconds, arguments.workers
    with model_file(arguments) as path:
        row = input_rows(onnx.load(path, load_external_data=False).graph)
        alone, device = bare(path, arguments.batch, seconds, arguments.threads)
        print(f"{arguments.model} on {device}: a session alone {alone:.1f} rows/s at {arguments.batch} a run\n")
        print("| batches in progress | rows/s of each of the workers | quotient |")
        print("|---|---|---|", flush=True)
        gpus, slots, store = workers if arguments.gpus else None, max(4, workers + 2), 512 << 20
        if arguments.transport:  # the processors and half of the memory that processes share make and hold inputs
            slots, store = max(slots, os.cpu_count() or 1), shutil.disk_usage("/dev/shm").free // 2
        with cluster(slots, arguments.threads, gpus, store_bytes=store):
            for calls in arguments.calls:
                rate, _ = job(path, row, arguments, calls, int(alone * seconds))
                print(f"| {calls} | {rate:.1f} | {rate / alone:.3f} |", flush=True)
        again = bare(path, arguments.batch, seconds, arguments.threads)[0]
    print(f"\na session alone, afterwards: {again:.1f} rows/s")
    return 0


def job(
    path: Path, row: Mapping[str, Array], arguments: argparse.Namespace, calls: int, rows: int
) -> tuple[float, float]:
    """Rows per second of each worker of a Ray Data job once all have started, and the seconds until their first answers.

    ``calls`` are the batches that a worker has in progress, ``rows`` about those of each worker. With ``--transport``
    inputs are made by other tasks and come through Ray's object store; else a worker has them.
    """
    import ray

    from vkep.ray import Predictor

    batch, workers, transport = arguments.batch, arguments.workers, arguments.transport

    class Timed(Predictor):
        """Records when each batch was finished."""

        def __call__(self, batch: Any) -> Any:
            rows = len(batch["id"])
            self.predict(batch if transport else made(batch))
            return {"at": np.full(rows, time.time()), "who": np.full(rows, os.getpid())}

    kept: dict[int, dict[str, Array]] = {}

    def made(batch: Any) -> dict[str, Array]:
        """Inputs with the batch's number of rows."""
        rows = len(batch["id"])
        if rows not in kept:
            kept[rows] = {name: np.zeros((rows, *one.shape), one.dtype) for name, one in row.items()}
        return {"id": batch["id"], **kept[rows]}

    began = time.time()
    blocks = 4 * workers
    batch_size = RUNS_OF_A_BATCH * batch
    batches = max(1, round(rows * workers / batch_size / blocks))  # of a block
    dataset = ray.data.range(batches * blocks * batch_size, override_num_blocks=blocks)
    if transport:
        # with the workers' resources Ray would call both in one process
        dataset = dataset.map_batches(made, batch_size=batch_size, num_cpus=0.5)
    found = dataset.map_batches(
        Timed,
        fn_constructor_args=[str(path)],
        fn_constructor_kwargs={"warm": batch, "rows": batch},
        batch_size=batch_size,
        compute=ray.data.ActorPoolStrategy(
            size=workers, max_concurrent_calls_per_actor=calls, enable_true_multi_threading=True
        ),
        **resources(arguments, 1),
    )
    parts = list(found.iter_batches(batch_size=None, batch_format="numpy"))
    at, who = (np.concatenate([part[column] for part in parts]) for column in ("at", "who"))
    times = [at[who == one] for one in np.unique(who)]
    first, last = (
        max(mine.min() for mine in times),
        min(mine.max() for mine in times),
    )  # between these times all workers are busy
    during = int(((at > first) & (at <= last)).sum())
    if last <= first or not during or len(times) < workers:
        raise ValueError(f"a job of {len(at)} rows is too short to measure {workers} workers: give more --seconds")
    return float(during / (last - first) / workers), float(first - began)


def serve_one(
    model: Any,
    row: Mapping[str, Array],
    batch: int,
    replicas: int,
    port: int,
    arguments: argparse.Namespace,
    shared: Mapping[str, float],
    runs: int,
    each: int = 1,
) -> tuple[Heard, Watched]:
    """The latency and throughput of replicas that share resources, with requests of ``each`` rows, and what they used."""
    from ray import serve

    import vkep.ray

    application = vkep.ray.deployment(
        model,
        name="rate",
        num_replicas=replicas,
        options={"rows": batch, "wait_ms": arguments.wait_ms, "runs": runs},
        # Ray counts ten-thousandths, and rounds up
        ray_actor_options={name: math.floor(amount / replicas * 1e4) / 1e4 for name, amount in shared.items()},
        graceful_shutdown_wait_loop_s=0.1,
        graceful_shutdown_timeout_s=2,
        logging_config=QUIET,
    )
    serve.run(application, name="rate")
    feeds = {name: np.repeat(one[None], each, 0) for name, one in row.items()}
    url = f"http://127.0.0.1:{port}/v2/models/model/infer"
    watched = Watched("#rate#")
    headers = UNWATCHED if arguments.unwatched else {}
    heard = ask_from(
        arguments.processes, url, arguments.clients, arguments.seconds, feeds, look=watched.look, headers=headers
    )
    serve.delete("rate")
    if set(heard.statuses) != {200}:
        print(f"statuses: {heard.statuses}, {heard.unanswered} clients lost; {heard.wrong[:2]}", file=sys.stderr)
    return heard, watched


def service(arguments: argparse.Namespace) -> int:
    """Print a service's rates for each size of a run, number of replicas and of their runs, beside the bare loops' on one
    GPU and on all of them at once."""
    import onnx

    shared = resources(arguments, arguments.served)
    seconds = arguments.seconds
    devices = range(arguments.served) if arguments.gpus else [-1] * arguments.served
    found: list[capacity.Service] = []
    with model_file(arguments) as path:
        row = input_rows(onnx.load(path, load_external_data=False).graph)
        alone = {
            batch: [bare(path, batch, seconds, arguments.threads, some)[0] for some in (devices[:1], devices)]
            for batch in arguments.batches
        }
        for batch, (one, every) in alone.items():
            print(f"a session in a loop at {batch} a run: {one:.1f} rows/s, {every:.1f} on {arguments.served} at once")
        print(
            "| most rows of a run | replicas | runs of each | rows of a request | rows/s | of all loops | p50 ms | p99 ms |",
            end="",
        )
        print(" rows of a run | processors: replicas | proxies | clients |")
        print("|---" * 12 + "|", flush=True)
        most = max(4, *(count + 2 for count in arguments.replicas))
        gpus = arguments.served if arguments.gpus else None
        with cluster(most, arguments.threads, gpus, haproxy=arguments.haproxy), serving() as port:
            for batch, replicas, runs, each in itertools.product(
                arguments.batches, arguments.replicas, arguments.runs, arguments.each
            ):
                heard, watched = serve_one(str(path), row, batch, replicas, port, arguments, shared, runs, each)
                rate, p50, p99 = heard.rows / seconds, heard.percentile_ms(50), heard.percentile_ms(99)
                print(
                    f"| {batch} | {replicas} | {runs} | {each} | {rate:.1f} | {rate / alone[batch][1]:.2f} | {p50:.1f} | "
                    f"{p99:.1f} | {watched.rows_of_a_run:.1f} | {watched.processors('replicas'):.1f} | "
                    f"{watched.processors('proxies'):.1f} | {heard.processors:.1f} |",
                    flush=True,
                )
                found.append(
                    capacity.Service(batch, replicas, runs, arguments.served, rate, len(heard.seconds) / seconds, p99)
                )
    capacity.Service.write(found, Path(arguments.out))
    return 0
